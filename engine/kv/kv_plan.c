/*
 * Computed or fetched (kv_plan.h).
 */
#include "kv_plan.h"

#include <math.h>
#include <stddef.h>

/* So much of what was seen before is left when something new is seen. */
#define STAYS 0.75
/* The same of turns, which differ: a line is laid through some twenty. */
#define TURNS_STAY 0.95
/* What was slow is tried again, in the end. */
#define DOUBT 0.9

void
tr_kv_speed_saw(tr_kv_speed_t *s, double units, double us)
{
    if (units > 0 && us > 0) {
        s->units = s->units * STAYS + units;
        s->us = s->us * STAYS + us;
    }
}

void
tr_kv_speed_doubt(tr_kv_speed_t *s)
{
    s->us *= DOUBT;
}

double
tr_kv_speed_each(const tr_kv_speed_t *s)
{
    return s->units > 0 ? s->us / s->units : 0;
}

void
tr_kv_turns_saw(tr_kv_turns_t *t, double tokens, double us)
{
    double *sum[] = { &t->n, &t->x, &t->y, &t->xx, &t->xy };
    double seen[] = { 1, tokens, us, tokens * tokens, tokens * us };

    for (int i = 0; i < 5 && tokens > 0 && us > 0; i++) {
        *sum[i] = *sum[i] * TURNS_STAY + seen[i];
    }
}

bool
tr_kv_turns_cost(const tr_kv_turns_t *t, tr_kv_split_t *p)
{
    double spread = t->n * t->xx - t->x * t->x, most;

    p->each_token = p->each_turn = p->turn_tokens = 0;
    if (t->n == 0) {
        return false;
    }
    most = t->y / t->x; /* all that turns cost, on their tokens */
    p->each_token = most;
    if (spread > 1e-6 * t->n * t->xx) { /* they were not all alike */
        p->each_token = (t->n * t->xy - t->x * t->y) / spread;
        p->each_token = fmin(fmax(p->each_token, 0), most);
    }
    p->each_turn = (t->y - p->each_token * t->x) / t->n;
    p->turn_tokens = t->xx / t->x; /* where most tokens are computed */
    return true;
}

static double
compute_us(const tr_kv_split_t *p, uint32_t front)
{
    double turns = p->turn_tokens > 0 ? ceil(front / p->turn_tokens) : 0;

    return front * p->each_token + turns * p->each_turn;
}

static double
fetch_us(const tr_kv_split_t *p, uint32_t front)
{
    double share = (double) (p->tokens - front) / p->tokens;

    return front == p->tokens
               ? 0
               : p->fetch_first + share * p->bytes * p->each_byte;
}

static double
plan_us(const tr_kv_split_t *p, uint32_t front)
{
    double computed = compute_us(p, front), fetched = fetch_us(p, front);

    return computed > fetched ? computed : fetched;
}

/* The last front that is computed no later than the rest is fetched: the time to
 * compute grows with it, that to fetch falls. */
static uint32_t
meeting(const tr_kv_split_t *p)
{
    uint32_t low = 0, high = (p->tokens - 1) / p->granule;

    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;

        if (compute_us(p, middle * p->granule)
            <= fetch_us(p, middle * p->granule)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low * p->granule;
}

uint32_t
tr_kv_split(const tr_kv_split_t *p, double *us)
{
    uint32_t front = 0, next;

    if (p->tokens != 0 && p->granule != 0) {
        front = meeting(p);
        next = front + p->granule;
        if (next < p->tokens && plan_us(p, next) < plan_us(p, front)) {
            front = next;
        }
    }
    if (p->tokens != 0 && plan_us(p, p->tokens) < plan_us(p, front)) {
        front = p->tokens;
    }
    if (us != NULL) {
        *us = p->tokens != 0 ? plan_us(p, front) : 0;
    }
    return front;
}
