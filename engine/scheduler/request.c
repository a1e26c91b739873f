/*
 * Requests: their arena and the layout of their sequences (request.h).
 */
#include "request.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/hash.h"

#define TR_ARENA_BLOCK 16384u

struct tr_arena_block {
    tr_arena_block_t *next;
    size_t reserved; /* keeps what follows 16-byte aligned */
};

_Static_assert(sizeof(tr_arena_block_t) % 16 == 0, "blocks stay aligned");

static tr_arena_block_t *
tr_arena_block_new(tr_arena_t *a, size_t n)
{
    tr_arena_block_t *block;

    if (n > SIZE_MAX - sizeof(*block)) {
        return NULL;
    }
    block = calloc(1, sizeof(*block) + n);
    if (block != NULL) {
        a->total += sizeof(*block) + n;
    }
    return block;
}

void *
tr_arena_alloc(tr_arena_t *a, size_t n)
{
    tr_arena_block_t *block;
    void *out;

    if (n > SIZE_MAX - 15) {
        return NULL;
    }
    n = n == 0 ? 16 : (n + 15) & ~(size_t) 15;
    if (n > TR_ARENA_BLOCK / 4 && a->blocks != NULL) {
        /* a block of its own, behind the one that is being filled */
        block = tr_arena_block_new(a, n);
        if (block == NULL) {
            return NULL;
        }
        block->next = a->blocks->next;
        a->blocks->next = block;
        return block + 1;
    }
    if (a->blocks == NULL || n > a->size - a->used) {
        size_t size = n > TR_ARENA_BLOCK ? n : TR_ARENA_BLOCK;

        block = tr_arena_block_new(a, size);
        if (block == NULL) {
            return NULL;
        }
        block->next = a->blocks;
        a->blocks = block;
        a->size = size;
        a->used = 0;
    }
    out = (uint8_t *) (a->blocks + 1) + a->used;
    a->used += n;
    return out;
}

void
tr_arena_free(tr_arena_t *a)
{
    while (a->blocks != NULL) {
        tr_arena_block_t *next = a->blocks->next;

        free(a->blocks);
        a->blocks = next;
    }
    memset(a, 0, sizeof(*a));
}

void
tr_request_free(tr_request_t *r)
{
    if (r != NULL) {
        tr_grammar_unref(r->grammar);
        tr_arena_free(&r->arena);
        free(r->body);
        free(r->ahead);
        free(r->kept);
        free(r->told);
        tr_lookup_free(r->lookup);
        free(r);
    }
}

/* Choices of a prompt must differ, and be the same again with the same seed:
 * seeds are drawn from SplitMix64, k = 0 is the request's own. */
static uint64_t
tr_request_seed(uint64_t seed, uint32_t k)
{
    uint64_t state = seed + (k - 1) * TR_SPLITMIX64_STEP;

    return k == 0 ? seed : tr_splitmix64(&state);
}

typedef struct {
    uint64_t seed;
    uint32_t vocab;
    const int32_t *eos;
    uint32_t n_eos;
    const tr_tokenizer_t *tokenizer;
} tr_layout_t;

/* Ids of calls differ also between requests of one seed, as those of a
 * conversation may be, and are the same for the same request. */
static uint64_t
tr_request_call_seed(const tr_sequence_t *s, uint64_t seed)
{
    uint64_t hash = seed + (s->choice + 1) * 0x9e3779b97f4a7c15ull;

    hash ^= (uint64_t) s->request->created * 0xd1342543de82ef95ull;
    for (uint32_t i = 0; i < s->prompt_len; i++) {
        hash = (hash ^ (uint32_t) s->tokens[i]) * 0x100000001b3ull;
        hash ^= hash >> 29;
    }
    return hash;
}

static tr_status_t
tr_request_layout_dialect(tr_request_t *r, tr_sequence_t *s,
                          const tr_layout_t *l)
{
    tr_dialect_start_t start = {
        .tools = &r->tools,
        .inside = r->inside,
        .single = r->single_call,
        .seed = tr_request_call_seed(s, l->seed),
    };
    void *memory;

    if (r->dialect == NULL) {
        return TR_OK;
    }
    memory = tr_arena_alloc(&r->arena, tr_dialect_size(r->dialect));
    if (memory == NULL) {
        return TR_ERR_NOMEM;
    }
    s->dialect = tr_dialect_init(r->dialect, &start, memory);
    return TR_OK;
}

