/*
 * model_cuda.h: products of few rows, chains of which are one kernel.
 *
 *   of each layer: append, attention, and a chain: product o (adds to hidden),
 *   product gate_up (scales its rows, gates), product down (adds to hidden,
 *   weighs it), product qkv of the next layer (scales its rows)
 *
 * Whether they are faster than cuBLASLt's with a norm and an activation between
 * depends on the shapes and on the device: when the model is opened, layers of
 * both kinds run in turn, for each class of rows, in graphs as a step's are,
 * norms standing for append and attention; what they give must be the same first.
 * Packed weights go to cuBLASLt in 16 bits then, and where a chain is left out
 * they do so in steps.
 */
#include "model_cuda.h"

#include <math.h>
#include <stdlib.h>

#include "engine/config/log.h"

#define LAYERS 4u /* of a graph: their weights are more than a cache holds */
#define NORMS \
    3u /* for append and attention: what is behind them begins as early */
#define RUNS 7   /* of each graph */
#define WARM 100 /* runs of some graph, before any is timed */
/* What a chain may take more here and yet be faster in a step: it asks for its
 * weights while attention ends, which takes longer than what stands for it here
 * (as fast here was 2% faster there). */
#define BEHIND 1.02

/* ---- launches ----------------------------------------------------------- */

static tr_cuda_small_gemm_t
gemm_of(const tr_model_cuda_t *m, tr_cuda_small_gemm_mode_t mode,
        tr_part_t part, uint32_t layer, uint32_t rows)
{
    tr_part_shape_t shape = tr_part_shape(&m->config.recipe, part, layer);

    return (tr_cuda_small_gemm_t){ .mode = mode,
                                   .rows = rows,
                                   .n = shape.rows,
                                   .k = shape.columns,
                                   .w = m->layers[layer].part[part],
                                   .form = m->layers[layer].form[part],
                                   .squares = m->squares,
                                   .norm_n = m->config.recipe.hidden,
                                   .eps = m->config.recipe.norm_eps,
                                   .hidden = m->hidden,
                                   .ldh = m->ld_hidden,
                                   .squares_out = m->squares };
}

/* Adds to hidden; weight: of the norm that comes next, NULL: none does. */
static tr_cuda_small_gemm_t
gemm_residual(tr_model_cuda_t *m, tr_part_t part, uint32_t layer, uint32_t rows,
              const float *bias, const float *weight)
{
    tr_cuda_small_gemm_t a = gemm_of(m, TR_CUDA_SMALL_GEMM_RESIDUAL, part,
                                     layer, rows);

    a.y = weight == NULL ? NULL : m->normed;
    a.ldy = m->ld_hidden;
    a.bias = bias;
    a.weight = weight;
    m->parts = m->cuda->small_gemm_parts(m->stream->device, rows, a.n, a.k);
    return a;
}

/* Of a layer behind another: of what that one left, and what scales it. */
static tr_cuda_small_gemm_t
gemm_qkv(tr_model_cuda_t *m, uint32_t layer, uint32_t rows)
{
    tr_cuda_small_gemm_t a = gemm_of(m, TR_CUDA_SMALL_GEMM_PLAIN, TR_PART_QKV,
                                     layer, rows);

    a.x = m->normed;
    a.ldx = m->ld_hidden;
    a.y = m->qkv;
    a.ldy = m->ld_qkv;
    a.parts = m->parts;
    return a;
}

static tr_cuda_small_gemm_t
gemm_gate_up(tr_model_cuda_t *m, uint32_t layer, uint32_t rows)
{
    tr_cuda_small_gemm_t a = gemm_of(m, TR_CUDA_SMALL_GEMM_GATED,
                                     TR_PART_GATE_UP, layer, rows);

    a.x = m->normed;
    a.ldx = m->ld_hidden;
    a.y = m->mlp;
    a.ldy = m->ld_mlp;
    a.act = m->config.recipe.layer[layer].act;
    a.parts = m->parts;
    return a;
}

