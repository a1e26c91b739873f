/*
 * Room for the coming tokens (kv_cache.h, tr_kv_reserve), one step for all
 * sequences, as DiffKV section 5.2 does it on a GPU:
 *
 *   plan    every head alone: who leaves the window and where to, who is
 *           downgraded for it, and whether that takes a page.  Reads the view,
 *           writes the head's move, counts and want.  Any order, any thread.
 *   sum     pages by sequence; those that still fit get their range of the free
 *           ring, in the order of the sequences; the counts of others go back.
 *   grant   every sequence alone: its pages into its tables, its base.
 *
 * A move is only looked at when its sequence was granted the step; that of a
 * stalled one is planned again.
 */
#include <string.h>

#include "kernels/thread_pool.h"

#include "kv_internal.h"

/* Heads whose pages are fetched into the cache together. */
#define TR_KV_AHEAD 32u

/* ---- what a sequence asks for ------------------------------------------- */

static void
tr_kv_ask_dense(const tr_kv_cache_t *kv, tr_kv_ask_t *a)
{
    const tr_kv_slot_t *s = &kv->slot[a->slot];
    uint32_t want = tr_kv_ceil(a->len - kv->seq[a->slot].base,
                               kv->plan.layout[0].tokens);

    a->kind = TR_KV_ASK_DENSE;
    a->more = want > s->dense_pages ? want - s->dense_pages : 0;
    a->pages = (uint64_t) a->more * kv->heads;
    if (want > kv->dense_len) { /* no pool has as many */
        a->pages = UINT64_MAX;
    }
}

/* Who leaves, and where its score is; the same for all heads. */
static void
tr_kv_ask_step(const tr_kv_cache_t *kv, tr_kv_ask_t *a)
{
    const tr_kv_seq_t *q = &kv->seq[a->slot];
    const tr_kv_policy_t *p = &kv->slot[a->slot].policy;
    const tr_kv_layout_t *layout = &kv->plan.layout[q->window_layout];
    uint32_t n = q->base, at;

    a->kind = TR_KV_ASK_STEP;
    a->n = n;
    a->pages = 0;
    if (q->window == 0) { /* the new token itself, which has no score yet */
        a->leaves = 1;
        a->leave_pos = n;
    } else {
        if (n - q->window_from == q->window) {
            a->leaves = p->leaves == TR_KV_CHANNEL_TOKENS ? p->leaves : 1;
            a->leave_pos = q->window_from;
            at = q->window_from % q->window;
            a->scored = layout->score != 0;
            a->entry = kv->view.at_window + at / layout->tokens;
            a->offset = layout->score + at % layout->tokens * 4;
        }
        a->window_page = n < q->window && n % layout->tokens == 0;
    }
}

void
tr_kv_ask(const tr_kv_cache_t *kv, int32_t slot, uint32_t len, tr_kv_ask_t *a)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);

    assert(!s->out);
    memset(a, 0, sizeof(*a));
    a->slot = slot;
    a->len = len;
    if (len <= s->tokens) {
        a->kind = TR_KV_ASK_NOTHING;
    } else if (len > kv->config.max_len) {
        a->pages = UINT64_MAX;
    } else if (s->dense) {
        tr_kv_ask_dense(kv, a);
    } else {
        assert(len == s->tokens + 1);
        tr_kv_ask_step(kv, a);
    }
}

/* ---- one head's plan ---------------------------------------------------- */

static const uint8_t *
tr_kv_entry_page(const tr_kv_view_t *v, const int32_t *row, uint32_t entry)
{
    return v->pool + (uint64_t) (uint32_t) row[entry] * v->page_bytes;
}

/* Entry of the page that holds token i of list l; *at: its place there. */
static uint32_t
tr_kv_token_entry(const tr_kv_view_t *v, const tr_kv_seq_t *q, uint32_t l,
                  uint32_t i, uint32_t *at)
{
    uint32_t tokens = v->layout[q->list_layout[l]].tokens;

    *at = i % tokens;
    return tr_kv_list_entry(v, l, i / tokens);
}

