/*
 * equalise.h: which channels stand out, and by how much they move.
 */
#include "equalise.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

/* Times the median of a head.  In models/pocket nothing is above 1.7; from here
 * on the least factor is 4. */
#define STANDS_OUT 3.0f

/* Factors are at most 2^8, and queries stay below 2^14, a quarter of what FP16
 * can hold; so do the elements of Wo. */
#define EXPONENT_MAX 8
#define LIMIT 0x1p14f

/* The tensors of a layer's attention; NULL: it has none. */
typedef struct {
    const tr_tensor_t *norm, *q, *k, *v, *o;
    const tr_tensor_t *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
} layer_t;

/* Work on a layer. */
typedef struct {
    const tr_recipe_t *recipe;
    const layer_t *tensors;
    tr_equalise_t *e;
    uint32_t layer;
    float *gain;   /* [hidden] of the norm in front */
    float *size;   /* [kv_heads][head_dim] of keys or values, then of units */
    float *sorted; /* [head_dim] */
} work_t;

/* ---- channels that must have the same factor ----------------------------- */

/* Channels of a head that RoPE rotates, the first of them. */
static uint32_t
rotated(const work_t *w)
{
    return w->recipe->layer[w->layer].rope == TR_ROPE_NONE
               ? 0
               : w->recipe->head_dim;
}

/* Of keys: RoPE's pairs first, then channels by themselves. */
static uint32_t
units(const work_t *w)
{
    return w->recipe->head_dim - rotated(w) / 2;
}

/* The channels of a unit; the same twice where it has only one. */
static void
unit_channels(const work_t *w, uint32_t unit, uint32_t channel[2])
{
    uint32_t half = rotated(w) / 2;

    channel[0] = unit < half ? unit : unit + half;
    channel[1] = unit + half;
}

/* ---- how large a channel is ---------------------------------------------- */

/* Of one row of W diag(gain). */
static float
row_norm(const tr_tensor_t *t, uint32_t row, const float *gain, uint32_t n)
{
    double sum = 0;

    for (uint32_t j = 0; j < n; j++) {
        double x = (double) tr_float_load(t->data, (size_t) row * n + j,
                                          t->dtype)
                   * gain[j];

        sum += x * x;
    }
    return (float) sqrt(sum);
}

static float
element(const tr_tensor_t *t, uint32_t i)
{
    return t == NULL ? 0 : tr_float_load(t->data, i, t->dtype);
}

/* size[kv_heads * head_dim] of what a projection and its bias give: about the
 * root of the mean square of each channel. */
static void
channel_sizes(const work_t *w, const tr_tensor_t *weight,
              const tr_tensor_t *bias)
{
    const tr_recipe_t *r = w->recipe;

    for (uint32_t i = 0; i < r->kv_heads * r->head_dim; i++) {
        w->size[i] = hypotf(row_norm(weight, i, w->gain, r->hidden),
                            element(bias, i));
    }
}

/* What a norm of each head makes of these sizes. */
static void
normalise_sizes(const work_t *w, const tr_tensor_t *weight)
{
    uint32_t dim = w->recipe->head_dim;

    for (uint32_t h = 0; h < w->recipe->kv_heads; h++) {
        float *size = w->size + h * dim;
        double sum = 0;

        for (uint32_t d = 0; d < dim; d++) {
            sum += (double) size[d] * size[d];
        }
        for (uint32_t d = 0; sum > 0 && d < dim; d++) {
            size[d] *= (float) (fabsf(element(weight, d)) / sqrt(sum / dim));
        }
    }
}

static int
by_size(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return (x > y) - (x < y);
}

/* 0: it does not stand out. */
static int
exponent(float size, float median)
{
    float ratio = size / median;
    int e;

    if (!(median > 0) || !(ratio >= STANDS_OUT)) {
        return 0;
    }
    e = isfinite(ratio) ? (int) lrintf(log2f(ratio)) : EXPONENT_MAX;
    return e < EXPONENT_MAX ? e : EXPONENT_MAX;
}

static float
median(const work_t *w, const float *size, uint32_t n)
{
    memcpy(w->sorted, size, n * sizeof(float));
    qsort(w->sorted, n, sizeof(float), by_size);
    return (w->sorted[(n - 1) / 2] + w->sorted[n / 2]) / 2;
}

/* ---- how far it may move ------------------------------------------------- */

/* The most that a channel of a query can be: the norm in front leaves a vector
 * of length sqrt(hidden), a norm of each head one of sqrt(head_dim). */
