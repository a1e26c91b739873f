/*
 * A request: one API call on its way through the engine.
 *
 *   frontend (allocates it with the first SUBMIT part, gathers the body)
 *     -> request parser (parses, validates, tokenises, lays out the sequences)
 *       -> frontend (answers ERROR, or ACCEPTED and passes it on)
 *         -> step loop (owns it, and writes its output, to the end)
 *           -> frontend (frees it)
 *
 * Everything a request needs while it runs is allocated by the request parser,
 * in its arena: the step loop allocates nothing.
 */
#ifndef TR_REQUEST_H
#define TR_REQUEST_H

#include <stdatomic.h>

#include "engine/dialect/dialect.h"
#include "engine/grammar/grammar.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_inputs.h"
#include "engine/transport/response_writer.h"
#include "kept.h"
#include "request_events.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/sampling.h"
#include "engine/sampling/text_stream.h"
#include <tokenring/channel.h>
#include <tokenring/wire.h>

/* Bump allocator: blocks are freed together.  NULL when memory is out. */
typedef struct tr_arena_block tr_arena_block_t;
typedef struct {
    tr_arena_block_t *blocks;
    size_t used, size; /* of the first block */
    size_t total;      /* of all blocks */
} tr_arena_t;

void *tr_arena_alloc(tr_arena_t *a, size_t n); /* 16-byte aligned, zeroed */
void tr_arena_free(tr_arena_t *a);

enum tr_sequence_state {
    TR_SEQ_WAITING, /* no KV pages; new or preempted (then perhaps swapped) */
    TR_SEQ_RUNNING, /* has a KV slot with pages */
    TR_SEQ_DONE
};

/* Batches that may be under way at a time. */
#define TR_BATCHES_IN_FLIGHT 2

/* One choice of a request.  Written by the step loop only. */
typedef struct tr_sequence {
    tr_request_t *request;
    uint32_t choice;
    enum tr_sequence_state state;
    int32_t *tokens; /* [cap] prompt, then output */
    uint32_t prompt_len;
    uint32_t len, cap; /* known tokens; the most: prompt_len + max_tokens, or
                        * the request's max_len */
    /* Tokens whose keys and values are cached, with those that batches under
     * way compute (scheduler.h), which are in chunks chunk[] of these. */
    uint32_t computed, under_way;
    uint32_t ahead; /* tokens that they sample, which nobody knows yet */
    /* The rows of positions [inputs_from, inputs_to) are kept (kv_inputs.h), in
     * these chunks, and 1, of TR_KV_INPUTS_TOKENS each; 0: none. */
    uint32_t *inputs, inputs_from, inputs_to;
    uint32_t chunk[TR_BATCHES_IN_FLIGHT];
    tr_kv_usage_t left; /* when it lost its pages with a token under way */
    int32_t kv_slot;    /* in the KV cache, -1 when none */
    /* Tokens that are computed at 16 bits, then compressed: the prompt, or what
     * was lost when it had to be computed again.  0: never compressed. */
    uint32_t uncompressed_len;
    bool staged;  /* they are compressed in stages (tr_kv_stage) */
    bool is_long; /* it has more tokens than the scheduler's long_from */
    bool exact;   /* a copy must stop where its source stands */
    /* Tokens of another engine that are computed one by one, as they were there:
     * those in front of this one, behind the prompt.  0: all at once. */
    uint32_t step_to;
    bool found;     /* what its prompt shares was counted */
    uint8_t looks;  /* how often it has asked for its prompt elsewhere; all of
                     * TR_SCHEDULER_LOOKS: it does so no more */
    bool look_full; /* the shelf has it, and reads for others */
    uint32_t look_from;     /* tokens that it had when it asked */
    uint64_t look_until_us; /* when it gives up asking; 0: it was not put off */
    uint64_t offered;       /* scheduler turn in which siblings could copy it */
    uint64_t charge, copy;  /* pages (scheduler.h: prompt_pages, promised), */
    uint64_t lent;          /* without those that others have for it */
    tr_sampler_t sampler;
    tr_text_stream_t text;
    tr_matcher_t *matcher;       /* what it may write; NULL: anything */
    tr_dialect_state_t *dialect; /* NULL: all of it is content */
    uint32_t thoughts;           /* tokens within reasoning */
    uint32_t closing;            /* of thought_end, that have come */
    uint32_t unsent;             /* tokens that no DELTA told of yet */
    tr_detok_t echo_detok;
    uint32_t echoed;             /* prompt tokens given out, with echo */
    tr_sampled_t *prompt_scores; /* [prompt_len] with echo and logprobs, by
                                  * token; one for all choices of a prompt */
    float *pooled;               /* [request->pool.width]; NULL: it generates */
    uint64_t last_token_us;
    uint64_t kv_told_us; /* when its KV was told */
    uint64_t due_us; /* not to be scheduled before (executor.h), 0: at once */
    uint64_t order;  /* age: smaller is older; kept through preemption */
    struct tr_sequence *prev, *next;           /* scheduler lists */
    struct tr_sequence *line_prev, *line_next; /* its client's (fair.h) */
    uint64_t lacking_since_us; /* it could not run for want of room, 0: it was
                                * not tried */
    uint32_t uncharged;        /* of its prompt, to its client */
    bool expected;             /* it was told of that (fair.h) */
} tr_sequence_t;

