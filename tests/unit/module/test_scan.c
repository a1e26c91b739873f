/*
 * The gateway's scanner of "model" against the engine's JSON parser: for every
 * body that the parser takes both must read the same model, however the body is
 * cut.  Bodies are made at random, and most are then damaged in a few bytes.
 */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_module/routing/ngx_http_tokenring_scan.h"
#include "tests/unit/fixtures/random.h"

#define BODY_MAX 4096
#define BODIES_MAX 100000000L

/* ---- bodies ------------------------------------------------------------- */

typedef struct {
    char text[BODY_MAX];
    size_t len;
} body_t;

static void
put(body_t *b, const char *text)
{
    size_t n = strlen(text);

    if (b->len + n <= sizeof(b->text)) {
        memcpy(b->text + b->len, text, n);
        b->len += n;
    }
}

/* Strings that are nearly the name, or spell it in another way, and others. */
static void
put_string(body_t *b)
{
    static const char *const some[] = { "\"model\"",
                                        "\"model\"",
                                        "\"\\u006dodel\"",
                                        "\"models\"",
                                        "\"mode\\u006C\"",
                                        "\"m\\u006f\\u0064el\"",
                                        "\"Model\"",
                                        "\"mode\"",
                                        "\"\\u006d\\u006F\\u0064\\u0065l\"",
                                        "\"\"",
                                        "\"messages\"",
                                        "\"mod\\u0000el\"",
                                        "\"mod e\"",
                                        "\"m\"",
                                        "\"prompt\"",
                                        "\"\\\"\"",
                                        "\"a\\\\\"",
                                        "\"\\\\\\\"model\\\":\"",
                                        "\"\\ud83d\\ude00\"",
                                        "\"\xf0\x9f\x98\x80\"",
                                        "\"\\u00e9\\u20ac\"",
                                        "\"\\/\\b\\f\\n\\r\\t\"",
                                        "\"pocket\"",
                                        "\"{\\\"model\\\":\\\"x\\\"}\"",
                                        "\"a\xc3\xa9 [}]{\"",
                                        "\"\\uD834\\uDD1Ex\"" };
    char text[400];
    size_t n;

    if (random_below(40) == 0) { /* about as long as a name may be */
        n = 250 + random_below(12);
        text[0] = '"';
        memset(text + 1, 'n', n);
        memcpy(text + 1 + n, "\"", 2);
        put(b, text);
        return;
    }
    put(b, some[random_below(sizeof(some) / sizeof(some[0]))]);
}

static void
put_space(body_t *b)
{
    static const char *const some[] = { " ", "\n", "\t", "\r\n  " };

    if (random_below(4) == 0) {
        put(b, some[random_below(4)]);
    }
}

static void
put_value(body_t *b, unsigned depth)
{
    static const char *const some[] = { "0",    "-12.5e+3", "true",
                                        "null", "false",    "null" };
    bool object = random_below(2) == 0;
    uint32_t n = random_below(5), i;

    put_space(b);
    if (depth > 0 && (depth > 5 || random_below(3) != 0)) {
        random_below(2) != 0 ? put_string(b) : put(b, some[random_below(6)]);
        put_space(b);
        return;
    }
    object = object || depth == 0;
    n += depth == 0;
    put(b, object ? "{" : "[");
    for (i = 0; i < n; i++) {
        put(b, i != 0 ? "," : "");
        put_space(b);
        if (object) {
            put_string(b);
            put_space(b);
            put(b, ":");
        }
        put_value(b, depth + 1);
    }
    put(b, object ? "}" : "]");
    put_space(b);
}

static void
damage(body_t *b)
{
    static const char some[] = "\"\"\\{}[]:,model nu0\x80\xff\n";
    uint32_t n = random_below(4);
    size_t at;

    while (n-- != 0 && b->len > 1) {
        at = random_below((uint32_t) b->len);
        switch (random_below(3)) {
        case 0:
            b->text[at] = some[random_below(sizeof(some) - 1)];
            break;
        case 1:
            memmove(b->text + at, b->text + at + 1, b->len - at - 1);
            b->len--;
            break;
        default:
            if (b->len < sizeof(b->text)) {
                memmove(b->text + at + 1, b->text + at, b->len - at);
                b->text[at] = some[random_below(sizeof(some) - 1)];
                b->len++;
            }
        }
    }
}

