/*
 * What a compression changes (kernels.h, kv_compare): attention of a prompt's
 * last queries over the old pages of a head, over its new keys with old values,
 * and over its old keys with new values, side by side.
 *
 * A head is one piece of work.  It goes over its sources in the order in which
 * kv_compress.c moved them, TOKENS at a time, so that a token's old and new
 * place are known together, with its position: the new pages of a last level
 * store none.  A softmax runs along (its maximum and its sum so far), for each
 * side apart, since dropped tokens have no new place.  This is a check that
 * few prompts pay for: plain loops, which the compiler vectorises.
 */
#include "kernels/cpu/cpu.h"
#include "kv_store.h"

#include <math.h>

#define TOKENS 16u

enum { OLD, NEW_KEYS, NEW_VALUES, SIDES };

typedef struct {
    const tr_kv_codec_t *codec;
    const tr_kv_view_t *kv;
    const tr_kv_compress_t *c;
    const tr_kv_compare_t *q;
    const tr_kv_seq_t *from;
    tr_kv_view_t to; /* with the new tables, the slot as slot 0 */
    float *work;     /* of a thread: row_floats for each row of a head */
    size_t work_floats;
} compare_t;

/* Some tokens on one side. */
typedef struct {
    uint32_t n;
    uint32_t pos[TOKENS];
    _Alignas(64) float key[TR_HEAD_DIM_MAX][TOKENS]; /* by dimension */
    _Alignas(64) float value[TOKENS][TR_HEAD_DIM_MAX];
} block_t;

/* A head. */
typedef struct {
    const compare_t *all;
    uint32_t layer, kv_head; /* layer: index into those that are compared */
    tr_kv_iterator_t to[TR_KV_TIERS_MAX];
    const int8_t *dest;
    const int32_t *to_table;
    float *rows; /* [n][group][SIDES]: maximum, sum, at ROW_OUT the values' */
    block_t side[SIDES];
} head_t;

/* ---- attention over a block --------------------------------------------- */

#define ROW_OUT 16u

static size_t
row_floats(uint32_t dim)
{
    return SIDES * ((size_t) dim + ROW_OUT);
}

static float *
head_row(const head_t *h, uint32_t query, uint32_t head, uint32_t side)
{
    uint32_t dim = h->all->kv->head_dim;
    uint32_t group = h->all->q->heads / h->all->kv->kv_heads;

    return h->rows + ((size_t) query * group + head) * row_floats(dim)
           + (size_t) side * (dim + ROW_OUT);
}

/* One query. */
static void
row_attend(const block_t *b, const float *q, uint32_t pos, float scale,
           uint32_t dim, float *row)
{
    float logit[TOKENS] = { 0 }, max = row[0], keep, *out = row + ROW_OUT;

    for (uint32_t d = 0; d < dim; d++) {
        for (uint32_t t = 0; t < TOKENS; t++) {
            logit[t] += q[d] * b->key[d][t];
        }
    }
    for (uint32_t t = 0; t < b->n; t++) {
        logit[t] = b->pos[t] > pos ? -INFINITY : logit[t] * scale;
        max = logit[t] > max ? logit[t] : max;
    }
    if (max == -INFINITY) {
        return;
    }
    keep = expf(row[0] - max);
    row[0] = max;
    row[1] *= keep;
    for (uint32_t d = 0; d < dim; d++) {
        out[d] *= keep;
    }
    for (uint32_t t = 0; t < b->n; t++) {
        float p = expf(logit[t] - max);

        row[1] += p;
        for (uint32_t d = 0; d < dim; d++) {
            out[d] += p * b->value[t][d];
        }
    }
}

