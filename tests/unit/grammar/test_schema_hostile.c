/*
 * Hostile schemas, a few hundred KB at most: each compiles, or is refused for a
 * known reason, before it has cost much.  What it costs is counted, not timed:
 * jansson's allocations and bytes here, the compiler's own work by the compiler,
 * which refuses what is "too complex".  A piece of work that nobody counts shows
 * as too many allocations, or as a schema that compiles though it should not.
 */
#include "../fixtures/grammar_fixture.h"

#include <jansson.h>
#include <malloc.h>

#define TEXT_MAX TR_GRAMMAR_TEXT
#define CALLS_MAX 1000000u            /* the dearest takes 583,297 */
#define BYTES_MAX ((size_t) 80 << 20) /* TR_GRAMMAR_MEMORY and the document */

/* What jansson takes.  Texts that it writes are freed by free(), and stay in
 * `live`. */
static struct {
    uint64_t calls;    /* allocations */
    size_t live, peak; /* bytes */
} json_memory;

static void *
counted_malloc(size_t n)
{
    void *p = malloc(n);

    json_memory.calls++;
    json_memory.live += malloc_usable_size(p);
    if (json_memory.live > json_memory.peak) {
        json_memory.peak = json_memory.live;
    }
    return p;
}

static void
counted_free(void *p)
{
    json_memory.live -= malloc_usable_size(p);
    free(p);
}

/* head, then n times part with its number for %x or %d, between commas, then
 * tail. */
static char *
many(char *at, const char *head, int n, const char *part, const char *tail)
{
    at += sprintf(at, "%s", head);
    for (int i = 0; i < n; i++) {
        at += sprintf(at, i != 0 ? "," : "");
        at += sprintf(at, part, i, i);
    }
    return at + sprintf(at, "%s", tail);
}

static void
alternatives(char *at)
{
    many(at, "{\"allOf\":[", 24,
         "{\"anyOf\":[{\"required\":[\"a%x\"]},{\"required\":[\"b%x\"]}]}",
         "]}");
}

static void
optional(char *at)
{
    many(at, "{\"type\":\"object\",\"properties\":{", 5000,
         "\"p%x\":{\"type\":\"string\"}", "},\"additionalProperties\":false}");
}

static void
deep(char *at)
{
    for (int i = 0; i < 5000; i++) {
        at += sprintf(at, "{\"items\":");
    }
    at += sprintf(at, "{}");
    memset(at, '}', 5000);
    at[5000] = '\0';
}

static void
values_and_keys(char *at)
{
    at = many(at, "{\"enum\":[", 9901, "{\"a\":1}", "]");
    many(at, ",\"properties\":{\"a\":{", 15001, "\"%x\":0", "}}}");
}

static void
merges_and_keys(char *at)
{
    at = many(at, "{\"allOf\":[", 1701, "{}", "],");
    many(at, "", 20000, "\"%x\":0", "}");
}

static void
merges_and_properties(char *at)
{
    at = many(at, "{\"allOf\":[{\"properties\":{", 4000, "\"%x\":{}", "}},");
    many(at, "", 4000, "{\"properties\":{\"y%x\":{}}}", "]}");
}

static void
merges_and_required(char *at)
{
    at = many(at, "{\"allOf\":[{\"required\":[", 4000, "\"%x\"", "]},");
    many(at, "", 4000, "{\"required\":[\"y%x\"]}", "]}");
}

static void
merges_and_values(char *at)
{
    at = many(at, "{\"allOf\":[{\"enum\":[", 9000, "\"%x\"", "]},");
    at = many(at, "{\"enum\":[", 9000, "\"y%x\"", "]},");
    many(at, "{\"enum\":[", 9000, "\"y%x\"", "]}]}");
}

static void
merges_and_items(char *at)
{
    at = many(at, "{\"allOf\":[{\"prefixItems\":[", 9000, "{}", "]},");
    many(at, "", 4000, "{\"prefixItems\":[{\"minimum\":%d}]}", "]}");
}

/* What both sides say of one property nests deeper with each merge. */
static void
merges_and_depth(char *at)
{
    many(at, "{\"allOf\":[", 6700, "{\"properties\":{\"a\":{\"minimum\":%d}}}",
         "]}");
}

static void
merges_and_choices(char *at)
{
    many(at, "{\"allOf\":[", 8000, "{\"anyOf\":[{\"minimum\":%d}]}", "]}");
}

static void
many_patterns(char *at)
{
    many(at, "{\"prefixItems\":[", 2500,
         "{\"type\":\"string\",\"maxLength\":1,"
         "\"pattern\":\"^(a|b)*a(a|b){12}|%x\"}",
         "]}");
}

/* Each pattern is refused, or dropped where it may be, after a while. */
static void
dropped_patterns(char *at)
{
    many(at, "{\"prefixItems\":[", 2500,
         "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){30}\"}", "]}");
}

