/*
 * Compression on both sides: random choices, several slots at once, choices
 * that are not allowed.  See store_ops.h.
 */
#include "store_ops.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

/* Where a slot goes.  The window's layout is one that its tokens can have. */
static void
choose_whole(const fixture_t *b, uint32_t s, tr_kv_seq_t *to)
{
    const tr_kv_seq_t *from = &b->seq[s];
    uint32_t first = from->window > 0 ? from->window_from : from->base, n;
    uint32_t levels = b->plan.n - 1;

    *to = *from;
    to->base = from->base + b->uncompressed[s];
    if (from->n_tiers == 0 || random_below(2)) {
        to->n_tiers = (uint8_t) (1 + random_below(levels));
        for (uint32_t l = 0; l < to->n_tiers; l++) {
            to->tier_layout[l] = (uint8_t) (1 + random_below(levels));
        }
    }
    to->window = random_below(4) == 0 ? 0 : 1 + random_below(80);
    to->window_layout = (uint8_t) (from->window > 0 ? from->window_layout
                                                    : 1 + random_below(levels));
    if (to->window == 0 || b->plan.layout[to->window_layout].level.by_channel) {
        to->window = to->sinks = 0;
        to->window_from = to->base;
        return;
    }
    n = to->base - first;
    n = n < to->window ? n : to->window;
    to->window_from = to->base - (random_below(3) ? n : random_below(n + 1));
    if (from->base == 0) {
        n = random_below(2) ? random_below(40) : 0;
        to->sinks = n < to->window_from ? n : to->window_from;
    } else if (random_below(4) == 0) { /* some are judged after all */
        to->sinks = random_below(from->sinks + 1);
    }
}

/* Or the beginning of it: what stands behind goes nowhere. */
static void
choose_target(const fixture_t *b, uint32_t s, tr_kv_seq_t *to)
{
    choose_whole(b, s, to);
    if (random_below(3) == 0 && to->base > to->sinks + 1) {
        to->base -= random_below(to->base - to->sinks);
    }
    if (to->window_from > to->base) {
        to->window_from = to->base;
    }
}

static bool
is_whole(const fixture_t *b, uint32_t s, const tr_kv_seq_t *to)
{
    return to->base == b->seq[s].base + b->uncompressed[s];
}

/* Tokens of each tier of a head that stay in its pages: where tiers stay what they
 * are. */
static void
choose_stay(const fixture_t *b, uint32_t s, uint32_t h, const tr_kv_seq_t *to,
            uint32_t *stay)
{
    const uint32_t *have = b->count + fixture_head(b, s, h) * TR_KV_TIERS_MAX;
    const tr_kv_seq_t *from = &b->seq[s];

    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        uint32_t per = b->plan.layout[from->tier_layout[l]].tokens;
        bool can = l < from->n_tiers && l < to->n_tiers
                   && from->tier_layout[l] == to->tier_layout[l];

        stay[l] = can ? random_below(have[l] / per + 1) * per : 0;
    }
}

/* Layout of source i of a head. */
static uint32_t
source_layout(const fixture_t *b, uint32_t s, const uint32_t *have, uint32_t i,
              uint32_t *tier)
{
    const tr_kv_seq_t *from = &b->seq[s];

    for (*tier = 0; *tier < from->n_tiers; ++*tier) {
        if (i < have[*tier]) {
            return from->tier_layout[*tier];
        }
        i -= have[*tier];
    }
    if (i < tr_kv_windowed(from)) {
        return from->window_layout;
    }
    return 0;
}

/* Is source i, of a tier, on a page that stays? */
static bool
stays_there(const tr_kv_seq_t *from, const uint32_t *have, const uint32_t *stay,
            uint32_t i)
{
    uint32_t l = 0;

    while (l + 1 < from->n_tiers && i >= have[l]) {
        i -= have[l++];
    }
    return i < stay[l];
}

