/*
 * A response writer: the step loop's end of one channel's response ring.
 *
 * The step loop writes the records of wire.h into the memory that it shares
 * with the worker, and rings the worker itself: output passes through no other
 * thread.  It never waits: room for a whole step is asked for before the step,
 * and a full ring pauses the requests of its channel and nobody else.
 *
 * The frontend thread makes the response writer and takes it down.  A worker that
 * has gone is `closed`: what is still written for it is dropped.  Its memory is
 * unmapped when the last of its requests has come back and the loop has let go
 * (tr_response_writer_free).  A worker that breaks a rule where the loop meets it
 * is `broken`: dropped as well, and left to the frontend thread to close.
 */
#ifndef TR_RESPONSE_WRITER_H
#define TR_RESPONSE_WRITER_H

#include "engine/sampling/sampling.h"
#include "engine/tokenizer/tokenizer.h"
#include <tokenring/bell.h>
#include <tokenring/channel.h>
#include <tokenring/wire.h>

/* What one sequence may add to a response writer in one step, in bytes; a
 * tokenizer with longer tokens is refused when the loop starts. */
#define TR_RESPONSE_WRITER_TOKEN_BYTES 512
#define TR_RESPONSE_WRITER_TEXT_MAX \
    (TR_STOP_STRING_BYTES + TR_RESPONSE_WRITER_TOKEN_BYTES * 3 + 32)
#define TR_RESPONSE_WRITER_LOGPROB_MAX \
    ((1 + TR_TOP_LOGPROBS_MAX)         \
     * (sizeof(tr_wire_logprob_t) + TR_RESPONSE_WRITER_TOKEN_BYTES))

#define TR_RESPONSE_WRITER_IDS_MAX (TR_DELTA_TOKENS_MAX * sizeof(int32_t))

#define TR_RESPONSE_WRITER_MIN (64u << 10)

/* What an ERROR says about trying again, in seconds; 0: nothing. */
static inline uint32_t
tr_retry_after(tr_status_t status)
{
    tr_status_info_t info = tr_status_info(status);

    return info.http == 429 || info.http == 503 ? 1 : 0;
}

/* An ERROR record: its head and what follows. */
typedef struct {
    tr_wire_error_t head;
    tr_ring_piece_t pieces[3]; /* head, param, message: borrowed */
} tr_error_record_t;

void tr_response_writer_describe_error(const tr_error_t *err,
                                       uint32_t prompt_tokens,
                                       uint32_t completion_tokens,
                                       tr_error_record_t *out);

typedef struct tr_response_writer tr_response_writer_t;

enum tr_response_writer_fault {
    TR_RESPONSE_WRITER_SOUND,
    TR_RESPONSE_WRITER_BAD_INDEX, /* the worker's index is impossible */
    TR_RESPONSE_WRITER_BAD_BELL   /* its doorbell cannot be rung */
};

struct tr_response_writer {
    /* step loop only */
    tr_ring_producer_t ring;
    uint64_t full_since_us;         /* 0, or when it filled up */
    uint64_t turn;                  /* the step that the next two belong to */
    uint32_t batch, batch_logprobs; /* sequences that joined its batch */
    /* the last step in which one more, without and with logprobs, found no
     * room: even alone; beside that batch */
    uint64_t full[2], spent[2];
    uint32_t owed, owed_logprobs; /* of batches under way */
    tr_response_writer_t
        *next_staged; /* response writers with unpublished records */

    const tr_channel_map_t *channel; /* borrowed; NULL: none */
    int bell_fd;                     /* borrowed: the worker's doorbell */
    int frontend_fd;                 /* borrowed: wakes the frontend thread */
    _Atomic uint32_t held;   /* loop: records are staged, it will be back */
    _Atomic uint32_t waits;  /* loop sets, frontend takes: wants room */
    _Atomic uint32_t broken; /* loop: enum tr_response_writer_fault */
    _Atomic uint32_t closed; /* frontend */
};

