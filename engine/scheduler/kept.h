/*
 * Responses that are kept in Redis, as a parser thread requests them: a body that
 * names a previous response, or items of one, cannot be parsed without their
 * contents.
 *
 *   parser thread --tr_lookup_ask--> publisher --(Redis)--> done()
 *
 * A lookup has turns: the response that the body continues, with all that this
 * one continued, and the responses whose items it refers to.  Neither thread waits
 * for the other.  Data from Redis was written by others: sizes are bounded, and
 * records are checked.
 */
#ifndef TR_KEPT_H
#define TR_KEPT_H

#include "request_events.h"

#define TR_TURNS_MAX 256u         /* of a lookup */
#define TR_TURNS_BYTES (8u << 20) /* that they may have together */
#define TR_LOOKUPS_MAX 32u        /* at a time */
#define TR_LOOKUP_US 2000000u     /* for all of it */

typedef struct {
    char id[TR_COMPLETION_LEN + 1];
    bool conversation; /* the body goes on from it: its input is wanted, too */
    bool missing;      /* of another, or of nobody, or without an answer */
    char *input;       /* JSON: an array of items */
    size_t input_len;
    uint8_t *output; /* records, as tr:out of docs/redis.md has them */
    size_t output_len;

    /* the publisher's */
    bool known;    /* who may see it */
    bool asked;    /* a command is under way */
    bool complete; /* all is here, or missing */
    bool running;  /* its end has not been written */
    uint32_t last; /* number of the last record */
    uint32_t tries;
    uint64_t again_us;
} tr_turn_t;

struct tr_lookup {
    /* the previous response, if the body goes on from one; those that items are
     * wanted of; from n_asked on what the previous one goes on from, oldest
     * first, which the publisher adds */
    tr_turn_t *turns;
    uint32_t n_turns, n_asked;
    uint8_t holder[TR_HOLDER]; /* who asks */
    tr_error_t error;          /* status TR_OK: turns are complete */

    tr_request_t *request;
    void (*done)(tr_lookup_t *l); /* called once, by the publisher's thread */
    void *ctx;

    /* the publisher's */
    tr_request_events_t *events; /* where it is counted; NULL: it was not */
    tr_lookup_t *next;
    uint64_t number, deadline_us;
    size_t bytes;
};

/* A turn more; false: no memory, or too many. */
bool tr_lookup_add(tr_lookup_t *l, const char id[TR_COMPLETION_LEN],
                   bool conversation);
void tr_lookup_free(tr_lookup_t *l); /* may be NULL */

/* Any thread.  False: too many are under way, l stays the caller's. */
bool tr_lookup_ask(tr_request_events_t *t, tr_lookup_t *l);
/* Publisher: those that were asked since, in their order. */
tr_lookup_t *tr_lookup_take(tr_request_events_t *t);

/* The next record at *at of `len` bytes, as tr:out has them.  TR_AGAIN: that was
 * all; TR_ERR_PROTOCOL: these are none. */
tr_status_t tr_kept_record(const uint8_t *bytes, size_t len, size_t *at,
                           tr_record_t *rec, const uint8_t **payload);

#endif
