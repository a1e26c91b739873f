/*
 * Moves everything that a slot caches to the places that its policy chose
 * (kernels.h, tr_kv_compress_t): one task a head.  Reference: test_kv_store.c.
 *
 * Also the beginning of it to another slot (engine/kv/kv_kept.c): `to` then ends
 * before what is there does, and all behind that goes nowhere, as does what stands
 * in pages that both slots have.
 *
 * All heads are looked through before the first is moved: a choice that cannot
 * be followed leaves everything as it was.  Tokens that go to a tier by channel
 * wait until TR_KV_CHANNEL_TOKENS of them are there.
 */
#include "kernels/cpu/cpu.h"
#include "kv_store.h"

#include <stdatomic.h>
#include <string.h>

typedef struct {
    const tr_kv_codec_t *codec;
    const tr_kv_view_t *kv;
    const tr_kv_compress_t *c;
    const tr_kv_seq_t *from;
    tr_kv_view_t to; /* the same with the slot's new tables, as slot 0 */
    atomic_bool bad;
} compress_t;

/* A head on its way. */
typedef struct {
    const compress_t *c;
    const int32_t *table, *to_table;
    const int8_t *dest; /* of the next source */
    tr_kv_iterator_t to[TR_KV_TIERS_MAX];
    /* those that wait for the rest of their tile */
    tr_kv_place_t wait[TR_KV_TIERS_MAX][TR_KV_CHANNEL_TOKENS];
} head_t;

/* ---- looking ---- */

/* Counts the next n choices, which tokens of layout `l` have: false when one
 * of them is not allowed.  count: by tier, then the window. */
static bool
dest_count(const compress_t *c, const int8_t *dest, uint32_t n,
           const tr_kv_layout_t *l, uint32_t *count)
{
    const tr_kv_seq_t *to = c->c->to;
    uint32_t seen[256] = { 0 }, allowed;

    for (uint32_t i = 0; i < n; i++) {
        seen[(uint8_t) dest[i]]++;
    }
    allowed = seen[(uint8_t) TR_KV_NOWHERE];
    for (uint32_t i = 0; i < to->n_tiers; i++) {
        if (seen[i] > 0 && !tr_kv_goes(l, &c->kv->layout[to->tier_layout[i]])) {
            return false;
        }
        allowed += seen[i];
        count[i] += seen[i];
    }
    if (seen[(uint8_t) TR_KV_WINDOW] > 0) {
        if (to->window == 0
            || !tr_kv_goes(l, &c->kv->layout[to->window_layout])) {
            return false;
        }
        allowed += seen[(uint8_t) TR_KV_WINDOW];
        count[TR_KV_TIERS_MAX] += seen[(uint8_t) TR_KV_WINDOW];
    }
    return allowed == n;
}

/* The window takes exactly its positions in front of the end, of n sources in
 * order from position `pos` on. */
static bool
window_chosen(const compress_t *c, const int8_t *dest, uint32_t n, uint32_t pos)
{
    if (c->c->to->window == 0) {
        return true;
    }
    for (uint32_t i = 0; i < n; i++) {
        if ((dest[i] == TR_KV_WINDOW)
            != (pos + i < c->c->to->base
                && tr_kv_in_window(c->c->to, pos + i))) {
            return false;
        }
    }
    return true;
}

/* Tokens in front of tier l, of a head counted over all slots, that are no
 * sources. */
static uint32_t
skip_of(const compress_t *c, size_t head, uint32_t l)
{
    size_t heads = (size_t) c->kv->layers * c->kv->kv_heads;

    return tr_kv_compress_skip(c->c, (uint32_t) (head % heads), l);
}

/* Are all the sources of a head there?  Then how many tokens go where. */
static bool
sources_valid(const compress_t *c, size_t head, const int8_t *dest,
              uint32_t *count)
{
    const tr_kv_view_t *kv = c->kv;
    const tr_kv_seq_t *from = c->from;
    const int32_t *table = kv->tables + head * kv->table_len;
    const uint32_t *have = kv->count + head * TR_KV_TIERS_MAX;
    uint32_t n, i, window = tr_kv_windowed(from);
    size_t all = c->c->n_uncompressed;

    for (uint32_t l = 0; l < from->n_tiers; l++) {
        if (skip_of(c, head, l) > have[l]) {
            return false;
        }
        all += have[l] - skip_of(c, head, l);
    }
    if (all + window > c->c->dest_len) {
        return false;
    }
    for (uint32_t l = 0; l < from->n_tiers; l++, dest += n) {
        n = have[l] - skip_of(c, head, l);
        if (!tr_kv_has_tier(kv, table, from, l, skip_of(c, head, l), have[l])
            || !dest_count(c, dest, n, &kv->layout[from->tier_layout[l]], count)
            || count[TR_KV_TIERS_MAX] > 0) {
            return false;
        }
    }
    for (i = 0; i < window; i += n, dest += n) { /* sinks, the ring's ends */
        uint32_t pos = tr_kv_windowed_position(from, i);
        uint32_t slot = tr_kv_window_entry(from, pos);
        uint32_t end = i < from->sinks ? from->sinks
                                       : from->sinks + from->window;

        n = end - slot < window - i ? end - slot : window - i;
        if (!tr_kv_has_window(kv, table, from, slot, slot + n)
            || !dest_count(c, dest, n, &kv->layout[from->window_layout], count)
            || !window_chosen(c, dest, n, pos)) {
            return false;
        }
    }
    return tr_kv_has_uncompressed(kv, table, 0, c->c->n_uncompressed)
           && dest_count(c, dest, c->c->n_uncompressed, &kv->layout[0], count)
           && window_chosen(c, dest, c->c->n_uncompressed, from->base);
}

