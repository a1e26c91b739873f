/*
 * A random cache and its queries; see generic_fixture.h.
 */
#include "generic_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void
put_pair(uint8_t *page, uint32_t at, double magnitude, uint32_t bits)
{
    double scale = magnitude * (0.5 + random_unit()) / (1u << bits);
    uint16_t pair[2];

    pair[0] = half_from(scale);
    pair[1] = half_from(-scale * (1u << bits) * (0.3 + 0.4 * random_unit()));
    memcpy(page + at, pair, 4);
}

/* Token t of a page; metadata of groups is written by each of their
 * dimensions, of channels by the first token. */
static void
put_token(const tr_kv_layout_t *l, uint8_t *page, uint32_t t, double key,
          double value)
{
    uint32_t kb = l->level.key_bits, vb = l->level.value_bits;

    for (uint32_t d = 0; d < l->head_dim; d++) {
        uint16_t h;

        if (kb == 16) {
            h = half_from(random_normal() * key);
            memcpy(page + tr_kv_key_row(l, t) + 2 * d, &h, 2);
        } else {
            tr_kv_code_set(page, tr_kv_key_code(l, t, d), kb,
                           random_below(1u << kb));
            if (!l->level.by_channel || t % TR_KV_CHANNEL_TOKENS == 0) {
                put_pair(page, tr_kv_key_meta(l, t, d), key, kb);
            }
        }
        if (vb == 16) {
            h = half_from(random_normal() * value);
            memcpy(page + tr_kv_value_row(l, t) + 2 * d, &h, 2);
        } else {
            tr_kv_code_set(page, tr_kv_value_code(l, t, d), vb,
                           random_below(1u << vb));
            put_pair(page, tr_kv_value_meta(l, t, d), value, vb);
        }
    }
}

static void
put_marks(const tr_kv_layout_t *l, uint8_t *page, uint32_t t, uint32_t position)
{
    float score[2] = { (float) random_unit() * 4, (float) random_unit() };

    if (l->level.scored) {
        memcpy(page + l->score + t * 4, &score[0], 4);
    }
    if (l->position) {
        tr_kv_position_put(l, page, t, position);
    }
    if (l->recent) {
        memcpy(page + l->recent + t * 4, &score[1], 4);
    }
}

/* Smallest and largest key of the n tokens of an uncompressed page. */
static void
put_minmax(const tr_kv_layout_t *l, uint8_t *page, uint32_t n)
{
    for (uint32_t d = 0; d < l->head_dim && l->minmax; d++) {
        uint16_t lo = 0, hi = 0;

        for (uint32_t t = 0; t < n; t++) {
            uint16_t h;

            memcpy(&h, page + (t * l->head_dim + d) * 2, 2);
            if (t == 0 || tr_float_from_half(h) < tr_float_from_half(lo)) {
                lo = h;
            }
            if (t == 0 || tr_float_from_half(h) > tr_float_from_half(hi)) {
                hi = h;
            }
        }
        memcpy(page + l->minmax + 2 * d, &lo, 2);
        memcpy(page + l->minmax + 2 * (l->head_dim + d), &hi, 2);
    }
}

static void
fill(case_t *c, uint32_t s, int32_t *entry, uint32_t layout, uint32_t t,
     uint32_t position)
{
    const tr_kv_layout_t *l = &c->fixture.plan.layout[layout];
    uint8_t *page;

    fixture_page(&c->fixture, entry, layout);
    page = tr_kv_page_at(&c->fixture.host, *entry);
    put_token(l, page, t, c->key[s], c->value[s]);
    put_marks(l, page, t, position);
}