/* What one head has found out, half way. */
typedef struct {
    tr_kv_mark_t mark; /* of the leaving token */
    int to;
    bool look;      /* the list's victim is less significant: */
    uint32_t entry; /* its page, */
    uint32_t at;    /* and place there */
} tr_kv_half_t;

/* Where the leaving token goes, and whether it or one that is already in that
 * list is its least significant. */
static void
tr_kv_plan_leave(const tr_kv_view_t *v, const tr_kv_policy_t *p,
                 const tr_kv_ask_t *a, uint32_t head, tr_kv_half_t *h)
{
    const tr_kv_seq_t *q = &v->seq[a->slot];
    size_t at = (size_t) a->slot * v->layers * v->lists + head;
    const int32_t *row = v->tables + at * v->table_len;
    const tr_kv_victim_t *victim;
    float own;

    h->mark = (tr_kv_mark_t){ .layer = head / v->lists,
                              .list = head % v->lists,
                              .position = a->leave_pos,
                              .length = a->n };
    if (a->scored) {
        memcpy(&h->mark.score, tr_kv_entry_page(v, row, a->entry) + a->offset,
               sizeof(float));
    }
    h->to = p->leave(p, &h->mark, v->count + at * TR_KV_LISTS_MAX);
    h->look = false;
    assert(h->to == TR_KV_NOWHERE || (h->to >= 0 && h->to < (int) p->n_levels));
    if (h->to < 0 || v->layout[q->list_layout[h->to]].score == 0) {
        return;
    }
    victim = &v->victim[at * TR_KV_LISTS_MAX + (uint32_t) h->to];
    own = q->by_sum ? h->mark.score
                    : tr_kv_significance(h->mark.score, a->leave_pos, a->n);
    /* of equals the lowest position: those in the list came before */
    if (!(own < victim->significance)
        && v->count[at * TR_KV_LISTS_MAX + (uint32_t) h->to] != 0) {
        h->look = true;
        h->entry = tr_kv_token_entry(v, q, (uint32_t) h->to, victim->index,
                                     &h->at);
        __builtin_prefetch(row + h->entry);
    }
}

/* Fetches what tr_kv_plan_move reads of the victim. */
static void
tr_kv_plan_fetch(const tr_kv_view_t *v, const tr_kv_ask_t *a, uint32_t head,
                 const tr_kv_half_t *h)
{
    const tr_kv_seq_t *q = &v->seq[a->slot];
    size_t at = (size_t) a->slot * v->layers * v->lists + head;

    if (h->look) {
        const tr_kv_layout_t *l = &v->layout[q->list_layout[h->to]];
        const uint8_t *page = tr_kv_entry_page(v, v->tables + at * v->table_len,
                                               h->entry);

        __builtin_prefetch(page + l->score + h->at * 4);
        __builtin_prefetch(page + l->position + h->at * l->position_bytes);
    }
}

/* Counts as they are after a move (sign 1), or again before it (-1). */
static void
tr_kv_apply(const tr_kv_move_t *m, uint32_t *count, int32_t sign)
{
    if (m->to >= 0) {
        count[m->to] += (uint32_t) (sign * m->leaves);
    }
    if (m->victim_from >= 0) {
        count[m->victim_from] -= (uint32_t) sign;
        if (m->victim_to >= 0) {
            count[m->victim_to] += (uint32_t) sign;
        }
    }
}

/* What becomes of the least significant token of the list that the leaving
 * token joins: which may be itself. */
