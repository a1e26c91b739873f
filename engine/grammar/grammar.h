/*
 * Constrained decoding: which tokens may come next, so that an answer is JSON,
 * fits a JSON schema, a regular expression, a list of choices or a grammar.
 *
 *   tr_vocabulary_t  the bytes of all tokens as a trie, once an engine
 *   tr_grammar_t     compiled rules, shared by every request with the same ones
 *   tr_matcher_t     where one answer stands in its grammar
 *
 * A grammar is a set of rules.  A rule is a nondeterministic automaton over
 * bytes whose edges may also call a rule, call one a counted number of times,
 * or take one special token.  Rules are made deterministic state by state, when
 * an answer first gets there.  Compiling never looks at the vocabulary.
 *
 * A matcher is a set of at most TR_GRAMMAR_CONFIGS configurations; each is a
 * state of a rule and a stack of the calls that led there.  Stacks are shared
 * and immutable: a fork or a way back is a copy of the set.
 *
 * A mask has a bit a token: set means that the answer may go on with it.  Each
 * bit is what stepping through the token's bytes would say.  Masks are kept by
 * state, and by that part of the stack which decided about them.
 *
 * Sources: XGrammar (arXiv 2411.15100: tokens that a rule decides alone, and
 * those that the stack decides), llguidance (trie of the vocabulary, slices of
 * tokens that are plain text of a string), Outlines (arXiv 2307.09702: masks
 * kept by state).
 *
 * Threads: a grammar may be used by several at a time, each with a scratch of
 * its own; a matcher by one.  Nothing but compiling and the functions called
 * _new allocates.
 */
#ifndef TR_GRAMMAR_H
#define TR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "engine/tokenizer/tokenizer.h"

#define TR_GRAMMAR_CONFIGS 256u       /* of a matcher */
#define TR_GRAMMAR_DEPTH 256u         /* of a stack */
#define TR_GRAMMAR_STATES (1u << 18)  /* of the rules of a grammar */
#define TR_GRAMMAR_MEMORY (64u << 20) /* bytes, to compile one; its masks */
#define TR_GRAMMAR_MEMORY_KIND \
    (128u << 20) /* bytes, states of all grammars; masks of all */
#define TR_GRAMMAR_TEXT (256u << 10)    /* bytes of a schema or a grammar */
#define TR_GRAMMAR_TREE_TEXT (4u << 20) /* bytes of a tree */

typedef struct tr_vocabulary tr_vocabulary_t;
typedef struct tr_grammar tr_grammar_t;
typedef struct tr_grammar_scratch tr_grammar_scratch_t;
typedef struct tr_frame tr_frame_t;
typedef struct tr_frame_pool tr_frame_pool_t;

/* ---- the vocabulary (vocabulary.c) */

/* The bytes that token `id` adds to a text; len 0: it is never plain text (a
 * special token, or no token at all).  Borrowed until the next call. */
typedef const char *(*tr_token_bytes_f)(void *arg, int32_t id, uint32_t *len);

/* vocab: tokens of the model, which has a logit for each; ids below it.  NULL:
 * out of memory. */
tr_vocabulary_t *tr_vocabulary_new(uint32_t vocab, tr_token_bytes_f bytes,
                                   void *arg);
tr_vocabulary_t *tr_vocabulary_of(const tr_tokenizer_t *t, uint32_t vocab);
void tr_vocabulary_free(tr_vocabulary_t *v);

/* Token id is a special one: ["free"] lets it through. */
void tr_vocabulary_add_special(tr_vocabulary_t *v, uint32_t id);

/* Words of a mask: ceil(vocab / 32); bit id % 32 of word id / 32 is a token. */
uint32_t tr_vocabulary_words(const tr_vocabulary_t *v);

/* ---- grammars (grammar.c) */

enum tr_grammar_kind {
    TR_GRAMMAR_JSON,   /* any JSON object; no text */
    TR_GRAMMAR_SCHEMA, /* text: a JSON schema */
    TR_GRAMMAR_REGEX,  /* text: the whole answer matches it */
    TR_GRAMMAR_CHOICE, /* text: a JSON array of strings */
    TR_GRAMMAR_EBNF,   /* text: GBNF, or XGrammar's EBNF */
    TR_GRAMMAR_TREE    /* text: a tree (below) */
};

/* A tree is JSON that a program writes (engine/dialect/), one node of:
 *
 *   "text"                these bytes
 *   123                   this special token
 *   ["seq", NODE...]      one behind the other
 *   ["or", NODE...]       one of them; none: nothing matches
 *   ["many", NODE, SEP]   the node once or more, with SEP between two
 *   ["free", {...}]       any bytes and special tokens up to a mark:
 *       "stop": [[MARK, NODE]...]  it ends with the mark, and NODE follows
 *       "bar": [MARK...]           what never comes
 *       "first": "{"               bytes that do not begin it
 *       "end": true                the whole answer may end in it
 *       "special": false           no other special tokens come
 *     A mark is a text or a special token; of two that end at the same place
 *     the longer one counts.
 *   ["end"]               the end of the whole
 *   ["chars", "09", 1, 3] one to three bytes of these ranges
 *   ["space"]             white space as between tokens of JSON
 *   ["json"]              any JSON object
 *   ["schema", {...}]     JSON: "schema", "property" (of this one alone), "flags"
 *                         (TR_GRAMMAR_*), "name", "param" (for errors), "bar"
 *   ["inner"]             what the spec says beside the tree (around)
 *   ["inner", BAR]        the same, where that is JSON
 *     "bar" and BAR are lists of texts, in a tree always the same: none of them
 *     stands in a string of the JSON.  They begin with "<", and have no quote. */