/* Where a sequence's tokens are: tiered positions are [sinks, window_from). */
static void
choose_sequence(case_t *c, uint32_t s)
{
    fixture_t *b = &c->fixture;
    tr_kv_seq_t *q = &b->seq[s];
    uint32_t levels = b->plan.n - 1, kind = levels ? random_below(4) : 0;
    uint32_t tiered = b->max_len / 4, uncompressed = 0, last;

    *q = (tr_kv_seq_t){ .by_sum = random_below(2) == 0 };
    if (kind > 0) {
        q->n_tiers = (uint8_t) (1 + random_below(levels < 4 ? levels : 4));
        for (uint32_t l = 0; l < q->n_tiers; l++) {
            q->tier_layout[l] = (uint8_t) (1 + random_below(levels));
        }
        q->base = q->window_from = 1 + random_below(tiered);
        q->window_layout = (uint8_t) (1 + random_below(levels));
        if (random_below(3) > 0
            && !b->plan.layout[q->window_layout].level.by_channel) {
            q->window = 1 + random_below(60);
            q->base += random_below(q->window + 1);
            q->sinks = random_below(2) ? random_below(40) : 0;
            q->sinks = q->sinks < q->window_from ? q->sinks : q->window_from;
        }
    }
    if (kind == 0 || kind == 3) {
        uncompressed = 1 + random_below(b->max_len / 3);
    }
    last = q->base + uncompressed - 1;
    c->last[s] = last;
    q->scored = b->plan.layout[0].level.scored || uncompressed == 0;
    q->scored = q->scored && random_below(4) > 0;
    q->settled = random_below(2) && q->n_tiers != 0;
    q->frozen = random_below(2) && q->n_tiers != 0;
    q->recent_from = random_below(last + 2);
    if (kind == 0 && random_below(2) && b->plan.layout[0].minmax) {
        q->scored = false;
        q->read_layer = random_below(2);
        q->read_pages = 1 + random_below(5);
    }
    if (c->slides) {
        q->scored = false;
        q->read_pages = 0;
    }
    b->uncompressed[s] = uncompressed;
}

static void
fill_head(case_t *c, uint32_t s, uint32_t h)
{
    fixture_t *b = &c->fixture;
    const tr_kv_seq_t *q = &b->seq[s];
    int32_t *row = fixture_row(b, s, h);
    uint32_t *count = b->count + fixture_head(b, s, h) * TR_KV_TIERS_MAX;
    uint32_t position = q->sinks, per, others = q->window_from - q->sinks;

    others -= others > 0 && q->window == 0; /* the last is the query's own */
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        uint32_t n = random_below(others / q->n_tiers + 1);

        per = b->plan.layout[q->tier_layout[l]].tokens;
        if (q->window == 0 && b->uncompressed[s] == 0 && l == 0) {
            n++; /* the query's own token */
        }
        if (b->plan.layout[q->tier_layout[l]].level.by_channel) {
            n -= n % TR_KV_CHANNEL_TOKENS;
        }
        count[l] = n;
        b->frozen[fixture_head(b, s, h) * TR_KV_TIERS_MAX + l] = random_below(
                                                                     n / per
                                                                     + 1)
                                                                 * per;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = l == 0 && i == n / 2 && q->window == 0 ? q->base - 1
                                                                 : position++;

            fill(c, s, row + tr_kv_tier_entry(&b->host, l, i / per),
                 q->tier_layout[l], i % per, at);
        }
    }
    for (uint32_t k = 0; k < tr_kv_windowed(q); k++) {
        uint32_t p = tr_kv_windowed_position(q, k);
        uint32_t i = tr_kv_window_entry(q, p);

        per = b->plan.layout[q->window_layout].tokens;
        fill(c, s, row + b->host.at_window + i / per, q->window_layout, i % per,
             p);
    }
    per = b->plan.layout[0].tokens;
    for (uint32_t i = 0; i < b->uncompressed[s]; i++) {
        uint32_t end = (i / per + 1) * per;

        fill(c, s, row + i / per, 0, i % per, 0);
        end = end < b->uncompressed[s] ? end : b->uncompressed[s];
        if (i + 1 == end) {
            put_minmax(&b->plan.layout[0],
                       tr_kv_page_at(&b->host, row[i / per]), i % per + 1);
        }
    }
}

