/*
 * Walks through the vocabulary: which tokens a set of configurations allows.
 *
 * Tokens that are plain text of a JSON string are nine of ten.  Most places
 * either allow all of them or nearly none, and are found to do so without
 * looking at each: a state from which any plain text goes on takes them all at
 * once, and so does a node of the trie at which such a state is reached.
 */
#include "grammar_internal.h"

#include <string.h>

#define PLAIN_STATES 256u

void
tr_walk_take(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t node)
{
    for (uint32_t k = t->token[node]; k < t->token[node + 1]; k++) {
        uint32_t id = (uint32_t) t->ids[k], bit = 1u << (id % 32);

        if (!(w->s->bits[id / 32] & bit)) {
            w->s->bits[id / 32] |= bit;
            w->s->few[w->n_few++] = (int32_t) id;
        }
    }
}

static void
note_leave(tr_walk_t *w, uint32_t node, uint32_t ticks)
{
    tr_grammar_scratch_t *s = w->s;

    if (s->n_leaves == TR_SCRATCH_LEAVES) {
        s->limit = true;
        return;
    }
    s->leaves[s->n_leaves++] = (tr_leave_t){ node, ticks };
}

#define NOT_SIMPLE (TR_STATE_ACCEPT | TR_STATE_CALLS)

/* One byte from *from, which is closed; *to is closed, too.  Does anything
 * come of it? */
static bool
step(tr_walk_t *w, const tr_config_set_t *from, uint8_t byte,
     tr_config_set_t *to)
{
    tr_grammar_scratch_t *s = w->s;

    if (from->n == 1) {
        tr_configuration_t c = s->configs[from->first];
        uint32_t next = tr_state_next(w->g, c.state, byte);

        s->work++;
        if (next == TR_DEAD) {
            return false;
        }
        if (!(tr_state_at(w->g, next)->flags & NOT_SIMPLE)) {
            if (tr_frame_counts(w->g, c.frame)
                && !tr_frame_byte(w->g, s, &c.frame,
                                  tr_state_at(w->g, next)->flags)) {
                return false;
            }
            if (s->n_configs == TR_SCRATCH_CONFIGS) {
                s->limit = true;
                return false;
            }
            tr_set_begin(s, to);
            s->configs[s->n_configs++] = (tr_configuration_t){ c.frame, next };
            to->n = 1;
            to->frames = s->n_frames;
            return true;
        }
    }
    tr_set_step(w->g, s, from, byte, to);
    if (to->n == 0) {
        return false;
    }
    tr_set_close(w->g, s, to, true);
    to->frames = s->n_frames;
    return to->n > 0 || to->ended || to->left;
}

/* ---- states in which a string goes on with any plain character */

/* States that plain characters lead to, from one on. */
typedef struct {
    tr_grammar_t *g;
    bool full;
    uint32_t n;
    uint32_t list[PLAIN_STATES];
} plain_t;

/* The states that bytes of [lo, hi], followed by `more` bytes that continue a
 * character, lead to; false: one leads nowhere, or to what is not simple. */
static bool
add_targets(plain_t *p, uint32_t state, uint8_t lo, uint8_t hi, uint32_t more)
{
    uint32_t before = TR_DEAD;

    for (uint32_t b = lo; b <= hi; b++) {
        uint32_t next = tr_state_next(p->g, state, (uint8_t) b), i = 0;

        if (++p->g->cost > TR_GRAMMAR_COST) {
            p->full = true;
            return false;
        }
        if (next == TR_DEAD || (tr_state_at(p->g, next)->flags & NOT_SIMPLE)) {
            return false;
        }
        if (next == before) {
            continue;
        }
        before = next;
        if (more > 0) {
            if (!add_targets(p, next, 0x80, 0xbf, more - 1)) {
                return false;
            }
            continue;
        }
        while (i < p->n && p->list[i] != next) {
            i++;
        }
        if (i == PLAIN_STATES) {
            p->full = true;
            return false;
        }
        if (i == p->n) {
            p->list[p->n++] = next;
        }
    }
    return true;
}

