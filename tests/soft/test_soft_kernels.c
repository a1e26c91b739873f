/*
 * The software device's launchers that write and read the cache, against the
 * CPU backend that they are made of: two caches live through the same
 * conversations, one by the CPU backend's table, one by launches as the engine
 * makes them (moves first, the sequences of a step shared out among three kinds
 * of attention, padding in between, operands of 16 bits).  Outputs, victims and
 * all bytes of the pools stay the same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "load.h"

#include "engine/kv/kv_cache.h"
#include "engine/kv/policy/kv_policy.h"
#include "kernels/kernels.h"

#define LAYERS 3u
#define LISTS 2u
#define HEADS 6u
#define DIM 64u
#define SLOTS 3u
#define ROWS 64u
#define LEN 300u
#define WIDTH (HEADS * DIM)
#define KV_WIDTH (LISTS * DIM)

static uint64_t seed;

static uint32_t
below(uint32_t n)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t) ((z ^ (z >> 31)) >> 32) % n;
}

/* ---- the device as a table ---------------------------------------------- */

static tr_cuda_stream_t stream;
static uint8_t *work;        /* of whatever is launched */
static uint8_t *decode_work; /* of all layers of a step */

#define WORK ((size_t) 8 << 20)

static int
device_compress(const tr_stream_t *s, const tr_kv_view_t *kv,
                const tr_kv_compress_t *c, void *unused)
{
    uint32_t refused = 7;

    (void) s;
    (void) unused;
    assert_true(cuda->kv_compress_work(kv, 1, LEN) <= WORK);
    assert_int_equal(cuda->kv_compress(&stream, kv, c, 1, LEN, &refused, work),
                     0);
    assert_int_equal(cuda->stream_wait(&stream), 0);
    return refused == 0 ? TR_KERNEL_OK : TR_KERNEL_BADARG;
}

/* ---- a step ------------------------------------------------------------- */

typedef struct {
    tr_rows_t rows;
    uint32_t row_pos[ROWS], seq_row[SLOTS + 2];
    int32_t seq_slot[SLOTS + 1];
} step_t;

static struct {
    float q[ROWS * WIDTH], k[ROWS * KV_WIDTH], v[ROWS * KV_WIDTH];
    float angles[ROWS * DIM], out[ROWS * WIDTH];
    uint16_t q16[ROWS * WIDTH], k16[ROWS * KV_WIDTH], v16[ROWS * KV_WIDTH];
    float device_out[ROWS * WIDTH];
} x;

/* Fresh numbers of the type, exact in both. */
static void
numbers(float *f, uint16_t *h, size_t n, tr_dtype_t type)
{
    for (size_t i = 0; i < n; i++) {
        tr_float_store(h, i, type == TR_F32 ? TR_BF16 : type,
                       ((float) below(2001) - 1000) * 0.003f);
        f[i] = tr_float_load(h, i, type == TR_F32 ? TR_BF16 : type);
    }
}

static void
step_by_cpu(const tr_kv_view_t *kv, const step_t *t, uint32_t layer)
{
    const tr_kernels_t *cpu = tr_kernels_cpu(NULL);
    tr_stream_t s = { .threads = 1 };

    assert_int_equal(cpu->kv_append(&s, kv, layer, &t->rows, x.k, x.v, KV_WIDTH,
                                    x.angles),
                     0);
    assert_true(cpu->attention_work(&s, ROWS, SLOTS, LEN, HEADS, LISTS, DIM)
                <= WORK);
    assert_int_equal(cpu->attention(&s, kv, layer, &t->rows, x.q, WIDTH, HEADS,
                                    0.125f, x.out, WIDTH, work),
                     0);
}

/* Which sequences the fast kernels leave out: the others' slots become -1. */
static void
rest_of(const tr_kv_view_t *kv, const tr_rows_t *rows, bool decoded,
        int32_t *slot)
{
    for (uint32_t s = 0; s < rows->n_seqs; s++) {
        uint32_t n = rows->seq_row[s + 1] - rows->seq_row[s];

        slot[s] = rows->seq_slot[s];
        if (slot[s] >= 0 && (n == 1 ? decoded : kv->seq[slot[s]].base == 0)) {
            slot[s] = -1;
        }
    }
}

