/*
 * The position of an answer in its grammar (grammar.h).
 *
 * A token is stepped through in a scratch.  What remains in the end is copied
 * into the request's pool: stacks share what they have in common, and what the
 * answer left behind goes back to the pool's list.
 */
#include "grammar_internal.h"

#include <string.h>

#define FRAMES_A_MATCHER 768u

size_t
tr_frame_pool_size(uint32_t n)
{
    return sizeof(tr_frame_pool_t) + 16
           + (size_t) n * FRAMES_A_MATCHER * sizeof(tr_frame_t);
}

tr_frame_pool_t *
tr_frame_pool_init(void *memory, uint32_t n)
{
    tr_frame_pool_t *p = memory;
    tr_frame_t *frames = (tr_frame_t *) (void *) ((uint8_t *) memory
                                                  + sizeof(*p));

    p->free = NULL;
    p->n = p->n_free = n * FRAMES_A_MATCHER;
    for (uint32_t i = p->n; i > 0; i--) {
        frames[i - 1].moved = p->free;
        p->free = &frames[i - 1];
    }
    return p;
}

static void
release(tr_frame_pool_t *p, tr_frame_t *f)
{
    while (f != NULL && --f->refs == 0) {
        tr_frame_t *parent = f->parent;

        f->moved = p->free;
        p->free = f;
        p->n_free++;
        f = parent;
    }
}

/* A reference to f's copy in the pool; *good false when there is no room. */
static tr_frame_t *
keep(tr_frame_pool_t *p, tr_frame_t *f, bool *good)
{
    tr_frame_t *top = NULL, **at = &top;

    for (;;) {
        tr_frame_t *copy = f == NULL      ? NULL
                           : f->refs != 0 ? f
                           : f->moved     ? f->moved
                                          : NULL;

        if (f == NULL || copy != NULL) {
            if (copy != NULL) {
                copy->refs++;
            }
            *at = copy;
            return top;
        }
        copy = p->free;
        if (copy == NULL) {
            *good = false;
            *at = NULL;
            return top;
        }
        p->free = copy->moved;
        p->n_free--;
        *copy = *f;
        copy->moved = NULL;
        copy->refs = 1;
        copy->parent = NULL;
        f->moved = copy;
        *at = copy;
        at = &copy->parent;
        f = f->parent;
    }
}

void
tr_matcher_drop(tr_matcher_t *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        release(m->pool, m->configs[i].frame);
    }
    m->n = 0;
}

void
tr_matcher_fork(tr_matcher_t *to, const tr_matcher_t *from)
{
    *to = *from;
    for (uint32_t i = 0; i < to->n; i++) {
        if (to->configs[i].frame != NULL) {
            to->configs[i].frame->refs++;
        }
    }
}

tr_status_t
tr_matcher_init(tr_matcher_t *m, tr_grammar_t *g, tr_frame_pool_t *pool)
{
    uint32_t start;

    pthread_mutex_lock(&g->lock);
    start = tr_state_start(g, 0);
    pthread_mutex_unlock(&g->lock);
    m->grammar = g;
    m->pool = pool;
    m->n = 1;
    m->configs[0] = (tr_configuration_t){ NULL, start };
    m->can_end = g->nullable;
    return start == TR_DEAD ? TR_ERR_UNSUPPORTED : TR_OK;
}

/* The set becomes the matcher's. */
static tr_status_t
settle(tr_matcher_t *m, tr_grammar_scratch_t *s, const tr_config_set_t *set)
{
    tr_configuration_t kept[TR_GRAMMAR_CONFIGS];
    bool good = true;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_frames; i++) {
        s->frames[i].moved = NULL;
    }
    for (; n < set->n && good; n++) {
        kept[n] = s->configs[set->first + n];
        kept[n].frame = keep(m->pool, kept[n].frame, &good);
    }
    if (!good) {
        while (n > 0) {
            release(m->pool, kept[--n].frame);
        }
        return TR_ERR_UNSUPPORTED;
    }
    tr_matcher_drop(m);
    memcpy(m->configs, kept, n * sizeof(*kept));
    m->n = n;
    m->can_end = set->ended;
    return TR_OK;
}

static void
load(tr_matcher_t *m, tr_grammar_scratch_t *s, tr_config_set_t *set)
{
    s->n_frames = s->n_configs = 0;
    s->work = 0;
    s->limit = false;
    m->grammar->cost = 0;
    s->looked = UINT32_MAX;
    tr_set_begin(s, set);
    for (uint32_t i = 0; i < m->n; i++) {
        tr_set_add(s, set, m->configs[i].frame, m->configs[i].state);
    }
}