/* What choices hold of the KV cache, together. */
typedef struct {
    uint64_t bytes, full_bytes;
    uint32_t at_full, at_high, at_low, pruned;  /* tokens (kv_cache.h) */
    double share_high, share_low, share_pruned; /* times full bytes */
} tr_request_kv_t;

void tr_request_kv_add(tr_request_kv_t *sum, const tr_kv_usage_t *u);
/* As records have it. */
void tr_request_kv_wire(const tr_request_kv_t *sum, tr_wire_usage_t *out);

/* A command of the publisher's, beside those of the worker (TR_CONTROL_*). */
#define TR_CONTROL_CANCEL 0x100u
#define TR_CANCELLED "The request was cancelled"

/* What a request for embeddings wants of its sequences: vectors that are pooled
 * over their prompts, and no token. */
typedef struct {
    uint32_t width;      /* of the model's vectors; 0: it wants none */
    uint32_t dimensions; /* of those that are told, at most width */
    bool mean;           /* over all tokens; else of the last one */
    bool normalise;      /* to length 1 */
    bool base64;         /* how the client wants to read them */
} tr_pool_t;

/* What an endpoint computed that generates nothing (RESULT of wire.h); ids and
 * text are the request's. */
typedef struct {
    uint32_t n_ids;
    const int32_t *ids;
    uint32_t text_len;
    const char *text;
    uint32_t context; /* tokens that fit the model's context */
    /* frontend thread: what was sent of it */
    bool accepted, context_sent;
    uint32_t ids_sent, text_sent;
} tr_result_t;

struct tr_request {
    uint64_t id; /* slot and generation in its channel */
    char request_id[TR_REQUEST_ID_MAX + 1];
    uint16_t endpoint; /* enum tr_endpoint */
    uint16_t submit_flags;
    bool plain;              /* its worker knows no ITEMs */
    uint64_t tenant;         /* of the SUBMIT: whose it is, 0: nobody's */
    uint32_t share;          /* of its tenant, 0: 1 */
    uint8_t plan_tier, tier; /* enum tr_tier: of its tenant's plan; in which
                                   * it is served.  0: the default */
    bool names_tier;         /* the client asked for one, and is told */
    uint32_t most_choices;   /* of its tenant's plan, 0: any number */
    uint64_t name;           /* on the status page while it starts */
    uint32_t charges;        /* engines that crashed when it started */
    tr_response_writer_t *writer; /* borrowed: outlives the request */
    void *owner;                  /* the frontend thread's own */
    tr_arena_t arena;

    /* body, gathered by the frontend thread, freed by the request parser after
     * parsing; and what came ahead of it: a replay block (wire.h), and the
     * model that the gateway read in it, if it says so */
    char *body;
    size_t body_len, body_cap;
    char *ahead; /* [replay_len + routed_len], NULL: nothing */
    uint32_t replay_len, routed_len;
    /* that of the engine's names which it asks for, NULL: it has none of them;
     * borrowed */
    const char *served_as;

