/*
 * The last step of a streamed event: from NGINX's chain into the socket.
 *
 * An event leaves the output filters as three small buffers (the chunk size,
 * the event, the end of the line), which NGINX passes to writev().  For buffers
 * this small, most of the cost of writev() besides TCP is bookkeeping: the list
 * of buffers, and the inode of the socket, which is in no CPU cache when a
 * hundred streams take turns.  So they are copied together and sent by send().
 *
 * It replaces a connection's send_chain, behind all filters: rate limits, busy
 * buffers and errors are handled by NGINX as before.  TLS, HTTP/2 and HTTP/3
 * have a send_chain of their own, which stays.  What is not small, or lies in a
 * file, takes NGINX's way.
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

    /* shared, so that it stays in the CPU cache for the next request */
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
