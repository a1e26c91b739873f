/*
 * Hostile schemas, a few hundred KB at most: each compiles, or is refused for a
 * known reason, before it has cost much.  What it costs is counted, not timed:
 * jansson's allocations and bytes here, the compiler's own work by the compiler,
 * which refuses what is "too complex".  A piece of work that nobody counts shows
 * as too many allocations, or as a schema that compiles though it should not.
 */
#include "../fixtures/grammar_fixture.h"
#include "../fixtures/hostile_schemas.h"

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