    /* filled by the request parser */
    bool stream, include_usage, echo;
    bool usage_stats, include_kv; /* usage, and that of the KV cache, live */
    bool tell_stop;               /* which stop string ended a choice */
    uint32_t n;                   /* choices a prompt */
    uint32_t n_prompts;
    tr_sampling_params_t params;
    bool constrained;                /* by what follows, in the arena */
    tr_grammar_spec_t grammar_spec;  /* until it is compiled */
    tr_grammar_t *grammar;           /* one reference */
    const tr_kv_policy_t *kv_policy; /* NULL: the engine's; in the arena when
                                      * its thresholds are this request's */
    uint32_t max_len; /* of a sequence, with that policy; 0: any */
    bool kv_reuse;    /* it reads and writes cached prefixes, */
    /* whose: the frontend thread sets what came with the request, to which
     * the parser adds cache_salt */
    tr_prefix_key_t kv_key;
    tr_sequence_t *sequences; /* [n_sequences], choice = prompt * n + k */
    uint32_t n_sequences;
    uint32_t prompt_tokens; /* of all prompts, each counted once */
    uint64_t seed;          /* of all choices, drawn where none was given */
    uint64_t max_total;     /* tokens that all choices may have, together */
    uint32_t migrations;    /* engines that had it before; 0: it is new */
    uint32_t replayed;      /* tokens that they told, of all choices */
    int64_t created;        /* Unix time, s */
    tr_pool_t pool;
    const char *repeated; /* JSON members of its response, in the arena */
    uint32_t repeated_len;
    uint32_t repeated_sent; /* frontend thread: bytes */
    tr_result_t *result;    /* it is complete, and goes to no loop; else NULL */
    /* what the answers are made of (dialect.h); NULL: content alone */
    const tr_dialect_t *dialect;
    tr_dialect_tools_t tools; /* those that may be called; in the arena */
    bool inside;              /* the prompt ends within reasoning */
    bool single_call;         /* an answer ends with its first call */
    bool named_call;          /* it had to be one of this function: that ends
                               * an answer as a stop does */
    /* after so many tokens of reasoning, these close it; NULL: no limit */
    uint32_t thought_budget, n_thought_end;
    const int32_t *thought_end; /* in the arena */
    bool hide_reasoning;        /* it is counted and not sent */
    tr_error_t error;           /* status != TR_OK: refused */

    /* commands: TR_CONTROL_*; set by the frontend thread, read by the step loop
     * at every step.  ABORT, CANCEL and DETACH are never taken back; DETACH is
     * there only with TR_SUBMIT_DETACH, and then PAUSE is not. */
    _Atomic uint32_t control;

    /* tokens that it may sample (channel.h), where it is metered; set by the
     * frontend thread, never lowered */
    _Atomic uint32_t allowed;

    /* where its events go (request_events.h), NULL: nowhere; written by whoever
     * owns it */
    tr_request_events_t *events;
    uint64_t event_id;
    bool events_lost, events_lost_told; /* a record of it did not fit */
    bool events_closed;                 /* its last record was told */

    /* its place on the page, of whoever owns it; and: it has sampled enough
     * here, or is over (by the step loop) */
    uint32_t fresh;
    _Atomic uint32_t settled;
    uint64_t held_us; /* frontend thread: since when (suspects.c), 0: it was
                       * never held */

    /* a response that is kept: what is to be told of it (tr_event_kept_t),
     * owned, NULL: nothing or it was told */
    char *kept;
    uint64_t kept_input_len;
    uint32_t kept_ancestors_len;
    bool output_kept;
    uint8_t *told; /* its last records at another engine, as tr:out has them;
                    * owned, by the publisher when it was told */
    size_t told_len;
    uint64_t told_number;      /* of the last of them */
    bool elsewhere;            /* its worker has gone to another engine; of
                                * whoever owns it */
    _Atomic uint32_t gone;     /* the same, as the frontend thread saw it */
    uint8_t holder[TR_HOLDER]; /* of the SUBMIT */
    tr_lookup_t *lookup;       /* what its body refers to (kept.h), owned */

    uint64_t arrival_us;       /* CLOCK_MONOTONIC, first SUBMIT part */
    tr_request_t *prev, *next; /* list of whoever owns it now */

    /* step loop only, from here on */
    struct tr_client *client; /* whose it is; from the scheduler */
    uint32_t commands;        /* `control` as this step sees it */
    uint32_t sampling;        /* tokens of its sequences that are under way */
    uint64_t sample_turn;     /* of the scheduler: in which so many tokens */
    uint32_t samples;         /* were given out */
    uint64_t paused_since_us; /* 0: not paused */
    uint64_t scheduled_us;    /* first time in a batch, 0 before */
    uint64_t first_token_us, last_token_us; /* of all choices */
    uint64_t prefill_turn;      /* last step in which a prompt chunk ran */
    uint32_t completion_tokens; /* all choices */
    uint32_t reasoning_tokens;  /* of these */
    uint64_t progress_event_us; /* when the publisher was told of them */
    uint32_t open_sequences;    /* not yet finished */
    uint32_t running_sequences; /* of these, with a KV slot */
    uint32_t preemptions;
    uint32_t cached_tokens;  /* of its prompts, that were not computed again */
    bool cut;                /* its allowance ends it */
    uint32_t aborted_choice; /* the first one that an abort cut short */
    uint32_t last_choice;    /* the last one that reached its end, and how */
    uint16_t finish_reason;
    tr_request_kv_t kv; /* summed over finished choices */
};

