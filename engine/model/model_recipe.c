/*
 * model_recipe.h: what follows from a recipe, its words for people, and what a
 * backend cannot run of it.
 */
#include "model_recipe.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/config/log.h"

/* ---- names, by bit or by value ------------------------------------------- */

#define NAMES_MAX 5

static const char *const norm_names[NAMES_MAX] = { "pre_attn", "post_attn",
                                                   "pre_mlp", "post_mlp" };
static const char *const bias_names[NAMES_MAX] = { "qkv", "o", "mlp" };
static const char *const qk_norm_names[NAMES_MAX] = { "none", "head", "row" };
static const char *const act_names[NAMES_MAX] = { "silu", "gelu_pytorch_tanh",
                                                  "gpt-oss" };
static const char *const rope_names[NAMES_MAX] = { "default", "linear",
                                                   "llama3", "yarn",
                                                   "longrope" };

#define NAMED 64 /* bytes of all names of a set */

/* The names of a set of bits, commas between; "none" of no bits. */
static void
name_set(const char *const names[NAMES_MAX], uint32_t bits, char text[NAMED])
{
    size_t n = 0;

    for (uint32_t i = 0; i < NAMES_MAX; i++) {
        if (bits >> i & 1) {
            n += (size_t) snprintf(text + n, NAMED - n, "%s%s", n ? ", " : "",
                                   names[i]);
        }
    }
    if (n == 0) {
        snprintf(text, NAMED, "none");
    }
}

const char *
tr_act_name(tr_act_t act)
{
    return act_names[act];
}

/* ---- parts --------------------------------------------------------------- */

static tr_part_shape_t
if_any(bool has, uint32_t rows, uint32_t columns)
{
    return (tr_part_shape_t){ has ? rows : 0, has ? columns : 0 };
}

static tr_part_shape_t
norm_shape(const tr_recipe_t *r, uint32_t has)
{
    return if_any(has != 0, r->hidden, 1);
}

uint32_t
tr_part_experts(const tr_recipe_t *r, tr_part_t part)
{
    return part == TR_PART_EXPERT_GATE_UP || part == TR_PART_EXPERT_DOWN
                   || part == TR_PART_EXPERT_GATE_UP_BIAS
                   || part == TR_PART_EXPERT_DOWN_BIAS
               ? r->moe.route.experts
               : 1;
}

/* all: of the heads of a row */
static tr_part_shape_t
qk_norm_shape(const tr_recipe_t *r, const tr_layer_recipe_t *l, uint32_t all)
{
    switch ((tr_qk_norm_t) l->qk_norm) {
    case TR_QK_NORM_NONE:
        break;
    case TR_QK_NORM_HEAD:
        return (tr_part_shape_t){ r->head_dim, 1 };
    case TR_QK_NORM_ROW:
        return (tr_part_shape_t){ all, 1 };
    }
    return (tr_part_shape_t){ 0, 0 };
}

/* Of a layer with experts. */
static tr_part_shape_t
moe_shape(const tr_recipe_t *r, tr_part_t part)
{
    const tr_moe_t *m = &r->moe;
    uint32_t experts = m->route.experts;

    switch (part) {
    case TR_PART_ROUTER:
        return (tr_part_shape_t){ experts, r->hidden };
    case TR_PART_EXPERT_GATE_UP:
        return (tr_part_shape_t){ experts * 2 * m->width, r->hidden };
    case TR_PART_EXPERT_DOWN:
        return (tr_part_shape_t){ experts * r->hidden, m->width };
    case TR_PART_SHARED_GATE_UP:
        return if_any(m->shared, 2 * m->shared, r->hidden);
    case TR_PART_SHARED_DOWN:
        return if_any(m->shared, r->hidden, m->shared);
    case TR_PART_ROUTER_BIAS:
        return if_any(m->router_bias, experts, 1);
    case TR_PART_CHOICE_BIAS:
        return if_any(m->choice_bias, experts, 1);
    case TR_PART_EXPERT_GATE_UP_BIAS:
        return if_any(m->biases, experts * 2 * m->width, 1);
    case TR_PART_EXPERT_DOWN_BIAS:
        return if_any(m->biases, experts * r->hidden, 1);
    default:
        return (tr_part_shape_t){ 0, 0 };
    }
}

