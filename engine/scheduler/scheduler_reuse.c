/*
 * Reuse of prefixes (scheduler.h, kv_cache.h): whose they are, what a sequence
 * finds, what of it is kept, and for whose prompt it waits.
 */
#include "scheduler_internal.h"

#include <assert.h>
#include <string.h>

#include "engine/kv/kv_store.h"

bool
tr_scheduler_reuses(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    return q->request->kv_reuse && tr_kv_reuses(s->kv, q->request->kv_policy);
}

/* May it take what others computed?  Not where it wants to know how likely each
 * token of its prompt is, nor where nothing of it is computed; and choices of one
 * prompt share that one instead where it is compressed. */
bool
tr_scheduler_reads(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    return tr_scheduler_reuses(s, q) && q->prompt_scores == NULL
           && q->request->params.max_tokens != 0
           && (q->request->n == 1 || q->staged
               || !tr_kv_copies(s->kv, q->request->kv_policy));
}

void
tr_scheduler_keep_prompt(tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint32_t n = q->computed - q->under_way;

    if (q->kv_slot >= 0 && tr_scheduler_reuses(s, q)) {
        tr_kv_keep(s->kv, q->kv_slot, q->tokens,
                   n < q->prompt_len ? n : q->prompt_len, false);
    }
}

void
tr_scheduler_keep(tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint32_t n = q->computed - q->under_way; /* those that were fed */

    if (q->kv_slot >= 0 && q->state == TR_SEQ_RUNNING
        && tr_scheduler_reuses(s, q)) {
        tr_kv_keep(s->kv, q->kv_slot, q->tokens, n < q->len ? n : q->len, true);
    }
}

/* Is q's prompt being computed, of which others may have a part soon? */
bool
tr_scheduler_offers(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    return q->computed + 1 < q->prompt_len && tr_scheduler_reuses(s, q)
           && !tr_scheduler_blocked(s, q);
}

/* Whose prefixes q shares: those of its request, and where keys are rotated by a
 * sequence's length, of those that are long as it is. */
tr_prefix_key_t
tr_scheduler_key(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    tr_prefix_key_t key = q->request->kv_key;

    if (s->long_from != 0) {
        assert(key.len < TR_PREFIX_KEY_MAX);
        key.bytes[key.len++] = q->is_long;
    }
    return key;
}

/* And by the same policy. */
static bool
tr_same_key(const tr_sequence_t *q, const tr_sequence_t *other)
{
    const tr_prefix_key_t *a = &q->request->kv_key;
    const tr_prefix_key_t *b = &other->request->kv_key;

    return q->is_long == other->is_long && a->len == b->len
           && q->request->kv_policy == other->request->kv_policy
           && memcmp(a->bytes, b->bytes, a->len) == 0;
}

/* Whole blocks with which both prompts begin, in tokens. */
static uint32_t
tr_scheduler_common(const tr_scheduler_t *s, const tr_sequence_t *q,
                    const tr_sequence_t *other)
{
    uint32_t most = q->len - 1, n = 0;

    most = most < other->prompt_len ? most : other->prompt_len;
    while (n < most && q->tokens[n] == other->tokens[n]) {
        n++;
    }
    return n - n % s->page_tokens;
}

/* Tokens of q that may come from others, and one more. */
static uint32_t
tr_scheduler_first_len(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    if (!tr_kv_copies(s->kv, q->request->kv_policy)) {
        return q->len;
    }
    return q->uncompressed_len != 0 ? q->uncompressed_len
                                    : tr_sequence_first_len(q);
}

/* q found so many tokens: is one of the n prompts in scratch, which are being
 * computed, about to have more for it? */
bool
tr_scheduler_awaits(const tr_scheduler_t *s, const tr_sequence_t *q,
                    uint32_t found, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        const tr_sequence_t *other = s->scratch[i];
        uint32_t common;

        if (other->state != TR_SEQ_RUNNING || !tr_scheduler_offers(s, other)
            || !tr_same_key(q, other)) {
            continue;
        }
        common = tr_scheduler_common(s, q, other);
        if (common >= found + TR_SCHEDULER_SHARE_MIN
            && other->computed < common) {
            return true;
        }
    }
    return false;
}

/* It is looked for others' files now.  A quick disk has done so in a moment, and
 * nobody waits longer for a slow one than that, how many ever ask. */
