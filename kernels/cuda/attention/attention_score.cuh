/*
 * attention_score.cuh: the rest of attention_generic.cuh: what queries add to
 * scores, the least significant tokens, Quest's choice of pages.
 */
#ifndef TR_CUDA_ATTENTION_SCORE_CUH
#define TR_CUDA_ATTENTION_SCORE_CUH

#include "attention_generic.cuh"

/* ---- scores ------------------------------------------------------------- */

typedef struct {
    float x[TILE_TOKENS * (TR_HEAD_DIM_MAX + 1)];
    float best[ROWS][TILE_TOKENS];
} score_smem_t;

/* Logit less logarithm of the sum, the largest of the group. */
TR_DEVICE float
group_best(const generic_args_t *a, const float *key, uint32_t row,
           uint32_t kv_head)
{
    uint32_t dim = a->kv.head_dim;
    float best = -INFINITY;

    for (uint32_t h = kv_head * a->group; h < (kv_head + 1) * a->group; h++) {
        float sum = 0;

        for (uint32_t d = 0; d < dim; d++) {
            sum += query_load(a, row, h, d) * key[d];
        }
        sum = sum * a->queries.scale
              - a->lse[(size_t) row * a->queries.heads + h];
        best = fmaxf(best, sum);
    }
    return best;
}

/* Position of token k of a tile. */
TR_DEVICE uint32_t
tile_position(const generic_head_t *h, const generic_tile_t *t, uint32_t k)
{
    place_t p = t->at;

    p.at += k;
    return t->run == RUN_UNCOMPRESSED ? h->seq->base + t->index + k
                                      : token_position(p);
}

/* Adds queries [row, row + n), whose probabilities are in shared memory. */
TR_DEVICE void
token_add(const generic_head_t *h, const generic_tile_t *t,
          const score_smem_t *smem, uint32_t k, uint32_t row, uint32_t n)
{
    place_t p = t->at;
    uint32_t position = tile_position(h, t, k);
    float *score, *recent;

    p.at += k;
    score = (float *) (p.page + p.layout->score) + p.at;
    recent = t->run == RUN_UNCOMPRESSED && p.layout->recent
                 ? (float *) (p.page + p.layout->recent) + p.at
                 : NULL;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t query = h->a->rows.row_pos[row + r];

        if (query <= position) { /* its own token adds nothing */
            continue;
        }
        *score += smem->best[r][k];
        if (recent != NULL && query >= h->seq->recent_from) {
            *recent += smem->best[r][k];
        }
    }
}

/* Tile i of a KV head of sequence s; false: there are fewer. */
TR_DEVICE bool
generic_score(const generic_args_t *a, block_t b, score_smem_t *smem,
              uint32_t s, uint32_t kv_head, uint32_t i)
{
    uint32_t dim = a->kv.head_dim;
    generic_head_t head;
    generic_tile_t t;

    if (!head_open(&head, a, s, kv_head) || !head.seq->scored) {
        return false;
    }
    head_query(&head, s, kv_head, head.end - 1);
    if (!head_tile(&head, i, &t)) {
        return false;
    }
    if (t.at.layout->score == 0 || t.index < run_frozen(&head, t.run)) {
        return true;
    }
    tile_load(b, &t, KEY, smem->x);
    lanes_sync(b);
    for (uint32_t row = head.first; row < head.end; row += ROWS) {
        uint32_t n = head.end - row < ROWS ? head.end - row : ROWS;

        for (uint32_t e = b.lane; e < n * TILE_TOKENS; e += b.lanes) {
            uint32_t r = e / TILE_TOKENS, k = e % TILE_TOKENS;

            /* uncompressed tokens that come after the query are nobody's */
            if (t.used >> k & 1
                && (t.run != RUN_UNCOMPRESSED
                    || a->rows.row_pos[row + r]
                           > tile_position(&head, &t, k))) {
                smem->best[r][k] = expf(
                    group_best(a, smem->x + k * (dim + 1), row + r, kv_head));
            }
        }
        lanes_sync(b);
        for (uint32_t k = b.lane; k < TILE_TOKENS; k += b.lanes) {
            if (t.used >> k & 1) {
                token_add(&head, &t, smem, k, row, n);
            }
        }
        lanes_sync(b);
    }
    return true;
}

/* ---- candidates --------------------------------------------------------- */

typedef struct {
    float significance;
    uint32_t index, position;
} least_t;

typedef struct {
    least_t of[LANES_MAX];
} candidate_smem_t;

TR_DEVICE void
least_take(least_t *best, least_t x)
{
    if (x.significance < best->significance
        || (x.significance == best->significance
            && x.position < best->position)) {
        *best = x;
    }
}

