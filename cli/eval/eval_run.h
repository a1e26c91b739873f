/*
 * Running cases over policies: a small continuous batch of its own, directly on
 * the executor.
 *
 * A prompt is computed once, in the slot of a policy that keeps scores: the
 * shared prefix.  When all of it is cached, its last logits give the first
 * token of every answer (chunks attend to uncompressed keys, so these logits
 * are the same under all policies).  Then each policy gets a branch: a copy of
 * the cache that it compresses, and from which it decodes greedily to an end
 * token or the turn's limit.  The engine does the same with a request, so a
 * branch answers as `tokenring generate -t 0` does under that policy.
 *
 * Turn by turn, each with the reference history before it: the prompt of a turn
 * is the beginning of the next one's, so its slot goes on after the branches
 * were taken.  Policies that weigh the last queries of a prompt apart (snapkv)
 * branch a little before its end, and compute the rest once for all of them.
 *
 * keep_turns: each policy keeps its branch through the conversation.  The next
 * message is computed on top of the compressed cache and the model's own
 * answer, then compressed itself.
 *
 * reuse: policies that are `reused` (eval_engine.h) answer behind a cached prefix
 * (eval_reuse.c), and those that are not, as ever.
 *
 * A text (perplexity): the first part of a window is the prompt, and the text
 * itself is the answer, token by token under the compressed cache.  The
 * likelihood of every token but the first counts.  With `kl` the first policy's
 * logits of a window are kept (eval_kl.c), the others' steps wait for them, and
 * the divergence of each prediction counts, too.
 */
#ifndef TR_EVAL_RUN_H
#define TR_EVAL_RUN_H

#include "eval_case.h"
#include "eval_engine.h"
#include "eval_results.h"

typedef enum {
    TR_EVAL_NO_REUSE,
    TR_EVAL_SHARED,    /* another question about the same document was there */
    TR_EVAL_REGENERATE /* an answer goes on from its middle */
} tr_eval_reuse_t;

/* A case, or a window of a text. */
typedef struct {
    const tr_eval_case_t *c;            /* NULL: a text */
    const tr_eval_case_t *neighbour[2]; /* in front and behind, or NULL */
    const int32_t *ids;                 /* text: prompt and what follows */
    uint32_t n_prompt, n_ids;
    uint32_t first_job, n_turns; /* its jobs in the results */
} tr_eval_task_t;

typedef struct {
    uint32_t done, total; /* answers: turns times policies */
    uint64_t prompt_tokens, tokens;
    double seconds;
} tr_eval_progress_t;

typedef struct {
    tr_eval_engine_t *engine; /* started */
    tr_eval_results_t *results;
    const tr_eval_task_t *tasks;
    uint32_t n_tasks;
    bool keep_turns;
    tr_eval_reuse_t reuse; /* not with keep_turns, nor of texts */
    bool kl;               /* of texts: the divergence from the first policy */
    bool separate;         /* one policy a step, for tokens/s */
    uint32_t max_tokens;   /* of an answer whose case does not say */
    /* Every half second and at the end; NULL: none. */
    void (*progress)(const tr_eval_progress_t *p, bool last);
    tr_eval_progress_t state; /* begin with zeros; adds up over runs */
} tr_eval_run_t;

/* Runs what is not done for the engine's running policies.  TR_ERR_CLOSED: the
 * user interrupted it. */
tr_status_t tr_eval_run(tr_eval_run_t *run, tr_error_t *err);

#endif
