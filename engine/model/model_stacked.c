/*
 * Experts that a file holds in one tensor (model_stacked.h).
 */
#include "model_stacked.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

static const struct {
    const char *part, *stacked;
    uint32_t of, which; /* so many parts has an expert there, which one is it */
} parts[] = {
    { "gate_proj.weight", "gate_up_proj", 2, 0 },
    { "up_proj.weight", "gate_up_proj", 2, 1 },
    { "down_proj.weight", "down_proj", 1, 0 },
};

/* "..experts.N.PART": where N stands, and which part; false: no such name. */
static bool
take_apart(const char *name, size_t *at, uint32_t *expert, size_t *part)
{
    const char *p = strstr(name, ".experts."), *rest;
    char *end;

    if (p == NULL || !isdigit((unsigned char) p[9])) {
        return false;
    }
    *at = (size_t) (p - name) + 9;
    *expert = (uint32_t) strtoul(p + 9, &end, 10);
    rest = *end == '.' ? end + 1 : "";
    for (*part = 0; *part < sizeof(parts) / sizeof(parts[0]); (*part)++) {
        if (strcmp(rest, parts[*part].part) == 0) {
            return true;
        }
    }
    return false;
}

static tr_status_t
check(const tr_tensor_t *t, uint64_t experts, uint64_t rows, uint64_t columns,
      tr_error_t *err)
{
    if (t->stored != TR_STORED_FLOAT) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, t->name,
                            "%s: tensor \"%.200s\" has dtype \"%s\", expected "
                            "F32, F16 or BF16 of experts in one tensor",
                            t->file, t->name, t->other);
    }
    if (t->n_dims == 3 && t->dims[0] == experts && t->dims[1] == rows
        && t->dims[2] == columns) {
        return TR_OK;
    }
    return tr_error_set(err, TR_ERR_FORMAT, t->name,
                        "%s: tensor \"%.200s\" has %u dimensions, [%llu, %llu, "
                        "%llu]; config.json says [%llu, %llu, %llu]",
                        t->file, t->name, t->n_dims,
                        (unsigned long long) (t->n_dims > 0 ? t->dims[0] : 0),
                        (unsigned long long) (t->n_dims > 1 ? t->dims[1] : 0),
                        (unsigned long long) (t->n_dims > 2 ? t->dims[2] : 0),
                        (unsigned long long) experts, (unsigned long long) rows,
                        (unsigned long long) columns);
}

tr_status_t
tr_model_stacked_part(const tr_model_config_t *c, const tr_safetensors_t *st,
                      const tr_model_tensor_t *wanted, tr_tensor_t *out,
                      tr_error_t *err)
{
    const uint32_t experts = c->recipe.moe.route.experts;
    char name[TR_TENSOR_NAME + 32];
    const tr_tensor_t *whole;
    uint32_t expert;
    size_t at, part;
    uint64_t bytes;
    tr_status_t rc;

    memset(out, 0, sizeof(*out));
    if (!take_apart(wanted->name, &at, &expert, &part)
        || tr_model_tensor_named(st, wanted->name) != NULL) {
        return TR_OK;
    }
    snprintf(name, sizeof(name), "%.*s%s", (int) at, wanted->name,
             parts[part].stacked);
    whole = tr_model_tensor_named(st, name);
    if (whole == NULL) {
        return TR_OK;
    }
    rc = check(whole, experts, (uint64_t) wanted->rows * parts[part].of,
               wanted->columns, err);
    if (rc != TR_OK) {
        return rc;
    }
    bytes = (uint64_t) wanted->rows * wanted->columns
            * tr_dtype_size(whole->dtype);
    *out = (tr_tensor_t){
        .dtype = whole->dtype,
        .n_dims = 2,
        .dims = { wanted->rows, wanted->columns },
        .data = (const uint8_t *) whole->data
                + (expert * (uint64_t) parts[part].of + parts[part].which)
                      * bytes,
        .size = bytes,
        .file = whole->file,
        .whole = whole,
    };
    return TR_OK;
}
