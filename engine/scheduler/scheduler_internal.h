/*
 * What the files of the scheduler share: scheduler.c composes batches,
 * scheduler_in_flight.c follows those in flight, scheduler_admission.c says who may
 * start, scheduler_pages.c has the pages of who runs (compression, preemption),
 * scheduler_reuse.c what others computed, scheduler_fair.c what each client may
 * have.
 */
#ifndef TR_SCHEDULER_INTERNAL_H
#define TR_SCHEDULER_INTERNAL_H

#include "scheduler.h"

/* Lists, sorted by age.  insert looks for q's place from the youngest on,
 * insert_old from the oldest. */
void tr_scheduler_insert(tr_sequence_list_t *l, tr_sequence_t *q);
void tr_scheduler_insert_old(tr_sequence_list_t *l, tr_sequence_t *q);
void tr_scheduler_unlink(tr_sequence_list_t *l, tr_sequence_t *q);

/* The list that q, which is TR_SEQ_WAITING, stands in. */
static inline tr_sequence_list_t *
tr_scheduler_line(tr_scheduler_t *s, const tr_sequence_t *q)
{
    return q->kv_slot >= 0 ? &s->swapped : &s->waiting;
}

/* Nothing of q is to be computed now, whatever pages it has. */
static inline bool
tr_sequence_paused(const tr_sequence_t *q)
{
    return (q->request->commands & TR_CONTROL_PAUSE) != 0;
}

/* Only q's newest token is missing. */
bool tr_sequence_decodes(const tr_sequence_t *q);

/* Is the token behind what is computed one that another engine sampled, and
 * that comes by itself here, as it did there? */
static inline bool
tr_sequence_steps(const tr_sequence_t *q)
{
    return q->computed >= q->prompt_len && q->computed < q->step_to;
}

/* What a policy that compresses takes at 16 bits first.  A sequence that comes
 * from another engine is computed as if its cache had been lost here, unless its
 * tokens come one by one. */
static inline uint32_t
tr_sequence_first_len(const tr_sequence_t *q)
{
    return q->len > q->prompt_len && q->step_to == 0 ? q->len - 1
                                                     : q->prompt_len;
}

/* How many tokens of q are to be computed before something else must happen. */
uint32_t tr_sequence_goal(const tr_sequence_t *q);

/* Has a sequence become a long one, and what is cached of it of no use
 * (executor.h: is_long)? */
bool tr_scheduler_outgrown(const tr_scheduler_t *s, const tr_sequence_t *q);

/* Those begin again, once nothing of them is under way. */
void tr_scheduler_stretch(tr_scheduler_t *s);

/* Its response writer does not take even one sequence's step. */
bool tr_scheduler_full(tr_scheduler_t *s, tr_sequence_t *q);

/* A chunk of one token for q, if the batch and the response writer have
 * room. */
bool tr_scheduler_step(tr_scheduler_t *s, tr_sequence_t *q, uint32_t limit);

/* From running to nowhere: pages and slot go back. */
void tr_scheduler_leave(tr_scheduler_t *s, tr_sequence_t *q);

/* It makes way: swapped out, or to be computed again, and waits. */
void tr_scheduler_preempt(tr_scheduler_t *s, tr_sequence_t *q);

/* Its compressed cache is lost: what is computed again is one prompt. */
void tr_scheduler_forget(tr_scheduler_t *s, tr_sequence_t *q);

/* The youngest that is blocked, and is charged for a prompt if that is wanted;
 * NULL when none is. */
tr_sequence_t *tr_scheduler_idler(const tr_scheduler_t *s, bool prompt);

/* The prompt is no more: compressed, or gone. */
void tr_scheduler_discharge(tr_scheduler_t *s, tr_sequence_t *q);

/* What it was promised is less by what it has. */
void tr_scheduler_recharge(tr_scheduler_t *s, tr_sequence_t *q);

/* Its last token is under way: then its pages come back. */
bool tr_scheduler_ending(const tr_sequence_t *q);

/* Pages and slot go back, and nothing of q is computed any more; tokens that
 * are under way still come. */
void tr_scheduler_lose(tr_scheduler_t *s, tr_sequence_t *q);

/* q ends: nothing comes any more. */
void tr_scheduler_disown(tr_scheduler_t *s, tr_sequence_t *q);

/* What q says of the batches under way is so. */
bool tr_scheduler_in_flight_sound(const tr_scheduler_t *s,
                                  const tr_sequence_t *q);

/* The cache said TR_AGAIN: may it only be that an answer has not come yet?
 * Then the batch is given up until what is under way has arrived. */
bool tr_scheduler_unsure(tr_scheduler_t *s);

/* Its prompt is computed and still at 16 bits, which its policy would not leave
 * so: nothing of it can be computed before it is compressed. */