static int
tr_kv_plan_downgrade(const tr_kv_view_t *v, const tr_kv_policy_t *p,
                     const tr_kv_ask_t *a, uint32_t head, const tr_kv_half_t *h,
                     const uint32_t *count)
{
    const tr_kv_layout_t
        *layout = &v->layout[v->seq[a->slot].list_layout[h->to]];
    size_t at = (size_t) a->slot * v->layers * v->lists + head;
    uint32_t after[TR_KV_LISTS_MAX];
    tr_kv_mark_t mark = h->mark;

    if (a->leaves != 1 || layout->score == 0) {
        return TR_KV_STAYS;
    }
    if (h->look) {
        const uint8_t *page = tr_kv_entry_page(v, v->tables + at * v->table_len,
                                               h->entry);

        memcpy(&mark.score, page + layout->score + h->at * 4, 4);
        mark.position = tr_kv_position_at(layout, page, h->at);
    }
    memcpy(after, count, sizeof(after));
    after[h->to]++;
    return p->downgrade(p, (uint32_t) h->to, &mark, after);
}

/* The head's move, and its counts afterwards; returns the list that needs a
 * page, or TR_KV_NOWHERE. */
static int8_t
tr_kv_plan_move(const tr_kv_view_t *v, const tr_kv_policy_t *p,
                const tr_kv_ask_t *a, uint32_t head, const tr_kv_half_t *h,
                tr_kv_move_t *move, uint32_t *count)
{
    const tr_kv_seq_t *q = &v->seq[a->slot];
    size_t at = (size_t) a->slot * v->layers * v->lists + head;
    int grows = h->to; /* the list that gets longer */
    bool page;
    int down;

    *move = (tr_kv_move_t){ .to = (int8_t) h->to,
                            .victim_from = TR_KV_STAYS,
                            .victim_to = TR_KV_NOWHERE,
                            .leaves = (uint8_t) a->leaves,
                            .leave_pos = a->leave_pos };
    if (h->to < 0) {
        return TR_KV_NOWHERE;
    }
    move->index = count[h->to];
    down = tr_kv_plan_downgrade(v, p, a, head, h, count);
    assert(down == TR_KV_STAYS || down == TR_KV_NOWHERE
           || (down > h->to && down < (int) p->n_levels));
    if (down != TR_KV_STAYS) {
        grows = down;
        if (h->look) { /* it makes room for the one that comes */
            move->victim_from = (int8_t) h->to;
            move->victim_to = (int8_t) down;
            move->victim_index =
                v->victim[at * TR_KV_LISTS_MAX + (uint32_t) h->to].index;
            move->victim_target = down >= 0 ? count[down] : 0;
            move->index = move->victim_index;
        } else { /* it is the one that comes */
            move->to = (int8_t) down;
            move->index = down >= 0 ? count[down] : 0;
        }
    }
    page = grows >= 0
           && count[grows] % v->layout[q->list_layout[grows]].tokens == 0;
    tr_kv_apply(move, count, 1);
    return page ? (int8_t) grows : TR_KV_NOWHERE;
}

/* ---- the plan of some heads --------------------------------------------- */

/* The heads [first, end) of one sequence, AHEAD at a time, so that the lines
 * that they read, each in another page, come from memory side by side.  Returns
 * how many pages they want. */
static uint32_t
tr_kv_plan_heads(const tr_kv_cache_t *kv, const tr_kv_ask_t *a, int8_t *want,
                 uint32_t first, uint32_t end)
{
    const tr_kv_view_t *v = &kv->view;
    const tr_kv_policy_t *p = &kv->slot[a->slot].policy;
    tr_kv_move_t *move = kv->move + tr_kv_head_at(kv, a->slot, 0);
    tr_kv_half_t half[TR_KV_AHEAD];
    uint32_t i, n, pages = 0;

    if (a->leaves == 0) { /* the window fills */
        for (i = first; i < end; i++) {
            move[i] = (tr_kv_move_t){ .to = TR_KV_STAYS,
                                      .victim_from = TR_KV_STAYS,
                                      .victim_to = TR_KV_NOWHERE };
            want[i] = a->window_page ? TR_KV_WINDOW : TR_KV_NOWHERE;
        }
        return a->window_page ? end - first : 0;
    }
    for (; first < end; first += n) {
        n = end - first < TR_KV_AHEAD ? end - first : TR_KV_AHEAD;
        if (a->scored) {
            for (i = 0; i < n; i++) {
                __builtin_prefetch(tr_kv_row(kv, a->slot, first + i)
                                   + a->entry);
            }
            for (i = 0; i < n; i++) {
                const int32_t *row = tr_kv_row(kv, a->slot, first + i);

                __builtin_prefetch(tr_kv_entry_page(v, row, a->entry)
                                   + a->offset);
            }
        }
        for (i = 0; i < n; i++) {
            tr_kv_plan_leave(v, p, a, first + i, &half[i]);
        }
        for (i = 0; i < n; i++) {
            tr_kv_plan_fetch(v, a, first + i, &half[i]);
        }
        for (i = 0; i < n; i++) {
            want[first + i] = tr_kv_plan_move(v, p, a, first + i, &half[i],
                                              &move[first + i],
                                              tr_kv_counts(kv, a->slot,
                                                           first + i));
            pages += want[first + i] != TR_KV_NOWHERE;
        }
    }
    return pages;
}

