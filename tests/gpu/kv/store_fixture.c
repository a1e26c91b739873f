/*
 * Two caches side by side; see store_fixture.h.
 */
#include "store_fixture.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *
room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);

    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

void *
fixture_room(size_t bytes)
{
    void *p = NULL;

    cuda_ok(cudaMalloc(&p, bytes + 1), "cudaMalloc");
    return p;
}

void
fixture_room_free(void *p)
{
    cuda_ok(cudaFree(p), "cudaFree");
}

void
fixture_put(void *to, const void *from, size_t bytes)
{
    cuda_ok(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "put");
}

void
fixture_get(void *to, const void *from, size_t bytes)
{
    cuda_ok(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "get");
}

/* ---- shapes ------------------------------------------------------------- */

/* Distinct levels; plain: what most engines have. */
static uint32_t
choose_levels(uint32_t dim, bool plain, tr_kv_level_t *level)
{
    static const uint8_t bits[] = { 16, 8, 4, 2 };
    uint32_t want = 1 + random_below(4), n = 0;
    bool scored = random_below(4) > 0;

    for (uint32_t try = 0; try < 40 && n < want; try++) {
        tr_kv_level_t v = { .key_bits = bits[random_below(4)],
                            .value_bits = bits[random_below(4)],
                            .key_groups = (uint8_t) (1u << random_below(3)),
                            .value_groups = (uint8_t) (1 + random_below(4)),
                            .scored = scored,
                            .narrow = random_below(2) == 0,
                            .placed = random_below(2) == 0 };
        bool other = true;

        if (random_below(2)) {
            v.key_groups = v.value_groups = 1;
        }
        if (dim / 16 % v.value_groups != 0) {
            v.value_groups = 1;
        }
        if (plain) {
            v.key_bits = bits[1 + random_below(3)];
            v.value_bits = bits[1 + random_below(3)];
            v.key_groups = v.value_groups = 1;
        } else if (v.key_bits < 16 && random_below(6) == 0) {
            v.by_channel = 1;
            v.key_groups = 1;
            v.narrow = 0;
        }
        for (uint32_t i = 0; i < n; i++) {
            other = other && !tr_kv_level_equal(&level[i], &v);
        }
        if (other) {
            level[n++] = v;
        }
    }
    return n;
}

static void
plan_table(fixture_t *b)
{
    tr_kv_view_t *v = &b->host;
    uint32_t fewest = b->plan.layout[0].tokens;

    for (uint32_t i = 1; i < b->plan.n; i++) {
        fewest = b->plan.layout[i].tokens < fewest ? b->plan.layout[i].tokens
                                                   : fewest;
    }
    v->at_window = b->max_len / b->plan.layout[0].tokens + 2;
    v->at_pair[0] = v->at_window + b->max_len / fewest + 2;
    v->pair_len[0] = v->pair_len[1] = 2 * (b->max_len / fewest + 2);
    v->at_pair[1] = v->at_pair[0] + v->pair_len[0];
    v->table_len = v->at_pair[1] + v->pair_len[1];
}