static void
dropped_lengths(char *at)
{
    many(at, "{\"prefixItems\":[", 2500,
         "{\"type\":\"string\",\"pattern\":\"^(ab?)*$\","
         "\"maxLength\":60000}",
         "]}");
}

static void
dropped_expressions(char *at)
{
    many(at, "{\"prefixItems\":[", 2500,
         "{\"pattern\":\"(?i)[\\\\0-\\\\uffff][\\\\0-\\\\uffff]"
         "\\\\bx\"}",
         "]}");
}

#define COMPLEX "it is too complex"

typedef struct {
    const char *text; /* NULL: `write` makes it */
    void (*write)(char *at);
    const char *refused; /* in the message; NULL: it compiles */
    bool drops;          /* what is not supported is dropped */
} hostile_t;

static const hostile_t hostile[] = {
    { .text = "{\"type\":\"string\",\"minLength\":1000000,"
              "\"maxLength\":2000000}" },
    { .text = "{\"type\":\"array\",\"minItems\":100000,"
              "\"maxItems\":4000000000}" },
    { .text = "{\"type\":\"object\",\"maxProperties\":60000}" },
    { .text = "{\"type\":\"string\",\"pattern\":\"^(a{1,1000}){1,1000}$\"}",
      .refused = "'pattern' at / is not supported" },
    { .text = "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){30}\"}",
      .refused = "'pattern' at / is not supported" },
    { .text = "{\"type\":\"string\",\"pattern\":\"^(.*x){14}$\","
              "\"maxLength\":60000}",
      .refused = "'maxLength' at / is not supported" },
    { .text = "{\"$defs\":{\"a\":{\"anyOf\":[{\"allOf\":["
              "{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}]},"
              "{\"type\":\"null\"}]}},\"$ref\":\"#/$defs/a\"}",
      .refused = "nested deeper than 64" },
    { .text = "{\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}",
      .refused = "'allOf' at / is not supported" },
    { .write = optional },
    { .write = merges_and_keys },
    { .write = deep, .refused = "maximum parsing depth" },
    { .write = alternatives, .refused = COMPLEX },
    { .write = values_and_keys, .refused = COMPLEX },
    { .write = merges_and_properties, .refused = COMPLEX },
    { .write = merges_and_required, .refused = COMPLEX },
    { .write = merges_and_values, .refused = COMPLEX },
    { .write = merges_and_items, .refused = COMPLEX },
    { .write = merges_and_depth, .refused = COMPLEX },
    { .write = merges_and_choices, .refused = COMPLEX },
    { .write = many_patterns, .refused = COMPLEX },
    { .write = dropped_patterns, .refused = COMPLEX, .drops = true },
    { .write = dropped_lengths, .refused = COMPLEX, .drops = true },
    { .write = dropped_expressions, .refused = COMPLEX, .drops = true },
};

static void
first_mask(grammar_fixture_t *b, tr_grammar_t *g)
{
    tr_matcher_t m;

    assert_int_equal(tr_matcher_init(&m, g, tr_frame_pool_init(b->memory, 1)),
                     TR_OK);
    assert_int_equal(tr_matcher_mask(&m, b->scratch, NULL, 0, b->mask), TR_OK);
    tr_matcher_drop(&m);
}

static void
test_hostile(void **state)
{
    grammar_fixture_t *b = *state;
    char *text = malloc(TEXT_MAX + 1);

    json_set_alloc_funcs(counted_malloc, counted_free);
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        const hostile_t *h = &hostile[i];
        tr_grammar_spec_t spec;
        tr_error_t err = { 0 };
        tr_grammar_t *g;
        tr_status_t rc;

        if (h->write != NULL) {
            h->write(text);
        } else {
            strcpy(text, h->text);
        }
        assert_true(strlen(text) <= TEXT_MAX);
        memset(&json_memory, 0, sizeof(json_memory));
        spec = spec_of(TR_GRAMMAR_SCHEMA, text);
        spec.flags = h->drops ? 0 : TR_GRAMMAR_REFUSE;
        rc = tr_grammar_compile(b->vocabulary, &spec, &g, &err);
        if (rc == TR_OK) {
            first_mask(b, g);
            tr_grammar_unref(g);
        }
        if (h->refused == NULL ? rc != TR_OK
                               : rc != TR_ERR_INVALID
                                     || strstr(err.text, h->refused) == NULL) {
            fail_msg("schema %zu: %s, expected %s", i,
                     rc == TR_OK ? "compiles" : err.text,
                     h->refused == NULL ? "that it compiles" : h->refused);
        }
        if (json_memory.calls > CALLS_MAX || json_memory.peak > BYTES_MAX) {
            fail_msg("schema %zu: %lu allocations, %zu bytes", i,
                     json_memory.calls, json_memory.peak);
        }
    }
    json_set_alloc_funcs(malloc, free);
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_hostile) };

    return cmocka_run_group_tests(tests, fixture_open, fixture_close);
}
