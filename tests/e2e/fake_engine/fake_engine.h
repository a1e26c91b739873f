/*
 * What the files of the scripted engine share (fake_engine.c says what it is).
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <tokenring/channel.h>
#include <tokenring/wire.h>

#include <signal.h>
#include <stdbool.h>

#define SLOTS 4096
#define BODY_KEPT 512
#define FAKE_MODEL_ID 0x5a /* each byte of it */
#define FAKE_CHOICES 4     /* whose tokens are told apart */

typedef struct {
    uint64_t id; /* 0: free */
    bool complete;
    bool accepted;
    bool ended;
    bool with_ids; /* its DELTAs have them */
    bool replay;   /* it was elsewhere before */
    uint16_t endpoint;
    uint32_t share;       /* of its tenant's plan */
    uint32_t replay_left; /* bytes of its block */
    uint32_t sent;
    uint32_t told[FAKE_CHOICES]; /* of each, also elsewhere */
    uint16_t reason[FAKE_CHOICES];
    uint32_t records; /* that were put here (fake_engine_dies.c) */
    uint64_t next_us;
    uint64_t body_len;
    uint64_t body_sum;
    uint32_t kept;
    char body[BODY_KEPT + 1];
} fake_request_t;

typedef struct {
    int sock; /* -1: free */
    bool open;
    bool wrecked; /* its rings and its doorbell must stay as they are */
    bool trap;    /* but for an index, when a body waits for space */
    tr_channel_map_t map;
    tr_ring_consumer_t requests;
    tr_ring_producer_t answers;
    tr_ring_producer_t responses;
    int to_engine;
    int to_peer;
    fake_request_t *slot;
} fake_channel_t;

extern volatile sig_atomic_t fake_stopping;

uint64_t fake_now_us(void);
/* Ends the process; what: the call that failed, errno: why. */
void fake_die(const char *what);

/* ---- fake_engine_dies.c ------------------------------------------------- */

/* The next record of r, or the end of the process. */
void fake_dies(fake_channel_t *c, fake_request_t *r);

/* ---- fake_engine_records.c: what the body asks for ---------------------- */

/* The value of a key, or NULL: text in the body, which goes on behind it. */
const char *fake_body_value(const fake_request_t *r, const char *key);
uint32_t fake_body_number(const fake_request_t *r, const char *key,
                          uint32_t otherwise);
bool fake_body_true(const fake_request_t *r, const char *key);
/* Is this the "fake" behaviour? */
bool fake_body_is(const fake_request_t *r, const char *behaviour);

/* ---- fake_engine_records.c: records ------------------------------------- */

/* False: the ring is full, nothing was written. */
bool fake_put_accepted(fake_channel_t *c, fake_request_t *r);
bool fake_put_text(fake_channel_t *c, fake_request_t *r, uint32_t choice,
                   const char *text, size_t len);
/* One choice that thinks, speaks and calls. */
void fake_put_items(fake_channel_t *c, fake_request_t *r, uint32_t choice);
/* What r holds of the KV cache, which grows. */
void fake_put_arguments(fake_channel_t *c, fake_request_t *r);
bool fake_put_kv(fake_channel_t *c, fake_request_t *r, uint32_t choice);
bool fake_put_finish(fake_channel_t *c, fake_request_t *r, uint32_t choice,
                     uint16_t reason, bool last);
bool fake_put_error(fake_channel_t *c, fake_request_t *r, tr_status_t status);

/* What no engine may send.  Each must cost us the channel, and nothing more. */
void fake_put_hostile(fake_channel_t *c, fake_request_t *r, const char *how);

#endif
