/*
 * What a row over tiers and window adds to their scores, and the least
 * significant token of each tier, in vectors (after vec_exp.h): one pass over
 * the logits that the parts left behind.
 */

/* The least significant token so far, lane by lane. */
typedef struct {
    vec significance;
    veci position, slot;
} least_t;

/* Lanes s on of a tile. */
static inline void
score_lanes(const tr_attention_row_t *t, const tr_kv_layout_t *l,
            const tr_tile_iterator_t *at, uint32_t s, const float *lse,
            least_t *least)
{
    vmask m = vm_bits(at->mask >> s), better, own;
    float *scores = (float *) (at->page + l->score) + at->first + s;
    const uint8_t *positions = at->page + l->position
                               + (at->first + s) * l->position_bytes;
    const float *logits = t->logits + (size_t) at->tile * 16 + s;
    vec best = v_sub(v_load(logits), v_set1(lse[0])), score, x;
    veci position = l->position_bytes == 2 ? vi_load_short(m, positions)
                                           : vi_load_some(m, positions);
    veci later = vi_sub(vi_set1(t->position), position);

    for (uint32_t h = 1; h < t->group; h++) {
        best = v_max(best,
                     v_sub(v_load(logits + h * t->stride), v_set1(lse[h])));
    }
    own = vi_less(later, vi_set1(1));
    x = v_select(own, v_set1(0), v_exp(best));
    score = v_add(v_load_some(m, scores), x);
    v_store_some(m, scores, score);
    x = score;
    if (!t->by_sum) {
        x = v_select(own, v_set1(0), v_div(score, vi_float(later)));
    }
    better = vm_or(v_less(x, least->significance),
                   vm_and(v_equal(x, least->significance),
                          vi_less(position, least->position)));
    better = vm_and(better, m);
    least->significance = v_select(better, x, least->significance);
    least->position = vi_select(better, position, least->position);
    least->slot = vi_select(better, vi_add(vi_set1(at->slot + s), vi_lanes()),
                            least->slot);
}

static tr_kv_candidate_t
least_of(const least_t *least)
{
    float significance[V_WIDTH];
    int32_t position[V_WIDTH], slot[V_WIDTH];
    uint32_t best = 0;

    v_store(significance, least->significance);
    vi_store(position, least->position);
    vi_store(slot, least->slot);
    for (uint32_t i = 1; i < V_WIDTH; i++) {
        if (significance[i] < significance[best]
            || (significance[i] == significance[best]
                && position[i] < position[best])) {
            best = i;
        }
    }
    return (tr_kv_candidate_t){ significance[best], (uint32_t) slot[best] };
}

static void
attention_row_score(const tr_attention_row_t *t, const float *lse)
{
    const least_t none = { v_set1(INFINITY), vi_set1(INT32_MAX), vi_set1(0) };
    uint32_t parts = tr_row_parts(t);
    least_t least = none;

    for (uint32_t i = 0; i < parts; i++) {
        tr_tile_iterator_t at = { 0 };
        tr_part_t part;

        tr_row_part(t, i, &part);
        if (part.run->layout->score == 0) {
            continue;
        }
        if (part.page == 0) {
            least = none;
        }
        while (tr_part_next(t, &part, &at)) {
            for (uint32_t s = 0; s < 16 && at.slot >= part.run->frozen;
                 s += V_WIDTH) {
                score_lanes(t, part.run->layout, &at, s, lse, &least);
            }
        }
        if (part.run->tier >= 0) {
            t->candidate[part.run->tier] = least_of(&least);
        }
    }
}
