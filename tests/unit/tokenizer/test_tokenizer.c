/*
 * The tokenizer, part by part, on small made-up files: how text is normalised
 * and split, how words are merged, what added tokens do, what comes back.  That
 * real files give the reference's ids is tested in reference/.
 */
#include "tests/unit/fixtures/tokenizer_fixture.h"

#include <pthread.h>

#include "engine/tokenizer/tokenizer_internal.h"

/* JSON that macros put together is beyond it. */
/* clang-format off */

#define LOWER "\xe2\x96\x81" /* U+2581, SentencePiece's space */

static tr_tokenizer_scratch_t *scratch;

/* A scratch belongs to one tokenizer: each use here gets a new one. */
static tr_tokenizer_scratch_t *
fresh(const tr_tokenizer_t *t)
{
    tr_tokenizer_scratch_free(scratch);
    scratch = tr_tokenizer_scratch_new(t);
    assert_non_null(scratch);
    return scratch;
}

static int
free_scratch(void **state)
{
    (void) state;
    tr_tokenizer_scratch_free(scratch);
    return 0;
}

/* Ids as "1 2 3". */
static const char *
encode(const tr_tokenizer_t *t, const char *text, unsigned flags)
{
    static char out[4096];
    tr_ids_t ids = { 0 };
    tr_error_t err;
    size_t n = 0;

    out[0] = '\0';
    if (tr_tokenizer_encode(t, fresh(t), text, strlen(text), flags, &ids, &err)
        != TR_OK) {
        fail_msg("%s", err.text);
    }
    for (uint32_t i = 0; i < ids.len; i++) {
        n += (size_t) snprintf(out + n, sizeof(out) - n, "%s%d", i ? " " : "",
                               ids.data[i]);
    }
    free(ids.data);
    return out;
}

/* ---- splitting ---------------------------------------------------------- */

#define SPLIT(pattern, behaviour, invert)                                      \
    "{\"type\": \"Split\", \"pattern\": " pattern                            \
    ", \"behavior\": \"" behaviour "\", \"invert\": " invert "}"
#define SPACE "{\"String\": \" \"}"
#define DIGIT "{\"Regex\": \"\\\\d\"}"
#define METASPACE(more) "{\"type\": \"Metaspace\", \"replacement\": \"" LOWER  \
                        "\"" more "}"

