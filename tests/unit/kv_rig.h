/*
 * A KV cache without arithmetic: kernels that move and score tokens by their
 * positions alone, policies made up for the purpose, and, for every sequence, a
 * plain record of where each token must be.  test_kv_cache_random.c drives it.
 *
 * A token's score in its page is always what the record says, so that a page
 * that went astray, a move to a wrong place or a lost token is seen at the next
 * step.
 */
#ifndef KV_RIG_H
#define KV_RIG_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv_cache.h"
#include "kv_internal.h"

#define GONE (-1)
#define IN_WINDOW 100
#define DENSE 101
#define LEN_MAX 420u
#define NOT_STORED 102

static uint64_t rig_random_state;

static uint32_t
rig_random(uint32_t n)
{
    rig_random_state ^= rig_random_state << 13;
    rig_random_state ^= rig_random_state >> 7;
    rig_random_state ^= rig_random_state << 17;
    return (uint32_t) ((rig_random_state >> 32) % n);
}

/* What must be, or the test ends with the seed that leads here. */
#define REQUIRE(condition)                                         \
    do {                                                           \
        if (!(condition)) {                                        \
            fail_msg("%s:%d: %s", __FILE__, __LINE__, #condition); \
        }                                                          \
    } while (0)

/* ---- policies ----------------------------------------------------------- */

/* The level that a significance deserves: the first whose threshold it meets.
 * Thresholds are fractions of 1/N. */
static int
rig_class(const tr_kv_policy_t *p, float significance, uint32_t length)
{
    for (uint32_t l = 0; l < p->n_levels; l++) {
        if (significance * (float) length >= (float) p->fraction[l]) {
            return (int) l;
        }
    }
    return TR_KV_NOWHERE;
}

static int
rig_leave(const tr_kv_policy_t *p, const tr_kv_mark_t *t, const uint32_t *count)
{
    (void) count;
    return p->scored
               ? rig_class(p,
                           tr_kv_significance(t->score, t->position, t->length),
                           t->length)
               : 0;
}

static int
rig_downgrade(const tr_kv_policy_t *p, uint32_t list, const tr_kv_mark_t *t,
              const uint32_t *count)
{
    int to;

    if (p->budget[0] != 0) { /* by number: the next list, or nowhere */
        if (count[list] <= p->budget[list]) {
            return TR_KV_STAYS;
        }
        return list + 1 < p->n_levels ? (int) list + 1 : TR_KV_NOWHERE;
    }
    to = rig_class(p, tr_kv_significance(t->score, t->position, t->length),
                   t->length);
    if (to == TR_KV_NOWHERE) {
        return to;
    }
    return to <= (int) list ? TR_KV_STAYS : to;
}

static void
rig_prompt(const tr_kv_policy_t *p, const tr_kv_prompt_t *h, int8_t *to)
{
    for (uint32_t i = 0; i < h->n; i++) {
        int level = 0;

        if (p->scored) {
            level = rig_class(p,
                              tr_kv_significance(h->score[i], h->position[i],
                                                 h->length),
                              h->length);
        }
        to[i] = (int8_t) (level != TR_KV_NOWHERE && level < h->from[i]
                              ? h->from[i]
                              : level);
    }
}

static void
rig_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t list, uint32_t n,
           uint32_t tokens[TR_KV_LISTS_MAX])
{
    (void) p;
    (void) layer;
    (void) list;
    tokens[0] = n / 2;
}

static void
rig_begin(tr_kv_policy_t *copy, uint32_t n)
{
    copy->window = 1 + n / 3;
    copy->fraction[0] = 0.1 + n * 0.005;
}

#define RIG_LEVELS                                                          \
    {                                                                       \
        { 16, 16, 1, 1, 0, 1 }, { 8, 4, 1, 1, 0, 1 }, { 4, 4, 1, 1, 0, 1 }, \
        {                                                                   \
            4, 2, 1, 1, 0, 1                                                \
        }                                                                   \
    }
#define RIG_COMMON                                         \
    .leaves = 1, .prompt = rig_prompt, .leave = rig_leave, \
    .downgrade = rig_downgrade, .charge = rig_charge