tr_part_shape_t
tr_part_shape(const tr_recipe_t *r, tr_part_t part, uint32_t layer)
{
    const tr_layer_recipe_t *l = &r->layer[layer];
    const tr_part_shape_t none = { 0, 0 };
    uint32_t q = r->query_heads * r->head_dim, kv = r->kv_heads * r->head_dim;

    switch (part) {
    case TR_PART_EMBED:
        return (tr_part_shape_t){ r->vocab, r->hidden };
    case TR_PART_HEAD:
        return r->tied ? none : (tr_part_shape_t){ r->vocab, r->hidden };
    case TR_PART_QKV:
        return (tr_part_shape_t){ q + 2 * kv, r->hidden };
    case TR_PART_O:
        return (tr_part_shape_t){ r->hidden, q };
    case TR_PART_GATE_UP:
        return if_any(!l->experts, 2 * r->intermediate, r->hidden);
    case TR_PART_DOWN:
        return if_any(!l->experts, r->hidden, r->intermediate);
    case TR_PART_ROUTER:
    case TR_PART_EXPERT_GATE_UP:
    case TR_PART_EXPERT_DOWN:
    case TR_PART_SHARED_GATE_UP:
    case TR_PART_SHARED_DOWN:
    case TR_PART_ROUTER_BIAS:
    case TR_PART_CHOICE_BIAS:
    case TR_PART_EXPERT_GATE_UP_BIAS:
    case TR_PART_EXPERT_DOWN_BIAS:
        return l->experts ? moe_shape(r, part) : none;
    case TR_PART_SINKS:
        return if_any(l->sinks, r->query_heads, 1);
    case TR_PART_FINAL_NORM:
        return (tr_part_shape_t){ r->hidden, 1 };
    case TR_PART_ATTN_NORM:
        return norm_shape(r, l->norms & TR_NORM_PRE_ATTN);
    case TR_PART_POST_ATTN_NORM:
        return norm_shape(r, l->norms & TR_NORM_POST_ATTN);
    case TR_PART_MLP_NORM:
        return norm_shape(r, l->norms & TR_NORM_PRE_MLP);
    case TR_PART_POST_MLP_NORM:
        return norm_shape(r, l->norms & TR_NORM_POST_MLP);
    case TR_PART_Q_NORM:
        return qk_norm_shape(r, l, q);
    case TR_PART_K_NORM:
        return qk_norm_shape(r, l, kv);
    case TR_PART_QKV_BIAS:
        return l->biases & TR_BIAS_QKV ? (tr_part_shape_t){ q + 2 * kv, 1 }
                                       : none;
    case TR_PART_O_BIAS:
        return l->biases & TR_BIAS_O ? (tr_part_shape_t){ r->hidden, 1 } : none;
    case TR_PARTS:
        break;
    }
    return none;
}

uint64_t
tr_recipe_parameters(const tr_recipe_t *r)
{
    uint64_t sum = 0;

    for (tr_part_t part = 0; part < TR_PARTS; part++) {
        uint32_t n = tr_part_layered(part) ? r->layers : 1;

        for (uint32_t l = 0; l < n; l++) {
            tr_part_shape_t s = tr_part_shape(r, part, l);

            sum += (uint64_t) s.rows * s.columns;
        }
    }
    return sum;
}

/* ---- lengths ------------------------------------------------------------- */

uint32_t
tr_recipe_reach(const tr_recipe_t *r)
{
    uint32_t shortest = 0;

    for (uint32_t l = 0; l < r->layers; l++) {
        uint32_t reach = r->layer[l].reach;

        if (reach != 0 && (shortest == 0 || reach < shortest)) {
            shortest = reach;
        }
    }
    return shortest;
}

void
tr_recipe_reaches(const tr_recipe_t *r, uint32_t *reach)
{
    for (uint32_t l = 0; l < r->layers; l++) {
        reach[l] = r->layer[l].reach;
    }
}

uint32_t
tr_recipe_len(const tr_recipe_t *r, uint32_t asked, uint64_t kv_memory)
{
    uint64_t token = (uint64_t) r->layers * r->kv_heads * r->head_dim * 4;
    uint32_t len = asked != 0 ? asked : r->max_positions;

    return kv_memory == 0 || kv_memory / token >= len
               ? len
               : (uint32_t) (kv_memory / token) + 1;
}

