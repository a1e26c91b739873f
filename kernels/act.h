/*
 * The activation functions of an MLP's gate: out = act(gate) * up.
 *
 * A model's recipe names one for each layer; kernels take it as an argument, and
 * a backend says which of them it has.
 */
#ifndef TR_ACT_H
#define TR_ACT_H

typedef enum {
    TR_ACT_SILU,      /* x / (1 + e^-x) */
    TR_ACT_GELU_TANH, /* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    TR_ACT_OAI,       /* gpt-oss: g = min(gate, 7), u = up within +-7:
                 * (u + 1) g / (1 + e^(-1.702 g)), in place of act(gate) * up */
    TR_ACTS
} tr_act_t;

#endif
