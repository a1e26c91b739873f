/*
 * Who is served next: the client that was served least (scheduler.h).
 *
 * Clients are tenants or addresses, as the gateway numbers them (wire.h,
 * tenant).  Each has a counter of its service: computed prompt tokens, and twice
 * the tokens of answers, divided by its share.  Tokens that are cached, replayed
 * or recomputed are free.  A client that returns starts at the lowest counter of
 * the active clients, so nobody saves up service by being away.  A client whose
 * sequences are all paused, or have no reader, counts as away as well.
 * This is VTC (Sheng et al., "Fairness in Serving Large Language Models", OSDI
 * 2024).
 *
 * A client is inside while any of its sequences waits or runs, and around for a
 * while longer.  Clients that are away are forgotten when their entry is needed.
 * The table has a fixed size: if more clients are inside than a set has entries,
 * some of them share one, and are served as one.
 *
 * Step loop only; times are of CLOCK_MONOTONIC, us.
 */
#ifndef TR_FAIR_H
#define TR_FAIR_H

#include "request.h"

#define TR_FAIR_SETS 512u /* a power of two */
#define TR_FAIR_WAYS 8u

/* `served` counts in parts of a token, so small that a share divides them. */
#define TR_FAIR_SCALE 1000000u

/* What a share of 1 counts, and how much more or less one of a tier: it is served
 * as if it were a client of its own, with so much of its tenant's share. */
#define TR_FAIR_SHARE 4u
#define TR_FAIR_TIER 4u

/* What a token of an answer costs, in tokens of a prompt. */
#define TR_FAIR_OUTPUT 2u

/* One that has left is expected back for this long. */
#define TR_FAIR_AROUND_US 10000000u

typedef struct tr_client {
    uint64_t key;
    bool known;      /* the place is taken */
    uint32_t share;  /* 1 and more: of two, who gets how much; TR_FAIR_SHARE
                      * is one's due */
    uint64_t served; /* millionths of tokens, over its share */
    uint64_t coming; /* tokens of prompts that run and are not computed */
    uint32_t inside; /* sequences that wait or run */
    uint32_t running;
    uint64_t seen; /* the last turn in which any of these could go on */
    bool idle;     /* none could in the last turn */
    struct tr_client *prev, *next; /* of those inside */
    /* sequences of it that wait: swapped ones first, then by age */
    tr_sequence_t *first, *last;
    tr_sequence_t *head; /* the next of them to be looked at in this turn */
    /* this turn: its rows of answers in the batch, the oldest sequence that was
     * left out of it */
    uint64_t turn;
    uint32_t rows;
    uint64_t left_out;
    uint64_t resume; /* `left_out` of its last turn with one, 0: none */
    /* who makes way (scheduler_fair.c), where that was asked for: tokens cached,
     * the youngest sequence to go, the pages of all that could */
    uint64_t held;
    tr_sequence_t *youngest;
    uint64_t spare;
} tr_client_t;

typedef struct {
    tr_client_t *clients; /* [TR_FAIR_SETS][TR_FAIR_WAYS] */
    tr_client_t *inside;  /* those that are, in no order */
    uint32_t n_inside;
    uint64_t shares; /* of these, together */
    uint64_t last;   /* `served` of the last that was not idle */
    /* the last two to leave, and when */
    const tr_client_t *left[2];
    uint64_t left_us[2];
} tr_fair_t;

tr_status_t tr_fair_init(tr_fair_t *f); /* TR_ERR_NOMEM */
void tr_fair_free(tr_fair_t *f);

/* Who is called key, in this tier (enum tr_tier, 0: the default), from now on
 * with so many sequences more inside; share: 0 counts as 1.  n is not 0. */
tr_client_t *tr_fair_join(tr_fair_t *f, uint64_t key, uint32_t share,
                          uint8_t tier, uint32_t n);
/* One of its sequences is over. */
void tr_fair_leave(tr_fair_t *f, tr_client_t *k, uint64_t now);

/* In this turn something of those clients can go on whose `seen` says so.  Who
 * was idle, and is among them, starts no lower than those that were not. */
void tr_fair_turn(tr_fair_t *f, uint64_t turn);

/* It was given so many tokens of prompts, or of answers. */
void tr_fair_charge(tr_client_t *k, uint64_t tokens);

/* q runs, or does not any more. */
void tr_fair_run(tr_sequence_t *q);
void tr_fair_stop(tr_sequence_t *q);

/* q runs, and so much of its prompt is to be computed; so many tokens of it
 * were. */
void tr_fair_expect(tr_sequence_t *q, uint32_t tokens);
void tr_fair_computed(tr_sequence_t *q, uint32_t tokens);

/* Are several there, or was somebody a moment ago beside the one that is? */
bool tr_fair_several(const tr_fair_t *f, uint64_t now);

/* The part of n places that is k's. */
uint32_t tr_fair_part(const tr_fair_t *f, const tr_client_t *k, uint32_t n,
                      uint64_t now);

/* q waits, or does not any more. */
void tr_fair_wait(tr_sequence_t *q);
void tr_fair_unwait(tr_sequence_t *q);

/* A walk over all who wait, in the order in which they should run: the clients
 * by what they were served and have coming, each from its oldest on.  NULL: that was all.  Who
 * was returned may run, or be charged, before the next is asked for. */
void tr_fair_walk(tr_fair_t *f);
tr_sequence_t *tr_fair_next(tr_fair_t *f);

/* Nobody else of k in this walk. */
void tr_fair_skip(tr_client_t *k);

/* The lists are in order; sums of what waits, runs and is `uncharged` of that. */
bool tr_fair_sound(const tr_fair_t *f, uint32_t waiting, uint32_t running,
                   uint64_t coming);

#endif