/* Is there room for so many tokens, and their window? */
static bool
targets_valid(const compress_t *c, uint32_t head, const uint32_t *count)
{
    const int32_t *table = c->to.tables + (size_t) head * c->kv->table_len;
    const tr_kv_seq_t *to = c->c->to;
    uint32_t n = count[TR_KV_TIERS_MAX], first, turn;

    for (uint32_t i = 0; i < to->n_tiers; i++) {
        uint32_t stay = tr_kv_compress_stay(c->c, head, i);

        if (stay % c->kv->layout[to->tier_layout[i]].tokens != 0
            || !tr_kv_has_tier(&c->to, table, to, i, stay, stay + count[i])
            || (c->kv->layout[to->tier_layout[i]].level.by_channel
                && count[i] % TR_KV_CHANNEL_TOKENS != 0)) {
            return false;
        }
    }
    if (to->window == 0) {
        return true;
    }
    if (n != tr_kv_windowed(to)) {
        return false;
    }
    n -= to->sinks;
    first = (to->window_from - to->sinks) % to->window;
    turn = first + n > to->window ? first + n - to->window : 0;
    first += to->sinks;
    return tr_kv_has_window(&c->to, table, to, first, first + n - turn)
           && tr_kv_has_window(&c->to, table, to, 0, to->sinks + turn);
}

/* Does a head stay as it is? */
static bool
stays(const compress_t *c, uint32_t head)
{
    return tr_kv_slides(c->kv, head / c->kv->kv_heads)
           || !tr_kv_compress_has(c->c, c->kv->kv_heads, head);
}

static void
heads_look(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    compress_t *c = arg;
    size_t heads = (size_t) c->kv->layers * c->kv->kv_heads;

    (void) worker;
    for (uint32_t h = first; h < end; h++) {
        uint32_t count[TR_KV_TIERS_MAX + 1] = { 0 };

        if (stays(c, h)) {
            continue;
        }
        if (!sources_valid(c, (size_t) c->c->slot * heads + h,
                           c->c->dest + h * c->c->dest_len, count)
            || !targets_valid(c, h, count)) {
            atomic_store_explicit(&c->bad, true, memory_order_relaxed);
        }
    }
}

/* ---- moving ---- */

static void
move_to_tier(head_t *h, uint32_t tier, tr_kv_place_t from, float score,
             uint32_t pos)
{
    tr_kv_place_t p = tr_kv_iterator_next(&h->to[tier]);
    uint32_t i = p.at % TR_KV_CHANNEL_TOKENS;

    if (p.at == 0) {
        tr_kv_page_clear(p.page, p.layout, h->c->to.page_bytes);
    }
    if (!p.layout->level.by_channel) {
        tr_kv_move(h->c->codec, from, p);
    } else {
        h->wait[tier][i] = from;
        if (i == TR_KV_CHANNEL_TOKENS - 1) {
            tr_kv_place_t tile = { p.page, p.layout, p.at - i };

            tr_kv_move_tile(h->c->codec, h->wait[tier], tile);
        }
    }
    tr_kv_put_stats(p, score, pos);
}

/* Takes the next token to where its choice says. */
static void
source_move(head_t *h, tr_kv_place_t from, float score, uint32_t pos)
{
    const tr_kv_seq_t *to = h->c->c->to;
    int8_t dest = *h->dest++;

    if (dest >= 0) {
        move_to_tier(h, (uint32_t) dest, from, score, pos);
    } else if (dest == TR_KV_WINDOW) {
        tr_kv_place_t p = tr_kv_place_window(&h->c->to, h->to_table, to,
                                             tr_kv_window_entry(to, pos));

        tr_kv_move(h->c->codec, from, p);
        tr_kv_put_stats(p, score, pos);
    }
}

/* What an uncompressed token's score is when its prompt has `later` queries
 * after it: with an observation window, what the last of them paid, as if all
 * had. */
