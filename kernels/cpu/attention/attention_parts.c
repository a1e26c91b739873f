/*
 * Where the tokens of a head are: its runs, the blocks and parts these are cut
 * into, and the uncompressed pages that a step reads when it does not read all
 * (Quest, ICML 2024).  What is cut depends on the cache alone.
 */
#include "attention.h"

/* The sinks, and the ring of the window: slots that ever held a token, less the
 * free ones. */
static void
window_run(const tr_kv_view_t *kv, const tr_kv_seq_t *seq, const int32_t *table,
           tr_run_t *out)
{
    uint32_t n = seq->base - seq->window_from;
    uint32_t base = seq->base - seq->sinks;
    uint32_t slots = base < seq->window ? base : seq->window;

    *out = (tr_run_t){ .layout = &kv->layout[seq->window_layout],
                       .pages = table + kv->at_window,
                       .step = 1,
                       .slots = seq->sinks + slots,
                       .hole_from = slots == 0 ? 0 : seq->sinks + base % slots,
                       .hole = slots - n,
                       .ring = seq->sinks,
                       .tier = TR_KV_WINDOW };
}

uint32_t
tr_attention_runs(const tr_kv_view_t *kv, int32_t slot, uint32_t layer,
                  uint32_t kv_head, tr_run_t *run)
{
    const tr_kv_seq_t *seq = tr_kv_seq_of(kv, slot, layer);
    const int32_t *table = tr_kv_table(kv, slot, layer, kv_head);
    size_t head = tr_kv_head(kv, slot, layer, kv_head);
    const uint32_t *count, *frozen = tr_kv_frozen(kv, seq, head);
    uint32_t n = 0;

    if (seq->n_tiers > 0) {
        count = kv->count + head * TR_KV_TIERS_MAX;
        for (uint32_t l = 0; l < seq->n_tiers; l++) {
            if (count[l] > 0) {
                run[n++] = (tr_run_t){
                    .layout = &kv->layout[seq->tier_layout[l]],
                    .pages = table + tr_kv_tier_entry(kv, l, 0),
                    .step = l % 2 == 0 ? 1 : -1,
                    .slots = count[l],
                    .frozen = frozen != NULL ? frozen[l] : 0,
                    .tier = (int32_t) l
                };
            }
        }
    }
    if (tr_kv_windowed(seq) > 0) {
        window_run(kv, seq, table, &run[n++]);
    }
    return n;
}

static uint32_t
page_blocks(const tr_kv_layout_t *l)
{
    return (l->tokens + TR_TILE_BLOCK - 1) / TR_TILE_BLOCK;
}

uint32_t
tr_run_blocks(const tr_run_t *r)
{
    uint32_t last = tr_run_pages(r) - 1;

    return last * page_blocks(r->layout)
           + (tr_run_used(r, last) + TR_TILE_BLOCK - 1) / TR_TILE_BLOCK;
}

bool
tr_run_scored(const tr_run_t *r, uint32_t i)
{
    return r->layout->score != 0
           && i / page_blocks(r->layout) * r->layout->tokens >= r->frozen;
}

void
tr_run_block(const tr_kv_view_t *kv, const tr_run_t *r, uint32_t i,
             tr_block_t *out)
{
    uint32_t page = i / page_blocks(r->layout);
    uint32_t at = i % page_blocks(r->layout) * TR_TILE_BLOCK;
    uint32_t end = tr_run_used(r, page);

    end = end < at + TR_TILE_BLOCK ? end : at + TR_TILE_BLOCK;
    out->page = tr_run_page(kv, r, page);
    out->n = 0;
    for (uint32_t token = at; token < end; token++) {
        if (r->hole == 0 || tr_run_has(r, page * r->layout->tokens + token)) {
            out->token[out->n++] = (uint16_t) token;
        }
    }
}

/* Pages of a part. */
static uint32_t
part_pages(const tr_run_t *r)
{
    uint32_t n = TR_PART_SLOTS / r->layout->tokens;

    return n > 0 ? n : 1;
}

static uint32_t
run_parts(const tr_run_t *r)
{
    return (tr_run_pages(r) + part_pages(r) - 1) / part_pages(r);
}

