/*
 * The scheduler decides which sequences run and what each step's batch holds.
 * It is pure bookkeeping of the step loop: no threads, no clock, no output.
 *
 *   waiting --admit--> running --finish--> gone
 *      ^                  |
 *      +----preempt-------+
 *
 * To read it, start with tr_scheduler_compose, at the end of scheduler.c: one
 * call composes one batch.  What it does, in its order:
 *
 *   compress   finished prompts are compressed     scheduler_pages.c
 *   decode     one token for each running sequence scheduler.c
 *   admit      waiting sequences get pages         scheduler_admission.c
 *   prefill    chunks of prompts fill the batch    scheduler.c
 *
 * Submitted batches are followed in scheduler_in_flight.c until their results
 * have arrived.
 *
 * Queues are sorted by age (order of arrival over all channels).  A preempted
 * sequence keeps its age, so it waits ahead of later ones.  Swapped-out
 * sequences have their own queue, checked in full every step; the waiting queue
 * is checked until admission fails.
 *
 * Admission is fair among clients: next is the oldest sequence of the one that
 * was served least (fair.h); nobody overtakes it.  Without fairness all are one
 * client, and it is first come, first served.  A sequence is admitted when there
 * are pages for its whole prompt (reserved at once, so that a prompt never stalls
 * half way) and for the compressed copy, prompts hold at most
 * prefill_kv_fraction of the pool, and fewer than max_num_seqs run.  A few
 * pages are left to running sequences.  Choices of one prompt wait until the
 * first of them has the prompt cached, and copy that.
 *
 * Where the cache reuses prefixes (kv_cache.h), an admitted sequence takes what
 * its prompt shares with what is cached, up to the token before its last: the
 * match is pinned first, then its pages are counted, so that what the sequence
 * itself will use is not taken for free.  Prefixes that nobody uses are free
 * pages to everybody who asks, before anybody is preempted, and only running
 * sequences pin any; so nobody waits for pages that nobody can give.  A prompt is
 * kept block by block as it is computed, an answer when it ends.  A sequence whose
 * prompt begins as one that is being computed now waits for that one.
 *
 * A prompt is computed at 16 bits.  When it is complete its policy compresses
 * it (kv_cache.h), and only then does the sequence decode.  Token scores must
 * count every query once, so the first of several choices stops before the last
 * token of its prompt until the others have copied it; each then computes that
 * token itself.  A choice that comes too late computes the whole prompt.
 *
 * One request must not shut out the others.  Its further choices leave an eighth
 * of max_num_seqs free for requests that have no sequence running, and while
 * another request waits they take at most half of it; waiting requests overtake
 * those that are held back so.
 *
 * Nor must one client.  While several are around, the last eighth of max_num_seqs
 * is for those that run less than their share of it.  One that has waited for a
 * place, or for pages, for TR_SCHEDULER_PATIENCE_US takes them from the youngest
 * sequence of the one that was served most, if that one still has more
 * afterwards, and if there is enough that could be taken so; then it waits as
 * long again.  Who waits for other prompts to end takes only the place of one of
 * these.  And steps are short then: a client gets an eighth of a batch for
 * its answers, by turns, and prompts get a quarter, but for those of the client
 * that was served least of several that have prompts.  Many choices of one
 * request take turns likewise while somebody else's prompt is there.
 *
 * In a batch, sequences that have only their newest token to compute come first
 * (decode).  The rest of max_batch_tokens goes to chunks of prompts,
 * alternating between requests: that of the client which was served least, of
 * one client's whoever waited longest since its last chunk.
 *
 * In-flight batches: where a batch may run while the next is composed
 * (executor.h, `ahead`), the next is composed from the state that will hold
 * behind it.  Tokens in flight count as computed, and a sequence has one token
 * more than is known.  If that token turns out to end the sequence, its chunk
 * in the next batch is dropped.  Decisions that depend on the token itself wait
 * for it: a prompt is recomputed only when all its tokens are known, and no
 * request is given up while a batch is in flight.
 *
 * Models whose rotary frequencies depend on a sequence's length (LongRoPE): one
 * that grows beyond long_from gives its pages back and is computed once more.
 *
 * Preemption, when a running sequence needs a page and none is free: blocked
 * sequences (paused, or with a full response ring) go first, then the youngest
 * choice, younger than itself, of a request that runs more than an eighth of
 * max_num_seqs, then the youngest.  Pages at 16 bits are freed and recomputed
 * later, with the same result.  Compressed pages could not be recomputed to the
 * same bits: they are swapped out, and swapped in again before any new sequence
 * of their client is admitted.  Only when swap memory is full, too, are prompt
 * and output recomputed as one prompt (counted as recomputations).  The oldest
 * sequence that can run always advances, so the whole does.  Blocked sequences
 * also make way for waiting ones: a slow client must not hold memory that
 * others need.
 *
 * A request that comes from another engine has output and no cache, as if its
 * cache had been lost here: prompt and output are recomputed as one prompt.  With
 * replay_decode, and where several choices are to share a compressed prompt, the
 * output is computed behind the prompt, a row a step, as it was there.
 */
