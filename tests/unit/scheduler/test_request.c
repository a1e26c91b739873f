/*
 * Requests: the arena's alignment and zeroes, the layout of prompts and
 * choices, seeds, sizes that must be refused, a vector whose client has left, and
 * which ends are none because another engine goes on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/scheduler/emit.h"
#include "engine/scheduler/request.h"
#include "tests/unit/fixtures/response_writer_fixture.h"

static tr_tokenizer_t *tokenizer;

static void
arena(void **state)
{
    static const size_t sizes[] = { 1, 16, 0, 100, 4096, 4097, 30000, 5, 17 };
    tr_arena_t a = { 0 };
    uint8_t *got[300];
    size_t size[300], i, k;

    (void) state;
    for (i = 0; i < 300; i++) {
        size[i] = sizes[i % 9];
        got[i] = tr_arena_alloc(&a, size[i]);
        assert_non_null(got[i]);
        assert_int_equal((uintptr_t) got[i] % 16, 0);
        for (k = 0; k < size[i]; k++) {
            assert_int_equal(got[i][k], 0);
        }
        memset(got[i], (int) (i | 1), size[i]);
    }
    for (i = 0; i < 300; i++) { /* nobody wrote over another */
        for (k = 0; k < size[i]; k++) {
            assert_int_equal(got[i][k], (uint8_t) (i | 1));
        }
    }
    assert_null(tr_arena_alloc(&a, SIZE_MAX));
    assert_null(tr_arena_alloc(&a, SIZE_MAX - 20));
    tr_arena_free(&a);
    assert_null(a.blocks);
    /* usable again */
    assert_non_null(tr_arena_alloc(&a, 8));
    tr_arena_free(&a);
}

static tr_request_t *
make(uint32_t n, uint32_t max_tokens)
{
    tr_request_t *r = calloc(1, sizeof(*r));

    r->n = n;
    r->params = (tr_sampling_params_t){ .temperature = 1.0f,
                                        .top_p = 1.0f,
                                        .repetition_penalty = 1.0f,
                                        .has_seed = true,
                                        .seed = 42,
                                        .max_tokens = max_tokens,
                                        .logprobs = -1 };
    return r;
}

static tr_status_t
layout(tr_request_t *r, const tr_ids_t *prompts, uint32_t n)
{
    static const int32_t eos = 4;

    return tr_request_layout(r, prompts, n, 4096, &eos, 1, tokenizer);
}

static void
layout_prompts_and_choices(void **state)
{
    int32_t ids[] = { 10, 11, 12, 13, 14 };
    tr_ids_t prompts[] = { { ids, 5, 5 }, { ids + 2, 2, 2 } };
    tr_request_t *r = make(3, 7);
    uint32_t i, k;

    (void) state;
    r->params.presence_penalty = 1.0f;
    assert_int_equal(layout(r, prompts, 2), TR_OK);
    assert_int_equal(r->n_prompts, 2);
    assert_int_equal(r->n_sequences, 6);
    assert_int_equal(r->open_sequences, 6);
    assert_int_equal(r->prompt_tokens, 7);
    for (i = 0; i < 6; i++) {
        const tr_sequence_t *s = &r->sequences[i];
        const tr_ids_t *p = &prompts[i / 3];

        assert_ptr_equal(s->request, r);
        assert_int_equal(s->choice, i);
        assert_int_equal(s->state, TR_SEQ_WAITING);
        assert_int_equal(s->kv_slot, -1);
        assert_int_equal(s->prompt_len, p->len);
        assert_int_equal(s->len, p->len);
        assert_int_equal(s->cap, p->len + 7);
        assert_memory_equal(s->tokens, p->data, p->len * sizeof(int32_t));
        assert_null(s->prompt_scores);
        assert_non_null(s->sampler.counts);
        for (k = 0; k < i; k++) {
            assert_ptr_not_equal(s->tokens, r->sequences[k].tokens);
            assert_ptr_not_equal(s->sampler.counts,
                                 r->sequences[k].sampler.counts);
        }
    }
    tr_request_free(r);
}

static void
layout_seeds(void **state)
{
    int32_t id = 10;
    tr_ids_t prompts[] = { { &id, 1, 1 }, { &id, 1, 1 } };
    tr_request_t *one = make(1, 1), *four = make(4, 1), *drawn = make(2, 1);
    uint32_t i, k;

    (void) state;
    assert_int_equal(layout(one, prompts, 1), TR_OK);
    assert_int_equal(layout(four, prompts, 2), TR_OK);
    drawn->params.has_seed = false;
    assert_int_equal(layout(drawn, prompts, 1), TR_OK);
    /* the first choice is the only one of n = 1; prompts do not differ */
    assert_int_equal(one->sequences[0].sampler.seed, 42);
    assert_int_equal(four->sequences[0].sampler.seed, 42);
    for (i = 0; i < 4; i++) {
        assert_int_equal(four->sequences[i].sampler.seed,
                         four->sequences[4 + i].sampler.seed);
        for (k = 0; k < i; k++) {
            assert_true(four->sequences[i].sampler.seed
                        != four->sequences[k].sampler.seed);
        }
    }
    assert_true(drawn->sequences[0].sampler.seed != 42);
    assert_true(drawn->sequences[0].sampler.seed
                != drawn->sequences[1].sampler.seed);
    tr_request_free(one);
    tr_request_free(four);
    tr_request_free(drawn);
}