bool
tr_model_cuda_small_gemm_rest(tr_model_cuda_t *m, uint32_t layer, uint32_t rows)
{
    void *const *w = m->layers[layer].part;
    bool last = layer + 1 == m->config.recipe.layers;
    tr_cuda_small_gemm_t a[TR_CUDA_SMALL_GEMM_CHAIN];
    uint32_t n = 0;

    a[n] = gemm_residual(m, TR_PART_O, layer, rows, w[TR_PART_O_BIAS],
                         w[TR_PART_MLP_NORM]);
    a[n].x = m->attn;
    a[n++].ldx = m->ld_attn;
    a[n++] = gemm_gate_up(m, layer, rows);
    a[n] = gemm_residual(m, TR_PART_DOWN, layer, rows, NULL,
                         last ? NULL
                              : m->layers[layer + 1].part[TR_PART_ATTN_NORM]);
    a[n].x = m->mlp;
    a[n++].ldx = m->ld_mlp;
    if (!last) {
        a[n++] = gemm_qkv(m, layer + 1, rows);
    }
    return tr_model_cuda_launched(m,
                                  m->cuda->small_gemm(m->stream, a, n, m->meet),
                                  "small_gemm");
}

/* ---- which rows --------------------------------------------------------- */

/* Between a chain's products there is room for two norms and a gate alone. */
static bool
chains(const tr_recipe_t *r)
{
    bool all = r->residual_scale == 1;

    for (uint32_t l = 0; l < r->layers; l++) {
        all = all && !r->layer[l].experts
              && r->layer[l].norms == (TR_NORM_PRE_ATTN | TR_NORM_PRE_MLP)
              && tr_cuda_has_act(TR_CUDA_SMALL_GEMM_ACTS,
                                 (tr_act_t) r->layer[l].act);
    }
    return all;
}

static bool
possible(const tr_model_cuda_t *m, uint32_t rows)
{
    static const tr_part_t parts[] = { TR_PART_QKV, TR_PART_O, TR_PART_GATE_UP,
                                       TR_PART_DOWN };
    bool fits = m->type == TR_BF16 && chains(&m->config.recipe);

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        tr_part_shape_t s = tr_part_shape(&m->config.recipe, parts[i], 0);

        fits = fits
               && m->cuda->small_gemm_fits(m->stream->device, s.rows, s.columns)
               && ((parts[i] != TR_PART_O && parts[i] != TR_PART_DOWN)
                   || m->cuda->small_gemm_parts(m->stream->device, rows, s.rows,
                                                s.columns)
                          > 0);
    }
    return fits;
}

/* The products of some layers as a graph; NULL: not to be had. */
static void *
products_graph(tr_model_cuda_t *m, uint32_t rows, bool small_gemm)
{
    uint32_t layers = m->config.recipe.layers < LAYERS ? m->config.recipe.layers
                                                       : LAYERS;
    void *graph = NULL;

    m->failed = NULL;
    m->small_gemm = small_gemm;
    if (m->cuda->graph_begin(m->stream) != 0) {
        return NULL;
    }
    for (uint32_t l = 0; l < layers && m->failed == NULL; l++) {
        tr_model_cuda_products(m, l, rows, NORMS);
    }
    if (m->cuda->graph_end(m->stream, &graph) != 0) {
        return NULL;
    }
    if (m->failed != NULL) {
        m->cuda->graph_close(graph);
        return NULL;
    }
    return graph;
}

/* Microseconds; infinite: it does not run. */
static double
graph_us(const tr_model_cuda_t *m, void *graph, void *from, void *to)
{
    const tr_device_t *cuda = m->cuda;
    double us;

    return cuda->event_record(m->stream, from) == 0
                   && cuda->graph_launch(m->stream, graph) == 0
                   && cuda->event_record(m->stream, to) == 0
                   && cuda->event_wait(to) == 0
                   && cuda->event_time(from, to, &us) == 0
               ? us
               : INFINITY;
}

static int
compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* ---- are they right? ---------------------------------------------------- */

