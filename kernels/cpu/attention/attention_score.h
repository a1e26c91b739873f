/*
 * What rows at uncompressed positions add to scores, in vectors (after
 * attention_tile.h): the weights that a tile kept, block by block, times what
 * makes probabilities of them, e^(peak - lse) of the row.  Per block the scores
 * are gathered, queries pass in ascending order, the largest of the group is
 * added, and the scores go back to their pages.
 */

#define SCORE_VECS 4u /* sums in registers; twice as many with `recent` */

/* A block while queries pass. */
typedef struct {
    const tr_attention_tile_t *t;
    uint32_t n, width;         /* keys; padded */
    const float *weight;       /* [rows][width] */
    float share[TR_TILE_ROWS]; /* probability = weight * share[row] */
    bool causal;    /* uncompressed: the query at position p sees keys .. */
    uint32_t first; /* .. below p - first; else all */
    float score[BLOCK], recent[BLOCK];
} passing_t;

/* Positions [pos, end) of the tile pass the keys of `vecs` vectors from j on;
 * masked: the first of them do not see all of these.  vecs, masked and recent
 * are constants wherever this is inlined. */
static inline __attribute__((always_inline)) void
score_pass(passing_t *a, uint32_t vecs, bool masked, bool recent, uint32_t j,
           uint32_t pos, uint32_t end)
{
    uint32_t group = a->t->group;
    vec sum[SCORE_VECS], late[SCORE_VECS];

    for (uint32_t v = 0; v < vecs; v++) {
        sum[v] = v_load(a->score + j + v * V_WIDTH);
        late[v] = v_load(a->recent + j + v * V_WIDTH);
    }
    for (uint32_t p = pos; p < end; p++) {
        uint32_t row = (p - a->t->pos) * group;
        const float *w = a->weight + (size_t) row * a->width + j;
        vec best[SCORE_VECS], share = v_set1(a->share[row]);

        for (uint32_t v = 0; v < vecs; v++) {
            best[v] = v_mul(v_load(w + v * V_WIDTH), share);
        }
        for (uint32_t h = 1; h < group; h++) {
            w += a->width;
            share = v_set1(a->share[row + h]);
            for (uint32_t v = 0; v < vecs; v++) {
                best[v] = v_max(best[v], v_mul(v_load(w + v * V_WIDTH), share));
            }
        }
        for (uint32_t v = 0; v < vecs; v++) {
            if (masked) {
                uint32_t seen = p - a->first, at = j + v * V_WIDTH;

                best[v] = v_first(seen > at ? seen - at : 0, best[v],
                                  v_set1(0));
            }
            sum[v] = v_add(sum[v], best[v]);
            if (recent) {
                late[v] = v_add(late[v], best[v]);
            }
        }
    }
    for (uint32_t v = 0; v < vecs; v++) {
        v_store(a->score + j + v * V_WIDTH, sum[v]);
        v_store(a->recent + j + v * V_WIDTH, late[v]);
    }
}

/* The same for all keys. */
static inline __attribute__((always_inline)) void
score_keys(passing_t *a, bool masked, bool recent, uint32_t pos, uint32_t end)
{
    uint32_t j = 0;

    for (; j + SCORE_VECS * V_WIDTH <= a->width; j += SCORE_VECS * V_WIDTH) {
        score_pass(a, SCORE_VECS, masked, recent, j, pos, end);
    }
    for (; j < a->width; j += V_WIDTH) {
        score_pass(a, 1, masked, recent, j, pos, end);
    }
}

static void
score_queries(passing_t *a, uint32_t pos)
{
    uint32_t end = a->t->pos + a->t->n_pos;
    uint32_t recent = a->causal ? a->t->recent_from : end;
    uint32_t clear = a->causal ? a->first + a->n : pos;

    while (pos < end) {
        bool masked = pos < clear, late = pos >= recent;
        uint32_t to = masked && clear < end ? clear : end;

        to = !late && recent < to ? recent : to;
        if (masked) {
            if (late) {
                score_keys(a, true, true, pos, to);
            } else {
                score_keys(a, true, false, pos, to);
            }
        } else if (late) {
            score_keys(a, false, true, pos, to);
        } else {
            score_keys(a, false, false, pos, to);
        }
        pos = to;
    }
}

/* Queries from position pos on pass a block, `to`, of which `k` was kept. */
static void
score_block(passing_t *a, const kept_t *k, const tr_scored_t *to, uint32_t pos)
{
    uint32_t rows = a->t->n_pos * a->t->group;

    a->n = to->n;
    a->weight = k->weight;
    for (uint32_t r = 0; r < rows; r += V_WIDTH) {
        v_store(a->share + r,
                v_exp(v_sub(v_load(k->peak + r), v_load(a->t->lse + r))));
    }
    for (uint32_t i = 0; i < a->width; i++) {
        a->score[i] = i < to->n ? *to->score[i] : 0;
        a->recent[i] = i < to->n && a->causal ? *to->recent[i] : 0;
    }
    score_queries(a, pos);
    for (uint32_t i = 0; i < to->n; i++) {
        *to->score[i] = a->score[i];
        if (a->causal) {
            *to->recent[i] = a->recent[i];
        }
    }
}

static void
score_run(passing_t *a, const tr_run_t *run, float **kept)
{
    tr_scored_t to;

    for (uint32_t b = 0; b < tr_run_blocks(run); b++) {
        kept_t k;

        tr_attention_scored(a->t, run, b, &to);
        if (to.n == 0) {
            continue;
        }
        a->width = pad_block(to.n);
        k = kept_block(a->t, a->width, kept);
        if (tr_run_scored(run, b)) {
            score_block(a, &k, &to, a->t->pos);
        }
    }
}

static void
attention_score(const tr_attention_tile_t *t, float *scratch)
{
    uint32_t end = t->pos + t->n_pos;
    passing_t a = { .t = t };
    float *kept = t->kept;
    tr_scored_t to;

    (void) scratch;
    for (uint32_t i = 0; i < t->n_runs; i++) {
        score_run(&a, &t->run[i], &kept);
    }
    a.causal = true;
    for (uint32_t b = 0; b + 1 < end; b += BLOCK) { /* its own adds nothing */
        kept_t k;

        a.first = b;
        a.width = uncompressed_width(t, b);
        k = kept_block(t, a.width, &kept);
        tr_attention_scored(t, NULL, b, &to);
        score_block(&a, &k, &to, b + 1 > t->pos ? b + 1 : t->pos);
    }
}

/* ---- Quest ---- */

static float
attention_bound(const float *q, uint32_t group, const uint16_t *minmax,
                uint32_t dim)
{
    float best = -INFINITY;

    for (uint32_t h = 0; h < group; h++) {
        vec sum = v_set1(0);
        float x;

        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            vec v = v_load(q + h * dim + d);

            sum = v_add(sum, v_max(v_mul(v, v_from_half(minmax + d)),
                                   v_mul(v, v_from_half(minmax + dim + d))));
        }
        x = v_hsum(sum);
        best = x > best ? x : best;
    }
    return best;
}
