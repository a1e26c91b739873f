/*
 * Who borrows whose pages, of compressed prefixes (kv_kept.c): a slot that begins
 * as a kept one does has that one's whole pages in its tables, and copies only what
 * stands on pages that are not in front of the cut (kernels/kv_manager/manager_cut.h).
 *
 * A page has one owner.  Who owns pages that others have, too, is their lender: a
 * kept slot, which nobody writes to, and which stays as long as anybody borrows of it.
 * So all the pages that it lends have one count of references, the lender's
 * `borrowers`.  A borrower is kept at its end with what it borrows, and lends then
 * itself: lenders are chains, of which the last has no lender.
 *
 *   8K of system prompt + a first user's words      kept, lender of two
 *     <- the same 8K + a second user's              running
 *     <- the same 8K + a third's, first turn        kept, lender of one
 *          <- all that + the third's second turn    running
 *
 * What goes first is what nobody borrows of; a chain that nobody pins goes from its
 * end, so all of its pages can be had.  Of a chain that somebody pins: a lender that
 * one slot alone borrows of can be absorbed, as it is when that slot ends as its
 * continuation.  What is lent becomes the borrower's then, and the rest comes back.
 * So a sequence that is alone in the pool keeps no more than it would hold alone.
 *
 * Who goes out to host memory takes copies along, and borrows nothing any more.
 */
#include <assert.h>
#include <string.h>

#include "kv_internal.h"

static tr_kv_kept_t *
kept(const tr_kv_cache_t *kv, int32_t slot)
{
    return &kv->reuse->kept[slot];
}

static int32_t
lender_of(const tr_kv_cache_t *kv, int32_t slot)
{
    return (int32_t) kept(kv, slot)->lender - 1;
}

/* Does it have slots that it may borrow of? */
static bool
knows(const tr_kv_cache_t *kv)
{
    return kv->reuse != NULL && kv->reuse->kept != NULL;
}

/* ---- begin -------------------------------------------------------------- */

/* A lender stays with all that it has, and takes a slot: not for less than half of
 * it, and not so many that others would find no slot.  What it lends itself is another
 * matter: that stays already. */
static bool
lends(const tr_kv_cache_t *kv, int32_t slot, uint32_t c)
{
    const tr_kv_reuse_t *r = kv->reuse;
    const tr_kv_kept_t *k = kept(kv, slot);

    return k->kept && c >= k->n / 2
           && (k->borrowers != 0 || r->n_lenders < kv->config.slots / 4);
}

/* Tokens of its smallest page. */
static uint32_t
page_tokens(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_seq_t *q = &kv->m.seq[slot];
    uint32_t least = UINT32_MAX;

    for (uint32_t l = 0; l < q->n_tiers; l++) {
        uint32_t tokens = kv->plan.layout[q->tier_layout[l]].tokens;

        least = tokens < least ? tokens : least;
    }
    return least;
}

/* Who has borrowed all that is wanted of it, but for less than a page, need not stay
 * for it: all users of one prompt have the same lender. */
tr_kv_cut_t
tr_kv_lend_cut(const tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t c)
{
    tr_kv_cut_t cut = { from, to, c, TR_KV_CUT_COPIES };
    uint32_t lent = kept(kv, from)->lent;
    bool borrows = lender_of(kv, from) >= 0 && c >= lent;

    if (lends(kv, from, c) && !(borrows && c - lent < page_tokens(kv, from))) {
        cut.by = TR_KV_CUT_SHARES;
    } else if (borrows) {
        cut.by = TR_KV_CUT_BORROWS;
    }
    return cut;
}

/* Pages of a slot's windows when it has n tokens. */
static uint64_t
window_pages(const tr_kv_cache_t *kv, const tr_kv_seq_t *q, uint32_t n)
{
    return q->window == 0
               ? 0
               : (uint64_t) kv->heads * manager_window_pages(&kv->m, q, n);
}

/* Pages of its tiers that are not whole, or not all in front of the cut: a head has
 * one of each tier, and, of several tiers, no more than tokens behind it; one tier is
 * in order. */
static uint64_t
odd_pages(const tr_kv_cache_t *kv, const tr_kv_cut_t *cut)
{
    uint32_t tiers = kv->m.seq[cut->from].n_tiers;
    uint32_t behind = kv->m.slot[cut->from].tokens - cut->len;

    if (tiers == 1) {
        behind = manager_ceil(behind, page_tokens(kv, cut->from));
    }
    return ((uint64_t) tiers + behind) * kv->heads;
}