/* A group of columns may differ by so much of what all have in the mean (roots
 * of mean squares): rounding to 16 bits is a tenth of it, a wrong tile many
 * times. */
#define APART 0.05
#define GROUP 16u

/* What layers leave, on the host. */
typedef struct {
    float *hidden;
    uint16_t *delta, *qkv; /* BF16 */
} left_t;

static size_t
left_bytes(const tr_model_cuda_t *m, uint32_t rows)
{
    return rows * (m->ld_hidden * 6 + m->ld_qkv * 2);
}

static left_t
left_in(const tr_model_cuda_t *m, uint32_t rows, uint8_t *memory)
{
    left_t l = { .hidden = (float *) memory };

    l.delta = (uint16_t *) (l.hidden + rows * m->ld_hidden);
    l.qkv = l.delta + rows * m->ld_hidden;
    return l;
}

/* Layers from random results of attention. */
static bool
run(tr_model_cuda_t *m, void *graph, uint32_t rows, const left_t *out)
{
    const tr_device_t *cuda = m->cuda;
    const tr_cuda_stream_t *s = m->stream;
    size_t hidden = rows * m->ld_hidden;

    return cuda->fill(s, m->hidden, 0, hidden * 4) == 0
           && cuda->fill(s, m->delta, 0, hidden * 2) == 0
           && cuda->fill_random(s, m->attn, rows * m->ld_attn, m->type, 1, 0, 1)
                  == 0
           && cuda->graph_launch(s, graph) == 0
           && cuda->copy(s, out->hidden, m->hidden, hidden * 4) == 0
           && cuda->copy(s, out->delta, m->delta, hidden * 2) == 0
           && cuda->copy(s, out->qkv, m->qkv, rows * m->ld_qkv * 2) == 0
           && cuda->stream_wait(s) == 0;
}

/* x: of cuBLASLt's way. */
static bool
columns_agree(const float *x, const float *y, uint32_t rows, size_t n)
{
    double all = 0, worst = 0;

    for (size_t at = 0; at < n; at += GROUP) {
        double apart = 0;

        for (uint32_t r = 0; r < rows; r++) {
            for (size_t i = at; i < at + GROUP && i < n; i++) {
                double d = (double) x[r * n + i] - (double) y[r * n + i];

                apart += d * d;
                all += (double) x[r * n + i] * (double) x[r * n + i];
            }
        }
        worst = apart <= worst ? worst : apart; /* NaN, too */
    }
    return worst <= APART * APART * all * GROUP / (double) n;
}

/* hidden, and q, k, v of the layer behind; there is none behind a model's last,
 * and then nobody has added what cuBLASLt left in delta. */
static bool
left_agree(const tr_model_cuda_t *m, uint32_t rows, const left_t *x,
           const left_t *y)
{
    size_t n = m->config.recipe.hidden,
           qkv = tr_part_shape(&m->config.recipe, TR_PART_QKV, 0).rows;
    float *a = malloc(2 * rows * (n > qkv ? n : qkv) * sizeof(*a)), *b;
    bool ok = a != NULL;

    b = a + rows * (n > qkv ? n : qkv);
    for (size_t i = 0; i < rows * n && ok; i++) {
        size_t at = i / n * m->ld_hidden + i % n;

        a[i] = x->hidden[at];
        a[i] += m->config.recipe.layers > LAYERS
                    ? 0
                    : tr_float_load(x->delta, at, TR_BF16);
        b[i] = y->hidden[at];
    }
    ok = ok && columns_agree(a, b, rows, n);
    for (size_t i = 0; i < rows * qkv && ok; i++) {
        size_t at = i / qkv * m->ld_qkv + i % qkv;

        a[i] = tr_float_load(x->qkv, at, TR_BF16);
        b[i] = tr_float_load(y->qkv, at, TR_BF16);
    }
    ok = ok && columns_agree(a, b, rows, qkv);
    free(a);
    return ok;
}

/* Both ways, with this model's weights: no chain runs that has not done so
 * once. memory: twice left_bytes. */
