/*
 * manager_operations.h: random operations on both managers of manager_fixture.h.
 * Those between slots and what is kept of them are in manager_shares.h.
 */
#ifndef TR_TESTS_GPU_MANAGER_OPERATIONS_H
#define TR_TESTS_GPU_MANAGER_OPERATIONS_H

#include "manager_cuts.h"

/* ---- operations --------------------------------------------------------- */

static void
fixture_open(fixture_t *w)
{
    tr_kv_open_t open[FIXTURE_SLOTS];
    tr_kv_begin_t begin[FIXTURE_SLOTS];
    uint32_t n = 0, some = 1 + fixture_random(3);

    memset(open, 0, sizeof(open));
    for (uint32_t i = 0; i < some; i++) {
        uint32_t policy = fixture_random(w->n_policies);
        int32_t slot = tr_kv_open(w->kv, w->policy[policy]);

        if (slot < 0) {
            break;
        }
        open[n].slot = begin[n].slot = slot;
        open[n].seq = w->kv->m.seq[slot];
        open[n].rule = fixture_rule(w, &w->kv->policy[slot].begun, policy);
        begin[n].len = 1 + fixture_random(w->kv->config.max_len % TR_KV_SHORT);
        w->slot[slot].open = w->slot[slot].prompt = true;
        w->slot[slot].out = false;
        w->slot[slot].lender = 0;
        w->slot[slot].policy = policy;
        w->slot[slot].goal = begin[n].len;
        tr_kv_prompt(w->kv, slot, begin[n++].len);
    }
    FIXTURE_SAME(w, n == 0 || FIXTURE_CALL(w, FIXTURE_OPEN, open, n), " ");
    FIXTURE_SAME(w, n == 0 || FIXTURE_CALL(w, FIXTURE_BEGIN, begin, n), " ");
}

/* A compressed or finished slot gets another prompt: a later turn. */
static void
fixture_turn(fixture_t *w)
{
    uint32_t i = fixture_random(w->slots);
    tr_kv_begin_t begin = { .slot = (int32_t) i };
    uint32_t have = w->kv->m.slot[i].tokens, room;

    if (!w->slot[i].open || w->slot[i].out || w->slot[i].prompt
        || have >= w->kv->config.max_len || fixture_lends(w, i)) {
        return;
    }
    room = w->kv->config.max_len - have;
    begin.len = have + 1 + fixture_random(room < 60 ? room : 60);
    tr_kv_prompt(w->kv, begin.slot, begin.len);
    w->slot[i].prompt = true;
    w->slot[i].goal = begin.len;
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_BEGIN, &begin, 1), " ");
}

static void
fixture_close(fixture_t *w)
{
    int32_t slots[FIXTURE_SLOTS];
    uint32_t n = 0, some = 1 + fixture_random(3),
             first = fixture_random(w->slots);

    for (uint32_t i = 0; i < w->slots && n < some; i++) {
        uint32_t slot = (first + i * 7) % w->slots;

        if (w->slot[slot].open && fixture_random(2) == 0
            && !fixture_lends(w, slot)) {
            slots[n++] = (int32_t) slot;
            w->slot[slot].open = false;
            tr_kv_close(w->kv, (int32_t) slot);
        }
    }
    FIXTURE_SAME(w, n == 0 || FIXTURE_CALL(w, FIXTURE_CLOSE, slots, n), " ");
}

/* No frozen token moves, or is moved to the place of. */
static void
fixture_check_moves(fixture_t *w, int32_t slot)
{
    const tr_kv_manager_t *m = &w->kv->m;
    const tr_kv_seq_t *q = &m->seq[slot];

    for (uint32_t h = 0; h < m->heads && q->frozen; h++) {
        const tr_kv_move_t *move = &m->move[manager_head(m, slot, h)];
        const uint32_t *frozen = manager_frozen(m, q, slot, h);

        FIXTURE_SAME(w,
                     move->candidate_from < 0
                         || move->candidate_index
                                >= frozen[move->candidate_from],
                     "slot %d head %u: %u is frozen", slot, h,
                     move->candidate_index);
        FIXTURE_SAME(w, move->to < 0 || move->index >= frozen[move->to],
                     "slot %d head %u: the place of %u, which is frozen", slot,
                     h, move->index);
    }
}