/* ---- the comparison ----------------------------------------------------- */

/* In pieces of their own buffers, so that a sanitizer sees a read beyond. */
static void
piece(ngx_http_tokenring_scan_t *s, const char *text, size_t n)
{
    unsigned char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, text, n);
    ngx_http_tokenring_scan(s, copy, n);
    free(copy);
}

static void
check_same(const ngx_http_tokenring_scan_t *a,
           const ngx_http_tokenring_scan_t *b)
{
    assert_int_equal(a->kind, b->kind);
    if (a->kind == NGX_HTTP_TOKENRING_SCAN_NAME) {
        assert_int_equal(a->len, b->len);
        assert_memory_equal(a->name, b->name, a->len);
    }
}

/* As engine/api reads it; false: it refuses the body. */
static bool
read_by_parser(const body_t *b, ngx_http_tokenring_scan_t *out)
{
    json_t *root = json_loadb(b->text, b->len, JSON_ALLOW_NUL, NULL), *model;
    bool object = json_is_object(root);

    ngx_http_tokenring_scan_init(out);
    model = object ? json_object_get(root, "model") : NULL;
    if (json_is_string(model)) {
        size_t n = json_string_length(model);

        out->kind = n > sizeof(out->name) ? NGX_HTTP_TOKENRING_SCAN_LONG
                                          : NGX_HTTP_TOKENRING_SCAN_NAME;
        if (n <= sizeof(out->name)) {
            memcpy(out->name, json_string_value(model), n);
            out->len = (uint16_t) n;
        }
    } else if (model != NULL && !json_is_null(model)) {
        out->kind = NGX_HTTP_TOKENRING_SCAN_OTHER;
    }
    json_decref(root);
    return object;
}

static void
scan_at_once(const body_t *b, ngx_http_tokenring_scan_t *s)
{
    ngx_http_tokenring_scan_init(s);
    piece(s, b->text, b->len);
}

static void
scan_at_random(const body_t *b, ngx_http_tokenring_scan_t *s)
{
    size_t at = 0, n;

    ngx_http_tokenring_scan_init(s);
    while (at < b->len) {
        n = random_below(random_below(3) == 0 ? 300 : 4);
        n = n < b->len - at ? n : b->len - at;
        piece(s, b->text + at, n);
        at += n;
    }
}

/* Returns what was found in a body that is right, or -1. */
static int
check(const body_t *b)
{
    ngx_http_tokenring_scan_t want, all, cut;
    bool taken = read_by_parser(b, &want);

    scan_at_once(b, &all);
    scan_at_random(b, &cut);
    check_same(&all, &cut);
    if (taken) {
        check_same(&all, &want);
    }
    return taken ? (int) want.kind : -1;
}

static void
make_body(body_t *b)
{
    b->len = 0;
    put_value(b, 0);
    if (random_below(3) != 0) {
        damage(b);
    }
}

/* ---- tests -------------------------------------------------------------- */

static void
test_table(void **state)
{
    static const struct {
        const char *body;
        ngx_http_tokenring_scan_kind_e kind;
        const char *name;
    } rows[] = { { "{\"model\":\"a\"}", NGX_HTTP_TOKENRING_SCAN_NAME, "a" },
                 { " {\"messages\":[{\"model\":\"no\"}],\"model\" : \"b\"}",
                   NGX_HTTP_TOKENRING_SCAN_NAME, "b" },
                 { "{\"model\":\"a\",\"model\":\"b\"}",
                   NGX_HTTP_TOKENRING_SCAN_NAME, "b" },
                 { "{\"model\":\"a\",\"\\u006dodel\":\"\\u0062\"}",
                   NGX_HTTP_TOKENRING_SCAN_NAME, "b" },
                 { "{\"model\":\"a\",\"model\":null}",
                   NGX_HTTP_TOKENRING_SCAN_NONE, "" },
                 { "{\"model\":[\"a\"]}", NGX_HTTP_TOKENRING_SCAN_OTHER, "" },
                 { "{\"model\":7}", NGX_HTTP_TOKENRING_SCAN_OTHER, "" },
                 { "{\"x\":\"model\",\"y\":\"a\"}",
                   NGX_HTTP_TOKENRING_SCAN_NONE, "" },
                 { "[\"model\",\"a\"]", NGX_HTTP_TOKENRING_SCAN_NONE, "" },
                 { "{\"prompt\":\"\\\"model\\\":\\\"a\\\"\"}",
                   NGX_HTTP_TOKENRING_SCAN_NONE, "" },
                 { "{\"model\":\"\\ud83d\\ude00\"}",
                   NGX_HTTP_TOKENRING_SCAN_NAME, "\xf0\x9f\x98\x80" },
                 { "", NGX_HTTP_TOKENRING_SCAN_NONE, "" } };
    ngx_http_tokenring_scan_t s;
    body_t b;
    size_t i;

    (void) state;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        b.len = 0;
        put(&b, rows[i].body);
        scan_at_once(&b, &s);
        assert_int_equal(s.kind, rows[i].kind);
        if (s.kind == NGX_HTTP_TOKENRING_SCAN_NAME) {
            assert_int_equal(s.len, strlen(rows[i].name));
            assert_memory_equal(s.name, rows[i].name, s.len);
        }
        check(&b);
    }
}

