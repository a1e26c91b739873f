/*
 * compress.cuh: everything that slots cache, to the places that their policies
 * chose (kv_view.h, tr_kv_compress_t), or the beginning of it to another slot;
 * the counterpart of cpu/kv/kv_compress.c.
 *
 *   compress_index   a block for each job and head looks whether the choice can
 *                    be followed, and turns it round: which source each place
 *                    of a tier gets
 *   compress_tiles   a warp fills 16 places (a tile of 32 by channel) of one
 *                    side, and clears what their page has beside codes
 *
 * A tile has one warp, so that codes which share bytes have one writer, and
 * tokens by channel meet their tile.
 */
#ifndef TR_CUDA_COMPRESS_CUH
#define TR_CUDA_COMPRESS_CUH

#include "append.cuh"

#define INDEX_LANES 256u
#define TARGETS (TR_KV_TIERS_MAX + 1u) /* tiers, then the window */

/* What the index leaves of a head. */
typedef struct {
    uint32_t total[TR_KV_TIERS_MAX]; /* tokens that go to each tier */
} compress_head_t;

typedef struct {
    tr_kv_view_t kv; /* its layouts are below */
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
    const tr_kv_compress_t *jobs;
    uint32_t max_len;
    uint32_t *refused;
    compress_head_t *head; /* [n][layers * kv_heads] */
    uint32_t *order; /* [n][layers * kv_heads][max_len] sources, by tier */
} compress_args_t;

/* What the lanes of a block share. */
typedef struct {
    uint32_t count[INDEX_LANES][TARGETS]; /* then: of all lanes before */
    uint32_t total[TARGETS];
    uint32_t bad;
} index_smem_t;

/* A head of a job. */
typedef struct {
    const compress_args_t *a;
    const tr_kv_compress_t *job;
    const tr_kv_seq_t *from, *to;
    const int32_t *table, *to_table;
    const int8_t *dest;
    const uint32_t *have;
    uint32_t h;                     /* counted over all layers */
    uint32_t tiered, windowed, all; /* sources: in tiers, in the window, all */
    compress_head_t *head;
    uint32_t *order;
} compress_t;

TR_DEVICE void
flag_raise(uint32_t *flag)
{
    atomicOr(flag, 1u);
}

/* The first head of a job. */
TR_DEVICE uint32_t
compress_first(const compress_args_t *a, uint32_t j)
{
    return a->jobs[j].first_layer * a->kv.kv_heads;
}

/* Heads of layers that slide are not compressed, nor those of layers that the job
 * is not about. */
TR_DEVICE bool
compress_stays(const compress_args_t *a, uint32_t j, uint32_t h)
{
    return h >= a->kv.layers * a->kv.kv_heads
           || tr_kv_slides(&a->kv, h / a->kv.kv_heads)
           || !tr_kv_compress_has(&a->jobs[j], a->kv.kv_heads, h);
}

/* Tokens of tier l that are sources. */
TR_DEVICE uint32_t
tier_sources(const compress_t *c, uint32_t l)
{
    return c->have[l] - tr_kv_compress_skip(c->job, c->h, l);
}

/* Those in front of the tier's new ones. */
TR_DEVICE uint32_t
tier_stay(const compress_t *c, uint32_t l)
{
    return tr_kv_compress_stay(c->job, c->h, l);
}

