/*
 * manager_round.h: a round of manager_fixture.h is a pool, some policies and some
 * hundred of the operations of manager_operations.h and manager_shares.h.
 */
#ifndef TR_TESTS_GPU_MANAGER_ROUND_H
#define TR_TESTS_GPU_MANAGER_ROUND_H

#include "manager_shares.h"

/* ---- a round ------------------------------------------------------------ */

/* One round; false: a difference was printed. */
static bool
fixture_run(const fixture_device_t *device, uint64_t seed, uint32_t operations,
            fixture_t *w)
{
    fixture_seed(seed);
    if (!fixture_create(w, device)) {
        return false;
    }
    for (uint32_t i = 0; i < operations && !w->failed; i++) {
        uint32_t dice = fixture_random(w->lends ? 28 + i % 8 : 36);

        if (w->kv->config.stage != 0 && fixture_random(2) == 0) {
            fixture_stage(w);
        }
        if (dice < 2) {
            fixture_open(w);
        } else if (dice == 2 && (i % 4 == 0 || fixture_random(3) == 0)) {
            fixture_close(w);
        } else if (dice == 3) {
            fixture_turn(w);
        } else if (dice < 8) {
            fixture_complete(w);
        } else if (dice == 8) {
            fixture_swap(w);
        } else if (dice == 20) {
            fixture_fork(w);
        } else if (dice == 21) {
            fixture_tally(w);
        } else if (dice >= 28) {
            fixture_cut(w);
        } else if (dice >= 22) {
            fixture_blocks_move(w);
        } else {
            fixture_step(w);
        }
        if (dice < 4) {
            fixture_compare(w);
        }
        if (fixture_random(6) == 0) {
            fixture_absorb(w);
        }
    }
    fixture_reclaim(w);
    fixture_repay(w);
    w->pages = w->kv->m.report->start;
    fixture_destroy(w);
    return !w->failed;
}

#endif