/* What the device said of a step against what the CPU's manager said. */
static void
fixture_check_step(fixture_t *w, const tr_kv_page_request_t *ask, uint32_t n,
                   const int32_t *index, const tr_status_t *rc,
                   const uint32_t *before)
{
    const tr_kv_manager_t *m = &w->mirror;
    uint32_t stalls = 0, bits = 0;

    for (uint32_t i = 0; i < n; i++) {
        int32_t slot = ask[i].slot;
        bool granted = index[i] >= 0 && rc[index[i]] == TR_OK;
        uint8_t want = granted          ? TR_KV_GRANTED
                       : index[i] != -2 ? TR_KV_STALLED
                                        : TR_KV_REFUSED;

        FIXTURE_SAME(w, m->result[i] == want, "request %u: %u, device %u", i,
                     want, m->result[i]);
        FIXTURE_SAME(w, m->seq_slot[i] == (granted ? slot : -1), "request %u",
                     i);
        if (index[i] == -2) {
            continue;
        }
        stalls += !granted;
        FIXTURE_SAME(w, m->position[i] == before[i], "request %u", i);
        FIXTURE_SAME(w,
                     (m->report->stalled[slot / 32] >> slot % 32 & 1)
                         == !granted,
                     "slot %d", slot);
        if (granted && w->kv->m.seq[slot].base > before[i]) {
            size_t at = manager_head(&w->kv->m, slot, 0);

            FIXTURE_SAME(w,
                         memcmp(&m->move[at], &w->kv->m.move[at],
                                w->kv->heads * sizeof(tr_kv_move_t))
                             == 0,
                         "slot %d: moves", slot);
            fixture_check_moves(w, slot);
        }
    }
    for (uint32_t i = 0; i < TR_KV_SLOTS_MAX / 32; i++) {
        bits += MANAGER_POPC(m->report->stalled[i]);
    }
    FIXTURE_SAME(w, bits == stalls && m->report->n_stalled == stalls,
                 "%u stalls, device %u", stalls, bits);
    w->stalls += stalls;
}

/* How far request of slot i goes. */
static uint32_t
fixture_len(const fixture_t *w, uint32_t i)
{
    uint32_t have = w->kv->m.slot[i].tokens, goal = w->slot[i].goal;

    if (w->slot[i].prompt && have < goal) {
        uint32_t chunk = 1 + fixture_random(w->lends ? 500 : 90);

        return chunk < goal - have ? have + chunk : goal;
    }
    return fixture_random(15) == 0 ? have : have + 1;
}

static void
fixture_step(fixture_t *w)
{
    tr_kv_page_request_t ask[2 * FIXTURE_SLOTS];
    int32_t slots[FIXTURE_SLOTS], index[2 * FIXTURE_SLOTS];
    uint32_t lens[FIXTURE_SLOTS], before[2 * FIXTURE_SLOTS];
    uint32_t n = 0, asked = 0, first = fixture_random(w->slots);
    tr_status_t rc[FIXTURE_SLOTS];

    for (uint32_t k = 0; k < w->slots; k++) {
        uint32_t i = (first + k) % w->slots, len;
        const tr_kv_slot_t *s = &w->kv->m.slot[i];
        bool complete = w->slot[i].prompt && s->tokens >= w->slot[i].goal;

        if (n < w->slots && fixture_random(8) == 0) { /* no request */
            ask[n] = (tr_kv_page_request_t){ -1, 0, 5 };
            if (fixture_random(4) == 0) { /* one that cannot be */
                ask[n].slot = (int32_t) (w->slots + fixture_random(3));
            } else if (!w->slot[i].open || w->slot[i].out) {
                ask[n].slot = (int32_t) i;
            }
            index[n++] = -2;
        }
        if (n == w->slots) { /* a launch has no more */
            break;
        }
        if (!w->slot[i].open || w->slot[i].out || fixture_random(10) == 0
            || (complete && s->rule.n_levels != 0) || fixture_lends(w, i)) {
            continue;
        }
        len = fixture_len(w, i);
        before[n] = s->tokens;
        ask[n] = (tr_kv_page_request_t){
            (int32_t) i, fixture_random(2) ? s->tokens : TR_KV_ANY, len
        };
        if (len == s->tokens + 1 && fixture_random(2)) {
            ask[n].len = TR_KV_NEXT;
        }
        if (fixture_random(20) == 0 && len > s->tokens) { /* host is ahead */
            ask[n].from = s->tokens + 1;
            index[n++] = -1;
            continue;
        }
        index[n++] = (int32_t) asked;
        slots[asked] = (int32_t) i;
        lens[asked++] = len;
    }
    if (n == 0) {
        return;
    }
    w->device->pool(w->device->arg);
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_STEP, ask, n), " ");
    tr_kv_reserve_batch(w->kv, slots, lens, asked, rc);
    fixture_compare(w);
    fixture_check_step(w, ask, n, index, rc, before);
    w->steps++;
    for (uint32_t i = 0; i < n; i++) {
        if (index[i] >= 0 && rc[index[i]] == TR_OK
            && lens[index[i]] > before[i]) {
            fixture_attend(w, ask[i].slot, before[i], lens[index[i]]);
        }
    }
    memcpy(w->mirror.candidate, w->kv->m.candidate,
           (size_t) w->slots * w->kv->heads * TR_KV_TIERS_MAX
               * sizeof(tr_kv_candidate_t));
    w->device->arrays(w->device->arg);
}

