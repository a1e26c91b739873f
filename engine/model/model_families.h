/*
 * What is peculiar to a family of models: one row of a table each.
 *
 * The only readers are model_config.c (keys, layers) and model_tensors.c (names
 * of tensors).  How to add a family: model_families.c.
 */
#ifndef TR_MODEL_FAMILIES_H
#define TR_MODEL_FAMILIES_H

#include "model_config.h"

struct tr_config_reader; /* model_config_internal.h */

/* What a key of config.json may hold; null counts as absent. */
typedef enum {
    TR_KEY_UINT,  /* an integer from min to max */
    TR_KEY_FLOAT, /* a number from min to max */
    TR_KEY_BOOL,  /* true or false */
    TR_KEY_TOKEN, /* a token id, -1 when absent */
    TR_KEY_ACT,   /* the name of the activation in the family's row, no other */
    TR_KEY_FALSE, /* false: we have nothing for true */
    TR_KEY_ABSENT, /* nothing at all */
    TR_KEY_ONLY,   /* the one value that we compute, or nothing */
} tr_config_kind_t;

typedef struct {
    const char *name;
    tr_config_kind_t kind;
    uint32_t at; /* UINT, FLOAT, BOOL, TOKEN: offset in tr_model_config_t */
    double otherwise;   /* UINT, FLOAT, BOOL: when absent; < 0: it must be
                         * there */
    double min, max;    /* UINT, FLOAT */
    const char *reason; /* ABSENT: what is wrong and what was expected; ONLY:
                         * the value, as JSON */
} tr_config_key_t;

/* Which rows of its part a tensor is. */
typedef enum {
    TR_ROWS_ALL,
    TR_ROWS_FIRST_HALF,
    TR_ROWS_SECOND_HALF,
    TR_ROWS_QUERIES,
    TR_ROWS_KEYS,
    TR_ROWS_VALUES,
    /* of one expert, whose number stands in the name for '*' */
    TR_ROWS_EXPERT,
    TR_ROWS_EXPERT_FIRST_HALF,
    TR_ROWS_EXPERT_SECOND_HALF,
    /* of all experts, in a dimension of its own in front; PAIRS: row 2 i is of the
     * first half, row 2 i + 1 of the second; TRANSPOSED: [experts][columns][rows] */
    TR_ROWS_STACKED,
    TR_ROWS_STACKED_PAIRS,
    TR_ROWS_STACKED_TRANSPOSED,
    TR_ROWS_STACKED_TRANSPOSED_PAIRS
} tr_tensor_rows_t;

typedef struct {
    tr_part_t part;
    const char *name; /* of a layer's part: behind "model.layers.N." */
    tr_tensor_rows_t rows;
} tr_tensor_name_t;

typedef struct tr_family {
    const char *model_type;
    tr_layer_recipe_t layer; /* every layer, before fold */
    bool always_slides;      /* sliding_window counts unless use_sliding_window
                              * is false; else only where that is true */
    uint32_t slide_pattern;  /* without layer_types, layer l slides unless l + 1
                              * is a multiple of it; 0: all do, or from
                              * max_window_layers on */
    bool local_rope;         /* sliding layers have frequencies of their own, */
    double local_theta;      /* of this base (0: the others'), unscaled */
    double theta;            /* without rope_theta; 0: 10,000 */
    double partial_rotary;   /* without partial_rotary_factor; 0: 1 */
    bool rope_interleaved;   /* tr_recipe_t */
    bool norm_plus_one;      /* tr_recipe_t */
    const tr_config_key_t *keys; /* up to a name NULL */
    /* of the model, then of a layer, in the order of loading; up to a name NULL */
    const tr_tensor_name_t *tensors;
    /* NULL, or what no row can say: called when keys are read, layers filled */
    void (*fold)(struct tr_config_reader *r, tr_model_config_t *c);
} tr_family_t;

/* NULL: there is none of that name. */
const tr_family_t *tr_family_find(const char *model_type);

/* "a, b or c" of all there are. */
#define TR_FAMILY_NAMES 256
void tr_family_names(char text[TR_FAMILY_NAMES]);

#endif