/* The window's pages below min(base, sinks + window) are there, used or not. */
static void
ring_pages(case_t *c, uint32_t s, uint32_t h)
{
    fixture_t *b = &c->fixture;
    const tr_kv_seq_t *q = &b->seq[s];
    uint32_t most = q->sinks + q->window;
    uint32_t slots = q->window == 0 ? 0 : q->base < most ? q->base : most;
    uint32_t per = b->plan.layout[q->window_layout].tokens;

    for (uint32_t i = 0; i < (slots + per - 1) / per; i++) {
        fixture_page(b, fixture_row(b, s, h) + b->host.at_window + i,
                     q->window_layout);
    }
}

/* ---- queries ------------------------------------------------------------ */

/* Rounds to the type that is sent. */
static void
send_as(case_t *c)
{
    size_t n = c->max_rows * c->ldq;

    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        uint16_t h;

        memcpy(&u, &c->q[i], 4);
        if (c->q_type == TR_F32) {
            memcpy((uint8_t *) c->typed + 4 * i, &u, 4);
            continue;
        }
        h = c->q_type == TR_BF16 ? (uint16_t) (u >> 16)
                                 : half_from((double) c->q[i]);
        memcpy((uint8_t *) c->typed + 2 * i, &h, 2);
        c->q[i] = c->q_type == TR_BF16 ? tr_float_from_bits((uint32_t) h << 16)
                                       : tr_float_from_half(h);
    }
}

static void
make_rows(case_t *c)
{
    uint32_t rows = 0, dim = c->fixture.host.head_dim, n = 0;

    for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
        uint32_t many = c->fixture.uncompressed[s], some;

        many = many < c->max_rows / FIXTURE_SLOTS ? many
                                                  : c->max_rows / FIXTURE_SLOTS;
        some = many > 0 && random_below(3) ? 1 + random_below(many) : 1;
        c->slot[n] = (int32_t) s;
        c->seq_row[n++] = rows;
        for (uint32_t i = 0; i < some; i++, rows++) {
            c->pos[rows] = c->last[s] + 1 + i - some;
            for (uint32_t e = 0; e < c->heads * dim; e++) {
                c->q[rows * c->ldq + e] = (float) (random_normal() * 3
                                                   / c->key[s]);
            }
        }
    }
    c->seq_row[n] = rows;
    c->rows = (tr_rows_t){ rows, n, c->pos, c->slot, c->seq_row };
    send_as(c);
}

/* What layers see, and sinks of some of them; of a third of the cases each. */
static void
choose_reach(case_t *c)
{
    fixture_t *b = &c->fixture;
    uint32_t layers = b->host.layers;
    size_t numbers = (size_t) layers * c->heads;
    float *sinks = malloc(numbers * sizeof(*sinks));
    const float **there = malloc(layers * sizeof(*there));

    c->reach = malloc(layers * sizeof(*c->reach));
    c->sinks = malloc(layers * sizeof(*c->sinks));
    c->there[0] = fixture_room(layers * sizeof(*c->reach));
    c->there[1] = fixture_room(layers * sizeof(*there));
    c->there[2] = fixture_room(numbers * sizeof(*sinks));
    for (size_t i = 0; i < numbers; i++) {
        sinks[i] = (float) (random_normal() * 3);
    }
    for (uint32_t l = 0; l < layers; l++) {
        bool has = random_below(3) > 0;

        c->reach[l] = random_below(4) ? 1 + random_below(60) : 0;
        c->sinks[l] = has ? sinks + (size_t) l * c->heads : NULL;
        there[l] = has ? (float *) c->there[2] + (size_t) l * c->heads : NULL;
    }
    fixture_put(c->there[0], c->reach, layers * sizeof(*c->reach));
    fixture_put(c->there[1], there, layers * sizeof(*there));
    fixture_put(c->there[2], sinks, numbers * sizeof(*sinks));
    if (c->slides) {
        b->host.reach = c->reach;
        b->other.reach = c->there[0];
    }
    if (random_below(3) == 0) {
        b->host.sinks = c->sinks;
        b->other.sinks = c->there[1];
    }
    c->sink_numbers = sinks;
    free(there);
}

