/*
 * Which engine has a body's beginning in its cache, as far as one can tell from
 * where such bodies went (tokenring_prefix_affinity).
 *
 * A conversation's next turn is its last one and something more.  So a body is
 * cut into blocks of 1 KiB from where its first list begins, which is that of
 * the messages in most bodies, and a hash of each block and all before it is in
 * a table, with the generation of the engine that got it: another run of an
 * engine is another generation, and has nothing.  The table is shared by all
 * workers, has a fixed size and no text; of a full bucket one entry makes way.
 * The hashes are of who may share a cache, too.  A wrong entry costs some
 * milliseconds and nothing else, so nobody locks.  What an engine turns out not
 * to have any more, it computes now, so the entries stay.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_prefix.h"
#include "ngx_http_tokenring_resumable.h"
#include "ngx_http_tokenring_scan.h"


#define NGX_HTTP_TOKENRING_BUCKETS  16384
#define NGX_HTTP_TOKENRING_BUCKET   4

/* bodies below this are not worth a look */
#define NGX_HTTP_TOKENRING_PREFIX_MIN  2048

/* bytes of a block for each token that is surely cached, if the block is */
#define NGX_HTTP_TOKENRING_PREFIX_TOKEN  32


typedef struct {
    volatile uint64_t               hash;    /* 0: empty */
    volatile uint64_t               generation;
} ngx_http_tokenring_block_t;


typedef struct {
    uint64_t                        key;
    ngx_http_tokenring_block_t      blocks[NGX_HTTP_TOKENRING_BUCKETS]
                                          [NGX_HTTP_TOKENRING_BUCKET];
} ngx_http_tokenring_blocks_t;


static ngx_int_t ngx_http_tokenring_prefix_zone_init(ngx_shm_zone_t *zone,
    void *data);
static ngx_chain_t *ngx_http_tokenring_prefix_body(
    ngx_http_tokenring_ctx_t *ctx, size_t *size);
static void ngx_http_tokenring_prefix_hash(ngx_http_tokenring_ctx_t *ctx,
    ngx_chain_t *in, size_t from);
static uint64_t ngx_http_tokenring_block_hash(uint64_t h, u_char *p, size_t n);
static ngx_http_tokenring_block_t *ngx_http_tokenring_block_find(
    uint64_t hash);
static void ngx_http_tokenring_block_put(uint64_t hash, uint64_t generation);


/* NULL: no location wants it */

static ngx_http_tokenring_blocks_t  *ngx_http_tokenring_blocks;


/* tokenring_prefix_affinity on | off; */

char *
ngx_http_tokenring_set_prefix_affinity(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    char            *rv;
    ngx_str_t        name;
    ngx_shm_zone_t  *zone;

    ngx_http_tokenring_loc_conf_t  *tlcf = conf;

    rv = ngx_conf_set_flag_slot(cf, cmd, conf);

    if (rv != NGX_CONF_OK || !tlcf->prefix_affinity) {
        return rv;
    }

    ngx_str_set(&name, "tokenring_prefixes");

    zone = ngx_shared_memory_add(cf, &name,
                                 sizeof(ngx_http_tokenring_blocks_t)
                                 + 32 * ngx_pagesize,
                                 &ngx_http_tokenring_module);
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    zone->init = ngx_http_tokenring_prefix_zone_init;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_tokenring_prefix_zone_init(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t              *shpool;
    ngx_http_tokenring_blocks_t  *blocks;

    shpool = (ngx_slab_pool_t *) zone->shm.addr;
    blocks = data;

    if (blocks == NULL && zone->shm.exists) {
        blocks = shpool->data;
    }

    if (blocks == NULL) {
        blocks = ngx_slab_calloc(shpool, sizeof(ngx_http_tokenring_blocks_t));
        if (blocks == NULL) {
            return NGX_ERROR;
        }

        blocks->key = (uint64_t) ngx_random() << 32 ^ (uint64_t) ngx_random();
        shpool->data = blocks;
    }

    zone->data = blocks;
    ngx_http_tokenring_blocks = blocks;

    return NGX_OK;
}


ngx_uint_t
ngx_http_tokenring_prefix_wanted(ngx_http_tokenring_ctx_t *ctx)
{
    return ctx->conf->prefix_affinity && ctx->group->conns.nelts > 1
           && ngx_http_tokenring_blocks;
}


void
ngx_http_tokenring_prefix_read(ngx_http_tokenring_ctx_t *ctx)
{
    size_t        size;
    ngx_chain_t  *in;

    ctx->prefix = NULL;

    if (!ngx_http_tokenring_prefix_wanted(ctx) || ctx->scan == NULL) {
        return;
    }

    in = ngx_http_tokenring_prefix_body(ctx, &size);

    if (in == NULL || size < NGX_HTTP_TOKENRING_PREFIX_MIN) {
        return;
    }

    ctx->prefix = ngx_pcalloc(ctx->request->pool,
                              sizeof(ngx_http_tokenring_prefix_t));
    if (ctx->prefix == NULL) {
        /* the load alone decides */
        return;
    }

    ngx_http_tokenring_prefix_hash(ctx, in, (size_t) ctx->scan->list);
}


/* the body, all of which is here; NULL: it is in a file */

static ngx_chain_t *
ngx_http_tokenring_prefix_body(ngx_http_tokenring_ctx_t *ctx, size_t *size)
{
    ngx_chain_t         *in, *cl;
    ngx_http_request_t  *r;

    r = ctx->request;
    in = ctx->kept;
    *size = 0;

    if (in == NULL && ctx->foreign_body && r->request_body) {
        in = r->request_body->bufs;
    }

    for (cl = in; cl; cl = cl->next) {

        if (!ngx_buf_in_memory(cl->buf)) {
            return NULL;
        }

        *size += cl->buf->last - cl->buf->pos;
    }

    return in;
}


static void
ngx_http_tokenring_prefix_hash(ngx_http_tokenring_ctx_t *ctx, ngx_chain_t *in,
    size_t from)
{
    size_t                        n, len;
    u_char                       *p, cache_key[TR_CACHE_KEY];
    u_char                        block[NGX_HTTP_TOKENRING_PREFIX_BLOCK];
    uint64_t                      h;
    ngx_http_tokenring_prefix_t  *prefix;

    prefix = ctx->prefix;

    ngx_http_tokenring_cache_key(ctx->request, cache_key);
    h = ngx_http_tokenring_block_hash(ngx_http_tokenring_blocks->key,
                                      cache_key, TR_CACHE_KEY);
    len = 0;

    for ( /* void */ ; in; in = in->next) {
        p = in->buf->pos;

        n = ngx_min(from, (size_t) (in->buf->last - p));
        from -= n;
        p += n;

        while (p < in->buf->last) {
            n = ngx_min((size_t) (in->buf->last - p), sizeof(block) - len);
            ngx_memcpy(block + len, p, n);
            p += n;
            len += n;

            if (len < sizeof(block)) {
                break;
            }

            h = ngx_http_tokenring_block_hash(h, block, sizeof(block));
            prefix->hash[prefix->n++] = h;
            len = 0;

            if (prefix->n == NGX_HTTP_TOKENRING_PREFIX_BLOCKS) {
                return;
            }
        }
    }
}


/* of n bytes, a multiple of 8, behind what gave h; never 0 */

static uint64_t
ngx_http_tokenring_block_hash(uint64_t h, u_char *p, size_t n)
{
    uint64_t  word;

    for ( /* void */ ; n; n -= 8, p += 8) {
        ngx_memcpy(&word, p, 8);

        h = (h ^ word) * 0x9e3779b97f4a7c15;
        h ^= h >> 29;
    }

    h *= 0xbf58476d1ce4e5b9;
    h ^= h >> 32;

    return h ? h : 1;
}


static ngx_http_tokenring_block_t *
ngx_http_tokenring_block_find(uint64_t hash)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_block_t  *bucket;

    bucket =
        ngx_http_tokenring_blocks->blocks[hash % NGX_HTTP_TOKENRING_BUCKETS];

    for (i = 0; i < NGX_HTTP_TOKENRING_BUCKET; i++) {
        if (bucket[i].hash == hash) {
            return &bucket[i];
        }
    }

    return NULL;
}


