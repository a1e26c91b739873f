/*
 * The SSE parser: every event arrives once, whole and in order, however the
 * stream is cut into pieces and whatever ends its lines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/sse.h"

/* Events as one text: "event|data\n" each. */
typedef struct {
    char text[4096];
    size_t n;
} seen_t;

static void
on_event(void *user, const char *data, size_t len, const char *event)
{
    seen_t *seen = user;
    int n;

    assert_int_equal(strlen(data), len);
    n = snprintf(seen->text + seen->n, sizeof(seen->text) - seen->n, "%s|%s~",
                 event, data);
    seen->n += (size_t) n;
}

/* Parses `stream` in pieces of `step` bytes. */
static tr_status_t
parse(const char *stream, size_t n, size_t step, seen_t *seen,
      uint64_t *comments)
{
    tr_sse_t s;
    tr_status_t rc = TR_OK;
    size_t at, k;

    memset(seen, 0, sizeof(*seen));
    tr_sse_init(&s, on_event, seen);
    for (at = 0; at < n && rc == TR_OK; at += k) {
        k = n - at < step ? n - at : step;
        rc = tr_sse_push(&s, stream + at, k);
    }
    if (rc == TR_OK) {
        rc = tr_sse_finish(&s);
    }
    if (comments != NULL) {
        *comments = s.comments;
    }
    tr_sse_free(&s);
    return rc;
}

static const struct {
    const char *stream, *events;
    tr_status_t rc;
} cases[] = {
    { "", "", TR_OK },
    { "data: a\n\n", "|a~", TR_OK },
    { "data:a\n\n", "|a~", TR_OK },
    { "data:  a\n\n", "| a~", TR_OK },
    { "data: a\r\n\r\ndata: b\r\n\r\n", "|a~|b~", TR_OK },
    { "data: a\r\rdata: b\r\r", "|a~|b~", TR_OK },
    { "data: a\ndata: b\n\n", "|a\nb~", TR_OK },
    { "data\n\n", "|~", TR_OK },
    { "data:\ndata:\n\n", "|\n~", TR_OK },
    { "event: error\ndata: x\n\ndata: y\n\n", "error|x~|y~", TR_OK },
    { "event: lonely\n\ndata: y\n\n", "|y~", TR_OK },
    { "id: 7\nretry: 3\nother: z\ndata: x\n\n", "|x~", TR_OK },
    { ": ping\n\ndata: x\n\n", "|x~", TR_OK },
    { "\xef\xbb\xbf"
      "data: x\n\n",
      "|x~", TR_OK },
    { "\n\n\n", "", TR_OK },
    { "data: caf\xc3\xa9 \xf0\x9f\x99\x82\n\n",
      "|caf\xc3\xa9 \xf0\x9f\x99\x82~", TR_OK },
    { "dat: x\n\n datax: y\n\n", "", TR_OK },
    { "data: x\n\ndata: y", "|x~", TR_ERR_FORMAT },
    { "data: x\n\ndata: y\n", "|x~", TR_ERR_FORMAT },
    { "data: x\n", "", TR_ERR_FORMAT },
};

static void
test_every_cut_gives_the_same_events(void **state)
{
    seen_t seen;
    size_t i, step;

    (void) state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = strlen(cases[i].stream);

        for (step = 1; step <= n + 1; step++) {
            assert_int_equal(parse(cases[i].stream, n, step, &seen, NULL),
                             cases[i].rc);
            assert_string_equal(seen.text, cases[i].events);
        }
    }
}

static void
test_comments_are_counted(void **state)
{
    static const char stream[] = ": a\n:\n\ndata: x\n: b\n\n";
    seen_t seen;
    uint64_t comments;

    (void) state;
    assert_int_equal(parse(stream, sizeof(stream) - 1, 3, &seen, &comments),
                     TR_OK);
    assert_int_equal(comments, 3);
    assert_string_equal(seen.text, "|x~");
}

static void
ignore(void *user, const char *data, size_t len, const char *event)
{
    (void) data;
    (void) event;
    *(size_t *) user = len;
}

static void
test_an_event_over_the_limit_fails_and_stays_failed(void **state)
{
    size_t n = 1 << 20, i, len = 0;
    char *block = malloc(n);
    tr_sse_t s;

    (void) state;
    assert_non_null(block);
    memset(block, 'x', n);
    tr_sse_init(&s, ignore, &len);
    assert_int_equal(tr_sse_push(&s, "data:", 5), TR_OK);
    for (i = 0; i < 3; i++) {
        assert_int_equal(tr_sse_push(&s, block, n), TR_OK);
    }
    assert_int_equal(tr_sse_push(&s, block, n), TR_ERR_TOO_LARGE);
    assert_int_equal(tr_sse_push(&s, "\n\n", 2), TR_ERR_TOO_LARGE);
    assert_int_equal(tr_sse_finish(&s), TR_ERR_TOO_LARGE);
    assert_int_equal(len, 0);
    tr_sse_free(&s);
    free(block);
}

static void
test_a_large_event_arrives_whole(void **state)
{
    size_t n = 3 << 20, len = 0;
    char *block = malloc(n);
    tr_sse_t s;

    (void) state;
    assert_non_null(block);
    memset(block, 'y', n);
    tr_sse_init(&s, ignore, &len);
    assert_int_equal(tr_sse_push(&s, "data:", 5), TR_OK);
    assert_int_equal(tr_sse_push(&s, block, n), TR_OK);
    assert_int_equal(tr_sse_push(&s, "\n\n", 2), TR_OK);
    assert_int_equal(tr_sse_finish(&s), TR_OK);
    assert_int_equal(len, n);
    tr_sse_free(&s);
    free(block);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut_gives_the_same_events),
        cmocka_unit_test(test_comments_are_counted),
        cmocka_unit_test(test_an_event_over_the_limit_fails_and_stays_failed),
        cmocka_unit_test(test_a_large_event_arrives_whole),
    };

    return cmocka_run_group_tests_name("sse", tests, NULL, NULL);
}
