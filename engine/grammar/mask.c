/*
 * Masks.
 *
 * For a configuration (stack, state) the tokens are of two kinds.  Those whose
 * bytes stay within the rule, and what it calls, are the same whatever the
 * stack: they are found once a state (make_base).  The walk also notes at which
 * nodes of the vocabulary the rule comes to its end; from there on the stack
 * decides (make_context).  That is kept, too, by the entries of the stack that
 * were looked at: what is below them can change nothing.
 *
 * An entry is the site of a call, and with a counter how far it is from its
 * bounds, as far as a token can reach.
 *
 * With a rule whose characters are counted, the base also goes by how many
 * characters there is room for.
 */
#include "grammar_internal.h"

#include <string.h>

#define ENTRIES_MAX 40u

/* A mask that is kept: few ids, or words. */
struct tr_kept_mask {
    tr_kept_mask_t *next; /* of its bucket */
    uint32_t state, room;
    uint32_t n_entries; /* 0: base */
    uint32_t n_ids;     /* of ids */
    uint32_t n_leaves;
    const int32_t *ids;    /* NULL: words */
    const uint32_t *words; /* NULL: ids */
    const tr_leave_t *leaves;
    const uint64_t *entries;
};

#define PLAIN_NODE 0x80000000u
#define NO_ROOM UINT32_MAX

/* ---- what a walk finds */

typedef struct {
    tr_grammar_t *g;
    tr_grammar_scratch_t *s;
    uint32_t n_few;
    bool dense;  /* s->bits began with more than what is in s->few */
    bool base;   /* ends of the bottom frame are noted */
    bool counts; /* the bottom frame's count decides whether it may end */
} walk_t;