static float
query_most(const work_t *w, uint32_t row)
{
    const tr_recipe_t *r = w->recipe;

    if (w->tensors->q_norm != NULL) {
        return sqrtf((float) r->head_dim)
               * fabsf(element(w->tensors->q_norm, row % r->head_dim));
    }
    return sqrtf((float) r->hidden)
               * row_norm(w->tensors->q, row, w->gain, r->hidden)
           + fabsf(element(w->tensors->q_bias, row));
}

static float
column_most(const work_t *w, uint32_t column)
{
    const tr_recipe_t *r = w->recipe;
    size_t n = (size_t) r->query_heads * r->head_dim;
    float most = 0;

    for (uint32_t i = 0; i < r->hidden; i++) {
        most = fmaxf(most,
                     fabsf(tr_float_load(w->tensors->o->data, i * n + column,
                                         w->tensors->o->dtype)));
    }
    return most;
}

static int
lowered(int e, float most)
{
    while (e > 0 && !(ldexpf(most, e) < LIMIT)) {
        e--;
    }
    return e;
}

/* e, or less where a query of the KV head's group would become too large. */
static int
key_exponent(const work_t *w, uint32_t head, const uint32_t channel[2], int e)
{
    uint32_t dim = w->recipe->head_dim;
    uint32_t group = w->recipe->query_heads / w->recipe->kv_heads;

    for (uint32_t g = 0; e > 0 && g < group; g++) {
        uint32_t row = (head * group + g) * dim;

        e = lowered(e, hypotf(query_most(w, row + channel[0]),
                              query_most(w, row + channel[1])));
    }
    return e;
}

/* The same for elements of Wo. */
static int
value_exponent(const work_t *w, uint32_t head, uint32_t channel, int e)
{
    uint32_t dim = w->recipe->head_dim;
    uint32_t group = w->recipe->query_heads / w->recipe->kv_heads;

    for (uint32_t g = 0; e > 0 && g < group; g++) {
        e = lowered(e, column_most(w, (head * group + g) * dim + channel));
    }
    return e;
}

/* ---- a layer ------------------------------------------------------------- */

/* Where a table has the exponents of a head. */
static int8_t *
head_of(const work_t *w, int8_t *table, uint32_t head)
{
    const tr_recipe_t *r = w->recipe;

    return table + ((size_t) w->layer * r->kv_heads + head) * r->head_dim;
}

static void
choose_keys(const work_t *w)
{
    uint32_t dim = w->recipe->head_dim, n = units(w), channel[2];

    channel_sizes(w, w->tensors->k, w->tensors->k_bias);
    if (w->tensors->k_norm != NULL) {
        normalise_sizes(w, w->tensors->k_norm);
    }
    for (uint32_t h = 0; h < w->recipe->kv_heads; h++) {
        float *size = w->size + h * dim, middle;
        int8_t *e = head_of(w, w->e->key, h);

        for (uint32_t u = 0; u < n; u++) { /* unit u is at or before both */
            unit_channels(w, u, channel);
            size[u] = hypotf(size[channel[0]], size[channel[1]]);
        }
        middle = median(w, size, n);
        for (uint32_t u = 0; u < n; u++) {
            unit_channels(w, u, channel);
            e[channel[0]] = e[channel[1]] = (int8_t)
                key_exponent(w, h, channel, exponent(size[u], middle));
        }
    }
}

/* Heads that share a norm's weights move together, as far as all of them may. */
static void
share_keys(const work_t *w)
{
    uint32_t heads = w->recipe->kv_heads;

    for (uint32_t d = 0; d < w->recipe->head_dim; d++) {
        int8_t least = EXPONENT_MAX;

        for (uint32_t h = 0; h < heads; h++) {
            int8_t e = head_of(w, w->e->key, h)[d];

            least = e < least ? e : least;
        }
        for (uint32_t h = 0; h < heads; h++) {
            head_of(w, w->e->key, h)[d] = least;
        }
    }
}

static void
choose_values(const work_t *w)
{
    uint32_t dim = w->recipe->head_dim;

    channel_sizes(w, w->tensors->v, w->tensors->v_bias);
    for (uint32_t h = 0; h < w->recipe->kv_heads; h++) {
        const float *size = w->size + h * dim;
        int8_t *e = head_of(w, w->e->value, h);
        float middle = median(w, size, dim);

        for (uint32_t d = 0; d < dim; d++) {
            e[d] = (int8_t) value_exponent(w, h, d, exponent(size[d], middle));
        }
    }
}

