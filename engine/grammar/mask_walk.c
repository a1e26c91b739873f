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
/* What it may cost to find out about one state, in the unit of TR_GRAMMAR_COST: more
 * than a walk through all plain tokens it is not worth.  And when a mask has cost
 * so much, it walks below the states that it comes to, and the next one finds out
 * about them.  (About those that it begins with it must know: what is kept depends
 * on that.) */
#define PLAIN_COST (1u << 19)

/* Tokens ids[k .. end). */
static void
take(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t k, uint32_t end)
{
    for (; k < end; k++) {
        uint32_t id = (uint32_t) t->ids[k], bit = 1u << (id % 32);

        if (!(w->s->bits[id / 32] & bit)) {
            w->s->bits[id / 32] |= bit;
            w->s->few[w->n_few++] = (int32_t) id;
        }
    }
}

void
tr_walk_take(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t node)
{
    take(w, t, t->token[node], t->token[node + 1]);
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
    uint64_t most; /* of g->cost */
    bool full;
    uint32_t n;
    uint32_t list[PLAIN_STATES];
    uint32_t
        from[PLAIN_STATES]; /* whose step led there, one more; 0: the first */
    uint32_t at;            /* whose steps are taken, likewise */
} plain_t;

/* The states that bytes of [lo, hi], followed by `more` bytes that continue a
 * character, lead to; false: one leads nowhere, or to what is not simple. */
