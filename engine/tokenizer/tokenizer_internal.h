/*
 * What the files of the tokenizer share; nobody else includes this.
 *
 *   tokenizer.c            encode, from text to ids; lookups; scratch
 *   tokenizer_load.c       tokenizer.json to a tr_tokenizer_t
 *   tokenizer_vocab.c      pieces by id and ids by piece; growing buffers
 *   tokenizer_added.c      finding added tokens in text
 *   tokenizer_normalize.c  normalizers
 *   tokenizer_split.c      pre-tokenizers
 *   tokenizer_regex.c      the file's Oniguruma patterns, run by PCRE2
 *   tokenizer_bpe.c        merges
 *   detokenize.c           decoders, streaming
 *
 * Byte-level vocabularies write every byte as a printable character ("Ġ" for a
 * space).  That mapping is undone once, at load: the vocabulary that the
 * merges work with holds raw bytes, so that encoding never maps anything.
 */
#ifndef TR_TOKENIZER_INTERNAL_H
#define TR_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include <jansson.h>
#include <pcre2.h>

#include "engine/config/log.h"
#include "tokenizer.h"

#define TR_PIECE_MAX_BYTES 4096      /* of one token */
#define TR_TOKEN_ID_LIMIT (1u << 22) /* ids are below this */
#define TR_TEXT_MAX_BYTES (1u << 30) /* of one encode */

/* Growing buffers: false when memory is out. */
typedef struct {
    char *data;
    size_t len, cap;
} tr_bytes_t;

bool tr_bytes_append(tr_bytes_t *b, const char *data, size_t len);
bool tr_bytes_reserve(tr_bytes_t *b, size_t more);

typedef struct {
    uint32_t start, end;
} tr_span_t;

typedef struct {
    tr_span_t *data;
    uint32_t len, cap;
} tr_spans_t;

bool tr_spans_append(tr_spans_t *s, uint32_t start, uint32_t end);
bool tr_ids_append(tr_ids_t *ids, int32_t id);

/* Strings by id. */
typedef struct {
    tr_bytes_t blob;
    tr_span_t *at; /* [n], empty when absent */
    uint32_t n;
} tr_strings_t;

bool tr_strings_set(tr_strings_t *s, uint32_t id, const char *data, size_t len);
const char *tr_strings_get(const tr_strings_t *s, uint32_t id, uint32_t *len);
void tr_strings_free(tr_strings_t *s);

/* Ids by string; the strings stay in the tr_strings_t it was made for. */
typedef struct {
    int32_t *slots;
    uint32_t mask;
    uint32_t used;
} tr_string_map_t;

int32_t tr_string_map_find(const tr_string_map_t *m, const tr_strings_t *s,
                           const char *data, size_t len);
/* Adds s[id]; an equal string that is there already keeps its id. */
bool tr_string_map_add(tr_string_map_t *m, const tr_strings_t *s, int32_t id);

/* A regular expression of the file. */
typedef struct {
    pcre2_code *code;
} tr_regex_t;

typedef struct {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
} tr_regex_scratch_t;

tr_status_t tr_regex_compile(tr_regex_t *r, const char *pattern, size_t len,
                             const char *where, tr_error_t *err);
/* A literal string as a pattern. */
tr_status_t tr_regex_compile_literal(tr_regex_t *r, const char *text,
                                     size_t len, const char *where,
                                     tr_error_t *err);
/* The first match in text[from..len): *found false when there is none. */
tr_status_t tr_regex_find(const tr_regex_t *r, tr_regex_scratch_t *s,
                          const char *text, size_t len, size_t from,
                          tr_span_t *match, bool *found, tr_error_t *err);
bool tr_regex_scratch_init(tr_regex_scratch_t *s);
void tr_regex_scratch_free(tr_regex_scratch_t *s);

/* Normalizers, in order. */
enum tr_normalizer_kind {
    TR_NORMALIZE_UNICODE,
    TR_NORMALIZE_LOWERCASE,
    TR_NORMALIZE_PREPEND,
    TR_NORMALIZE_REPLACE
};

typedef struct {
    enum tr_normalizer_kind kind;
    bool compose, compat; /* UNICODE */
    char *text;           /* PREPEND: what; REPLACE: by what */
    size_t text_len;
    tr_regex_t pattern; /* REPLACE */
} tr_normalizer_t;

/* Pre-tokenizers, in order. */
enum tr_split_kind { TR_SPLIT_PATTERN, TR_SPLIT_PREFIX, TR_SPLIT_METASPACE };

enum tr_split_behaviour {
    TR_SPLIT_REMOVED,
    TR_SPLIT_ISOLATED,
    TR_SPLIT_MERGED_WITH_PREVIOUS,
    TR_SPLIT_MERGED_WITH_NEXT,
    TR_SPLIT_CONTIGUOUS
};

enum tr_prepend_scheme {
    TR_PREPEND_ALWAYS,
    TR_PREPEND_FIRST,
    TR_PREPEND_NEVER
};

typedef struct {
    enum tr_split_kind kind;
    tr_regex_t pattern; /* PATTERN */
    enum tr_split_behaviour behaviour;
    bool invert;
    enum tr_prepend_scheme prepend; /* METASPACE */
    char replacement[8];            /* METASPACE; PREFIX: the space */
} tr_splitter_t;

#define TR_STEPS_MAX 16

/* One added token; `start` nodes of the tries are the root's children. */
typedef struct {
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
    bool mark; /* of a chat, not special: text that a client wrote is none */
} tr_added_token_t;

typedef struct {
    uint8_t byte;
    int32_t token; /* index of the added token that ends here, -1 */
    int32_t child, sibling;
} tr_trie_node_t;

