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

#include <stdlib.h>
#include <string.h>

#define ENTRIES_MAX 40u

/* Ids of a context from `first` on: tokens that end a rule which counts its
 * characters behind so many of them. */
typedef struct {
    uint32_t ticks, first;
} group_t;

#define GROUPS_MAX 512u

/* A mask that is kept: few ids, or words. */
struct tr_kept_mask {
    tr_kept_mask_t *next; /* of its bucket */
    uint32_t state, room;
    uint32_t n_entries; /* 0: base */
    uint32_t n_ids;     /* of ids */
    uint32_t n_leaves;
    bool plain;            /* and plain tokens for which there is room */
    uint32_t n_groups;     /* of ids, by the characters before the end */
    const group_t *groups; /* [n_groups] */
    const int32_t *ids;    /* NULL: words */
    const uint32_t *words; /* NULL: ids */
    const tr_leave_t *leaves;
    const uint64_t *entries;
};

#define NO_ROOM UINT32_MAX

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
                        + from->n_groups * sizeof(group_t)
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
    p = (tr_leave_t *) p + from->n_leaves;
    if (from->n_groups > 0) {
        memcpy(p, from->groups, from->n_groups * sizeof(group_t));
    }
    to->groups = p;
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
found(const tr_walk_t *w, tr_kept_mask_t *m)
{
    bool few = !w->dense && w->n_few < w->s->vocabulary->words;

    m->n_ids = w->n_few;
    m->ids = few ? w->s->few : NULL;
    m->words = few ? NULL : w->s->bits;
}

static void
clean(const tr_walk_t *w)
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
    s->deep = false;
}

/* ---- tokens that the rule decides */

/* How many characters a token can add to what the frame counts, and one. */
static uint32_t
reach_of(tr_grammar_t *g, uint32_t state)
{
    return 1
           + (tr_state_takes_plain(g, state) ? g->vocabulary->longest_in_string
                                             : g->vocabulary->longest);
}

/* Characters that a frame which counts has room for. */
static uint32_t
room_of(const tr_grammar_t *g, const tr_frame_t *frame, uint32_t count)
{
    const tr_site_t *site = &g->program.sites[frame->site];

    return site->max == TR_UNBOUNDED ? TR_UNBOUNDED - 1 : site->max - count;
}

static int
by_ticks(const void *a, const void *b)
{
    const tr_leave_t *x = a, *y = b;

    return x->ticks != y->ticks ? (x->ticks > y->ticks) - (x->ticks < y->ticks)
                                : (x->node > y->node) - (x->node < y->node);
}

/* room: NO_ROOM, or of a frame that counts, as far as a token reaches. */
static void
make_base(tr_walk_t *w, const tr_configuration_t *c, uint32_t room,
          tr_kept_mask_t *out)
{
    tr_grammar_scratch_t *s = w->s;
    const tr_vocabulary_t *v = s->vocabulary;
    tr_frame_t bottom = { .refs = TR_FRAME_BOTTOM, .site = TR_NO_SITE };
    bool plain = tr_state_takes_plain(w->g, c->state);
    tr_config_set_t set;

    begin(s);
    s->n_leaves = 0;
    w->base = true;
    w->counts = room != NO_ROOM;
    if (c->frame != NULL) {
        const tr_site_t *site = &w->g->program.sites[c->frame->site];

        bottom.site = c->frame->site;
        bottom.depth = c->frame->depth;
        bottom.count = w->counts && site->max != TR_UNBOUNDED ? site->max - room
                                                              : 0;
    }
    s->bottom_count = bottom.count;
    tr_set_begin(s, &set);
    tr_set_add(s, &set, &bottom, c->state);
    tr_set_close(w->g, s, &set, true);
    set.frames = s->n_frames;
    if (!plain || !w->counts) {
        tr_walk_plain(w, &set);
    }
    tr_walk(w, &v->rest, 0, &set, NULL);
    if (w->counts && s->n_leaves > 0) {
        qsort(s->leaves, s->n_leaves, sizeof(*s->leaves), by_ticks);
    }
    *out = (tr_kept_mask_t){ .state = c->state,
                             .room = room,
                             .plain = plain && w->counts,
                             .n_leaves = s->n_leaves,
                             .leaves = s->leaves };
    found(w, out);
}