static const struct {
    const char *pre_tokenizer, *text, *words;
} splits[] = {
    { "null", "a b", "a b" },
    { SPLIT(SPACE, "Isolated", "false"), "a  b ", "a| | |b| " },
    { SPLIT(SPACE, "Removed", "false"), "a  b ", "a|b" },
    { SPLIT(SPACE, "Removed", "true"), "a  b ", " | | " },
    { SPLIT(SPACE, "MergedWithPrevious", "false"), " a  b c", " |a | |b |c" },
    { SPLIT(SPACE, "MergedWithNext", "false"), "a  b c ", "a| | b| c| " },
    { SPLIT(SPACE, "Contiguous", "false"), "a  b c", "a|  |b| |c" },
    { SPLIT(SPACE, "Contiguous", "true"), "a  b c", "a|  |b| |c" },
    { SPLIT(DIGIT, "Isolated", "false"), "a12b", "a|1|2|b" },
    { SPLIT(DIGIT, "MergedWithPrevious", "true"), "12b3", "1|2b|3" },
    /* what Oniguruma means and PCRE2 would not */
    { SPLIT("{\"Regex\": \"\\\\s+\"}", "Isolated", "false"),
      "a\xe1\xa0\x8e\xc2\x85"
      "b",
      "a\xe1\xa0\x8e|\xc2\x85|b" },
    { SPLIT("{\"Regex\": \"\\\\h+\"}", "Isolated", "false"), "xfF9 y",
      "x|fF9| y" },
    { SPLIT("{\"Regex\": \"[\\\\h_]+\"}", "Isolated", "false"), "xf_9 y",
      "x|f_9| y" },
    { SPLIT("{\"Regex\": \"(?i:'s|'RE)\"}", "Isolated", "false"),
      "a'Sb'\xc5\xbf"
      "c're",
      "a|'S|b'\xc5\xbf"
      "c|'re" },
    { SPLIT("{\"Regex\": \"(?i:[k-m]x)k\"}", "Isolated", "false"), "LxKMXk",
      "LxK|MXk" },
    { SPLIT("{\"Regex\": \"a{2}+\"}", "Isolated", "false"), "aaaaab",
      "aaaa|ab" },
    { SPLIT("{\"Regex\": \"(ab){,2}c\"}", "Isolated", "false"), "abababcc",
      "ab|ababc|c" },
    { SPLIT("{\"Regex\": \"^.\"}", "Isolated", "false"), "ab\ncd\re",
      "a|b\n|c|d\re" },
    { SPLIT("{\"Regex\": \"\\\\u00e9|\\\\x{1F600}\"}", "Isolated", "false"),
      "a\xc3\xa9\xf0\x9f\x98\x80", "a|\xc3\xa9|\xf0\x9f\x98\x80" },
    { SPLIT("{\"Regex\": \"\\\\p{L}++\"}", "Isolated", "false"), "ab1",
      "ab|1" },
    { SPLIT("{\"Regex\": \"(?=b)\"}", "Isolated", "false"), "abb", "a|b|b" },
    { SPLIT("{\"String\": \"a.b\"}", "Isolated", "false"), "axba.b",
      "axb|a.b" },
    { "{\"type\": \"Digits\", \"individual_digits\": true}", "a12\xc2\xbd",
      "a|1|2|\xc2\xbd" },
    { "{\"type\": \"Digits\", \"individual_digits\": false}", "a12b",
      "a|12|b" },
    { METASPACE(", \"prepend_scheme\": \"always\", \"split\": false"),
      "a  b", LOWER "a" LOWER LOWER "b" },
    { METASPACE(", \"prepend_scheme\": \"always\", \"split\": false"),
      " a", LOWER "a" },
    { METASPACE(", \"prepend_scheme\": \"never\""), "a  b",
      "a|" LOWER "|" LOWER "b" },
    { METASPACE(", \"prepend_scheme\": \"first\""), "a b",
      LOWER "a|" LOWER "b" },
    { METASPACE(", \"add_prefix_space\": true"), "a b", LOWER "a|" LOWER "b" },
    { METASPACE(", \"add_prefix_space\": false"), "a b", "a|" LOWER "b" },
    { METASPACE(""), "a b", LOWER "a|" LOWER "b" },
    { "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}",
      "it's 12  ok\n", " it|'s| 12| | ok|\n" },
    { "{\"type\": \"ByteLevel\"}", "it's ok", "it|'s| ok" },
    { FIXTURE_BYTE_LEVEL, "it's ok", "it's ok" },
    { "{\"type\": \"Sequence\", \"pretokenizers\": ["
      SPLIT(DIGIT, "Isolated", "false") ", "
      SPLIT(SPACE, "MergedWithNext", "false") ", " FIXTURE_BYTE_LEVEL "]}",
      "a b1 c", "a| b|1| c" },
};

static void
text_is_split_into_words(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
        tr_tokenizer_t *t = fixture_make((fixture_parts_t){
            .pre_tokenizer = splits[i].pre_tokenizer });
        const char *text = splits[i].text;
        const tr_spans_t *words;
        tr_error_t err;
        char got[256];
        size_t n = 0;

        assert_int_equal(tr_split(t, fresh(t), true, &text, strlen(text),
                                  &words, &err), TR_OK);
        got[0] = '\0';
        for (uint32_t k = 0; k < words->len; k++) {
            tr_span_t w = words->data[k];

            n += (size_t) snprintf(got + n, sizeof(got) - n, "%s%.*s",
                                   k ? "|" : "", (int) (w.end - w.start),
                                   text + w.start);
        }
        if (strcmp(got, splits[i].words) != 0) {
            fail_msg("%s of \"%s\": got %s, expected %s",
                     splits[i].pre_tokenizer, splits[i].text, got,
                     splits[i].words);
        }
        tr_tokenizer_free(t);
    }
}

/* ---- normalising -------------------------------------------------------- */