/* Second bytes of e0, ed, f0 and f4 have ranges of their own. */
static bool
add_odd(plain_t *p, uint32_t state, uint8_t lead, uint8_t lo, uint8_t hi,
        uint32_t more)
{
    uint32_t next = tr_state_next(p->g, state, lead);

    return next != TR_DEAD && !(tr_state_at(p->g, next)->flags & NOT_SIMPLE)
           && add_targets(p, next, lo, hi, more);
}

static bool
add_plain(plain_t *p, uint32_t state)
{
    return add_targets(p, state, 0x20, 0x21, 0)
           && add_targets(p, state, 0x23, 0x5b, 0)
           && add_targets(p, state, 0x5d, 0x7f, 0)
           && add_targets(p, state, 0xc2, 0xdf, 1)
           && add_odd(p, state, 0xe0, 0xa0, 0xbf, 1)
           && add_targets(p, state, 0xe1, 0xec, 2)
           && add_odd(p, state, 0xed, 0x80, 0x9f, 1)
           && add_targets(p, state, 0xee, 0xef, 2)
           && add_odd(p, state, 0xf0, 0x90, 0xbf, 2)
           && add_targets(p, state, 0xf1, 0xf3, 3)
           && add_odd(p, state, 0xf4, 0x80, 0x8f, 2);
}

bool
tr_state_takes_plain(tr_grammar_t *g, uint32_t state)
{
    tr_state_t *d = tr_state_at(g, state);
    plain_t p = { .g = g };
    bool all = true;

    if (d->plain == TR_PLAIN_UNKNOWN) {
        d->plain = TR_PLAIN_NO;
        if (!(d->flags & TR_STATE_CALLS)) {
            all = add_plain(&p, state);
            for (uint32_t i = 0; all && i < p.n; i++) {
                all = add_plain(&p, p.list[i]);
            }
            /* of too many states none is asked about again */
            for (uint32_t i = 0; (all || p.full) && i < p.n; i++) {
                tr_state_at(g, p.list[i])->plain = all ? TR_PLAIN_YES
                                                       : TR_PLAIN_NO;
            }
            d->plain = all ? TR_PLAIN_YES : TR_PLAIN_NO;
        }
    }
    return d->plain == TR_PLAIN_YES;
}

/* ---- walks */

/* All tokens at and below a node. */
static void
take_below(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t node)
{
    uint32_t *bits = w->s->bits;

    for (uint32_t k = t->token[node]; k < t->token[t->skip[node]]; k++) {
        bits[t->ids[k] / 32] |= 1u << (t->ids[k] % 32);
    }
    w->dense = true;
}

/* Does *set take any plain text, so that nothing below needs to be looked at? */
static bool
takes_all(tr_walk_t *w, const tr_config_set_t *set)
{
    tr_configuration_t c = w->s->configs[set->first];

    return set->n == 1 && !set->left && !tr_frame_counts(w->g, c.frame)
           && tr_state_takes_plain(w->g, c.state);
}

/* The tokens at nodes [i, end), children of one node and what is below, that
 * *set, which is closed, allows.  dead: bytes that are known to lead nowhere
 * from *set; NULL: none. */
