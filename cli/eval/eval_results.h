/*
 * What came out: one record for each turn and policy, in memory and, with
 * --resume, in a file of JSON lines.
 *
 * A record is found again by its key, a hash of the model, the policy's
 * canonical spec, the case, the turn and how it was run (kept cache or not,
 * longest answer), so a file may hold the results of many runs, and what is
 * changed is run anew.  A line torn by a kill is cut off when the file is
 * opened.
 */
#ifndef TR_EVAL_RESULTS_H
#define TR_EVAL_RESULTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tokenring/error.h>

/* Parts of a window behind its prompt, by position, with --kl. */
#define TR_EVAL_PARTS 4u

typedef struct {
    bool done, right;
    bool skipped; /* does not fit the model's length: in no average */
    uint32_t prompt_tokens, tokens; /* tokens: answered */
    uint32_t reused; /* of the prompt, taken over from the cache */
    double kv_ratio; /* bytes over 16-bit bytes, each summed over steps */
    double high, low, pruned;
    double seconds; /* of the answer's own steps; 0: not told apart */
    double nll;     /* perplexity: mean negative log-likelihood, nats */
    /* of a job with `kl`, by part: the same, and the mean divergence of the
     * first policy's distribution from this one's, nats */
    double nll_by[TR_EVAL_PARTS], kl_by[TR_EVAL_PARTS];
} tr_eval_record_t;

/* A turn of a case, or a window of a text. */
typedef struct {
    const char *family; /* borrowed */
    uint32_t difficulty, case_index, turn;
    bool text;         /* a window of a text: nll counts, not right */
    bool kl;           /* the divergence is measured, too */
    uint32_t from, to; /* with kl: positions behind the prompt, [from, to) */
} tr_eval_job_t;

/* In which part position `at` of [from, to) is; where each begins. */
static inline uint32_t
tr_eval_part(const tr_eval_job_t *j, uint32_t at)
{
    return (uint32_t) ((uint64_t) (at - j->from) * TR_EVAL_PARTS
                       / (j->to - j->from));
}

static inline uint32_t
tr_eval_part_from(const tr_eval_job_t *j, uint32_t part)
{
    return j->from
           + (uint32_t) (((uint64_t) part * (j->to - j->from) + TR_EVAL_PARTS
                          - 1)
                         / TR_EVAL_PARTS);
}

typedef struct {
    uint32_t n_jobs, n_policies;
    tr_eval_job_t *jobs;
    const char **policies;     /* canonical specs, borrowed */
    tr_eval_record_t *records; /* [n_jobs][n_policies] */
    uint64_t *keys;            /* [n_jobs][n_policies] */
    FILE *file;                /* NULL without --resume */
} tr_eval_results_t;

tr_status_t tr_eval_results_init(tr_eval_results_t *r, uint32_t n_jobs,
                                 uint32_t n_policies, tr_error_t *err);
void tr_eval_results_free(tr_eval_results_t *r);

static inline tr_eval_record_t *
tr_eval_at(const tr_eval_results_t *r, uint32_t job, uint32_t policy)
{
    return &r->records[(size_t) job * r->n_policies + policy];
}

/* Reads what is there for our keys (which are set) and opens the file for
 * appending.  *found: records taken. */
tr_status_t tr_eval_results_resume(tr_eval_results_t *r, const char *path,
                                   uint32_t *found, tr_error_t *err);
/* Sets a record, and appends it to the file.  reply: its hash goes there, and
 * it itself when it is wrong; NULL for none. */
tr_status_t tr_eval_results_set(tr_eval_results_t *r, uint32_t job,
                                uint32_t policy, const tr_eval_record_t *record,
                                const char *reply, size_t reply_len,
                                tr_error_t *err);

#endif
