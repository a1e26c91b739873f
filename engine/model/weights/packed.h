/*
 * Quantised weights.
 *
 * A checkpoint that is quantised holds, in place of a weight, small integers or
 * floats (codes), and for each block of them a scale, sometimes a zero point:
 *
 *     weight = (code - zero) * scale
 *
 * How codes are packed into words, where the scales stand and what all of it is
 * called depends on the program that wrote it.  `tr_packed_formats` (packed.c) has
 * a row for each of these formats; a layout_*.c has what belongs to one way of
 * packing: the check of its shapes, and the reading of a few weights of a row.
 *
 * When a model's files are opened, tr_packed_find looks for every weight whether
 * it is there as codes, checks all that belongs to it, and the reader gets a
 * tensor that stands for them (safetensors.h).  From then on nobody sees the
 * difference: tr_tensor_read gives weights, rounded to the 16-bit type that the
 * file's scales have, else to BF16.  So a model has the same bits as its twin
 * whose file holds these 16-bit weights, on every backend.
 *
 * To add a format:
 *   1. A quant_method of its own: tr_quant_method_t (quantization.h), and a row in
 *      `methods` of model_config_quant.c.
 *   2. A row in tr_packed_formats, and a file where no existing layout fits.
 *   3. To compute from its codes instead of 16 bits: `kept`, and what
 *      cpu/model_codes.c or cuda/model_cuda_packed.c turns them into
 *      (kernels/kernels.h, kernels/weight_form.h).
 *   4. tests/unit/model/test_packed.c, test_packed_hostile.c for damaged files,
 *      models/pocket/quantise.py to make models of it, docs/models.md.
 *
 * What the layouts follow, by what wrote them:
 *   compressed-tensors  vllm-project/compressed-tensors, compressors/pack_quantized
 *   AWQ                 casper-hansen/AutoAWQ, awq/utils/packing_utils.py
 *   GPTQ                AutoGPTQ and ModelCloud/GPTQModel, qlinear packing
 *   FP8                 deepseek-ai/DeepSeek-V3 (weight_scale_inv), NVIDIA modelopt
 *   MXFP4               openai/gpt-oss; OCP Microscaling Formats 1.0 for E2M1, E8M0
 */
#ifndef TR_PACKED_H
#define TR_PACKED_H

#include "engine/model/model_tensors.h"
#include "engine/model/safetensors.h"

#include "quantization.h"

typedef struct tr_packed tr_packed_t;

typedef enum {
    TR_PACKED_CODES,
    TR_PACKED_SCALES,
    TR_PACKED_ZEROS,
    TR_PACKED_GROUPS, /* which group each column belongs to */
    TR_PACKED_SHAPE,  /* [2], of the weight */
    TR_PACKED_PARTS
} tr_packed_part_t;

#define TR_PACKED_ON_CPU 1u
#define TR_PACKED_ON_CUDA 2u

typedef struct {
    const char *name; /* "FP8", for people */
    uint32_t methods; /* bits 1 << tr_quant_method_t that write it */
    uint32_t kept;    /* bits TR_PACKED_ON_*: who may keep its codes */
    const char *stem; /* what the parts' names replace at a weight's end */
    struct {
        const char *name; /* NULL: there is none */
        uint32_t stored;  /* bits 1 << tr_stored_t */
        bool optional;
    } part[TR_PACKED_PARTS];
    /* All shapes, which scheme it is, numbers that are places; fills what follows
     * in tr_packed_t. */
    tr_status_t (*check)(tr_packed_t *p, const tr_quantization_t *q,
                         tr_error_t *err);
    /* Weights [from, from + n) of a row, unrounded. */
    void (*read)(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
                 float *out);
    /* For who keeps codes: those [from, from + n) of a row, a byte each, and
     * scale and zero point of one of its groups.  Signed integers of 8 bits have
     * 128 added; FP8 and E2M1 are as in the file, and have no zero point. */
    void (*codes)(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
                  uint8_t *out);
    float (*scale)(const tr_packed_t *p, uint32_t row, uint32_t group,
                   uint32_t *zero);
} tr_packed_format_t;

/* A weight [rows][columns]; of stacked experts all rows. */
struct tr_packed {
    const tr_packed_format_t *format;
    const char *name; /* of the weight; of the reader */
    const tr_tensor_t *part[TR_PACKED_PARTS];
    tr_dtype_t dtype;                   /* what weights are rounded to */
    uint32_t rows, columns, experts;    /* experts: 0, or of so many */
    uint32_t bits;                      /* of a code */
    uint32_t block_rows, block_columns; /* of a scale */
    uint32_t blocks;    /* scales beside each other, over the columns */
    bool reordered;     /* tr_quant_scheme_t */
    uint32_t zero_less; /* tr_quantization_t */
};