static void
layout_echo_scores(void **state)
{
    int32_t ids[] = { 10, 11, 12 };
    tr_ids_t prompts[] = { { ids, 3, 3 }, { ids, 2, 2 } };
    tr_request_t *r = make(2, 0);

    (void) state;
    r->echo = true;
    r->params.logprobs = 2;
    assert_int_equal(layout(r, prompts, 2), TR_OK);
    assert_non_null(r->sequences[0].prompt_scores);
    assert_ptr_equal(r->sequences[0].prompt_scores,
                     r->sequences[1].prompt_scores);
    assert_ptr_not_equal(r->sequences[0].prompt_scores,
                         r->sequences[2].prompt_scores);
    assert_ptr_equal(r->sequences[2].prompt_scores,
                     r->sequences[3].prompt_scores);
    tr_request_free(r);
}

static void
layout_refuses(void **state)
{
    int32_t id = 10;
    tr_ids_t one = { &id, 1, 1 }, none = { &id, 0, 0 };
    tr_request_t *r = make(1, UINT32_MAX);

    (void) state;
    assert_int_equal(layout(r, &one, 1), TR_ERR_INVALID);
    tr_request_free(r);
    r = make(1, 5);
    assert_int_equal(layout(r, &none, 1), TR_ERR_INVALID);
    tr_request_free(r);
    r = make(UINT32_MAX, 5);
    assert_int_equal(layout(r, &one, UINT32_MAX), TR_ERR_INVALID);
    tr_request_free(r);
    r = make(0, 5);
    assert_int_equal(layout(r, &one, 1), TR_ERR_INVALID);
    tr_request_free(r);
    tr_request_free(NULL);
}

/* A vector for whose room nobody waited is not sent. */
static void
detached_vector(void **state)
{
    static tr_emit_t e;
    static float vector[4096];
    tr_ring_consumer_t peer;
    tr_response_writer_t writer;
    tr_request_t *r = make(1, 1);
    tr_sequence_t q = { .request = r, .prompt_len = 3, .pooled = vector };

    (void) state;
    writer_make(&writer, &peer, 65536, -1, -1);
    r->writer = &writer;
    r->commands = TR_CONTROL_DETACH;
    r->pool = (tr_pool_t){ .width = 4096, .dimensions = 4096 };
    tr_emit_pooled(&e, &q);
    assert_null(e.staged);
    writer_unmake(&writer, &peer);
    free(r);
}

/* An end at a fenced channel is told to the publisher only of what nobody moves.
 * The frontend thread has not read `word` yet; it has read `control`. */
static void
end_when_fenced(bool fenced, uint32_t word, uint32_t control, bool told)
{
    static tr_emit_t e;
    tr_request_events_t events;
    tr_response_writer_t writer;
    tr_ring_consumer_t peer;
    tr_request_t *r = make(1, 1);
    static uint8_t copy[4096];
    tr_channel_map_t map;
    tr_record_t rec;
    int fd;

    assert_int_equal(tr_channel_create(64, 4096, 4096, 1, &map, &fd), TR_OK);
    assert_int_equal(tr_events_init(&events, -1, -1), TR_OK);
    writer_make(&writer, &peer, 65536, -1, -1);
    writer.channel = &map;
    r->id = TR_ID(5, 9);
    r->writer = &writer;
    r->events = &events;
    r->submit_flags = TR_SUBMIT_IDS | TR_SUBMIT_RESUMABLE;
    atomic_store(&r->control, control);
    tr_control_set(&map, r->id, word);
    tr_control_set(&map, TR_ID(6, 9), TR_CONTROL_STAY); /* another one's */
    if (fenced) {
        tr_channel_fence(&map);
    }
    memset(&e, 0, sizeof(e));
    r->error.status = TR_ERR_INTERNAL;
    assert_int_equal(tr_emit_error(&e, r), TR_OK);
    assert_int_equal(tr_request_goes_elsewhere(r), !told);
    tr_emit_publish(&e);
    assert_int_equal(tr_ring_get(&events.from_loop, &rec, copy, sizeof(copy)),
                     told ? TR_OK : TR_AGAIN);
    writer_unmake(&writer, &peer);
    tr_events_free(&events);
    tr_channel_unmap(&map);
    close(fd);
    free(r);
}