TR_DEVICE void
generic_candidates(const generic_args_t *a, block_t b, candidate_smem_t *smem,
                   uint32_t s, uint32_t kv_head)
{
    const least_t none = { INFINITY, 0, UINT32_MAX };
    tr_kv_candidate_t *candidate;
    generic_head_t head;

    if (!head_open(&head, a, s, kv_head) || !head.seq->scored
        || head.end - head.first != 1 || head.seq->n_tiers == 0) {
        return;
    }
    head_query(&head, s, kv_head, head.first);
    candidate = a->kv.candidate
                + tr_kv_head(&a->kv, a->rows.seq_slot[s], a->layer, kv_head)
                      * TR_KV_TIERS_MAX;
    for (uint32_t l = 0; l < head.seq->n_tiers; l++) {
        const tr_kv_layout_t *layout;
        uint32_t n = run_slots(&head, l, &layout);
        least_t best = none;

        for (uint32_t i = run_frozen(&head, l) + b.lane;
             i < n && layout->score != 0; i += b.lanes) {
            place_t p = { tr_kv_page_at(&a->kv,
                                        run_page(&head, l, i / layout->tokens)),
                          layout, i % layout->tokens };
            least_t x = { token_score(p), i, token_position(p) };

            if (!head.seq->by_sum) {
                x.significance = head.n == x.position
                                     ? 0
                                     : div_rn(x.significance,
                                              (float) (head.n - x.position));
            }
            least_take(&best, x);
        }
        smem->of[b.lane] = best;
        lanes_sync(b);
        if (b.lane == 0) {
            for (uint32_t i = 1; i < b.lanes; i++) {
                least_take(&best, smem->of[i]);
            }
            candidate[l].significance = best.significance;
            candidate[l].index = best.index;
        }
        lanes_sync(b);
    }
}

/* ---- Quest -------------------------------------------------------------- */

typedef struct {
    uint32_t count[LANES_MAX];
} choose_smem_t;

/* A float as an integer of the same order; NaN is largest. */
TR_DEVICE uint32_t
order_of(float x)
{
    uint32_t u;

    if (x != x) {
        return UINT32_MAX;
    }
    memcpy(&u, &x, 4);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* An upper bound of the logits in a page; in the order of the CPU's plain C,
 * so that both choose the same pages. */
TR_DEVICE float
page_bound(const generic_args_t *a, uint32_t row, uint32_t kv_head,
           const uint16_t *minmax)
{
    uint32_t dim = a->kv.head_dim;
    float best = -INFINITY;

    for (uint32_t h = kv_head * a->group; h < (kv_head + 1) * a->group; h++) {
        float sum = 0;

        for (uint32_t d = 0; d < dim; d++) {
            float x = query_load(a, row, h, d);

            sum = add_rn(sum, fmaxf(mul_rn(x, float_of(minmax[d])),
                                    mul_rn(x, float_of(minmax[dim + d]))));
        }
        best = sum > best ? sum : best;
    }
    return best;
}

/* How many of x[0, n) are at least `limit`. */
TR_DEVICE uint32_t
count_from(block_t b, choose_smem_t *smem, const uint32_t *x, uint32_t n,
           uint32_t limit)
{
    uint32_t sum = 0;

    for (uint32_t i = b.lane; i < n; i += b.lanes) {
        sum += x[i] >= limit;
    }
    smem->count[b.lane] = sum;
    lanes_sync(b);
    sum = 0;
    for (uint32_t i = 0; i < b.lanes; i++) {
        sum += smem->count[i];
    }
    lanes_sync(b);
    return sum;
}

/* The pages that promise most, in order, the last always among them. */
TR_DEVICE void
generic_choose(const generic_args_t *a, block_t b, choose_smem_t *smem,
               uint32_t s, uint32_t kv_head)
{
    uint32_t n, k, limit = 0, more, at = 0;
    generic_head_t head;
    uint32_t *bound;
    int32_t *chosen;

    if (!head_open(&head, a, s, kv_head) || !quest_chooses(&head)) {
        return;
    }
    n = (head.n - head.seq->base) / a->layout[0].tokens; /* before the last */
    k = head.seq->read_pages - 1;
    bound = a->bound + ((size_t) s * a->kv.kv_heads + kv_head) * a->pages;
    chosen = a->chosen + ((size_t) s * a->kv.kv_heads + kv_head) * a->pages;
    for (uint32_t i = b.lane; i < n; i += b.lanes) {
        const uint8_t *page = tr_kv_page_at(&a->kv, head.table[i]);

        bound[i] = order_of(
            page_bound(a, head.first, kv_head,
                       (const uint16_t *) (page + a->layout[0].minmax)));
    }
    lanes_sync(b);
    for (uint32_t bit = 1u << 31; bit > 0; bit >>= 1) { /* the k-th largest */
        if (k > 0 && count_from(b, smem, bound, n, limit | bit) >= k) {
            limit |= bit;
        }
    }
    more = limit == UINT32_MAX ? 0 : count_from(b, smem, bound, n, limit + 1);
    if (b.lane == 0) {
        uint32_t equal = k - more; /* the first of equals */

        for (uint32_t i = 0; i < n && k > 0; i++) {
            if (bound[i] > limit || (bound[i] == limit && equal > 0)) {
                equal -= bound[i] == limit;
                chosen[at++] = head.table[i];
            }
        }
        chosen[at] = head.table[n];
    }
}

#endif
