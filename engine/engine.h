/*
 * A whole engine inside this process: executor, tokenizer, parser threads, step
 * loop, frontend thread.  tokenring-engine is main.c around this; `tokenring
 * generate -m DIR` starts one on a private socket and attaches to it as any
 * other ring client.
 */
#ifndef TR_ENGINE_H
#define TR_ENGINE_H

#include <stdio.h>

#include "engine/config/config.h"

typedef struct tr_engine tr_engine_t;

/* Loads the model, opens the socket, starts the threads; returns when ready. */
tr_status_t tr_engine_start(const tr_config_t *config, tr_engine_t **out,
                            tr_error_t *err);
/* No new work; running requests finish within drain_timeout (their output is
 * still sent), the rest end with an error.  Then everything is stopped; what
 * remains to be done is tr_engine_stop. */
void tr_engine_drain(tr_engine_t *e);
/* Any thread: a drain under way, or the next one, does not wait. */
void tr_engine_hurry(tr_engine_t *e);
/* Stops at once, if that was not done, and frees. */
void tr_engine_stop(tr_engine_t *e);

/* The GPU went away: all requests fail.  Then the process got a SIGTERM, which
 * is to end it as any other does, but not with success. */
bool tr_engine_lost(const tr_engine_t *e);

/* Goes through what a start goes through, of the weights headers only, and says
 * what is wrong; what the model is goes to out. */
tr_status_t tr_engine_check(const tr_config_t *config, FILE *out,
                            tr_error_t *err);

#endif