/* ---- tokens that the stack decides */

/* A frame that counts characters is always the topmost; what its count decides
 * is decided when the mask is used (group_t). */
static uint64_t
entry_of(const tr_grammar_t *g, const tr_frame_t *f)
{
    const tr_site_t *site = &g->program.sites[f->site];
    uint32_t reach = g->vocabulary->longest + 1, need = 0, room = reach;

    if (site->kind == TR_SITE_REPEAT) {
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

typedef struct {
    uint64_t entries[ENTRIES_MAX];
    group_t groups[GROUPS_MAX];
} context_t;

/* What the end of c's rule leads to. */
static void
begin_context(tr_walk_t *w, const tr_configuration_t *c, tr_config_set_t *set)
{
    tr_grammar_scratch_t *s = w->s;

    s->n_frames = s->n_configs = 0;
    tr_set_begin(s, set);
    if (tr_frame_counts(w->g, c->frame)) {
        s->looked = c->frame->depth < s->looked ? c->frame->depth : s->looked;
        tr_set_add(s, set, c->frame->parent,
                   tr_state_behind(w->g, c->frame->site));
    } else {
        tr_set_pop(w->g, s, set, c->frame, 0);
    }
    tr_set_close(w->g, s, set, true);
    set->frames = s->n_frames;
}

static void
make_context(tr_walk_t *w, const tr_configuration_t *c,
             const tr_leave_t *leaves, uint32_t n, context_t *room,
             tr_kept_mask_t *out)
{
    tr_grammar_scratch_t *s = w->s;
    const tr_vocabulary_t *v = s->vocabulary;
    bool counts = tr_frame_counts(w->g, c->frame), dead[256] = { false };
    tr_config_set_t set;

    *out = (tr_kept_mask_t){ .state = c->state,
                             .room = NO_ROOM,
                             .groups = room->groups,
                             .entries = room->entries };
    begin(s);
    w->base = w->counts = false;
    begin_context(w, c, &set);
    for (uint32_t i = 0; i < n && !s->limit && (set.n > 0 || set.ended); i++) {
        uint32_t node = leaves[i].node & ~TR_PLAIN_NODE;
        const tr_vocabulary_trie_t *t = leaves[i].node & TR_PLAIN_NODE
                                            ? &v->plain
                                            : &v->rest;

        if (counts) {
            if (i == 0 || leaves[i].ticks != leaves[i - 1].ticks) {
                if (out->n_groups == GROUPS_MAX) {
                    s->limit = true;
                    break;
                }
                room->groups[out->n_groups++] = (group_t){ leaves[i].ticks,
                                                           w->n_few };
            }
            tr_walk_take(w, t, node);
        }
        tr_walk(w, t, node, &set, dead);
    }
    if (s->looked <= c->frame->depth
        && c->frame->depth - s->looked + 1 <= ENTRIES_MAX) {
        out->n_entries = entries_of(w->g, c->frame,
                                    c->frame->depth - s->looked + 1,
                                    room->entries);
    }
    found(w, out);
    if (counts) { /* by number, whatever there are */
        out->ids = s->few;
        out->words = NULL;
    }
}

static void
apply_context(const tr_grammar_t *g, const tr_kept_mask_t *m,
              const tr_frame_t *frame, uint32_t words, uint32_t *mask)
{
    const tr_site_t *site = &g->program.sites[frame->site];

    if (!tr_frame_counts(g, frame)) {
        apply(m, words, mask);
        return;
    }
    for (uint32_t k = 0; k < m->n_groups; k++) {
        uint32_t end = k + 1 < m->n_groups ? m->groups[k + 1].first : m->n_ids;
        uint64_t count = (uint64_t) frame->count + m->groups[k].ticks;

        if (count < site->min || count > site->max) {
            continue;
        }
        for (uint32_t i = m->groups[k].first; i < end; i++) {
            mask[m->ids[i] / 32] |= 1u << (m->ids[i] % 32);
        }
    }
}

/* ---- the whole */

/* Plain tokens for which a frame has room. */
static void
apply_plain(const tr_vocabulary_t *v, uint32_t room, uint32_t *mask)
{
    uint32_t k = room < TR_PLAIN_MASKS ? room : TR_PLAIN_MASKS;

    for (uint32_t i = 0; i < v->words; i++) {
        mask[i] |= v->plain_mask[k][i];
    }
    for (uint32_t i = 0; i < v->n_long && v->long_chars[i] <= room; i++) {
        uint32_t id = (uint32_t) v->long_id[i];

        mask[id / 32] |= 1u << (id % 32);
    }
}

/* Found or made; *made holds it where it is not kept. */
static const tr_kept_mask_t *
base_of(tr_walk_t *w, const tr_configuration_t *c, uint32_t room,
        tr_kept_mask_t *made)
{
    const tr_kept_mask_t *m = find(w->g, c->state, room, NULL, 0);

    if (m == NULL) {
        make_base(w, c, room, made);
        m = w->s->limit || w->s->deep
                ? made
                : keep(w->g, made, w->s->vocabulary->words);
    }
    return m;
}

/* What may come while c's rule goes on.  Returns the base with all ends of the
 * rule; it is *made when it is not kept, and then lies in the scratch. */
static const tr_kept_mask_t *
fill_base(tr_grammar_t *g, tr_grammar_scratch_t *s, const tr_configuration_t *c,
          uint32_t *mask, tr_kept_mask_t *made)
{
    uint32_t words = s->vocabulary->words, room = NO_ROOM, most = NO_ROOM,
             left = 0;
    tr_walk_t w = { .g = g, .s = s };
    const tr_kept_mask_t *m;

    if (tr_frame_counts(g, c->frame)) {
        uint32_t reach = reach_of(g, c->state);

        left = room_of(g, c->frame, c->frame->count);
        room = left < reach ? left : reach;
        most = room_of(g, c->frame, 0);
        most = most < reach ? most : reach;
    }
    m = base_of(&w, c, room, made);
    if (!s->limit) {
        apply(m, words, mask);
        if (m->plain) {
            apply_plain(s->vocabulary, left, mask);
        }
    }
    clean(&w);
    if (room == most || s->limit) {
        return m;
    }
    w = (tr_walk_t){ .g = g, .s = s };
    m = base_of(&w, c, most, made);
    clean(&w);
    return m;
}

static bool
fill(tr_grammar_t *g, tr_grammar_scratch_t *s, const tr_configuration_t *c,
     uint32_t *mask)
{
    tr_kept_mask_t made, made_context;
    const tr_kept_mask_t *m = fill_base(g, s, c, mask, &made), *context;
    tr_walk_t w = { .g = g, .s = s };
    context_t room;

    if (s->limit || c->frame == NULL || m->n_leaves == 0) {
        return !s->limit;
    }
    context = find_context(g, c);
    if (context == NULL) {
        make_context(&w, c, m->leaves, m->n_leaves, &room, &made_context);
        context = &made_context;
        if (!s->limit && !s->deep && context->n_entries > 0) {
            tr_state_at(g, c->state)->contexts |= 1ull << context->n_entries;
            context = keep(g, &made_context, s->vocabulary->words);
        }
    }
    if (!s->limit) {
        apply_context(g, context, c->frame, s->vocabulary->words, mask);
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
            int32_t token = g->program.tokens[d->tokens[k]].token;
            uint32_t id = (uint32_t) token;

            if (token == TR_ANY_SPECIAL) {
                for (uint32_t w = 0; w < s->vocabulary->words; w++) {
                    mask[w] |= g->any[w];
                }
            } else if (id < s->vocabulary->vocab) {
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
    g->cost = 0;
    if (g->program.n_tokens > 0) {
        add_special(g, s, m, mask);
    }
    for (uint32_t i = 0; i < m->n && !s->limit; i++) {
        fill(g, s, &m->configs[i], mask);
    }
    return s->limit || g->spent ? TR_ERR_UNSUPPORTED : TR_OK;
}
