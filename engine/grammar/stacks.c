/*
 * Sets of configurations: what ends and calls lead to, and a step by a byte.
 *
 * A rule that a site calls runs on a frame of its own.  A frame of a REPEAT
 * counts how often the rule has ended, that of a LENGTH the characters in it.
 * Frames of a scratch live until the walk goes back; those of a pool are
 * counted.  s->looked is the depth of the lowest frame that decided anything.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

static bool
same_stack(const tr_frame_t *a, const tr_frame_t *b)
{
    while (a != b) {
        if (a == NULL || b == NULL || a->site != b->site || a->count != b->count
            || a->depth != b->depth || a->refs == TR_FRAME_BOTTOM
            || b->refs == TR_FRAME_BOTTOM) {
            return false;
        }
        a = a->parent;
        b = b->parent;
    }
    return true;
}

void
tr_set_begin(tr_grammar_scratch_t *s, tr_config_set_t *set)
{
    *set = (tr_config_set_t){ .first = s->n_configs };
}

void
tr_set_add(tr_grammar_scratch_t *s, tr_config_set_t *set, tr_frame_t *frame,
           uint32_t state)
{
    tr_configuration_t *c = s->configs + set->first;

    if (state == TR_DEAD) {
        return;
    }
    for (uint32_t i = 0; i < set->n; i++) {
        if (c[i].state == state && same_stack(c[i].frame, frame)) {
            return;
        }
    }
    /* the closure may hold more than what is left of it in the end */
    if (set->n == 2 * TR_GRAMMAR_CONFIGS
        || s->n_configs == TR_SCRATCH_CONFIGS) {
        s->limit = true;
        return;
    }
    s->work++;
    c[set->n++] = (tr_configuration_t){ frame, state };
    s->n_configs = set->first + set->n;
}

tr_frame_t *
tr_frame_push(tr_grammar_scratch_t *s, tr_frame_t *parent, uint32_t site,
              uint32_t count)
{
    uint32_t depth = parent == NULL ? 1 : parent->depth + 1;
    tr_frame_t *f;

    if (depth > TR_GRAMMAR_DEPTH) {
        s->deep = true; /* deeper than this nothing is allowed */
        return NULL;
    }
    if (s->n_frames == TR_SCRATCH_FRAMES) {
        s->limit = true;
        return NULL;
    }
    f = &s->frames[s->n_frames++];
    *f = (tr_frame_t){
        .parent = parent, .site = site, .count = count, .depth = depth
    };
    return f;
}

static void
look(tr_grammar_scratch_t *s, const tr_frame_t *frame)
{
    uint32_t depth = frame == NULL ? 0 : frame->depth;

    s->looked = depth < s->looked ? depth : s->looked;
}

void
tr_set_pop(tr_grammar_t *g, tr_grammar_scratch_t *s, tr_config_set_t *set,
           tr_frame_t *frame, uint32_t ticks)
{
    const tr_site_t *site;
    uint32_t count;

    look(s, frame);
    if (frame == NULL) {
        set->ended = true;
        return;
    }
    site = &g->program.sites[frame->site];
    if (site->kind == TR_SITE_CALL) {
        tr_set_add(s, set, frame->parent, tr_state_behind(g, frame->site));
        return;
    }
    count = frame->count + ticks;
    if (site->kind == TR_SITE_LENGTH) {
        if (count >= site->min && count <= site->max) {
            tr_set_add(s, set, frame->parent, tr_state_behind(g, frame->site));
        }
        return;
    }
    count++;
    if (count < site->max) {
        tr_frame_t *again = tr_frame_push(
            s, frame->parent, frame->site,
            site->max == TR_UNBOUNDED && count > site->min ? site->min : count);

        if (again != NULL) {
            tr_set_add(s, set, again, tr_state_start(g, site->rule));
        }
    }
    if (count >= site->min) {
        tr_set_add(s, set, frame->parent, tr_state_behind(g, frame->site));
    }
}

static void
call(tr_grammar_t *g, tr_grammar_scratch_t *s, tr_config_set_t *set,
     tr_frame_t *frame, uint32_t number)
{
    const tr_site_t *site = &g->program.sites[number];
    tr_frame_t *next = frame;

    if (!site->tail) {
        next = tr_frame_push(s, frame, number, 0);
        if (next == NULL) {
            return;
        }
    }
    tr_set_add(s, set, next, tr_state_start(g, site->rule));
}

