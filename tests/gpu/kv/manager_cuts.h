/*
 * manager_cuts.h: the beginning of a compressed slot, copied into a new one by
 * both managers of manager_fixture.h, or lent: which tokens it has, at which level,
 * and with which scores (kernels/kv_manager/manager_cut.h).
 */
#ifndef TR_TESTS_GPU_MANAGER_CUTS_H
#define TR_TESTS_GPU_MANAGER_CUTS_H

#include "manager_pools.h"

/* A slot that is compressed to its end, of a policy that can be cut; -1: none. */
static int32_t
fixture_whole(const fixture_t *w)
{
    uint32_t first = fixture_random(w->slots);

    /* nothing is kept of those that have heads that slide */
    for (uint32_t k = 0; k < w->slots && w->kv->near == 0; k++) {
        uint32_t i = (first + k) % w->slots;
        const tr_kv_slot_t *s = &w->kv->m.slot[i];

        if (w->slot[i].open && !w->slot[i].out && !w->slot[i].prompt
            && tr_kv_policy_cuts(w->policy[w->slot[i].policy])
            && s->uncompressed_pages == 0 && s->tokens != 0
            && w->kv->m.seq[i].base == s->tokens) {
            return (int32_t) i;
        }
    }
    return -1;
}

/* The scores of a slot that has c of b tokens: what the CPU's pool says that they
 * must be, and then what a page says that the device has.  It may be the same
 * pool. */
typedef struct {
    fixture_t *w;
    int32_t slot, entry; /* of the page that is here */
    uint32_t head, c, b;
    uint8_t *page; /* NULL: they are not looked at yet */
    float *want;
    size_t n;
} fixture_scores_t;

/* The CPU's becomes what it must be; that of a frozen one stays. */
static void
fixture_score_token(fixture_scores_t *s, uint32_t layout, uint32_t entry,
                    uint32_t at, uint32_t position, bool frozen)
{
    const tr_kv_view_t *v = &s->w->kv->view;
    const int32_t *row = manager_row(&s->w->kv->m, s->slot, s->head);
    const tr_kv_layout_t *l = &v->layout[layout];
    fixture_place_t p = fixture_place(v, row, layout, entry, at);
    float is, want;

    position = fixture_position(p, position);
    if (l->score == 0) {
        return;
    }
    if (s->page == NULL) {
        want = fixture_score(p);
        if (s->c < s->b && !frozen) {
            want = position + 1 < s->c ? want * (float) (s->c - 1 - position)
                                             / (float) (s->b - 1 - position)
                                       : 0;
        }
        s->want[s->n++] = want;
        return;
    }
    want = s->want[s->n++];
    if (s->entry != (int32_t) entry) {
        s->entry = (int32_t) entry;
        s->w->device->page(s->w->device->arg, row[entry], s->page);
    }
    memcpy(&is, s->page + l->score + 4 * at, 4);
    /* or nobody has written it yet */
    FIXTURE_SAME(s->w, is == want || (isnan(is) && isnan(want)),
                 "slot %d head %u position %u: %g of %u, device %g of %u",
                 s->slot, s->head, position, want, s->c, is, s->b);
    fixture_put((fixture_place_t){ .score = p.score }, want, 0);
}

/* Of all tokens. */
static void
fixture_scores(fixture_scores_t *s)
{
    fixture_t *w = s->w;
    const tr_kv_seq_t *q = &w->kv->m.seq[s->slot];
    uint32_t tokens;

    s->n = 0;
    for (s->head = 0; s->head < w->kv->heads && !w->failed; s->head++) {
        const uint32_t *frozen = manager_frozen(&w->kv->m, q, s->slot, s->head);

        s->entry = -1;
        for (uint32_t l = 0; l < q->n_tiers; l++) {
            tokens = w->kv->plan.layout[q->tier_layout[l]].tokens;
            for (uint32_t i = 0;
                 i < manager_counts(&w->kv->m, s->slot, s->head)[l]; i++) {
                fixture_score_token(s, q->tier_layout[l],
                                    tr_kv_tier_entry(&w->kv->view, l,
                                                     i / tokens),
                                    i % tokens, q->sinks + i,
                                    frozen != NULL && i < frozen[l]);
            }
        }
        tokens = w->kv->plan.layout[q->window_layout].tokens;
        for (uint32_t i = 0; i < tr_kv_windowed(q); i++) {
            uint32_t at = tr_kv_window_entry(q, tr_kv_windowed_position(q, i));

            fixture_score_token(s, q->window_layout,
                                w->kv->view.at_window + at / tokens,
                                at % tokens, tr_kv_windowed_position(q, i),
                                false);
        }
    }
}

/* Granted and moved on the CPU; now the tables, and scores. */
static void
fixture_install_cut(fixture_t *w, const tr_kv_cut_t *cut, uint32_t b)
{
    fixture_scores_t s = { .w = w, .slot = cut->to, .c = cut->len, .b = b };
    uint32_t nothing = 0;

    w->device->pool(w->device->arg);
    tr_kv_host_install_prompts(&w->kv->config.stream, &w->kv->m, 1);
    /* what is restored does not know whether its source was scored */
    w->kv->m.seq[cut->to].scored = w->mirror.job[0].to.scored;
    s.want = malloc((size_t) w->kv->heads * cut->len * sizeof(*s.want));
    if (!w->kv->m.seq[cut->to].scored) {
        s.b = s.c;
    }
    fixture_scores(&s);
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_INSTALL_CUT, &nothing, 1), " ");
    s.page = malloc(w->kv->plan.page_bytes);
    fixture_scores(&s);
    free(s.page);
    free(s.want);
    w->kv->totals.tokens += cut->len;
    w->slot[cut->to].goal = cut->len;
    w->cuts++;
    if (w->kv->m.slot[cut->to].borrowed != 0) {
        w->slot[cut->to].lender = cut->by == TR_KV_CUT_SHARES
                                      ? (uint32_t) cut->from + 1
                                      : w->slot[cut->from].lender;
        w->lent += w->kv->m.slot[cut->to].borrowed;
    }
}

