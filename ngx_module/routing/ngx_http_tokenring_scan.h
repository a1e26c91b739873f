/*
 * Reads "model" in a JSON body, in whatever pieces the body comes, and notices
 * where the first list begins.
 *
 * Plain C, without NGINX: tests/unit/module/test_scan.c holds it against the
 * engine's parser.
 */

#ifndef _NGX_HTTP_TOKENRING_SCAN_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_SCAN_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* bytes of a name that are kept: those that a SUBMIT may have */
#define NGX_HTTP_TOKENRING_SCAN_MAX  256


typedef enum {
    NGX_HTTP_TOKENRING_SCAN_NONE = 0,   /* no "model", or it is null */
    NGX_HTTP_TOKENRING_SCAN_NAME,       /* a string: name, len */
    NGX_HTTP_TOKENRING_SCAN_LONG,       /* a string above the maximum */
    NGX_HTTP_TOKENRING_SCAN_OTHER       /* no string */
} ngx_http_tokenring_scan_kind_e;


typedef struct {
    /* what was found up to now */
    ngx_http_tokenring_scan_kind_e  kind;
    uint16_t                        len;
    unsigned char                   name[NGX_HTTP_TOKENRING_SCAN_MAX];

    /* where the lexer is (_scan.c) */
    uint8_t                         state;
    uint8_t                         matched; /* characters of "model" */
    uint8_t                         digits;  /* of \uXXXX that are missing */
    unsigned                        value:1; /* behind the colon of a member */
    unsigned                        wanted:1; /* of "model", nothing read */
    uint16_t                        unit;
    uint16_t                        high;    /* a surrogate that waits */
    uint32_t                        depth;
    uint32_t                        members; /* that have ended */
    uint64_t                        list;    /* bytes up to the first list that
                                                is a member's value, with its
                                                bracket; 0: none */
    uint64_t                        seen;    /* bytes, before this piece */
    const unsigned char            *piece;
} ngx_http_tokenring_scan_t;


void ngx_http_tokenring_scan_init(ngx_http_tokenring_scan_t *s);

/* the next n bytes, which are borrowed; p may be NULL if n is 0 */
void ngx_http_tokenring_scan(ngx_http_tokenring_scan_t *s,
    const unsigned char *p, size_t n);


#endif /* _NGX_HTTP_TOKENRING_SCAN_H_INCLUDED_ */
