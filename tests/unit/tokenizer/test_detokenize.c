/*
 * From ids back to text: byte fallback, the first space, characters that are
 * cut anywhere, and the bytes that stand for each token.
 */
#include "tests/unit/fixtures/tokenizer_fixture.h"

/* JSON that macros put together is beyond it. */
/* clang-format off */

#define LOWER "\xe2\x96\x81" /* U+2581, SentencePiece's space */
#define REPLACEMENT "\xef\xbf\xbd"

#define ADDED(id, content, more)                                               \
    "{\"id\": " #id ", \"content\": \"" content "\"" more "}"

/* Ids "1 2 3" to text. */
static const char *
decode(const tr_tokenizer_t *t, const char *ids, bool skip_special)
{
    static char out[4096];
    tr_detok_t d;
    uint32_t n = 0;
    char *end;

    tr_detok_init(&d, skip_special);
    for (; *ids != '\0'; ids = end) {
        n += tr_detok_push(&d, t, (int32_t) strtol(ids, &end, 10), out + n,
                           (uint32_t) sizeof(out) - n);
    }
    n += tr_detok_finish(&d, out + n, (uint32_t) sizeof(out) - n);
    out[n] = '\0';
    return out;
}

#define LLAMA_DECODER                                                          \
    "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", "         \
    "\"pattern\": {\"String\": \"" LOWER "\"}, \"content\": \" \"}, "          \
    "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": "          \
    "\"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}"

static void
byte_fallback_and_first_space(void **state)
{
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .decoder = LLAMA_DECODER,
        .vocab = "\"<s>\": 0, \"" LOWER "a\": 1, \"b\": 2, \"<0xE4>\": 3, "
                 "\"<0xBD>\": 4, \"<0xa0>\": 5, \"" LOWER LOWER "\": 6, "
                 "\"<0x20>\": 7",
        .added = ADDED(0, "<s>", ", \"special\": true") });
    tr_detok_t d;
    char out[64];

    (void) state;
    assert_string_equal(decode(t, "1 2 1", false), "ab a");
    assert_string_equal(decode(t, "6 1", false), "  a");
    assert_string_equal(decode(t, "7 2", false), "b");
    assert_string_equal(decode(t, "0 1", false), "<s> a");
    assert_string_equal(decode(t, "0 1", true), "a");
    assert_string_equal(decode(t, "3 4 5", false), "\xe4\xbd\xa0");
    assert_string_equal(decode(t, "3 0 4 5", true), "\xe4\xbd\xa0");
    assert_string_equal(decode(t, "3 4 2 5", false),
                        REPLACEMENT "b" REPLACEMENT);
    assert_string_equal(decode(t, "2 99 -5 1", false), "b a");
    tr_detok_init(&d, false);
    tr_detok_continue(&d);
    assert_int_equal(tr_detok_push(&d, t, 1, out, sizeof(out)), 2);
    tr_tokenizer_free(t);
}

/* Without a decoder, what the pre-tokenizer did is undone. */
static void
no_decoder(void **state)
{
    static const char *const byte_level[] = {
        FIXTURE_BYTE_LEVEL,
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
        "\"pattern\": {\"String\": \" \"}, \"behavior\": \"Isolated\"}, "
        FIXTURE_BYTE_LEVEL "]}"
    };

    (void) state;
    for (size_t i = 0; i < 2; i++) {
        tr_tokenizer_t *t = fixture_make((fixture_parts_t){
            .pre_tokenizer = byte_level[i], .decoder = "null" });

        assert_string_equal(decode(t, "97 32 195 169", false), "a \xc3\xa9");
        tr_tokenizer_free(t);
    }
}

/* Each byte a token; what Unicode calls the maximal subparts. */
static void
broken_characters_become_replacements(void **state)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        { "97 195 169", "a\xc3\xa9" },
        { "195 97", REPLACEMENT "a" },
        { "128 97", REPLACEMENT "a" },
        { "192 128", REPLACEMENT REPLACEMENT },
        { "224 128 128", REPLACEMENT REPLACEMENT REPLACEMENT },
        { "237 160 128", REPLACEMENT REPLACEMENT REPLACEMENT },
        { "240 159 152", REPLACEMENT },
        { "240 159 152 240 159 152 128", REPLACEMENT "\xf0\x9f\x98\x80" },
        { "240 143 191", REPLACEMENT REPLACEMENT REPLACEMENT },
        { "244 144 128 128", REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT },
        { "245 255 254", REPLACEMENT REPLACEMENT REPLACEMENT },
        { "226 130 226 130 172", REPLACEMENT "\xe2\x82\xac" },
    };
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .pre_tokenizer = FIXTURE_BYTE_LEVEL });

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_string_equal(decode(t, cases[i].bytes, false), cases[i].text);
    }
    tr_tokenizer_free(t);
}

static void
token_bytes_are_those_of_the_text(void **state)
{
    tr_tokenizer_t *t = fixture_make((fixture_parts_t){
        .pre_tokenizer = FIXTURE_BYTE_LEVEL,
        .added = ADDED(256, "\xc4\xa0 \xe2\x82\xac", "") });
    uint32_t len;

    (void) state;
    for (int b = 0; b < 256; b++) {
        const char *p = tr_tokenizer_token_bytes(t, b, &len);

        assert_int_equal(len, 1);
        assert_int_equal((uint8_t) p[0], b);
    }
    /* an added token is written plainly, "Ġ" included */
    assert_memory_equal(tr_tokenizer_token_bytes(t, 256, &len),
                        "\xc4\xa0 \xe2\x82\xac", 6);
    assert_int_equal(len, 6);
    assert_int_equal(tr_tokenizer_max_token_bytes(t), 6);
    tr_tokenizer_token_bytes(t, 257, &len);
    assert_int_equal(len, 0);
    tr_tokenizer_token_bytes(t, -1, &len);
    assert_int_equal(len, 0);
    tr_tokenizer_free(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_fallback_and_first_space),
        cmocka_unit_test(no_decoder),
        cmocka_unit_test(broken_characters_become_replacements),
        cmocka_unit_test(token_bytes_are_those_of_the_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