bool tr_scheduler_complete(const tr_scheduler_t *s, const tr_sequence_t *q);

/* Where the chunk of a prompt from `from` on ends at the latest: behind it what is
 * computed is compressed (tr_kv_stage).  UINT32_MAX: nowhere. */
uint32_t tr_scheduler_stage_end(const tr_scheduler_t *s, const tr_sequence_t *q,
                                uint32_t from);

/* Is that to be done, or are there no pages for what follows? */
bool tr_scheduler_held_up(const tr_scheduler_t *s, const tr_sequence_t *q);

/* Compresses whose prompts are complete, or have come to a stage.  One for which
 * there is no room, even after all younger ones have made way, waits. */
void tr_scheduler_compress(tr_scheduler_t *s);

/* Makes room for q's newest token.  False: q was the youngest and had to go
 * itself. */
bool tr_scheduler_reserve(tr_scheduler_t *s, tr_sequence_t *q);

/* It holds pages and has no use for them. */
bool tr_scheduler_blocked(const tr_scheduler_t *s, const tr_sequence_t *q);

/* ---- scheduler_admission.c */

/* Returns how many prompts were admitted. */
uint32_t tr_scheduler_admit(tr_scheduler_t *s);

/* ---- scheduler_fair.c */

/* The places that are left are for clients below their share, and q's is not. */
bool tr_scheduler_holds_back(const tr_scheduler_t *s, const tr_sequence_t *q);

/* Which clients have anything that can go on in this turn (fair.h). */
void tr_scheduler_look(tr_scheduler_t *s);

/* Who found no room in the last turn has waited long enough: somebody makes
 * way. */
void tr_scheduler_make_way(tr_scheduler_t *s);

/* May q's client have one more row of this batch?  Then whether q got it. */
bool tr_scheduler_rows_left(const tr_scheduler_t *s, const tr_sequence_t *q);
void tr_scheduler_took_row(tr_scheduler_t *s, const tr_sequence_t *q,
                           bool took);

/* ---- scheduler_inputs.c */

/* The rows of a chunk that is composed are to be kept, if there is room. */
void tr_scheduler_take_inputs(tr_scheduler_t *s, tr_chunk_t *chunk);
/* Those of one under way may never be written. */
void tr_scheduler_lose_inputs(tr_chunk_t *chunk);
/* q has come to its end. */
void tr_scheduler_drop_inputs(tr_scheduler_t *s, tr_sequence_t *q);
/* Tokens that come next for q, and that it has rows of. */
uint32_t tr_scheduler_returning(const tr_scheduler_t *s,
                                const tr_sequence_t *q);

/* ---- scheduler_reuse.c */

/* Are prefixes of q kept?  Does it take over those of others? */
bool tr_scheduler_reuses(const tr_scheduler_t *s, const tr_sequence_t *q);
bool tr_scheduler_reads(const tr_scheduler_t *s, const tr_sequence_t *q);

tr_prefix_key_t tr_scheduler_key(const tr_scheduler_t *s,
                                 const tr_sequence_t *q);

/* What q's prompt (NULL: nobody's) shares with what is cached, pinned. */
void tr_scheduler_find(tr_scheduler_t *s, const tr_sequence_t *q,
                       tr_kv_found_t *found);

/* q starts with so many tokens that it found. */
void tr_scheduler_count_found(tr_scheduler_t *s, tr_sequence_t *q,
                              const tr_kv_found_t *found);

/* Is q's prompt being computed, of which others may have a part soon?  Those
 * that run and are so, into scratch; returns how many. */
bool tr_scheduler_offers(const tr_scheduler_t *s, const tr_sequence_t *q);
uint32_t tr_scheduler_offering(tr_scheduler_t *s);

/* q found so many tokens: is one of the n in scratch about to have more for it? */
bool tr_scheduler_awaits(const tr_scheduler_t *s, const tr_sequence_t *q,
                         uint32_t found, uint32_t n);

/* q found so many tokens: is it to wait until it is known whether a file has
 * more, and for that? */
bool tr_scheduler_looks(tr_scheduler_t *s, tr_sequence_t *q, uint32_t found);

/* The whole blocks of q's prompt that are computed by now are kept for others. */
void tr_scheduler_keep_prompt(tr_scheduler_t *s, const tr_sequence_t *q);

/* q's prompt was compressed: a copy is kept, where there is room, or somebody
 * waits for it. */
void tr_scheduler_keep_compressed(tr_scheduler_t *s, const tr_sequence_t *q);

/* Other choices of q's prompt wait to copy it: q does not compute its last
 * token before they had the chance. */
bool tr_sequence_shares(const tr_sequence_t *q);

#endif
