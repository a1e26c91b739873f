/*
 * What `tokenring eval` and `tokenring calibrate` share: their options, and one
 * run from cases and policies to results.
 */
#ifndef TR_EVAL_SESSION_H
#define TR_EVAL_SESSION_H

#include "eval_run.h"
#include "cli/options.h"

typedef struct {
    const char *dir;
    tr_option_list_t set, cases, families;
    const char *kv_memory, *resume, *text;
    int64_t threads, batch, limit, max_tokens;
    int64_t window, prefix, windows; /* of the text, in tokens; how many */
    uint32_t min_windows;            /* fewer are an error */
    bool keep_turns, shared_prefix, regenerate, separate, verbose;
    bool kl; /* of the text */
} tr_eval_options_t;

/* Answers at once with `kl`: as many logits as one batch gives, with room for the
 * prompts beside them (executor.h). */
#define TR_KL_BATCH 200u

#define TR_EVAL_DEFAULTS                               \
    {                                                  \
        .batch = 64, .max_tokens = 512, .window = 1024 \
    }

#define TR_EVAL_ROW(name, letter, kind, value, arg, help, min, max) \
    {                                                               \
        name, letter, kind, value, arg, help, min, max, NULL, false \
    }

#define TR_EVAL_OPTIONS(o)                                                    \
    TR_EVAL_ROW("The model", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0),     \
        TR_EVAL_ROW("model", 'm', TR_OPTION_TEXT, &(o).dir, "DIR",            \
                    "a Hugging Face directory", 0, 0),                        \
        TR_EVAL_ROW("threads", 0, TR_OPTION_INT, &(o).threads, "N",           \
                    "compute threads (default: one for each core)", 0, 1024), \
        TR_EVAL_ROW("kv-memory", 0, TR_OPTION_TEXT, &(o).kv_memory, "SIZE",   \
                    "of the KV cache (default 2g)", 0, 0),                    \
        TR_EVAL_ROW("batch", 0, TR_OPTION_INT, &(o).batch, "N",               \
                    "answers at once (default 64)", 1, 2048),                 \
        TR_EVAL_ROW("set", 0, TR_OPTION_LIST, &(o).set, "KEY=VALUE",          \
                    "an engine setting, may be repeated", 0, 0),              \
        TR_EVAL_ROW("verbose", 'v', TR_OPTION_FLAG, &(o).verbose, NULL,       \
                    "show the engine's log", 0, 0),                           \
        TR_EVAL_ROW("The cases", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0), \
        TR_EVAL_ROW("cases", 'c', TR_OPTION_LIST, &(o).cases, "FILE",         \
                    "JSON lines, may be repeated, - for standard input", 0,   \
                    0),                                                       \
        TR_EVAL_ROW("family", 0, TR_OPTION_LIST, &(o).families, "NAME",       \
                    "only this family, may be repeated", 0, 0),               \
        TR_EVAL_ROW("limit", 0, TR_OPTION_INT, &(o).limit, "N",               \
                    "the first N of each family and difficulty", 1, 1e9),     \
        TR_EVAL_ROW("max-tokens", 'n', TR_OPTION_INT, &(o).max_tokens, "N",   \
                    "longest answer where a case does not say (default 512)", \
                    1, 1 << 24),                                              \
        TR_EVAL_ROW("keep-turns", 0, TR_OPTION_FLAG, &(o).keep_turns, NULL,   \
                    "keep one cache through the turns of a conversation", 0,  \
                    0),                                                       \
        TR_EVAL_ROW("separate", 0, TR_OPTION_FLAG, &(o).separate, NULL,       \
                    "one policy per step, to measure tokens/s for each", 0,   \
                    0),                                                       \
        TR_EVAL_ROW("resume", 0, TR_OPTION_TEXT, &(o).resume, "FILE",         \
                    "keep results in this file, and skip those it already "   \
                    "has",                                                    \
                    0, 0)

#define TR_EVAL_REUSE_OPTIONS(o)                                              \
    TR_EVAL_ROW("shared-prefix", 0, TR_OPTION_FLAG, &(o).shared_prefix, NULL, \
                "also answer each case with its document cached already, by " \
                "a neighbouring case about the same document",                \
                0, 0),                                                        \
        TR_EVAL_ROW("regenerate", 0, TR_OPTION_FLAG, &(o).regenerate, NULL,   \
                    "also continue each answer from its middle, on top of "   \
                    "its cached first half",                                  \
                    0, 0)

#define TR_EVAL_TEXT_OPTIONS(o)                                                \
    TR_EVAL_ROW("perplexity", 0, TR_OPTION_TEXT, &(o).text, "TEXT",            \
                "measure how well a text file is predicted", 0, 0),            \
        TR_EVAL_ROW("kl", 0, TR_OPTION_FLAG, &(o).kl, NULL,                    \
                    "--perplexity: also how far predictions are from the "     \
                    "first policy's (KL divergence), by position",             \
                    0, 0),                                                     \
        TR_EVAL_ROW("window", 0, TR_OPTION_INT, &(o).window, "N",              \
                    "--perplexity: tokens of a window (default 1024)", 16,     \
                    1 << 24),                                                  \
        TR_EVAL_ROW("prefix", 0, TR_OPTION_INT, &(o).prefix, "N",              \
                    "--perplexity: how many are the prompt (default half)", 1, \
                    1 << 24),                                                  \
        TR_EVAL_ROW("windows", 0, TR_OPTION_INT, &(o).windows, "N",            \
                    "--perplexity: the first N windows only", 1, 1e9)

typedef struct {
    const char *command; /* "tokenring eval", for messages; set by the caller */
    tr_eval_engine_t engine;
    tr_eval_cases_t cases;
    tr_ids_t *windows; /* of the text */
    uint32_t n_windows;
    uint32_t prefix; /* tokens of a window that are its prompt */
    tr_eval_task_t *tasks;
    uint32_t n_tasks;
    tr_eval_results_t results;
    tr_eval_progress_t spent;
    uint32_t found; /* results that were there already */
} tr_eval_session_t;

/* The cases that the options name; free them with tr_eval_cases_free, on failure
 * as well. */
tr_status_t tr_eval_session_cases(const tr_eval_options_t *options,
                                  tr_eval_cases_t *cases, tr_error_t *err);

/* Opens, reads, runs.  specs: borrowed for the call.  On failure the
 * session has what is done so far (results may be reported when
 * results.n_jobs is not 0); close it in any case. */
tr_status_t tr_eval_session_run(tr_eval_session_t *s,
                                const tr_eval_options_t *options,
                                const char *const *specs, uint32_t n,
                                tr_error_t *err);
void tr_eval_session_close(tr_eval_session_t *s);

#endif