static void
take(walk_t *w, const tr_vocabulary_trie_t *t, uint32_t node)
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
note_leave(walk_t *w, uint32_t node, uint32_t ticks)
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
step(walk_t *w, const tr_config_set_t *from, uint8_t byte, tr_config_set_t *to)
{
    tr_grammar_scratch_t *s = w->s;

    if (from->n == 1) {
        tr_configuration_t c = s->configs[from->first];
        uint32_t next = tr_state_next(w->g, c.state, byte);

        s->work++;
        if (next == TR_DEAD) {
            return false;
        }
        if (!(tr_state_at(w->g, next)->flags & NOT_SIMPLE)
            && !tr_frame_counts(w->g, c.frame)) {
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

/* The tokens below `root` that *set, which is closed, allows.  dead: bytes that
 * are known to lead nowhere from *set; NULL: none. */
static void
walk(walk_t *w, const tr_vocabulary_trie_t *t, uint32_t root,
     const tr_config_set_t *set, bool *dead)
{
    tr_grammar_scratch_t *s = w->s;
    uint32_t plain = t == &s->vocabulary->plain ? PLAIN_NODE : 0;
    uint32_t i = root + 1, depth = 0;

    s->levels[0] = *set;
    s->levels[0].end = t->skip[root];
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
                take(w, t, i);
            }
            if (to->left && (w->counts || t->skip[i] > i + 1)) {
                note_leave(w, i | plain, to->ticks);
            }
            to->end = t->skip[i];
            if (to->n == 0) { /* only the end of a rule: nothing below */
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

/* ---- states in which a string goes on with any plain character */

/* Do all the bytes of [lo, hi], followed by `more` bytes that continue a
 * character, lead from `state` to `to`? */
static bool
all_lead(tr_grammar_t *g, uint32_t state, uint8_t lo, uint8_t hi, uint32_t more,
         uint32_t to)
{
    uint32_t before = TR_DEAD;

    for (uint32_t b = lo; b <= hi; b++) {
        uint32_t next = tr_state_next(g, state, (uint8_t) b);

        if (next == TR_DEAD
            || (tr_state_at(g, next)->flags
                & (TR_STATE_ACCEPT | TR_STATE_CALLS | TR_STATE_TOKENS))) {
            return false;
        }
        if (more == 0) {
            if (next != to) {
                return false;
            }
        } else if (next != before
                   && !all_lead(g, next, 0x80, 0xbf, more - 1, to)) {
            return false;
        }
        before = next;
    }
    return true;
}

/* Second bytes of e0, ed, f0 and f4 have ranges of their own. */
static bool
odd_lead(tr_grammar_t *g, uint32_t state, uint8_t lead, uint8_t lo, uint8_t hi,
         uint32_t more, uint32_t to)
{
    uint32_t next = tr_state_next(g, state, lead);

    return next != TR_DEAD && all_lead(g, next, lo, hi, more, to);
}

static bool
plain_leads(tr_grammar_t *g, uint32_t state, uint32_t to)
{
    return all_lead(g, state, 0x20, 0x21, 0, to)
           && all_lead(g, state, 0x23, 0x5b, 0, to)
           && all_lead(g, state, 0x5d, 0x7f, 0, to)
           && all_lead(g, state, 0xc2, 0xdf, 1, to)
           && odd_lead(g, state, 0xe0, 0xa0, 0xbf, 1, to)
           && all_lead(g, state, 0xe1, 0xec, 2, to)
           && odd_lead(g, state, 0xed, 0x80, 0x9f, 1, to)
           && all_lead(g, state, 0xee, 0xef, 2, to)
           && odd_lead(g, state, 0xf0, 0x90, 0xbf, 2, to)
           && all_lead(g, state, 0xf1, 0xf3, 3, to)
           && odd_lead(g, state, 0xf4, 0x80, 0x8f, 2, to);
}

static bool
takes_plain(tr_grammar_t *g, uint32_t state)
{
    tr_state_t *d = tr_state_at(g, state);

    if (d->plain == TR_PLAIN_UNKNOWN) {
        uint32_t to = tr_state_next(g, state, 'a');

        d->plain = to != TR_DEAD
                           && !(d->flags & (TR_STATE_CALLS | TR_STATE_TOKENS))
                           && plain_leads(g, state, to)
                           && (to == state || plain_leads(g, to, to))
                       ? TR_PLAIN_YES
                       : TR_PLAIN_NO;
    }
    return d->plain == TR_PLAIN_YES;
}

/* Plain tokens of at most `chars` characters. */
static void
take_plain(walk_t *w, uint32_t chars)
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

/* ---- keeping */

static void *
room_for(tr_grammar_t *g, size_t n)
{
    return tr_grammar_alloc(&g->masks, n);
}

/* All masks go; those who use the grammar make them again. */
static void
forget(tr_grammar_t *g)
{
    memset(g->mask_bucket, 0, sizeof(g->mask_bucket));
    tr_grammar_arena_reset(&g->masks);
}

static uint32_t
bucket(uint32_t state, uint32_t room, const uint64_t *entries, uint32_t n)
{
    uint64_t h = state * 0x9e3779b97f4a7c15ull ^ room;

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ entries[i]) * 0xff51afd7ed558ccdull;
        h ^= h >> 29;
    }
    return (uint32_t) ((h ^ (h >> 32)) % TR_MASK_BUCKETS);
}

static const tr_kept_mask_t *
find(const tr_grammar_t *g, uint32_t state, uint32_t room,
     const uint64_t *entries, uint32_t n)
{
    const tr_kept_mask_t *k = g->mask_bucket[bucket(state, room, entries, n)];

    for (; k != NULL; k = k->next) {
        if (k->state == state && k->room == room && k->n_entries == n
            && (n == 0
                || memcmp(k->entries, entries, n * sizeof(*entries)) == 0)) {
            return k;
        }
    }
    return NULL;
}

static bool
copy_into(tr_grammar_t *g, tr_kept_mask_t *to, const tr_kept_mask_t *from,
          uint32_t words)
{
    void *p;

    if (from->ids != NULL) {
        p = room_for(g, from->n_ids * sizeof(int32_t) + 1);
        if (p != NULL) {
            memcpy(p, from->ids, from->n_ids * sizeof(int32_t));
        }
        to->ids = p;
    } else {
        p = room_for(g, words * sizeof(uint32_t));
        if (p != NULL) {
            memcpy(p, from->words, words * sizeof(uint32_t));
        }
        to->words = p;
    }
    if (p == NULL) {
        return false;
    }
    p = room_for(g, from->n_leaves * sizeof(tr_leave_t)
                        + from->n_entries * sizeof(uint64_t) + 1);
    if (p == NULL) {
        return false;
    }
    if (from->n_entries > 0) {
        memcpy(p, from->entries, from->n_entries * sizeof(uint64_t));
    }
    to->entries = p;
    p = (uint64_t *) p + from->n_entries;
    if (from->n_leaves > 0) {
        memcpy(p, from->leaves, from->n_leaves * sizeof(tr_leave_t));
    }
    to->leaves = p;
    return true;
}

/* Keeps a copy if there is room; returns it, or what was given. */
static const tr_kept_mask_t *
keep(tr_grammar_t *g, const tr_kept_mask_t *m, uint32_t words)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        tr_kept_mask_t *copy = room_for(g, sizeof(*copy));

        if (copy != NULL) {
            *copy = *m;
            if (copy_into(g, copy, m, words)) {
                uint32_t at = bucket(m->state, m->room, m->entries,
                                     m->n_entries);

                copy->next = g->mask_bucket[at];
                g->mask_bucket[at] = copy;
                return copy;
            }
        }
        if (m->n_entries != 0) {
            break; /* its base is in use */
        }
        forget(g);
    }
    return m;
}

