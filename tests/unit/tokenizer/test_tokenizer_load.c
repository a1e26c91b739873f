/*
 * tokenizer.json files that are wrong, and what the user is told.  Every row is
 * a file; whatever is cut out of a good one must also end in an error or in a
 * tokenizer, never in a crash.
 */
#include "tests/unit/fixtures/tokenizer_fixture.h"

#define MODEL(inside) "{\"model\": {\"type\": \"BPE\", " inside "}}"
#define VOCAB "\"vocab\": {\"a\": 0, \"b\": 1}"
#define GOOD VOCAB ", \"merges\": []"

static const struct {
    const char *json;
    tr_status_t status;
    const char *text; /* part of the message */
} files[] = {
    { "", TR_ERR_FORMAT, "tokenizer.json: line" },
    { "{", TR_ERR_FORMAT, "line 1" },
    { "[]", TR_ERR_FORMAT, "no object \"model\"" },
    { "{}", TR_ERR_FORMAT, "no object \"model\"" },
    { "{\"model\": 3}", TR_ERR_FORMAT, "no object \"model\"" },
    { "{\"model\": {\"type\": \"Unigram\"}}", TR_ERR_UNSUPPORTED,
      "model.type \"Unigram\"" },
    { "{\"model\": {\"vocab\": {\"a\": 0}}}", TR_ERR_UNSUPPORTED,
      "model.type \"(none)\"" },
    { "{\"a\": 1, \"a\": 2}", TR_ERR_FORMAT, "duplicate" },
    { "\xff", TR_ERR_FORMAT, "line 1" },

    /* vocabulary */
    { MODEL("\"merges\": []"), TR_ERR_FORMAT, "model.vocab is not" },
    { MODEL("\"vocab\": {}, \"merges\": []"), TR_ERR_FORMAT,
      "model.vocab is not" },
    { MODEL("\"vocab\": {\"a\": \"0\"}, \"merges\": []"), TR_ERR_FORMAT,
      "id of \"a\" in model.vocab is not an integer" },
    { MODEL("\"vocab\": {\"a\": -1}, \"merges\": []"), TR_ERR_FORMAT,
      "has id -1, expected 0 to" },
    { MODEL("\"vocab\": {\"a\": 4294967296}, \"merges\": []"), TR_ERR_FORMAT,
      "has id 4294967296" },
    { MODEL("\"vocab\": {\"a\": 99999999999999999999}, \"merges\": []"),
      TR_ERR_FORMAT, "too big integer" },
    { MODEL("\"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []"), TR_ERR_FORMAT,
      "id 1 stands for" },
    { MODEL("\"vocab\": {\"a\": 1, \"a\": 2}, \"merges\": []"), TR_ERR_FORMAT,
      "duplicate" },

    /* merges and options */
    { MODEL(VOCAB), TR_ERR_FORMAT, "model.merges is not an array" },
    { MODEL(VOCAB ", \"merges\": [\"ab\"]"), TR_ERR_FORMAT,
      "merges[0] is neither" },
    { MODEL(VOCAB ", \"merges\": [\"a b c\"]"), TR_ERR_FORMAT,
      "merges[0] is neither" },
    { MODEL(VOCAB ", \"merges\": [[\"a\"]]"), TR_ERR_FORMAT,
      "merges[0] is neither" },
    { MODEL(VOCAB ", \"merges\": [[\"a\", 1]]"), TR_ERR_FORMAT,
      "merges[0] is neither" },
    { MODEL(VOCAB ", \"merges\": [\"a x\"]"), TR_ERR_FORMAT,
      "merges[0] names \"x\"" },
    { MODEL(VOCAB ", \"merges\": [\"a b\"]"), TR_ERR_FORMAT,
      "merges[0] gives \"ab\"" },
    { MODEL(GOOD ", \"unk_token\": \"x\""), TR_ERR_FORMAT,
      "unk_token \"x\" is not in" },
    { MODEL(GOOD ", \"end_of_word_suffix\": \"</w>\""), TR_ERR_UNSUPPORTED,
      "model.end_of_word_suffix \"</w>\"" },
    { MODEL(GOOD ", \"continuing_subword_prefix\": \"##\""), TR_ERR_UNSUPPORTED,
      "model.continuing_subword_prefix" },
    { MODEL(GOOD ", \"dropout\": 0.1"), TR_ERR_UNSUPPORTED,
      "model.dropout 0.1" },
};

