/*
 * The tables of request fields: what they say of each field is what happens to
 * that field, and docs/api.md has the same rows.
 */
#include "tests/unit/fixtures/openai_fixture.h"

#include "engine/api/openai_fields.h"

#define DOC "docs/api.md"

static const char *const kinds[] = { "supported", "refused", "ignored" };

static const struct {
    const char *section; /* of the documentation */
    const tr_field_t *(*rows)(size_t *n);
    bool two; /* its rows say for which of two endpoints they are */
} tables[] = {
    { "\n## Fields\n", tr_openai_fields, true },
    { "\n## Messages\n", tr_anthropic_fields, false },
    { "\n## Responses\n", tr_responses_fields, false },
    { "\n## Embeddings\n", tr_embeddings_fields, false },
};

#define TABLES (sizeof(tables) / sizeof(tables[0]))

/* As the documentation writes it. */
static void
doc_name(const tr_field_t *f, char *out, size_t size)
{
    snprintf(out, size, "%s%s",
             f->where == TR_FIELD_MESSAGE  ? "messages[]."
             : f->where == TR_FIELD_STREAM ? "stream_options."
                                           : "",
             f->name);
}

static const char *
doc_where(const tr_field_t *f)
{
    return f->where == TR_FIELD_BOTH || f->where == TR_FIELD_STREAM ? "both"
           : f->where == TR_FIELD_COMPLETIONS ? "completions"
                                              : "chat";
}

/* Rows of a table in the documentation: "| `NAME` | WHERE | KIND |", without
 * WHERE where there is one endpoint; text: its section. */
static void
check_documented(size_t table, const char *text)
{
    size_t n, i, rows = 0;
    const tr_field_t *fields = tables[table].rows(&n);
    char row[200], name[80];

    for (i = 0; i < n; i++) {
        doc_name(&fields[i], name, sizeof(name));
        snprintf(row, sizeof(row), "\n| `%s` |%s%s%s %s |", name,
                 tables[table].two ? " " : "",
                 tables[table].two ? doc_where(&fields[i]) : "",
                 tables[table].two ? " |" : "", kinds[fields[i].kind]);
        if (strstr(text, row) == NULL) {
            fail_msg("%s has no row%s", DOC, row);
        }
    }
    for (; (text = strstr(text, "\n| `")) != NULL; text++) {
        rows++;
    }
    assert_int_equal(rows, n);
}

static void
test_documented(void **state)
{
    static char text[1 << 20], section[1 << 19];
    FILE *file = fopen(DOC, "r");
    const char *at, *end;

    (void) state;
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    for (size_t i = 0; i < TABLES; i++) {
        at = strstr(text, tables[i].section);
        assert_non_null(at);
        end = strstr(at + 1, "\n## ");
        end = end != NULL ? end : at + strlen(at);
        assert_true((size_t) (end - at) < sizeof(section));
        memcpy(section, at, (size_t) (end - at));
        section[end - at] = '\0';
        check_documented(i, section);
    }
}

/* A name has one row for each place where it is known. */
static void
test_once(void **state)
{
    size_t n, i, k;

    (void) state;
    for (size_t t = 0; t < TABLES; t++) {
        const tr_field_t *fields = tables[t].rows(&n);

        for (i = 0; i < n; i++) {
            for (k = i + 1; k < n; k++) {
                assert_false(strcmp(fields[i].name, fields[k].name) == 0
                             && (fields[i].where & fields[k].where) != 0);
            }
        }
    }
}

/* A body that is right but for one field: endpoint's own, a message's, or one
 * of stream_options. */