static bool
tr_scheduler_asks_again(tr_scheduler_t *s, tr_sequence_t *q)
{
    if (q->look_until_us == 0) {
        q->look_until_us = s->now + TR_SCHEDULER_LOOK_US;
    }
    if (s->now >= q->look_until_us) {
        q->looks = TR_SCHEDULER_LOOKS;
        return false;
    }
    if (s->next_due_us == 0 || q->look_until_us < s->next_due_us) {
        s->next_due_us = q->look_until_us;
    }
    return true;
}

bool
tr_scheduler_looks(tr_scheduler_t *s, tr_sequence_t *q, uint32_t found)
{
    tr_prefix_key_t key;
    tr_kv_look_t look;

    if (!tr_scheduler_reads(s, q)) {
        return false;
    }
    if (q->looks != 0 && tr_kv_store_looks(s->kv, q)) {
        return true;
    }
    /* it is there; or others wanted its pages, and it has to come again */
    if ((q->looks != 0 && found > q->look_from)
        || q->looks >= TR_SCHEDULER_LOOKS) {
        return false;
    }
    if (q->look_full && tr_kv_store_full(s->kv)) {
        return true;
    }
    key = tr_scheduler_key(s, q);
    look = tr_kv_store_look(s->kv, q, q->request->kv_policy, &key, q->tokens,
                            tr_scheduler_first_len(s, q) - 1, found);
    if (look == TR_KV_LOOK_BUSY) {
        return tr_scheduler_asks_again(s, q);
    }
    if (look == TR_KV_LOOK_ASKED) {
        q->looks = TR_SCHEDULER_LOOKS;
    } else if (look == TR_KV_LOOK_COMES) {
        q->looks++;
        q->look_from = found;
    }
    q->look_full = look == TR_KV_LOOK_FULL;
    return look != TR_KV_LOOK_NOTHING;
}

void
tr_scheduler_keep_compressed(tr_scheduler_t *s, const tr_sequence_t *q)
{
    const tr_sequence_t *other;
    bool wanted = false;

    if (!tr_scheduler_reuses(s, q)) {
        return;
    }
    for (other = s->waiting.first; other != NULL && !wanted;
         other = other->next) {
        wanted = tr_same_key(q, other) && tr_scheduler_reads(s, other)
                 && tr_scheduler_common(s, other, q) >= TR_SCHEDULER_SHARE_MIN;
    }
    tr_kv_keep_copy(s->kv, q->kv_slot, q->tokens, q->computed, wanted);
}

/* Those that run and compute a prompt: into scratch. */
uint32_t
tr_scheduler_offering(tr_scheduler_t *s)
{
    tr_sequence_t *q;
    uint32_t n = 0;

    for (q = s->running.first; q != NULL; q = q->next) {
        if (tr_scheduler_offers(s, q)) {
            s->scratch[n++] = q;
        }
    }
    return n;
}

/* What q's prompt (NULL: nobody's) shares with what is cached, pinned. */
void
tr_scheduler_find(tr_scheduler_t *s, const tr_sequence_t *q,
                  tr_kv_found_t *found)
{
    memset(found, 0, sizeof(*found));
    found->match.node = found->match.part = TR_PREFIX_NONE;
    if (q != NULL && tr_scheduler_reads(s, q)) {
        tr_prefix_key_t key = tr_scheduler_key(s, q);
        tr_kv_find(s->kv, q->request->kv_policy, &key, q->tokens,
                   tr_scheduler_first_len(s, q) - 1, found);
    }
}

/* q starts with so many tokens that it found. */
void
tr_scheduler_count_found(tr_scheduler_t *s, tr_sequence_t *q,
                         const tr_kv_found_t *found)
{
    if (!tr_scheduler_reads(s, q)) {
        return;
    }
    s->counts.finds++;
    s->counts.hits += found->tokens != 0;
    s->counts.cuts += found->cut;
    s->counts.reused += found->tokens;
    if (q->found) {
        return; /* it was preempted, and finds its own */
    }
    q->found = true;
    if (q->choice % q->request->n == 0) { /* a prompt counts once */
        q->request->cached_tokens += found->tokens < q->prompt_len
                                         ? found->tokens
                                         : q->prompt_len - 1;
    }
}
