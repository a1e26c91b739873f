/*
 * Whose cached prefixes a request shares (tokenring_cache_key).
 *
 * An engine computes nothing twice that two requests of one key begin with,
 * and says how many tokens that were.  So strangers must not have one key: who
 * guesses another's prompt would see that it is there.  Without the directive,
 * or where its value is empty, a request has the key of what it proves itself
 * with; without that, of the client's address, so that a conversation finds
 * its own prefix.  The engine gets a hash, and what it was made from is part
 * of it: an address is never the same as a key that looks like one.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_request.h"

#include <ngx_sha1.h>

#include "ngx_http_tokenring_resumable.h"


static void
ngx_http_tokenring_cache_hash(u_char *key, const char *kind, u_char *data,
    size_t len)
{
    u_char      digest[20];
    ngx_sha1_t  sha1;

    ngx_sha1_init(&sha1);
    ngx_sha1_update(&sha1, kind, ngx_strlen(kind));
    ngx_sha1_update(&sha1, data, len);
    ngx_sha1_final(digest, &sha1);

    ngx_memcpy(key, digest, TR_CACHE_KEY);
}


void
ngx_http_tokenring_cache_key(ngx_http_request_t *r, u_char *key)
{
    ngx_str_t                       value, *header;
    ngx_connection_t               *c;
    ngx_http_tokenring_loc_conf_t  *tlcf;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6            *sin6;
#endif

    c = r->connection;
    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    if (tlcf->cache_key) {
        if (ngx_http_complex_value(r, tlcf->cache_key, &value) != NGX_OK) {
            /* no memory: it shares with its connection's alone */
            ngx_http_tokenring_cache_hash(key, "connection:",
                                          (u_char *) &c->number,
                                          sizeof(c->number));
            return;
        }

        if (value.len) {
            ngx_http_tokenring_cache_hash(key, "key:", value.data, value.len);
            return;
        }
    }

    header = ngx_http_tokenring_header_in(r, "Authorization");

    if (header == NULL || header->len == 0) {
        header = ngx_http_tokenring_header_in(r, "X-Api-Key");
    }

    if (header && header->len) {
        ngx_http_tokenring_cache_hash(key, "auth:", header->data, header->len);
        return;
    }

#if (NGX_HAVE_INET6)

    if (c->sockaddr->sa_family == AF_INET6) {
        /* the network that one client has for itself */
        sin6 = (struct sockaddr_in6 *) c->sockaddr;

        if (IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
            ngx_http_tokenring_cache_hash(key, "addr4:",
                                          sin6->sin6_addr.s6_addr + 12, 4);
            return;
        }

        ngx_http_tokenring_cache_hash(key, "net:", sin6->sin6_addr.s6_addr, 8);
        return;
    }

#endif

    ngx_http_tokenring_cache_hash(key, "addr:", c->addr_text.data,
                                  c->addr_text.len);
}


/*
 * Who may go on with a response that is kept: who shares its prefixes, and has
 * the same tokenring_request_key.
 */

void
ngx_http_tokenring_holder(ngx_http_request_t *r, u_char *holder)
{
    u_char                          cache_key[TR_CACHE_KEY], digest[20];
    ngx_str_t                       key;
    ngx_sha1_t                      sha1;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    ngx_http_tokenring_cache_key(r, cache_key);

    ngx_sha1_init(&sha1);
    ngx_sha1_update(&sha1, "holder:", sizeof("holder:") - 1);
    ngx_sha1_update(&sha1, cache_key, TR_CACHE_KEY);

    if (tlcf->key) {

        if (ngx_http_complex_value(r, tlcf->key, &key) != NGX_OK) {
            /* no memory: it is nobody's */
            ngx_sha1_update(&sha1, &r, sizeof(r));

        } else if (key.len) {
            ngx_sha1_update(&sha1, key.data, key.len);
        }
    }

    ngx_sha1_final(digest, &sha1);

    ngx_memcpy(holder, digest, TR_HOLDER);
}