static float
uncompressed_score(const compress_t *c, tr_kv_place_t p, uint32_t later)
{
    float recent;

    if (c->c->observe == 0) {
        return tr_kv_score(p);
    }
    if (!p.layout->recent) {
        return 0;
    }
    memcpy(&recent, p.page + p.layout->recent + 4 * p.at, 4);
    return tr_kv_observed(recent, later, c->c->observe);
}

/* The window's pages are new, too. */
static void
window_clear(const head_t *h)
{
    const tr_kv_seq_t *to = h->c->c->to;
    uint32_t n = tr_kv_windowed(to);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = tr_kv_windowed_position(to, i);
        tr_kv_place_t p = tr_kv_place_window(&h->c->to, h->to_table, to,
                                             tr_kv_window_entry(to, pos));

        if (i == 0 || i == to->sinks || p.at == 0) {
            tr_kv_page_clear(p.page, p.layout, h->c->to.page_bytes);
        }
    }
}

static void
head_move(head_t *h, size_t head)
{
    const compress_t *c = h->c;
    const uint32_t *have = c->kv->count + head * TR_KV_TIERS_MAX;
    size_t heads = (size_t) c->kv->layers * c->kv->kv_heads;
    const tr_kv_view_t *kv = c->kv;
    const tr_kv_seq_t *from = c->from;
    tr_kv_iterator_t it;

    window_clear(h);
    for (uint32_t l = 0; l < c->c->to->n_tiers; l++) {
        h->to[l] = tr_kv_iterator_tier(
            &c->to, h->to_table, c->c->to, l,
            tr_kv_compress_stay(c->c, (uint32_t) (head % heads), l));
    }
    for (uint32_t l = 0; l < from->n_tiers; l++) {
        uint32_t skip = skip_of(c, head, l);

        it = tr_kv_iterator_tier(kv, h->table, from, l, skip);
        for (uint32_t i = skip; i < have[l]; i++) {
            tr_kv_place_t p = tr_kv_iterator_next(&it);

            source_move(h, p, tr_kv_score(p), tr_kv_position(p));
        }
    }
    for (uint32_t i = 0; i < tr_kv_windowed(from); i++) {
        uint32_t pos = tr_kv_windowed_position(from, i);
        tr_kv_place_t p = tr_kv_place_window(kv, h->table, from,
                                             tr_kv_window_entry(from, pos));

        source_move(h, p, tr_kv_score(p), pos);
    }
    it = tr_kv_iterator_uncompressed(kv, h->table);
    for (uint32_t i = 0; i < c->c->n_uncompressed; i++) {
        tr_kv_place_t p = tr_kv_iterator_next(&it);

        source_move(h, p,
                    uncompressed_score(c, p, c->c->n_uncompressed - 1 - i),
                    from->base + i);
    }
}

static void
heads_move(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const compress_t *c = arg;
    const tr_kv_view_t *kv = c->kv;
    size_t heads = (size_t) kv->layers * kv->kv_heads;

    (void) worker;
    for (uint32_t i = first; i < end; i++) {
        size_t head = (size_t) c->c->slot * heads + i;
        head_t h = { .c = c };

        if (stays(c, i)) {
            continue;
        }
        h.table = kv->tables + head * kv->table_len;
        h.to_table = c->to.tables + (size_t) i * kv->table_len;
        h.dest = c->c->dest + i * c->c->dest_len;
        head_move(&h, head);
    }
}

int
tr_cpu_kv_compress(const tr_stream_t *s, const tr_kv_view_t *kv,
                   const tr_kv_compress_t *c, const tr_kv_codec_t *codec)
{
    uint32_t heads = kv->layers * kv->kv_heads;
    compress_t all = { codec, kv, c, &kv->seq[c->slot], *kv, false };

    all.to.tables = c->to_tables;
    if (kv->head_dim > TR_HEAD_DIM_MAX || kv->head_dim % 16
        || !tr_kv_seq_valid(kv, all.from) || !tr_kv_seq_valid(kv, c->to)
        || c->to->n_tiers == 0
        || all.from->base > UINT32_MAX - c->n_uncompressed
        || c->to->base > all.from->base + c->n_uncompressed) {
        return TR_KERNEL_BADARG;
    }
    tr_thread_pool_run(s->thread_pool, s->threads, heads, 1, heads_look, &all);
    if (atomic_load_explicit(&all.bad, memory_order_relaxed)) {
        return TR_KERNEL_BADARG;
    }
    tr_thread_pool_run(s->thread_pool, s->threads, heads, 1, heads_move, &all);
    return TR_KERNEL_OK;
}

size_t
tr_cpu_kv_compress_work(const tr_stream_t *s, uint32_t head_dim)
{
    (void) s;
    (void) head_dim;
    return 64; /* a worker's tile is on its stack */
}