/* The ring is borrowed, capacity at least TR_RESPONSE_WRITER_MIN. */
tr_status_t tr_response_writer_init(tr_response_writer_t *o,
                                    tr_ring_shared_t *shared, void *data,
                                    uint32_t capacity, int bell_fd,
                                    int frontend_fd);

/* Any thread: has the worker said that its requests go on elsewhere? */
static inline bool
tr_response_writer_fenced(const tr_response_writer_t *o)
{
    return o->channel != NULL && tr_channel_fenced(o->channel);
}

/* Frontend thread: the worker has gone. */
void tr_response_writer_close(tr_response_writer_t *o);
/* Frontend thread, after the last of its requests came back, and before the
 * ring is unmapped or a descriptor closed.  The step loop may still hold it: this
 * waits (microseconds) until it lets go. */
void tr_response_writer_free(tr_response_writer_t *o);

/* Step loop: is there room for one more step of `n` sequences of this channel,
 * `logprobs` of them with logprobs, beside what batches under way will say
 * (owed)?  Asked before a sequence joins a batch.
 * If not, the worker is asked to ring when it has made room, and `waits` is set:
 * the frontend thread then calls tr_loop_wake.  A dead response writer has
 * room. */
bool tr_response_writer_has_room(tr_response_writer_t *o, uint32_t n,
                                 uint32_t logprobs);

/* Step loop: stage one record each; they become visible with
 * tr_response_writer_publish, once a step.  They cannot fail when has_room said
 * yes; TR_AGAIN otherwise. */
tr_status_t tr_response_writer_started(tr_response_writer_t *o, uint64_t id,
                                       uint32_t cached_tokens);
tr_status_t tr_response_writer_delta(tr_response_writer_t *o, uint64_t id,
                                     const tr_wire_delta_t *head,
                                     const char *text, const void *logprobs,
                                     const int32_t *ids);
/* item->id_len bytes of item_id, item->name_len of name; a DELTA or FINISH of
 * the same step follows. */
tr_status_t tr_response_writer_item(tr_response_writer_t *o, uint64_t id,
                                    const tr_wire_item_t *item,
                                    const char *item_id, const char *name);
tr_status_t tr_response_writer_kv(tr_response_writer_t *o, uint64_t id,
                                  const tr_wire_kv_t *kv);
tr_status_t tr_response_writer_result(tr_response_writer_t *o, uint64_t id,
                                      const tr_wire_result_t *head,
                                      const void *bytes);
/* finish->tail_len bytes of tail: room for them is where a stop string was not
 * told as text. */
tr_status_t tr_response_writer_finish(tr_response_writer_t *o, uint64_t id,
                                      const tr_wire_finish_t *finish,
                                      const char *tail);
tr_status_t tr_response_writer_error(tr_response_writer_t *o, uint64_t id,
                                     const tr_error_t *err,
                                     uint32_t prompt_tokens,
                                     uint32_t completion_tokens);

/* Step loop: shows what is staged, and rings the worker if it sleeps.  False: it
 * has gone to other engines (tr_channel_fence), and hears nothing of it. */
bool tr_response_writer_publish(tr_response_writer_t *o, tr_bell_t *bell);
/* From here on the frontend thread may free it. */
void tr_response_writer_let_go(tr_response_writer_t *o);

/* The bell of the calling thread, one that rings workers; the log says it when
 * there is no timer for it. */
void tr_response_writer_open_bell(tr_bell_t *bell);

/* Encodes one token's logprob entry (wire.h) at out; bytes written, 0 when it
 * does not fit.  TR_RESPONSE_WRITER_LOGPROB_MAX always suffices. */
uint32_t tr_response_writer_encode_logprob(const tr_tokenizer_t *t,
                                           const tr_sampled_t *sampled,
                                           void *out, uint32_t cap);

#endif
