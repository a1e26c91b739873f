/*
 * What config.json says about quantised weights (quantization_config), read by
 * model_config_quant.c.
 *
 * Which tensors are quantised is not in here: the files say it.  A weight that
 * `ignore` or modules_to_not_convert names stands there as a plain one, under its
 * usual name, and is read as such.
 */
#ifndef TR_QUANTIZATION_H
#define TR_QUANTIZATION_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    TR_QUANT_NONE,
    TR_QUANT_FP8,
    TR_QUANT_MODELOPT,
    TR_QUANT_COMPRESSED, /* compressed-tensors */
    TR_QUANT_AWQ,
    TR_QUANT_GPTQ,
    TR_QUANT_MXFP4,
    TR_QUANT_METHODS
} tr_quant_method_t;

/* How some of the weights are quantised: blocks of rows x columns share a scale
 * (and a zero point); 0: all of them. */
typedef struct {
    bool is_float; /* codes are FP8 or FP4, else integers */
    bool symmetric;
    bool
        reordered; /* columns are in groups by a list of theirs, not in order */
    uint32_t bits; /* of a code */
    uint32_t rows, columns;
} tr_quant_scheme_t;

#define TR_QUANT_SCHEMES 8

typedef struct {
    tr_quant_method_t method;
    uint32_t n_schemes;
    tr_quant_scheme_t scheme[TR_QUANT_SCHEMES];
    uint32_t
        zero_less; /* files hold zero points less this (GPTQ's first form) */
    bool fp8_activations; /* it was made for activations in FP8, too */
} tr_quantization_t;

/* "compressed-tensors", as quant_method has it; "none". */
const char *tr_quant_method_name(tr_quant_method_t method);

#endif
