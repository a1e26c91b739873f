/*
 * Text streams: stop strings over token borders, held text, characters that
 * are never split.  The main test compares with a search in the whole text.
 */
#include "tests/unit/fixtures/tokenizer_fixture.h"

#include "engine/sampling/text_stream.h"

/* Bytes, and tokens of several bytes that cut characters and stop strings. */
static const char more_tokens[] = "\"ab\": 256, \"bc\": 257, \"abab\": 258, "
                                  "\"\u0120a\": 259, "
                                  "\"\u00c3\u00a9\": 260, \"\u00a9\u00c3\": "
                                  "261, \"aab\": 262, "
                                  "\"\u00f0\u0141\u013a\": 263, \"<end>\": 264";

static tr_tokenizer_t *tokenizer;

static int
make_tokenizer(void **state)
{
    static char vocab[16384];

    (void) state;
    fixture_byte_vocab(vocab, sizeof(vocab), more_tokens);
    tokenizer = fixture_make((fixture_parts_t){
        .pre_tokenizer = FIXTURE_BYTE_LEVEL,
        .vocab = vocab,
        .added = "{\"id\": 264, \"content\": \"<end>\", \"special\": true}" });
    return 0;
}

static int
free_tokenizer(void **state)
{
    (void) state;
    tr_tokenizer_free(tokenizer);
    return 0;
}

typedef struct {
    tr_stop_string_t list[TR_STOP_STRINGS_MAX];
    tr_sampling_params_t params;
    tr_text_stream_t stream;
    void *memory;
    char out[65536];
    uint32_t n;
    int32_t stop;
} fixture_t;

static void
begin(fixture_t *r, const char *const *stops, uint32_t n)
{
    size_t size;

    for (uint32_t i = 0; i < n; i++) {
        r->list[i] = (tr_stop_string_t){ stops[i],
                                         (uint32_t) strlen(stops[i]) };
    }
    r->params.stop = r->list;
    r->params.n_stop = n;
    size = tr_text_stream_size(tokenizer, &r->params, 0);
    r->memory = malloc(size); /* its exact size, for the sanitizers */
    assert_non_null(r->memory);
    tr_text_stream_init(&r->stream, tokenizer, &r->params, 0, r->memory);
    r->n = 0;
    r->stop = -1;
}

static void
take(fixture_t *r, const tr_text_out_t *out)
{
    assert_true(out->len <= tr_text_stream_max_out(&r->stream));
    assert_true(r->n + out->len < sizeof(r->out));
    memcpy(r->out + r->n, out->text, out->len);
    r->n += out->len;
    r->out[r->n] = '\0';
    if (out->stop >= 0) {
        assert_int_equal(r->stop, -1);
        r->stop = out->stop;
    }
}

static uint32_t
push(fixture_t *r, int32_t token)
{
    tr_text_out_t out;

    tr_text_stream_push(&r->stream, token, &out);
    take(r, &out);
    return out.len;
}

static void
push_text(fixture_t *r, const char *text)
{
    for (; *text != '\0'; text++) {
        push(r, (uint8_t) *text);
    }
}

static void
finish(fixture_t *r)
{
    tr_text_out_t out;

    tr_text_stream_finish(&r->stream, &out);
    take(r, &out);
    free(r->memory);
}

static void
text_passes_at_once_without_stops(void **state)
{
    fixture_t r = { .n = 0 };

    (void) state;
    begin(&r, NULL, 0);
    assert_int_equal(push(&r, 'a'), 1);
    assert_int_equal(push(&r, 259), 2); /* " a": a first space stays */
    assert_int_equal(push(&r, 264), 0); /* special */
    assert_int_equal(push(&r, 263), 0); /* three bytes of an emoji */
    assert_int_equal(push(&r, 0x80), 4);
    finish(&r);
    assert_string_equal(r.out, "a a\xf0\x9f\x98\x80");
}

