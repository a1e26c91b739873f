/*
 * A float32 as JSON, as "%.9g" writes it: enough digits to tell it from any
 * other.  An answer with embeddings may have a million of them, and a worker
 * writes them at once, for which printf() takes too long.
 *
 * Plain C, without NGINX: tests/unit/module/test_number.c.
 */

#ifndef _NGX_HTTP_TOKENRING_NUMBER_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_NUMBER_H_INCLUDED_


/* bytes that one takes at most */
#define NGX_HTTP_TOKENRING_NUMBER_LEN  24


/* writes it to p, "null" for what is no number; returns where it ends */
unsigned char *ngx_http_tokenring_number(unsigned char *p, float number);


#endif /* _NGX_HTTP_TOKENRING_NUMBER_H_INCLUDED_ */