void
tr_set_close(tr_grammar_t *g, tr_grammar_scratch_t *s, tr_config_set_t *set,
             bool calls)
{
    uint8_t takes = TR_STATE_BYTES | TR_STATE_TOKENS
                    | (calls ? 0 : TR_STATE_CALLS);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < set->n && !s->limit; i++) {
        tr_configuration_t c = s->configs[set->first + i];
        const tr_state_t *d = tr_state_at(g, c.state);

        /* a call that takes nothing is passed by (rules_finish.c) */
        if ((d->flags & (TR_STATE_ACCEPT | TR_STATE_START))
            == TR_STATE_ACCEPT) {
            if (c.frame != NULL && c.frame->refs == TR_FRAME_BOTTOM) {
                set->left = true;
                set->ticks = c.frame->count - s->bottom_count;
            } else {
                tr_set_pop(g, s, set, c.frame, 0);
            }
        }
        set->ended = set->ended || (d->flags & TR_STATE_FINAL);
        for (uint32_t k = 0; calls && k < d->n_sites; k++) {
            call(g, s, set, c.frame, d->sites[k]);
        }
    }
    for (uint32_t i = 0; i < set->n; i++) {
        tr_configuration_t c = s->configs[set->first + i];

        if (tr_state_at(g, c.state)->flags & takes) {
            s->configs[set->first + kept++] = c;
        }
    }
    set->n = kept;
    s->n_configs = set->first + kept;
    s->limit = s->limit || kept > TR_GRAMMAR_CONFIGS || g->spent;
}

bool
tr_frame_byte(tr_grammar_t *g, tr_grammar_scratch_t *s, tr_frame_t **frame,
              uint8_t flags)
{
    tr_frame_t *f = *frame, *next;
    const tr_site_t *site = &g->program.sites[f->site];

    look(s, f);
    if (f->count >= site->max) {
        return (flags & TR_STATE_ACCEPT) != 0;
    }
    if (!(flags & TR_STATE_TICK)) {
        return true;
    }
    if (f->refs != TR_FRAME_BOTTOM && site->max == TR_UNBOUNDED
        && f->count >= site->min) {
        return true; /* enough is enough */
    }
    next = tr_frame_push(s, f->parent, f->site, f->count + 1);
    if (next != NULL && f->refs == TR_FRAME_BOTTOM) {
        next->refs = TR_FRAME_BOTTOM;
        next->depth = f->depth;
    }
    *frame = next;
    return next != NULL;
}

void
tr_set_step(tr_grammar_t *g, tr_grammar_scratch_t *s,
            const tr_config_set_t *from, uint8_t byte, tr_config_set_t *to)
{
    tr_set_begin(s, to);
    for (uint32_t i = 0; i < from->n; i++) {
        tr_configuration_t c = s->configs[from->first + i];
        uint32_t next = tr_state_next(g, c.state, byte);

        s->work++;
        if (next == TR_DEAD) {
            continue;
        }
        if (tr_frame_counts(g, c.frame)
            && !tr_frame_byte(g, s, &c.frame, tr_state_at(g, next)->flags)) {
            continue;
        }
        tr_set_add(s, to, c.frame, next);
    }
    s->limit = s->limit || g->spent || s->work > s->work_limit
               || g->cost > TR_GRAMMAR_COST;
}

tr_grammar_scratch_t *
tr_grammar_scratch_new(const tr_vocabulary_t *v)
{
    tr_grammar_scratch_t *s = calloc(1, sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    s->vocabulary = v;
    s->frames = malloc(TR_SCRATCH_FRAMES * sizeof(*s->frames));
    s->configs = malloc(TR_SCRATCH_CONFIGS * sizeof(*s->configs));
    s->levels = calloc((size_t) v->longest + 2, sizeof(*s->levels));
    s->path = calloc((size_t) v->longest + 2, sizeof(*s->path));
    s->leaves = malloc(TR_SCRATCH_LEAVES * sizeof(*s->leaves));
    s->bits = calloc((size_t) v->words + 1, sizeof(*s->bits));
    s->few = malloc(((size_t) v->vocab + 1) * sizeof(*s->few));
    s->work_limit = 3 * (v->plain.n + v->rest.n);
    if (s->work_limit < TR_SCRATCH_WORK) {
        s->work_limit = TR_SCRATCH_WORK;
    }
    if (s->frames == NULL || s->configs == NULL || s->levels == NULL
        || s->path == NULL || s->leaves == NULL || s->bits == NULL
        || s->few == NULL) {
        tr_grammar_scratch_free(s);
        return NULL;
    }
    return s;
}

tr_grammar_scratch_t *
tr_grammar_scratch_of(const tr_grammar_t *g)
{
    return tr_grammar_scratch_new(g->vocabulary);
}

void
tr_grammar_scratch_free(tr_grammar_scratch_t *s)
{
    if (s == NULL) {
        return;
    }
    free(s->frames);
    free(s->configs);
    free(s->levels);
    free(s->path);
    free(s->leaves);
    free(s->bits);
    free(s->few);
    free(s);
}
