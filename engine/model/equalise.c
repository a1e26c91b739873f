/*
 * equalise.h: which channels stand out, and by how much they move.
 */
#include "equalise.h"

#include "centre.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

/* Times the median of a head.  In models/pocket nothing is above 1.7. */
#define STANDS_OUT 3.0f

/* Factors are at most 2^8, and queries stay below 2^14, a quarter of what FP16
 * can hold; so do the elements of Wo. */
#define EXPONENT_MAX 8
#define LIMIT 0x1p14f

/* A tensor, or a part of one, in the order that the model has; tensor NULL:
 * there is none. */
typedef struct {
    const tr_tensor_t *tensor;
    tr_model_tensor_t t;
    uint32_t row; /* of the tensor, where the part begins */
} source_t;

/* Those of a layer's attention. */
typedef struct {
    source_t norm, q, k, v, o;
    source_t q_bias, k_bias, v_bias, q_norm, k_norm;
} layer_t;

/* Work on a layer. */
typedef struct {
    const tr_recipe_t *recipe;
    const layer_t *tensors;
    tr_equalise_t *e;
    uint32_t layer;
    float *left;   /* [head_dim / 2] of key biases, by pair (centre.h) */
    float *gain;   /* [hidden] of the norm in front */
    float *size;   /* [kv_heads][head_dim] of keys or values, then of units */
    float *read;   /* [query_heads][head_dim] of what reads them */
    float *sorted; /* [head_dim] */
} work_t;

/* ---- channels that must have the same factor ----------------------------- */

/* Channels of the first half of a head that RoPE turns with one of the second
 * half, the first of them: i with i + head_dim / 2, as the model has them
 * whatever the files' order. */
static uint32_t
pairs(const tr_recipe_t *r, uint32_t layer)
{
    return r->layer[layer].rope == TR_ROPE_NONE ? 0 : r->rotary_dim / 2;
}

/* Of keys: RoPE's pairs first, then channels by themselves. */
static uint32_t
units(const work_t *w)
{
    return w->recipe->head_dim - pairs(w->recipe, w->layer);
}

/* The channels of a unit; the same twice where it has only one. */
static void
unit_channels(const work_t *w, uint32_t unit, uint32_t channel[2])
{
    uint32_t half = w->recipe->head_dim / 2, n = pairs(w->recipe, w->layer);

    if (unit < n) {
        channel[0] = unit;
        channel[1] = unit + half;
    } else { /* the rest of both halves */
        channel[0] = channel[1] = unit < half ? unit : unit + n;
    }
}

/* ---- how large a channel is ---------------------------------------------- */

/* Which row of the file it is. */
static size_t
file_row(const work_t *w, const source_t *s, uint32_t row)
{
    return tr_model_tensor_source(w->recipe, &s->t, s->row + row);
}

/* Of one row of W diag(gain). */
static float
row_norm(const work_t *w, const source_t *s, uint32_t row)
{
    size_t n = w->recipe->hidden, from = file_row(w, s, row) * n;
    double sum = 0;

    for (size_t j = 0; j < n; j++) {
        double x = (double) tr_tensor_at(s->tensor, from + j) * w->gain[j];

        sum += x * x;
    }
    return (float) sqrt(sum);
}

/* Of a vector, 0 without. */
static float
element(const work_t *w, const source_t *s, uint32_t i)
{
    return s->tensor == NULL ? 0 : tr_tensor_at(s->tensor, file_row(w, s, i));
}

/* Of a norm's weights, 1 without. */
static float
gain_at(const work_t *w, const source_t *s, uint32_t i)
{
    return s->tensor == NULL
               ? 1
               : element(w, s, i) + (w->recipe->norm_plus_one ? 1.0f : 0.0f);
}

/* size[n] of what a projection and its bias give: about the root of the mean
 * square of each channel.  left: NULL, or how much of the bias a pair keeps. */
