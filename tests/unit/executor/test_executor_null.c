/*
 * backend null: its tokens depend on the position alone, its clock has one
 * tick for all streams or an even phase for each, and through the loop a
 * request gets exactly max_tokens tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/scheduler/loop.h"
#include "tests/unit/fixtures/response_writer_fixture.h"
#include "engine/executor/null_trace.h"

#define VOCAB 4096

static tr_executor_t *
make(double rate, bool stagger, const char *trace)
{
    tr_config_t c;
    tr_executor_t *e;
    tr_error_t err;

    tr_config_defaults(&c);
    c.kv_memory = 2 << 20;
    c.null_rate = rate;
    c.null_stagger = stagger;
    strcpy(c.null_trace, trace);
    assert_int_equal(tr_executor_null_open(&c, VOCAB, &e, &err), TR_OK);
    return e;
}

static void
sample(tr_executor_t *e, uint32_t pos, uint32_t n, int32_t logprobs,
       tr_sampled_t *out)
{
    static const int32_t tokens[64];
    tr_sampling_params_t params = { .logprobs = logprobs };
    tr_sampler_t sampler = { .params = &params };
    tr_batch_item_t item = { .pos = pos,
                             .n = n,
                             .tokens = tokens,
                             .sample = true,
                             .sampler = &sampler,
                             .out = out,
                             .status = TR_ERR_INTERNAL };
    tr_batch_t batch = { &item, 1, n };

    assert_int_equal(tr_executor_run(e, &batch), TR_OK);
    assert_int_equal(item.status, TR_OK);
}

static void
tokens_depend_on_position(void **state)
{
    tr_executor_t *e = make(50, false, "");
    tr_sampled_t a, b;
    uint32_t pos, distinct = 0;
    int32_t before = -1;

    (void) state;
    assert_int_equal(e->n_eos, 0);
    for (pos = 10; pos < 60; pos++) {
        sample(e, pos, 1, -1, &a);
        sample(e, pos - 9, 10, 5, &b); /* the same position, in a chunk */
        assert_int_equal(a.token, b.token);
        assert_int_equal(a.n_top, 0);
        assert_int_equal(b.n_top, 5);
        assert_int_equal(b.top[0].token, b.token);
        assert_in_range(a.token, 69, 89);
        distinct += a.token != before;
        before = a.token;
    }
    assert_int_equal(distinct, 50);
    e->free(e);
}

static void
one_clock(void **state)
{
    tr_executor_t *e = make(300, false, "");
    uint64_t now = tr_trace_now() / 1000, due = e->due(e, 0, now), k;

    (void) state;
    for (k = 0; k < 1000; k++) {
        uint64_t next;

        assert_true(due > now && due <= now + 3334);
        assert_int_equal(e->due(e, 77, now), due);
        /* a little late: the tick after is not later for it */
        next = e->due(e, 0, due + k % 3000);
        assert_in_range(next - due, 3333, 3334);
        now = due;
        due = next;
    }
    /* missed ticks are skipped */
    assert_in_range(e->due(e, 0, now + 1000000) - now, 1000001, 1003335);
    e->free(e);
}

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

    return x < y ? -1 : x > y;
}

/* However many streams there are, and however slow they are. */
static void
even_phases(void **state)
{
    static const uint64_t periods[] = { 20000, 10000000 }; /* us */
    uint64_t due[201], gap = 0;
    uint32_t n, i, k;

    (void) state;
    for (k = 0; k < 2; k++) {
        const uint64_t period = periods[k];
        tr_executor_t *e = make(1e6 / (double) period, true, "");
        uint64_t now = tr_trace_now() / 1000;

        for (n = 2; n <= 200; n++) {
            for (i = 0; i < n; i++) {
                due[i] = e->due(e, (int32_t) i, now);
                assert_true(due[i] > now && due[i] <= now + period + 1);
                assert_in_range(e->due(e, (int32_t) i, due[i]) - due[i], period,
                                period + 1);
            }
            qsort(due, n, sizeof(due[0]), compare);
            due[n] = due[0] + period;
            for (i = 0, gap = 0; i < n; i++) {
                gap = due[i + 1] - due[i] > gap ? due[i + 1] - due[i] : gap;
            }
            assert_true(gap * n <= period * 2);
        }
        e->free(e);
    }
}

/* A rate that the configuration allows, whose interval no counter holds. */
static void
almost_never(void **state)
{
    tr_executor_t *e = make(1e-11, true, "");
    uint64_t now = tr_trace_now() / 1000;

    (void) state;
    assert_true(e->due(e, 3, now) > now);
    e->free(e);
}