static bool
add_targets(plain_t *p, uint32_t state, uint8_t lo, uint8_t hi, uint32_t more)
{
    uint32_t before = TR_DEAD;

    for (uint32_t b = lo; b <= hi; b++) {
        uint32_t next = tr_state_next(p->g, state, (uint8_t) b), i = 0;
        const tr_state_t *d = tr_state_at(p->g, next);

        if (++p->g->cost > p->most) {
            p->full = true;
            return false;
        }
        if (next == TR_DEAD || (d->flags & NOT_SIMPLE)
            || (more == 0 && d->plain == TR_PLAIN_NO)) {
            return false;
        }
        if (next == before || (more == 0 && d->plain == TR_PLAIN_YES)) {
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
            p->from[p->n] = p->at;
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
           && add_targets(p, state, 0x23, 0x3b, 0)
           && add_targets(p, state, 0x3d, 0x5b, 0)
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

static void
decide_plain(tr_grammar_t *g, uint32_t state)
{
    tr_state_t *d = tr_state_at(g, state);
    plain_t p = { .g = g, .most = g->cost + PLAIN_COST };
    bool all;

    if (d->flags & TR_STATE_CALLS) {
        d->plain = TR_PLAIN_NO;
        return;
    }
    if (p.most > TR_GRAMMAR_COST) {
        p.most = TR_GRAMMAR_COST;
    }
    all = add_plain(&p, state);
    for (uint32_t i = 0; all && i < p.n; i++) {
        p.at = i + 1;
        all = add_plain(&p, p.list[i]);
    }
    /* nor do those that led to the one that does not */
    for (uint32_t i = p.at; !all && i != 0; i = p.from[i - 1]) {
        tr_state_at(g, p.list[i - 1])->plain = TR_PLAIN_NO;
    }
    /* of too many states none is asked about again */
    for (uint32_t i = 0; (all || p.full) && i < p.n; i++) {
        tr_state_at(g, p.list[i])->plain = all ? TR_PLAIN_YES : TR_PLAIN_NO;
    }
    d->plain = all ? TR_PLAIN_YES : TR_PLAIN_NO;
}

bool
tr_state_takes_plain(tr_grammar_t *g, uint32_t state)
{
    tr_state_t *d = tr_state_at(g, state);

    if (d->plain == TR_PLAIN_UNKNOWN) {
        /* first the state of any other text, to which most characters lead
         * here: it must not count as one of too many */
        uint32_t other = tr_state_next(g, state, 0x7f);

        if (other != TR_DEAD
            && tr_state_at(g, other)->plain == TR_PLAIN_UNKNOWN) {
            decide_plain(g, other);
        }
        if (d->plain == TR_PLAIN_UNKNOWN) {
            decide_plain(g, state);
        }
    }
    return d->plain == TR_PLAIN_YES;
}

/* ---- walks */

/* More tokens than this make a mask that is kept as words. */
#define FEW_BELOW 32u

/* All tokens at and below a node. */
static void
take_below(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t node)
{
    uint32_t *bits = w->s->bits, k = t->token[node],
             end = t->token[t->skip[node]];

    if (!w->dense && end - k <= FEW_BELOW) {
        take(w, t, k, end);
        return;
    }
    for (; k < end; k++) {
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
           && (w->g->cost < PLAIN_COST
               || tr_state_at(w->g, c.state)->plain != TR_PLAIN_UNKNOWN)
           && tr_state_takes_plain(w->g, c.state);
}

/* walk_range() for sets of any kind. */
static void
walk_sets(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t i, uint32_t end,
          const tr_config_set_t *set, bool *dead)
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

/* Bytes of ASCII that lead from a state to itself. */
static void
find_loops(tr_grammar_t *g, uint32_t state)
{
    tr_state_t *d = tr_state_at(g, state);

    for (uint32_t b = 0x20; b < 0x7f; b++) {
        if (tr_state_next(g, state, (uint8_t) b) == state) {
            d->loops[b / 64] |= 1ull << (b % 64);
        }
    }
    d->loops_known = true;
    g->cost += 0x7f - 0x20;
}

/* Does all that is below a plain node lead from the state to itself? */
static bool
loops_below(const tr_state_t *d, const tr_vocabulary_trie_t *t, uint32_t node)
{
    const uint64_t *below = t->below + 2 * (size_t) node;

    return !(below[0] & ~d->loops[0]) && !(below[1] & ~d->loops[1]);
}

/* The tokens at and below node i, whose byte ends the rule of *c, or calls. */
static void
walk_aside(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t i,
           const tr_config_set_t *set, const tr_walk_level_t *at)
{
    tr_grammar_scratch_t *s = w->s;
    tr_configuration_t c = s->configs[set->first];
    tr_config_set_t one = { .first = set->first + 1, .n = 1 };

    s->n_frames = set->frames;
    if (at->ticks > 0) {
        tr_frame_t *f = tr_frame_push(s, c.frame->parent, c.frame->site,
                                      c.frame->count + at->ticks);

        if (f == NULL) {
            return;
        }
        f->refs = TR_FRAME_BOTTOM;
        f->depth = c.frame->depth;
        c.frame = f;
    }
    one.frames = s->n_frames;
    s->configs[one.first] = (tr_configuration_t){ c.frame, at->state };
    walk_sets(w, t, i, t->skip[i], &one, NULL);
}

/* Does a state that a walk comes to take all that is below a node? */
static bool
takes_below(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t node,
            uint32_t from, uint32_t state)
{
    const tr_state_t *d = tr_state_at(w->g, state);

    if (d->plain == TR_PLAIN_YES
        || (d->plain == TR_PLAIN_UNKNOWN && w->g->cost < PLAIN_COST
            && tr_state_takes_plain(w->g, state))) {
        return true;
    }
    if (state == from && !d->loops_known) {
        find_loops(w->g, state);
    }
    return d->loops_known && loops_below(d, t, node);
}

/* walk_range() from one configuration: as long as its rule neither ends nor
 * calls, only the state changes, and the number of characters.  This is where
 * the time of large masks goes. */
static void
walk_states(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t i,
            uint32_t end, const tr_config_set_t *set)
{
    tr_grammar_scratch_t *s = w->s;
    tr_configuration_t c = s->configs[set->first];
    bool counts = tr_frame_counts(w->g, c.frame);
    bool plain = !counts && t == &s->vocabulary->plain;
    uint32_t room = counts ? w->g->program.sites[c.frame->site].max
                                 - c.frame->count
                           : 0;
    tr_walk_level_t *path = s->path, *at = path;

    *at = (tr_walk_level_t){ .state = c.state, .end = end };
    for (;;) {
        uint32_t next;
        uint8_t flags;

        while (i == at->end) {
            if (at == path) {
                return;
            }
            at--;
        }
        next = tr_state_next(w->g, at->state, t->byte[i]);
        flags = tr_state_at(w->g, next)->flags;
        s->work++;
        if (next == TR_DEAD) {
            i = t->skip[i];
        } else if (flags & NOT_SIMPLE) {
            walk_aside(w, t, i, set, at);
            i = t->skip[i];
        } else if (counts && at->ticks == room) {
            i = t->skip[i];
        } else if (plain && takes_below(w, t, i, at->state, next)) {
            take_below(w, t, i);
            i = t->skip[i];
        } else {
            tr_walk_take(w, t, i);
            if (t->skip[i] > i + 1) {
                uint32_t ticks = at->ticks
                                 + (counts && (flags & TR_STATE_TICK));

                *++at = (tr_walk_level_t){ next, t->skip[i], ticks };
            }
            i++;
        }
        if (s->limit || w->g->spent || s->work > s->work_limit
            || w->g->cost > TR_GRAMMAR_COST) {
            s->limit = true;
            return;
        }
    }
}

/* The tokens at nodes [i, end), children of one node and what is below, that
 * *set, which is closed, allows.  dead: bytes that are known to lead nowhere
 * from *set; NULL: none. */
static void
walk_range(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t i,
           uint32_t end, const tr_config_set_t *set, bool *dead)
{
    const tr_frame_t *frame = w->s->configs[set->first].frame;

    if (dead == NULL && set->n == 1
        && (!tr_frame_counts(w->g, frame) || frame->refs == TR_FRAME_BOTTOM)) {
        walk_states(w, t, i, end, set);
    } else {
        walk_sets(w, t, i, end, set, dead);
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

/* Characters of a token for which a frame has room; as many as any has. */
static uint32_t
room_in(const tr_walk_t *w, const tr_frame_t *frame)
{
    uint32_t longest = w->s->vocabulary->longest, room = longest;

    if (tr_frame_counts(w->g, frame)) {
        room = w->g->program.sites[frame->site].max - frame->count;
    }
    return room < longest ? room : longest;
}

/* Where most plain characters lead to a state that takes any plain text (a name
 * that is not one of those that are declared, a string that may be on its way to a
 * barred mark): all plain tokens, then only those below the other characters are
 * looked at.  False: it is no such state. */
static bool
take_nearly_all(tr_walk_t *w, const tr_config_set_t *set)
{
    const tr_vocabulary_trie_t *t = &w->s->vocabulary->plain;
    tr_configuration_t c = w->s->configs[set->first];
    uint32_t to = tr_state_next(w->g, c.state, 0x7f);

    if (to == TR_DEAD || set->n != 1
        || (tr_state_at(w->g, to)->flags & NOT_SIMPLE)
        || (tr_state_at(w->g, c.state)->flags & TR_STATE_CALLS)
        || !tr_state_takes_plain(w->g, to)) {
        return false;
    }
    take_plain(w, room_in(w, c.frame));
    for (uint32_t i = 1; i < t->n; i = t->skip[i]) {
        uint32_t next = tr_state_next(w->g, c.state, t->byte[i]);

        /* a character of several bytes comes to it only with its last one */
        if (next == to || next == tr_state_next(w->g, to, t->byte[i])) {
            continue;
        }
        for (uint32_t k = t->token[i]; k < t->token[t->skip[i]]; k++) {
            w->s->bits[t->ids[k] / 32] &= ~(1u << (t->ids[k] % 32));
        }
        walk_range(w, t, i, t->skip[i], set, NULL);
    }
    return true;
}

/* Configurations that take any plain text take it at once, up to the most that one
 * has room for (strings of several bounds may begin at one place); the others are
 * walked. */
void
tr_walk_plain(tr_walk_t *w, const tr_config_set_t *set)
{
    tr_grammar_scratch_t *s = w->s;
    uint32_t longest = s->vocabulary->longest, room = 0;
    tr_config_set_t others;

    tr_set_begin(s, &others);
    for (uint32_t i = 0; i < set->n && room < longest; i++) {
        tr_configuration_t c = s->configs[set->first + i];

        if (!tr_state_takes_plain(w->g, c.state)) {
            tr_set_add(s, &others, c.frame, c.state);
        } else if (room < room_in(w, c.frame)) {
            room = room_in(w, c.frame);
        }
    }
    others.frames = set->frames;
    if (room > 0) {
        take_plain(w, room);
    }
    if (room < longest && others.n > 0
        && (room > 0 || !take_nearly_all(w, &others))) {
        tr_walk(w, &s->vocabulary->plain, 0, &others, NULL);
    }
}
