/*
 * The table of request fields: what it says of each field is what happens to
 * that field, and docs/api.md has the same rows.
 */
#include "tests/unit/fixtures/openai_fixture.h"

#include "engine/api/openai_fields.h"

#define DOC "docs/api.md"

static const char *const kinds[] = { "supported", "refused", "ignored" };

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

/* Rows of the table in the documentation: "| `NAME` | WHERE | KIND |" */
static void
test_documented(void **state)
{
    static char text[1 << 20];
    size_t n, i, rows = 0;
    const tr_field_t *fields = tr_openai_fields(&n);
    FILE *file = fopen(DOC, "r");
    char row[200], name[80], *at;

    (void) state;
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    at = strstr(text, "\n## Fields");
    assert_non_null(at);
    for (i = 0; i < n; i++) {
        doc_name(&fields[i], name, sizeof(name));
        snprintf(row, sizeof(row), "\n| `%s` | %s | %s |", name,
                 doc_where(&fields[i]), kinds[fields[i].kind]);
        if (strstr(at, row) == NULL) {
            fail_msg("%s has no row%s", DOC, row);
        }
    }
    for (; (at = strstr(at, "\n| `")) != NULL; at++) {
        rows++;
    }
    assert_int_equal(rows, n);
}

/* A name has one row for each place where it is known. */
static void
test_once(void **state)
{
    size_t n, i, k;
    const tr_field_t *fields = tr_openai_fields(&n);

    (void) state;
    for (i = 0; i < n; i++) {
        for (k = i + 1; k < n; k++) {
            assert_false(strcmp(fields[i].name, fields[k].name) == 0
                         && (fields[i].where & fields[k].where) != 0);
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
                 endpoint == CHAT ? HI : P, f->name, value);
    } else {
        snprintf(body, sizeof(body), "{%s,\"%s\":%s}",
                 endpoint == CHAT ? HI : P, f->name, value);
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documented),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_true),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