typedef struct {
    int32_t root[256]; /* node of each first byte, -1 */
    tr_trie_node_t *nodes;
    uint32_t n, cap;
} tr_trie_t;

void tr_trie_init(tr_trie_t *t);
bool tr_trie_add(tr_trie_t *t, const char *data, size_t len, int32_t token);

typedef struct {
    uint32_t left, right; /* ids; left UINT32_MAX: free slot */
    uint32_t rank;
    int32_t merged;
} tr_merge_t;

struct tr_tokenizer {
    tr_strings_t content; /* as in the file */
    tr_string_map_t by_content;
    tr_strings_t pieces; /* byte-level: raw bytes; else empty */
    tr_string_map_t by_piece;
    tr_strings_t decoded; /* token bytes in decoded text */
    uint32_t max_decoded;
    uint32_t n_ids;
    uint8_t *flags; /* [n_ids], TR_TOKEN_* */

    tr_added_token_t *added;
    uint32_t n_added;
    tr_trie_t raw_trie, normalized_trie;
    tr_trie_t tagged_trie; /* the raw ones, and all special tokens and marks */

    tr_normalizer_t normalizers[TR_STEPS_MAX];
    uint32_t n_normalizers;
    tr_splitter_t splitters[TR_STEPS_MAX];
    uint32_t n_splitters;
    bool byte_level;

    tr_merge_t *merges;
    uint32_t merge_mask;
    int32_t byte_ids[256]; /* byte-level: of each byte; else byte fallback */
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;

    bool strip_first_space;  /* decoder */
    tr_ids_t prefix, suffix; /* post-processor */
};

#define TR_TOKEN_SPECIAL 0x1u
#define TR_TOKEN_ADDED 0x2u

/* Words of up to 24 bytes and 8 ids that this scratch has seen. */
#define TR_CACHE_WORD 24
#define TR_CACHE_IDS 8
#define TR_CACHE_SLOTS 4096

typedef struct {
    uint8_t len; /* 0: free */
    uint8_t n;
    char word[TR_CACHE_WORD];
    int32_t ids[TR_CACHE_IDS];
} tr_cache_entry_t;

typedef struct {
    int32_t id; /* -1: merged into its left neighbour */
    uint32_t prev, next;
} tr_symbol_t;

struct tr_tokenizer_scratch {
    tr_regex_scratch_t regex;
    tr_bytes_t normalized[2];
    tr_bytes_t split_text[2];
    tr_spans_t spans[2];
    tr_spans_t segments;   /* of one pattern split; bit 31 of start: match */
    uint32_t *code_points; /* Unicode normalisation */
    size_t code_points_cap;
    tr_symbol_t *symbols;
    size_t symbols_cap;
    uint64_t *heap;
    size_t heap_len, heap_cap;
    tr_cache_entry_t *cache;
};

/* tokenizer_normalize.c: *text points into the scratch, or at the input. */
tr_status_t tr_normalizers_load(tr_tokenizer_t *t, const json_t *config,
                                tr_error_t *err);
tr_status_t tr_normalize(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
                         const char **text, size_t *len, tr_error_t *err);

/* tokenizer_split.c: words as spans of *text. */
tr_status_t tr_splitters_load(tr_tokenizer_t *t, const json_t *config,
                              tr_error_t *err);
tr_status_t tr_split(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
                     bool first, const char **text, size_t len,
                     const tr_spans_t **words, tr_error_t *err);

/* tokenizer_bpe.c */
tr_status_t tr_bpe_load(tr_tokenizer_t *t, const json_t *model,
                        tr_error_t *err);
tr_status_t tr_bpe_encode(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
                          const char *word, size_t len, tr_ids_t *out,
                          tr_error_t *err);

/* detokenize.c */
tr_status_t tr_decoder_load(tr_tokenizer_t *t, const json_t *config,
                            const json_t *pre_tokenizer, tr_error_t *err);

/* tokenizer_added.c: which added tokens count. */
typedef struct {
    bool special, marks; /* these, wherever they stand */
    const uint8_t *tags; /* of text: where both may stand; NULL: no say */
} tr_added_rule_t;

/* The next added token in text[from..len), extended by the whitespace that it
 * strips, at or after `from`; nothing is written when there is none. */
bool tr_added_find(const tr_tokenizer_t *t, const tr_trie_t *trie,
                   tr_added_rule_t rule, const char *text, size_t len,
                   size_t from, tr_span_t *at, int32_t *id);
/* Is this the content of a mark? */
bool tr_added_is_mark(const char *content);

/* tokenizer_vocab.c: byte-level writing undone; false when a character is not
 * of its alphabet.  out: at least len bytes. */
bool tr_byte_level_decode(const char *text, size_t len, char *out,
                          size_t *out_len);

/* tokenizer_load.c */
tr_status_t tr_load_unsupported(tr_error_t *err, const char *what,
                                const char *name, const char *known);

/* One character of valid UTF-8; *len its bytes. */
static inline uint32_t
tr_utf8_next(const char *text, uint32_t *len)
{
    const uint8_t *p = (const uint8_t *) text;

    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *len = 2;
        return (uint32_t) (p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *len = 3;
        return (uint32_t) (p[0] & 0x0f) << 12 | (uint32_t) (p[1] & 0x3f) << 6
               | (p[2] & 0x3f);
    }
    *len = 4;
    return (uint32_t) (p[0] & 0x07) << 18 | (uint32_t) (p[1] & 0x3f) << 12
           | (uint32_t) (p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

/* Length of the valid UTF-8 character at p, 0 when there is none. */
uint32_t tr_utf8_valid(const char *p, size_t len);

#endif