uint64_t
tr_kv_lend_own(const tr_kv_cache_t *kv, const tr_kv_cut_t *cut)
{
    uint64_t most = kv->ops->copy_pages(kv, cut->from, cut->len), own = most;

    if (cut->by == TR_KV_CUT_BORROWS) { /* all that is borrowed is in front */
        own = kv->m.slot[cut->from].pages;
    } else if (cut->by == TR_KV_CUT_SHARES) {
        own = odd_pages(kv, cut)
              + window_pages(kv, &kv->m.seq[cut->from], cut->len);
    }
    return own < most ? own : most;
}

uint64_t
tr_kv_lend_least(const tr_kv_cache_t *kv, const tr_kv_cut_t *cut)
{
    const tr_kv_seq_t *q = &kv->m.seq[cut->from];
    bool known = kv->ops->told == NULL || kv->ops->told(kv, cut->from);
    uint64_t lent = known ? kv->m.slot[cut->from].borrowed : 0, odd;

    if (cut->by != TR_KV_CUT_SHARES) {
        return cut->by == TR_KV_CUT_BORROWS ? lent : 0;
    }
    lent += kept(kv, cut->from)->held;
    odd = odd_pages(kv, cut) + window_pages(kv, q, q->base);
    return lent > odd ? lent - odd : 0;
}

void
tr_kv_lend(tr_kv_cache_t *kv, const tr_kv_cut_t *cut)
{
    bool shares = cut->by == TR_KV_CUT_SHARES;
    tr_kv_kept_t *k = kept(kv, cut->to), *of;
    int32_t lender = shares ? cut->from : lender_of(kv, cut->from);

    assert(k->lender == 0);
    if (kv->m.slot[cut->to].borrowed == 0) {
        return;
    }
    of = kept(kv, lender);
    assert(of->kept);
    k->lender = (uint32_t) lender + 1;
    k->lent = shares ? cut->len : kept(kv, cut->from)->lent;
    kv->reuse->n_lenders += of->borrowers++ == 0;
    tr_kv_lend_pin(kv, lender);
}

/* ---- for whose sake ------------------------------------------------------ */

void
tr_kv_lend_pin(tr_kv_cache_t *kv, int32_t slot)
{
    kv->reuse->idle_known = false;
    for (; slot >= 0; slot = lender_of(kv, slot)) {
        kept(kv, slot)->pins++;
    }
}

void
tr_kv_lend_unpin(tr_kv_cache_t *kv, int32_t slot)
{
    kv->reuse->idle_known = false;
    for (; slot >= 0; slot = lender_of(kv, slot)) {
        assert(kept(kv, slot)->pins != 0);
        kept(kv, slot)->pins--;
    }
}

void
tr_kv_lend_keep(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_lend_unpin(kv, lender_of(kv, slot));
}

void
tr_kv_lend_end(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_kept_t *k;

    if (!knows(kv) || kept(kv, slot)->lender == 0) {
        return;
    }
    k = kept(kv, slot);
    if (!k->kept) {
        tr_kv_lend_unpin(kv, lender_of(kv, slot));
    }
    kv->reuse->idle_known = false;
    kv->reuse->n_lenders -= --kept(kv, lender_of(kv, slot))->borrowers == 0;
    k->lender = k->lent = 0;
}

/* ---- absorbing ----------------------------------------------------------- */

bool
tr_kv_lend_absorbs(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_kept_t *of;

    if (kept(kv, slot)->lender == 0) {
        return false;
    }
    of = kept(kv, lender_of(kv, slot));
    return of->borrowers == 1 && of->finds == 0
           && kv->ops->can_absorb(kv, slot);
}

void
tr_kv_lend_absorb(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_kept_t *k = kept(kv, slot);
    int32_t from = lender_of(kv, slot);
    tr_kv_kept_t of = *kept(kv, from);
    const tr_kv_absorb_t absorb = { from, slot };

    assert(tr_kv_lend_absorbs(kv, slot));
    tr_kv_kept_forget(kv, from);
    kv->reuse->n_lenders--;
    k->lender = of.lender; /* whose borrower it is in the other's place */
    kv->ops->absorb(kv, &absorb);
    k->lent = of.lender == 0 ? 0 : of.lent < k->lent ? of.lent : k->lent;
    tr_kv_kept_told(kv, slot);
    kv->reuse->idle_known = false;
}

