/*
 * Bodies that are on their way: how fast each comes, and which one ends when
 * there is no room for all of them.
 *
 * The gateway bounds the bodies that it gathers, the engine those that a worker
 * passes on, and neither refuses the newest because others stand still.  Of the
 * tenant that holds most, the body ends that comes slowest for what it holds,
 * if it may end at all:
 *
 *   - less than `least` bytes a second have come of it lately, or
 *   - its tenant has more than half of the room, the new body is another
 *     tenant's, and it has been coming for TR_SHED_LATE_MS.
 *
 * Whoever has no room walks over its bodies twice: tr_shed_count() for all,
 * then tr_shed_worse() for all but the new one.
 */
#ifndef TOKENRING_UPLOAD_H
#define TOKENRING_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

/* Seconds that a rate can be the mean of. */
#define TR_PACE_SECONDS 5u

/* At least so old is a body that ends for a new one, ms; and one that is not
 * slow. */
#define TR_SHED_YOUNG_MS 1000u
#define TR_SHED_LATE_MS 5000u

/* At most so many end for one part of a new one. */
#define TR_SHED_MOST 8u

#define TR_SHED_TENANTS 256u

typedef struct {
    uint64_t since_ms;
    uint64_t second; /* the newest that was counted, from since_ms on */
    uint32_t bytes[TR_PACE_SECONDS + 1]; /* of that one and those before */
} tr_pace_t;

/* Begins, or begins again: what was before does not count. */
static inline void tr_pace_start(tr_pace_t *p, uint64_t now_ms);

/* So many bytes more have come. */
static inline void tr_pace_add(tr_pace_t *p, uint64_t now_ms, uint64_t n);

/* Bytes a second over the last `seconds` whole ones (TR_PACE_SECONDS at most)
 * and the one that is running, or since the start; UINT64_MAX at the start. */
static inline uint64_t tr_pace_rate(tr_pace_t *p, uint64_t now_ms,
                                    unsigned seconds);

/* The search for the body that ends. */
typedef struct {
    uint64_t now_ms;
    uint64_t limit;  /* bytes of room */
    uint64_t tenant; /* of the new body, hashed */
    /* bytes by tenant; two that meet are as one */
    uint64_t held[TR_SHED_TENANTS];
    /* of the worst that was seen; worst_held 0: none */
    uint64_t worst_tenant, worst_held, worst_rate;
} tr_shed_t;

static inline void tr_shed_start(tr_shed_t *s, uint64_t limit, uint64_t tenant,
                                 uint64_t now_ms);

/* A body on its way that holds so many bytes. */
static inline void tr_shed_count(tr_shed_t *s, uint64_t tenant, uint64_t held);

/* True: this one ends rather than any that was looked at before. */
static inline bool tr_shed_worse(tr_shed_t *s, tr_pace_t *p, uint64_t tenant,
                                 uint64_t held, uint64_t least);

#include <tokenring/upload_inline.h>

#endif