static const tr_kv_policy_t rig_policies[] = {
    { .name = "full" },
    { .name = "two",
      .n_levels = 2,
      .window = 7,
      .scored = true,
      .level = { { 8, 4, 1, 1, 0, 1 }, { 4, 2, 1, 1, 0, 1 } },
      .window_level = { 8, 4, 1, 1, 0, 1 },
      .fraction = { 1.0, 0.2 },
      RIG_COMMON },
    { .name = "no window",
      .n_levels = 3,
      .scored = true,
      .level = RIG_LEVELS,
      .fraction = { 1.5, 0.7, 0 },
      RIG_COMMON },
    { .name = "four",
      .n_levels = 4,
      .window = 40,
      .scored = true,
      .level = RIG_LEVELS,
      .window_level = { 8, 4, 1, 1, 0, 1 },
      .fraction = { 1.5, 1.0, 0.5, 0.1 },
      .observe = 8,
      RIG_COMMON },
    { .name = "budget",
      .n_levels = 2,
      .window = 3,
      .scored = true,
      .by_sum = true,
      .level = { { 8, 4, 1, 1, 0, 1 }, { 4, 2, 1, 1, 0, 1 } },
      .window_level = { 16, 16, 1, 1, 0, 1 },
      .budget = { 20, 60 },
      RIG_COMMON },
    { .name = "grows",
      .n_levels = 1,
      .window = 1,
      .scored = true,
      .level = RIG_LEVELS,
      .window_level = { 16, 16, 1, 1, 0, 1 },
      .begin = rig_begin,
      .fraction = { 0.3 },
      RIG_COMMON },
    { .name = "groups",
      .n_levels = 1,
      .window = 64,
      .level = { { 2, 2, 1, 1, 1, 0 } },
      .window_level = { 16, 16, 1, 1, 0, 0 },
      .prompt = rig_prompt,
      .leave = rig_leave,
      .downgrade = rig_downgrade,
      .charge = rig_charge,
      .leaves = TR_KV_CHANNEL_TOKENS },
};

#define RIG_POLICIES (sizeof(rig_policies) / sizeof(rig_policies[0]))

/* ---- pages as kernels see them ------------------------------------------ */

/* Where a token's score and position are; NULL for a level without. */
typedef struct {
    uint8_t *score, *position, *recent;
    uint32_t position_bytes;
} rig_place_t;

static rig_place_t
rig_place(const tr_kv_view_t *v, const int32_t *row, uint32_t layout,
          uint32_t entry, uint32_t at)
{
    const tr_kv_layout_t *l = &v->layout[layout];
    uint8_t *page;

    REQUIRE(entry < v->table_len && row[entry] >= 0);
    page = tr_kv_page_at(v, row[entry]);
    return (rig_place_t){
        l->score ? page + l->score + at * 4 : NULL,
        l->position ? page + l->position + at * l->position_bytes : NULL,
        l->recent ? page + l->recent + at * 4 : NULL, l->position_bytes
    };
}

static rig_place_t
rig_listed(const tr_kv_view_t *v, const tr_kv_seq_t *q, const int32_t *row,
           uint32_t list, uint32_t i)
{
    uint32_t layout = q->list_layout[list], tokens = v->layout[layout].tokens;

    return rig_place(v, row, layout, tr_kv_list_entry(v, list, i / tokens),
                     i % tokens);
}

static rig_place_t
rig_windowed(const tr_kv_view_t *v, const tr_kv_seq_t *q, const int32_t *row,
             uint32_t pos)
{
    uint32_t tokens = v->layout[q->window_layout].tokens;
    uint32_t at = pos % q->window;

    return rig_place(v, row, q->window_layout, v->at_window + at / tokens,
                     at % tokens);
}

static rig_place_t
rig_dense(const tr_kv_view_t *v, const tr_kv_seq_t *q, const int32_t *row,
          uint32_t pos)
{
    uint32_t tokens = v->layout[0].tokens, at = pos - q->base;

    return rig_place(v, row, 0, at / tokens, at % tokens);
}

static float
rig_score(rig_place_t at)
{
    float f = 0;

    if (at.score != NULL) {
        memcpy(&f, at.score, 4);
    }
    return f;
}

static uint32_t
rig_position(rig_place_t at)
{
    return tr_kv_position_load(at.position, at.position_bytes);
}

static void
rig_put(rig_place_t at, float score, uint32_t position)
{
    if (at.score != NULL) {
        memcpy(at.score, &score, 4);
    }
    if (at.position != NULL) {
        memcpy(at.position, &position, at.position_bytes);
    }
}