static void
attend_by_device(const tr_kv_view_t *kv, const tr_rows_t *rows, uint32_t layer,
                 tr_dtype_t type)
{
    tr_cuda_queries_t q = { type == TR_F32 ? (void *) x.q : (void *) x.q16,
                            x.device_out,
                            WIDTH,
                            WIDTH,
                            type,
                            TR_F32,
                            HEADS,
                            0.125f };
    tr_cuda_decode_size_t decode = { LAYERS, LISTS,       DIM, ROWS,
                                     HEADS,  SLOTS * LEN, 8 };
    tr_cuda_prompt_size_t prompt = { LISTS, DIM, HEADS,         ROWS,
                                     ROWS,  LEN, TR_PROMPT_BEST };
    tr_cuda_generic_size_t generic = { LISTS, DIM, HEADS, ROWS, ROWS, LEN };
    static int rc; /* of the step */
    int32_t slot[SLOTS + 1];
    tr_rows_t rest = *rows;

    if (layer == 0) {
        rc = cuda->decode_plan(&stream, kv, rows, &decode, decode_work);
    }
    assert_true(rc == 0 || rc == TR_KERNEL_BADARG); /* levels it knows not */
    if (rc == 0) {
        assert_int_equal(cuda->decode(&stream, kv, layer, rows, &q, &decode,
                                      decode_work),
                         0);
    }
    if (rc == 0 && layer == LAYERS - 1) {
        assert_int_equal(cuda->decode_score(&stream, kv, rows, &decode,
                                            decode_work),
                         0);
    }
    assert_int_equal(cuda->prompt(&stream, kv, layer, rows, &q, &prompt, work),
                     0);
    rest_of(kv, rows, rc == 0, slot);
    rest.seq_slot = slot;
    assert_int_equal(cuda->attention(&stream, kv, layer, &rest, &q, &generic,
                                     work),
                     0);
    assert_int_equal(cuda->stream_wait(&stream), 0);
}

/* The same step with one sequence more, which is nobody's. */
static void
step_by_device(const tr_kv_view_t *kv, step_t *t, uint32_t layer,
               tr_dtype_t type, uint32_t *refused)
{
    bool wide = type == TR_F32;
    tr_cuda_keys_t in = { wide ? (void *) x.k : (void *) x.k16,
                          wide ? (void *) x.v : (void *) x.v16,
                          KV_WIDTH,
                          type,
                          x.angles,
                          true,
                          NULL };
    tr_rows_t rows = t->rows;
    uint32_t n = rows.n_rows;

    t->seq_slot[rows.n_seqs] = -1;
    t->seq_row[rows.n_seqs + 1] = n + 1;
    t->row_pos[n] = 12345;
    rows.n_rows++;
    rows.n_seqs++;
    if (layer == 0) {
        assert_int_equal(cuda->kv_moves(&stream, kv, &rows, false, refused), 0);
    }
    assert_int_equal(cuda->kv_append(&stream, kv, layer, &rows, &in, refused),
                     0);
    memset(x.device_out, 0xff, sizeof(x.device_out));
    attend_by_device(kv, &rows, layer, type);
    assert_true(memcmp(x.device_out, x.out, n * WIDTH * 4) == 0);
    for (uint32_t i = 0; i < WIDTH; i++) {
        assert_true(tr_float_bits(x.device_out[n * WIDTH + i]) == ~0u);
    }
}

/* ---- two caches --------------------------------------------------------- */

typedef struct {
    tr_kv_cache_t *kv[2]; /* CPU, device */
    tr_kv_view_t view[2];
    tr_kernels_t table;
    struct {
        uint32_t len, prompt; /* stored; where its prompt ends */
    } slot[SLOTS];
} pair_t;