static void
an_unfinished_character_becomes_the_replacement(void **state)
{
    fixture_t r = { .n = 0 };

    (void) state;
    begin(&r, NULL, 0);
    push(&r, 263);
    push(&r, 'x');
    push(&r, 0xc3);
    finish(&r);
    assert_string_equal(r.out, "\xef\xbf\xbdx\xef\xbf\xbd");
}

static void
only_what_may_begin_a_stop_string_is_held(void **state)
{
    static const char *const stops[] = { "\n\nUser:", "###" };
    fixture_t r = { .n = 0 };

    (void) state;
    begin(&r, stops, 2);
    assert_int_equal(push(&r, 'a'), 1);
    assert_int_equal(push(&r, '\n'), 0);
    assert_int_equal(push(&r, '#'), 1); /* the line end cannot be it now */
    assert_int_equal(push(&r, '#'), 0);
    assert_int_equal(push(&r, 'b'), 3);
    push_text(&r, "\n\nUser");
    assert_string_equal(r.out, "a\n##b");
    finish(&r);
    assert_string_equal(r.out, "a\n##b\n\nUser");
    assert_int_equal(r.stop, -1);
}

static void
a_stop_string_ends_the_text(void **state)
{
    static const char *const stops[] = { "never", "bab" };
    fixture_t r = { .n = 0 };

    (void) state;
    begin(&r, stops, 2);
    push(&r, 256); /* ab */
    push(&r, 258); /* abab: the match is "bab" behind the first a */
    assert_int_equal(r.stop, 1);
    assert_string_equal(r.out, "a");
    assert_int_equal(push(&r, 'x'), 0);
    finish(&r);
    assert_string_equal(r.out, "a");
}

static void
include_stop_keeps_the_match(void **state)
{
    static const char *const stops[] = { "bab" };
    fixture_t r = { .params = { .include_stop = true } };

    (void) state;
    begin(&r, stops, 1);
    push(&r, 256);
    push(&r, 258);
    assert_int_equal(r.stop, 0);
    finish(&r);
    assert_string_equal(r.out, "abab"); /* what follows is dropped */
}

static void
the_first_to_be_complete_wins_then_the_longest(void **state)
{
    static const char *const first[] = { "abcd", "bc" };
    static const char *const longest[] = { "c", "abc", "bc" };
    fixture_t r = { .n = 0 };

    (void) state;
    begin(&r, first, 2);
    push_text(&r, "xabcd");
    finish(&r);
    assert_int_equal(r.stop, 1);
    assert_string_equal(r.out, "xa");

    begin(&r, longest, 3);
    push_text(&r, "xabcd");
    finish(&r);
    assert_int_equal(r.stop, 1);
    assert_string_equal(r.out, "x");
}

static void
nothing_matches_before_min_tokens(void **state)
{
    static const char *const stops[] = { "b" };
    fixture_t r = { .params = { .min_tokens = 4 } };

    (void) state;
    begin(&r, stops, 1);
    push_text(&r, "bbb");
    assert_string_equal(r.out, "bbb");
    push_text(&r, "b"); /* the fourth may end it */
    assert_int_equal(r.stop, 0);
    finish(&r);
    assert_string_equal(r.out, "bbb");
}

static void
a_replacement_at_the_end_can_complete_a_stop_string(void **state)
{
    static const char *const stops[] = { "x\xef\xbf\xbd" };
    fixture_t r = { .n = 0 };

    (void) state;
    begin(&r, stops, 1);
    push_text(&r, "ax\xc3");
    finish(&r);
    assert_int_equal(r.stop, 0);
    assert_string_equal(r.out, "a");
}

static uint32_t lcg;

static uint32_t
below(uint32_t n)
{
    lcg = lcg * 1664525u + 1013904223u;
    return (uint32_t) ((uint64_t) (lcg >> 8) * n >> 24);
}