static tr_status_t
tr_request_layout_sequence(tr_request_t *r, tr_sequence_t *s,
                           const tr_ids_t *prompt, const tr_layout_t *l)
{
    const tr_sampling_params_t *params = &r->params;
    uint64_t cap = (uint64_t) prompt->len + params->max_tokens;
    size_t counts_size = tr_sampler_counts_size(params, l->vocab);
    uint32_t *counts = NULL;
    uint32_t text_room = r->dialect != NULL ? tr_dialect_room(r->dialect) : 0;
    void *text;

    if (r->max_len != 0 && cap > r->max_len) {
        cap = r->max_len > prompt->len ? r->max_len : prompt->len;
    }
    if (cap > INT32_MAX || prompt->len == 0) {
        return TR_ERR_INVALID;
    }
    s->request = r;
    s->state = TR_SEQ_WAITING;
    s->kv_slot = -1;
    s->prompt_len = prompt->len;
    s->len = prompt->len;
    s->cap = (uint32_t) cap;
    s->tokens = tr_arena_alloc(&r->arena, cap * sizeof(int32_t));
    s->inputs = tr_arena_alloc(&r->arena, (cap / TR_KV_INPUTS_TOKENS + 1)
                                              * sizeof(*s->inputs));
    text = tr_arena_alloc(&r->arena,
                          tr_text_stream_size(l->tokenizer, params, text_room));
    if (counts_size != 0) {
        counts = tr_arena_alloc(&r->arena, counts_size);
    }
    if (s->tokens == NULL || s->inputs == NULL || text == NULL
        || (counts_size != 0 && counts == NULL)) {
        return TR_ERR_NOMEM;
    }
    memcpy(s->tokens, prompt->data, prompt->len * sizeof(int32_t));
    tr_sampler_init(&s->sampler, params,
                    tr_request_seed(l->seed, s->choice % r->n), l->vocab,
                    counts, l->eos, l->n_eos, prompt->data, prompt->len);
    tr_text_stream_init(&s->text, l->tokenizer, params, text_room, text);
    tr_detok_init(&s->echo_detok, true);
    return tr_request_layout_dialect(r, s, l);
}

tr_status_t
tr_request_layout(tr_request_t *r, const tr_ids_t *prompts, uint32_t n_prompts,
                  uint32_t vocab, const int32_t *eos, uint32_t n_eos,
                  const tr_tokenizer_t *t)
{
    uint64_t n = (uint64_t) n_prompts * r->n, total = 0;
    tr_layout_t l = { r->params.seed, vocab, eos, n_eos, t };
    tr_sampled_t *scores = NULL;
    uint32_t i;
    tr_status_t rc;

    if (n == 0 || n > INT32_MAX) {
        return TR_ERR_INVALID;
    }
    if (r->migrations != 0) {
        l.seed = r->seed;
    } else if (!r->params.has_seed
               && getrandom(&l.seed, sizeof(l.seed), 0) != sizeof(l.seed)) {
        return TR_ERR_INTERNAL;
    }
    r->seed = l.seed;
    r->max_total = 0;
    r->sequences = tr_arena_alloc(&r->arena, n * sizeof(tr_sequence_t));
    if (r->sequences == NULL) {
        return TR_ERR_NOMEM;
    }
    for (i = 0; i < n; i++) {
        tr_sequence_t *s = &r->sequences[i];
        const tr_ids_t *prompt = &prompts[i / r->n];

        s->choice = i;
        rc = tr_request_layout_sequence(r, s, prompt, &l);
        if (rc != TR_OK) {
            return rc;
        }
        if (r->pool.width != 0) {
            s->pooled = tr_arena_alloc(&r->arena,
                                       r->pool.width * sizeof(*s->pooled));
            if (s->pooled == NULL) {
                return TR_ERR_NOMEM;
            }
        }
        r->max_total += s->cap - s->prompt_len;
        if (i % r->n == 0) {
            total += prompt->len;
            if (r->echo && r->params.logprobs >= 0) {
                scores = tr_arena_alloc(&r->arena,
                                        prompt->len * sizeof(*scores));
                if (scores == NULL) {
                    return TR_ERR_NOMEM;
                }
            }
        }
        s->prompt_scores = scores;
    }
    if (total > INT32_MAX) {
        return TR_ERR_INVALID;
    }
    r->n_prompts = n_prompts;
    r->n_sequences = (uint32_t) n;
    r->open_sequences = (uint32_t) n;
    r->prompt_tokens = (uint32_t) total;
    return TR_OK;
}