void
case_open(case_t *c, const fixture_side_t *side, uint32_t max_rows)
{
    fixture_t *b = &c->fixture;
    size_t heads;
    uint32_t group;

    memset(c, 0, sizeof(*c));
    c->max_rows = max_rows;
    fixture_open(b, side);
    heads = (size_t) FIXTURE_SLOTS * b->host.layers * b->host.kv_heads;
    group = random_below(3) ? 1 + random_below(8) : 1 + random_below(32);
    c->heads = group * b->host.kv_heads;
    c->layer = random_below(b->host.layers);
    c->ldq = c->ldo = (size_t) c->heads * b->host.head_dim;
    c->ldq += random_below(2) * 8;
    c->ldo += random_below(2) * 8;
    c->scale = (float) (1 / sqrt(b->host.head_dim));
    c->slides = b->plan.n == 1 && random_below(3) > 0;
    choose_reach(c);
    c->q = calloc(max_rows * c->ldq, 4);
    c->typed = calloc(max_rows * c->ldq, 4);
    for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
        c->key[s] = pow(10, -4 + 7 * random_unit());
        c->value[s] = pow(10, -4 + 7 * random_unit());
        choose_sequence(c, s);
        for (uint32_t h = 0; h < b->host.layers * b->host.kv_heads; h++) {
            fill_head(c, s, h);
            ring_pages(c, s, h);
        }
    }
    c->q_type = (tr_dtype_t) random_below(3);
    if (c->q_type == TR_F16) { /* which would not hold queries of all sizes */
        c->q_type = TR_F32;
    }
    c->out_type = random_below(3) ? TR_F32 : (tr_dtype_t) random_below(3);
    make_rows(c);
    c->before = malloc(b->pages * b->host.page_bytes);
    memcpy(c->before, b->host.pool, b->pages * b->host.page_bytes);
    c->candidate = malloc(heads * TR_KV_TIERS_MAX * sizeof(*c->candidate));
    b->host.candidate = malloc(heads * TR_KV_TIERS_MAX * sizeof(*c->candidate));
    b->other.candidate = fixture_room(heads * TR_KV_TIERS_MAX
                                      * sizeof(*c->candidate));
    fixture_sync(b);
}

void
case_close(case_t *c)
{
    free(c->fixture.host.candidate);
    fixture_room_free(c->fixture.other.candidate);
    free(c->q);
    free(c->typed);
    free(c->before);
    free(c->candidate);
    free(c->reach);
    free(c->sinks);
    free(c->sink_numbers);
    for (size_t i = 0; i < 3; i++) {
        fixture_room_free(c->there[i]);
    }
    fixture_close(&c->fixture);
}

/* n sums at `at`. */
static bool
check_sums(const case_t *c, size_t at, uint32_t n, uint8_t *got, double most,
           double *worst)
{
    for (uint32_t i = 0; i < n; i++, at += 4) {
        float before, want, is;
        double error;

        memcpy(&before, c->before + at, 4);
        memcpy(&want, c->fixture.host.pool + at, 4);
        memcpy(&is, got + at, 4);
        if (memcmp(&want, &is, 4) == 0) {
            continue;
        }
        error = fabs((double) is - (double) want)
                / ((double) want - (double) before + 0.02 * fabs((double) want)
                   + 1e-6);
        *worst = fmax(*worst, error);
        if (!(error <= most)) {
            printf("a score is %g, expected %g, was %g\n", (double) is,
                   (double) want, (double) before);
            return false;
        }
        memcpy(got + at, &want, 4);
    }
    return true;
}

bool
case_check_pool(const case_t *c, uint8_t *got, double most, double *worst)
{
    const fixture_t *b = &c->fixture;
    size_t bytes = b->host.page_bytes;

    for (uint32_t i = 0; i < b->pages; i++) {
        const tr_kv_layout_t *l = &b->plan.layout[b->layout_of[i]];

        if ((l->score
             && !check_sums(c, i * bytes + l->score, l->tokens, got, most,
                            worst))
            || (l->recent
                && !check_sums(c, i * bytes + l->recent, l->tokens, got, most,
                               worst))) {
            printf("in page %u, of layout %u\n", i, b->layout_of[i]);
            return false;
        }
    }
    if (memcmp(got, b->host.pool, b->pages * bytes) != 0) {
        printf("bytes of the pool changed that are no score\n");
        return false;
    }
    return true;
}