static void
pair_open(pair_t *p, const tr_kv_policy_t *policy)
{
    tr_error_t err = { 0 };
    tr_kv_config_t config = { .layers = LAYERS,
                              .lists = LISTS,
                              .head_dim = DIM,
                              .slots = SLOTS,
                              .max_len = LEN,
                              .memory = 6 << 20,
                              .policies = &policy,
                              .n_policies = 1,
                              .stream = { .threads = 1 } };

    p->table = *tr_kernels_cpu(NULL);
    p->table.kv_compress = device_compress;
    for (int i = 0; i < 2; i++) {
        config.kernels = i == 0 ? tr_kernels_cpu(NULL) : &p->table;
        if (tr_kv_cache_create(&config, &p->kv[i], &err) != TR_OK) {
            fail_msg("%s: %s", policy->spec, err.text);
        }
        tr_kv_view(p->kv[i], &p->view[i]);
    }
    for (uint32_t s = 0; s < SLOTS; s++) {
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tr_kv_open(p->kv[i], NULL), s);
        }
        p->slot[s].len = p->slot[s].prompt = 0;
    }
}

static void
pair_same(const pair_t *p)
{
    const tr_kv_view_t *a = &p->view[0], *b = &p->view[1];
    size_t victims = SLOTS * LAYERS * LISTS * TR_KV_LISTS_MAX;

    assert_true(memcmp(a->pool, b->pool, tr_kv_pages(p->kv[0]) * a->page_bytes)
                == 0);
    for (size_t i = 0; i < victims; i++) {
        assert_memory_equal(&a->victim[i].significance,
                            &b->victim[i].significance, 4);
        assert_int_equal(a->victim[i].index, b->victim[i].index);
    }
}

/* A chunk of a prompt, or one token, of each slot. */
static void
compose(pair_t *p, step_t *t)
{
    uint32_t n = 0, seqs = 0;

    for (uint32_t s = 0; s < SLOTS; s++) {
        uint32_t at = p->slot[s].len, rows = 1;

        if (at >= LEN - 40 || below(8) == 0) {
            continue;
        }
        if (at >= p->slot[s].prompt && (at == 0 || below(30) == 0)) {
            p->slot[s].prompt = at + 1 + below(at == 0 ? 100 : 30);
            for (int i = 0; i < 2; i++) {
                tr_kv_prompt(p->kv[i], (int32_t) s, p->slot[s].prompt);
            }
        }
        if (at < p->slot[s].prompt) {
            rows = 1 + below(18);
            rows = rows < p->slot[s].prompt - at ? rows
                                                 : p->slot[s].prompt - at;
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tr_kv_reserve(p->kv[i], (int32_t) s, at + rows),
                             TR_OK);
        }
        t->seq_slot[seqs] = (int32_t) s;
        t->seq_row[seqs++] = n;
        for (uint32_t i = 0; i < rows; i++) {
            t->row_pos[n++] = at + i;
        }
        p->slot[s].len += rows;
    }
    t->seq_row[seqs] = n;
    t->rows = (tr_rows_t){ n, seqs, t->row_pos, t->seq_slot, t->seq_row };
}

static void
live(const char *spec, uint32_t steps)
{
    tr_kv_policy_t *policy;
    tr_error_t err = { 0 };
    uint32_t refused = 0;
    static step_t t;
    pair_t p;

    if (tr_kv_policy_create(spec, LAYERS, LISTS, DIM, &policy, &err) != TR_OK) {
        fail_msg("%s: %s", spec, err.text);
    }
    pair_open(&p, policy);
    for (uint32_t i = 0; i < steps; i++) {
        tr_dtype_t type = (tr_dtype_t) below(3);

        compose(&p, &t);
        for (uint32_t layer = 0; t.rows.n_rows > 0 && layer < LAYERS; layer++) {
            numbers(x.q, x.q16, ROWS * WIDTH, type);
            numbers(x.k, x.k16, ROWS * KV_WIDTH, type);
            numbers(x.v, x.v16, ROWS * KV_WIDTH, type);
            for (uint32_t j = 0; j < ROWS * DIM; j++) {
                x.angles[j] = (float) below(200) * 0.01f - 1;
            }
            step_by_cpu(&p.view[0], &t, layer);
            step_by_device(&p.view[1], &t, layer, type, &refused);
        }
        pair_same(&p);
        for (uint32_t s = 0; s < SLOTS; s++) {
            if (p.slot[s].len != p.slot[s].prompt) {
                continue;
            }
            for (int k = 0; k < 2; k++) {
                assert_int_equal(tr_kv_compress(p.kv[k], (int32_t) s,
                                                p.slot[s].len),
                                 TR_OK);
            }
        }
        pair_same(&p);
    }
    assert_int_equal(refused, 0);
    for (int i = 0; i < 2; i++) {
        assert_true(tr_kv_sound(p.kv[i]));
        tr_kv_cache_free(p.kv[i]);
    }
    tr_kv_policy_free(policy);
}