/* BODIES=10000000 for more of them. */
static void
test_random(void **state)
{
    long n = getenv("BODIES") ? atol(getenv("BODIES")) : 100000, i;
    long found[NGX_HTTP_TOKENRING_SCAN_OTHER + 1] = { 0 }, refused = 0;
    static body_t b;
    int kind;

    (void) state;
    assert_true(n > 0 && n < BODIES_MAX);
    for (i = 0; i < n; i++) {
        make_body(&b);
        kind = check(&b);
        refused += kind < 0;
        if (kind >= 0) {
            found[kind]++;
        }
    }
    print_message("%ld bodies: %ld names, %ld too long, %ld no strings, %ld "
                  "without; %ld are no JSON\n",
                  n, found[NGX_HTTP_TOKENRING_SCAN_NAME],
                  found[NGX_HTTP_TOKENRING_SCAN_LONG],
                  found[NGX_HTTP_TOKENRING_SCAN_OTHER],
                  found[NGX_HTTP_TOKENRING_SCAN_NONE], refused);
    /* of each kind enough to mean something */
    for (kind = 0; kind <= NGX_HTTP_TOKENRING_SCAN_OTHER; kind++) {
        assert_true(found[kind] > n / 2000);
    }
    assert_true(refused > n / 10);
}

static void
test_all_splits(void **state)
{
    ngx_http_tokenring_scan_t all, cut;
    static body_t b;
    size_t at, second;
    long i;

    (void) state;
    for (i = 0; i < 1000; i++) {
        make_body(&b);
        scan_at_once(&b, &all);
        for (at = 0; at <= b.len; at++) {
            ngx_http_tokenring_scan_init(&cut);
            piece(&cut, b.text, at);
            piece(&cut, b.text + at, b.len - at);
            check_same(&all, &cut);
        }
        for (at = 0; b.len < 40 && at <= b.len; at++) {
            for (second = at; second <= b.len; second++) {
                ngx_http_tokenring_scan_init(&cut);
                piece(&cut, b.text, at);
                piece(&cut, b.text + at, second - at);
                piece(&cut, b.text + second, b.len - second);
                check_same(&all, &cut);
            }
        }
    }
}

/* Where the first list of the outermost object begins, however it is cut. */
static void
test_first_list(void **state)
{
    static const struct {
        const char *body;
        uint64_t list;
    } some[] = { { "{\"model\": \"x\", \"messages\": [1]}", 28 },
                 { "{\"a\":{\"b\":[1]},\"c\":\"[\",\"d\":[[2]]}", 28 },
                 { "{\"prompt\": \"[\"}", 0 },
                 { "[1]", 0 } };
    ngx_http_tokenring_scan_t s;
    size_t i, k, n;

    (void) state;
    for (i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        const unsigned char *body = (const unsigned char *) some[i].body;

        n = strlen(some[i].body);
        for (k = 0; k <= n; k++) {
            ngx_http_tokenring_scan_init(&s);
            ngx_http_tokenring_scan(&s, body, k);
            ngx_http_tokenring_scan(&s, body + k, n - k);
            assert_int_equal(s.list, some[i].list);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_all_splits),
        cmocka_unit_test(test_first_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
