/*
 * Ringing a peer that may be hostile.
 *
 * Both ends of a doorbell are one open file description, so a peer can clear
 * its O_NONBLOCK and fill the counter: the next write would wait for ever, and
 * with it whoever serves all the others.  No call asks an eventfd not to wait
 * this once.  So a timer stands by while its thread rings: it interrupts the
 * thread every tenth of a second, which nothing notices but a write that waits.
 * It stops when nobody was rung for a while; an idle engine has no timer.
 */
#ifndef TR_BELL_H
#define TR_BELL_H

#include <stdbool.h>
#include <time.h>

typedef struct {
    timer_t timer;
    bool made, armed;
    bool used; /* since the timer fired last */
} tr_bell_t;

/* For the calling thread, which is the one that rings.  Without a timer (none
 * is left) ringing is as safe as the peers are. */
void tr_bell_open(tr_bell_t *b);
void tr_bell_close(tr_bell_t *b);

/* False: the peer has made its doorbell a trap. */
bool tr_bell_ring(tr_bell_t *b, int fd);

/* The thread was interrupted (EINTR): the timer may rest. */
void tr_bell_interrupted(tr_bell_t *b);

#endif