/* Bytes of a vector in one record: a row of room takes it. */
#define TR_POOLED_PIECE 2048u

/* Rows of room in the response writer that a step of it may take. */
static inline uint32_t
tr_sequence_rows(const tr_sequence_t *q)
{
    if (q->pooled != NULL) {
        return q->request->pool.dimensions * (uint32_t) sizeof(float)
                   / TR_POOLED_PIECE
               + 1;
    }
    return q->dialect != NULL ? tr_dialect_rows(q->request->dialect) : 1;
}

/* The one token that may come next, where a budget of reasoning is spent; -1:
 * it is not. */
static inline int32_t
tr_sequence_must_say(const tr_sequence_t *q)
{
    const tr_request_t *r = q->request;

    if (r->thought_end == NULL || q->dialect == NULL
        || (q->closing == 0
            && (q->thoughts < r->thought_budget
                || !tr_dialect_inside(q->dialect)))) {
        return -1;
    }
    return r->thought_end[q->closing];
}

/* Its records go to Redis. */
static inline bool
tr_request_output_kept(const tr_request_t *r)
{
    return r->output_kept || (r->submit_flags & TR_SUBMIT_RESUMABLE) != 0;
}

/* Nobody can move it: its client has left and it goes on, or its worker has not
 * kept what a move takes.  Any thread; the loop may learn of it a step later. */
static inline bool
tr_request_stays(const tr_request_t *r)
{
    return (atomic_load_explicit(&r->control, memory_order_acquire)
            & (TR_CONTROL_DETACH | TR_CONTROL_STAY))
           != 0;
}

/* Another engine goes on with it, and counts all of it. */
static inline bool
tr_request_moves(const tr_request_t *r)
{
    return (r->submit_flags & TR_SUBMIT_IDS) != 0 && !tr_request_stays(r)
           && (r->elsewhere || r->error.status == TR_ERR_MOVED
               || r->error.status == TR_ERR_DRAINING
               || r->error.status == TR_ERR_LOST);
}

/* Its output is kept, and another engine goes on with it: the end here is none. */
static inline bool
tr_request_goes_elsewhere(const tr_request_t *r)
{
    return tr_request_output_kept(r) && tr_request_moves(r);
}

/* Its client has left, and it goes on: nothing but its end is sent, and nothing
 * waits for room or for the end of a pause. */
static inline bool
tr_request_detached(const tr_request_t *r)
{
    return (r->commands & TR_CONTROL_DETACH) != 0;
}

/* Tokens that it may have beyond those that are known or under way. */
static inline uint32_t
tr_request_allowance(const tr_request_t *r)
{
    uint64_t spent = r->completion_tokens + (uint64_t) r->sampling;
    uint64_t allowed = atomic_load_explicit(&r->allowed, memory_order_relaxed);

    if ((r->submit_flags & TR_SUBMIT_METERED) == 0) {
        return UINT32_MAX;
    }
    return allowed > spent ? (uint32_t) (allowed - spent) : 0;
}

/* It is metered, has had all that it may, and nobody will allow more.  Of one
 * that was detached the worker cannot know the first. */
static inline bool
tr_request_spent(const tr_request_t *r)
{
    return (r->submit_flags & TR_SUBMIT_METERED) != 0
           && (r->commands & TR_CONTROL_END) != 0
           && (!tr_request_detached(r)
               || (r->sampling == 0 && tr_request_allowance(r) == 0));
}

/* Lays out n_prompts * n sequences in the arena from the prompts' ids (copied):
 * tokens, sampler state, text stream, dialect, prompt scores.  Needs params, n,
 * echo, dialect.
 * TR_ERR_NOMEM, or TR_ERR_INVALID when the sizes overflow.  Choice k of every
 * prompt draws from its own random sequence; k = 0 from params.seed itself,
 * so that n = 1 gives the same first choice. */
tr_status_t tr_request_layout(tr_request_t *r, const tr_ids_t *prompts,
                              uint32_t n_prompts, uint32_t vocab,
                              const int32_t *eos, uint32_t n_eos,
                              const tr_tokenizer_t *t);

/* What r's answers may be: takes g, and gives each sequence a matcher in the
 * arena, behind the tokens that it has already (replay.h).  After the layout.
 * TR_ERR_INVALID: g does not allow these tokens. */
tr_status_t tr_request_constrain(tr_request_t *r, tr_grammar_t *g);

/* Frees the arena, the body and the request (which malloc gave). */
void tr_request_free(tr_request_t *r);

#endif