/* What the walk found, in the scratch. */
static void
found(const walk_t *w, tr_kept_mask_t *m)
{
    bool few = !w->dense && w->n_few < w->s->vocabulary->words;

    m->n_ids = w->n_few;
    m->ids = few ? w->s->few : NULL;
    m->words = few ? NULL : w->s->bits;
}

static void
clean(const walk_t *w)
{
    tr_grammar_scratch_t *s = w->s;

    if (w->dense || w->n_few > s->vocabulary->words) {
        memset(s->bits, 0, s->vocabulary->words * sizeof(*s->bits));
        return;
    }
    for (uint32_t i = 0; i < w->n_few; i++) {
        s->bits[s->few[i] / 32] = 0;
    }
}

static void
apply(const tr_kept_mask_t *m, uint32_t words, uint32_t *mask)
{
    if (m->ids == NULL) {
        for (uint32_t i = 0; i < words; i++) {
            mask[i] |= m->words[i];
        }
        return;
    }
    for (uint32_t i = 0; i < m->n_ids; i++) {
        mask[m->ids[i] / 32] |= 1u << (m->ids[i] % 32);
    }
}

static void
begin(tr_grammar_scratch_t *s)
{
    s->n_frames = s->n_configs = 0;
    s->looked = UINT32_MAX;
}

/* ---- tokens that the rule decides */

/* Characters that the frame has room for, as far as a token can reach. */
static uint32_t
room_of(const tr_grammar_t *g, const tr_frame_t *frame)
{
    uint32_t reach = g->vocabulary->longest + 1;
    const tr_site_t *site;

    if (!tr_frame_counts(g, frame)) {
        return NO_ROOM;
    }
    site = &g->program.sites[frame->site];
    return site->max == TR_UNBOUNDED || site->max - frame->count > reach
               ? reach
               : site->max - frame->count;
}

