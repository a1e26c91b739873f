/*
 * compress_index.cuh: may a choice be followed, and which source does each
 * place of a tier get?  See compress.cuh.
 */
#ifndef TR_CUDA_COMPRESS_INDEX_CUH
#define TR_CUDA_COMPRESS_INDEX_CUH

#include "compress.cuh"

/* ---- looking ------------------------------------------------------------ */

/* Where source i goes, TR_KV_TIERS_MAX for the window; TARGETS: nowhere; more:
 * that is not allowed. */
TR_DEVICE uint32_t
source_target(const compress_t *c, uint32_t i)
{
    const tr_kv_layout_t *l = source_layout(c, i);
    const tr_kv_seq_t *to = c->to;
    int8_t dest = c->dest[i];

    if (i >= c->tiered && to->window > 0) {
        uint32_t at = i - c->tiered;
        uint32_t position = at < c->windowed
                                ? tr_kv_windowed_position(c->from, at)
                                : c->from->base + (at - c->windowed);

        if ((dest == TR_KV_WINDOW)
            != (position < to->base && tr_kv_in_window(to, position))) {
            return TARGETS + 1;
        }
    }
    if (dest == TR_KV_NOWHERE) {
        return TARGETS;
    }
    if (dest == TR_KV_WINDOW) {
        return i >= c->tiered && to->window > 0
                       && token_goes(l, &c->a->layout[to->window_layout])
                   ? TR_KV_TIERS_MAX
                   : TARGETS + 1;
    }
    return dest >= 0 && dest < to->n_tiers
                   && token_goes(l, &c->a->layout[to->tier_layout[dest]])
               ? (uint32_t) dest
               : TARGETS + 1;
}

/* Are there pages for tokens [first, end) of a part of `len` entries? */
TR_DEVICE bool
part_has(block_t b, const int32_t *row, int32_t step, uint32_t len,
         uint32_t tokens, uint32_t first, uint32_t end)
{
    uint32_t last;
    bool ok = true;

    if (first >= end) {
        return true;
    }
    last = (end - 1) / tokens;
    if (last >= len) {
        return false;
    }
    for (uint32_t i = first / tokens + b.lane; i <= last; i += b.lanes) {
        ok = ok && row[(int64_t) i * step] >= 0;
    }
    return ok;
}

/* Tokens [0, n) of each tier, or, new, those behind what stays. */
TR_DEVICE bool
tiers_have(block_t b, const compress_t *c, const int32_t *table,
           const tr_kv_seq_t *seq, const uint32_t *n, bool fresh)
{
    const tr_kv_view_t *kv = &c->a->kv;
    bool ok = true;

    for (uint32_t l = 0; l < seq->n_tiers; l++) {
        uint32_t tokens = c->a->layout[seq->tier_layout[l]].tokens;
        uint32_t first = fresh ? tier_stay(c, l) : 0;

        ok = first % tokens == 0
             && part_has(b, table + tr_kv_tier_entry(kv, l, 0),
                         l % 2 == 0 ? 1 : -1, kv->pair_len[l / 2], tokens,
                         first, first + n[l])
             && ok;
    }
    return ok;
}

/* Sinks, and positions [window_from, base) of a ring. */
TR_DEVICE bool
window_complete(block_t b, const compress_t *c, const int32_t *table,
                const tr_kv_seq_t *seq)
{
    const tr_kv_view_t *kv = &c->a->kv;
    uint32_t n = seq->base - seq->window_from, first, turn, tokens, len;

    if (tr_kv_windowed(seq) == 0) {
        return true;
    }
    first = (seq->window_from - seq->sinks) % seq->window;
    turn = first + n > seq->window ? first + n - seq->window : 0;
    first += seq->sinks;
    tokens = c->a->layout[seq->window_layout].tokens;
    len = kv->at_pair[0] - kv->at_window;
    return part_has(b, table + kv->at_window, 1, len, tokens, first,
                    first + n - turn)
           & part_has(b, table + kv->at_window, 1, len, tokens, 0,
                      seq->sinks + turn);
}

