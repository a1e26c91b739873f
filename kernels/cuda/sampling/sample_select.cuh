/*
 * sample_select.cuh: the best k tokens, or the fewest that together reach a
 * share p, without sorting.
 *
 * One histogram over (max - logit) / temperature, in steps of 1/64, says in
 * which bin the last token is that is kept.  The tokens up to that bin are then
 * listed, when they are few, else those of the bin, and ranked one by one.  A
 * bin that is too full (equal logits, a vocabulary with nothing in it) is
 * divided further, by digits of the order's 64 bits.
 */
#ifndef TR_CUDA_SAMPLE_SELECT_CUH
#define TR_CUDA_SAMPLE_SELECT_CUH

#include "sample.cuh"

#define STEPS 64.0f /* bins of one e-th */
#define DIGIT 11u   /* bits by which a bin is divided */

/* The tokens that a draw, or a list of alternatives, is about. */
typedef struct {
    const float *logits;
    uint32_t vocab;
    bool wide;
    float max, temperature;
    uint64_t least;       /* order of the last that is left; 0: all are */
    uint64_t least_share; /* min-p */
} field_t;

/* Which tokens are looked at: those of one bin, whose orders begin with some
 * digits. */
typedef struct {
    uint32_t levels; /* 0: all */
    uint32_t bin;
    uint64_t prefix; /* of levels - 1 digits */
} path_t;

/* What select found out. */
typedef struct {
    bool found;     /* false: there are not that many, all are kept */
    bool whole;     /* the list has all that are kept */
    uint64_t total; /* share of all that were left before */
} selection_t;

TR_DEVICE uint64_t
share_of(const field_t *f, float logit)
{
    float w = expf(div_rn(add_rn(logit, -f->max), f->temperature));

    return (uint64_t) (w * ONE);
}

TR_DEVICE uint32_t
bin_of(const field_t *f, float logit)
{
    float d = mul_rn(div_rn(add_rn(f->max, -logit), f->temperature), STEPS);

    return d < (float) BINS ? (uint32_t) d : BINS;
}

/* The bits of an order below the digits of a path. */
TR_DEVICE uint32_t
path_shift(uint32_t levels)
{
    return 64 - DIGIT * (levels - 1);
}

/* Does a token come before what the path says (-1), is it in it, or behind? */
TR_DEVICE int
path_side(const field_t *f, const path_t *p, float logit, uint64_t order)
{
    uint32_t bin;
    uint64_t prefix;

    if (p->levels == 0) {
        return 0;
    }
    bin = bin_of(f, logit);
    if (bin != p->bin || p->levels == 1) {
        return bin < p->bin ? -1 : bin > p->bin;
    }
    prefix = order >> path_shift(p->levels);
    return prefix > p->prefix ? -1 : prefix < p->prefix;
}

/* The bin among those of a path, best first. */
TR_DEVICE uint32_t
path_digit(const field_t *f, const path_t *p, float logit, uint64_t order)
{
    if (p->levels == 0) {
        return bin_of(f, logit);
    }
    return BINS - 1
           - (uint32_t) (order >> path_shift(p->levels + 1) & (BINS - 1));
}

TR_DEVICE void
path_enter(path_t *p, uint32_t bin)
{
    if (p->levels == 0) {
        p->bin = bin;
    } else {
        p->prefix = p->prefix << DIGIT | (BINS - 1 - bin);
    }
    p->levels++;
}

/* Counts and shares of the bins of a path.  What is far from the best has the
 * last bin of the first histogram, and no share: most of a vocabulary, so it is
 * counted apart. */
TR_DEVICE void
fill_bins(block_t b, sample_smem_t *smem, const field_t *f, const path_t *path)
{
    uint64_t rest = 0;
    uint64_t all = 0;

    for (uint32_t i = b.lane; i < BINS + 1; i += b.lanes) {
        smem->count[i] = 0;
        smem->share[i] = 0;
    }
    lanes_sync(b);
    each_logit(b, f->logits, 0, f->vocab, f->wide, [&](float x, uint32_t id) {
        uint64_t order = order_of(x, id);
        uint32_t bin;

        if (order < f->least || path_side(f, path, x, order) != 0) {
            return;
        }
        bin = path_digit(f, path, x, order);
        if (bin == BINS) {
            rest++;
            return;
        }
        lane_add(&smem->count[bin], 1);
        lane_add_long(&smem->share[bin], share_of(f, x));
    });
    block_scan(b, rest, smem->meet, &all); /* and all have come */
    if (b.lane == 0) {
        smem->count[BINS] += (uint32_t) all;
    }
    lanes_sync(b);
}

