/*
 * The page size, and the offsets of a page's segments (kv_layout.h).
 */
#include "kv_layout.h"

/* A GPU reads pages of 12 KiB and more 1% faster than those of half as much;
 * with small heads they would have too many tokens. */
#define PAGE_MIN(head_dim) \
    ((head_dim) <= 64 ? 6144u : (head_dim) >= 128 ? 12288u : (head_dim) *96)
#define PAGE_MAX 24576u
#define PAGE_STEP 128u
#define TOKENS 2048u /* of a head, in one tier, or two with more levels */
#define UNCOMPRESSED \
    0.02 /* the weight of uncompressed pages, where prompts stand a while */
#define LONE 0.1 /* the weight of a tile that is attended to alone: measured */

static bool
bits_known(uint32_t bits)
{
    return bits == 16 || bits == 8 || bits == 4 || bits == 2;
}

static bool
level_valid(const tr_kv_level_t *v, uint32_t head_dim)
{
    bool wide = v->key_bits == 16 && v->value_bits == 16;
    uint32_t kg = v->key_groups, vg = v->value_groups;

    if (!bits_known(v->key_bits) || !bits_known(v->value_bits)
        || (kg != 1 && kg != 2 && kg != 4) || vg == 0
        || head_dim / 16 % vg != 0) {
        return false;
    }
    if (v->by_channel && (kg != 1 || v->key_bits == 16)) {
        return false;
    }
    return wide || head_dim % 32 == 0;
}

/* Tokens of a page come in multiples of this. */
static uint32_t
level_quantum(const tr_kv_level_t *v)
{
    if (v->by_channel) {
        return TR_KV_CHANNEL_TOKENS;
    }
    return v->key_bits == 16 && v->value_bits == 16 ? 8 : 16;
}

/* Takes n bytes at *end; where they begin. */
static uint32_t
segment(uint32_t *end, uint32_t n)
{
    uint32_t at = *end;

    *end += n;
    return at;
}

/* Lays out `tokens` tokens, a valid number of them; returns the bytes used. */
static uint32_t
lay_out(tr_kv_layout_t *l, const tr_page_spec_t *w, const tr_kv_level_t *v,
        bool uncompressed, uint32_t tokens)
{
    const bool wide = v->key_bits == 16 && v->value_bits == 16;
    const uint32_t dim = w->head_dim, n = wide ? tokens : TR_KV_TILE;
    uint32_t end = 0;

    memset(l, 0, sizeof(*l));
    l->level = *v;
    l->head_dim = dim;
    l->tokens = tokens;
    segment(&end, n * dim * v->key_bits / 8);
    l->value = segment(&end, n * dim * v->value_bits / 8);
    if (v->key_bits < 16 && !v->by_channel) {
        l->key_meta = segment(&end, n * v->key_groups * 4);
    }
    if (v->value_bits < 16) {
        l->value_meta = segment(&end, n * v->value_groups * 4);
    }
    l->tile = wide ? TR_KV_TILE * dim * 2 : end;
    end = tr_kv_tiles_end(l);
    if (v->by_channel) {
        l->key_meta = segment(&end, tokens / TR_KV_CHANNEL_TOKENS * dim * 4);
    }
    if (v->scored) {
        l->score = segment(&end, tokens * 4);
        if (uncompressed) {
            l->recent = segment(&end, tokens * 4);
        }
    }
    if ((v->scored || v->placed) && !uncompressed) {
        l->position_bytes = w->short_positions ? 2 : 4;
        l->position = segment(&end, tokens * l->position_bytes);
    }
    if (uncompressed && w->uncompressed_minmax) {
        l->minmax = segment(&end, dim * 4);
    }
    return end;
}

/* The share of a page's tiles that a GPU attends to alone, in the time of two:
 * of few bits it takes two at once (unit_tiles in
 * kernels/cuda/attention/decode_iterator.cuh), none across pages. */
static double
lone_tiles(const tr_kv_level_t *v, uint32_t tokens)
{
    uint32_t tiles = tokens / TR_KV_TILE;

    return v->key_bits + v->value_bits < 8 ? tiles % 2 / (double) tiles : 0;
}

/* As many tokens as fit into `bytes`; the share of a tier's bytes that is lost,
 * what is left over in each page and half of the last one, and what lone tiles
 * count besides.  1: not even one quantum fits. */
static double
fill(tr_kv_layout_t *l, const tr_page_spec_t *w, const tr_kv_level_t *v,
     bool uncompressed, uint32_t bytes)
{
    uint32_t quantum = level_quantum(v), tokens = quantum;
    uint32_t tier = w->n_levels > 1 ? TOKENS / 2 : TOKENS;
    double used;

    if (lay_out(l, w, v, uncompressed, quantum) > bytes) {
        return 1;
    }
    while (lay_out(l, w, v, uncompressed, tokens + quantum) <= bytes) {
        tokens += quantum;
    }
    used = lay_out(l, w, v, uncompressed, tokens);
    return (bytes - used) / bytes + bytes / used * tokens / (2.0 * tier)
           + LONE * lone_tiles(v, tokens);
}

int
tr_page_plan(const tr_page_spec_t *spec, tr_page_plan_t *out)
{
    tr_kv_level_t uncompressed = { .key_bits = 16,
                                   .value_bits = 16,
                                   .key_groups = 1,
                                   .value_groups = 1,
                                   .scored = spec->uncompressed_scored };
    double best = 0;

    if (spec->head_dim == 0 || spec->head_dim % 16 != 0
        || spec->n_levels + 1 > TR_KV_LAYOUTS_MAX) {
        return -1;
    }
    for (uint32_t i = 0; i < spec->n_levels; i++) {
        if (!level_valid(&spec->levels[i], spec->head_dim)) {
            return -1;
        }
    }
    memset(out, 0, sizeof(*out));
    out->n = spec->n_levels + 1;
    for (uint32_t bytes = PAGE_MIN(spec->head_dim); bytes <= PAGE_MAX;
         bytes += PAGE_STEP) {
        tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
        double lost = fill(&layout[0], spec, &uncompressed, true, bytes);
        double waste = spec->n_levels == 0 ? lost : UNCOMPRESSED * lost;
        bool fits = lost < 1;

        for (uint32_t i = 0; i < spec->n_levels; i++) {
            lost = fill(&layout[i + 1], spec, &spec->levels[i], false, bytes);
            fits = fits && lost < 1;
            waste += lost;
        }
        if (fits && (out->page_bytes == 0 || waste < best - 1e-12)) {
            best = waste;
            out->page_bytes = bytes;
            memcpy(out->layout, layout, sizeof(out->layout));
        }
    }
    return out->page_bytes == 0 ? -1 : 0;
}