/* ---- rotary frequencies -------------------------------------------------- */

/* Llama 3.1: long wavelengths are stretched by `factor`, short ones kept,
 * those between are blended. */
static double
llama3_frequency(const tr_rope_t *t, double f)
{
    double wavelength = 2 * M_PI / f;
    double smooth;

    if (wavelength < t->original / t->high) {
        return f;
    }
    if (wavelength > t->original / t->low) {
        return f / t->factor;
    }
    smooth = (t->original / wavelength - t->low) / (t->high - t->low);
    return (1 - smooth) * f / t->factor + smooth * f;
}

/* The dim, of those that rotate, that turns `rotations` times within
 * `original` positions. */
static double
yarn_dim(const tr_recipe_t *r, const tr_rope_t *t, double rotations)
{
    return r->rotary_dim * log(t->original / (rotations * 2 * M_PI))
           / (2 * log(t->theta));
}

/* YaRN (section 3.2): pairs that turn fast are kept, slow ones stretched by
 * `factor`, those between are blended. */
static double
yarn_frequency(const tr_recipe_t *r, const tr_rope_t *t, uint32_t i, double f)
{
    double low = yarn_dim(r, t, t->beta_fast);
    double high = yarn_dim(r, t, t->beta_slow), ramp;

    low = fmax(t->truncate ? floor(low) : low, 0);
    high = fmin(t->truncate ? ceil(high) : high, r->rotary_dim - 1);
    high = high == low ? high + 0.001 : high;
    ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return f / t->factor * ramp + f * (1 - ramp);
}

static double
rope_frequency(const tr_recipe_t *r, const tr_rope_t *t, bool is_long,
               uint32_t i)
{
    double f = pow(t->theta, -2.0 * i / r->rotary_dim);

    switch (t->type) {
    case TR_ROPE_DEFAULT:
        break;
    case TR_ROPE_LINEAR:
        return f / t->factor;
    case TR_ROPE_LLAMA3:
        return llama3_frequency(t, f);
    case TR_ROPE_YARN:
        return yarn_frequency(r, t, i, f);
    case TR_ROPE_LONGROPE:
        return f / t->stretch[is_long][i];
    }
    return f;
}

void
tr_recipe_rope(const tr_recipe_t *r, uint32_t table, bool is_long,
               float *inv_freq, float *amp)
{
    const tr_rope_t *t = table == TR_ROPE_NONE ? NULL : &r->rope[table];

    for (uint32_t i = 0; i < r->head_dim / 2; i++) {
        bool rotates = t != NULL && i < r->rotary_dim / 2;

        inv_freq[i] = rotates ? (float) rope_frequency(r, t, is_long, i) : 0;
        amp[i] = rotates ? (float) t->amp : 1;
    }
}

uint32_t
tr_recipe_long_from(const tr_recipe_t *r)
{
    uint32_t from = 0;

    for (uint32_t i = 0; i < r->n_ropes; i++) {
        if (r->rope[i].type == TR_ROPE_LONGROPE
            && r->rope[i].original < r->max_positions) {
            from = r->rope[i].original;
        }
    }
    return from;
}

uint32_t
tr_recipe_rotary_source(const tr_recipe_t *r, uint32_t d)
{
    uint32_t half = r->head_dim / 2, rotary = r->rotary_dim / 2;
    uint32_t i = d % half, second = d / half;

    if (i < rotary) {
        return r->rope_interleaved ? 2 * i + second : i + second * rotary;
    }
    return 2 * rotary + (i - rotary) + second * (half - rotary);
}

/* ---- for people ---------------------------------------------------------- */

typedef struct {
    char *text;
    size_t n;
} page_t;

/* What does not fit is left out. */
__attribute__((format(printf, 2, 3))) static void
print(page_t *p, const char *format, ...)
{
    size_t room = TR_RECIPE_TEXT - p->n;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(p->text + p->n, room, format, args);
    va_end(args);
    p->n += n < 0 ? 0 : (size_t) n < room ? (size_t) n : room - 1;
}

static bool
layers_alike(const tr_layer_recipe_t *a, const tr_layer_recipe_t *b)
{
    return a->norms == b->norms && a->biases == b->biases
           && a->qk_norm == b->qk_norm && a->act == b->act && a->rope == b->rope
           && a->reach == b->reach && a->experts == b->experts
           && a->sinks == b->sinks;
}