/* borrows: only a lender that has borrowed something, too. */
static bool
absorb_one(tr_kv_cache_t *kv, bool borrows)
{
    for (uint32_t i = 0;
         knows(kv) && kv->reuse->n_lenders != 0 && i < kv->config.slots; i++) {
        int32_t lender = lender_of(kv, (int32_t) i);

        if (lender >= 0 && kept(kv, lender)->pins != 0
            && (!borrows || lender_of(kv, lender) >= 0)
            && tr_kv_lend_absorbs(kv, (int32_t) i)) {
            tr_kv_lend_absorb(kv, (int32_t) i);
            return true;
        }
    }
    return false;
}

bool
tr_kv_lend_absorb_one(tr_kv_cache_t *kv)
{
    return absorb_one(kv, false);
}

bool
tr_kv_lend_more(tr_kv_cache_t *kv)
{
    return absorb_one(kv, true);
}

/* ---- what there is -------------------------------------------------------- */

/* Of a lender that is pinned: what is not its borrower's, who may also have some that
 * it has borrowed itself; then more will come back than is said here
 * (tr_kv_lend_more). */
static uint64_t
can_be_absorbed(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_kept_t *k = kept(kv, slot);
    uint32_t lent;

    if (k->finds != 0 || k->borrowers != 1
        || !tr_kv_lend_absorbs(kv, (int32_t) k->borrower)) {
        return 0;
    }
    lent = kv->m.slot[k->borrower].borrowed;
    return k->held > lent ? k->held - lent : 0;
}

static uint64_t
count_idle(const tr_kv_cache_t *kv)
{
    uint64_t pages = 0;

    if (kv->reuse->n_kept == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < kv->config.slots; i++) {
        int32_t lender = lender_of(kv, (int32_t) i);

        if (lender >= 0) {
            kept(kv, lender)->borrower = i;
        }
    }
    for (uint32_t i = 0; i < kv->config.slots; i++) {
        const tr_kv_kept_t *k = kept(kv, (int32_t) i);

        if (k->kept) {
            pages += k->pins == 0 ? k->held : can_be_absorbed(kv, (int32_t) i);
        }
    }
    return pages;
}

void
tr_kv_lend_told(const tr_kv_cache_t *kv)
{
    if (kv->reuse != NULL) {
        kv->reuse->idle_known = false;
    }
}

uint64_t
tr_kv_lend_idle(const tr_kv_cache_t *kv)
{
    tr_kv_reuse_t *r = kv->reuse;

    if (!knows(kv)) {
        return 0;
    }
    if (!r->idle_known) {
        r->idle_pages = count_idle(kv);
        r->idle_known = true;
    }
    return r->idle_pages;
}

void
tr_kv_lend_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out)
{
    for (uint32_t i = 0;
         knows(kv) && kv->reuse->n_lenders != 0 && i < kv->config.slots; i++) {
        const tr_kv_kept_t *k = kept(kv, (int32_t) i);

        if (!k->kept) {
            out->tokens -= k->lent;
        } else if (k->pins != k->finds) {
            out->tokens += k->tokens - k->lent;
            out->cached_pages -= can_be_absorbed(kv, (int32_t) i);
            for (uint32_t l = 0; l < TR_KV_LAYOUTS_MAX; l++) {
                out->pages[l] += k->pages[l];
            }
        }
    }
}

bool
tr_kv_lend_sound(const tr_kv_cache_t *kv)
{
    uint32_t lenders = 0;

    for (uint32_t i = 0; knows(kv) && i < kv->config.slots; i++) {
        const tr_kv_kept_t *k = kept(kv, (int32_t) i);
        uint32_t pins = k->finds, borrowers = 0;

        for (uint32_t j = 0; j < kv->config.slots; j++) {
            const tr_kv_kept_t *o = kept(kv, (int32_t) j);

            if (o->lender == i + 1) {
                pins += o->kept ? o->pins : 1;
                borrowers++;
            }
        }
        if (k->pins != pins || k->borrowers != borrowers
            || (borrowers != 0 && !k->kept)
            || (k->lender == 0 && kv->m.slot[i].open
                && kv->m.slot[i].borrowed != 0)) {
            return false;
        }
        lenders += borrowers != 0;
    }
    return !knows(kv)
           || (lenders == kv->reuse->n_lenders
               && (!kv->reuse->idle_known
                   || count_idle(kv) == kv->reuse->idle_pages));
}