/* What stands in one place of an otherwise good file. */
static const struct {
    fixture_parts_t parts;
    tr_status_t status;
    const char *text;
} parts[] = {
    { { .normalizer = "{}" }, TR_ERR_FORMAT, "normalizer without a \"type\"" },
    { { .normalizer = "{\"type\": \"BertNormalizer\"}" },
      TR_ERR_UNSUPPORTED,
      "normalizer \"BertNormalizer\" is not supported (NFC," },
    { { .normalizer = "{\"type\": \"Prepend\"}" },
      TR_ERR_FORMAT,
      "Prepend needs a string" },
    { { .normalizer = "{\"type\": \"Replace\", \"content\": \"x\"}" },
      TR_ERR_FORMAT,
      "Replace needs a pattern" },
    { { .normalizer = "{\"type\": \"Replace\", \"content\": \"x\", \"pattern\""
                      ": {\"Regex\": \"(\"}}" },
      TR_ERR_FORMAT,
      "does not compile" },
    { { .pre_tokenizer = "{\"type\": \"Whitespace\"}" },
      TR_ERR_UNSUPPORTED,
      "pre_tokenizer \"Whitespace\"" },
    { { .pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": [3]}" },
      TR_ERR_FORMAT,
      "pre_tokenizer without a \"type\"" },
    { { .pre_tokenizer = "{\"type\": \"Split\", \"pattern\": {\"String\": "
                         "\" \"}, \"behavior\": \"Sideways\"}" },
      TR_ERR_UNSUPPORTED,
      "behavior of pre_tokenizer Split \"Sideways\"" },
    { { .pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Removed\"}" },
      TR_ERR_FORMAT,
      "Split needs a pattern" },
    { { .pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Removed\", "
                         "\"pattern\": {\"Regex\": \"[a[b]]\"}}" },
      TR_ERR_UNSUPPORTED,
      "a character class inside another at byte 2" },
    { { .pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Removed\", "
                         "\"pattern\": {\"Regex\": \"[a&&b]\"}}" },
      TR_ERR_UNSUPPORTED,
      "intersection" },
    { { .pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Removed\", "
                         "\"pattern\": {\"Regex\": \"(?m:a.b)\"}}" },
      TR_ERR_UNSUPPORTED,
      "inline option" },
    { { .pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Removed\", "
                         "\"pattern\": {\"Regex\": \"[a\"}}" },
      TR_ERR_UNSUPPORTED,
      "without its end" },
    { { .pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Removed\", "
                         "\"pattern\": {\"Regex\": \"\\\\p{Klingon}\"}}" },
      TR_ERR_FORMAT,
      "does not compile" },
    { { .pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Removed\", "
                         "\"pattern\": {\"Regex\": \"a\\\\\"}}" },
      TR_ERR_UNSUPPORTED,
      "backslash at the end" },
    { { .pre_tokenizer = "{\"type\": \"Metaspace\", \"replacement\": \"__\"}" },
      TR_ERR_FORMAT,
      "expected one character" },
    { { .pre_tokenizer = "{\"type\": \"Metaspace\", \"prepend_scheme\": "
                         "\"often\"}" },
      TR_ERR_UNSUPPORTED,
      "prepend_scheme of pre_tokenizer Metaspace \"often\"" },
    { { .pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": "
                         "[" FIXTURE_BYTE_LEVEL ", {\"type\": \"Digits\"}]}" },
      TR_ERR_UNSUPPORTED,
      "after ByteLevel" },
    { { .post_processor = "{\"type\": \"BertProcessing\"}" },
      TR_ERR_UNSUPPORTED,
      "post_processor \"BertProcessing\"" },
    { { .post_processor = "{\"type\": \"TemplateProcessing\", \"single\": "
                          "[]}" },
      TR_ERR_FORMAT,
      "has 0 sequences, expected 1" },
    { { .post_processor = "{\"type\": \"TemplateProcessing\", \"single\": "
                          "[{\"SpecialToken\": {\"id\": \"X\"}}, "
                          "{\"Sequence\": {}}]}" },
      TR_ERR_FORMAT,
      "names \"X\" without its ids" },
    { { .post_processor = "{\"type\": \"TemplateProcessing\", \"single\": "
                          "[{\"SpecialToken\": {\"id\": \"X\"}}, "
                          "{\"Sequence\": {}}], \"special_tokens\": "
                          "{\"X\": {\"ids\": [256]}}}" },
      TR_ERR_FORMAT,
      "the id 256 of \"X\" is not in the vocabulary" },
    { { .decoder = "null" }, TR_ERR_UNSUPPORTED, "decoder \"null\"" },
    { { .decoder = "{\"type\": \"WordPiece\"}" },
      TR_ERR_UNSUPPORTED,
      "decoder \"WordPiece\"" },
    { { .decoder = "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, "
                   "\"content\": \"\"}" },
      TR_ERR_UNSUPPORTED,
      "decoder Replace needs a pattern String" },
    { { .decoder = "{\"type\": \"Strip\", \"content\": \"x\", \"start\": 1}" },
      TR_ERR_UNSUPPORTED,
      "decoder Strip" },
    { { .added = "{\"id\": 300}" }, TR_ERR_FORMAT, "added_tokens[0] needs" },
    { { .added = "{\"id\": 300, \"content\": \"\"}" },
      TR_ERR_FORMAT,
      "added_tokens[0] needs" },
    { { .added = "{\"id\": 97, \"content\": \"new\"}" },
      TR_ERR_FORMAT,
      "id 97 stands for \"new\" and for \"a\"" },
    { { .added = "{\"id\": 300, \"content\": \"a\"}" },
      TR_ERR_FORMAT,
      "added_tokens[0] gives \"a\" the id 300, it has the id 97" },
    { { .added = "{\"id\": 4194304, \"content\": \"x!\"}" },
      TR_ERR_FORMAT,
      "has id 4194304, expected 0 to 4194303" },
};