/* Counts the lane's sources by target; false: one is not allowed. */
TR_DEVICE bool
lane_count(const compress_t *c, uint32_t first, uint32_t end, uint32_t *count)
{
    bool ok = true;

    for (uint32_t i = 0; i < TARGETS; i++) {
        count[i] = 0;
    }
    for (uint32_t i = first; i < end; i++) {
        uint32_t t = source_target(c, i);

        ok = ok && t <= TARGETS;
        if (t < TARGETS) {
            count[t]++;
        }
    }
    return ok;
}

TR_DEVICE bool
targets_valid(block_t b, const compress_t *c, const index_smem_t *smem)
{
    const tr_kv_seq_t *to = c->to;
    bool ok = tiers_have(b, c, c->to_table, to, smem->total, true)
              & window_complete(b, c, c->to_table, to);

    for (uint32_t l = 0; l < to->n_tiers; l++) {
        if (c->a->layout[to->tier_layout[l]].level.by_channel
            && smem->total[l] % TR_KV_CHANNEL_TOKENS != 0) {
            ok = false;
        }
    }
    return ok
           && (to->window == 0
               || smem->total[TR_KV_TIERS_MAX] == tr_kv_windowed(to));
}

/* Lanes' counts become what is in front of theirs, and totals. */
TR_DEVICE void
sum_targets(block_t b, index_smem_t *smem)
{
    for (uint32_t t = b.lane; t < TARGETS; t += b.lanes) {
        uint32_t sum = 0;

        for (uint32_t i = 0; i < b.lanes; i++) {
            uint32_t n = smem->count[i][t];

            smem->count[i][t] = sum;
            sum += n;
        }
        smem->total[t] = sum;
    }
}

/* Head h of job j. */
TR_DEVICE void
compress_index(const compress_args_t *a, block_t b, index_smem_t *smem,
               uint32_t j, uint32_t h)
{
    uint32_t per, first, end, *count = smem->count[b.lane];
    compress_t c;

    if (a->jobs[j].slot < 0 || compress_stays(a, j, h)) {
        return;
    }
    if (!compress_open(&c, a, j, h)) { /* every lane finds the same */
        if (b.lane == 0) {
            flag_raise(&a->refused[j]);
        }
        return;
    }
    if (b.lane == 0) {
        smem->bad = 0;
    }
    lanes_sync(b);
    per = (c.all + b.lanes - 1) / b.lanes;
    first = b.lane * per < c.all ? b.lane * per : c.all;
    end = c.all - first < per ? c.all : first + per;
    if (!lane_count(&c, first, end, count)
        || !part_has(b, c.table, 1, a->kv.at_window, a->layout[0].tokens, 0,
                     c.job->n_uncompressed)
        || !tiers_have(b, &c, c.table, c.from, c.have, false)
        || !window_complete(b, &c, c.table, c.from)) {
        flag_raise(&smem->bad);
    }
    lanes_sync(b);
    sum_targets(b, smem);
    lanes_sync(b);
    if (!targets_valid(b, &c, smem)) {
        flag_raise(&smem->bad);
    }
    lanes_sync(b);
    if (smem->bad) {
        if (b.lane == 0) {
            flag_raise(&a->refused[j]);
        }
        return;
    }
    for (uint32_t t = 1; t < TR_KV_TIERS_MAX; t++) {
        for (uint32_t u = 0; u < t; u++) { /* tiers before it */
            count[t] += smem->total[u];
        }
    }
    for (uint32_t i = first; i < end; i++) {
        if (c.dest[i] >= 0) {
            c.order[count[c.dest[i]]++] = i;
        }
    }
    for (uint32_t t = b.lane; t < TR_KV_TIERS_MAX; t += b.lanes) {
        c.head->total[t] = smem->total[t];
    }
}

#endif