/* [first, end) of all heads of all sequences. */
static void
tr_kv_plan_range(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const tr_kv_cache_t *kv = arg;

    (void) worker;
    while (first < end) {
        uint32_t i = first / kv->heads, head = first % kv->heads;
        uint32_t n = kv->heads - head, pages;

        n = n < end - first ? n : end - first;
        if (kv->ask[i].kind == TR_KV_ASK_STEP) {
            pages = tr_kv_plan_heads(kv, &kv->ask[i],
                                     kv->want + (size_t) i * kv->heads, head,
                                     head + n);
            __atomic_fetch_add(&kv->ask[i].pages, pages, __ATOMIC_RELAXED);
        }
        first += n;
    }
}

/* ---- sum ---------------------------------------------------------------- */

/* A sequence for which there are no pages is as it was. */
static void
tr_kv_undo(const tr_kv_cache_t *kv, const tr_kv_ask_t *a)
{
    const tr_kv_move_t *move = kv->move + tr_kv_head_at(kv, a->slot, 0);
    uint32_t head;

    for (head = 0; head < kv->heads && a->leaves != 0; head++) {
        tr_kv_apply(&move[head], tr_kv_counts(kv, a->slot, head), -1);
    }
}

/* Gives every sequence that fits its range of the ring; true: some did. */
static bool
tr_kv_sum(tr_kv_cache_t *kv, uint32_t n, tr_status_t *result)
{
    bool any = false;
    uint32_t i;

    for (i = 0; i < n; i++) {
        tr_kv_ask_t *a = &kv->ask[i];

        if (a->pages > tr_kv_pages_left(&kv->pages)) {
            result[i] = TR_AGAIN;
            if (a->kind == TR_KV_ASK_STEP) {
                tr_kv_undo(kv, a);
            }
            continue;
        }
        result[i] = TR_OK;
        if (a->kind != TR_KV_ASK_NOTHING) {
            a->first = tr_kv_pages_claim(&kv->pages, a->pages);
            a->granted = any = true;
        }
    }
    return any;
}

/* ---- grant -------------------------------------------------------------- */

/* Sequences are granted side by side. */
static void
tr_kv_add(uint64_t *total, uint64_t n)
{
    __atomic_fetch_add(total, n, __ATOMIC_RELAXED);
}

static void
tr_kv_grant_dense(tr_kv_cache_t *kv, const tr_kv_ask_t *a)
{
    tr_kv_slot_t *s = &kv->slot[a->slot];
    uint32_t head;

    for (head = 0; head < kv->heads && a->more != 0; head++) {
        tr_kv_pages_fetch(&kv->pages, a->first + (uint64_t) head * a->more,
                          a->more, (uint32_t) a->slot,
                          tr_kv_row(kv, a->slot, head) + s->dense_pages, 1);
    }
    tr_kv_add(&kv->totals.pages[0], a->pages);
    s->dense_pages += a->more;
    s->tokens = a->len;
    tr_kv_set_reading(kv, a->slot);
}

