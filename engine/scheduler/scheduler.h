/*
 * The scheduler: which sequences run, and what each step's batch holds.
 *
 * Pure bookkeeping of the step loop: no threads, no clock, no output.
 *
 *   waiting --admit--> running --finish--> gone
 *      ^                  |
 *      +----preempt-------+
 *
 * Lists are sorted by age (the order of arrival over all channels), and a
 * preempted sequence keeps its age, so that it waits in front of those that
 * came later.  Who is swapped out waits in a list of its own: a step asks each
 * of these, but of the others only as many as it admits, and the next.
 *
 * Admission: first come first served, when there are pages for the prompt (they
 * are reserved at once, so that it never stalls half way) and for the copy that
 * its policy makes of it, prompts then hold at most prefill_kv_fraction of the
 * pool, and fewer than max_num_seqs run.  A few pages are left for those that
 * run.  Choices of one prompt wait until the first of them has its prompt
 * cached, and copy that.
 *
 * A prompt is computed at 16 bits; when it is complete its policy compresses it
 * (kv_cache.h), and only then its sequence goes on.  Scores count every query
 * once, so the first of several choices stops before the last token of its
 * prompt until the others have copied it, and each computes that token itself;
 * one that comes too late computes the prompt, too.
 *
 * Batch: every sequence that has just its newest token to compute joins first
 * (decode); what is left of max_batch_tokens goes to prompts in chunks, in
 * turns between requests: whoever waited longest since its last chunk.
 *
 * Ahead: where a batch may be under way while the next is composed (executor.h,
 * `ahead`), the next is composed from what will be true behind it.  A sequence
 * then counts as computed what is under way, and has one token more than it
 * knows; whether that token ends it is learnt when its next chunk has left, and
 * what comes of that chunk is dropped.  What only the token could tell waits
 * for it: a prompt is computed again only when all its tokens are known, and
 * nobody is given up while something is under way.
 *
 * Preemption, when a running sequence needs a page and none is left: those that
 * are blocked (paused, or their response writer stays full) go first, then the
 * youngest.  What is still at 16 bits is given back and computed again later,
 * which gives the same.  What is compressed would not be the same again: its
 * pages go to the swap memory and come back from there before anybody new is
 * admitted; only where that is full, too, prompt and output so far are computed
 * again as one prompt (counted as recomputations).  The oldest that can run
 * always advances, so the whole does.  Blocked ones also make way for those
 * that wait: a slow client must not hold what others need.
 */
#ifndef TR_SCHEDULER_H
#define TR_SCHEDULER_H

#include "engine/kv/kv_cache.h"
#include "request.h"

/* A response writer that is full for this long counts as blocked. */
#define TR_SCHEDULER_FULL_US 100000

/* One sequence's share of a batch: tokens at positions [pos, pos + n). */
typedef struct {
    /* under way: NULL when nothing of this chunk is wanted any more */
    tr_sequence_t *sequence;
    uint32_t pos, n;
    bool sample; /* the last position gives the next token */
    bool score;  /* prompt logprobs are wanted for these positions */
    /* under way */
    bool cached;              /* the sequence's `computed` counts it */
    bool owed, owed_logprobs; /* room is kept for it in the response writer */
} tr_chunk_t;

/* A batch under way. */
typedef struct {
    tr_chunk_t *chunks; /* [max_num_seqs] */
    uint32_t n_chunks;
} tr_in_flight_t;

typedef struct {
    tr_sequence_t *first, *last;
} tr_sequence_list_t;