/* Chooses for all sources of a head; counts what goes to each tier. */
static void
choose_dest(const fixture_t *b, uint32_t s, uint32_t h, const tr_kv_seq_t *to,
            const uint32_t *stay, bool cut, int8_t *dest, uint32_t *count)
{
    const tr_kv_seq_t *from = &b->seq[s];
    uint32_t have[TR_KV_TIERS_MAX];
    uint32_t tiered = 0, windowed = tr_kv_windowed(from), all;
    uint32_t keep = random_below(4), drop; /* 1: tokens stay in their tier */

    for (uint32_t l = 0; l < from->n_tiers; l++) {
        have[l] = b->count[fixture_head(b, s, h) * TR_KV_TIERS_MAX + l]
                  - (cut ? 0 : stay[l]);
        tiered += have[l];
    }
    all = tiered + windowed + b->uncompressed[s];
    drop = random_below(2) ? 0 : random_below(100);
    memset(count, 0, 4 * TR_KV_TIERS_MAX);
    for (uint32_t i = 0; i < all; i++) {
        uint32_t tier, layout = source_layout(b, s, have, i, &tier);
        uint32_t want = keep ? (tier + keep - 1) % to->n_tiers
                             : random_below(to->n_tiers);
        uint32_t at = i - tiered, pos; /* of those that are in no tier */

        dest[i] = TR_KV_NOWHERE;
        pos = at < windowed ? tr_kv_windowed_position(from, at)
                            : from->base + at - windowed;
        if ((i >= tiered && pos >= to->base)
            || (cut && i < tiered && stays_there(from, have, stay, i))) {
            continue;
        }
        if (to->window > 0 && i >= tiered && tr_kv_in_window(to, pos)) {
            dest[i] = TR_KV_WINDOW;
        } else if (random_below(100) >= drop
                   && store_goes(b, layout, to->tier_layout[want])) {
            dest[i] = (int8_t) want;
            count[want]++;
        }
    }
    for (uint32_t l = 0; l < to->n_tiers; l++) { /* whole tiles by channel */
        uint32_t over = count[l] % TR_KV_CHANNEL_TOKENS;

        if (!b->plan.layout[to->tier_layout[l]].level.by_channel) {
            continue;
        }
        count[l] -= over;
        for (uint32_t i = all; over > 0; i--) {
            if (dest[i - 1] == (int8_t) l) {
                dest[i - 1] = TR_KV_NOWHERE;
                over--;
            }
        }
    }
}

/* Pages for what a head will hold. */
static void
target_pages(fixture_t *b, const tr_kv_seq_t *to, int32_t *row,
             const int32_t *old, const uint32_t *stay, const uint32_t *count)
{
    memset(row, 0xff, b->host.table_len * 4ul);
    for (uint32_t l = 0; l < to->n_tiers; l++) {
        uint32_t layout = to->tier_layout[l];
        uint32_t per = b->plan.layout[layout].tokens;

        for (uint32_t i = 0; i < (stay[l] + count[l] + per - 1) / per; i++) {
            uint32_t entry = tr_kv_tier_entry(&b->host, l, i);

            if (i < stay[l] / per) {
                row[entry] = old[entry];
            } else {
                fixture_page(b, row + entry, layout);
            }
        }
    }
    for (uint32_t k = 0; k < tr_kv_windowed(to); k++) {
        uint32_t per = b->plan.layout[to->window_layout].tokens;
        uint32_t i = tr_kv_window_entry(to, tr_kv_windowed_position(to, k));

        fixture_page(b, row + b->host.at_window + i / per, to->window_layout);
    }
}

/* One slot's job on both sides. */
typedef struct {
    tr_kv_seq_t to;
    tr_kv_compress_t host, other;
    int32_t *tables;
    int8_t *dest;
    uint32_t *count; /* [heads][TR_KV_TIERS_MAX] */
    uint32_t *stay;  /* the same */
} job_t;

static void
job_make(fixture_t *b, uint32_t s, job_t *j)
{
    uint32_t heads = b->host.layers * b->host.kv_heads, len = 4 * b->max_len;
    tr_kv_seq_t *to = fixture_room(sizeof(*to));
    bool stays = random_below(2) == 0, cut = stays && random_below(2) == 0;

    choose_target(b, s, &j->to);
    j->tables = malloc((size_t) heads * b->host.table_len * 4);
    j->dest = malloc((size_t) heads * len);
    j->count = malloc((size_t) heads * TR_KV_TIERS_MAX * 4);
    j->stay = calloc((size_t) heads * TR_KV_TIERS_MAX, 4);
    memset(j->dest, 77, (size_t) heads * len);
    for (uint32_t h = 0; h < heads; h++) {
        uint32_t *count = j->count + h * TR_KV_TIERS_MAX;
        uint32_t *stay = j->stay + h * TR_KV_TIERS_MAX;

        if (stays) {
            choose_stay(b, s, h, &j->to, stay);
        }
        choose_dest(b, s, h, &j->to, stay, cut, j->dest + (size_t) h * len,
                    count);
        target_pages(b, &j->to, j->tables + (size_t) h * b->host.table_len,
                     fixture_row(b, s, h), stay, count);
    }
    j->host = (tr_kv_compress_t){ .slot = (int32_t) s,
                                  .n_uncompressed = b->uncompressed[s],
                                  .to = &j->to,
                                  .to_tables = j->tables,
                                  .dest = j->dest,
                                  .dest_len = len,
                                  .stay = stays ? j->stay : NULL,
                                  .cut = cut,
                                  .observe = random_below(2)
                                                 ? 0
                                                 : 1 + random_below(64) };
    j->other = j->host;
    j->other.to = to;
    j->other.to_tables = fixture_room((size_t) heads * b->host.table_len * 4);
    j->other.dest = fixture_room((size_t) heads * len);
    j->other.stay = stays ? fixture_room(heads * TR_KV_TIERS_MAX * 4ul) : NULL;
}

