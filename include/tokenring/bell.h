/*
 * Ringing a doorbell that the other side may have turned into a trap.
 *
 * Both ends share one open file description, so the other side can clear
 * O_NONBLOCK and fill the counter: the next write would block for ever, and
 * with it whoever serves everybody else.  No call asks an eventfd not to block
 * just once.  So a timer interrupts the thread while it rings, once a period,
 * which only a write that blocks notices.
 *
 * The engine's threads ring all the time, and stop the timer when nobody was
 * rung for a while (tr_bell_interrupted).  An NGINX worker, none of whose other
 * calls may be interrupted, stops it at once (tr_bell_rest).
 */
#ifndef TOKENRING_BELL_H
#define TOKENRING_BELL_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    timer_t timer;
    long period_ns;
    bool made, armed;
    bool used; /* since the timer fired last */
} tr_bell_t;

/* For the calling thread, which is the one that rings; takes a real-time signal
 * that nobody handles.  period_ns is below a second.  0, or an errno: there is
 * no timer then, and a trap would block. */
static inline int tr_bell_open(tr_bell_t *b, long period_ns);
static inline void tr_bell_close(tr_bell_t *b);

/* False: the doorbell is a trap. */
static inline bool tr_bell_ring(tr_bell_t *b, int fd);

/* The thread was interrupted (EINTR): stops the timer if nobody was rung. */
static inline void tr_bell_interrupted(tr_bell_t *b);

/* Stops the timer until somebody is rung. */
static inline void tr_bell_rest(tr_bell_t *b);

#include <tokenring/bell_inline.h>

#endif