static const struct {
    const char *normalizer, *text, *result;
} forms[] = {
    { "{\"type\": \"NFC\"}", "e\xcc\x81 \xe2\x84\xab", "\xc3\xa9 \xc3\x85" },
    { "{\"type\": \"NFC\"}", "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab",
      "\xed\x95\x9c" },
    { "{\"type\": \"NFC\"}", "\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc" },
    { "{\"type\": \"NFD\"}", "\xc3\xa9\xed\x95\x9c",
      "e\xcc\x81\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab" },
    { "{\"type\": \"NFD\"}", "a\xcc\x81\xcc\xa3", "a\xcc\xa3\xcc\x81" },
    { "{\"type\": \"NFKC\"}", "\xef\xac\x81 \xe2\x91\xa0 e\xcc\x81",
      "fi 1 \xc3\xa9" },
    { "{\"type\": \"NFKD\"}", "\xc2\xbd\xc3\xa9", "1\xe2\x81\x84"
                                                  "2e\xcc\x81" },
    { "{\"type\": \"Lowercase\"}", "\xc3\x84\xce\xa3 A\xc4\xb0",
      "\xc3\xa4\xcf\x83 ai\xcc\x87" },
    { "{\"type\": \"Prepend\", \"prepend\": \"" LOWER "\"}", "a", LOWER "a" },
    { "{\"type\": \"Prepend\", \"prepend\": \"" LOWER "\"}", "", "" },
    { "{\"type\": \"Replace\", \"pattern\": {\"String\": \".\"}, "
      "\"content\": \"\\\\1\"}", "a.b..", "a\\1b\\1\\1" },
    { "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, "
      "\"content\": \"_\"}", "a b   c", "a b_c" },
    { "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"x*\"}, "
      "\"content\": \"-\"}", "ax\xc3\xa9", "-a--\xc3\xa9-" },
    { "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}, "
      "{\"type\": \"NFD\"}, {\"type\": \"Prepend\", \"prepend\": \"+\"}, "
      "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\xcc\x81\"}, "
      "\"content\": \"\"}]}", "\xc3\x89 X", "+e x" },
};

static void
text_is_normalised(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        tr_tokenizer_t *t = fixture_make((fixture_parts_t){
            .normalizer = forms[i].normalizer });
        const char *text = forms[i].text;
        size_t len = strlen(text);
        tr_error_t err;

        assert_int_equal(tr_normalize(t, fresh(t), &text, &len, &err), TR_OK);
        if (len != strlen(forms[i].result)
            || memcmp(text, forms[i].result, len) != 0) {
            fail_msg("%s of \"%s\": got \"%.*s\", expected \"%s\"",
                     forms[i].normalizer, forms[i].text, (int) len, text,
                     forms[i].result);
        }
        tr_tokenizer_free(t);
    }
}

/* ---- merging ------------------------------------------------------------ */

#define PIECES                                                                 \
    "\"<unk>\": 0, \"a\": 1, \"b\": 2, \"c\": 3, \"ab\": 4, \"bc\": 5, "       \
    "\"abc\": 6, \"aa\": 7, \"aaaa\": 8, \"<0xC3>\": 9, \"<0xA9>\": 10, "      \
    "\"cabc\": 11"

static void
merges_go_by_rank_then_from_the_left(void **state)
{
    static const char *const both[] = {
        "\"b c\", \"a b\", \"ab c\", \"a a\", \"aa aa\"",
        "[\"b\", \"c\"], [\"a\", \"b\"], [\"ab\", \"c\"], [\"a\", \"a\"], "
        "[\"aa\", \"aa\"]",
    };

    (void) state;
    for (int i = 0; i < 2; i++) {
        tr_tokenizer_t *t = fixture_make((fixture_parts_t){ .vocab = PIECES,
                                                    .merges = both[i] });

        assert_string_equal(encode(t, "abc", 0), "1 5"); /* a bc: no merge */
        assert_string_equal(encode(t, "ab", 0), "4");
        assert_string_equal(encode(t, "aaa", 0), "7 1");
        assert_string_equal(encode(t, "aaaaaaa", 0), "8 7 1");
        assert_string_equal(encode(t, "", 0), "");
        tr_tokenizer_free(t);
    }
}

static void
ignore_merges_takes_whole_words(void **state)
{
    fixture_parts_t parts = { .vocab = PIECES, .merges = "\"b c\"",
                          .options = "\"ignore_merges\": true" };
    tr_tokenizer_t *t = fixture_make(parts);

    (void) state;
    assert_string_equal(encode(t, "cabc", 0), "11");
    assert_string_equal(encode(t, "cabca", 0), "3 1 5 1");
    tr_tokenizer_free(t);
    parts.options = NULL;
    t = fixture_make(parts);
    assert_string_equal(encode(t, "cabc", 0), "3 1 5");
    tr_tokenizer_free(t);
}

