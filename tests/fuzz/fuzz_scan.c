/*
 * Fuzzes the gateway's scanner of "model": it reads the same in pieces as at
 * once, and the same as the parser where that takes the body.  The first byte of
 * an input says where the body is cut.
 */
#include <assert.h>
#include <jansson.h>
#include <string.h>

#include "ngx_module/routing/ngx_http_tokenring_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_parser(const ngx_http_tokenring_scan_t *s, const char *body, size_t len)
{
    json_t *root = json_loadb(body, len, JSON_ALLOW_NUL, NULL);
    json_t *model = json_object_get(root, "model");

    if (json_is_object(root)) {
        size_t n = json_string_length(model);

        assert(json_is_string(model)
               == (s->kind == NGX_HTTP_TOKENRING_SCAN_NAME
                   || s->kind == NGX_HTTP_TOKENRING_SCAN_LONG));
        assert((model == NULL || json_is_null(model))
               == (s->kind == NGX_HTTP_TOKENRING_SCAN_NONE));
        if (s->kind == NGX_HTTP_TOKENRING_SCAN_NAME) {
            assert(s->len == n
                   && memcmp(s->name, json_string_value(model), n) == 0);
        } else if (s->kind == NGX_HTTP_TOKENRING_SCAN_LONG) {
            assert(n > NGX_HTTP_TOKENRING_SCAN_MAX);
        }
    }
    json_decref(root);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ngx_http_tokenring_scan_t all, cut;
    size_t at, n;

    if (size == 0) {
        return 0;
    }
    ngx_http_tokenring_scan_init(&all);
    ngx_http_tokenring_scan(&all, data + 1, size - 1);
    ngx_http_tokenring_scan_init(&cut);
    for (at = 1; at < size; at += n) {
        n = (size_t) data[0] % 32 + 1;
        n = n < size - at ? n : size - at;
        ngx_http_tokenring_scan(&cut, data + at, n);
    }
    assert(all.kind == cut.kind && all.len == cut.len
           && memcmp(all.name, cut.name, all.len) == 0);
    check_parser(&all, (const char *) data + 1, size - 1);
    return 0;
}
