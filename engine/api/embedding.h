/*
 * How a model makes embeddings: what sentence-transformers keeps beside it, read
 * once at start.  A model without these files makes none, unless a setting says how.
 */
#ifndef TR_EMBEDDING_H
#define TR_EMBEDDING_H

#include <stdbool.h>

#include <tokenring/error.h>

enum tr_pooling {
    TR_POOLING_NONE, /* the model makes none */
    TR_POOLING_LAST, /* of the last token */
    TR_POOLING_MEAN  /* the mean over all tokens */
};

typedef struct {
    enum tr_pooling pooling;
    bool normalise; /* to length 1 */
} tr_embedding_t;

/* setting: "auto" reads DIR/1_Pooling/config.json, else "last", "mean" or
 * "none".  DIR/modules.json says whether vectors are normalised.  Files that
 * are not there say nothing; others that cannot be read are TR_ERR_FORMAT. */
tr_status_t tr_embedding_load(const char *dir, const char *setting,
                              tr_embedding_t *out, tr_error_t *err);

#endif
