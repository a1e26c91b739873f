/*
 * The sampling options that generate, chat and bench share.  Only what was
 * given enters the request body: the rest is the engine's default.
 */
#ifndef TR_SAMPLING_OPTIONS_H
#define TR_SAMPLING_OPTIONS_H

#include "options.h"

typedef struct {
    int64_t max_tokens, min_tokens, top_k, seed;
    double temperature, top_p, min_p;
    double presence, frequency, repetition;
    bool ignore_eos;
    tr_option_list_t stop;
} tr_sampling_options_t;

#define TR_LENGTH_OPTIONS(s)                                                   \
    { "max-tokens",                                                            \
      'n',                                                                     \
      TR_OPTION_INT,                                                           \
      &(s).max_tokens,                                                         \
      "N",                                                                     \
      "most tokens in an answer",                                              \
      1,                                                                       \
      1 << 24,                                                                 \
      "max_tokens",                                                            \
      false },                                                                 \
        { "min-tokens",                                                        \
          0,                                                                   \
          TR_OPTION_INT,                                                       \
          &(s).min_tokens,                                                     \
          "N",                                                                 \
          "no end before N tokens",                                            \
          0,                                                                   \
          1 << 24,                                                             \
          "min_tokens",                                                        \
          false },                                                             \
    {                                                                          \
        "ignore-eos", 0, TR_OPTION_FLAG, &(s).ignore_eos, NULL,                \
            "continue past the model's end of text", 0, 0, "ignore_eos", false \
    }

/* bench has its own way to say how long answers are */
#define TR_SAMPLING_OPTIONS(s)                                                  \
    { "Sampling (the engine's default where not given)",                        \
      0,                                                                        \
      TR_OPTION_GROUP,                                                          \
      NULL,                                                                     \
      NULL,                                                                     \
      NULL,                                                                     \
      0,                                                                        \
      0,                                                                        \
      NULL,                                                                     \
      false },                                                                  \
        { "temperature",                                                        \
          't',                                                                  \
          TR_OPTION_NUMBER,                                                     \
          &(s).temperature,                                                     \
          "X",                                                                  \
          "0 is greedy",                                                        \
          0,                                                                    \
          2,                                                                    \
          "temperature",                                                        \
          false },                                                              \
        { "top-p",                                                              \
          0,                                                                    \
          TR_OPTION_NUMBER,                                                     \
          &(s).top_p,                                                           \
          "X",                                                                  \
          "sample from the smallest set of this probability (0: one token, "    \
          "1: off)",                                                            \
          0,                                                                    \
          1,                                                                    \
          "top_p",                                                              \
          false },                                                              \
        { "top-k",    0,       TR_OPTION_INT,                                   \
          &(s).top_k, "N",     "sample from the N most likely tokens (0: off)", \
          0,          1 << 24, "top_k",                                         \
          false },                                                              \
        { "min-p",                                                              \
          0,                                                                    \
          TR_OPTION_NUMBER,                                                     \
          &(s).min_p,                                                           \
          "X",                                                                  \
          "drop tokens less than X times as likely as the best",                \
          0,                                                                    \
          1,                                                                    \
          "min_p",                                                              \
          false },                                                              \
        { "presence-penalty",                                                   \
          0,                                                                    \
          TR_OPTION_NUMBER,                                                     \
          &(s).presence,                                                        \
          "X",                                                                  \
          "from -2 to 2",                                                       \
          -2,                                                                   \
          2,                                                                    \
          "presence_penalty",                                                   \
          false },                                                              \
        { "frequency-penalty",                                                  \
          0,                                                                    \
          TR_OPTION_NUMBER,                                                     \
          &(s).frequency,                                                       \
          "X",                                                                  \
          "from -2 to 2",                                                       \
          -2,                                                                   \
          2,                                                                    \
          "frequency_penalty",                                                  \
          false },                                                              \
        { "repetition-penalty",                                                 \
          0,                                                                    \
          TR_OPTION_NUMBER,                                                     \
          &(s).repetition,                                                      \
          "X",                                                                  \
          "above 0, 1: off",                                                    \
          1e-6,                                                                 \
          10,                                                                   \
          "repetition_penalty",                                                 \
          false },                                                              \
        { "seed",    's', TR_OPTION_INT,                                        \
          &(s).seed, "N", "the same seed gives the same answer",                \
          0,         0,   "seed",                                               \
          false },                                                              \
    {                                                                           \
        "stop", 0, TR_OPTION_LIST, &(s).stop, "TEXT",                           \
            "stop before this text, may be repeated", 0, 0, "stop", false       \
    }

#endif
