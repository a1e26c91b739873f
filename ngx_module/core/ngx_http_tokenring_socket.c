/*
 * The last step of a streamed event: from NGINX's chain into the socket.
 *
 * An event leaves the output filters as three small pieces (the size of the
 * chunk, the event, the line's end), which NGINX hands to writev().  For pieces
 * as small as these most of what writev() does besides TCP is looking: at the
 * list of pieces, and at the inode of the socket, which is in no cache when a
 * hundred streams take turns.  So they are copied together and go by send().
 *
 * It takes the place of a connection's send_chain, behind all filters: rate
 * limits, busy buffers and errors are NGINX's as before.  TLS, HTTP/2 and
 * HTTP/3 have a send_chain of their own, which stays.  What is not small, or
 * lies in a file, goes NGINX's way.
 */

#include "ngx_http_tokenring_send.h"


#define NGX_HTTP_TOKENRING_GATHER  2048


static ngx_chain_t *ngx_http_tokenring_send_chain(ngx_connection_t *c,
    ngx_chain_t *in, off_t limit);


void
ngx_http_tokenring_socket_take(ngx_connection_t *c)
{
    if (c->send_chain == ngx_send_chain) {
        c->send_chain = ngx_http_tokenring_send_chain;
    }
}


void
ngx_http_tokenring_socket_return(ngx_connection_t *c)
{
    if (c->send_chain == ngx_http_tokenring_send_chain) {
        c->send_chain = ngx_send_chain;
    }
}


static ngx_chain_t *
ngx_http_tokenring_send_chain(ngx_connection_t *c, ngx_chain_t *in,
    off_t limit)
{
    size_t        len, size;
    ssize_t       n;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    /* one for all: it is in the cache when the next request comes */
    static u_char  gathered[NGX_HTTP_TOKENRING_GATHER];

    if (!c->write->ready) {
        return in;
    }

    len = 0;

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_special(b)) {
            continue;
        }

        size = b->last - b->pos;

        if (b->in_file
            || !ngx_buf_in_memory(b)
            || size > sizeof(gathered) - len)
        {
            return ngx_send_chain(c, in, limit);
        }

        ngx_memcpy(gathered + len, b->pos, size);
        len += size;
    }

    if (len == 0 || (limit && (off_t) len > limit)) {
        return ngx_send_chain(c, in, limit);
    }

    n = c->send(c, gathered, len);

    if (n == NGX_ERROR) {
        return NGX_CHAIN_ERROR;
    }

    return ngx_chain_update_sent(in, n > 0 ? n : 0);
}