/* All formats, up to a name NULL. */
extern const tr_packed_format_t tr_packed_formats[];

/* Looks for the parts of a quantised weight; *out is allocated, or NULL when the
 * files have none.  TR_ERR_FORMAT: the error names the tensor that is missing, of
 * another shape, or holds what is no scale or no group. */
tr_status_t tr_packed_find(const tr_quantization_t *q,
                           const tr_safetensors_t *st,
                           const tr_model_tensor_t *t, tr_packed_t **out,
                           tr_error_t *err);

/* tr_tensor_read and tr_safetensors_release of such a tensor. */
void tr_packed_read(const tr_tensor_t *t, size_t first, size_t n, float *out);
void tr_packed_release(const tr_packed_t *p);

/* Are all codes numbers?  FP8 has two that are none.  Reads all of them, so it is
 * asked where they are loaded.  TR_ERR_FORMAT names the tensor and the place. */
tr_status_t tr_packed_check_codes(const tr_packed_t *p, tr_error_t *err);

/* Is every column in the group that it has by its number? */
bool tr_packed_in_order(const tr_packed_t *p);

/* Bytes in the files. */
uint64_t tr_packed_bytes(const tr_packed_t *p);

/* Says in the log, at level info, that it is kept in 16 bits. */
void tr_packed_say_expanded(const tr_packed_t *p);

/* ---- for layouts ---------------------------------------------------------- */

/* TR_ERR_FORMAT unless the part has that shape; n dims. */
tr_status_t tr_packed_expect(const tr_packed_t *p, tr_packed_part_t part,
                             uint32_t n, const uint64_t *dims, tr_error_t *err);

/* The first scheme of these codes; fills bits and block.  TR_ERR_UNSUPPORTED: the
 * configuration has none. */
tr_status_t tr_packed_scheme(tr_packed_t *p, const tr_quantization_t *q,
                             bool is_float, uint32_t bits, tr_error_t *err);

/* Fills bits and block for a scheme. */
void tr_packed_set_scheme(tr_packed_t *p, const tr_quant_scheme_t *s);

/* Are the scheme's zero points there?  Is g_idx, where columns are reordered, and
 * are its numbers groups? */
tr_status_t tr_packed_check_zeros(const tr_packed_t *p, bool symmetric,
                                  tr_error_t *err);
tr_status_t tr_packed_check_groups(const tr_packed_t *p, tr_error_t *err);

/* Scale i of a part, or word i. */
float tr_packed_scale(const tr_packed_t *p, size_t i);

static inline uint32_t
tr_packed_word(const tr_tensor_t *t, size_t i)
{
    uint32_t w;

    memcpy(&w, (const uint8_t *) t->data + 4 * i, 4);
    return w;
}

/* The group of a column. */
static inline uint32_t
tr_packed_group(const tr_packed_t *p, uint32_t column)
{
    const tr_tensor_t *groups = p->part[TR_PACKED_GROUPS];

    return groups != NULL ? tr_packed_word(groups, column)
                          : column / p->block_columns;
}

/* The formats' checks and reads, one file each. */
#define TR_PACKED_LAYOUT(name)                                                \
    tr_status_t tr_##name##_check(tr_packed_t *p, const tr_quantization_t *q, \
                                  tr_error_t *err);                           \
    void tr_##name##_read(const tr_packed_t *p, uint32_t row, uint32_t from,  \
                          uint32_t n, float *out)
TR_PACKED_LAYOUT(bytes);
TR_PACKED_LAYOUT(words);
TR_PACKED_LAYOUT(awq);
TR_PACKED_LAYOUT(gptq);
TR_PACKED_LAYOUT(mxfp4);
#undef TR_PACKED_LAYOUT

/* Codes and scales of those that have them. */
#define TR_PACKED_CODES_OF(name)                                              \
    void tr_##name##_codes(const tr_packed_t *p, uint32_t row, uint32_t from, \
                           uint32_t n, uint8_t *out);                         \
    float tr_##name##_scale(const tr_packed_t *p, uint32_t row,               \
                            uint32_t group, uint32_t *zero)
TR_PACKED_CODES_OF(bytes);
TR_PACKED_CODES_OF(words);
TR_PACKED_CODES_OF(awq);
TR_PACKED_CODES_OF(gptq);
TR_PACKED_CODES_OF(mxfp4);
#undef TR_PACKED_CODES_OF

#endif
