/*
 * An outlet over a ring in plain memory, with the peer's end of it, for tests
 * that have no channel.
 */
#ifndef OUTLET_RIG_H
#define OUTLET_RIG_H

#include <stdlib.h>

#include "outlet.h"

/* The descriptors may be -1 for a test in which nobody sleeps. */
static inline void
outlet_make(tr_outlet_t *o, tr_ring_consumer_t *peer, uint32_t capacity,
            int bell_fd, int front_fd)
{
    size_t size = sizeof(tr_ring_shared_t) + capacity;
    tr_ring_shared_t *shared = aligned_alloc(TR_CACHE_LINE, size);

    assert_non_null(shared);
    memset(shared, 0, sizeof(*shared));
    tr_ring_consumer_init(peer, shared, shared + 1, capacity);
    assert_int_equal(tr_outlet_init(o, shared, shared + 1, capacity, bell_fd,
                                    front_fd),
                     TR_OK);
}

static inline void
outlet_unmake(tr_outlet_t *o, tr_ring_consumer_t *peer)
{
    tr_outlet_free(o);
    free(peer->shared);
}

/* What a step of the loop does with an outlet that it has written to. */
static inline void
outlet_show(tr_outlet_t *o)
{
    tr_bell_t bell = { 0 };

    tr_outlet_publish(o, &bell);
}

#endif