static void
check(tr_status_t rc, const tr_error_t *err, tr_status_t want, const char *text)
{
    if (rc != want || strstr(err->text, text) == NULL) {
        fail_msg("status %d \"%s\", expected %d \"%s\"", rc, err->text, want,
                 text);
    }
}

static void
bad_files_are_errors(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        tr_tokenizer_t *t;
        tr_error_t err;
        tr_status_t rc = fixture_load(files[i].json, strlen(files[i].json), &t,
                                      &err);

        check(rc, &err, files[i].status, files[i].text);
    }
}

static void
bad_parts_are_errors(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        tr_tokenizer_t *t;
        tr_error_t err;
        tr_status_t rc = fixture_build(&parts[i].parts, &t, &err);

        check(rc, &err, parts[i].status, parts[i].text);
    }
}

static void
a_missing_file_is_named(void **state)
{
    tr_tokenizer_t *t;
    tr_error_t err;

    (void) state;
    assert_int_equal(tr_tokenizer_load("/nonexistent", &t, &err), TR_ERR_IO);
    assert_null(t);
    assert_non_null(strstr(err.text, "/nonexistent/tokenizer.json"));
    assert_int_equal(tr_tokenizer_load("models/pocket/tokenizer.json", &t,
                                       &err),
                     TR_ERR_IO);
}

static void
long_pieces_are_refused(void **state)
{
    static char json[8192];
    char piece[4098];
    tr_tokenizer_t *t;
    tr_error_t err;
    int n;

    (void) state;
    memset(piece, 'x', sizeof(piece));
    piece[4097] = '\0';
    n = snprintf(json, sizeof(json),
                 MODEL("\"vocab\": {\"%s\": 0}, "
                       "\"merges\": []"),
                 piece);
    check(fixture_load(json, (size_t) n, &t, &err), &err, TR_ERR_FORMAT,
          "is 4097 bytes long, at most 4096");
}

static const char good[] =
    "{\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"special\": true}],"
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
    "\"NFC\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
    "\"content\": \"_\"}]}, \"pre_tokenizer\": {\"type\": \"Split\", "
    "\"pattern\": {\"Regex\": "
    "\"(?i:'s)|[^\\\\s\\\\p{L}]{1,3}+|\\\\s+(?!\\\\S)\"},"
    "\"behavior\": \"Isolated\", \"invert\": false}, \"post_processor\": "
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
    "{\"id\":"
    " \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": "
    "{\"<s>\": {\"ids\": [5]}}}, \"decoder\": {\"type\": \"Sequence\", "
    "\"decoders\": [{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]}, "
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"byte_fallback\": "
    "true, \"vocab\": {\"?\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"_\": 4}, "
    "\"merges\": [\"a b\"]}}";

/* A tokenizer that was loaded from a damaged file must still work. */
static void
try_encoding(tr_tokenizer_t *t)
{
    tr_tokenizer_scratch_t *s = tr_tokenizer_scratch_new(t);
    tr_ids_t ids = { 0 };
    tr_error_t err;

    (void) tr_tokenizer_encode(t, s, "ab <s> it's \xc3\xa9", 14,
                               TR_ENCODE_SPECIAL | TR_ENCODE_PARSE_SPECIAL,
                               &ids, &err);
    for (uint32_t i = 0; i < ids.len; i++) {
        assert_true(ids.data[i] >= 0
                    && (uint32_t) ids.data[i] < tr_tokenizer_vocab_size(t));
    }
    free(ids.data);
    tr_tokenizer_scratch_free(s);
    tr_tokenizer_free(t);
}

/* The good file cut short everywhere, and with every byte changed. */
static void
damaged_files_do_not_crash(void **state)
{
    char json[sizeof(good)];
    tr_tokenizer_t *t;
    tr_error_t err;
    uint32_t loaded = 0;

    (void) state;
    assert_int_equal(fixture_load(good, sizeof(good) - 1, &t, &err), TR_OK);
    try_encoding(t);
    for (size_t i = 0; i < sizeof(good) - 1; i += 7) {
        assert_int_not_equal(fixture_load(good, i, &t, &err), TR_OK);
    }
    for (size_t i = 0; i < sizeof(good) - 1; i++) {
        static const char by[] = "\"0{x]:9";

        memcpy(json, good, sizeof(good));
        json[i] = by[i % 7];
        if (fixture_load(json, sizeof(good) - 1, &t, &err) == TR_OK) {
            try_encoding(t);
            loaded++;
        }
    }
    assert_true(loaded > 10); /* the damage was not always noticed */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_errors),
        cmocka_unit_test(bad_parts_are_errors),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(long_pieces_are_refused),
        cmocka_unit_test(damaged_files_do_not_crash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
