/*
 * The parts of the eval driver (eval_run.h).  A prefix is the prompt of one
 * task, computed once and shared; a branch is one answer, under one policy.
 */
#ifndef TR_EVAL_INTERNAL_H
#define TR_EVAL_INTERNAL_H

#include "eval_run.h"

#define NO_SLOT (-1)

typedef struct prefix prefix_t;

typedef enum {
    BRANCH_FREE,
    BRANCH_COMPRESS, /* its prompt is cached, the policy has yet to see it */
    BRANCH_DECODE,
    /* keep_turns: the next message; reuse: what is not cached; a prompt that is
     * compressed in stages: all of it */
    BRANCH_PROMPT
} branch_state_t;

typedef struct {
    branch_state_t state;
    prefix_t *prefix;
    uint32_t policy, turn;
    int32_t slot;
    uint32_t len;    /* tokens cached */
    uint32_t prompt; /* of them, those of the turn's prompt */
    uint64_t charge; /* pages set aside */

    int32_t *out; /* [out_cap] the answer's tokens; a text's are the task's */
    uint32_t n_out, out_cap, limit;
    tr_ids_t next; /* PROMPT: its tokens that were not cached */
    uint32_t next_at;
    tr_sampled_t sampled;
    bool leaves;     /* this answer is only to be in the cache */
    uint32_t reused; /* tokens that it began with */

    uint32_t steps;
    double bytes, full_bytes, high, low, pruned, nll, seconds;
    float *logits; /* kl, but of the first policy: [vocab] */
    double nll_by[TR_EVAL_PARTS], kl_by[TR_EVAL_PARTS]; /* sums */
    uint32_t n_by[TR_EVAL_PARTS];
} branch_t;

struct prefix {
    bool open;
    const tr_eval_task_t *task;
    uint32_t group;     /* what its policies observe */
    tr_ids_t ids;       /* of the last turn's prompt */
    tr_ids_t other;     /* of a question about the same document; or none */
    uint32_t *len;      /* [n_turns] prompt of each turn: a prefix of ids */
    uint32_t *limit;    /* [n_turns] */
    bool *fits;         /* [n_turns] */
    uint32_t turn;      /* the turn that is computed now; n_turns: none left */
    uint32_t last_turn; /* the last one wanted */
    int32_t base, prompt; /* slots: the history, and this turn's prompt; the
                         * same where nothing speaks against it */
    uint32_t base_len, prompt_len;
    bool sampled; /* this turn's prompt is complete */
    tr_sampled_t first;
    uint32_t next_policy;   /* to get a branch */
    uint32_t n_branches;    /* alive */
    uint32_t longest;       /* prompt and answer, of any turn */
    uint64_t charge;        /* pages set aside for base and prompt */
    uint64_t branch_charge; /* what the dearest branch needs */
    /* kl: [n_reference][vocab] of the first policy, limit[0] rows of room */
    float *reference;
    uint32_t n_reference;
};

#define PREFIXES 8u /* prompts computed or waiting for room at once */

typedef struct {
    tr_eval_run_t *run;
    tr_eval_engine_t *e;
    tr_kv_cache_t *kv;
    tr_error_t *err;
    uint32_t group[TR_EVAL_POLICIES_MAX];
    uint32_t groups[TR_EVAL_POLICIES_MAX], n_groups;
    uint32_t next_task, next_group; /* to be begun */
    uint32_t *order;                /* tasks, longest first */
    prefix_t *prefixes;             /* as many as answers, and some */
    uint32_t n_prefixes;
    branch_t *branches;
    uint32_t n_branches;
    uint64_t pages, charged;
    tr_sampling_params_t params;
    tr_sampler_t greedy;
    tr_batch_item_t *items;
    void **owners; /* of items: a prefix where is_prefix, else a branch */
    bool *is_prefix;
    uint32_t n_items, rows, max_items, max_rows;
    uint32_t turn_of; /* separate: the policy that decodes */
    bool prompts_last;
    uint64_t clock; /* of what is cached */
    char *text;     /* of an answer */
    size_t text_cap;
} driver_t;

/* eval_prefix.c */