static void
what_is_unknown_becomes_bytes_or_unk_or_nothing(void **state)
{
    static const struct {
        const char *options, *ids;
    } cases[] = { /* of "a é ÿÿ a" without its spaces */
        { NULL, "1 1" },
        { "\"unk_token\": \"<unk>\"", "1 0 0 0 1" },
        { "\"unk_token\": \"<unk>\", \"fuse_unk\": true", "1 0 1" },
        { "\"byte_fallback\": true", "1 9 10 1" },
        { "\"byte_fallback\": true, \"unk_token\": \"<unk>\", "
          "\"fuse_unk\": true", "1 9 10 0 1" },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_tokenizer_t *t = fixture_make((fixture_parts_t){
            .vocab = PIECES, .options = cases[i].options });

        assert_string_equal(encode(t, "a\xc3\xa9\xc3\xbf\xc3\xbf"
                                      "a", 0), cases[i].ids);
        tr_tokenizer_free(t);
    }
}

/* The definition of BPE: merge the best pair, the leftmost of equals, again. */
static uint32_t
merge_slowly(const tr_tokenizer_t *t, int32_t *ids, uint32_t n)
{
    for (;;) {
        uint32_t best = UINT32_MAX, at = 0;
        int32_t merged = 0;

        for (uint32_t i = 0; i + 1 < n; i++) {
            for (uint32_t k = 0; k <= t->merge_mask; k++) {
                const tr_merge_t *m = &t->merges[k];

                if (m->left == (uint32_t) ids[i]
                    && m->right == (uint32_t) ids[i + 1] && m->rank < best) {
                    best = m->rank;
                    at = i;
                    merged = m->merged;
                }
            }
        }
        if (best == UINT32_MAX) {
            return n;
        }
        ids[at] = merged;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof(*ids));
    }
}

static uint32_t
below(uint32_t *x, uint32_t n)
{
    *x = *x * 1664525u + 1013904223u;
    return (uint32_t) ((uint64_t) (*x >> 8) * n >> 24);
}

/* Pieces over "abc" by joining random ones; merges in random order, so that
 * the parts of a merge may have a worse rank than the merge itself. */