uint32_t
tr_row_parts(const tr_attention_row_t *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n_runs; i++) {
        n += run_parts(&t->run[i]);
    }
    return n;
}

void
tr_row_part(const tr_attention_row_t *t, uint32_t i, tr_part_t *out)
{
    uint32_t run = 0, before = 0, tiles, last, left;
    const tr_run_t *r;

    while (i >= run_parts(&t->run[run])) {
        i -= run_parts(&t->run[run]);
        before += tr_run_pages(&t->run[run])
                  * tr_page_tiles(t->run[run].layout);
        run++;
    }
    r = &t->run[run];
    tiles = tr_page_tiles(r->layout);
    out->run = r;
    out->page = i * part_pages(r);
    left = tr_run_pages(r) - out->page;
    out->pages = left < part_pages(r) ? left : part_pages(r);
    last = out->page + out->pages - 1;
    out->tile = before + out->page * tiles;
    out->tiles = (out->pages - 1) * tiles + (tr_run_used(r, last) + 15) / 16;
}

/* The scores of a block of uncompressed tokens. */
static void
scored_uncompressed(const tr_attention_tile_t *t, uint32_t first,
                    tr_scored_t *out)
{
    const tr_kv_layout_t *l = &t->kv->layout[0];
    uint32_t n = t->pos + t->n_pos - 1 - first;
    uint32_t entry = first / l->tokens, token = first % l->tokens;

    out->n = n < TR_TILE_BLOCK ? n : TR_TILE_BLOCK;
    for (uint32_t i = 0; i < out->n; entry++, token = 0) {
        uint8_t *page = tr_kv_page_at(t->kv, t->table[entry]);

        for (; token < l->tokens && i < out->n; token++, i++) {
            out->score[i] = (float *) (page + l->score) + token;
            out->recent[i] = (float *) (page + l->recent) + token;
        }
    }
}

void
tr_attention_scored(const tr_attention_tile_t *t, const tr_run_t *run,
                    uint32_t at, tr_scored_t *out)
{
    if (run == NULL) {
        scored_uncompressed(t, at, out);
        return;
    }
    tr_run_block(t->kv, run, at, &out->block);
    out->n = out->block.n;
    for (uint32_t i = 0; i < out->n; i++) {
        float *score = (float *) (out->block.page + run->layout->score);

        out->score[i] = score + out->block.token[i];
        out->recent[i] = NULL;
    }
}

uint32_t
tr_attention_order(float x)
{
    uint32_t u;

    if (x != x) {
        return UINT32_MAX;
    }
    memcpy(&u, &x, 4);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* The k-th largest of n, k from 1 on; x is permuted. */
static uint32_t
select_largest(uint32_t *x, uint32_t n, uint32_t k)
{
    uint32_t lo = 0, hi = n - 1;

    while (lo < hi) {
        uint32_t pivot = x[lo + (hi - lo) / 2], i = lo, j = hi;

        for (;;) {
            while (x[i] > pivot) {
                i++;
            }
            while (x[j] < pivot) {
                j--;
            }
            if (i >= j) {
                break;
            }
            uint32_t swap = x[i];
            x[i++] = x[j];
            x[j--] = swap;
        }
        if (k - 1 <= j) {
            hi = j;
        } else {
            lo = j + 1;
        }
    }
    return x[lo];
}

void
tr_attention_choose(const int32_t *pages, uint32_t n, uint32_t want,
                    uint32_t *bound, int32_t *chosen)
{
    /* the last page has its place: choose among those before it */
    uint32_t k = want - 1, above = 0, equal, at = 0, limit = 0;
    uint32_t *copy = bound + n;

    if (k > 0) {
        memcpy(copy, bound, (n - 1) * sizeof(*copy));
        limit = select_largest(copy, n - 1, k);
        for (uint32_t i = 0; i + 1 < n; i++) {
            above += bound[i] > limit;
        }
    }
    equal = k - above;
    for (uint32_t i = 0; i + 1 < n; i++) {
        if (k > 0 && bound[i] >= limit && (bound[i] > limit || equal > 0)) {
            equal -= bound[i] == limit;
            chosen[at++] = pages[i];
        }
    }
    chosen[at] = pages[n - 1];
}