/* Tokens of a head before a prompt is compressed; the mirror has them still. */
static size_t
fixture_sources(const fixture_t *w, const tr_kv_job_t *j, uint32_t head)
{
    const uint32_t *count = manager_counts(&w->mirror, j->slot, head);
    const uint32_t *frozen = manager_frozen(&w->mirror, &j->from, j->slot,
                                            head);
    size_t n = j->n_uncompressed;

    for (uint32_t l = 0; l < j->from.n_tiers; l++) {
        n += count[l] - (frozen != NULL ? frozen[l] : 0);
    }
    return n + tr_kv_windowed(&j->from);
}

/* New pages take the place of old ones, layers some at a time. */
static void
fixture_install(fixture_t *w, tr_kv_complete_t *c, uint32_t n)
{
    uint32_t parts = tr_kv_parts(w->kv->config.layers, c[0].layers);

    for (uint32_t i = 0; i < parts && !w->failed; i++) {
        FIXTURE_SAME(w, i == 0 || FIXTURE_CALL(w, FIXTURE_FILL, c, n), " ");
        FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_INSTALL, c, n), " ");
    }
}

/* A prompt has come to a stage, and goes on. */
static void
fixture_stage_of(fixture_t *w, uint32_t slot)
{
    tr_kv_complete_t c = { .slot = (int32_t) slot };
    const tr_kv_slot_t *s = &w->kv->m.slot[slot];
    tr_kv_begin_t begin = { c.slot, s->prompt };
    tr_kv_policy_t begun;
    tr_status_t rc;

    if (!w->slot[c.slot].open || w->slot[c.slot].out || !w->slot[c.slot].prompt
        || !tr_kv_stage_due(w->kv, c.slot, s->tokens)) {
        return;
    }
    c.len = s->tokens;
    c.layers = tr_kv_at_once(w->kv, begin.len);
    tr_kv_policy_for(&w->kv->policy[c.slot].origin, c.len, &begun);
    begun.rule = tr_kv_rule_stage(&begun.rule);
    c.rule = fixture_rule(w, &begun, w->slot[c.slot].policy);
    w->device->pool(w->device->arg);
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_PLAN, &c, 1), " ");
    w->device->fetch(w->device->arg);
    rc = tr_kv_stage(w->kv, c.slot, c.len);
    FIXTURE_SAME(w,
                 w->mirror.result[0]
                     == (rc == TR_OK ? TR_KV_GRANTED : TR_KV_STALLED),
                 "stage of %u tokens: %u, CPU %d", c.len, w->mirror.result[0],
                 rc);
    fixture_install(w, &c, 1);
    if (rc == TR_OK) {
        FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_BEGIN, &begin, 1), " ");
        w->staged++;
    }
    fixture_compare(w);
}