void
fixture_open(fixture_t *b, const fixture_side_t *side)
{
    static const uint32_t dims[] = { 32, 64, 64, 96, 128, 128, 128, 160, 256 };
    tr_kv_level_t level[4];
    tr_page_spec_t spec = { 0 };
    tr_kv_view_t *v = &b->host;
    bool plain = random_below(3) == 0;
    size_t heads;

    memset(b, 0, sizeof(*b));
    b->side = side;
    b->max_len = (plain ? 600 : 300) * side->longer;
    do { /* until a page of 24 KiB can hold all levels */
        spec.head_dim = plain ? 128 : dims[random_below(9)];
        spec.levels = level;
        spec.n_levels = choose_levels(spec.head_dim, plain, level);
        spec.uncompressed_scored = random_below(4) > 0;
        spec.uncompressed_minmax = random_below(2) == 0;
        spec.short_positions = random_below(2) == 0;
    } while (tr_page_plan(&spec, &b->plan) != 0);
    *v = (tr_kv_view_t){ .page_bytes = b->plan.page_bytes,
                         .layers = 1 + random_below(2),
                         .kv_heads = 1 + random_below(3),
                         .head_dim = spec.head_dim,
                         .n_layouts = b->plan.n,
                         .layout = b->plan.layout,
                         .seq = b->seq };
    plan_table(b);
    heads = (size_t) FIXTURE_SLOTS * v->layers * v->kv_heads;
    b->pages = (uint32_t) heads * v->table_len * 2 / 3;
    b->tables = room(heads * v->table_len * 4);
    memset(b->tables, 0xff, heads * v->table_len * 4);
    b->count = room(heads * TR_KV_TIERS_MAX * 4);
    b->frozen = room(heads * TR_KV_TIERS_MAX * 4);
    b->move = room(heads * sizeof(tr_kv_move_t));
    b->free_page = room(b->pages * 4ul);
    b->layout_of = room(b->pages);
    b->n_free = b->pages;
    for (uint32_t i = 0; i < b->pages; i++) { /* a random order */
        uint32_t j = random_below(i + 1);

        b->free_page[i] = b->free_page[j];
        b->free_page[j] = (int32_t) i;
    }
    v->pool = room(b->pages * v->page_bytes);
    memset(v->pool, 0xff, b->pages * v->page_bytes);
    v->tables = b->tables;
    v->count = b->count;
    v->frozen = b->frozen;
    v->move = b->move;
    b->other = *v;
    b->other.pool = fixture_room(b->pages * v->page_bytes);
    b->other.tables = fixture_room(heads * v->table_len * 4);
    b->other.count = fixture_room(heads * TR_KV_TIERS_MAX * 4);
    b->other.frozen = fixture_room(heads * TR_KV_TIERS_MAX * 4);
    b->other.move = fixture_room(heads * sizeof(tr_kv_move_t));
    b->other.seq = fixture_room(sizeof(b->seq));
    fixture_put(b->other.pool, v->pool, b->pages * v->page_bytes);
}

void
fixture_close(fixture_t *b)
{
    free(b->tables);
    free(b->count);
    free(b->frozen);
    free(b->move);
    free(b->free_page);
    free(b->layout_of);
    free(b->host.pool);
    fixture_room_free(b->other.pool);
    fixture_room_free((void *) b->other.tables);
    fixture_room_free((void *) b->other.count);
    fixture_room_free((void *) b->other.frozen);
    fixture_room_free((void *) b->other.move);
    fixture_room_free((void *) b->other.seq);
}

void
fixture_describe(const fixture_t *b)
{
    printf("head size %u, layers %u, KV heads %u, levels", b->host.head_dim,
           b->host.layers, b->host.kv_heads);
    for (uint32_t i = 1; i < b->plan.n; i++) {
        const tr_kv_level_t *v = &b->plan.layout[i].level;

        printf(" %u/%u(%u,%u%s%s%s)", v->key_bits, v->value_bits, v->key_groups,
               v->value_groups, v->by_channel ? ",channel" : "",
               v->scored ? ",scored" : "", v->narrow ? ",narrow" : "");
    }
    printf("\n");
}

void
fixture_page(fixture_t *b, int32_t *entry, uint32_t layout)
{
    if (*entry < 0) {
        if (b->n_free == 0) {
            fprintf(stderr, "the pool is too small\n");
            exit(1);
        }
        *entry = b->free_page[--b->n_free];
    }
    b->layout_of[*entry] = (uint8_t) layout;
}

void
fixture_give_back(fixture_t *b, int32_t *row, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        if (row[i] >= 0) {
            b->free_page[b->n_free++] = row[i];
            row[i] = -1;
        }
    }
}