static void
print_layers(page_t *p, const tr_recipe_t *r, uint32_t first, uint32_t last)
{
    const tr_layer_recipe_t *l = &r->layer[first];
    char norms[NAMED], biases[NAMED];

    name_set(norm_names, l->norms, norms);
    name_set(bias_names, l->biases, biases);
    print(p, first == last ? "layer %u" : "layers %u to %u", first, last);
    print(p, ": norms %s; qk_norm %s; biases %s; act %s", norms,
          qk_norm_names[l->qk_norm], biases, act_names[l->act]);
    if (l->rope == TR_ROPE_NONE) {
        print(p, "; no rope");
    } else {
        print(p, "; rope %u", l->rope);
    }
    if (l->reach != 0) {
        print(p, "; reach %u", l->reach);
    }
    if (l->sinks) {
        print(p, "; sinks");
    }
    if (l->experts) {
        print(p, "; %u of %u experts of %u", r->moe.route.top_k,
              r->moe.route.experts, r->moe.width);
    }
    print(p, "\n");
}

static void
print_rope(page_t *p, const tr_recipe_t *r, uint32_t i)
{
    const tr_rope_t *t = &r->rope[i];

    print(p, "rope %u: %s, theta %g", i, rope_names[t->type], t->theta);
    if (t->type != TR_ROPE_DEFAULT) {
        print(p, ", factor %g", t->factor);
    }
    if (t->type == TR_ROPE_LLAMA3) {
        print(p, ", low %g, high %g, original %u", t->low, t->high,
              t->original);
    }
    if (t->type == TR_ROPE_LONGROPE) {
        print(p, ", another table beyond %u tokens", t->original);
    }
    if (t->type == TR_ROPE_YARN) {
        print(p, ", beta %g to %g, original %u", t->beta_fast, t->beta_slow,
              t->original);
    }
    if (t->amp != 1) {
        print(p, ", amp %g", t->amp);
    }
    print(p, "\n");
}

/* Nothing for a model that scales nothing. */
static void
print_scales(page_t *p, const tr_recipe_t *r)
{
    const struct {
        const char *name;
        double value, neutral;
    } scales[] = {
        { "embeddings", r->embed_scale, 1 },
        { "residuals", r->residual_scale, 1 },
        { "logits", r->logit_scale, 1 },
        { "softcap", r->final_softcap, 0 },
        { "query temperature", r->query_temp.beta, 0 },
        { "rotary dims", r->rotary_dim, r->head_dim },
    };
    const char *before = "scales: ";

    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        if (scales[i].value != scales[i].neutral) {
            print(p, "%s%s %g", before, scales[i].name, scales[i].value);
            before = ", ";
        }
    }
    if (before[0] == ',') {
        print(p, "\n");
    }
}

void
tr_recipe_describe(const tr_recipe_t *r, char text[TR_RECIPE_TEXT])
{
    page_t p = { text, 0 };
    uint32_t first = 0;

    print(&p,
          "model: %u layers, hidden %u, mlp %u, %u query heads on %u KV heads "
          "of %u, vocabulary %u, %s head, %u positions, %" PRIu64
          " parameters\n",
          r->layers, r->hidden, r->intermediate, r->query_heads, r->kv_heads,
          r->head_dim, r->vocab, r->tied ? "tied" : "own", r->max_positions,
          tr_recipe_parameters(r));
    print_scales(&p, r);
    for (uint32_t l = 0; l < r->layers; l++) {
        if (l + 1 == r->layers
            || !layers_alike(&r->layer[first], &r->layer[l + 1])) {
            print_layers(&p, r, first, l);
            first = l + 1;
        }
    }
    for (uint32_t i = 0; i < r->n_ropes; i++) {
        print_rope(&p, r, i);
    }
}

/* ---- what a backend cannot run ------------------------------------------- */

static tr_status_t
refuse(const tr_recipe_support_t *can, uint32_t layer, const char *what,
       const char *has, const char *expected, tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                        "backend %s: layer %u of the model has %s %s, expected "
                        "%s",
                        can->name, layer, what, has, expected);
}

#define PRE_NORMS (TR_NORM_PRE_ATTN | TR_NORM_PRE_MLP)