static tr_tokenizer_t *
random_merges(uint32_t *x)
{
    char pieces[40][16] = { "a", "b", "c" }, merges[40][40];
    char vocab[2048], list[2048];
    uint32_t n = 3, m = 0;
    size_t v = 0, l = 0;

    while (m < 30) {
        const char *left = pieces[below(x, n)], *right = pieces[below(x, n)];
        char joined[32];
        uint32_t k = 0;

        snprintf(joined, sizeof(joined), "%s%s", left, right);
        if (strlen(joined) > 8) {
            continue;
        }
        snprintf(merges[m++], sizeof(merges[0]), "\"%s %s\"", left, right);
        while (k < n && strcmp(pieces[k], joined) != 0) {
            k++;
        }
        if (k == n) {
            snprintf(pieces[n++], sizeof(pieces[0]), "%.15s", joined);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        v += (size_t) snprintf(vocab + v, sizeof(vocab) - v, "%s\"%s\": %u",
                               i ? ", " : "", pieces[i], i);
    }
    for (; m > 0; m--) {
        uint32_t i = below(x, m);

        l += (size_t) snprintf(list + l, sizeof(list) - l, "%s%s",
                               l ? ", " : "", merges[i]);
        memmove(merges[i], merges[m - 1], sizeof(merges[0]));
    }
    return fixture_make((fixture_parts_t){ .vocab = vocab, .merges = list });
}

static void
merging_equals_its_definition(void **state)
{
    uint32_t x = 7;

    (void) state;
    for (int table = 0; table < 100; table++) {
        tr_tokenizer_t *t = random_merges(&x);

        for (uint32_t n = 1; n < 48; n++) {
            char text[48];
            int32_t want[48];
            uint32_t m;
            tr_ids_t ids = { 0 };
            tr_error_t err;

            for (uint32_t i = 0; i < n; i++) {
                want[i] = (int32_t) below(&x, 3);
                text[i] = (char) ('a' + want[i]);
            }
            m = merge_slowly(t, want, n);
            assert_int_equal(tr_tokenizer_encode(t, fresh(t), text, n, 0, &ids,
                                                 &err), TR_OK);
            assert_int_equal(ids.len, m);
            assert_memory_equal(ids.data, want, m * sizeof(*want));
            free(ids.data);
        }
        tr_tokenizer_free(t);
    }
}

/* ---- added tokens ------------------------------------------------------- */

#define ADDED(id, content, more)                                               \
    "{\"id\": " #id ", \"content\": \"" content "\"" more "}"

static void
added_tokens_are_found_the_longest_first(void **state)
{
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .pre_tokenizer = FIXTURE_BYTE_LEVEL,
        .added = ADDED(300, "<a>", ", \"special\": true") ", "
                 ADDED(301, "<a>b", "") ", "
                 ADDED(302, "b<", ", \"special\": true") });

    (void) state;
    assert_string_equal(encode(t, "x<a>y", TR_ENCODE_PARSE_SPECIAL),
                        "120 300 121");
    assert_string_equal(encode(t, "<a>b<a>", TR_ENCODE_PARSE_SPECIAL),
                        "301 300");
    /* without the flag special tokens are text, the others are not */
    assert_string_equal(encode(t, "<a>", 0), "60 97 62");
    assert_string_equal(encode(t, "b<<a>b", 0), "98 60 301");
    assert_int_equal(tr_tokenizer_find(t, "<a>"), 300);
    assert_true(tr_tokenizer_is_special(t, 300));
    assert_false(tr_tokenizer_is_special(t, 301));
    assert_false(tr_tokenizer_is_special(t, -1));
    assert_false(tr_tokenizer_is_special(t, 1 << 30));
    assert_int_equal(tr_tokenizer_find(t, "absent"), -1);
    assert_int_equal(tr_tokenizer_vocab_size(t), 303);
    tr_tokenizer_free(t);
}

static void
added_tokens_take_space_and_stand_alone(void **state)
{
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .pre_tokenizer = FIXTURE_BYTE_LEVEL,
        .added = ADDED(300, "<l>", ", \"lstrip\": true") ", "
                 ADDED(301, "<r>", ", \"rstrip\": true") ", "
                 ADDED(302, "wv", ", \"single_word\": true") });

    (void) state;
    assert_string_equal(encode(t, "a \n<l> a", 0), "97 300 32 97");
    assert_string_equal(encode(t, "a <r> \xe3\x80\x80" "b", 0),
                        "97 32 301 98");
    assert_string_equal(encode(t, "<r> <l>", 0), "301 300");
        assert_string_equal(encode(t, "wv", 0), "302");
    assert_string_equal(encode(t, "awv wvb wv.", 0),
                        "97 119 118 32 119 118 98 32 302 46");
    assert_string_equal(encode(t, "\xc3\xa9wv", 0), "195 169 119 118");
    tr_tokenizer_free(t);
}

static void
normalized_added_tokens_are_sought_after_normalising(void **state)
{
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .normalizer = "{\"type\": \"Lowercase\"}",
        .pre_tokenizer = FIXTURE_BYTE_LEVEL,
        .added = ADDED(300, "<Raw>", ", \"normalized\": false") ", "
                 ADDED(301, "<Norm>", ", \"normalized\": true") });

    (void) state;
    assert_string_equal(encode(t, "A<Raw><norm><NORM>", 0), "97 300 301 301");
    assert_string_equal(encode(t, "<raw>", 0), "60 114 97 119 62");
    tr_tokenizer_free(t);
}

static void
a_first_prefix_is_for_the_first_stretch(void **state)
{
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .pre_tokenizer = METASPACE(", \"prepend_scheme\": \"first\""),
        .vocab = "\"a\": 0, \"" LOWER "\": 1",
        .added = ADDED(2, "<x>", "") });

    (void) state;
    assert_string_equal(encode(t, "a<x>a", 0), "1 0 2 0");
    assert_string_equal(encode(t, "<x>a", 0), "2 0");
    assert_string_equal(encode(t, "a", TR_ENCODE_MIDDLE), "0");
    tr_tokenizer_free(t);
}