/* The matcher goes to behind what the sequence has said elsewhere. */
static tr_status_t
tr_request_follow_told(const tr_sequence_t *q, tr_matcher_t *m,
                       tr_grammar_scratch_t *s)
{
    tr_status_t rc = TR_OK;

    for (uint32_t i = q->prompt_len; i < q->len && rc == TR_OK; i++) {
        bool end = false;

        for (uint32_t k = 0; k < q->sampler.n_eos; k++) {
            end |= q->sampler.eos[k] == q->tokens[i];
        }
        rc = end ? TR_OK : tr_matcher_token(m, s, q->tokens[i]);
    }
    return rc;
}

static tr_status_t
tr_request_follow_all(tr_request_t *r, tr_matcher_t *matchers)
{
    tr_grammar_scratch_t *s;
    tr_status_t rc = TR_OK;

    if (r->replayed == 0) {
        return TR_OK;
    }
    s = tr_grammar_scratch_of(r->grammar);
    if (s == NULL) {
        return TR_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < r->n_sequences && rc == TR_OK; i++) {
        if (r->sequences[i].state != TR_SEQ_DONE) {
            rc = tr_request_follow_told(&r->sequences[i], &matchers[i], s);
        }
    }
    tr_grammar_scratch_free(s);
    return rc;
}

tr_status_t
tr_request_constrain(tr_request_t *r, tr_grammar_t *g)
{
    void *frames = tr_arena_alloc(&r->arena,
                                  tr_frame_pool_size(r->n_sequences));
    tr_matcher_t *matchers = tr_arena_alloc(&r->arena,
                                            r->n_sequences * sizeof(*matchers));
    tr_status_t rc;

    r->grammar = g;
    if (frames == NULL || matchers == NULL) {
        return TR_ERR_NOMEM;
    }
    rc = tr_matcher_init(&matchers[0], g,
                         tr_frame_pool_init(frames, r->n_sequences));
    for (uint32_t i = 0; i < r->n_sequences && rc == TR_OK; i++) {
        if (i > 0) {
            tr_matcher_fork(&matchers[i], &matchers[0]);
        }
        r->sequences[i].matcher = &matchers[i];
    }
    return rc == TR_OK ? tr_request_follow_all(r, matchers) : rc;
}

/* ---- what it holds of the KV cache -------------------------------------- */

void
tr_request_kv_add(tr_request_kv_t *sum, const tr_kv_usage_t *u)
{
    double full = (double) u->full_bytes;

    sum->bytes += u->bytes;
    sum->full_bytes += u->full_bytes;
    sum->at_full += u->at_full;
    sum->at_high += u->at_high;
    sum->at_low += u->at_low;
    sum->pruned += u->pruned;
    sum->share_high += u->share_high * full;
    sum->share_low += u->share_low * full;
    sum->share_pruned += u->share_pruned * full;
}

void
tr_request_kv_wire(const tr_request_kv_t *sum, tr_wire_usage_t *out)
{
    double full = (double) sum->full_bytes;

    *out = (tr_wire_usage_t){ .bytes = sum->bytes,
                              .full_bytes = sum->full_bytes,
                              .tokens_full = sum->at_full,
                              .tokens_high = sum->at_high,
                              .tokens_low = sum->at_low,
                              .tokens_pruned = sum->pruned };
    if (sum->full_bytes != 0) {
        out->share_high = (float) (sum->share_high / full);
        out->share_low = (float) (sum->share_low / full);
        out->share_pruned = (float) (sum->share_pruned / full);
    }
}