static void
job_send(fixture_t *b, const job_t *j)
{
    uint32_t heads = b->host.layers * b->host.kv_heads;

    fixture_put((void *) j->other.to, &j->to, sizeof(j->to));
    fixture_put((void *) j->other.to_tables, j->tables,
                (size_t) heads * b->host.table_len * 4);
    fixture_put((void *) j->other.dest, j->dest, heads * j->host.dest_len);
    if (j->host.stay != NULL) {
        fixture_put((void *) j->other.stay, j->stay,
                    heads * TR_KV_TIERS_MAX * 4ul);
    }
}

/* What the slot is afterwards; its old pages come back. */
static void
job_install(fixture_t *b, uint32_t s, job_t *j)
{
    for (uint32_t h = 0; h < b->host.layers * b->host.kv_heads; h++) {
        int32_t *row = fixture_row(b, s, h);
        const uint32_t *stay = j->stay + h * TR_KV_TIERS_MAX;

        for (uint32_t l = 0; l < j->to.n_tiers; l++) {
            uint32_t per = b->plan.layout[j->to.tier_layout[l]].tokens;

            for (uint32_t i = 0; i < stay[l] / per; i++) {
                row[tr_kv_tier_entry(&b->host, l, i)] = -1;
            }
            j->count[h * TR_KV_TIERS_MAX + l] += stay[l];
        }
        fixture_give_back(b, row, 0, b->host.table_len);
        memcpy(row, j->tables + (size_t) h * b->host.table_len,
               b->host.table_len * 4ul);
        memcpy(b->count + fixture_head(b, s, h) * TR_KV_TIERS_MAX,
               j->count + h * TR_KV_TIERS_MAX, 4 * TR_KV_TIERS_MAX);
        for (uint32_t l = 0; l < j->to.n_tiers; l++) {
            store_moved += j->count[h * TR_KV_TIERS_MAX + l];
        }
    }
    b->seq[s] = j->to;
    b->uncompressed[s] = 0;
}

static void
job_free(job_t *j)
{
    free(j->tables);
    free(j->dest);
    free(j->count);
    free(j->stay);
    fixture_room_free((void *) j->other.to);
    fixture_room_free((void *) j->other.to_tables);
    fixture_room_free((void *) j->other.dest);
    if (j->other.stay != NULL) {
        fixture_room_free((void *) j->other.stay);
    }
}