/* Of a schema: what cannot be held is refused; else it is dropped and counted
 * (tr_grammar_dropped). */
#define TR_GRAMMAR_REFUSE 0x1u
/* Of a schema: an object that does not say so has no additional properties. */
#define TR_GRAMMAR_CLOSED 0x2u
#define TR_GRAMMAR_STRICT (TR_GRAMMAR_REFUSE | TR_GRAMMAR_CLOSED)
/* Of a schema: an object that lists properties, and says nothing else of which
 * it may have, has these alone.  Its schema would allow more; but models that
 * may go on with keys of their own do, and never come to an end. */
#define TR_GRAMMAR_LISTED 0x4u

/* What a request asks for.  All borrowed. */
typedef struct {
    enum tr_grammar_kind kind;
    unsigned flags; /* TR_GRAMMAR_* */
    const char *text;
    size_t len;
    const char *param; /* the field, for errors: "response_format" */
    const char *name;  /* of the schema, for errors; NULL: none */
    const char *what;  /* whose the schema is, for errors; NULL: param */
    /* a tree that stands around it, zero-terminated; NULL: none */
    const char *around;
} tr_grammar_spec_t;

/* TR_OK: *out has one reference, the caller's.  TR_ERR_INVALID: *err says what
 * is wrong with the text and where.  Bounded in time and memory. */
tr_status_t tr_grammar_compile(const tr_vocabulary_t *v,
                               const tr_grammar_spec_t *spec,
                               tr_grammar_t **out, tr_error_t *err);
tr_grammar_t *tr_grammar_ref(tr_grammar_t *g);
void tr_grammar_unref(tr_grammar_t *g); /* NULL is fine */

/* Keywords of the schema that are not held (only without REFUSE). */
uint32_t tr_grammar_dropped(const tr_grammar_t *g);

/* ---- compiled grammars by their text (grammar_cache.c) */

typedef struct tr_grammar_cache tr_grammar_cache_t;

/* v is borrowed.  NULL: out of memory. */
tr_grammar_cache_t *tr_grammar_cache_new(const tr_vocabulary_t *v);
void tr_grammar_cache_free(tr_grammar_cache_t *c);

/* The grammar if it is there, with a reference for the caller, else NULL. */
tr_grammar_t *tr_grammar_cache_find(tr_grammar_cache_t *c,
                                    const tr_grammar_spec_t *spec);
/* As tr_grammar_compile, once for equal specs: whoever comes while one is being
 * compiled waits for it. */
tr_status_t tr_grammar_cache_get(tr_grammar_cache_t *c,
                                 const tr_grammar_spec_t *spec,
                                 tr_grammar_t **out, tr_error_t *err);

/* ---- matchers (matcher.c) */

/* A thread's memory to step and to make masks; NULL: out of memory. */
tr_grammar_scratch_t *tr_grammar_scratch_new(const tr_vocabulary_t *v);
tr_grammar_scratch_t *tr_grammar_scratch_of(const tr_grammar_t *g);
void tr_grammar_scratch_free(tr_grammar_scratch_t *s);

/* Stacks of the matchers of one request, in memory of the caller's: size bytes,
 * 16-byte aligned, for n matchers. */
size_t tr_frame_pool_size(uint32_t n);
tr_frame_pool_t *tr_frame_pool_init(void *memory, uint32_t n);

typedef struct {
    tr_frame_t *frame; /* NULL: the stack is empty */
    uint32_t state;
} tr_config_of_matcher_t;

typedef struct {
    tr_grammar_t *grammar; /* borrowed; NULL: anything may come */
    tr_frame_pool_t *pool; /* borrowed */
    uint32_t n;
    bool can_end; /* the answer may end here */
    tr_config_of_matcher_t configs[TR_GRAMMAR_CONFIGS];
} tr_matcher_t;

/* At the beginning of the grammar. */
tr_status_t tr_matcher_init(tr_matcher_t *m, tr_grammar_t *g,
                            tr_frame_pool_t *pool);
/* *to (not initialised) becomes a copy of *from in the same pool. */
void tr_matcher_fork(tr_matcher_t *to, const tr_matcher_t *from);
/* Gives back its stacks. */
void tr_matcher_drop(tr_matcher_t *m);

/* Steps over one token, or over bytes.  TR_ERR_INVALID: the grammar does not
 * allow it, and *m stays as it was; TR_ERR_UNSUPPORTED: a limit was met. */
tr_status_t tr_matcher_token(tr_matcher_t *m, tr_grammar_scratch_t *s,
                             int32_t token);
tr_status_t tr_matcher_bytes(tr_matcher_t *m, tr_grammar_scratch_t *s,
                             const char *bytes, size_t len);

/* Nothing but the end may come. */
bool tr_matcher_over(const tr_matcher_t *m);

/* Writes the mask: [tr_vocabulary_words].  end: tokens that end an answer, set
 * where the answer may end.  A mask is never empty: TR_ERR_UNSUPPORTED when no
 * token could come, or a limit was met (the mask is then worthless). */
tr_status_t tr_matcher_mask(tr_matcher_t *m, tr_grammar_scratch_t *s,
                            const int32_t *end, uint32_t n_end, uint32_t *mask);

#endif