/* What is in front of the cut on both sides. */
static void
fixture_check_cut(fixture_t *w, int32_t from)
{
    const tr_kv_job_t *mine = &w->kv->m.job[0], *theirs = &w->mirror.job[0];
    const tr_kv_seq_t *q = &w->kv->m.seq[from];

    FIXTURE_SAME(w,
                 mine->pages == theirs->pages
                     && w->kv->m.result[0] == w->mirror.result[0]
                     && mine->source == theirs->source
                     && memcmp(&mine->to, &theirs->to, sizeof(mine->to)) == 0,
                 "slot %d: %u pages, device %u", from, mine->pages,
                 theirs->pages);
    for (uint32_t h = 0; h < w->kv->heads && mine->source >= 0; h++) {
        uint32_t n = tr_kv_windowed(q);

        for (uint32_t l = 0; l < q->n_tiers; l++) {
            n += manager_counts(&w->kv->m, from, h)[l];
        }
        FIXTURE_SAME(w,
                     memcmp(w->mirror.dest + (size_t) h * w->mirror.dest_len,
                            w->kv->m.dest + (size_t) h * w->kv->m.dest_len, n)
                         == 0,
                     "slot %d head %u: dest", from, h);
        FIXTURE_SAME(w,
                     memcmp(w->mirror.stay + (size_t) h * TR_KV_TIERS_MAX,
                            w->kv->m.stay + (size_t) h * TR_KV_TIERS_MAX,
                            TR_KV_TIERS_MAX * 4)
                         == 0,
                     "slot %d head %u: what is lent", from, h);
    }
}

/* The device gets room for what the slot has that the CPU's got it by a cut: its
 * job is the same but for whose tokens move. */
static bool
fixture_restored(fixture_t *w, const tr_kv_cut_t *cut)
{
    static struct {
        tr_kv_restore_t restore;
        uint32_t count[300 * TR_KV_TIERS_MAX];
    } in;
    const tr_kv_job_t *j = &w->kv->m.job[0];

    if (w->kv->heads > 300) {
        return false;
    }
    in.restore = (tr_kv_restore_t){ cut->to, cut->len, j->to.window_from,
                                    j->to.sinks, in.count };
    for (uint32_t h = 0; h < w->kv->heads; h++) {
        memcpy(in.count + h * TR_KV_TIERS_MAX, w->kv->m.head[h].count,
               sizeof(w->kv->m.head[h].count));
    }
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_RESTORE, &in, 1), " ");
    w->device->fetch(w->device->arg);
    FIXTURE_SAME(w,
                 w->mirror.job[0].pages == j->pages
                     && w->mirror.job[0].source == -1
                     && w->mirror.compress[0].slot == -1
                     && w->mirror.result[0] == w->kv->m.result[0],
                 "slot %d: %u pages, device %u", cut->to, j->pages,
                 w->mirror.job[0].pages);
    return true;
}

/* A new slot gets the first tokens of another one. */
static void
fixture_cut(fixture_t *w)
{
    const tr_stream_t *s = &w->kv->config.stream;
    int32_t from = fixture_whole(w);
    tr_kv_open_t open = { 0 };
    tr_kv_cut_t cut;
    bool restored = true;
    uint32_t b;

    if (from < 0) {
        return;
    }
    b = w->kv->m.seq[from].base;
    cut = (tr_kv_cut_t){ from,
                         tr_kv_open(w->kv, w->policy[w->slot[from].policy]),
                         1 + fixture_random(b),
                         (tr_kv_by_t) fixture_random(3) };
    if (cut.to < 0) {
        return;
    }
    if (w->lends) {
        cut.len = b - fixture_random(b / 4 + 1);
    }
    if (cut.len < w->kv->m.seq[from].sinks) {
        cut.len = w->kv->m.seq[from].sinks;
    }
    w->slot[cut.to] = w->slot[from];
    w->slot[cut.to].lender = 0;
    open.slot = cut.to;
    open.seq = w->kv->m.seq[cut.to];
    open.rule = fixture_rule(w, &w->kv->policy[cut.to].begun,
                             w->slot[from].policy);
    w->device->pool(w->device->arg);
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_OPEN, &open, 1), " ");
    tr_kv_host_plan_cuts(s, &w->kv->m, &cut, 1);
    if (cut.by != TR_KV_CUT_COPIES || fixture_random(4) != 0
        || !fixture_restored(w, &cut)) {
        FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_CUT, &cut, 1), " ");
        w->device->fetch(w->device->arg);
        fixture_check_cut(w, from);
        restored = false;
    }
    if (w->kv->m.result[0] == TR_KV_GRANTED && !w->failed) {
        fixture_compress(s, &w->kv->view, &w->kv->m.compress[0], NULL);
        fixture_install_cut(w, &cut, restored ? cut.len : b);
    } else {
        w->slot[cut.to].prompt = true; /* it has nothing yet */
        w->slot[cut.to].goal = 1;
    }
    fixture_compare(w);
}

#endif