/* ---- around the text ---------------------------------------------------- */

#define TEMPLATE(single)                                                       \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single "], "            \
    "\"special_tokens\": {\"B\": {\"ids\": [1, 2]}, \"E\": {\"ids\": [3]}}}"
#define SEQUENCE "{\"Sequence\": {\"id\": \"A\"}}"
#define SPECIAL(name) "{\"SpecialToken\": {\"id\": \"" name "\"}}"

static void
templates_surround_the_text(void **state)
{
    static const struct {
        const char *post_processor, *ids;
    } cases[] = {
        { "null", "97" },
        { "{\"type\": \"ByteLevel\"}", "97" },
        { TEMPLATE(SEQUENCE), "97" },
        { TEMPLATE(SPECIAL("B") ", " SEQUENCE), "1 2 97" },
        { TEMPLATE(SPECIAL("E") ", " SPECIAL("B") ", " SEQUENCE ", "
                   SPECIAL("E")), "3 1 2 97 3" },
        { "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}"
          ", " TEMPLATE(SPECIAL("B") ", " SEQUENCE ", " SPECIAL("E")) ", "
          TEMPLATE(SPECIAL("E") ", " SEQUENCE ", " SPECIAL("B")) "]}",
          "3 1 2 97 3 1 2" },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_tokenizer_t *t = fixture_make((fixture_parts_t){
            .pre_tokenizer = FIXTURE_BYTE_LEVEL,
            .post_processor = cases[i].post_processor });

        assert_string_equal(encode(t, "a", TR_ENCODE_SPECIAL), cases[i].ids);
        assert_string_equal(encode(t, "a", 0), "97");
        tr_tokenizer_free(t);
    }
}

/* ---- hostile text ------------------------------------------------------- */

static void
invalid_utf8_is_refused_with_its_place(void **state)
{
    static const struct {
        const char *text;
        const char *place;
    } cases[] = {
        { "\x80", "offset 0" },          { "ab\xff", "offset 2" },
        { "a\xc0\x80", "offset 1" },     { "\xc3", "offset 0" },
        { "\xc3\x28", "offset 0" },      { "ok\xe2\x82", "offset 2" },
        { "\xed\xa0\x80", "offset 0" },  { "\xe0\x9f\xbf", "offset 0" },
        { "\xf0\x8f\xbf\xbf", "offset 0" }, { "\xf4\x90\x80\x80", "offset 0" },
        { "\xf5\x80\x80\x80", "offset 0" },
        { "\xf0\x9f\x98\x80\xf0\x9f\x98", "offset 4" },
    };
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .pre_tokenizer = FIXTURE_BYTE_LEVEL });

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t len = strlen(cases[i].text);
        char *text = malloc(len); /* no byte behind it */
        tr_ids_t ids = { 0 };
        tr_error_t err;

        memcpy(text, cases[i].text, len);
        assert_int_equal(tr_tokenizer_encode(t, fresh(t), text, len, 0, &ids,
                                             &err), TR_ERR_INVALID);
        assert_non_null(strstr(err.text, cases[i].place));
        assert_int_equal(ids.len, 0);
        free(ids.data);
        free(text);
    }
    tr_tokenizer_free(t);
}

/* These would take hours if anything in them were quadratic. */
static void
a_megabyte_of_anything_ends(void **state)
{
    static const char *const runs[] = { "a", " ", "a\xcc\x81\xcc\xa3", "\n",
                                        "\xcc\x81\xcc\xa3", "<", "ab ", "'" };
    enum { SIZE = 1 << 20 };
    tr_tokenizer_t *t[2];
    char *text = malloc(SIZE);

    (void) state;
    t[0] = fixture_make((fixture_parts_t){
        .normalizer = "{\"type\": \"NFC\"}",
        .pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": ["
            SPLIT("{\"Regex\": \"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
                  "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}", "Isolated",
                  "false") ", " FIXTURE_BYTE_LEVEL "]}",
        .added = ADDED(300, "<<<<<<>", "") });
    t[1] = fixture_make((fixture_parts_t){
        .vocab = "\"<unk>\": 0, \"a\": 1, \"aa\": 2, \"aaaa\": 3, "
                 "\"aaaaaaaa\": 4, \" \": 5, \"  \": 6, \"    \": 7",
        .merges = "\"a a\", \"aa aa\", \"aaaa aaaa\", [\" \", \" \"], "
                  "[\"  \", \"  \"]",
        .options = "\"unk_token\": \"<unk>\", \"fuse_unk\": true" });
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        size_t n = strlen(runs[i]), len = SIZE / n * n;

        for (size_t k = 0; k < len; k++) {
            text[k] = runs[i][k % n];
        }
        for (int k = 0; k < 2; k++) {
            tr_ids_t ids = { 0 };
            tr_error_t err;

            assert_int_equal(tr_tokenizer_encode(t[k], fresh(t[k]), text, len,
                                                 0, &ids, &err), TR_OK);
            assert_true(ids.len > 0);
            free(ids.data);
        }
    }
    free(text);
    tr_tokenizer_free(t[0]);
    tr_tokenizer_free(t[1]);
}