void
fixture_sync(fixture_t *b)
{
    size_t heads = (size_t) FIXTURE_SLOTS * b->host.layers * b->host.kv_heads;

    fixture_put((void *) b->other.tables, b->tables,
                heads * b->host.table_len * 4);
    fixture_put((void *) b->other.count, b->count, heads * TR_KV_TIERS_MAX * 4);
    fixture_put((void *) b->other.frozen, b->frozen,
                heads * TR_KV_TIERS_MAX * 4);
    fixture_put((void *) b->other.move, b->move, heads * sizeof(tr_kv_move_t));
    fixture_put((void *) b->other.seq, b->seq, sizeof(b->seq));
}

/* ---- comparing ---------------------------------------------------------- */

static bool
is_nan(const uint8_t *p)
{
    return (p[1] & 0x7c) == 0x7c && ((p[1] & 3) | p[0]) != 0;
}

/* May byte `at` of a page with this layout be part of a 16-bit number? */
static bool
is_half(const tr_kv_layout_t *l, uint32_t at)
{
    const uint32_t end = tr_kv_tiles_end(l);
    const bool wide = l->level.key_bits == 16 && l->level.value_bits == 16;

    if (at >= end) { /* an uncompressed page's min/max is one, too */
        return wide;
    }
    at = wide ? at : at % l->tile;
    if (at < l->value) {
        return l->level.key_bits == 16;
    }
    return l->level.value_bits == 16
           && (wide || at < l->value + 2 * TR_KV_TILE * l->head_dim);
}

static bool
page_same(const fixture_t *b, const uint8_t *want, uint8_t *got, uint32_t page,
          const char *after)
{
    const tr_kv_layout_t *l = &b->plan.layout[b->layout_of[page]];

    for (uint32_t i = 0; i < b->host.page_bytes; i += 2) {
        if (memcmp(want + i, got + i, 2) == 0
            || (b->nan_in && is_half(l, i) && is_nan(want + i)
                && is_nan(got + i))) {
            continue;
        }
        printf("%s: page %u, layout %u, bytes %u: %02x%02x, expected "
               "%02x%02x (value codes from %u, metadata %u and %u, scores %u, "
               "%u tokens)\n",
               after, page, b->layout_of[page], i, got[i], got[i + 1], want[i],
               want[i + 1], l->value, l->key_meta, l->value_meta, l->score,
               l->tokens);
        return false;
    }
    return true;
}

bool
fixture_same(fixture_t *b, const char *after)
{
    size_t bytes = b->host.page_bytes;
    uint8_t *got = room(b->pages * bytes);
    bool same = true;

    cuda_ok(cudaDeviceSynchronize(), after);
    fixture_get(got, b->other.pool, b->pages * bytes);
    for (uint32_t i = 0; i < b->pages && same; i++) {
        if (memcmp(got + i * bytes, b->host.pool + i * bytes, bytes) != 0) {
            same = page_same(b, b->host.pool + i * bytes, got + i * bytes, i,
                             after);
        }
    }
    free(got);
    return same;
}

/* ---- inputs ------------------------------------------------------------- */

static float
input_number(bool wild, double scale, double offset)
{
    static const float odd[] = { 0,     -0.0f,  INFINITY, -INFINITY, NAN,
                                 1e30f, -1e30f, 65504,    65520,     6e-8f };

    if (wild && random_below(40) == 0) {
        return odd[random_below(10)];
    }
    return (float) (offset + random_normal() * scale);
}

/* One row of one side: groups of one scale around an offset; sometimes all
 * equal, all zero, all NaN. */
static void
input_row(fixture_t *b, float *x, uint32_t n, bool wild)
{
    double scale = pow(10, -6 + 10 * random_unit());
    double offset = random_below(2) ? 0 : random_normal() * scale;
    uint32_t kind = wild ? random_below(12) : 12;

    for (uint32_t i = 0; i < n; i++) {
        x[i] = input_number(wild, scale, offset);
        if (kind == 0) {
            x[i] = (float) offset;
        } else if (kind == 1) {
            x[i] = random_below(2) ? 0.0f : -0.0f;
        } else if (kind == 2) {
            x[i] = NAN;
        }
    }
    b->nan_in = b->nan_in || wild;
}