static void
ends_at_a_fenced_channel(void **state)
{
    (void) state;
    end_when_fenced(false, 0, 0, true);
    end_when_fenced(true, 0, 0, false);
    end_when_fenced(true, TR_CONTROL_PAUSE, TR_CONTROL_PAUSE, false);
    end_when_fenced(true, TR_CONTROL_DETACH, 0, true);
    end_when_fenced(true, TR_CONTROL_STAY, 0, true);
    end_when_fenced(true, 0, TR_CONTROL_DETACH, true);
    end_when_fenced(true, 0, TR_CONTROL_STAY, true);
}

/* The worker fences the channel when a step has told r's end, and has not shown it
 * yet, or right behind that: it hears of it, or the publisher does not, unless
 * the request stays. */
static void
fenced_at_a_step(bool early, uint32_t word)
{
    static tr_emit_t e;
    static uint8_t copy[4096];
    bool heard = !early, told = heard || word == TR_CONTROL_STAY;
    tr_request_events_t events;
    tr_response_writer_t writer;
    tr_ring_consumer_t peer;
    tr_request_t *r = make(1, 1);
    tr_channel_map_t map;
    tr_record_t rec;
    int fd;

    assert_int_equal(tr_channel_create(64, 4096, 65536, 1, &map, &fd), TR_OK);
    assert_int_equal(tr_events_init(&events, -1, -1), TR_OK);
    assert_int_equal(tr_response_writer_init(&writer, map.response,
                                             map.response_data,
                                             map.response_capacity, -1, -1),
                     TR_OK);
    tr_ring_consumer_init(&peer, map.response, map.response_data,
                          map.response_capacity);
    writer.channel = &map;
    r->id = TR_ID(5, 9);
    r->writer = &writer;
    r->events = &events;
    r->event_id = 7;
    r->submit_flags = TR_SUBMIT_IDS | TR_SUBMIT_RESUMABLE;
    r->error.status = TR_ERR_INTERNAL;
    memset(&e, 0, sizeof(e));
    assert_int_equal(tr_emit_error(&e, r), TR_OK);
    tr_control_set(&map, r->id, word);
    if (early) {
        tr_channel_fence(&map);
    }
    tr_emit_publish(&e);
    tr_channel_fence(&map);
    assert_int_equal(tr_request_goes_elsewhere(r), !told);
    assert_int_equal(tr_ring_get(&peer, &rec, copy, sizeof(copy)),
                     heard ? TR_OK : TR_AGAIN);
    assert_int_equal(tr_ring_get(&peer, &rec, copy, sizeof(copy)), TR_AGAIN);
    assert_int_equal(tr_ring_get(&events.from_loop, &rec, copy, sizeof(copy)),
                     TR_OK);
    assert_int_equal(rec.id, told ? 7 : 0);
    tr_response_writer_free(&writer);
    tr_events_free(&events);
    tr_channel_unmap(&map);
    close(fd);
    free(r);
}

static void
fenced_within_a_step(void **state)
{
    (void) state;
    fenced_at_a_step(false, 0);
    fenced_at_a_step(true, 0);
    fenced_at_a_step(true, TR_CONTROL_STAY);
}

/* An end as draining is none where another engine goes on. */
static void
ends_that_are_moves(void **state)
{
    tr_request_t *r = make(1, 1);

    (void) state;
    r->submit_flags = TR_SUBMIT_IDS;
    r->error.status = TR_ERR_TIMEOUT;
    assert_false(tr_request_moves(r));
    r->error.status = TR_ERR_DRAINING;
    assert_true(tr_request_moves(r));
    r->error.status = TR_ERR_MOVED;
    assert_true(tr_request_moves(r));
    assert_false(tr_request_goes_elsewhere(r)); /* nothing of it is kept */
    r->submit_flags |= TR_SUBMIT_RESUMABLE;
    assert_true(tr_request_goes_elsewhere(r));
    atomic_store(&r->control, TR_CONTROL_DETACH);
    assert_false(tr_request_goes_elsewhere(r));
    r->elsewhere = true;
    assert_false(tr_request_goes_elsewhere(r));
    atomic_store(&r->control, TR_CONTROL_STAY);
    assert_false(tr_request_moves(r));
    atomic_store(&r->control, TR_CONTROL_PAUSE);
    assert_true(tr_request_goes_elsewhere(r));
    free(r);
}

static int
setup(void **state)
{
    tr_error_t err;

    (void) state;
    return tr_tokenizer_load("models/pocket", &tokenizer, &err);
}

static int
teardown(void **state)
{
    (void) state;
    tr_tokenizer_free(tokenizer);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena),
        cmocka_unit_test(layout_prompts_and_choices),
        cmocka_unit_test(layout_seeds),
        cmocka_unit_test(layout_echo_scores),
        cmocka_unit_test(layout_refuses),
        cmocka_unit_test(detached_vector),
        cmocka_unit_test(ends_at_a_fenced_channel),
        cmocka_unit_test(fenced_within_a_step),
        cmocka_unit_test(ends_that_are_moves),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