/* Score and position of a token go from one place to another. */
static void
rig_carry(rig_place_t from, rig_place_t to, uint32_t position)
{
    rig_put(to, rig_score(from),
            from.position != NULL ? rig_position(from) : position);
}

/* ---- kernels ------------------------------------------------------------ */

/* The move of one head, and the new token. */
static void
rig_append(const tr_kv_view_t *v, int32_t slot, uint32_t head)
{
    const tr_kv_seq_t *q = &v->seq[slot];
    size_t at = (size_t) slot * v->layers * v->lists + head;
    const int32_t *row = v->tables + at * v->table_len;
    const tr_kv_move_t *m = &v->move[at];
    uint32_t pos = q->base - 1;

    if (m->victim_from >= 0 && m->victim_to >= 0) {
        rig_carry(rig_listed(v, q, row, (uint32_t) m->victim_from,
                             m->victim_index),
                  rig_listed(v, q, row, (uint32_t) m->victim_to,
                             m->victim_target),
                  0);
    }
    for (uint32_t i = 0; m->to >= 0 && i < m->leaves; i++) {
        rig_place_t to = rig_listed(v, q, row, (uint32_t) m->to, m->index + i);

        if (q->window == 0) {
            rig_put(to, 0, pos);
        } else {
            rig_carry(rig_windowed(v, q, row, m->leave_pos + i), to,
                      m->leave_pos + i);
        }
    }
    if (q->window != 0) {
        rig_put(rig_windowed(v, q, row, pos), 0, pos);
    }
}

/* One source token of a prompt to its new place. */
static void
rig_compress_one(const tr_kv_view_t *v, const tr_kv_compress_t *c,
                 const int32_t *row, int8_t dest, rig_place_t from,
                 uint32_t pos, bool dense, uint32_t *count)
{
    rig_place_t to;
    float score = rig_score(from), recent;

    if (dest == TR_KV_NOWHERE) {
        return;
    }
    if (dest == TR_KV_WINDOW) {
        to = rig_windowed(v, c->to, row, pos);
    } else {
        to = rig_listed(v, c->to, row, (uint32_t) dest, count[dest]++);
    }
    if (dense && c->observe != 0) {
        memcpy(&recent, from.recent, 4);
        score = tr_kv_observed(recent, c->to->base - 1 - pos, c->observe);
    }
    rig_put(to, score, from.position != NULL ? rig_position(from) : pos);
}

static void
rig_compress_head(const tr_kv_view_t *v, const tr_kv_compress_t *c,
                  uint32_t head)
{
    const tr_kv_seq_t *q = &v->seq[c->slot];
    size_t at = (size_t) c->slot * v->layers * v->lists + head;
    const int32_t *row = v->tables + at * v->table_len;
    const int32_t *to = c->to_tables + (size_t) head * v->table_len;
    const int8_t *dest = c->dest + head * c->dest_len;
    uint32_t count[TR_KV_LISTS_MAX] = { 0 }, l, i;

    for (l = 0; l < q->n_lists; l++) {
        for (i = 0; i < v->count[at * TR_KV_LISTS_MAX + l]; i++) {
            rig_compress_one(v, c, to, *dest++, rig_listed(v, q, row, l, i), i,
                             false, count);
        }
    }
    for (i = q->window_from; i < q->base; i++) {
        rig_compress_one(v, c, to, *dest++, rig_windowed(v, q, row, i), i,
                         false, count);
    }
    for (i = q->base; i < q->base + c->n_dense; i++) {
        rig_compress_one(v, c, to, *dest++, rig_dense(v, q, row, i), i, true,
                         count);
    }
}

static int
rig_compress(const tr_stream_t *s, const tr_kv_view_t *v,
             const tr_kv_compress_t *c, void *work)
{
    (void) s;
    memset(work, 0xa5, 100); /* it is really there */
    for (uint32_t head = 0; head < v->layers * v->lists; head++) {
        rig_compress_head(v, c, head);
    }
    return TR_KERNEL_OK;
}

static size_t
rig_compress_work(const tr_stream_t *s, uint32_t head_dim)
{
    (void) s;
    (void) head_dim;
    return 100;
}

static const tr_kernels_t rig_kernels = {
    .name = "rig",
    .kv_compress = rig_compress,
    .kv_compress_work = rig_compress_work
};

#endif