/* x as the other side's type, and what that is exactly. */
static void
typed(tr_dtype_t type, float *x, size_t n, void *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        uint16_t h;

        memcpy(&u, &x[i], 4);
        if (type == TR_F32) {
            memcpy((uint8_t *) out + 4 * i, &u, 4);
            continue;
        }
        h = type == TR_BF16 ? (uint16_t) (u >> 16) : half_from((double) x[i]);
        memcpy((uint8_t *) out + 2 * i, &h, 2);
        x[i] = type == TR_BF16 ? tr_float_from_bits((uint32_t) h << 16)
                               : tr_float_from_half(h);
    }
}

void
fixture_input(fixture_t *b, uint32_t rows, fixture_input_t *in)
{
    uint32_t dim = b->host.head_dim, n = b->host.kv_heads * dim;
    tr_dtype_t type = (tr_dtype_t) random_below(3);
    bool wild = random_below(3) == 0;
    uint8_t *as;
    void *k, *v, *angles;

    in->ld = n + random_below(3) * 8;
    in->k = room(rows * in->ld * 4);
    in->v = room(rows * in->ld * 4);
    in->angles = room((size_t) rows * dim * 4);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t l = 0; l < b->host.kv_heads; l++) {
            input_row(b, in->k + r * in->ld + l * dim, dim, wild);
            input_row(b, in->v + r * in->ld + l * dim, dim, wild);
        }
        for (uint32_t i = 0; i < dim / 2; i++) {
            double angle = random_unit() * 6.3;

            in->angles[r * dim + i] = (float) cos(angle);
            in->angles[r * dim + dim / 2 + i] = (float) sin(angle);
        }
    }
    as = room(rows * in->ld * 4);
    k = fixture_room(rows * in->ld * 4);
    v = fixture_room(rows * in->ld * 4);
    angles = fixture_room((size_t) rows * dim * 4);
    typed(type, in->k, rows * in->ld, as);
    fixture_put(k, as, rows * in->ld * 4);
    typed(type, in->v, rows * in->ld, as);
    fixture_put(v, as, rows * in->ld * 4);
    fixture_put(angles, in->angles, (size_t) rows * dim * 4);
    free(as);
    in->there = angles;
    if (random_below(8) == 0) {
        angles = NULL; /* keys as they are */
    }
    in->other = (tr_cuda_keys_t){ k, v, in->ld, type, angles, false, NULL };
    memset(&in->heads, 0, sizeof(in->heads));
    in->want = NULL;
}

void
fixture_input_free(fixture_input_t *in)
{
    free(in->k);
    free(in->v);
    free(in->angles);
    if (in->other.heads != NULL) {
        fixture_room_free(in->heads.qkv);
        fixture_room_free((void *) in->heads.bias);
    } else {
        fixture_room_free((void *) in->other.k);
        fixture_room_free((void *) in->other.v);
    }
    fixture_room_free(in->there);
    free(in->want);
}

int
fixture_rounds(int argc, char **argv, const char *name, uint32_t longer,
               fixture_round_t one_round, void (*what)(void))
{
    fixture_side_t side = { .longer = longer };
    uint32_t rounds, failed = 0;
    uint64_t seed;

    rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 32;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t) time(NULL);
    if (tr_cuda_open(0, &side.device) != 0) {
        printf("no device: %s\n", tr_cuda_reason());
        return 77;
    }
    side.stream.device = &side.device;
    cuda_ok(cudaStreamCreate((cudaStream_t *) &side.stream.stream), "stream");
    for (uint32_t r = 0; r < rounds; r++) {
        random_seed(seed + r);
        if (!one_round(&side)) {
            printf("FAILED: test_%s 1 %llu\n", name,
                   (unsigned long long) (seed + r));
            failed++;
        }
    }
    printf("%s: %u rounds from seed %llu, %u failed; ", name, rounds,
           (unsigned long long) seed, failed);
    what();
    return failed != 0;
}