/* False when the job is not allowed, before any token is looked at. */
TR_DEVICE bool
compress_open(compress_t *c, const compress_args_t *a, uint32_t j, uint32_t h)
{
    const tr_kv_view_t *kv = &a->kv;
    uint32_t heads = kv->layers * kv->kv_heads;
    size_t head, mine = (size_t) j * heads + h;
    uint64_t tiered = 0;

    c->a = a;
    c->job = &a->jobs[j];
    head = (size_t) c->job->slot * heads + h;
    c->from = &kv->seq[c->job->slot];
    c->to = c->job->to;
    c->table = kv->tables + head * kv->table_len;
    c->to_table = c->job->to_tables + (size_t) h * kv->table_len;
    c->dest = c->job->dest + h * c->job->dest_len;
    c->have = kv->count + head * TR_KV_TIERS_MAX;
    c->h = h;
    c->head = a->head + mine;
    c->order = a->order + mine * a->max_len;
    if (!seq_valid(a->layout, kv->n_layouts, c->from)
        || !seq_valid(a->layout, kv->n_layouts, c->to) || c->to->n_tiers == 0
        || c->from->base > UINT32_MAX - c->job->n_uncompressed
        || c->to->base > c->from->base + c->job->n_uncompressed
        || c->to->window_from > c->to->base) {
        return false;
    }
    for (uint32_t l = 0; l < c->from->n_tiers; l++) {
        if (tr_kv_compress_skip(c->job, h, l) > c->have[l]) {
            return false;
        }
        tiered += tier_sources(c, l);
    }
    c->windowed = tr_kv_windowed(c->from);
    if (tiered + c->windowed + c->job->n_uncompressed > c->job->dest_len
        || tiered + c->windowed + c->job->n_uncompressed > a->max_len) {
        return false;
    }
    c->tiered = (uint32_t) tiered;
    c->all = c->tiered + c->windowed + c->job->n_uncompressed;
    return true;
}

/* ---- sources ------------------------------------------------------------ */

/* Place of source i, its position, and the score that goes along. */
TR_DEVICE place_t
source_place(const compress_t *c, uint32_t i, uint32_t *position, float *score)
{
    const tr_kv_view_t *kv = &c->a->kv;
    place_t p = { NULL, NULL, i };
    uint32_t l = 0, entry, later;

    if (i < c->tiered) {
        for (; p.at >= tier_sources(c, l); l++) {
            p.at -= tier_sources(c, l);
        }
        p.at += tr_kv_compress_skip(c->job, c->h, l);
        p.layout = &c->a->layout[c->from->tier_layout[l]];
        entry = tr_kv_tier_entry(kv, l, p.at / p.layout->tokens);
    } else if (i < c->tiered + c->windowed) {
        *position = tr_kv_windowed_position(c->from, i - c->tiered);
        p.at = tr_kv_window_entry(c->from, *position);
        p.layout = &c->a->layout[c->from->window_layout];
        entry = kv->at_window + p.at / p.layout->tokens;
    } else {
        p.at = i - c->tiered - c->windowed;
        *position = c->from->base + p.at;
        later = c->job->n_uncompressed - 1 - p.at;
        p.layout = &c->a->layout[0];
        entry = p.at / p.layout->tokens;
    }
    p.page = tr_kv_page_at(kv, c->table[entry]);
    p.at %= p.layout->tokens;
    *score = token_score(p);
    if (i < c->tiered) {
        *position = token_position(p);
    } else if (i >= c->tiered + c->windowed && c->job->observe > 0) {
        /* the last queries paid it, as if all had */
        *score = p.layout->recent ? tr_kv_observed(
                     ((const float *) (p.page + p.layout->recent))[p.at], later,
                     c->job->observe)
                                  : 0;
    }
    return p;
}

/* Which of the sources behind the tiers stands at a position. */
TR_DEVICE uint32_t
window_source(const compress_t *c, uint32_t position)
{
    return position < c->from->sinks ? position
           : position < c->from->base
               ? c->from->sinks + position - c->from->window_from
               : c->windowed + position - c->from->base;
}

TR_DEVICE const tr_kv_layout_t *
source_layout(const compress_t *c, uint32_t i)
{
    uint32_t l = 0;

    if (i >= c->tiered + c->windowed) {
        return &c->a->layout[0];
    }
    if (i >= c->tiered) {
        return &c->a->layout[c->from->window_layout];
    }
    for (; i >= tier_sources(c, l); l++) {
        i -= tier_sources(c, l);
    }
    return &c->a->layout[c->from->tier_layout[l]];
}

#endif