/* The page that a head wants. */
static void
tr_kv_grant_page(tr_kv_cache_t *kv, const tr_kv_ask_t *a, uint32_t head,
                 int8_t want, uint64_t at)
{
    const tr_kv_seq_t *q = &kv->seq[a->slot];
    uint32_t entry, layout, last;

    if (want == TR_KV_WINDOW) {
        layout = q->window_layout;
        last = a->n;
    } else {
        layout = q->list_layout[want];
        last = tr_kv_counts(kv, a->slot, head)[want] - 1;
    }
    entry = last / kv->plan.layout[layout].tokens;
    entry = want == TR_KV_WINDOW
                ? kv->view.at_window + entry
                : tr_kv_list_entry(&kv->view, (uint32_t) want, entry);
    tr_kv_pages_fetch(&kv->pages, at, 1, (uint32_t) a->slot,
                      tr_kv_row(kv, a->slot, head) + entry, 1);
    tr_kv_add(&kv->totals.pages[layout], 1);
}

static void
tr_kv_grant_step(tr_kv_cache_t *kv, const tr_kv_ask_t *a, const int8_t *want)
{
    tr_kv_seq_t *q = &kv->seq[a->slot];
    uint64_t next = a->first, end = a->first + a->pages;
    uint32_t head;

    for (head = 0; next != end; head++) {
        if (want[head] != TR_KV_NOWHERE) {
            tr_kv_grant_page(kv, a, head, want[head], next++);
        }
    }
    q->base = a->n + 1;
    q->window_from += a->leaves; /* without a window the new token itself */
    kv->slot[a->slot].tokens = a->len;
}

/* Sequences [first, end); each touches only its own rows and its own range. */
static void
tr_kv_grant_range(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    tr_kv_cache_t *kv = arg;
    uint32_t i;

    (void) worker;
    for (i = first; i < end; i++) {
        const tr_kv_ask_t *a = &kv->ask[i];
        tr_kv_slot_t *s = &kv->slot[a->slot];

        if (!a->granted) {
            continue;
        }
        tr_kv_add(&kv->totals.tokens, a->len - s->tokens);
        s->pages += a->pages;
        if (a->kind == TR_KV_ASK_DENSE) {
            tr_kv_grant_dense(kv, a);
        } else {
            tr_kv_grant_step(kv, a, kv->want + (size_t) i * kv->heads);
        }
    }
}

/* ---- all of it ---------------------------------------------------------- */

void
tr_kv_host_reserve_batch(tr_kv_cache_t *kv, const int32_t *slots,
                         const uint32_t *lens, uint32_t n, tr_status_t *result)
{
    const tr_stream_t *t = &kv->config.stream;
    uint64_t heads = 0, pages = 0; /* to plan; of dense pages */
    uint32_t i;

    assert(n <= kv->config.slots);
    for (i = 0; i < n; i++) {
        tr_kv_ask(kv, slots[i], lens[i], &kv->ask[i]);
        heads += kv->ask[i].kind == TR_KV_ASK_STEP ? kv->heads : 0;
        pages += kv->ask[i].kind == TR_KV_ASK_DENSE ? kv->ask[i].more : 0;
    }
    pages *= kv->heads;
    if (heads >= TR_KV_PARALLEL) {
        tr_thread_pool_run(t->thread_pool, t->threads, n * kv->heads,
                           TR_KV_GRAIN, tr_kv_plan_range, kv);
    } else if (heads != 0) {
        tr_kv_plan_range(kv, 0, n * kv->heads, 0);
    }
    if (!tr_kv_sum(kv, n, result)) {
        return;
    }
    if (heads + pages >= TR_KV_PARALLEL) {
        tr_thread_pool_run(t->thread_pool, t->threads, n, 1, tr_kv_grant_range,
                           kv);
    } else {
        tr_kv_grant_range(kv, 0, n, 0);
    }
}
