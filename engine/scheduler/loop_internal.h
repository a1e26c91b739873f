/*
 * What the files of the step loop share: loop.c is the thread, its turns and
 * what others call; loop_step.c submits batches and completes them; loop_masks.c
 * has the masks of those that are constrained; loop_end.c ends requests.
 *
 * What other threads may touch: two lock-free stacks of requests, each emptied
 * at once (incoming, which the loop turns round, and those that are over),
 * the wake flag with its eventfd, the signs of life, three figures, and the
 * snapshot under a
 * mutex that is held for a copy.  Everything else belongs to the loop's thread.
 */
#ifndef TR_LOOP_INTERNAL_H
#define TR_LOOP_INTERNAL_H

#include "loop.h"

#include <pthread.h>

#include "emit.h"
#include "engine/kv/kv_store.h"
#include "engine/config/log.h"
#include "scheduler.h"

typedef struct {
    tr_request_t *first, *last;
} tr_request_list_t;

/* What the executor is given for a batch in flight of the scheduler: items and
 * places of results, chunk by chunk.  They are the loop's, so that a request
 * can go while chunks of it are under way. */
typedef struct {
    tr_batch_t batch;
    tr_batch_item_t *items; /* [max_num_seqs] */
    tr_sampled_t *sampled;  /* [max_num_seqs] */
    tr_status_t *refused;   /* [max_num_seqs] TR_OK, or why there is no mask */
    uint64_t begun_us;
} tr_loop_batch_t;

struct tr_loop {
    tr_executor_t *executor;
    tr_status_counters_t *counters;
    int frontend_fd;
    uint32_t max_queue, ahead;
    uint64_t stall_timeout_us, paused_timeout_us, check_us;
    uint64_t cache_ttl_us; /* 0: prefixes stay */

    /* shared with other threads */
    tr_request_t *_Atomic incoming; /* linked by next, newest first */
    tr_request_t *_Atomic over;     /* the same */
    _Atomic uint32_t showing;       /* what is over: workers, and then `over` */
    _Atomic uint32_t woken, asleep, stop;
    bool cutting; /* one that is spent found no room for its end */
    _Atomic uint64_t asked, beat; /* signs of life: wanted, given */
    _Atomic uint32_t draining;    /* nobody is scheduled for the first time */
    _Atomic uint32_t moving;      /* who can go on elsewhere ends here */
    _Atomic uint32_t outstanding; /* requests inside */
    _Atomic uint32_t queued;      /* of these, never scheduled */
    int wake_fd;
    pthread_mutex_t snapshot_lock;
    tr_status_admission_t snapshot;

    /* the loop's own */
    pthread_t thread;
    tr_scheduler_t scheduler;
    tr_emit_t emit;
    tr_request_list_t requests, ending;
    tr_request_t *leaving; /* forgotten in this turn, linked by next */
    bool news;             /* for the frontend thread */
    bool lost; /* the cache does not settle: an empty batch failed */
    uint32_t n_requests;
    uint32_t n_quiet;        /* requests inside that tr_loop_echo looks after */
    uint32_t n_masked;       /* requests inside that may want masks */
    uint64_t next_check_us;  /* of pauses and full response writers */
    uint64_t next_expiry_us; /* when prefixes are looked at again, 0: there are
                              * none that could grow old */
    uint64_t step, last_step_us;
    uint64_t completed_us; /* when the newest batch had arrived */
    tr_loop_batch_t in_flight[TR_BATCHES_IN_FLIGHT];
    /* masks: of a batch, [max_num_seqs][mask_words]; one scratch a thread */
    uint32_t *masks;
    uint32_t mask_words, n_scratch;
    tr_grammar_scratch_t **scratch;
    uint8_t level_of[TR_KV_LAYOUTS_MAX]; /* row of the status page */
};

static inline void
tr_loop_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* A turn's time is taken before its requests are: they may be younger. */
static inline uint64_t
tr_loop_since(uint64_t from, uint64_t now)
{
    return now > from ? now - from : 0;
}

/* Requests for which more is to do than to sample tokens. */
static inline bool
tr_loop_quiet(const tr_request_t *r)
{
    return r->echo || r->params.max_tokens == 0;
}

/* Does it ever want a mask?  Where nobody does, no row is asked. */
static inline bool
tr_loop_constrained(const tr_request_t *r)
{
    return r->thought_end != NULL
           || (r->n_sequences != 0 && r->sequences[0].matcher != NULL);
}

/* ---- loop_end.c */

void tr_request_append(tr_request_list_t *l, tr_request_t *r);
void tr_request_unlink(tr_request_list_t *l, tr_request_t *r);

/* r has sampled enough to be no reason why the process might end, or is over. */
void tr_loop_settle(tr_loop_t *l, tr_request_t *r);

/* From here on the frontend thread owns r, as soon as the step is shown. */
void tr_loop_forget(tr_loop_t *l, tr_request_t *r);

/* One choice reached its end. */
void tr_loop_finish(tr_loop_t *l, tr_sequence_t *q, uint16_t reason,
                    uint64_t now);

/* r is spent (tr_request_spent): its choices end as at their length, as far as
 * there is room; for the others it is called again. */
void tr_loop_cut(tr_loop_t *l, tr_request_t *r, uint64_t now);

/* Ends r before its time: r->error says why, TR_OK: it was aborted.  fail: sets
 * that and logs it. */
void tr_loop_end(tr_loop_t *l, tr_request_t *r);
void tr_loop_fail(tr_loop_t *l, tr_request_t *r, tr_status_t status,
                  const char *text);

/* Those whose last record found no room try again. */
void tr_loop_retry(tr_loop_t *l);

/* ---- loop_masks.c: what constrained sequences may write */

/* Memory for that; false when it is out. */
bool tr_loop_take_masks(tr_loop_t *l, uint32_t max_num_seqs);
void tr_loop_free_masks(tr_loop_t *l);

/* May the token that a chunk samples need a mask, once all in front of it are
 * known? */
bool tr_loop_may_mask(const tr_chunk_t *chunk);

/* Masks of f's items that are sampled and still wanted, made by the executor's
 * threads. */
void tr_loop_mask(tr_loop_t *l, tr_loop_batch_t *f, const tr_chunk_t *chunks);

/* q goes on by a token; not TR_OK: it was not allowed, or a limit was met. */
tr_status_t tr_loop_follow(tr_loop_t *l, tr_sequence_t *q, int32_t token);

/* ---- loop_step.c */

/* Submits what the scheduler composed in the turn that began at `now`, which
 * may be nothing (executor.h).  False: it is not under way. */
bool tr_loop_submit_batch(tr_loop_t *l, uint64_t now);

/* Gives the newest batch under way the masks that hang on the tokens of those in
 * front, which are complete (executor.h, sample). */
void tr_loop_sample_batch(tr_loop_t *l);

/* Waits for the oldest batch under way and applies what came of it. */
void tr_loop_complete_batch(tr_loop_t *l);

/* Echoed prompts, and requests that want nothing else.  Returns whether there
 * was something to do. */
bool tr_loop_echo(tr_loop_t *l, uint64_t now);

/* What is staged, to the workers; who is over, to the frontend thread. */
void tr_loop_show(tr_loop_t *l);
/* How many run and wait, and what the cache holds: for the status page. */
void tr_loop_publish_snapshot(tr_loop_t *l);
void tr_loop_tell_front(tr_loop_t *l);

#endif