static void
ngx_http_tokenring_block_put(uint64_t hash, uint64_t generation)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_block_t  *block;

    block = ngx_http_tokenring_block_find(hash);

    if (block == NULL) {
        block = ngx_http_tokenring_blocks->blocks[hash
                                               % NGX_HTTP_TOKENRING_BUCKETS];

        for (i = 0; i < NGX_HTTP_TOKENRING_BUCKET - 1 && block[i].hash; i++) {
            /* the first that is empty, or any */
        }

        block += (block[i].hash == 0) ? i
                                      : (ngx_uint_t) ngx_random()
                                        % NGX_HTTP_TOKENRING_BUCKET;

        block->generation = 0;
        block->hash = hash;
    }

    block->generation = generation;
}


void
ngx_http_tokenring_prefix_look(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t                    i;
    ngx_http_tokenring_block_t   *block;
    ngx_http_tokenring_prefix_t  *prefix;

    prefix = ctx->prefix;

    for (i = 0; i < prefix->n; i++) {
        block = ngx_http_tokenring_block_find(prefix->hash[i]);
        prefix->generation[i] = block ? block->generation : 0;
    }
}


ngx_uint_t
ngx_http_tokenring_prefix_match(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn)
{
    ngx_uint_t                    i;
    ngx_http_tokenring_prefix_t  *prefix;

    prefix = ctx->prefix;

    for (i = prefix->n; i; i--) {
        if (prefix->generation[i - 1] == conn->map.generation) {
            return i;
        }
    }

    return 0;
}


void
ngx_http_tokenring_prefix_note(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn)
{
    ngx_uint_t                    i;
    ngx_http_tokenring_prefix_t  *prefix;

    prefix = ctx->prefix;

    if (prefix == NULL) {
        return;
    }

    prefix->matched = ngx_http_tokenring_prefix_match(ctx, conn);

    ngx_http_tokenring_count(prefix_lookups);

    if (prefix->matched) {
        ngx_http_tokenring_count(prefix_hits);
    }

    for (i = 0; i < prefix->n; i++) {
        ngx_http_tokenring_block_put(prefix->hash[i], conn->map.generation);
    }
}


void
ngx_http_tokenring_prefix_started(ngx_http_tokenring_ctx_t *ctx,
    uint32_t cached_tokens)
{
    if (ctx->prefix
        && (uint64_t) cached_tokens * NGX_HTTP_TOKENRING_PREFIX_TOKEN
           < ctx->prefix->matched * NGX_HTTP_TOKENRING_PREFIX_BLOCK)
    {
        ngx_http_tokenring_count(prefix_stale);
    }
}