static void
make_base(walk_t *w, const tr_configuration_t *c, uint32_t room,
          tr_kept_mask_t *out)
{
    tr_grammar_scratch_t *s = w->s;
    const tr_vocabulary_t *v = s->vocabulary;
    tr_frame_t bottom = { .refs = TR_FRAME_BOTTOM, .site = TR_NO_SITE };
    tr_config_set_t set;

    begin(s);
    s->n_leaves = 0;
    if (c->frame != NULL) {
        bottom.site = c->frame->site;
        bottom.count = c->frame->count;
        bottom.depth = c->frame->depth;
    }
    s->bottom_count = bottom.count;
    w->base = true;
    w->counts = room != NO_ROOM;
    tr_set_begin(s, &set);
    tr_set_add(s, &set, &bottom, c->state);
    tr_set_close(w->g, s, &set, true);
    set.frames = s->n_frames;
    if (takes_plain(w->g, c->state)) {
        take_plain(w, room == NO_ROOM ? v->longest : room);
    } else {
        walk(w, &v->plain, 0, &set, NULL);
    }
    walk(w, &v->rest, 0, &set, NULL);
    *out = (tr_kept_mask_t){ .state = c->state,
                             .room = room,
                             .n_leaves = s->n_leaves,
                             .leaves = s->leaves };
    found(w, out);
}

/* ---- tokens that the stack decides */

static uint64_t
entry_of(const tr_grammar_t *g, const tr_frame_t *f)
{
    const tr_site_t *site = &g->program.sites[f->site];
    uint32_t reach = g->vocabulary->longest + 1, need = 0, room = reach;

    if (site->kind != TR_SITE_CALL) {
        if (f->count < site->min) {
            need = site->min - f->count;
        }
        if (site->max != TR_UNBOUNDED) {
            room = site->max - f->count;
        }
    }
    need = need < reach ? need : reach;
    room = room < reach ? room : reach;
    return (uint64_t) f->site << 32 | need << 16 | room;
}

/* The first n entries of a stack; the end of it is one, too.  Returns how many
 * there are. */
static uint32_t
entries_of(const tr_grammar_t *g, const tr_frame_t *f, uint32_t n,
           uint64_t *out)
{
    uint32_t k = 0;

    for (; k < n && f != NULL; f = f->parent) {
        out[k++] = entry_of(g, f);
    }
    if (k < n) {
        out[k++] = UINT64_MAX;
    }
    return k;
}

static const tr_kept_mask_t *
find_context(const tr_grammar_t *g, const tr_configuration_t *c)
{
    uint64_t left = tr_state_at(g, c->state)->contexts, entries[ENTRIES_MAX];
    uint32_t k = 0;
    const tr_frame_t *f = c->frame;

    for (; left != 0 && k < ENTRIES_MAX; left >>= 1) {
        const tr_kept_mask_t *m;

        if (k > 0 && (left & 1)) {
            m = find(g, c->state, NO_ROOM, entries, k);
            if (m != NULL) {
                return m;
            }
        }
        if (f == NULL) {
            if (k > 0 && entries[k - 1] == UINT64_MAX) {
                return NULL;
            }
            entries[k++] = UINT64_MAX;
        } else {
            entries[k++] = entry_of(g, f);
            f = f->parent;
        }
    }
    return NULL;
}

