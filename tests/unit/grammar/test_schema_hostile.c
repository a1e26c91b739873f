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

/* `head`, then n times `part` with its number for %x or %d, between commas, then
 * `tail`. */
typedef struct {
    const char *head;
    int n;
    const char *part, *tail;
} many_t;

static char *
write_many(char *at, const many_t *m)
{
    at += sprintf(at, "%s", m->head);
    for (int i = 0; i < m->n; i++) {
        at += sprintf(at, i != 0 ? "," : "");
        at += sprintf(at, m->part, i, i);
    }
    return at + sprintf(at, "%s", m->tail);
}

#define DEEP 5000

static void
write_deep(char *at)
{
    for (int i = 0; i < DEEP; i++) {
        at += sprintf(at, "{\"items\":");
    }
    at += sprintf(at, "{}");
    memset(at, '}', DEEP);
    at[DEEP] = '\0';
}

#define COMPLEX "it is too complex"

typedef struct {
    const char *name;
    const char *text;    /* NULL: `many`, one behind the other, */
    many_t many[3];      /* and where there are none, what write_deep writes */
    const char *refused; /* in the message; NULL: it compiles */
    bool drops;          /* what is not supported is dropped */
} hostile_t;

static const hostile_t hostile[] = {
    { "a long string", .text = "{\"type\":\"string\",\"minLength\":1000000,"
                               "\"maxLength\":2000000}" },
    { "a long array", .text = "{\"type\":\"array\",\"minItems\":100000,"
                              "\"maxItems\":4000000000}" },
    { "many properties",
      .text = "{\"type\":\"object\",\"maxProperties\":60000}" },
    { "counts of counts",
      .text = "{\"type\":\"string\",\"pattern\":\"^(a{1,1000}){1,1000}$\"}",
      .refused = "'pattern' at / is not supported" },
    { "a pattern of many states",
      .text = "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){30}\"}",
      .refused = "'pattern' at / is not supported" },
    { "a pattern and a length",
      .text = "{\"type\":\"string\",\"pattern\":\"^(.*x){14}$\","
              "\"maxLength\":60000}",
      .refused = "'maxLength' at / is not supported" },
    { "references that double",
      .text = "{\"$defs\":{\"a\":{\"anyOf\":[{\"allOf\":["
              "{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}]},"
              "{\"type\":\"null\"}]}},\"$ref\":\"#/$defs/a\"}",
      .refused = "nested deeper than 64" },
    { "a schema of itself",
      .text = "{\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}",
      .refused = "'allOf' at / is not supported" },
    { "optional properties",
      .many = { { "{\"type\":\"object\",\"properties\":{", 5000,
                  "\"p%x\":{\"type\":\"string\"}",
                  "},\"additionalProperties\":false}" } } },
    { "merges and keys", .many = { { "{\"allOf\":[", 1701, "{}", "]," },
                                   { "", 20000, "\"%x\":0", "}" } } },
    { "depth", .refused = "maximum parsing depth" },
    { "alternatives",
      .many = { { "{\"allOf\":[", 24,
                  "{\"anyOf\":[{\"required\":[\"a%x\"]},"
                  "{\"required\":[\"b%x\"]}]}",
                  "]}" } },
      .refused = COMPLEX },
    { "values and keys",
      .many = { { "{\"enum\":[", 9901, "{\"a\":1}", "]" },
                { ",\"properties\":{\"a\":{", 15001, "\"%x\":0", "}}}" } },
      .refused = COMPLEX },
    { "merges and properties",
      .many = { { "{\"allOf\":[{\"properties\":{", 4000, "\"%x\":{}", "}}," },
                { "", 4000, "{\"properties\":{\"y%x\":{}}}", "]}" } },
      .refused = COMPLEX },
    { "merges and required",
      .many = { { "{\"allOf\":[{\"required\":[", 4000, "\"%x\"", "]}," },
                { "", 4000, "{\"required\":[\"y%x\"]}", "]}" } },
      .refused = COMPLEX },
    { "merges and values",
      .many = { { "{\"allOf\":[{\"enum\":[", 9000, "\"%x\"", "]}," },
                { "{\"enum\":[", 9000, "\"y%x\"", "]}," },
                { "{\"enum\":[", 9000, "\"y%x\"", "]}]}" } },
      .refused = COMPLEX },
    { "merges and items",
      .many = { { "{\"allOf\":[{\"prefixItems\":[", 9000, "{}", "]}," },
                { "", 4000, "{\"prefixItems\":[{\"minimum\":%d}]}", "]}" } },
      .refused = COMPLEX },
    /* what both sides say of one property nests deeper with each merge */
    { "merges and depth",
      .many = { { "{\"allOf\":[", 6700,
                  "{\"properties\":{\"a\":{\"minimum\":%d}}}", "]}" } },
      .refused = COMPLEX },
    { "merges and choices",
      .many = { { "{\"allOf\":[", 8000, "{\"anyOf\":[{\"minimum\":%d}]}",
                  "]}" } },
      .refused = COMPLEX },
    { "many patterns",
      .many = { { "{\"prefixItems\":[", 2500,
                  "{\"type\":\"string\",\"maxLength\":1,"
                  "\"pattern\":\"^(a|b)*a(a|b){12}|%x\"}",
                  "]}" } },
      .refused = COMPLEX },
    /* each of these is refused, or dropped where it may be, after a while */
    { "dropped patterns",
      .many = { { "{\"prefixItems\":[", 2500,
                  "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){30}\"}",
                  "]}" } },
      .refused = COMPLEX, .drops = true },
    { "dropped lengths",
      .many = { { "{\"prefixItems\":[", 2500,
                  "{\"type\":\"string\",\"pattern\":\"^(ab?)*$\","
                  "\"maxLength\":60000}",
                  "]}" } },
      .refused = COMPLEX, .drops = true },
    { "dropped expressions",
      .many = { { "{\"prefixItems\":[", 2500,
                  "{\"pattern\":\"(?i)[\\\\0-\\\\uffff][\\\\0-\\\\uffff]"
                  "\\\\bx\"}",
                  "]}" } },
      .refused = COMPLEX, .drops = true },
};

static void
write_schema(char *at, const hostile_t *h)
{
    if (h->text != NULL) {
        strcpy(at, h->text);
        return;
    }
    if (h->many[0].head == NULL) {
        write_deep(at);
        return;
    }
    for (uint32_t i = 0; i < 3 && h->many[i].head != NULL; i++) {
        at = write_many(at, &h->many[i]);
    }
}

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

        write_schema(text, h);
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
            fail_msg("%s: %s, expected %s", h->name,
                     rc == TR_OK ? "compiles" : err.text,
                     h->refused == NULL ? "that it compiles" : h->refused);
        }
        if (json_memory.calls > CALLS_MAX || json_memory.peak > BYTES_MAX) {
            fail_msg("%s: %lu allocations, %zu bytes", h->name,
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
