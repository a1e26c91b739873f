/*
 * Clients and what they were served (fair.h).
 */
#include "fair.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tr_status_t
tr_fair_init(tr_fair_t *f)
{
    memset(f, 0, sizeof(*f));
    f->clients = calloc((size_t) TR_FAIR_SETS * TR_FAIR_WAYS,
                        sizeof(*f->clients));
    return f->clients != NULL ? TR_OK : TR_ERR_NOMEM;
}

void
tr_fair_free(tr_fair_t *f)
{
    free(f->clients);
    memset(f, 0, sizeof(*f));
}

/* ---- clients ------------------------------------------------------------ */

/* The one of a set that is called key, or else a place for it: an empty one,
 * that of the one who is away and was served least, or somebody else's. */
static tr_client_t *
tr_fair_find(tr_client_t *set, uint64_t key)
{
    tr_client_t *place = NULL;
    uint32_t i;

    for (i = 0; i < TR_FAIR_WAYS; i++) {
        tr_client_t *k = &set[i];

        if (k->known && k->key == key) {
            return k;
        }
        if (k->inside != 0) {
            continue;
        }
        if (place == NULL
            || (place->known && (!k->known || k->served < place->served))) {
            place = k;
        }
    }
    if (place == NULL) {
        return &set[key % TR_FAIR_WAYS];
    }
    memset(place, 0, sizeof(*place));
    place->key = key;
    place->known = true;
    return place;
}

/* What somebody who comes has been served at least: as much as any of those that
 * are there and not idle. */
static uint64_t
tr_fair_least(const tr_fair_t *f)
{
    uint64_t least = UINT64_MAX;
    bool any = false;
    const tr_client_t *k;

    for (k = f->inside; k != NULL; k = k->next) {
        if (!k->idle) {
            least = k->served < least ? k->served : least;
            any = true;
        }
    }
    return any ? least : f->last;
}

/* It comes back. */
static void
tr_fair_lift(tr_client_t *k, uint64_t least)
{
    k->served = k->served > least ? k->served : least;
    k->idle = false;
}

/* What the share of a tenant is in a tier. */
static uint32_t
tr_fair_share(uint32_t share, uint8_t tier)
{
    share = (share != 0 ? share : 1) * TR_FAIR_SHARE;
    if (tier == TR_TIER_PRIORITY) {
        return share * TR_FAIR_TIER;
    }
    return tier == TR_TIER_FLEX ? share / TR_FAIR_TIER : share;
}

/* What a tenant is called there: whatever its key, in each tier another name. */
static uint64_t
tr_fair_key(uint64_t key, uint8_t tier)
{
    if (tier == TR_TIER_PRIORITY) {
        return ~key;
    }
    return tier == TR_TIER_FLEX ? key ^ 0x5555555555555555ull : key;
}

tr_client_t *
tr_fair_join(tr_fair_t *f, uint64_t key, uint32_t share, uint8_t tier,
             uint32_t n)
{
    uint64_t h;
    tr_client_t *k;

    share = tr_fair_share(share, tier);
    key = tr_fair_key(key, tier);
    /* keys are hashes, but not all of them good ones */
    h = key * 0x9e3779b97f4a7c15ull;
    k = tr_fair_find(&f->clients[(h >> 32) % TR_FAIR_SETS * TR_FAIR_WAYS], key);
    if (k->inside == 0 || k->idle) {
        tr_fair_lift(k, tr_fair_least(f));
    }
    if (k->inside == 0) {
        k->share = 0;
        k->prev = NULL;
        k->next = f->inside;
        if (k->next != NULL) {
            k->next->prev = k;
        }
        f->inside = k;
        f->n_inside++;
    }
    f->shares += share;
    f->shares -= k->share;
    k->share = share;
    k->inside += n;
    return k;
}

void
tr_fair_leave(tr_fair_t *f, tr_client_t *k, uint64_t now)
{
    assert(k->inside != 0);
    if (--k->inside != 0) {
        return;
    }
    assert(k->running == 0 && k->first == NULL && k->coming == 0);
    if (k->prev != NULL) {
        k->prev->next = k->next;
    } else {
        f->inside = k->next;
    }
    if (k->next != NULL) {
        k->next->prev = k->prev;
    }
    f->n_inside--;
    f->shares -= k->share;
    if (!k->idle) {
        f->last = k->served;
    }
    if (f->left[0] != k) {
        f->left[1] = f->left[0];
        f->left_us[1] = f->left_us[0];
    }
    f->left[0] = k;
    f->left_us[0] = now;
}

void
tr_fair_turn(tr_fair_t *f, uint64_t turn)
{
    uint64_t least;
    tr_client_t *k;

    f->last = tr_fair_least(f); /* should all of them stand still now */
    for (k = f->inside; k != NULL; k = k->next) {
        k->idle |= k->seen != turn;
    }
    least = tr_fair_least(f);
    for (k = f->inside; k != NULL; k = k->next) {
        if (k->idle && k->seen == turn) {
            tr_fair_lift(k, least);
        }
    }
}

/* ---- what they are served ----------------------------------------------- */

void
tr_fair_charge(tr_client_t *k, uint64_t tokens)
{
    k->served += tokens * TR_FAIR_SCALE * TR_FAIR_SHARE / k->share;
}

void
tr_fair_run(tr_sequence_t *q)
{
    q->request->client->running++;
    q->request->client->coming += q->uncharged;
}