static void
block_attend(head_t *h, uint32_t side)
{
    const compare_t *a = h->all;
    block_t *b = &h->side[side];
    uint32_t dim = a->kv->head_dim, group = a->q->heads / a->kv->kv_heads;

    for (uint32_t i = 0; i < a->q->n && b->n != 0; i++) {
        const float *q = a->q->q + h->layer * a->q->ld
                         + ((size_t) i * a->q->heads + h->kv_head * group)
                               * dim;

        for (uint32_t g = 0; g < group; g++) {
            row_attend(b, q + g * dim, a->q->first + i, a->q->scale, dim,
                       head_row(h, i, g, side));
        }
    }
    b->n = 0;
}

static void
block_add(head_t *h, uint32_t side, const float *key, const float *value,
          uint32_t pos)
{
    block_t *b = &h->side[side];
    uint32_t dim = h->all->kv->head_dim;

    for (uint32_t d = 0; d < dim; d++) {
        b->key[d][b->n] = key[d];
    }
    memcpy(b->value[b->n], value, dim * sizeof(*value));
    b->pos[b->n++] = pos;
    if (b->n == TOKENS) {
        block_attend(h, side);
    }
}

/* ---- a head ------------------------------------------------------------- */

/* The next source, which stands at position pos or, where that is not known, in
 * front of all queries; or a token that stays where it is. */
static void
head_token(head_t *h, tr_kv_place_t from, bool stays, uint32_t pos)
{
    const compare_t *a = h->all;
    const tr_kv_seq_t *to = a->c->to;
    _Alignas(64) float key[2][TR_HEAD_DIM_MAX], value[2][TR_HEAD_DIM_MAX];
    int8_t dest = stays ? TR_KV_STAYS : *h->dest++;
    tr_kv_place_t place;

    tr_kv_get(a->codec, from, key[0], value[0]);
    block_add(h, OLD, key[0], value[0], pos);
    if (dest == TR_KV_NOWHERE) {
        return;
    }
    place = dest >= 0 ? tr_kv_iterator_next(&h->to[dest])
            : stays   ? from
                      : tr_kv_place_window(&a->to, h->to_table, to,
                                           tr_kv_window_entry(to, pos));
    tr_kv_get(a->codec, place, key[1], value[1]);
    block_add(h, NEW_KEYS, key[1], value[0], pos);
    block_add(h, NEW_VALUES, key[0], value[1], pos);
}

static void
head_begin(head_t *h, uint32_t layer)
{
    const compare_t *a = h->all;
    uint32_t dim = a->kv->head_dim, group = a->q->heads / a->kv->kv_heads;
    const float *sinks = a->q->sinks == NULL ? NULL : a->q->sinks[layer];

    for (uint32_t i = 0; i < a->q->n; i++) {
        for (uint32_t g = 0; g < SIDES * group; g++) {
            float *row = head_row(h, i, g / SIDES, g % SIDES);

            memset(row, 0, ((size_t) dim + ROW_OUT) * sizeof(*row));
            row[0] = -INFINITY;
            if (sinks != NULL) {
                row[0] = sinks[h->kv_head * group + g / SIDES];
                row[1] = 1;
            }
        }
    }
}

static void
head_end(const head_t *h)
{
    const compare_t *a = h->all;
    uint32_t dim = a->kv->head_dim, group = a->q->heads / a->kv->kv_heads;
    tr_kv_change_t *out = a->q->change
                          + (h->layer * a->kv->kv_heads + h->kv_head) * dim;

    memset(out, 0, dim * sizeof(*out));
    for (uint32_t r = 0; r < a->q->n * group; r++) {
        const float *x[SIDES];
        float by[SIDES];

        for (uint32_t i = 0; i < SIDES; i++) {
            x[i] = head_row(h, r / group, r % group, i);
            by[i] = x[i][1] > 0 ? 1 / x[i][1] : 0;
            x[i] += ROW_OUT;
        }
        for (uint32_t d = 0; d < dim; d++) {
            float old = x[OLD][d] * by[OLD];
            float keys = x[NEW_KEYS][d] * by[NEW_KEYS] - old;
            float values = x[NEW_VALUES][d] * by[NEW_VALUES] - old;

            out[d].whole += old * old;
            out[d].keys += keys * keys;
            out[d].values += values * values;
        }
    }
}