static tr_status_t
step(tr_matcher_t *m, tr_grammar_scratch_t *s, const char *bytes, size_t len)
{
    tr_grammar_t *g = m->grammar;
    tr_config_set_t now, next;

    load(m, s, &now);
    for (size_t i = 0; i < len; i++) {
        tr_set_close(g, s, &now, true);
        tr_set_step(g, s, &now, (uint8_t) bytes[i], &next);
        if (s->limit) {
            return TR_ERR_UNSUPPORTED;
        }
        if (next.n == 0) {
            return TR_ERR_INVALID;
        }
        /* the newest set to the front: a long text needs no more room */
        memmove(s->configs, s->configs + next.first,
                next.n * sizeof(*s->configs));
        next.first = 0;
        s->n_configs = next.n;
        now = next;
    }
    tr_set_close(g, s, &now, false);
    if (s->limit) {
        return TR_ERR_UNSUPPORTED;
    }
    return now.n == 0 && !now.ended ? TR_ERR_INVALID : settle(m, s, &now);
}

tr_status_t
tr_matcher_bytes(tr_matcher_t *m, tr_grammar_scratch_t *s, const char *bytes,
                 size_t len)
{
    tr_status_t rc = TR_OK;

    pthread_mutex_lock(&m->grammar->lock);
    /* in pieces that a scratch has room for */
    while (rc == TR_OK && len > 0) {
        size_t n = len < 256 ? len : 256;

        rc = step(m, s, bytes, n);
        bytes += n;
        len -= n;
    }
    pthread_mutex_unlock(&m->grammar->lock);
    return rc;
}

/* A special token: only its own edges take it. */
static tr_status_t
step_special(tr_matcher_t *m, tr_grammar_scratch_t *s, int32_t token)
{
    tr_grammar_t *g = m->grammar;
    tr_config_set_t now, next;

    load(m, s, &now);
    tr_set_close(g, s, &now, true);
    tr_set_begin(s, &next);
    for (uint32_t i = 0; i < now.n; i++) {
        tr_configuration_t c = s->configs[now.first + i];
        const tr_state_t *d = tr_state_at(g, c.state);

        for (uint32_t k = 0; k < d->n_tokens; k++) {
            int32_t wanted = g->program.tokens[d->tokens[k]].token;

            if (wanted == TR_ANY_SPECIAL ? tr_grammar_any(g, token)
                                         : wanted == token) {
                tr_set_add(s, &next, c.frame,
                           tr_state_behind_token(g, d->tokens[k]));
            }
        }
    }
    if (next.n == 0) {
        return s->limit ? TR_ERR_UNSUPPORTED : TR_ERR_INVALID;
    }
    tr_set_close(g, s, &next, false);
    return s->limit ? TR_ERR_UNSUPPORTED : settle(m, s, &next);
}

tr_status_t
tr_matcher_token(tr_matcher_t *m, tr_grammar_scratch_t *s, int32_t token)
{
    const tr_vocabulary_t *v = m->grammar->vocabulary;
    uint32_t len;
    tr_status_t rc;

    if (token < 0 || (uint32_t) token >= v->vocab) {
        return TR_ERR_INVALID;
    }
    len = v->start[token + 1] - v->start[token];
    pthread_mutex_lock(&m->grammar->lock);
    rc = len == 0 ? step_special(m, s, token)
                  : step(m, s, v->bytes + v->start[token], len);
    pthread_mutex_unlock(&m->grammar->lock);
    return rc;
}

bool
tr_matcher_over(const tr_matcher_t *m)
{
    return m->n == 0;
}

tr_status_t
tr_matcher_mask(tr_matcher_t *m, tr_grammar_scratch_t *s, const int32_t *end,
                uint32_t n_end, uint32_t *mask)
{
    const tr_vocabulary_t *v = m->grammar->vocabulary;
    tr_status_t rc;

    memset(mask, 0, v->words * sizeof(*mask));
    pthread_mutex_lock(&m->grammar->lock);
    rc = tr_mask_fill(m->grammar, s, m, mask);
    pthread_mutex_unlock(&m->grammar->lock);
    for (uint32_t i = 0; i < n_end; i++) {
        if (end[i] < 0 || (uint32_t) end[i] >= v->vocab) {
            continue;
        }
        if (m->can_end) {
            mask[end[i] / 32] |= 1u << (end[i] % 32);
        } else if (tr_grammar_any(m->grammar, end[i])) {
            mask[end[i] / 32] &= ~(1u << (end[i] % 32));
        }
    }
    if (rc != TR_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < v->words; i++) {
        if (mask[i] != 0) {
            return TR_OK;
        }
    }
    return TR_ERR_UNSUPPORTED;
}