typedef struct {
    tr_kv_cache_t *kv;     /* borrowed */
    uint32_t heads;        /* layers * lists of it */
    uint32_t page_tokens;  /* at 16 bits */
    uint32_t max_num_seqs; /* at most the slots of kv */
    uint32_t max_batch_tokens;
    uint64_t prompt_pages_max;

    uint64_t prompt_pages; /* charged for prompts until they are compressed */
    uint64_t promised;     /* of these, for their copies: not taken yet */

    tr_sequence_list_t waiting, running;
    tr_sequence_list_t swapped;  /* they wait, too, and have a slot */
    uint32_t n_running;          /* sequences */
    uint32_t n_running_requests; /* requests with any of them */
    uint64_t next_order;
    uint64_t turn;          /* compose calls */
    uint64_t now;           /* of this one, us */
    uint64_t prompt_chunks; /* prompt chunks given out */
    uint64_t resume_order;  /* the first decode sequence that was left out */
    uint64_t preemptions;
    uint64_t swaps;          /* of these, to the swap memory */
    uint64_t recomputations; /* compressed caches that were lost */
    uint64_t changes;        /* what may let others run in the next turn */
    uint32_t offers;         /* sequences with offered == turn */
    bool stalled; /* a prompt waits for room for its copy: nobody is admitted */
    /* alone, and still without room for its next token, or not to be compressed
     * for another reason: to be ended.  Then the batch is empty. */
    tr_sequence_t *hopeless;
    tr_status_t why; /* of hopeless */
    bool unsure;     /* the cache has not answered yet; an empty batch */

    /* the batch: chunks[] of the batch in flight that submit makes it */
    tr_chunk_t *chunks;
    uint32_t n_chunks;
    uint32_t n_tokens;
    /* n_in_flight of them are under way, from `first` on */
    tr_in_flight_t in_flight[TR_BATCHES_IN_FLIGHT];
    uint32_t first, n_in_flight;
    /* earliest due_us of those that were left out for it, 0: none */
    uint64_t next_due_us;
    /* [max_num_seqs] each */
    tr_sequence_t **scratch;
    int32_t *slots; /* who asks for room in the cache */
    uint32_t *lens;
    tr_status_t *granted;
} tr_scheduler_t;

tr_status_t tr_scheduler_init(tr_scheduler_t *s, tr_kv_cache_t *kv,
                              uint32_t max_num_seqs, uint32_t max_batch_tokens,
                              double prefill_kv_fraction);
void tr_scheduler_free(tr_scheduler_t *s);

/* Any thread: can all sequences of r, each alone, ever run to their end?  False
 * if a prompt with its max_tokens is larger than the KV cache. */
bool tr_scheduler_fits(const tr_kv_cache_t *kv, const tr_request_t *r);

/* Queues all sequences of r. */
void tr_scheduler_add(tr_scheduler_t *s, tr_request_t *r);

/* Takes a sequence out wherever it is, gives back its pages, makes it DONE. */
void tr_scheduler_remove(tr_scheduler_t *s, tr_sequence_t *q);

/* Fills chunks with what comes after the batches under way (at most one).  now:
 * CLOCK_MONOTONIC, us.  Looks at request->wishes and at the response writers;
 * sets writer->full_since_us. */
void tr_scheduler_compose(tr_scheduler_t *s, uint64_t now);

/* The batch is under way: what it computes counts as computed. */
void tr_scheduler_submit(tr_scheduler_t *s);
/* A chunk of the oldest batch under way, with a sequence: it was computed, or
 * is taken back (and that of its sequence in the batch behind).  The caller has
 * the token, if it sampled one; chunk->sequence is NULL after it. */
void tr_scheduler_chunk_done(tr_scheduler_t *s, tr_chunk_t *chunk,
                             bool computed);
/* No chunk of the oldest batch is wanted any more: it is not under way. */
void tr_scheduler_batch_done(tr_scheduler_t *s);

/* The batch in flight that `chunks` is or becomes. */
static inline uint32_t
tr_scheduler_next(const tr_scheduler_t *s)
{
    return (s->first + s->n_in_flight) % TR_BATCHES_IN_FLIGHT;
}

/* Tokens of q when the batches under way have arrived. */
static inline uint32_t
tr_sequence_known(const tr_sequence_t *q)
{
    return q->len + q->ahead;
}

/* Echoed prompt text is not out yet: no token may be sampled before it is. */
static inline bool
tr_sequence_echoes(const tr_sequence_t *q)
{
    return q->request->echo && q->echoed < q->prompt_len;
}

/* All lists, counters and the KV cache agree.  Linear; for tests. */
bool tr_scheduler_sound(const tr_scheduler_t *s);

#endif
