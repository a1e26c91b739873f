/*
 * Meetings of the device in software (simt.h): of a warp, a block, some of its
 * warps, a cluster.
 */
#include <string.h>

#include "mp.h"

const simt_post_t *
simt_meet(const void *x, uint32_t bytes)
{
    mp_t *m = simt_mp;
    uint32_t first = m->now / SIMT_WARP * SIMT_WARP, lane = m->now % SIMT_WARP;
    warp_t *w = &m->warp[m->now / SIMT_WARP];
    uint32_t turn = w->turn;

    if (bytes > 0) {
        memcpy(w->post[turn % 2][lane], x, bytes);
    }
    w->came |= 1u << lane;
    if (w->came != w->all) {
        simt_leave(MEETS);
        return w->post[turn % 2];
    }
    w->came = 0;
    w->turn++;
    m->done_something = true;
    for (uint32_t i = 0; i < SIMT_WARP; i++) {
        if (w->all >> i & 1) {
            m->fiber[first + i].state = READY;
        }
    }
    return w->post[turn % 2];
}

static void
wake(mp_t *m, state_t state, uint32_t named)
{
    m->done_something = true;
    simt_hold_warps(m);
    for (uint32_t i = 0; i < m->threads; i++) {
        fiber_t *f = &m->fiber[i];

        if (f->state == state && (state != NAMES || f->at_bar == named)) {
            f->state = READY;
        }
    }
}

void
simt_block_sync(void)
{
    if (++simt_mp->synced + simt_mp->done < simt_mp->threads) {
        simt_leave(SYNCS);
        return;
    }
    simt_mp->synced = 0;
    wake(simt_mp, SYNCS, 0);
}

void
simt_named(uint32_t id, uint32_t threads, bool wait)
{
    mp_t *m = simt_mp;

    if (id >= NAMED || threads % SIMT_WARP != 0) {
        simt_die("barrier %u of %u threads", id, threads);
    }
    if (m->named[id] > 0 && m->named_need[id] != threads) {
        simt_die("barrier %u is for %u threads and for %u", id,
                 m->named_need[id], threads);
    }
    m->named_need[id] = threads;
    if (++m->named[id] == threads) {
        m->named[id] = 0;
        wake(m, NAMES, id);
    } else if (wait) {
        m->fiber[m->now].at_bar = id;
        simt_leave(NAMES);
    }
}

void
simt_cluster_arrive(void)
{
    mp_t *m = simt_mp;
    uint32_t all = m->threads * m->cluster_blocks;

    m->fiber[m->now].cluster_turn = __atomic_load_n(&m->cluster->turn,
                                                    __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&m->cluster->came, 1, __ATOMIC_ACQ_REL) == all) {
        m->cluster->came = 0;
        __atomic_add_fetch(&m->cluster->turn, 1, __ATOMIC_ACQ_REL);
        m->done_something = true;
    }
}

void
simt_cluster_wait(void)
{
    mp_t *m = simt_mp;

    while (__atomic_load_n(&m->cluster->turn, __ATOMIC_ACQUIRE)
           == m->fiber[m->now].cluster_turn) {
        simt_yield();
    }
}
