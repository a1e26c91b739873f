/*
 * How a layer with experts chooses among them: scores of the router's logits,
 * the best of a row, and the weights of what they compute.
 *
 * Of equal scores the lower index is taken, so that both backends and every batch
 * choose alike.
 */
#ifndef TR_ROUTE_H
#define TR_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#define TR_EXPERTS_MAX 1024u
#define TR_TOP_K_MAX 32u

typedef enum {
    TR_ROUTE_SOFTMAX,     /* over all experts; weights are its probabilities */
    TR_ROUTE_TOP_SOFTMAX, /* over the chosen ones' logits */
    TR_ROUTE_SIGMOID      /* of each logit */
} tr_route_score_t;

typedef struct {
    uint32_t experts, top_k;
    /* experts are chosen within the top_groups groups whose two best are best;
     * groups 1: among all */
    uint32_t groups, top_groups;
    tr_route_score_t score;
    bool renorm; /* weights are divided by their sum, */
    float scale; /* then multiplied with it */
} tr_route_t;

#endif