/* A pattern that backtracks without end is stopped by its limits. */
static void
a_pattern_without_end_is_an_error(void **state)
{
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .pre_tokenizer = SPLIT("{\"Regex\": \"^(a|aa)+z?$\"}",
                               "Isolated", "false") });
    char text[200];
    tr_ids_t ids = { 0 };
    tr_error_t err;

    (void) state;
    memset(text, 'a', sizeof(text));
    text[199] = 'c';
    assert_int_equal(tr_tokenizer_encode(t, fresh(t), text, sizeof(text), 0,
                                         &ids, &err), TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "limit"));
    free(ids.data);
    tr_tokenizer_free(t);
}

/* ---- the shipped model, and threads ------------------------------------- */

static tr_tokenizer_t *pocket;

static void *
encode_many(void *result)
{
    tr_tokenizer_scratch_t *s = tr_tokenizer_scratch_new(pocket);
    uint64_t sum = 0;

    for (int i = 0; s != NULL && i < 2000; i++) {
        char text[128];
        tr_ids_t ids = { 0 };
        tr_error_t err;
        int n = snprintf(text, sizeof(text), "Tell me about %d red foxes and "
                         "%x\xc3\xa9 <|eot_id|>", i % 97, i);

        if (tr_tokenizer_encode(pocket, s, text, (size_t) n,
                                TR_ENCODE_SPECIAL | TR_ENCODE_PARSE_SPECIAL,
                                &ids, &err) != TR_OK) {
            sum = 0;
            break;
        }
        for (uint32_t k = 0; k < ids.len; k++) {
            sum = sum * 1000003 + (uint64_t) ids.data[k];
        }
        free(ids.data);
    }
    tr_tokenizer_scratch_free(s);
    *(uint64_t *) result = sum;
    return NULL;
}

static void
threads_share_one_tokenizer(void **state)
{
    pthread_t threads[4];
    uint64_t sums[4];
    tr_error_t err;

    (void) state;
    assert_int_equal(tr_tokenizer_load("models/pocket", &pocket, &err), TR_OK);
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, encode_many, &sums[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_true(sums[0] != 0);
    for (int i = 1; i < 4; i++) {
        assert_true(sums[i] == sums[0]);
    }
    tr_tokenizer_free(pocket);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_split_into_words),
        cmocka_unit_test(text_is_normalised),
        cmocka_unit_test(merges_go_by_rank_then_from_the_left),
        cmocka_unit_test(ignore_merges_takes_whole_words),
        cmocka_unit_test(what_is_unknown_becomes_bytes_or_unk_or_nothing),
        cmocka_unit_test(merging_equals_its_definition),
        cmocka_unit_test(added_tokens_are_found_the_longest_first),
        cmocka_unit_test(added_tokens_take_space_and_stand_alone),
        cmocka_unit_test(normalized_added_tokens_are_sought_after_normalising),
        cmocka_unit_test(a_first_prefix_is_for_the_first_stretch),
        cmocka_unit_test(templates_surround_the_text),
        cmocka_unit_test(invalid_utf8_is_refused_with_its_place),
        cmocka_unit_test(a_megabyte_of_anything_ends),
        cmocka_unit_test(a_pattern_without_end_is_an_error),
        cmocka_unit_test(threads_share_one_tokenizer),
    };

    return cmocka_run_group_tests(tests, NULL, free_scratch);
}
