/*
 * A connection to Redis that never blocks: hiredis for bytes, poll for waiting.
 *
 *   DOWN --retry--> RESOLVING --> CONNECTING --> HELLO --> UP
 *    ^                                  (TLS, AUTH, SELECT)  |
 *    +------------- error, end, or no answer in time --------+
 *
 * The owner sends commands when it is UP; each carries a tag that comes back
 * with its reply, in order.  When a connection is lost, no reply comes for the
 * tags that wait for one: on_down says so, and the owner starts over at on_up.
 * All callbacks are called from tr_redis_link_run, in the owner's thread.
 *
 * Redis may still receive what a lost connection has sent, from a buffer on the
 * way.  So that nothing old arrives after something new, the next connection
 * begins with CLIENT KILL of the former one, if it is the same Redis (run_id)
 * and the ACL allows it.
 *
 * Replies are untrusted: their size is bounded, and of their text, which may
 * repeat what was sent, only the first word is logged.
 */
#ifndef TR_REDIS_LINK_H
#define TR_REDIS_LINK_H

#include <hiredis/hiredis.h>
#include <hiredis/sds.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/config/config.h"
#include "redis_command.h"
#include "redis_resolve.h"
#include "redis_tls.h"

/* What a command was, for whoever gets its reply. */
typedef struct {
    uint64_t id;
    uint32_t number;
    uint16_t kind;
} tr_redis_tag_t;

enum tr_redis_link_state {
    TR_LINK_DOWN,
    TR_LINK_RESOLVING,
    TR_LINK_CONNECTING,
    TR_LINK_HELLO,
    TR_LINK_UP
};

#define TR_REDIS_REASON 160

typedef struct {
    void *ctx;
    void (*on_up)(void *ctx);
    void (*on_down)(void *ctx, const char *reason);
    /* tag is NULL for what was not asked for (messages). */
    void (*on_reply)(void *ctx, const tr_redis_tag_t *tag,
                     const redisReply *reply);
} tr_redis_events_t;

typedef struct {
    tr_redis_tag_t tag;
    uint64_t sent_us;
} tr_redis_pending_t;

typedef struct {
    const tr_config_t *config; /* borrowed */
    tr_redis_events_t events;
    bool subscriber; /* messages come; replies carry no tags */
    enum tr_redis_link_state state;
    tr_redis_resolve_t *resolve;
    unsigned turn; /* which of a name's addresses is next */
    redisContext *c;
    tr_redis_tls_t tls;
    uint64_t retry_us, since_us; /* DOWN: when; else since when */
    uint64_t backoff_us;
    unsigned hello_left;           /* replies until it is UP */
    bool ending_former;            /* CLIENT KILL is one of them */
    uint64_t client_id, former_id; /* ours in Redis, 0: not known */
    char server[48];               /* its run_id, "": not known */
    bool failed;                   /* to be taken down */
    char reason[TR_REDIS_REASON];
    tr_redis_pending_t *pending; /* ring of commands under way */
    uint32_t n_pending, first_pending, max_pending;
    uint64_t heard_us, pinged_us; /* subscriber */
    char address[TR_CONFIG_PATH]; /* for logs */
} tr_redis_link_t;

/* config->redis is set and was checked.  Logs and returns an error only for TLS
 * files that cannot be read. */
tr_status_t tr_redis_link_init(tr_redis_link_t *l, const tr_config_t *config,
                               bool subscriber, const tr_redis_events_t *events,
                               tr_error_t *err);
void tr_redis_link_free(tr_redis_link_t *l);

/* For poll: -1 when there is nothing to wait for but time. */
int tr_redis_link_fd(const tr_redis_link_t *l, short *wanted);
/* When tr_redis_link_run must be called though nothing happens. */
uint64_t tr_redis_link_deadline(const tr_redis_link_t *l);
/* Connects, reads, writes, times out: what can be done now. */
void tr_redis_link_run(tr_redis_link_t *l, short got, uint64_t now_us);

/* UP only (no effect otherwise): appends to what is written in the next run. */
void tr_redis_link_send(tr_redis_link_t *l, const tr_redis_tag_t *tag,
                        const tr_redis_command_t *c, uint64_t now_us);
/* Takes it down in the next run, for this reason. */
void tr_redis_link_fail(tr_redis_link_t *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Bytes that wait to be written. */
size_t tr_redis_link_backlog(const tr_redis_link_t *l);

#endif