static void
channel_sizes(const work_t *w, const source_t *weight, const source_t *bias,
              const float *left, uint32_t n, float *sizes)
{
    uint32_t half = w->recipe->head_dim / 2;

    for (uint32_t i = 0; i < n; i++) {
        sizes[i] = hypotf(row_norm(w, weight, i),
                          element(w, bias, i) * (left ? left[i % half] : 1));
    }
}

/* What a norm makes of all these sizes: of each head with the same weights, or
 * of all of them. */
static void
normalise_sizes(const work_t *w, const source_t *weight, uint32_t all,
                float *sizes)
{
    uint32_t n = weight->t.rows;

    for (uint32_t at = 0; at < all; at += n) {
        float *size = sizes + at;
        double sum = 0;

        for (uint32_t d = 0; d < n; d++) {
            sum += (double) size[d] * size[d];
        }
        for (uint32_t d = 0; sum > 0 && d < n; d++) {
            size[d] *= (float) (fabsf(gain_at(w, weight, d)) / sqrt(sum / n));
        }
    }
}

static int
by_size(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return (x > y) - (x < y);
}

static bool
stands_out(float size, float median)
{
    return median > 0 && size / median >= STANDS_OUT;
}

/* Of a channel that stands out: size and read over the medians of their heads.
 * equalise.h says why it is the root. */