/* One launch, of these layers. */
static void
compress_layers(fixture_t *b, const tr_kv_compress_t *jobs, uint32_t n,
                uint32_t first, uint32_t layers, const store_jobs_t *all)
{
    tr_kv_compress_t *there = (tr_kv_compress_t *) (uintptr_t) all->jobs;
    tr_kv_compress_t *some = malloc(n * sizeof(*some));

    for (uint32_t i = 0; i < n; i++) {
        some[i] = jobs[i];
        some[i].first_layer = first;
        some[i].layers = layers == b->other.layers ? 0 : layers;
    }
    fixture_put(there, some, n * sizeof(*some));
    if (tr_cuda_kv_compress(&b->side->stream, &b->other, there, n, layers,
                            all->max_len, all->refused, all->work)
        != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
    cuda_ok(cudaDeviceSynchronize(), "compress");
    free(some);
}

/* compare: a job of the CPU's that is compared, or NULL; false: it differs.  Some
 * layers at a time. */
static bool
compress_other(fixture_t *b, const tr_kv_compress_t *jobs, uint32_t n,
               const tr_kv_compress_t *compare, uint32_t layers,
               uint32_t *refused)
{
    tr_kv_compress_t *there = fixture_room(n * sizeof(*jobs));
    uint32_t *flags = fixture_room(n * 4ul), max_len = 4 * b->max_len;
    void *work = fixture_room(tr_cuda_kv_compress_work(&b->other, n, max_len));
    const store_jobs_t each = { there, n, max_len, flags, work };
    bool ok = true;

    fixture_sync(b);
    for (uint32_t l = 0; l < b->other.layers; l += layers) {
        compress_layers(b, jobs, n, l, layers, &each);
    }
    if (compare != NULL) {
        const store_jobs_t all = { there, n, max_len, flags, work };

        ok = store_compare(b, compare, &all);
    }
    fixture_room_free(work);
    fixture_get(refused, flags, n * 4ul);
    fixture_room_free(there);
    fixture_room_free(flags);
    return ok;
}

/* Spoils a job in a way that nobody may follow. */
static void
job_spoil(fixture_t *b, job_t *j)
{
    uint32_t h = random_below(b->host.layers * b->host.kv_heads);
    int32_t *row = j->tables + (size_t) h * b->host.table_len;

    switch (random_below(3)) {
    case 0:
        memset(j->dest + h * j->host.dest_len, 9, j->host.dest_len);
        break;
    case 1:
        memset(row, 0xff, b->host.table_len * 4ul);
        break;
    default: /* more than is there */
        j->to.base = b->seq[j->host.slot].base + b->uncompressed[j->host.slot]
                     + 1;
    }
}

/* A job that is refused leaves everything as it is. */
static bool
refuse_compress(fixture_t *b, uint32_t s, const job_t *good)
{
    uint32_t heads = b->host.layers * b->host.kv_heads, refused = 9;
    size_t tables = (size_t) heads * b->host.table_len * 4;
    size_t dest = heads * good->host.dest_len;
    job_t j = *good;
    int rc;
    bool ok;

    if (b->uncompressed[s] == 0) { /* perhaps there is nothing to refuse */
        return true;
    }
    j.tables = malloc(tables);
    j.dest = malloc(dest);
    memcpy(j.tables, good->tables, tables);
    memcpy(j.dest, good->dest, dest);
    job_spoil(b, &j);
    j.host.to = &j.to;
    j.host.to_tables = j.tables;
    j.host.dest = j.dest;
    rc = tr_cpu_kv_compress(&store_cpu, &b->host, &j.host, store_codec());
    if (rc == 0) { /* every token of that head was dropped */
        printf("spoilt, yet possible: not looked at\n");
        exit(2);
    }
    job_send(b, &j);
    compress_other(b, &j.other, 1, NULL, b->other.layers, &refused);
    ok = refused == 1 && fixture_same(b, "refused compression");
    free(j.tables);
    free(j.dest);
    job_send(b, good);
    return ok ? true : store_say("a compression that is not allowed was done");
}

/* Could the slot's row be emptied and yet be allowed? */
static bool
job_needs_pages(const fixture_t *b, const job_t *j)
{
    if (tr_kv_windowed(&j->to) > 0) {
        return true;
    }
    for (uint32_t h = 0; h < b->host.layers * b->host.kv_heads; h++) {
        uint32_t n = 0;

        for (uint32_t l = 0; l < j->to.n_tiers; l++) {
            n += j->count[h * TR_KV_TIERS_MAX + l];
        }
        if (n == 0) {
            return false;
        }
    }
    return true;
}

/* Compresses all slots of `which`. */
bool
store_compress(fixture_t *b, uint32_t which)
{
    tr_kv_compress_t other[FIXTURE_SLOTS + 1];
    uint32_t slot[FIXTURE_SLOTS], n = 0, refused[FIXTURE_SLOTS + 1], more;
    job_t job[FIXTURE_SLOTS];
    const tr_kv_compress_t *compare = NULL;
    bool ok = true;

    for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
        if (which >> s & 1) {
            slot[n] = s;
            job_make(b, s, &job[n]);
            job_send(b, &job[n]);
            other[n] = job[n].other;
            n++;
        }
    }
    other[n] = (tr_kv_compress_t){ .slot = -1 };
    more = random_below(2);
    if (n > 0 && random_below(2) && job_needs_pages(b, &job[0])) {
        ok = refuse_compress(b, slot[0], &job[0]);
    }
    for (uint32_t i = 0; i < n && ok; i++) {
        int rc = tr_cpu_kv_compress(&store_cpu, &b->host, &job[i].host,
                                    store_codec());

        ok = rc == 0 ? true : store_say("the CPU refused a compression");
    }
    if (ok && n > 0) {
        uint32_t k = random_below(n);

        compare = is_whole(b, slot[k], &job[k].to) ? &job[k].host : NULL;
    }
    if (ok) {
        ok = compress_other(b, other, n + more, compare,
                            1 + random_below(b->other.layers), refused);
    }
    for (uint32_t i = 0; i < n + more && ok; i++) {
        ok = refused[i] == 0 ? true : store_say("a compression was refused");
    }
    ok = ok && fixture_same(b, "compression");
    store_checks++;
    for (uint32_t i = 0; i < n; i++) {
        job_install(b, slot[i], &job[i]);
        job_free(&job[i]);
    }
    return ok;
}