typedef struct {
    tr_equalise_t *e;
    const layer_t *layers;
    atomic_int failed; /* no memory */
} job_t;

static void
choose_layers(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    job_t *job = arg;
    const tr_recipe_t *r = job->e->recipe;
    size_t heads = (size_t) r->kv_heads * r->head_dim;
    float *memory = malloc((r->hidden + heads + r->head_dim) * sizeof(float));

    (void) worker;
    if (memory == NULL) {
        atomic_store(&job->failed, 1);
        return;
    }
    for (uint32_t l = first; l < end; l++) {
        work_t w = { r,
                     &job->layers[l],
                     job->e,
                     l,
                     memory,
                     memory + r->hidden,
                     memory + r->hidden + heads };

        for (uint32_t i = 0; i < r->hidden; i++) {
            w.gain[i] = w.tensors->norm != NULL ? element(w.tensors->norm, i)
                                                : 1;
        }
        choose_keys(&w);
        if (w.tensors->k_norm != NULL) {
            share_keys(&w);
        }
        choose_values(&w);
        tr_safetensors_release(w.tensors->k);
        tr_safetensors_release(w.tensors->v);
    }
    free(memory);
}

/* ---- which models --------------------------------------------------------- */

static bool
layer_known(const tr_layer_recipe_t *l)
{
    return l->qk_norm != TR_QK_NORM_ROW;
}

bool
tr_equalise_can(const tr_model_config_t *c)
{
    const tr_recipe_t *r = &c->recipe;
    uint32_t at = 0, queries = r->query_heads * r->head_dim;
    tr_model_tensor_t t;

    if (r->rotary_dim != r->head_dim || r->rope_interleaved
        || r->norm_plus_one) {
        return false;
    }
    for (uint32_t l = 0; l < r->layers; l++) {
        if (!layer_known(&r->layer[l])) {
            return false;
        }
    }
    while (tr_model_tensor_next(c, &at, &t)) {
        if (t.part == TR_PART_QKV && t.rows > queries) {
            return false;
        }
    }
    return true;
}

/* ---- the table ----------------------------------------------------------- */

/* Where a layer's tensors have this one; NULL: of no interest. */
static const tr_tensor_t **
place(const tr_recipe_t *r, layer_t *l, const tr_model_tensor_t *t)
{
    uint32_t q = r->query_heads * r->head_dim;
    bool query = t->row < q, key = t->row == q;

    switch (t->part) {
    case TR_PART_ATTN_NORM:
        return &l->norm;
    case TR_PART_QKV:
        return query ? &l->q : key ? &l->k : &l->v;
    case TR_PART_QKV_BIAS:
        return query ? &l->q_bias : key ? &l->k_bias : &l->v_bias;
    case TR_PART_O:
        return &l->o;
    case TR_PART_Q_NORM:
        return &l->q_norm;
    case TR_PART_K_NORM:
        return &l->k_norm;
    default:
        return NULL;
    }
}

static tr_status_t
find_layers(const tr_model_config_t *c, const tr_safetensors_t *st,
            layer_t *layers, tr_error_t *err)
{
    tr_model_tensor_t t;
    tr_status_t rc = TR_OK;
    uint32_t at = 0;

    while (rc == TR_OK && tr_model_tensor_next(c, &at, &t)) {
        const tr_tensor_t **where = tr_part_layered(t.part)
                                        ? place(&c->recipe, &layers[t.layer],
                                                &t)
                                        : NULL;

        if (where != NULL) {
            rc = tr_model_tensor_find(st, &t, where, err);
        }
    }
    return rc;
}

/* Counts what moves. */
static void
sum_up(tr_equalise_t *e)
{
    const tr_recipe_t *r = e->recipe;
    size_t n = (size_t) r->kv_heads * r->head_dim;

    for (uint32_t l = 0; l < r->layers; l++) {
        bool pairs = r->layer[l].rope != TR_ROPE_NONE;
        uint32_t keys = 0;

        for (size_t i = l * n; i < (l + 1) * n; i++) {
            keys += e->key[i] != 0;
            e->channels += e->value[i] != 0;
            e->largest = e->key[i] > e->largest ? e->key[i] : e->largest;
            e->largest = e->value[i] > e->largest ? e->value[i] : e->largest;
        }
        e->pairs += pairs ? keys / 2 : keys;
    }
    tr_log(e->largest != 0 ? TR_LEVEL_NOTICE : TR_LEVEL_INFO,
           "kv_equalise key_pairs=%u value_channels=%u largest_factor=%d",
           e->pairs, e->channels, 1 << e->largest);
}

