/*
 * What rows at dense positions add to scores, in vectors (after
 * attention_tile.h): a block of up to 64 keys stays, queries stream past it in
 * ascending order, up to V_ROWS positions at a time.
 *
 * The largest probability in the query group is e^max(logit - lse), since e^x
 * grows with x: one exponential for the group.
 */

/* Scores of a block while queries pass. */
typedef struct {
    const tr_attention_score_t *t;
    uint32_t width;    /* keys, padded */
    const float *keys; /* [dim][BLOCK] */
    float *logits;     /* [V_ROWS][BLOCK] */
    float *best;       /* the same: maximum of logit - lse over the group */
    float score[BLOCK], recent[BLOCK];
} passing_t;

/* best = max(best, scale * logits - lse) for n positions of query head h and
 * the first `width` keys. */
static inline void
score_head(passing_t *a, uint32_t pos, uint32_t n, uint32_t width, uint32_t h)
{
    const tr_attention_score_t *t = a->t;
    uint32_t dim = t->kv->head_dim;
    size_t row = pos - t->pos;

    product(n, width, dim, t->q + row * t->ldq + (size_t) h * dim, t->ldq,
            a->keys, BLOCK, a->logits, BLOCK, NULL);
    for (uint32_t i = 0; i < n; i++) {
        vec lse = v_set1(t->lse[(row + i) * t->ldl + h]);
        vec scale = v_set1(t->scale);
        float *best = a->best + i * BLOCK;

        for (uint32_t j = 0; j < width; j += V_WIDTH) {
            vec x = v_sub(v_mul(v_load(a->logits + i * BLOCK + j), scale), lse);

            v_store(best + j, h == 0 ? x : v_max(v_load(best + j), x));
        }
    }
}

/* Adds the query at position pos; it sees the first `seen` keys. */
static inline void
score_add(passing_t *a, uint32_t pos, const float *best, uint32_t seen)
{
    bool recent = pos >= a->t->recent_from;

    for (uint32_t j = 0; j < seen; j += V_WIDTH) {
        vec p = v_exp(v_load(best + j));

        if (seen < j + V_WIDTH) {
            p = v_first(seen - j, p, v_set1(0));
        }
        v_store(a->score + j, v_add(v_load(a->score + j), p));
        if (recent) {
            v_store(a->recent + j, v_add(v_load(a->recent + j), p));
        }
    }
}

static void
score_queries(passing_t *a, uint32_t n_keys)
{
    const tr_attention_score_t *t = a->t;
    uint32_t end = t->pos + t->n_pos, pos = t->pos;

    if (t->run == NULL && pos <= t->first) { /* its own token adds nothing */
        pos = t->first + 1;
    }
    while (pos < end) {
        uint32_t n = end - pos < V_ROWS ? end - pos : V_ROWS;
        uint32_t width = a->width;

        if (t->run == NULL && pos + n - 1 - t->first < n_keys) {
            width = pad_block(pos + n - 1 - t->first);
        }
        for (uint32_t h = 0; h < t->group; h++) {
            score_head(a, pos, n, width, h);
        }
        for (uint32_t i = 0; i < n; i++, pos++) {
            uint32_t seen = n_keys;

            if (t->run == NULL && pos - t->first < n_keys) {
                seen = pos - t->first;
            }
            score_add(a, pos, a->best + i * BLOCK, seen);
        }
    }
}

static void
attention_score(const tr_attention_score_t *t, float *scratch)
{
    uint32_t dim = t->kv->head_dim;
    float *logits = scratch + (size_t) BLOCK * dim;
    passing_t a = { .t = t,
                    .keys = scratch,
                    .logits = logits,
                    .best = logits + V_ROWS * BLOCK };
    tr_scored_t to;

    tr_attention_scored(t, &to);
    a.width = pad_block(to.n);
    if (t->run != NULL) {
        load_run_keys(t->run->layout, &to.block, scratch);
    } else {
        for (uint32_t i = to.n; i < a.width; i++) {
            to.key[i] = zero_row;
        }
        load_keys(to.key, NULL, a.width, dim, scratch);
    }
    for (uint32_t i = 0; i < to.n; i++) {
        a.score[i] = *to.score[i];
        a.recent[i] = t->run == NULL ? *to.recent[i] : 0;
    }
    score_queries(&a, to.n);
    for (uint32_t i = 0; i < to.n; i++) {
        *to.score[i] = a.score[i];
        if (t->run == NULL) {
            *to.recent[i] = a.recent[i];
        }
    }
}

/* ---- Quest ---- */

static float
attention_bound(const float *q, uint32_t group, const uint16_t *digest,
                uint32_t dim)
{
    float best = -INFINITY;

    for (uint32_t h = 0; h < group; h++) {
        vec sum = v_set1(0);
        float x;

        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            vec v = v_load(q + h * dim + d);

            sum = v_add(sum, v_max(v_mul(v, v_from_half(digest + d)),
                                   v_mul(v, v_from_half(digest + dim + d))));
        }
        x = v_hsum(sum);
        best = x > best ? x : best;
    }
    return best;
}