static bool
agree(tr_model_cuda_t *m, uint32_t rows, void *const graph[2], uint8_t *memory)
{
    left_t x = left_in(m, rows, memory);
    left_t y = left_in(m, rows, memory + left_bytes(m, rows));
    bool ok = run(m, graph[0], rows, &x) && run(m, graph[1], rows, &y)
              && left_agree(m, rows, &x, &y);

    if (!ok) {
        tr_log(TR_LEVEL_WARN,
               "products of %u rows: the fused kernel gives other results "
               "than cuBLASLt, and is not used",
               rows);
    }
    return ok;
}

/* ---- are they faster? --------------------------------------------------- */

/* In turn, after a first run of each; the medians are compared. */
static bool
faster(tr_model_cuda_t *m, uint32_t rows, void *const graph[2], void *from,
       void *to)
{
    double us[2][RUNS];

    for (int i = -1; i < RUNS; i++) {
        for (int way = 0; way < 2; way++) {
            us[way][i < 0 ? 0 : i] = graph_us(m, graph[way], from, to);
        }
    }
    qsort(us[0], RUNS, sizeof(us[0][0]), compare);
    qsort(us[1], RUNS, sizeof(us[1][0]), compare);
    tr_log(TR_LEVEL_INFO,
           "products of %u rows: %.1f us a layer, %.1f us as one kernel", rows,
           us[0][RUNS / 2] / LAYERS, us[1][RUNS / 2] / LAYERS);
    return us[1][RUNS / 2] < BEHIND * us[0][RUNS / 2];
}

static bool
chosen(tr_model_cuda_t *m, uint32_t rows, uint8_t *memory, bool timed,
       void *from, void *to)
{
    void *graph[2] = { products_graph(m, rows, false),
                       products_graph(m, rows, true) };
    bool won = graph[0] != NULL && graph[1] != NULL
               && agree(m, rows, graph, memory)
               && (!timed || faster(m, rows, graph, from, to));

    for (int way = 0; way < 2; way++) {
        m->cuda->graph_close(graph[way]);
    }
    m->failed = NULL;
    return won;
}

/* With clocks as they are under load. */
static void
warm(tr_model_cuda_t *m, void *from, void *to)
{
    void *graph = products_graph(m, 1, false);

    for (int i = 0; graph != NULL && i < WARM; i++) {
        graph_us(m, graph, from, to);
    }
    m->cuda->graph_close(graph);
    m->failed = NULL;
}

bool
tr_model_cuda_choose_small_gemm(tr_model_cuda_t *m, bool timed)
{
    void *from = NULL, *to = NULL;
    uint8_t *memory;

    m->small_gemm_classes = 0;
    m->alone = m->type == TR_BF16 && m->stream->device->trial
               && !chains(&m->config.recipe);
    if (!possible(m, 1)) {
        return true;
    }
    memory = m->cuda->pin(2 * left_bytes(m, TR_CUDA_SMALL_GEMM_ROWS));
    if (memory == NULL) {
        return false;
    }
    /* what plays a device in tests has no code, and times that say nothing */
    timed = timed && m->stream->device->code != 0
            && m->cuda->event_open(&from) == 0 && m->cuda->event_open(&to) == 0;
    if (timed) {
        warm(m, from, to);
    }
    for (uint32_t c = 0; c < TR_CUDA_SMALL_GEMM_CLASSES; c++) {
        uint32_t rows = m->max_rows < 8u << c ? m->max_rows : 8u << c;

        uint32_t packed = m->packed_classes, bit = 1u << c;
        bool can = possible(m, rows), won;

        m->packed_classes = 0;
        won = can && chosen(m, rows, memory, timed, from, to);
        m->packed_classes = can && !won ? packed & ~bit : packed;
        m->small_gemm_classes |= won ? bit : 0;
    }
    m->cuda->event_close(from);
    m->cuda->event_close(to);
    /* it has been added to */
    m->cuda->fill(m->stream, m->hidden, 0,
                  tr_cuda_matmul_rows(m->max_rows) * m->ld_hidden * 4);
    m->cuda->unpin(memory);
    return true;
}