static void
trace_is_kept(void **state)
{
    char path[] = "/tmp/tokenring-null-trace.XXXXXX";
    int fd = mkstemp(path);
    tr_executor_t *e;
    tr_trace_t *t;
    tr_sampled_t out;

    (void) state;
    assert_true(fd >= 0);
    close(fd);
    e = make(50, false, path);
    sample(e, 3, 2, -1, &out);
    sample(e, 5, 1, -1, &out);
    t = tr_trace_open(path, 0);
    assert_non_null(t);
    assert_int_equal(t->n, 2);
    assert_int_equal(t->record[1].tokens, 1);
    assert_true(t->record[1].ns >= t->record[0].ns);
    tr_trace_close(t);
    e->free(e);
    unlink(path);
}

static void
refused(void **state)
{
    tr_config_t c;
    tr_executor_t *e;
    tr_error_t err;

    (void) state;
    tr_config_defaults(&c);
    c.null_rate = 0;
    assert_int_equal(tr_executor_null_open(&c, VOCAB, &e, &err),
                     TR_ERR_INVALID);
    assert_string_equal(err.param, "null_rate");
    c.null_rate = 50;
    strcpy(c.null_trace, "/nowhere/at/all");
    assert_int_equal(tr_executor_null_open(&c, VOCAB, &e, &err), TR_ERR_IO);
    assert_string_equal(err.param, "null_trace");
    assert_null(e);
}

/* ---- through the loop --------------------------------------------------- */

static tr_request_t *
submit(tr_loop_t *l, const tr_tokenizer_t *t, tr_response_writer_t *o,
       uint64_t id, uint32_t max_tokens)
{
    static int32_t ids[700];
    tr_ids_t prompt = { ids, 700, 700 };
    tr_request_t *r = calloc(1, sizeof(*r));

    r->n = 1;
    r->id = id;
    r->writer = o;
    r->params = (tr_sampling_params_t){ .top_p = 1,
                                        .repetition_penalty = 1,
                                        .max_tokens = max_tokens,
                                        .logprobs = -1 };
    assert_int_equal(tr_request_layout(r, &prompt, 1, VOCAB, NULL, 0, t),
                     TR_OK);
    assert_int_equal(tr_loop_reserve(l, r), TR_OK);
    tr_loop_submit(l, r);
    return r;
}

static void
exactly_max_tokens(void **state)
{
    static uint8_t buf[1 << 18];
    static tr_status_counters_t counters;
    tr_executor_t *e = make(2000, true, "");
    tr_request_t *r[8], *over, *next;
    unsigned back = 0;
    tr_ring_consumer_t peer;
    tr_response_writer_t o;
    tr_tokenizer_t *t;
    tr_config_t c;
    tr_loop_t *l;
    tr_error_t err;
    tr_record_t rec;
    uint64_t ignored;
    int fd = eventfd(0, EFD_CLOEXEC), open = 8, i;

    (void) state;
    tr_config_defaults(&c);
    assert_int_equal(tr_tokenizer_load("models/pocket", &t, &err), TR_OK);
    writer_make(&o, &peer, 1 << 20, fd, fd);
    assert_int_equal(tr_loop_start(&c, e, t, &counters, fd, &l, &err), TR_OK);
    for (i = 0; i < 8; i++) { /* one of them would take hours */
        r[i] = submit(l, t, &o, (uint64_t) i, i == 7 ? 30000 : 10 + i);
    }
    atomic_store(&r[7]->control, TR_CONTROL_ABORT);
    tr_loop_wake(l);
    while (open != 0) {
        while (tr_ring_get(&peer, &rec, buf, sizeof(buf)) == TR_OK) {
            tr_wire_finish_t f = { 0 };

            if (rec.type == TR_RECORD_FINISH) {
                tr_wire_finish_parse(buf, rec.length, &f, NULL);
                assert_int_equal(f.flags, TR_FINISH_LAST);
                if (rec.id != 7) {
                    assert_int_equal(f.completion_tokens, 10 + rec.id);
                    assert_int_equal(f.reason, TR_FINISH_LENGTH);
                }
                /* it came back before this could be seen */
                for (over = tr_loop_over_now(l); over != NULL; over = next) {
                    next = over->next;
                    assert_ptr_equal(over, r[over->id]);
                    back |= 1u << over->id;
                }
                assert_true(back & 1u << rec.id);
                open--;
            }
        }
        tr_ring_release(&peer);
        if (open != 0 && tr_ring_sleep(&peer) == TR_AGAIN) {
            assert_int_equal(read(fd, &ignored, 8), 8);
        }
    }
    for (i = 0; i < 8; i++) {
        tr_request_free(r[i]);
    }
    assert_int_equal(tr_loop_outstanding(l), 0);
    assert_null(tr_loop_stop(l));
    e->free(e);
    writer_unmake(&o, &peer);
    tr_tokenizer_free(t);
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_depend_on_position),
        cmocka_unit_test(one_clock),
        cmocka_unit_test(even_phases),
        cmocka_unit_test(almost_never),
        cmocka_unit_test(trace_is_kept),
        cmocka_unit_test(refused),
        cmocka_unit_test(exactly_max_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
