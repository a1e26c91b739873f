/*
 * What all event streams have in common: their headers, their buffer, and what
 * to do about a slow client.
 */

#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_stream.h"


ngx_int_t
ngx_http_tokenring_stream_headers(ngx_http_request_t *r,
    ngx_str_t *cache_control)
{
    static ngx_str_t  no = ngx_string("no");

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = -1;

    ngx_str_set(&r->headers_out.content_type,
                "text/event-stream; charset=utf-8");
    r->headers_out.content_type_len = sizeof("text/event-stream") - 1;
    r->headers_out.content_type_lowcase = NULL;
    ngx_str_set(&r->headers_out.charset, "utf-8");

    ngx_http_clear_accept_ranges(r);
    r->disable_not_modified = 1;

#if (NGX_HTTP_GZIP)
    /* compressed events would wait for each other */
    r->gzip_tested = 1;
    r->gzip_ok = 0;
#endif

    if (ngx_http_tokenring_add_header(r, "Cache-Control", cache_control)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_add_header(r, "X-Accel-Buffering", &no);
}


void
ngx_http_tokenring_stream_buf(ngx_buf_t *b, ngx_http_tokenring_text_t *t,
    ngx_uint_t last)
{
    b->start = t->start;
    b->pos = t->pos;
    b->last = t->last;
    b->end = t->end;
    b->temporary = ngx_http_tokenring_text_len(t) ? 1 : 0;
    b->flush = 1;
    b->last_buf = last ? 1 : 0;
    b->last_in_chain = 1;
    b->tag = (ngx_buf_tag_t) &ngx_http_tokenring_module;
}


ngx_uint_t
ngx_http_tokenring_stream_slow(ngx_http_request_t *r, ngx_buf_t *b,
    ngx_int_t rc)
{
    return rc == NGX_AGAIN || ngx_buf_size(b) || r->buffered;
}


ngx_int_t
ngx_http_tokenring_stream_block(ngx_http_request_t *r)
{
    ngx_event_t               *wev;
    ngx_http_core_loc_conf_t  *clcf;

    wev = r->connection->write;
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (!wev->delayed) {
        ngx_add_timer(wev, clcf->send_timeout);
    }

    return ngx_handle_write_event(wev, clcf->send_lowat);
}


ngx_int_t
ngx_http_tokenring_stream_writable(ngx_http_request_t *r, ngx_buf_t *b,
    ngx_uint_t blocked)
{
    ngx_int_t                  rc;
    ngx_event_t               *wev;
    ngx_connection_t          *c;
    ngx_http_core_loc_conf_t  *clcf;

    c = r->connection;
    wev = c->write;

    if (wev->timedout) {
        wev->timedout = 0;
        c->timedout = 1;
        ngx_log_error(NGX_LOG_INFO, c->log, NGX_ETIMEDOUT, "client timed out");
        return NGX_DECLINED;
    }

    if (c->error || (wev->error && r->http_version >= NGX_HTTP_VERSION_20)) {
        return NGX_DECLINED;
    }

    if (!blocked || wev->delayed) {
        clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

        (void) ngx_handle_write_event(wev, blocked ? clcf->send_lowat : 0);
        return NGX_AGAIN;
    }

    rc = ngx_http_output_filter(r, NULL);

    if (rc == NGX_ERROR) {
        return NGX_DECLINED;
    }

    if (ngx_http_tokenring_stream_slow(r, b, rc)) {
        return (ngx_http_tokenring_stream_block(r) == NGX_OK) ? NGX_AGAIN
                                                              : NGX_ERROR;
    }

    /* keep a timer set by limit_rate, or nothing would wake us */

    if (wev->timer_set && !wev->delayed) {
        ngx_del_timer(wev);
    }

    return NGX_OK;
}