static void
walk_range(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t i,
           uint32_t end, const tr_config_set_t *set, bool *dead)
{
    tr_grammar_scratch_t *s = w->s;
    uint32_t plain = t == &s->vocabulary->plain ? TR_PLAIN_NODE : 0;
    uint32_t depth = 0;

    s->levels[0] = *set;
    s->levels[0].end = end;
    for (;;) {
        tr_config_set_t *at, *to;

        while (i == s->levels[depth].end) {
            if (depth == 0) {
                return;
            }
            depth--;
        }
        at = &s->levels[depth];
        to = at + 1;
        s->n_configs = at->first + at->n;
        s->n_frames = at->frames;
        if (depth == 0 && dead != NULL && dead[t->byte[i]]) {
            i = t->skip[i];
            continue;
        }
        if (!step(w, at, t->byte[i], to)) {
            if (depth == 0 && dead != NULL) {
                dead[t->byte[i]] = true;
            }
            i = t->skip[i];
        } else {
            if (to->n > 0 || to->ended || (to->left && !w->counts)) {
                tr_walk_take(w, t, i);
            }
            if (to->left && (w->counts || t->skip[i] > i + 1)) {
                note_leave(w, i | plain, to->ticks);
            }
            to->end = t->skip[i];
            if (plain && takes_all(w, to)) {
                take_below(w, t, i);
                i = t->skip[i];
            } else if (to->n == 0) { /* only the end of a rule */
                i = t->skip[i];
            } else {
                i++;
                depth++;
            }
        }
        if (s->limit || s->work > s->work_limit) {
            s->limit = true;
            return;
        }
    }
}

void
tr_walk(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t root,
        const tr_config_set_t *set, bool *dead)
{
    walk_range(w, t, root + 1, t->skip[root], set, dead);
}

/* Plain tokens of at most `chars` characters. */
static void
take_plain(tr_walk_t *w, uint32_t chars)
{
    const tr_vocabulary_t *v = w->s->vocabulary;
    uint32_t k = chars < TR_PLAIN_MASKS ? chars : TR_PLAIN_MASKS;

    for (uint32_t i = 0; i < v->words; i++) {
        w->s->bits[i] |= v->plain_mask[k][i];
    }
    for (uint32_t i = 0; i < v->n_long && v->long_chars[i] <= chars; i++) {
        uint32_t id = (uint32_t) v->long_id[i];

        w->s->bits[id / 32] |= 1u << (id % 32);
    }
    w->dense = true;
}

/* All plain tokens, or those that a string which begins here has room for.
 * False: they must be looked at. */
static bool
take_at_once(tr_walk_t *w, const tr_config_set_t *set)
{
    tr_configuration_t c = w->s->configs[set->first];
    uint32_t room = w->s->vocabulary->longest;

    if (set->n != 1 || !tr_state_takes_plain(w->g, c.state)) {
        return false;
    }
    if (tr_frame_counts(w->g, c.frame)) {
        const tr_site_t *site = &w->g->program.sites[c.frame->site];

        room = site->max - c.frame->count < room ? site->max - c.frame->count
                                                 : room;
    }
    take_plain(w, room);
    return true;
}

/* Where most plain characters lead to a state that takes any plain text (a name
 * that is not one of those that are declared): all plain tokens, then only those
 * below the other characters are looked at.  False: it is no such state. */
static bool
take_nearly_all(tr_walk_t *w, const tr_configuration_t *c,
                const tr_config_set_t *set)
{
    const tr_vocabulary_trie_t *t = &w->s->vocabulary->plain;
    uint32_t to = tr_state_next(w->g, c->state, 0x7f);

    if (to == TR_DEAD || set->n != 1 || tr_frame_counts(w->g, c->frame)
        || (tr_state_at(w->g, to)->flags & NOT_SIMPLE)
        || (tr_state_at(w->g, c->state)->flags & TR_STATE_CALLS)
        || !tr_state_takes_plain(w->g, to)) {
        return false;
    }
    take_plain(w, w->s->vocabulary->longest);
    for (uint32_t i = 1; i < t->n; i = t->skip[i]) {
        if (tr_state_next(w->g, c->state, t->byte[i]) == to) {
            continue;
        }
        for (uint32_t k = t->token[i]; k < t->token[t->skip[i]]; k++) {
            w->s->bits[t->ids[k] / 32] &= ~(1u << (t->ids[k] % 32));
        }
        walk_range(w, t, i, t->skip[i], set, NULL);
    }
    return true;
}

void
tr_walk_plain(tr_walk_t *w, const tr_configuration_t *c,
              const tr_config_set_t *set)
{
    if (!take_at_once(w, set) && !take_nearly_all(w, c, set)) {
        tr_walk(w, &w->s->vocabulary->plain, 0, set, NULL);
    }
}