static void
fixture_stage(fixture_t *w)
{
    for (uint32_t i = 0; i < w->slots && !w->failed; i++) {
        if (fixture_random(2)) {
            fixture_stage_of(w, i);
        }
    }
}

/* Some prompts at once that are complete, or end early; one, where it takes some
 * layers at a time. */
static void
fixture_complete(fixture_t *w)
{
    tr_kv_complete_t c[FIXTURE_PROMPTS];
    uint64_t left = tr_kv_free_pages(w->kv);
    uint32_t n = 0, first = fixture_random(w->slots);
    uint32_t most = 1 + fixture_random(w->mirror.size.max_prompts);

    most = w->kv->config.stage != 0 ? 1 : most;
    memset(c, 0, sizeof(c));
    for (uint32_t k = 0; k < w->slots && n < most; k++) {
        uint32_t i = (first + k) % w->slots;
        const tr_kv_slot_t *s = &w->kv->m.slot[i];
        const tr_kv_seq_t *q = &w->kv->m.seq[i];
        tr_kv_policy_t begun;

        if (!w->slot[i].open || w->slot[i].out || !w->slot[i].prompt
            || (s->tokens < w->slot[i].goal && fixture_random(12) != 0)) {
            continue;
        }
        c[n].slot = (int32_t) i;
        c[n].len = fixture_random(6)
                       ? s->tokens
                       : q->base + fixture_random(s->tokens - q->base + 1);
        tr_kv_policy_for(&w->kv->policy[i].origin, c[n].len, &begun);
        c[n].rule = fixture_rule(w, &begun, w->slot[i].policy);
        c[n].layers = tr_kv_at_once(w->kv, c[n].len);
        n++;
    }
    if (n == 0) {
        return;
    }
    w->device->pool(w->device->arg);
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_PLAN, c, n), " ");
    w->device->fetch(w->device->arg);
    for (uint32_t i = 0; i < n && !w->failed; i++) {
        const tr_kv_job_t *j = &w->mirror.job[i];
        uint8_t result = w->mirror.result[i];
        size_t dest = (size_t) i * w->kv->heads * w->mirror.dest_len;
        tr_status_t rc;

        if (result == TR_KV_STALLED) {
            FIXTURE_SAME(w, j->peak > left, "prompt %u: %u of %llu pages", i,
                         j->peak, (unsigned long long) left);
            /* the CPU gives back what was old before it goes on */
            FIXTURE_SAME(w,
                         i > 0
                             || tr_kv_compress(w->kv, c[i].slot, c[i].len)
                                    == TR_AGAIN,
                         "prompt %u", i);
            w->stalls++;
            continue;
        }
        FIXTURE_SAME(w, result == TR_KV_GRANTED, "prompt %u: %u", i, result);
        rc = tr_kv_compress(w->kv, c[i].slot, c[i].len);
        FIXTURE_SAME(w, rc == TR_OK, "prompt %u: %d", i, rc);
        for (uint32_t h = 0; h < w->kv->heads && j->move; h++) {
            if (manager_slides(&w->mirror, &j->from, h)) {
                continue;
            }
            FIXTURE_SAME(w,
                         memcmp(w->mirror.dest + dest + h * w->mirror.dest_len,
                                w->kv->m.dest + (size_t) h * w->kv->m.dest_len,
                                fixture_sources(w, j, h))
                             == 0,
                         "prompt %u head %u: dest", i, h);
        }
        FIXTURE_SAME(w, w->mirror.compress[i].slot == (j->move ? j->slot : -1),
                     "prompt %u", i);
        left -= j->move ? j->pages : 0;
        w->slot[c[i].slot].prompt = false;
        w->compressed++;
    }
    fixture_install(w, c, n);
    fixture_compare(w);
}

/* ---- out and in --------------------------------------------------------- */

/* The pages of a slot in the order of heads and runs. */
static uint32_t
fixture_list(const fixture_t *w, int32_t slot, int32_t *out)
{
    const tr_kv_cache_t *kv = w->kv;
    uint32_t n = 0;

    for (uint32_t head = 0; head < kv->heads; head++) {
        const int32_t *row = manager_row(&kv->m, slot, head);
        manager_run_t run[MANAGER_RUNS];
        uint32_t runs = manager_runs(&kv->m, &kv->m.seq[slot], head,
                                     manager_counts(&kv->m, slot, head), NULL,
                                     manager_dense(&kv->m.slot[slot]), run);

        for (uint32_t r = 0; r < runs; r++) {
            for (uint32_t j = 0; j < run[r].n; j++) {
                out[n++] =
                    row[(int32_t) run[r].entry + (int32_t) j * run[r].step];
            }
        }
    }
    return n;
}