static void
head_compare(head_t *h, uint32_t layer)
{
    const compare_t *a = h->all;
    const tr_kv_view_t *kv = a->kv;
    uint32_t l = layer * kv->kv_heads + h->kv_head;
    size_t head = tr_kv_head(kv, a->c->slot, layer, h->kv_head);
    const int32_t *table = kv->tables + head * kv->table_len;
    tr_kv_iterator_t it;

    h->to_table = a->to.tables + (size_t) l * kv->table_len;
    h->dest = a->c->dest + l * a->c->dest_len;
    head_begin(h, layer);
    for (uint32_t i = 0; i < a->c->to->n_tiers; i++) {
        h->to[i] = tr_kv_iterator_tier(&a->to, h->to_table, a->c->to, i,
                                       tr_kv_compress_stay(a->c, l, i));
    }
    for (uint32_t i = 0; i < a->from->n_tiers; i++) {
        uint32_t stay = tr_kv_compress_stay(a->c, l, i);

        it = tr_kv_iterator_tier(kv, table, a->from, i, 0);
        for (uint32_t n = 0; n < kv->count[head * TR_KV_TIERS_MAX + i]; n++) {
            head_token(h, tr_kv_iterator_next(&it), n < stay, 0);
        }
    }
    for (uint32_t i = 0; i < tr_kv_windowed(a->from); i++) {
        uint32_t pos = tr_kv_windowed_position(a->from, i);

        head_token(h,
                   tr_kv_place_window(kv, table, a->from,
                                      tr_kv_window_entry(a->from, pos)),
                   false, pos);
    }
    it = tr_kv_iterator_uncompressed(kv, table);
    for (uint32_t i = 0; i < a->c->n_uncompressed; i++) {
        head_token(h, tr_kv_iterator_next(&it), false, a->from->base + i);
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        block_attend(h, i);
    }
    head_end(h);
}

static void
heads_compare(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const compare_t *a = arg;
    head_t *h = (head_t *) (a->work + worker * a->work_floats);

    for (uint32_t i = first; i < end; i++) {
        h->all = a;
        h->layer = i / a->kv->kv_heads;
        h->kv_head = i % a->kv->kv_heads;
        h->side[OLD].n = h->side[NEW_KEYS].n = h->side[NEW_VALUES].n = 0;
        h->rows = (float *) (h + 1);
        head_compare(h, a->q->layer[h->layer]);
    }
}

size_t
tr_cpu_kv_compare_work(const tr_stream_t *s, uint32_t n, uint32_t heads,
                       uint32_t kv_heads, uint32_t head_dim)
{
    size_t rows = (size_t) n * (heads / kv_heads);

    return (size_t) s->threads
           * tr_pad(sizeof(head_t)
                        + rows * row_floats(head_dim) * sizeof(float),
                    64);
}

int
tr_cpu_kv_compare(const tr_stream_t *s, const tr_kv_view_t *kv,
                  const tr_kv_compress_t *c, const tr_kv_compare_t *q,
                  const tr_kv_codec_t *codec, void *work)
{
    compare_t a = { codec, kv, c, q, &kv->seq[c->slot], *kv, work, 0 };

    if (q->n == 0 || q->heads % kv->kv_heads || q->first < a.from->base
        || q->first + q->n != a.from->base + c->n_uncompressed) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t i = 0; i < q->n_layers; i++) {
        if (q->layer[i] >= kv->layers) {
            return TR_KERNEL_BADARG;
        }
    }
    a.to.tables = c->to_tables;
    a.work_floats = tr_cpu_kv_compare_work(s, q->n, q->heads, kv->kv_heads,
                                           kv->head_dim)
                    / (size_t) s->threads / sizeof(float);
    tr_thread_pool_run(s->thread_pool, s->threads, q->n_layers * kv->kv_heads,
                       1, heads_compare, &a);
    return TR_KERNEL_OK;
}
