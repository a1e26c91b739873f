/*
 * kv_plan.h: is a prefix sooner computed, or fetched from where it is kept?  By
 * speeds that were measured: computing under the load that there is, and each
 * place with all that it takes, waiting included.
 *
 * In general the front of a prefix is computed, which needs nothing behind it,
 * while its back is fetched; both take s tokens from the front at which they end at
 * the same time (after KVPR).  What is compressed is fetched whole, or not at all,
 * and so is today what stands at 16 bits: whoever keeps it reads it from its front.
 *
 * Plain arithmetic, without memory or state but a tr_kv_speed_t's.
 */
#ifndef TR_KV_PLAN_H
#define TR_KV_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/* What so many units have taken, us; those of long ago count less. */
typedef struct {
    double units, us;
} tr_kv_speed_t;

void tr_kv_speed_saw(tr_kv_speed_t *s, double units, double us);
/* It was found too slow, and so nothing new is seen of it: it may be quicker by
 * now. */
void tr_kv_speed_doubt(tr_kv_speed_t *s);
/* us a unit; 0: not known yet. */
double tr_kv_speed_each(const tr_kv_speed_t *s);

/* Turns that computed prompts: what one costs however many tokens it has, and what
 * each token costs on top.  Those of long ago count less. */
typedef struct {
    double n, x, y, xx, xy; /* sums: turns, tokens, us, and products of these */
} tr_kv_turns_t;

void tr_kv_turns_saw(tr_kv_turns_t *t, double tokens, double us);

typedef struct {
    uint32_t tokens;    /* of the prefix that are not in the pool */
    uint32_t granule;   /* the front ends at a multiple of it; 0: all or none is
                         * fetched */
    double bytes;       /* that are fetched, all of them */
    double each_token;  /* us to compute one, */
    double each_turn;   /* and a turn of turn_tokens, or fewer, on top */
    double turn_tokens; /* 0: turns cost nothing on top */
    double each_byte;   /* us to fetch one */
    double fetch_first; /* us before the first byte comes */
} tr_kv_split_t;

/* What it is to compute, by what was seen; false: nothing was, and all is 0. */
bool tr_kv_turns_cost(const tr_kv_turns_t *t, tr_kv_split_t *p);

/* Tokens of the front to be computed, so that the last is there soonest; of equal
 * times, most are fetched.  *us: then; NULL: nobody asks. */
uint32_t tr_kv_split(const tr_kv_split_t *p, double *us);

#endif