tr_status_t
tr_equalise_choose(const tr_model_config_t *c, const tr_safetensors_t *st,
                   tr_stream_t stream, tr_equalise_t **out, tr_error_t *err)
{
    const tr_recipe_t *r = &c->recipe;
    size_t n = (size_t) r->layers * r->kv_heads * r->head_dim;
    tr_equalise_t *e = calloc(1, sizeof(*e) + 2 * n);
    layer_t *layers = calloc(r->layers, sizeof(*layers));
    job_t job = { .e = e, .layers = layers };
    tr_status_t rc = TR_OK;

    if (e == NULL || layers == NULL) {
        atomic_store(&job.failed, 1);
    } else {
        e->recipe = r;
        e->key = (int8_t *) (e + 1);
        e->value = e->key + n;
        rc = find_layers(c, st, layers, err);
        if (rc == TR_OK) {
            tr_thread_pool_run(stream.thread_pool, stream.threads, r->layers, 1,
                               choose_layers, &job);
        }
    }
    free(layers);
    if (atomic_load(&job.failed)) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "kv_equalise", "out of memory");
    }
    if (rc != TR_OK) {
        tr_equalise_free(e);
        return rc;
    }
    sum_up(e);
    *out = e;
    return TR_OK;
}

void
tr_equalise_free(tr_equalise_t *e)
{
    free(e);
}

/* ---- weights ------------------------------------------------------------- */

/* How a tensor takes the factors of a table: [kv_heads][head_dim] of its layer,
 * by 2^(sign * e); NULL: it does not. */
typedef struct {
    const int8_t *table;
    int sign;
    uint32_t group; /* heads of the tensor that share one of the table */
    bool columns;   /* not rows */
} moves_t;

static moves_t
moves(const tr_equalise_t *e, const tr_model_tensor_t *t)
{
    const tr_recipe_t *r = e->recipe;
    size_t n = (size_t) r->kv_heads * r->head_dim;
    const int8_t *key = e->key + t->layer * n, *value = e->value + t->layer * n;
    uint32_t q = r->query_heads * r->head_dim, group = q / (uint32_t) n;
    bool normed = r->layer[t->layer].qk_norm == TR_QK_NORM_HEAD;

    switch (t->part) {
    case TR_PART_QKV:
    case TR_PART_QKV_BIAS:
        if (t->row > q) {
            return (moves_t){ value, -1, 1, false };
        }
        return (moves_t){ normed ? NULL : key, t->row < q ? 1 : -1,
                          t->row < q ? group : 1, false };
    case TR_PART_Q_NORM:
        return (moves_t){ key, 1, 1, false };
    case TR_PART_K_NORM:
        return (moves_t){ key, -1, 1, false };
    case TR_PART_O:
        return (moves_t){ value, 1, group, true };
    default:
        return (moves_t){ NULL, 0, 1, false };
    }
}

bool
tr_equalise_has(const tr_equalise_t *e, const tr_model_tensor_t *t)
{
    const int8_t *table = e != NULL ? moves(e, t).table : NULL;
    uint32_t n = table != NULL ? e->recipe->kv_heads * e->recipe->head_dim : 0;

    for (uint32_t i = 0; i < n; i++) {
        if (table[i] != 0) {
            return true;
        }
    }
    return false;
}

/* Of a row or column. */
static float
factor_of(const tr_equalise_t *e, const moves_t *m, size_t at)
{
    uint32_t i = (uint32_t) at, dim = e->recipe->head_dim;
    int power = m->sign * m->table[i / dim / m->group * dim + i % dim];

    return ldexpf(1, power);
}

void
tr_equalise_scale(const tr_equalise_t *e, const tr_model_tensor_t *t,
                  size_t first, size_t n, float *x)
{
    moves_t m = moves(e, t);
    size_t columns = t->columns, some;

    for (size_t i = 0; m.table != NULL && i < n; i += some) {
        size_t column = (first + i) % columns;
        float factor = m.columns ? 1 : factor_of(e, &m, (first + i) / columns);

        some = n - i < columns - column ? n - i : columns - column;
        for (size_t j = 0; m.columns && j < some; j++) {
            x[i + j] *= factor_of(e, &m, column + j);
        }
        for (size_t j = 0; factor != 1 && j < some; j++) {
            x[i + j] *= factor;
        }
    }
}
