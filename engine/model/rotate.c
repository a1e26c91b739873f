/*
 * rotate.h: the setting, and the weights of values.
 */
#include "rotate.h"

#include <string.h>

#include "engine/config/log.h"
#include "kernels/hadamard.h"

static const char *const names[] = { "off", "k", "v", "kv" };

uint32_t
tr_rotate_bits(const char *setting)
{
    if (strcmp(setting, "auto") == 0) {
        return TR_ROTATE_AUTO;
    }
    return (strchr(setting, 'k') != NULL ? TR_ROTATE_KEYS : 0)
           | (strchr(setting, 'v') != NULL ? TR_ROTATE_VALUES : 0);
}

const char *
tr_rotate_name(uint32_t bits)
{
    return bits == TR_ROTATE_AUTO ? "auto" : names[bits];
}

uint32_t
tr_rotate_resolve(const tr_model_config_t *m, uint32_t bits, bool packed,
                  bool quantised)
{
    const uint32_t dim = m->recipe.head_dim;

    if (bits != TR_ROTATE_AUTO) {
        return bits;
    }
    packed = quantised || (packed && m->quantization.method != TR_QUANT_NONE);
    bits = !tr_hadamard_has(dim) ? 0
           : packed              ? TR_ROTATE_KEYS
                                 : TR_ROTATE_KEYS | TR_ROTATE_VALUES;
    tr_log(TR_LEVEL_NOTICE, "kv_rotate=%s head_dim=%u", names[bits], dim);
    return bits;
}

tr_status_t
tr_rotate_check(const tr_recipe_t *r, uint32_t bits, tr_error_t *err)
{
    if (bits != 0 && bits != TR_ROTATE_AUTO && !tr_hadamard_has(r->head_dim)) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "kv_rotate",
                            "kv_rotate is %s, but the model has heads of %u, "
                            "expected a power of two from 16 to %u",
                            names[bits], r->head_dim, TR_HEAD_DIM_MAX);
    }
    return TR_OK;
}

/* The row of a layer's query, key and value rows where values begin. */
static uint32_t
values_at(const tr_recipe_t *r)
{
    return (r->query_heads + r->kv_heads) * r->head_dim;
}

uint32_t
tr_rotate_rows(const tr_recipe_t *r, uint32_t bits, const tr_model_tensor_t *t)
{
    bool rows = t->part == TR_PART_QKV || t->part == TR_PART_QKV_BIAS;

    if ((bits & TR_ROTATE_VALUES) == 0) {
        return 0;
    }
    if (rows) {
        return t->row + t->rows > values_at(r) ? r->head_dim : 0;
    }
    return t->part == TR_PART_O ? 1 : 0;
}

void
tr_rotate_weights(const tr_recipe_t *r, const tr_model_tensor_t *t,
                  uint32_t row, uint32_t rows, float *x)
{
    size_t columns = t->columns;
    uint32_t dim = r->head_dim;

    if (t->part == TR_PART_O) { /* a row w of Wo R^T is R w, head by head */
        for (size_t i = 0; i < rows * columns; i += dim) {
            tr_hadamard(x + i, 1, dim);
        }
        return;
    }
    for (uint32_t i = 0; i < rows; i += dim) {
        bool values = t->row + row + i >= values_at(r);

        for (size_t j = 0; values && j < columns; j++) {
            tr_hadamard(x + i * columns + j, columns, dim);
        }
    }
}