static void
make_context(walk_t *w, const tr_configuration_t *c, const tr_leave_t *leaves,
             uint32_t n, uint64_t entries[ENTRIES_MAX], tr_kept_mask_t *out)
{
    tr_grammar_scratch_t *s = w->s;
    const tr_vocabulary_t *v = s->vocabulary;
    const tr_site_t *site = &w->g->program.sites[c->frame->site];
    tr_config_set_t set = { 0 };
    uint32_t ticks = UINT32_MAX;
    bool dead[256], alive = false;

    begin(s);
    w->base = w->counts = false;
    for (uint32_t i = 0; i < n && !s->limit; i++) {
        uint32_t node = leaves[i].node & ~PLAIN_NODE;
        const tr_vocabulary_trie_t *t = leaves[i].node & PLAIN_NODE ? &v->plain
                                                                    : &v->rest;

        if (leaves[i].ticks != ticks) {
            ticks = leaves[i].ticks;
            memset(dead, 0, sizeof(dead));
            s->n_frames = s->n_configs = 0;
            tr_set_begin(s, &set);
            tr_set_pop(w->g, s, &set, c->frame, ticks);
            tr_set_close(w->g, s, &set, true);
            set.frames = s->n_frames;
            alive = set.n > 0 || set.ended;
        }
        if (alive && site->kind == TR_SITE_LENGTH) {
            take(w, t, node);
        }
        if (alive) {
            walk(w, t, node, &set, dead);
        }
    }
    *out = (tr_kept_mask_t){ .state = c->state, .room = NO_ROOM };
    if (s->looked <= c->frame->depth) {
        uint32_t wanted = c->frame->depth - s->looked + 1;

        if (wanted <= ENTRIES_MAX) {
            out->n_entries = entries_of(w->g, c->frame, wanted, entries);
            out->entries = entries;
        }
    }
    found(w, out);
}

/* ---- the whole */

static bool
fill(tr_grammar_t *g, tr_grammar_scratch_t *s, const tr_configuration_t *c,
     uint32_t *mask)
{
    uint32_t words = s->vocabulary->words, room = room_of(g, c->frame);
    uint64_t entries[ENTRIES_MAX];
    const tr_kept_mask_t *m = find(g, c->state, room, NULL, 0), *context;
    walk_t w = { .g = g, .s = s };
    tr_kept_mask_t made, made_context;

    if (m == NULL) {
        make_base(&w, c, room, &made);
        g->n_masks++;
        m = s->limit ? &made : keep(g, &made, words);
    }
    if (!s->limit) {
        apply(m, words, mask);
    }
    clean(&w);
    if (s->limit || c->frame == NULL || m->n_leaves == 0) {
        return !s->limit;
    }
    context = find_context(g, c);
    w = (walk_t){ .g = g, .s = s };
    if (context == NULL) {
        make_context(&w, c, m->leaves, m->n_leaves, entries, &made_context);
        g->n_masks++;
        context = &made_context;
        if (!s->limit && context->n_entries > 0) {
            tr_state_at(g, c->state)->contexts |= 1ull << context->n_entries;
            context = keep(g, &made_context, words);
        }
    }
    if (!s->limit) {
        apply(context, words, mask);
    }
    clean(&w);
    return !s->limit;
}

/* Special tokens are few: they are asked for each time. */
static void
add_special(tr_grammar_t *g, tr_grammar_scratch_t *s, const tr_matcher_t *m,
            uint32_t *mask)
{
    tr_config_set_t set;

    begin(s);
    tr_set_begin(s, &set);
    for (uint32_t i = 0; i < m->n; i++) {
        tr_set_add(s, &set, m->configs[i].frame, m->configs[i].state);
    }
    tr_set_close(g, s, &set, true);
    for (uint32_t i = 0; i < set.n; i++) {
        const tr_state_t *d = tr_state_at(g, s->configs[set.first + i].state);

        for (uint32_t k = 0; k < d->n_tokens; k++) {
            uint32_t id = (uint32_t) g->program.tokens[d->tokens[k]].token;

            if (id < s->vocabulary->vocab) {
                mask[id / 32] |= 1u << (id % 32);
            }
        }
    }
}

tr_status_t
tr_mask_fill(tr_grammar_t *g, tr_grammar_scratch_t *s, const tr_matcher_t *m,
             uint32_t *mask)
{
    s->work = 0;
    s->limit = false;
    if (g->program.n_tokens > 0) {
        add_special(g, s, m, mask);
    }
    for (uint32_t i = 0; i < m->n && !s->limit; i++) {
        fill(g, s, &m->configs[i], mask);
    }
    return s->limit || g->spent ? TR_ERR_UNSUPPORTED : TR_OK;
}
