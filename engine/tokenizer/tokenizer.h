/*
 * The tokenizer of a Hugging Face directory (tokenizer.json, BPE).
 *
 * Two dialects: byte-level (Llama 3, Qwen, pocket) and SentencePiece-style
 * with byte fallback (Llama 2, Mistral).  Pre-tokenisation by PCRE2 with the
 * file's own patterns, normalisation by utf8proc.  Immutable after load: any
 * number of threads may encode with one tokenizer, each with its own
 * tr_tokenizer_scratch_t.
 */
#ifndef TR_TOKENIZER_H
#define TR_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tokenring/error.h>

typedef struct tr_tokenizer tr_tokenizer_t;
typedef struct tr_tokenizer_scratch tr_tokenizer_scratch_t;

/* Loads dir/tokenizer.json.  On failure *out is NULL and *err tells why. */
tr_status_t tr_tokenizer_load(const char *dir, tr_tokenizer_t **out,
                              tr_error_t *err);
void tr_tokenizer_free(tr_tokenizer_t *t);

tr_tokenizer_scratch_t *tr_tokenizer_scratch_new(const tr_tokenizer_t *t);
void tr_tokenizer_scratch_free(tr_tokenizer_scratch_t *s);

uint32_t tr_tokenizer_vocab_size(const tr_tokenizer_t *t); /* highest id + 1 */

/* Growing array of ids, freed with free(ids.data). */
typedef struct {
    int32_t *data;
    uint32_t len, cap;
} tr_ids_t;

/* Flags of tr_tokenizer_encode.  SPECIAL: run the post-processor, which adds
 * BOS etc.  PARSE_SPECIAL: special added tokens in the text count.  MIDDLE: the
 * text continues something, so that a Metaspace pre-tokenizer with "first" does
 * not prefix it. */
#define TR_ENCODE_SPECIAL 0x1u
#define TR_ENCODE_PARSE_SPECIAL 0x2u
#define TR_ENCODE_MIDDLE 0x4u

/* Appends the ids of text[0..len) to *out.  Invalid UTF-8: TR_ERR_INVALID with
 * the byte offset in err.  Added tokens that are not special always count. */
tr_status_t tr_tokenizer_encode(const tr_tokenizer_t *t,
                                tr_tokenizer_scratch_t *s, const char *text,
                                size_t len, unsigned flags, tr_ids_t *out,
                                tr_error_t *err);

/* Origin of a byte of a text that was put together: by the server itself, by a
 * model, by a client. */
enum { TR_TEXT_TRUSTED, TR_TEXT_MODEL, TR_TEXT_CLIENT };

/* The same for a text whose bytes have tags, TR_TEXT_*.  A special token counts
 * only where all its bytes are trusted.  An added token that is not special, but
 * a mark of a chat (<think>, <tool_call>, ...), counts in what a model wrote,
 * too; a client's is plain text.  Other added tokens count everywhere.  No
 * post-processor: the text brings its BOS. */
tr_status_t tr_tokenizer_encode_tagged(const tr_tokenizer_t *t,
                                       tr_tokenizer_scratch_t *s,
                                       const char *text, const uint8_t *tags,
                                       size_t len, tr_ids_t *out,
                                       tr_error_t *err);

/* Id of an added or vocabulary token by its content, -1 when absent. */
int32_t tr_tokenizer_find(const tr_tokenizer_t *t, const char *content);
bool tr_tokenizer_is_special(const tr_tokenizer_t *t, int32_t id);

/* Raw bytes of one token as it appears in decoded text (byte-level mapping and
 * SentencePiece's U+2581 undone; a byte-fallback token is its one byte).
 * Borrowed from the tokenizer; len 0 for ids outside the vocabulary. */
const char *tr_tokenizer_token_bytes(const tr_tokenizer_t *t, int32_t id,
                                     uint32_t *len);

/* Streaming detokeniser of one sequence, no allocation: holds back the bytes of
 * an unfinished UTF-8 character; bytes that can no longer become one turn
 * into U+FFFD as in the reference.  Zero-initialised by tr_detok_init. */
typedef struct {
    uint8_t held[4];
    uint8_t n_held;
    bool at_start; /* SentencePiece strips the first space */
    bool skip_special;
} tr_detok_t;

void tr_detok_init(tr_detok_t *d, bool skip_special);
/* Continue after a prompt: the first space is not stripped then. */
void tr_detok_continue(tr_detok_t *d);

/* Writes the text that token `id` completes to out (cap >= token bytes * 3 +
 * 16); returns the number of bytes. */
uint32_t tr_detok_push(tr_detok_t *d, const tr_tokenizer_t *t, int32_t id,
                       char *out, uint32_t cap);
/* What is left at the end (U+FFFD for an unfinished character). */
uint32_t tr_detok_finish(tr_detok_t *d, char *out, uint32_t cap);

/* Longest tr_tokenizer_token_bytes of the vocabulary. */
uint32_t tr_tokenizer_max_token_bytes(const tr_tokenizer_t *t);

#endif