/* What the copying kernel does to the tables of the device. */
static void
fixture_rewrite(fixture_t *w, int32_t slot)
{
    for (uint32_t head = 0; head < w->kv->heads; head++) {
        const int32_t *from = manager_row(&w->kv->m, slot, head);
        int32_t *to = manager_row(&w->mirror, slot, head);

        for (uint32_t i = 0; i < w->kv->view.table_len; i++) {
            to[i] = to[i] == -1 ? -1 : from[i];
        }
    }
    w->device->arrays(w->device->arg);
}

/* A slot goes out, or comes in. */
static void
fixture_swap(fixture_t *w)
{
    static int32_t list[FIXTURE_LIST], mine[FIXTURE_LIST];
    int32_t i = (int32_t) fixture_random(w->slots);
    uint32_t n;

    if (!w->slot[i].open
        || w->kv->m.slot[i].pages + w->kv->m.slot[i].borrowed + 2 > FIXTURE_LIST
        || w->kv->m.slot[i].pages == 0 || w->kv->m.seq[i].shared != 0
        || fixture_lends(w, (uint32_t) i)) {
        return;
    }
    w->device->fetch(w->device->arg);
    memset(list, 0xff, sizeof(list));
    list[0] = i;
    if (!w->slot[i].out) {
        n = fixture_list(w, i, list + 2);
        if (tr_kv_swap_out(w->kv, i) != TR_OK) {
            return;
        }
        list[1] = (int32_t) n;
        FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_GIVE, list, n + 2), " ");
    } else {
        bool in = tr_kv_swap_in(w->kv, i) == TR_OK;

        FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_TAKE, list, FIXTURE_LIST), " ");
        n = fixture_list(w, i, mine);
        FIXTURE_SAME(w, list[1] == (in ? (int32_t) n : 0), "%d pages of %u",
                     list[1], n);
        FIXTURE_SAME(w, !in || memcmp(list + 2, mine, n * 4) == 0, "slot %d",
                     i);
        if (!in) {
            return;
        }
    }
    w->swaps++;
    w->slot[i].out = !w->slot[i].out;
    w->slot[i].lender = 0; /* it has copies */
    fixture_rewrite(w, i);
    fixture_compare(w);
}

/* ---- fork -------------------------------------------------------- */

/* Uncompressed pages of the mirror, all heads. */
static uint32_t
fixture_uncompressed(const fixture_t *w, int32_t slot, uint32_t each,
                     int32_t *out)
{
    uint32_t n = 0;

    for (uint32_t head = 0; head < w->kv->heads; head++) {
        memcpy(out + n, manager_row(&w->mirror, slot, head), each * 4);
        n += each;
    }
    return n;
}

