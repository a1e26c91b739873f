/*
 * The text side of one sequence: output tokens in, text to send out.
 *
 * Two things keep text back for a while: an unfinished UTF-8 character (the
 * detokeniser holds its bytes) and the beginning of what may become a stop
 * string.  The held text is bounded by the longest stop string.
 *
 * Stop strings are found as if the text came byte by byte, so the result does
 * not depend on where the borders of tokens lie: the first stop string to
 * become complete ends the text, and of several that end at the same byte the
 * longest.  The match itself is dropped unless params->include_stop; what
 * follows it is dropped always.  Before params->min_tokens tokens have been
 * pushed nothing matches.
 *
 * Each stop string runs as a Knuth-Morris-Pratt automaton, whose state is how
 * much of it the text now ends with: the longest of them is what is held.
 *
 * No allocation after init: the memory comes from the request's arena.
 */
#ifndef TR_TEXT_STREAM_H
#define TR_TEXT_STREAM_H

#include "sampling.h"
#include "engine/tokenizer/tokenizer.h"

typedef struct {
    tr_detok_t detok;
    const tr_tokenizer_t *tokenizer;    /* borrowed */
    const tr_sampling_params_t *params; /* borrowed: stop strings */
    char *buf; /* held text, then what the last push added */
    uint32_t cap;
    uint32_t len;    /* bytes in buf */
    uint32_t given;  /* the first `given` of them went out already */
    uint32_t pushed; /* tokens so far */
    bool stopped;    /* a stop string was met: later tokens give nothing */
    int32_t stop;    /* which one, then */
    uint16_t *fail;  /* failure tables, one after the other */
    uint16_t state[TR_STOP_STRINGS_MAX];
} tr_text_stream_t;

typedef struct {
    const char *text; /* borrowed, until the next call on this stream */
    uint32_t len;     /* whole UTF-8 characters */
    int32_t stop;     /* index of the stop string that ended it, else -1 */
} tr_text_out_t;

/* Bytes of memory that a stream with these parameters needs.  room: of one
 * tr_text_stream_feed; 0: it is not called. */
size_t tr_text_stream_size(const tr_tokenizer_t *t,
                           const tr_sampling_params_t *params, uint32_t room);

/* memory: tr_text_stream_size bytes, 8-byte aligned, borrowed.  Special tokens
 * give no text.  The stream continues a prompt: a first space is kept. */
void tr_text_stream_init(tr_text_stream_t *s, const tr_tokenizer_t *t,
                         const tr_sampling_params_t *params, uint32_t room,
                         void *memory);

/* The most bytes that one push or finish can give. */
uint32_t tr_text_stream_max_out(const tr_text_stream_t *s);

/* One output token; *out is the text that may go to the client now. */
void tr_text_stream_push(tr_text_stream_t *s, int32_t token,
                         tr_text_out_t *out);

/* The two halves of a push, for who does something with the text before stop
 * strings are looked for.  detok: the text that a token completes, in out (room
 * as tr_detok_push wants it; borrowed); text_stream_feed: text that is content,
 * at most `room` bytes of tr_text_stream_init's. */
uint32_t tr_text_stream_detok(tr_text_stream_t *s, int32_t token, char *text,
                              uint32_t cap);
void tr_text_stream_feed(tr_text_stream_t *s, const char *text, uint32_t len,
                         tr_text_out_t *out);
/* Content ends here, and perhaps goes on after something else: gives out what
 * was held. */
void tr_text_stream_break(tr_text_stream_t *s, tr_text_out_t *out);

/* The end for another reason than a stop string: gives out what was held, with
 * U+FFFD for an unfinished character. */
void tr_text_stream_finish(tr_text_stream_t *s, tr_text_out_t *out);

#endif