/* The bin in which the `wanted`-th is, counted by tokens or by shares, with
 * what comes before it; the number of bins where there is none.  Shared memory says
 * it to all lanes. */
TR_DEVICE void
find_bin(block_t b, sample_smem_t *smem, uint32_t bins, bool by_share,
         uint64_t wanted)
{
    uint32_t per = (bins + b.lanes - 1) / b.lanes, from = b.lane * per;
    uint32_t end = from + per < bins ? from + per : bins;
    uint64_t count = 0, share = 0, total, before;

    for (uint32_t i = from; i < end; i++) {
        count += smem->count[i];
        share += smem->share[i];
    }
    if (b.lane == 0) {
        smem->bin = bins;
    }
    count = block_scan(b, count, smem->meet, &total);
    share = block_scan(b, share, smem->meet, &total);
    for (uint32_t i = from; i < end; i++) {
        before = by_share ? share : count;
        if (before < wanted
            && wanted - before
                   <= (by_share ? smem->share[i] : smem->count[i])) {
            smem->bin = i;
            smem->count_before = count;
            smem->share_before = share;
        }
        count += smem->count[i];
        share += smem->share[i];
    }
    lanes_sync(b);
}

/* Lists what is left in the path, or with `whole` up to it. */
TR_DEVICE void
list_tokens(block_t b, sample_smem_t *smem, const field_t *f,
            const path_t *path, bool whole)
{
    if (b.lane == 0) {
        smem->listed = 0;
    }
    lanes_sync(b);
    each_logit(b, f->logits, 0, f->vocab, f->wide, [&](float x, uint32_t id) {
        uint64_t order = order_of(x, id);
        int side;

        if (order < f->least) {
            return;
        }
        side = path_side(f, path, x, order);
        if (side == 0 || (whole && side < 0)) {
            uint32_t i = lane_add(&smem->listed, 1);

            smem->order[i] = order;
            smem->weight[i] = share_of(f, x);
        }
    });
    lanes_sync(b);
}

/* The order of the last token of the list that is kept: fewer than `wanted`,
 * tokens or shares, come before it in list and `base`. */
TR_DEVICE uint64_t
last_kept(block_t b, sample_smem_t *smem, uint64_t least, bool by_share,
          uint64_t base, uint64_t wanted)
{
    uint64_t last = 0; /* complement: the smallest is looked for */

    for (uint32_t i = b.lane; i < smem->listed; i += b.lanes) {
        uint64_t order = smem->order[i], before = base;

        if (order < least) {
            continue;
        }
        for (uint32_t j = 0; j < smem->listed; j++) {
            if (smem->order[j] > order) {
                before += by_share ? smem->weight[j] : 1;
            }
        }
        if (before < wanted && ~order > last) {
            last = ~order;
        }
    }
    return ~block_max(b, last, smem->meet);
}

/* Keeps, of what is left of the field, the best `wanted` tokens; by_share: the
 * fewest that reach the share p.  far: those without share count, too. */
static __device__ __noinline__ selection_t
select_tokens(block_t b, sample_smem_t *smem, field_t *f, bool by_share,
              uint32_t k, float p, bool far)
{
    path_t path = {};
    uint64_t wanted = k, count = 0, share = 0, before;
    selection_t s = {};
    uint32_t inside = 0;

    do {
        uint64_t sum = 0;

        fill_bins(b, smem, f, &path);
        if (path.levels == 0) {
            for (uint32_t i = b.lane; i < BINS; i += b.lanes) {
                sum += smem->share[i];
            }
            block_scan(b, sum, smem->meet, &s.total);
            if (by_share) {
                wanted = (uint64_t) ceil((double) p * (double) s.total);
            }
        }
        before = by_share ? share : count;
        find_bin(b, smem, BINS + 1, by_share, wanted - before);
        if (smem->bin > (far ? BINS : BINS - 1)) {
            return s;
        }
        count += smem->count_before;
        share += smem->share_before;
        inside = smem->count[smem->bin];
        path_enter(&path, smem->bin);
        lanes_sync(b);
    } while (inside > FEW && path.levels < 6);
    s.found = true;
    s.whole = count + inside <= LIST;
    list_tokens(b, smem, f, &path, s.whole);
    before = s.whole ? 0 : by_share ? share : count;
    f->least = last_kept(b, smem, f->least, by_share, before, wanted);
    return s;
}

#endif