/* The definition: look at every end of the whole text, from the left. */
static uint32_t
search(const char *text, uint32_t len, const fixture_t *r, int32_t *stop)
{
    *stop = -1;
    for (uint32_t end = 1; end <= len; end++) {
        uint32_t longest = 0;

        for (uint32_t i = 0; i < r->params.n_stop; i++) {
            uint32_t n = r->list[i].len;

            if (n <= end && n > longest
                && memcmp(text + end - n, r->list[i].text, n) == 0) {
                longest = n;
                *stop = (int32_t) i;
            }
        }
        if (longest > 0) {
            return end - longest;
        }
    }
    return len;
}

/* Tokens drawn from few, so that matches and near misses abound. */
static void
equals_a_search_in_the_whole_text(void **state)
{
    static const int32_t pool[] = { 'a', 'a',  'b',  'b', 'c', 256, 257,  258,
                                    262, 0xc3, 0xa9, 260, 261, 263, 0x80, 264 };
    static const char *const parts[] = { "a", "b", "c", "ab", "\xc3\xa9" };
    static fixture_t whole, r;

    (void) state;
    for (lcg = 1; lcg < 4000; lcg++) {
        uint32_t seed = lcg, n = 1 + below(40), n_stop = below(5);
        char stops[4][64] = { "" };
        const char *list[4];
        int32_t tokens[40], stop;
        uint32_t cut;

        for (uint32_t i = 0; i < n_stop; i++) {
            for (uint32_t k = 1 + below(6); k > 0; k--) {
                strcat(stops[i], parts[below(5)]);
            }
            list[i] = stops[i];
        }
        for (uint32_t i = 0; i < n; i++) {
            tokens[i] = pool[below(16)];
        }
        begin(&whole, NULL, 0);
        begin(&r, list, n_stop);
        for (uint32_t i = 0; i < n; i++) {
            push(&whole, tokens[i]);
            push(&r, tokens[i]);
        }
        finish(&whole);
        finish(&r);
        cut = search(whole.out, whole.n, &r, &stop);
        assert_int_equal(r.stop >= 0, stop >= 0);
        assert_int_equal(r.n, cut);
        assert_memory_equal(r.out, whole.out, cut);
        if (stop >= 0) {
            assert_int_equal(r.list[r.stop].len, r.list[stop].len);
        }
        lcg = seed; /* each round draws from its own number */
    }
}

static void
sixteen_long_stop_strings_fit(void **state)
{
    static char stops[TR_STOP_STRINGS_MAX][TR_STOP_STRING_BYTES + 1];
    const char *list[TR_STOP_STRINGS_MAX];
    static fixture_t r;

    (void) state;
    for (int i = 0; i < TR_STOP_STRINGS_MAX; i++) {
        memset(stops[i], 'a', TR_STOP_STRING_BYTES);
        stops[i][TR_STOP_STRING_BYTES - 1] = (char) ('A' + i);
        list[i] = stops[i];
    }
    begin(&r, list, TR_STOP_STRINGS_MAX);
    for (int i = 0; i < 2000; i++) {
        push(&r, 258); /* abab, */
        push(&r, 'a');
        push(&r, 'a');
    }
    for (int i = 0; i < TR_STOP_STRING_BYTES; i++) {
        push(&r, 'a');
    }
    push(&r, 'C');
    finish(&r);
    assert_int_equal(r.stop, 2);
    /* "aa" and 512 more stand before the C; the match takes 511 of them */
    assert_int_equal(r.n, 2000 * 6 + 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_passes_at_once_without_stops),
        cmocka_unit_test(an_unfinished_character_becomes_the_replacement),
        cmocka_unit_test(only_what_may_begin_a_stop_string_is_held),
        cmocka_unit_test(a_stop_string_ends_the_text),
        cmocka_unit_test(include_stop_keeps_the_match),
        cmocka_unit_test(the_first_to_be_complete_wins_then_the_longest),
        cmocka_unit_test(nothing_matches_before_min_tokens),
        cmocka_unit_test(a_replacement_at_the_end_can_complete_a_stop_string),
        cmocka_unit_test(equals_a_search_in_the_whole_text),
        cmocka_unit_test(sixteen_long_stop_strings_fit),
    };

    return cmocka_run_group_tests(tests, make_tokenizer, free_tokenizer);
}