static int
exponent(float size, float read)
{
    float e = log2f(size / read) / 2;

    return isnan(e) || e < 0  ? 0
           : e < EXPONENT_MAX ? (int) lrintf(e)
                              : EXPONENT_MAX;
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
 * of length sqrt(hidden), a norm of n channels one of sqrt(n).  Without any
 * nobody knows. */
static float
query_most(const work_t *w, uint32_t row)
{
    const layer_t *l = w->tensors;
    uint32_t n = l->q_norm.t.rows; /* head_dim, or all query heads */

    if (l->q_norm.tensor != NULL) {
        return sqrtf((float) n) * fabsf(gain_at(w, &l->q_norm, row % n));
    }
    if (l->norm.tensor == NULL) {
        return INFINITY;
    }
    return sqrtf((float) w->recipe->hidden) * row_norm(w, &l->q, row)
           + fabsf(element(w, &l->q_bias, row));
}

static float
column_most(const work_t *w, uint32_t column)
{
    const tr_recipe_t *r = w->recipe;
    size_t n = (size_t) r->query_heads * r->head_dim;
    float most = 0;

    for (uint32_t i = 0; i < r->hidden; i++) {
        most = fmaxf(most,
                     fabsf(tr_tensor_at(w->tensors->o.tensor, i * n + column)));
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

/* Sizes of keys or queries of all n channels. */
static void
sizes(const work_t *w, const source_t *weight, const source_t *bias,
      const float *left, const source_t *norm, uint32_t n, float *size)
{
    channel_sizes(w, weight, bias, left, n, size);
    if (norm->tensor != NULL) {
        normalise_sizes(w, norm, n, size);
    }
}

/* read[units] of a KV head: what its query heads have there, whose sizes stand
 * in w->read. */
static const float *
read_units(const work_t *w, uint32_t head)
{
    uint32_t dim = w->recipe->head_dim, channel[2];
    uint32_t group = w->recipe->query_heads / w->recipe->kv_heads;
    float *read = w->read + (size_t) head * group * dim;

    for (uint32_t u = 0; u < units(w); u++) { /* u is at or before both */
        float sum = 0;

        unit_channels(w, u, channel);
        for (uint32_t g = 0; g < group; g++) {
            float *of = read + (size_t) g * dim;

            sum = hypotf(sum, hypotf(of[channel[0]], of[channel[1]]));
        }
        read[u] = sum;
    }
    return read;
}

static void
choose_keys(const work_t *w)
{
    const layer_t *l = w->tensors;
    uint32_t dim = w->recipe->head_dim, n = units(w), channel[2];
    bool have_read = false;

    sizes(w, &l->k, &l->k_bias, w->left, &l->k_norm, w->recipe->kv_heads * dim,
          w->size);
    for (uint32_t h = 0; h < w->recipe->kv_heads; h++) {
        float *size = w->size + h * dim, middle, middle_read = 0;
        int8_t *e = head_of(w, w->e->key, h);
        const float *read = NULL;

        for (uint32_t u = 0; u < n; u++) { /* u is at or before both */
            unit_channels(w, u, channel);
            size[u] = hypotf(size[channel[0]], size[channel[1]]);
        }
        middle = median(w, size, n);
        for (uint32_t u = 0; u < n; u++) {
            if (!stands_out(size[u], middle)) {
                continue;
            }
            if (!have_read) { /* most layers of most models need none */
                sizes(w, &l->q, &l->q_bias, NULL, &l->q_norm,
                      w->recipe->query_heads * dim, w->read);
                have_read = true;
            }
            if (read == NULL) {
                read = read_units(w, h);
                middle_read = median(w, read, n);
            }
            unit_channels(w, u, channel);
            e[channel[0]] = e[channel[1]] = (int8_t)
                key_exponent(w, h, channel,
                             exponent(size[u] / middle, read[u] / middle_read));
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

/* w->read[query_heads * head_dim]: the norm of each column of Wo. */
static void
column_sizes(const work_t *w)
{
    const tr_recipe_t *r = w->recipe;
    size_t n = (size_t) r->query_heads * r->head_dim;

    memset(w->read, 0, n * sizeof(float));
    for (uint32_t i = 0; i < r->hidden; i++) {
        for (size_t j = 0; j < n; j++) {
            float x = tr_tensor_at(w->tensors->o.tensor, i * n + j);

            w->read[j] += x * x;
        }
    }
    for (size_t j = 0; j < n; j++) {
        w->read[j] = sqrtf(w->read[j]);
    }
}

/* read[head_dim] of a KV head: the columns of all query heads that read it. */
static const float *
read_channels(const work_t *w, uint32_t head)
{
    uint32_t dim = w->recipe->head_dim;
    uint32_t group = w->recipe->query_heads / w->recipe->kv_heads;
    float *read = w->read + (size_t) head * group * dim;

    for (uint32_t d = 0; d < dim; d++) {
        for (uint32_t g = 1; g < group; g++) {
            read[d] = hypotf(read[d], read[g * dim + d]);
        }
    }
    return read;
}

static void
choose_values(const work_t *w)
{
    uint32_t dim = w->recipe->head_dim;
    bool have_read = false;

    channel_sizes(w, &w->tensors->v, &w->tensors->v_bias, NULL,
                  w->recipe->kv_heads * dim, w->size);
    for (uint32_t h = 0; h < w->recipe->kv_heads; h++) {
        const float *size = w->size + h * dim, *read = NULL;
        int8_t *e = head_of(w, w->e->value, h);
        float middle = median(w, size, dim), middle_read = 0;

        for (uint32_t d = 0; d < dim; d++) {
            if (!stands_out(size[d], middle)) {
                continue;
            }
            if (!have_read) {
                column_sizes(w);
                have_read = true;
            }
            if (read == NULL) {
                read = read_channels(w, h);
                middle_read = median(w, read, dim);
            }
            e[d] = (int8_t) value_exponent(w, h, d,
                                           exponent(size[d] / middle,
                                                    read[d] / middle_read));
        }
    }
}

typedef struct {
    tr_equalise_t *e;
    const layer_t *layers;
    bool centre;
    atomic_int failed; /* no memory */
} job_t;

/* How much of its bias each pair keeps: all of it where keys are not centred. */
static void
left_of(const job_t *job, uint32_t layer, float *left)
{
    const tr_recipe_t *r = job->e->recipe;
    tr_centre_pair_t pair[TR_HEAD_DIM_MAX / 2];
    bool centred = job->centre && tr_centre_fits(r, layer);

    if (centred) {
        tr_centre_pairs(r, layer, pair);
    }
    for (uint32_t i = 0; i < r->head_dim / 2; i++) {
        left[i] = centred ? pair[i].left : 1;
    }
}

static void
choose_layers(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    job_t *job = arg;
    const tr_recipe_t *r = job->e->recipe;
    size_t heads = (size_t) r->kv_heads * r->head_dim;
    size_t read = (size_t) r->query_heads * r->head_dim;
    float *memory = malloc((r->hidden + heads + read + r->head_dim)
                           * sizeof(float));
    float left[TR_HEAD_DIM_MAX / 2];

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
                     left,
                     memory,
                     memory + r->hidden,
                     memory + r->hidden + heads,
                     memory + r->hidden + heads + read };

        for (uint32_t i = 0; i < r->hidden; i++) {
            w.gain[i] = gain_at(&w, &w.tensors->norm, i);
        }
        if (w.tensors->q.tensor == NULL || w.tensors->k.tensor == NULL
            || w.tensors->v.tensor == NULL || w.tensors->o.tensor == NULL) {
            continue; /* they stand in the files as no family has them yet */
        }
        left_of(job, l, left);
        choose_keys(&w);
        if (r->layer[l].qk_norm == TR_QK_NORM_HEAD) {
            share_keys(&w);
        }
        choose_values(&w);
        tr_safetensors_release(w.tensors->k.tensor);
        tr_safetensors_release(w.tensors->v.tensor);
    }
    free(memory);
}

/* ---- the table ----------------------------------------------------------- */

/* n rows of a tensor of query, key and value rows, if it has them. */
static void
take_rows(source_t *to, const source_t *from, uint32_t first, uint32_t n)
{
    if (first >= from->t.row && first + n <= from->t.row + from->t.rows) {
        *to = *from;
        to->row = first - from->t.row;
    }
}

static void
place(const tr_recipe_t *r, layer_t *l, const source_t *s)
{
    uint32_t q = r->query_heads * r->head_dim, kv = r->kv_heads * r->head_dim;

    switch (s->t.part) {
    case TR_PART_ATTN_NORM:
        l->norm = *s;
        break;
    case TR_PART_QKV:
        take_rows(&l->q, s, 0, q);
        take_rows(&l->k, s, q, kv);
        take_rows(&l->v, s, q + kv, kv);
        break;
    case TR_PART_QKV_BIAS:
        take_rows(&l->q_bias, s, 0, q);
        take_rows(&l->k_bias, s, q, kv);
        take_rows(&l->v_bias, s, q + kv, kv);
        break;
    case TR_PART_O:
        l->o = *s;
        break;
    case TR_PART_Q_NORM:
        l->q_norm = *s;
        break;
    case TR_PART_K_NORM:
        l->k_norm = *s;
        break;
    default:
        break;
    }
}

static tr_status_t
find_layers(const tr_model_config_t *c, const tr_safetensors_t *st,
            layer_t *layers, tr_error_t *err)
{
    source_t s = { .row = 0 };
    tr_status_t rc = TR_OK;
    uint32_t at = 0;

    while (rc == TR_OK && tr_model_tensor_next(c, &at, &s.t)) {
        if (tr_part_layered(s.t.part)) {
            rc = tr_model_tensor_find(st, &s.t, &s.tensor, err);
            place(&c->recipe, &layers[s.t.layer], &s);
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
        for (size_t i = l * n; i < (l + 1) * n; i++) {
            uint32_t d = i % r->head_dim, half = r->head_dim / 2;
            bool second = d >= half && d - half < pairs(r, l);

            e->pairs += e->key[i] != 0 && !second;
            e->channels += e->value[i] != 0;
            e->largest = e->key[i] > e->largest ? e->key[i] : e->largest;
            e->largest = e->value[i] > e->largest ? e->value[i] : e->largest;
        }
    }
    tr_log(e->largest != 0 ? TR_LEVEL_NOTICE : TR_LEVEL_INFO,
           "kv_equalise key_pairs=%u value_channels=%u largest_factor=%d",
           e->pairs, e->channels, 1 << e->largest);
}

tr_status_t
tr_equalise_choose(const tr_model_config_t *c, const tr_safetensors_t *st,
                   tr_stream_t stream, bool centre, tr_equalise_t **out,
                   tr_error_t *err)
{
    const tr_recipe_t *r = &c->recipe;
    size_t n = (size_t) r->layers * r->kv_heads * r->head_dim;
    tr_equalise_t *e = calloc(1, sizeof(*e) + 2 * n);
    layer_t *layers = calloc(r->layers, sizeof(*layers));
    job_t job = { .e = e, .layers = layers, .centre = centre };
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

/* How rows, or columns, take the factors of a table, [kv_heads][head_dim] of
 * their layer: by 2^(sign * e); NULL: they do not. */
typedef struct {
    const int8_t *table;
    int sign;
    uint32_t group; /* heads that share one of the table */
    uint32_t first; /* row of the part that is the table's first */
} moves_t;

/* A row of query, key and value rows. */
static moves_t
moves_of_row(const tr_equalise_t *e, uint32_t layer, size_t row)
{
    const tr_recipe_t *r = e->recipe;
    uint32_t q = r->query_heads * r->head_dim, kv = r->kv_heads * r->head_dim;
    size_t at = (size_t) layer * kv;

    if (row >= q + kv) {
        return (moves_t){ e->value + at, -1, 1, q + kv };
    }
    if (r->layer[layer].qk_norm != TR_QK_NORM_NONE) {
        return (moves_t){ NULL, 0, 1, 0 };
    }
    return row < q ? (moves_t){ e->key + at, 1, q / kv, 0 }
                   : (moves_t){ e->key + at, -1, 1, q };
}

/* Row `row` of a tensor, or all columns. */
static moves_t
moves(const tr_equalise_t *e, const tr_model_tensor_t *t, size_t row)
{
    const tr_recipe_t *r = e->recipe;
    uint32_t group = r->query_heads / r->kv_heads;
    size_t at = (size_t) t->layer * r->kv_heads * r->head_dim;

    switch (t->part) {
    case TR_PART_QKV:
    case TR_PART_QKV_BIAS:
        return moves_of_row(e, t->layer, t->row + row);
    case TR_PART_Q_NORM: /* one head's: all KV heads have the same factors */
        return (moves_t){ e->key + at, 1, t->rows == r->head_dim ? 1 : group,
                          0 };
    case TR_PART_K_NORM:
        return (moves_t){ e->key + at, -1, 1, 0 };
    case TR_PART_O:
        return (moves_t){ e->value + at, 1, group, 0 };
    default:
        return (moves_t){ NULL, 0, 1, 0 };
    }
}

/* Of row or column `at` of a part. */
static float
factor_of(const tr_equalise_t *e, const moves_t *m, size_t at)
{
    uint32_t i = (uint32_t) at - m->first, dim = e->recipe->head_dim;

    if (m->table == NULL) {
        return 1;
    }
    return ldexpf(1, m->sign * m->table[i / dim / m->group * dim + i % dim]);
}

bool
tr_equalise_has(const tr_equalise_t *e, const tr_model_tensor_t *t)
{
    bool of_columns = t->part == TR_PART_O;
    uint32_t n = e == NULL ? 0 : of_columns ? t->columns : t->rows;

    for (uint32_t i = 0; i < n; i++) {
        moves_t m = moves(e, t, of_columns ? 0 : i);

        if (factor_of(e, &m, of_columns ? i : t->row + i) != 1) {
            return true;
        }
    }
    return false;
}

void
tr_equalise_scale(const tr_equalise_t *e, const tr_model_tensor_t *t,
                  size_t first, size_t n, float *x)
{
    bool of_columns = t->part == TR_PART_O;
    size_t columns = t->columns, some;

    for (size_t i = 0; i < n; i += some) {
        size_t row = (first + i) / columns, column = (first + i) % columns;
        moves_t m = moves(e, t, row);
        float factor = of_columns ? 1 : factor_of(e, &m, t->row + row);

        some = n - i < columns - column ? n - i : columns - column;
        for (size_t j = 0; of_columns && j < some; j++) {
            x[i + j] *= factor_of(e, &m, column + j);
        }
        for (size_t j = 0; factor != 1 && j < some; j++) {
            x[i + j] *= factor;
        }
    }
}