static tr_status_t
check_choices(const tr_layer_recipe_t *l, uint32_t layer,
              const tr_recipe_support_t *can, tr_error_t *err)
{
    const struct {
        const char *what;
        const char *const *names;
        uint32_t has, may;
        bool right;
    } choices[] = {
        { "norms", norm_names, l->norms, PRE_NORMS,
          can->can & TR_CAN_NORMS || l->norms == PRE_NORMS },
        { "biases", bias_names, l->biases, can->biases,
          (l->biases & ~can->biases) == 0 },
        { "qk_norm", qk_norm_names, 1u << l->qk_norm, can->qk_norms,
          can->qk_norms >> l->qk_norm & 1 },
        { "act", act_names, 1u << l->act, can->acts, can->acts >> l->act & 1 },
    };

    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        char has[NAMED], may[NAMED];

        if (!choices[i].right) {
            name_set(choices[i].names, choices[i].has, has);
            name_set(choices[i].names, choices[i].may, may);
            return refuse(can, layer, choices[i].what, has, may, err);
        }
    }
    return TR_OK;
}

static tr_status_t
check_layer(const tr_recipe_t *r, uint32_t layer,
            const tr_recipe_support_t *can, tr_error_t *err)
{
    const tr_layer_recipe_t *l = &r->layer[layer];
    tr_status_t rc = check_choices(l, layer, can, err);
    char has[NAMED], may[NAMED];

    if (rc == TR_OK && (l->experts || l->sinks)
        && !(can->can & TR_CAN_EXPERTS)) {
        rc = refuse(can, layer, l->experts ? "an MLP" : "attention",
                    l->experts ? "of experts" : "with sinks",
                    l->experts ? "a single one" : "none", err);
    }
    if (rc == TR_OK && l->rope != 0 && !(can->can & TR_CAN_ROPES)) {
        snprintf(has, sizeof(has), l->rope == TR_ROPE_NONE ? "none" : "%u",
                 l->rope);
        rc = refuse(can, layer, "rope", has, "0", err);
    }
    if (rc == TR_OK && l->reach != 0 && l->reach < r->max_positions
        && !(can->can & TR_CAN_REACH)) {
        snprintf(has, sizeof(has), "%u", l->reach);
        snprintf(may, sizeof(may), "at least the %u positions of a sequence",
                 r->max_positions);
        rc = refuse(can, layer, "reach", has, may, err);
    }
    return rc;
}

static tr_status_t
check_model(const tr_recipe_t *r, const tr_recipe_support_t *can,
            tr_error_t *err)
{
    bool scales = r->embed_scale != 1 || r->residual_scale != 1
                  || r->logit_scale != 1 || r->final_softcap != 0;
    bool ropes = r->n_ropes != 1 || r->query_temp.beta != 0
                 || r->rotary_dim != r->head_dim || r->rope_interleaved;

    for (uint32_t i = 0; i < r->n_ropes; i++) {
        ropes = ropes || r->rope[i].amp != 1
                || r->rope[i].type == TR_ROPE_LONGROPE;
    }
    if (scales && !(can->can & TR_CAN_SCALES)) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "backend %s: the model scales embeddings by %g, "
                            "residuals by %g, logits by %g and caps logits at "
                            "%g, expected 1, 1, 1 and 0",
                            can->name, r->embed_scale, r->residual_scale,
                            r->logit_scale, r->final_softcap);
    }
    if (ropes && !(can->can & TR_CAN_ROPES)) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "backend %s: the model has %u tables of rotary "
                            "frequencies with amplitude %g on %u dims%s and "
                            "query temperature %g, expected 1, 1, %u and 0",
                            can->name, r->n_ropes, r->rope[0].amp,
                            r->rotary_dim,
                            r->rope_interleaved ? " in neighbouring pairs" : "",
                            r->query_temp.beta, r->head_dim);
    }
    return TR_OK;
}

tr_status_t
tr_recipe_check(const tr_recipe_t *r, const tr_recipe_support_t *can,
                tr_error_t *err)
{
    tr_status_t rc = check_model(r, can, err);

    for (uint32_t l = 0; rc == TR_OK && l < r->layers; l++) {
        rc = check_layer(r, l, can, err);
    }
    return rc;
}