static tr_request_t *
ask(unsigned endpoint, const tr_field_t *f, const char *value)
{
    char body[512];

    if (f->where == TR_FIELD_MESSAGE) {
        snprintf(body, sizeof(body),
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\","
                 "\"%s\":%s}]}",
                 f->name, value);
    } else if (f->where == TR_FIELD_STREAM) {
        snprintf(body, sizeof(body),
                 "{%s,\"stream\":true,\"stream_options\":{\"%s\":%s}}",
                 endpoint == TEXT ? P : HI, f->name, value);
    } else {
        snprintf(body, sizeof(body), "{%s,\"%s\":%s}",
                 endpoint == TEXT ? P
                 : endpoint == TR_ENDPOINT_RESPONSES
                         || endpoint == TR_ENDPOINT_EMBEDDINGS
                     ? "\"input\":\"Hi\""
                     : HI,
                 f->name, value);
    }
    return parse((uint16_t) endpoint, body);
}

static bool
names(const tr_request_t *r, const tr_field_t *f)
{
    return r->error.status != TR_OK && strstr(r->error.param, f->name) != NULL;
}

/* Wrong types and values: whatever a field may be, one of these is none. */
static const char *const values[] = { "[[1]]", "\"\\u0001\"", "-7.5", "true" };

static void
check(unsigned endpoint, const tr_field_t *f)
{
    uint32_t refused = 0, i;
    tr_request_t *r;

    for (i = 0; i < 4; i++) {
        r = ask(endpoint, f, values[i]);
        refused += names(r, f);
        if (f->kind == TR_FIELD_IGNORED && r->error.status != TR_OK) {
            fail_msg("'%s' is not ignored: %s", f->name, r->error.text);
        }
        tr_request_free(r);
    }
    if (f->kind != TR_FIELD_IGNORED && refused == 0) {
        fail_msg("'%s': %s is accepted, nobody looks at it", f->name,
                 values[0]);
    }
    if (f->kind != TR_FIELD_REFUSED) {
        return;
    }
    r = ask(endpoint, f, "[[1]]");
    if (!names(r, f) || strstr(r->error.text, f->why) == NULL) {
        fail_msg("'%s' is not refused", f->name);
    }
    tr_request_free(r);
    for (i = 0; i < 2; i++) {
        const char *nothing = i == 0 ? "null" : f->harmless;

        if (nothing != NULL) {
            r = ask(endpoint, f, nothing);
            if (r->error.status != TR_OK) {
                fail_msg("'%s': %s is refused: %s", f->name, nothing,
                         r->error.text);
            }
            tr_request_free(r);
        }
    }
}

static void
test_true(void **state)
{
    size_t n, i;
    const tr_field_t *fields = tr_openai_fields(&n);

    (void) state;
    for (i = 0; i < n; i++) {
        const tr_field_t *f = &fields[i];

        if (f->where & (TR_FIELD_CHAT | TR_FIELD_MESSAGE | TR_FIELD_STREAM)) {
            check(CHAT, f);
        }
        if (f->where & (TR_FIELD_COMPLETIONS | TR_FIELD_STREAM)) {
            check(TEXT, f);
        }
    }
}

/* Another API's names, and a chat's where it has no others. */
static void
test_true_elsewhere(void **state)
{
    size_t n, i;
    const tr_field_t *fields = tr_anthropic_fields(&n);

    (void) state;
    for (i = 0; i < n; i++) {
        check(TR_ENDPOINT_MESSAGES, &fields[i]);
    }
    fields = tr_responses_fields(&n);
    for (i = 0; i < n; i++) {
        check(TR_ENDPOINT_RESPONSES, &fields[i]);
    }
    fields = tr_embeddings_fields(&n);
    api.embedding.pooling = TR_POOLING_LAST;
    api.width = 384;
    for (i = 0; i < n; i++) {
        check(TR_ENDPOINT_EMBEDDINGS, &fields[i]);
    }
    fields = tr_openai_fields(&n);
    for (i = 0; i < n; i++) {
        if (strcmp(fields[i].name, "seed") == 0
            || strcmp(fields[i].name, "kv_policy") == 0
            || strcmp(fields[i].name, "use_beam_search") == 0) {
            check(TR_ENDPOINT_MESSAGES, &fields[i]);
            check(TR_ENDPOINT_RESPONSES, &fields[i]);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documented),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_true),
        cmocka_unit_test(test_true_elsewhere),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