#ifndef TR_SCHEDULER_H
#define TR_SCHEDULER_H

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_inputs.h"
#include "fair.h"
#include "request.h"

/* Tokens that another prompt is about to share, for which it is worth to wait. */
#define TR_SCHEDULER_SHARE_MIN 64u

/* So long a prompt is put off while files are looked for that others begin
 * with; then it is computed. */
#define TR_SCHEDULER_LOOK_US 100000u

/* So often a prompt has what it begins with come from the shelf. */
#define TR_SCHEDULER_LOOKS 4u

/* A response writer that is full for this long counts as blocked. */
#define TR_SCHEDULER_FULL_US 100000

/* A client below its share waits for so long, then somebody makes way. */
#define TR_SCHEDULER_PATIENCE_US 50000u

/* One sequence's share of a batch: tokens at positions [pos, pos + n). */
typedef struct {
    /* under way: NULL when nothing of this chunk is wanted any more */
    tr_sequence_t *sequence;
    uint32_t pos, n;
    bool sample;  /* the last position gives the next token */
    bool score;   /* prompt logprobs are wanted for these positions */
    bool keeps;   /* their rows are kept (kv_inputs.h) */
    bool returns; /* keys and values are made of such rows, and nothing else; of
                   * all chunks of a batch, or none */
    /* under way */
    bool cached; /* the sequence's `computed` counts it */
    /* rows of room that are kept for it in the response writer */
    uint32_t owed, owed_logprobs;
} tr_chunk_t;

/* Who found no room: for want of what?  Not all of it could come of others who
 * make way. */
typedef enum {
    TR_LACK_OTHER,
    TR_LACK_PLACE, /* max_num_seqs run */
    TR_LACK_PAGES,
    TR_LACK_PROMPTS /* prompts hold as much as they may */
} tr_lack_t;

/* A batch under way. */
typedef struct {
    tr_chunk_t *chunks; /* [max_num_seqs] */
    uint32_t n_chunks;
} tr_in_flight_t;

typedef struct {
    tr_sequence_t *first, *last;
} tr_sequence_list_t;

/* Since init. */
typedef struct {
    uint64_t prefilled; /* prompt tokens that were computed */
    uint64_t finds;     /* prompts that looked for what is cached */
    uint64_t hits;      /* of these, that found something */
    uint64_t reused;    /* tokens that they found */
    uint64_t cuts;      /* of these hits, that ended within a block */
} tr_scheduler_counts_t;

typedef struct {
    tr_kv_cache_t *kv;      /* borrowed */
    tr_kv_inputs_t *inputs; /* borrowed; NULL: no rows are kept */
    uint32_t heads;         /* layers * kv_heads of it */
    uint32_t page_tokens;   /* at 16 bits */
    uint32_t max_num_seqs;  /* at most the slots of kv */
    uint32_t max_batch_tokens;
    uint64_t prompt_pages_max;
    uint32_t long_from; /* executor.h; 0: sequences of any length are alike */
    bool fair;          /* else all requests are of one client */
    bool replay_decode; /* what comes from another engine is computed token by
                         * token */

    uint64_t prompt_pages; /* charged for prompts until they are compressed */
    uint64_t promised;     /* of these, for their copies: not taken yet */

    tr_fair_t clients;
    tr_sequence_t *lacking; /* who found no room in the last turn */
    tr_lack_t lack;         /* why */
    uint64_t lack_pages;    /* so many of them, or of those of prompts */
    bool several;           /* clients are around, in this turn */
    uint32_t prompts;       /* that are computed, in this turn */
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
    uint64_t stretches;      /* sequences that grew beyond long_from */
    tr_scheduler_counts_t counts;
    uint64_t changes; /* what may let others run in the next turn */
    uint32_t offers;  /* sequences with offered == turn */
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

/* q has come to its end, not been cut short: what it computed is kept.  Before
 * it is removed. */
void tr_scheduler_keep(tr_scheduler_t *s, const tr_sequence_t *q);

/* Takes a sequence out wherever it is, gives back its pages, makes it DONE. */
void tr_scheduler_remove(tr_scheduler_t *s, tr_sequence_t *q);

/* Fills chunks with what comes after the batches under way (at most one).  now:
 * CLOCK_MONOTONIC, us.  Looks at request->commands and at the response writers;
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
