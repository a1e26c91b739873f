/*
 * A page manager in the usual style, as what the engine's is compared with: a
 * free list under a lock, page lists of each head that grow by realloc under a
 * lock of their own, and worker threads that share out the heads and wait for
 * each other at the end of a step.  Decides and books what engine/kv/kv_cache.h
 * does; keeps no tokens.  For a scored policy a head also has a score for every
 * position, in the memory of the host, and each of its lists the positions of
 * its tokens; the least significant of them is searched for when it is asked
 * for.
 */
#ifndef PLAIN_MANAGER_H
#define PLAIN_MANAGER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/policy/kv_policy.h"

typedef struct plain plain_t;

/* tokens: of a page by list, then of a window page, then of a dense page. */
plain_t *plain_new(uint32_t heads, uint32_t lists, uint32_t seqs,
                   uint32_t pages, uint32_t max_len, int threads,
                   const tr_kv_policy_t *policy, const uint32_t *tokens);
void plain_free(plain_t *p);

/* For a scored policy, before a prompt of len tokens and 64 more: random scores
 * of the first n sequences, of which most are small. */
void plain_score(plain_t *p, uint32_t n, uint32_t len);
/* The first n sequences: a prompt of len tokens, dense and then compressed. */
bool plain_prompt(plain_t *p, uint32_t n, uint32_t len);
/* One token more for each of the first n. */
bool plain_step(plain_t *p, uint32_t n);
void plain_close(plain_t *p, uint32_t n);

/* To compare: pages in use, tokens in lists. */
uint64_t plain_used(const plain_t *p);
uint64_t plain_listed(const plain_t *p, uint32_t n);

#endif