/* Is the answer of this turn wanted from this policy, in this group? */
bool tr_eval_wanted(const driver_t *d, const tr_eval_task_t *task,
                    uint32_t turn, uint32_t policy, uint32_t group);
/* Begins the task; *t is open afterwards if any answer is wanted. */
tr_status_t tr_prefix_begin(driver_t *d, prefix_t *t,
                            const tr_eval_task_t *task, uint32_t group);
/* What can be done without a step: branches, the next turn.  Whether anything
 * was. */
tr_status_t tr_prefix_advance(driver_t *d, prefix_t *t, bool *moved);
/* Adds its next chunk to the batch. */
void tr_prefix_plan(driver_t *d, prefix_t *t);
tr_status_t tr_prefix_stepped(driver_t *d, prefix_t *t,
                              const tr_batch_item_t *item);
void tr_prefix_end(driver_t *d, prefix_t *t);
/* Ids of a conversation of the task's first n messages. */
tr_status_t tr_eval_encode(driver_t *d, const json_t *messages, uint32_t n,
                           tr_ids_t *out);

/* The prompt of a turn: its messages, or the case's text as it is. */
tr_status_t tr_eval_encode_turn(driver_t *d, const tr_eval_case_t *c,
                                uint32_t turn, tr_ids_t *out);

/* eval_reuse.c */

/* Which of the task's neighbours asks about the same document: t->other. */
tr_status_t tr_reuse_choose(driver_t *d, prefix_t *t);
/* The branch's slot was just opened, for a policy whose prefixes are reused. */
tr_status_t tr_reuse_begin(driver_t *d, branch_t *f);
/* Tokens [f->len, n) of its prompt are to be computed. */
tr_status_t tr_branch_compute(driver_t *d, branch_t *f, const int32_t *tokens,
                              uint32_t n);
/* It has answered what is to be cached, and asks again. */
tr_status_t tr_reuse_again(driver_t *d, branch_t *f);

/* eval_kl.c */

/* Is the policy there for its logits, with which the others' are compared? */
bool tr_kl_first(const driver_t *d, const tr_eval_task_t *task,
                 uint32_t policy);
/* Does any other policy of the group still need them? */
bool tr_kl_wanted(const driver_t *d, const tr_eval_task_t *task,
                  uint32_t group);
/* Memory for a branch that begins. */
tr_status_t tr_kl_begin(driver_t *d, branch_t *f);
/* Where the logits of its next token go; false: those that they are compared
 * with are not there yet. */
bool tr_kl_plan(const driver_t *d, const branch_t *f, tr_batch_item_t *item);
/* They are there. */
void tr_kl_stepped(driver_t *d, branch_t *f);
/* The branch's means, into its record. */
void tr_kl_record(const driver_t *d, const branch_t *f, tr_eval_record_t *r);

/* eval_branch.c */

/* A turn of at most `limit` tokens begins. */
tr_status_t tr_branch_start(driver_t *d, branch_t *f, uint32_t turn,
                            uint32_t limit);

/* Pages to set aside for an answer of this policy, len tokens with its
 * prompt. */
uint64_t tr_branch_charge(const driver_t *d, uint32_t policy, uint32_t len);
/* An answer to turn t->turn by this policy; TR_AGAIN: no room now. */
tr_status_t tr_branch_begin(driver_t *d, prefix_t *t, uint32_t policy);
tr_status_t tr_branch_advance(driver_t *d, branch_t *f, bool *moved);
void tr_branch_plan(driver_t *d, branch_t *f);
tr_status_t tr_branch_stepped(driver_t *d, branch_t *f,
                              const tr_batch_item_t *item);
void tr_branch_end(driver_t *d, branch_t *f);

/* eval_run.c */

/* A result is there. */
tr_status_t tr_eval_record(driver_t *d, uint32_t job, uint32_t policy,
                           const tr_eval_record_t *record, const char *reply,
                           size_t reply_len);

/* Room for an item in this step's batch: its rows, at most n; 0: none. */
uint32_t tr_driver_rows(const driver_t *d, uint32_t n);
void tr_driver_add(driver_t *d, const tr_batch_item_t *item, void *owner,
                   bool is_prefix);

#endif