void
tr_fair_stop(tr_sequence_t *q)
{
    q->request->client->running--;
    q->request->client->coming -= q->uncharged;
}

void
tr_fair_expect(tr_sequence_t *q, uint32_t tokens)
{
    q->uncharged = tokens;
    q->request->client->coming += tokens;
}

void
tr_fair_computed(tr_sequence_t *q, uint32_t tokens)
{
    tokens = tokens < q->uncharged ? tokens : q->uncharged;
    q->uncharged -= tokens;
    if (q->state == TR_SEQ_RUNNING) { /* it may have made way meanwhile */
        q->request->client->coming -= tokens;
    }
    tr_fair_charge(q->request->client, tokens);
}

/* What a client will have been served when all that runs of it is computed. */
static uint64_t
tr_fair_promised(const tr_client_t *k)
{
    return k->served + k->coming * TR_FAIR_SCALE * TR_FAIR_SHARE / k->share;
}

/* Who left a moment ago, and has not come back. */
static bool
tr_fair_expects(const tr_fair_t *f, uint64_t now)
{
    uint32_t i;

    for (i = 0; i < 2; i++) {
        if (f->left[i] != NULL && f->left[i]->inside == 0
            && now - f->left_us[i] < TR_FAIR_AROUND_US) {
            return true;
        }
    }
    return false;
}

bool
tr_fair_several(const tr_fair_t *f, uint64_t now)
{
    return f->n_inside + tr_fair_expects(f, now) > 1;
}

uint32_t
tr_fair_part(const tr_fair_t *f, const tr_client_t *k, uint32_t n, uint64_t now)
{
    uint64_t shares = f->shares + (tr_fair_expects(f, now) ? TR_FAIR_SHARE : 0);
    uint64_t part = ((uint64_t) n * k->share + shares - 1) / shares;

    return part != 0 ? (uint32_t) part : 1;
}

/* ---- those that wait ---------------------------------------------------- */

static bool
tr_fair_before(const tr_sequence_t *a, const tr_sequence_t *b)
{
    bool swapped = a->kv_slot >= 0;

    return swapped != (b->kv_slot >= 0) ? swapped : a->order < b->order;
}

void
tr_fair_wait(tr_sequence_t *q)
{
    tr_client_t *k = q->request->client;
    tr_sequence_t *after = NULL, *before = k->last;

    if (k->first != NULL && tr_fair_before(q, k->first)) {
        after = k->first; /* mostly it is the last, or the first */
        before = NULL;
    }
    while (before != NULL && tr_fair_before(q, before)) {
        after = before;
        before = before->line_prev;
    }
    q->line_prev = before;
    q->line_next = after;
    if (before != NULL) {
        before->line_next = q;
    } else {
        k->first = q;
    }
    if (after != NULL) {
        after->line_prev = q;
    } else {
        k->last = q;
    }
}

void
tr_fair_unwait(tr_sequence_t *q)
{
    tr_client_t *k = q->request->client;

    if (k->head == q) {
        k->head = q->line_next;
    }
    if (q->line_prev != NULL) {
        q->line_prev->line_next = q->line_next;
    } else {
        k->first = q->line_next;
    }
    if (q->line_next != NULL) {
        q->line_next->line_prev = q->line_prev;
    } else {
        k->last = q->line_prev;
    }
    q->line_prev = q->line_next = NULL;
}

void
tr_fair_walk(tr_fair_t *f)
{
    tr_client_t *k;

    for (k = f->inside; k != NULL; k = k->next) {
        k->head = k->first;
    }
}

tr_sequence_t *
tr_fair_next(tr_fair_t *f)
{
    tr_client_t *best = NULL, *k;
    uint64_t least = 0;
    tr_sequence_t *q;

    for (k = f->inside; k != NULL; k = k->next) {
        if (k->head != NULL
            && (best == NULL || tr_fair_promised(k) < least
                || (tr_fair_promised(k) == least
                    && k->head->order < best->head->order))) {
            best = k;
            least = tr_fair_promised(k);
        }
    }
    if (best == NULL) {
        return NULL;
    }
    q = best->head;
    best->head = q->line_next;
    return q;
}

void
tr_fair_skip(tr_client_t *k)
{
    k->head = NULL;
}

/* ---- checks ------------------------------------------------------------- */

bool
tr_fair_sound(const tr_fair_t *f, uint32_t waiting, uint32_t running,
              uint64_t coming)
{
    const tr_client_t *k, *prev = NULL;
    uint64_t shares = 0;
    uint32_t n = 0;

    for (k = f->inside; k != NULL; prev = k, k = k->next) {
        const tr_sequence_t *q, *before = NULL;
        uint32_t own = 0;

        for (q = k->first; q != NULL; before = q, q = q->line_next) {
            if (q->request->client != k || q->line_prev != before
                || q->state != TR_SEQ_WAITING
                || (before != NULL && !tr_fair_before(before, q))) {
                return false;
            }
            own++;
        }
        if (k->last != before || k->prev != prev || k->inside == 0
            || own + k->running != k->inside || own > waiting
            || k->running > running || k->coming > coming) {
            return false;
        }
        waiting -= own;
        running -= k->running;
        coming -= k->coming;
        shares += k->share;
        n++;
    }
    return waiting == 0 && running == 0 && coming == 0 && n == f->n_inside
           && shares == f->shares;
}
