/*
 * Samples of an engine in /metrics, by the name of their family.
 *
 * A sample writes the lines of one family and one socket, or nothing where the
 * engine does not know.  Its offset is that of a field of the status page: of
 * the part that ngx_http_tokenring_admission() names (_u32, _u64) or of that
 * which ngx_http_tokenring_counter() names (_counter, _guard, _histogram); the
 * others take none.  All but _up and _workers need a socket that is ready,
 * whose admission was read just now.  NGX_ERROR: no memory.
 */

#ifndef _NGX_HTTP_TOKENRING_METRICS_ENGINE_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_METRICS_ENGINE_H_INCLUDED_


#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_text.h"


typedef struct {
    ngx_http_tokenring_text_t     *out;
    ngx_array_t                   *engines; /* those that are shown */
    ngx_msec_t                     stall;    /* stall_timeout */
} ngx_http_tokenring_page_t;


typedef ngx_int_t (*ngx_http_tokenring_sample_pt)(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);


#define ngx_http_tokenring_admission(field)                                   \
    offsetof(tr_status_admission_t, field)
#define ngx_http_tokenring_counter(field)                                     \
    offsetof(tr_status_counters_t, field)


ngx_int_t ngx_http_tokenring_sample_up(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_u32(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_u64(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_counter(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_guard(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_gpu_use(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_gpu_power(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_reasons(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_usage(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_pages(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_page_bytes(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_kept(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_ratios(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_workers(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
ngx_int_t ngx_http_tokenring_sample_histogram(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);


#endif /* _NGX_HTTP_TOKENRING_METRICS_ENGINE_H_INCLUDED_ */