static void
lives_the_same(void **state)
{
    static const char *const specs[] = {
        "full",
        "diffkv:levels=8/4+4/2,alpha_high=1,alpha_low=0.25,window=16",
        "diffkv:levels=16/16+8/4+4/2,alpha_top=3,alpha_high=1,alpha_low=0.3,"
        "window=8",
        "h2o",
        "snapkv",
        "uniform:levels=4/2",
        "int4",
        "kivi",
        "quest",
        "streamingllm",
    };

    (void) state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        printf("# %s, seed %llu\n", specs[i], (unsigned long long) seed);
        live(specs[i], 90);
    }
}

/* ---- what is refused ---------------------------------------------------- */

/* A head whose pages are not there is left out, alone, and counted. */
static void
refuses_one_head(void **state)
{
    const tr_kv_policy_t *policy;
    tr_kv_policy_t *full;
    tr_error_t err = { 0 };
    uint32_t refused = 0;
    tr_cuda_keys_t in = { x.k, x.v, KV_WIDTH, TR_F32, x.angles, false, NULL };
    static step_t t;
    int32_t *row;
    pair_t p;

    (void) state;
    assert_int_equal(tr_kv_policy_create("full", LAYERS, LISTS, DIM, &full,
                                         &err),
                     TR_OK);
    policy = full;
    pair_open(&p, policy);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tr_kv_reserve(p.kv[i], 0, 5), TR_OK);
    }
    t.rows = (tr_rows_t){ 5, 1, t.row_pos, t.seq_slot, t.seq_row };
    t.seq_slot[0] = 0;
    t.seq_row[0] = 0;
    t.seq_row[1] = 5;
    for (uint32_t i = 0; i < 5; i++) {
        t.row_pos[i] = i;
    }
    numbers(x.k, x.k16, ROWS * KV_WIDTH, TR_F32);
    numbers(x.v, x.v16, ROWS * KV_WIDTH, TR_F32);
    step_by_cpu(&p.view[0], &t, 1);
    row = (int32_t *) tr_kv_table(&p.view[1], 0, 1, 1);
    row[0] = -1 - row[0];
    assert_int_equal(cuda->kv_append(&stream, &p.view[1], 1, &t.rows, &in,
                                     &refused),
                     0);
    assert_int_equal(cuda->stream_wait(&stream), 0);
    row[0] = -1 - row[0];
    assert_int_equal(refused, 5);
    for (uint32_t list = 0; list < LISTS; list++) {
        const tr_kv_view_t *a = &p.view[0], *b = &p.view[1];
        const uint8_t *want = tr_kv_page_at(a, tr_kv_table(a, 0, 1, list)[0]);
        const uint8_t *got = tr_kv_page_at(b, tr_kv_table(b, 0, 1, list)[0]);

        assert_int_equal(memcmp(want, got, 5 * DIM * 2) == 0, list == 0);
    }
    for (int i = 0; i < 2; i++) {
        tr_kv_cache_free(p.kv[i]);
    }
    tr_kv_policy_free(full);
}

static int
setup(void **state)
{
    (void) state;
    seed = (uint64_t) time(NULL);
    soft_load();
    work = aligned_alloc(256, WORK);
    decode_work = aligned_alloc(256, WORK);
    return cuda->stream_open(&device, &stream);
}

static int
teardown(void **state)
{
    (void) state;
    cuda->stream_close(&stream);
    free(work);
    free(decode_work);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lives_the_same),
        cmocka_unit_test(refuses_one_head),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