/* A new slot of the same policy becomes a prompt's copy. */
static void
fixture_fork(fixture_t *w)
{
    static int32_t a[FIXTURE_LIST], b[FIXTURE_LIST];
    uint32_t i = fixture_random(w->slots), len, each;
    int32_t from = (int32_t) i, to;
    tr_kv_open_t open = { 0 };
    tr_kv_page_request_t ask;
    tr_kv_fork_t fork;
    tr_status_t rc;

    if (!w->slot[i].open || w->slot[i].out || w->kv->m.seq[i].base != 0
        || w->kv->m.slot[i].tokens == 0) {
        return;
    }
    to = tr_kv_open(w->kv, w->policy[w->slot[i].policy]);
    if (to < 0) {
        return;
    }
    len = 1 + fixture_random(w->kv->m.slot[i].tokens);
    w->slot[to] = w->slot[i];
    open.slot = to;
    open.seq = w->kv->m.seq[to];
    open.rule = fixture_rule(w, &w->kv->policy[to].begun, w->slot[i].policy);
    ask = (tr_kv_page_request_t){ to, TR_KV_ANY, len };
    fork = (tr_kv_fork_t){ from, to, len };
    w->device->pool(w->device->arg);
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_OPEN, &open, 1), " ");
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_STEP, &ask, 1), " ");
    w->device->fetch(w->device->arg);
    if (w->mirror.result[0] == TR_KV_GRANTED) {
        FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_FORK, &fork, 1), " ");
        w->device->fetch(w->device->arg);
        each = manager_ceil(len, w->mirror.place[0].tokens);
        FIXTURE_SAME(w,
                     each * w->kv->heads > FIXTURE_LIST
                         || (fixture_uncompressed(w, from, each, a)
                                 == fixture_uncompressed(w, to, each, b)
                             && w->device->same_pages(w->device->arg, a, b,
                                                      each * w->kv->heads)),
                     "slots %d and %d: %u pages a head", from, to, each);
        w->forks++;
    }
    rc = tr_kv_fork(w->kv, from, to, len);
    FIXTURE_SAME(w, (rc == TR_OK) == (w->mirror.result[0] == TR_KV_GRANTED),
                 "slots %d and %d: %d", from, to, rc);
    fixture_compare(w);
}

/* ---- tally -------------------------------------------------------------- */

static void
fixture_tally(fixture_t *w)
{
    uint32_t n = fixture_random(w->slots + 1), nothing = 0;

    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_TALLY, &nothing, n), " ");
    w->device->fetch(w->device->arg);
    for (uint32_t i = 0; i < n; i++) {
        const tr_kv_tally_t *t = &w->mirror.tally[i];
        const tr_kv_slot_t *s = &w->kv->m.slot[i];
        const tr_kv_seq_t *q = &w->kv->m.seq[i];
        uint32_t tiered[TR_KV_TIERS_MAX] = { 0 }, edge[TR_KV_EDGES] = { 0 };
        uint32_t pages[TR_KV_TIERS_MAX] = { 0 };
        uint32_t grows = s->rule.leaves > 1 ? s->rule.leaves : 1;

        FIXTURE_SAME(w, t->open == s->open, "slot %u", i);
        if (!s->open) {
            continue;
        }
        for (uint32_t h = 0; h < w->kv->heads; h++) {
            const uint32_t *lent = manager_borrowed(&w->kv->m, q, (int32_t) i,
                                                    h);

            for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
                uint32_t have = manager_counts(&w->kv->m, (int32_t) i, h)[l];

                tiered[l] += have;
                have -= lent != NULL && l < q->n_tiers ? lent[l] : 0;
                pages[l] += l < q->n_tiers ? manager_ceil(
                                have,
                                w->kv->plan.layout[q->tier_layout[l]].tokens)
                                           : 0;
            }
            for (uint32_t k = 0; k < TR_KV_EDGES; k++) {
                bool on = false;

                if (manager_slides(&w->kv->m, q, h)) {
                    continue;
                }
                for (uint32_t l = 0; l < q->n_tiers; l++) {
                    uint32_t
                        each = w->kv->plan.layout[q->tier_layout[l]].tokens,
                        have = manager_counts(&w->kv->m, (int32_t) i, h)[l];

                    on = on
                         || manager_ceil(have, each)
                                != manager_ceil(have + (k + 1) * grows, each);
                }
                edge[k] += on;
            }
        }
        FIXTURE_SAME(w,
                     t->tokens == s->tokens
                         && t->uncompressed_pages == s->uncompressed_pages
                         && t->near_pages == s->near_pages
                         && t->near_from == s->near_from && t->pages == s->pages
                         && t->frozen_pages == s->frozen_pages
                         && t->borrowed == s->borrowed
                         && t->uncompressed == s->uncompressed
                         && t->out == s->out && t->base == q->base
                         && t->window_from == q->window_from
                         && t->sinks == q->sinks
                         && memcmp(t->tiered, tiered, sizeof(tiered)) == 0
                         && memcmp(t->tier_pages, pages, sizeof(pages)) == 0
                         && memcmp(t->edge, edge, sizeof(edge)) == 0,
                     "slot %u: %u tokens, tally %u", i, s->tokens, t->tokens);
    }
}

#endif
