/*
 * What the files of constrained decoding share; nobody else includes this.
 *
 *   vocabulary.c      tokens as two tries: plain text of a string, and the rest
 *   rules.c           building rules: states, edges, calls
 *   rules_finish.c    checks of finished rules; what can never end is cut away
 *   automaton.c       deterministic states, made when first visited
 *   stacks.c          sets of configurations: closure and step
 *   matcher.c         the position of an answer
 *   mask_walk.c       the tokens that a set of configurations allows
 *   mask.c            masks, and how they are kept
 *   grammar.c         from a spec to a grammar; its memory
 *   grammar_cache.c   grammars by their text
 *   tree.c            grammars as a tree of JSON: texts, special tokens, schemas
 *   marks.c           automata that find the first of some texts
 *   rules_barred.c    rules of JSON without some texts in its strings
 *   charset.c         sets of code points, and their bytes
 *   regex_parse.c     regular expressions to a tree
 *   regex.c           the tree to rules
 *   char_automaton.c  patterns of JSON strings: deterministic, over code points
 *   char_rules.c      these as rules of bytes
 *   ebnf.c            GBNF and XGrammar's EBNF to rules
 *   json_rules.c      any JSON
 *   schema*.c         JSON schemas to rules (schema_internal.h)
 */
#ifndef TR_GRAMMAR_INTERNAL_H
#define TR_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "grammar.h"

#define TR_UNBOUNDED UINT32_MAX

/* ---- vocabulary */

/* A trie in preorder: node i is followed by its subtree, which ends before
 * skip[i].  Node 0 is the root.  Its tokens: ids[token[i] .. token[i + 1]). */
typedef struct {
    uint32_t n;
    uint8_t *byte;
    uint32_t *skip, *token; /* [n], [n + 1] */
    int32_t *ids;
    /* [2 n] of the plain trie: a bit for each byte of ASCII below a node; that
     * of U+007F: other bytes */
    uint64_t *below;
} tr_vocabulary_trie_t;

/* Lengths in characters up to which plain tokens have a mask of their own. */
#define TR_PLAIN_MASKS 16u

struct tr_vocabulary {
    uint32_t vocab, words;
    uint32_t longest; /* token, in bytes */
    /* of those that are not plain and have no control characters: what a token
     * may add to a string before it leaves it */
    uint32_t longest_in_string;
    char *bytes;     /* of all tokens */
    uint32_t *start; /* [vocab + 1] */
    /* plain: whole UTF-8 characters from U+0020, but no quote, backslash or
     * '<' */
    tr_vocabulary_trie_t plain, rest;
    uint32_t *special; /* [words] special tokens */
    uint32_t
        *plain_mask[TR_PLAIN_MASKS + 1]; /* of at most so many characters */
    /* longer plain tokens, by length: ids and characters */
    uint32_t n_long;
    int32_t *long_id;
    uint32_t *long_chars;
};

/* ---- rules while they are built */

enum tr_edge_kind { TR_EDGE_EMPTY, TR_EDGE_BYTES, TR_EDGE_CALL, TR_EDGE_TOKEN };

enum tr_site_kind {
    TR_SITE_CALL,
    TR_SITE_REPEAT, /* the rule min to max times */
    TR_SITE_LENGTH  /* the rule once, min to max ticks (characters) in it */
};

typedef struct {
    uint8_t kind, lo, hi;
    uint32_t target; /* state; CALL: site; TOKEN: index of tokens */
    uint32_t next;   /* edge of the same state, UINT32_MAX: none */
} tr_edge_t;

typedef struct {
    uint8_t kind;
    bool tail; /* a CALL behind which the calling rule ends */
    uint32_t rule, from, to, min, max;
    uint32_t to_state; /* deterministic, 0: not visited */
} tr_site_t;

typedef struct {
    uint32_t start, accept;
    bool nullable;
    uint32_t start_state; /* deterministic, 0: not visited */
    const char *name;     /* for errors, in rules->names; NULL */
} tr_rule_t;

/* In place of a token: any special token that no other edge of the grammar
 * names. */
#define TR_ANY_SPECIAL (-1)

typedef struct {
    int32_t token;
    uint32_t to, to_state;
} tr_token_edge_t;

typedef struct {
    uint32_t *first; /* [n_states] edge */
    bool *tick;      /* [n_states] an edge of bytes into it ends a character */
    uint32_t n_states, cap_states;
    tr_edge_t *edges;
    uint32_t n_edges, cap_edges;
    tr_site_t *sites;
    uint32_t n_sites, cap_sites;
    tr_rule_t *rules;
    uint32_t n_rules, cap_rules;
    tr_token_edge_t *tokens;
    uint32_t n_tokens, cap_tokens;
    char **names; /* [n_names] of rules */
    uint32_t n_names, cap_names;
    uint64_t work;      /* counted, to bound it */
    uint64_t work_max;  /* 0: TR_RULES_WORK */
    tr_status_t failed; /* TR_OK, or why nothing is added any more */
} tr_rules_t;

#define TR_RULES_WORK (11u << 19) /* some 190 ms */

void tr_rules_free(tr_rules_t *b);
/* All of these do nothing when building has failed, and give 0. */
uint32_t tr_rules_state(tr_rules_t *b);
uint32_t tr_rules_rule(tr_rules_t *b, const char *name);
/* A rule between two states that are there and have no other edges. */
uint32_t tr_rules_rule_of(tr_rules_t *b, const char *name, uint32_t start,
                          uint32_t accept);
/* A copy of a name that lives as long as b. */
const char *tr_rules_name(tr_rules_t *b, const char *name, size_t len);
void tr_rules_empty(tr_rules_t *b, uint32_t from, uint32_t to);
void tr_rules_bytes(tr_rules_t *b, uint32_t from, uint8_t lo, uint8_t hi,
                    uint32_t to);
void tr_rules_text(tr_rules_t *b, uint32_t from, const char *text, size_t len,
                   uint32_t to);
void tr_rules_call(tr_rules_t *b, uint32_t from, uint32_t rule, uint32_t to);
void tr_rules_repeat(tr_rules_t *b, uint32_t from, uint32_t rule, uint32_t min,
                     uint32_t max, uint32_t to);
void tr_rules_length(tr_rules_t *b, uint32_t from, uint32_t rule, uint32_t min,
                     uint32_t max, uint32_t to);
void tr_rules_token(tr_rules_t *b, uint32_t from, int32_t token, uint32_t to);
/* Counts work; false when there was too much, or building has failed. */
bool tr_rules_count(tr_rules_t *b, uint64_t work);

/* What was added since a mark is taken back; work stays counted.  States that
 * were there must not have got edges since. */
typedef struct {
    uint32_t n_states, n_edges, n_sites, n_rules, n_tokens, n_names;
} tr_rules_mark_t;
tr_rules_mark_t tr_rules_mark(const tr_rules_t *b);
void tr_rules_back(tr_rules_t *b, const tr_rules_mark_t *mark);

/* One of n texts: sorted, so that common beginnings are shared. */
typedef struct {
    const char *text;
    size_t len;
} tr_text_t;

/* For qsort: texts by their bytes, uint32_t by their value. */
int tr_text_order(const void *a, const void *b);
int tr_number_order(const void *a, const void *b);
void tr_rules_texts(tr_rules_t *b, uint32_t from, tr_text_t *texts, size_t n,
                    uint32_t to);

/* ---- texts that are looked for (marks.c): Aho and Corasick's automaton */

#define TR_NO_MARK (-1)

typedef struct {
    uint32_t next[256]; /* node after this byte; 0: the beginning */
    uint32_t fail;
    int mark; /* what ends here, as it was added, or TR_NO_MARK */
    bool own; /* it is a mark of its own, and not the end of another text's */
} tr_mark_node_t;

/* Zeroed, and then texts are added; before use it is completed. */
typedef struct {
    tr_mark_node_t *nodes;
    uint32_t n, cap;
    bool failed; /* memory, or too many of them */
} tr_marks_t;

/* Nothing of len 0.  Of equal texts the first counts. */
void tr_marks_add(tr_marks_t *m, const char *text, size_t len, int mark);
/* Of two that end at one place the longer one counts.  false: failed. */
bool tr_marks_complete(tr_marks_t *m);
void tr_marks_free(tr_marks_t *m);

/* ---- rules of JSON in whose strings none of some texts stands
 * (rules_barred.c).  The texts begin with '<' and have no quote in them. */

typedef struct tr_bars tr_bars_t;

/* texts: completed; taken.  NULL: out of memory. */
tr_bars_t *tr_bars_new(tr_marks_t *texts);
void tr_bars_free(tr_bars_t *bars);
/* A copy of the rule, and of all that it calls; copies that are there are used
 * again.  A string may still spell the text with \u003c. */
uint32_t tr_rules_barred(tr_rules_t *b, tr_bars_t *bars, uint32_t rule);
/* Copies are forgotten: rules were taken back. */
void tr_bars_reset(tr_bars_t *bars);

/* ---- finished rules */

typedef struct {
    uint8_t kind, lo, hi;
    uint32_t target;
} tr_move_t;

typedef struct {
    uint32_t n_states, n_rules, n_sites, n_tokens;
    uint32_t *first; /* [n_states + 1] moves of a state */
    tr_move_t *moves;
    uint8_t *flags; /* [n_states] TR_NFA_* */
    tr_site_t *sites;
    tr_rule_t *rules;
    tr_token_edge_t *tokens;
    uint8_t class_of[256];
    uint32_t n_classes;
} tr_program_t;

#define TR_NFA_ACCEPT 0x1u
#define TR_NFA_MATTERS 0x2u /* has an edge that is not empty, or accepts */
#define TR_NFA_TICK 0x4u
#define TR_NFA_FINAL 0x8u /* the end of rule 0, which nobody calls */

/* Rule 0 is the whole.  Checks, cuts away, and packs; b is used up but still
 * to be freed.  TR_ERR_INVALID: nothing matches, or a rule calls itself before
 * it has taken a byte. */
tr_status_t tr_program_finish(tr_rules_t *b, tr_program_t *out,
                              const char *param, tr_error_t *err);
void tr_program_free(tr_program_t *p);

/* ---- deterministic states */

#define TR_DEAD 0u /* no state */
#define TR_UNKNOWN UINT32_MAX

#define TR_STATE_ACCEPT 0x1u
#define TR_STATE_CALLS 0x2u
#define TR_STATE_TOKENS 0x4u
#define TR_STATE_BYTES 0x8u
#define TR_STATE_TICK 0x10u  /* by a byte that ended a character */
#define TR_STATE_START 0x20u /* of a rule, which has taken nothing yet */
#define TR_STATE_FINAL 0x40u /* the whole may end here */
#define TR_STATE_KEY (TR_STATE_TICK | TR_STATE_START)

enum { TR_PLAIN_UNKNOWN, TR_PLAIN_NO, TR_PLAIN_YES };

/* A deterministic state, by its offset in the arena, in units of 16 bytes. */
typedef struct {
    uint32_t hash, chain; /* next state of its bucket */
    uint32_t n_set, n_sites, n_tokens;
    uint8_t flags, plain;
    bool loops_known;
    uint64_t loops[2]; /* bytes of ASCII, but U+007F, that lead back to it */
    uint64_t contexts; /* bit k: masks by k entries of the stack are there */
    uint32_t *set;     /* [n_set] ascending */
    uint32_t *sites;   /* [n_sites] */
    uint32_t *tokens;  /* [n_tokens] */
    uint32_t row[];    /* [n_classes] the next state, DEAD, or UNKNOWN */
} tr_state_t;

/* States and masks have limits of their own: a grammar without room for masks
 * makes them anew, one without room for states is of no more use. */
enum tr_arena_kind { TR_ARENA_STATES, TR_ARENA_MASKS };

/* Memory that is reserved at once and used from its beginning. */
typedef struct {
    uint8_t *base;
    size_t used, counted, size;
    enum tr_arena_kind kind;
} tr_grammar_arena_t;

#define TR_STATE_BUCKETS 4096u
#define TR_MASK_BUCKETS 4096u

typedef struct tr_kept_mask tr_kept_mask_t;

struct tr_grammar {
    _Atomic uint32_t refs;
    const tr_vocabulary_t *vocabulary;
    tr_program_t program;
    uint32_t *any; /* [words] tokens of TR_ANY_SPECIAL; NULL: no such edge */
    uint32_t dropped;
    bool nullable;
    pthread_mutex_t lock; /* of all that follows */
    tr_grammar_arena_t states, masks;
    uint32_t state_bucket[TR_STATE_BUCKETS];
    tr_kept_mask_t *mask_bucket[TR_MASK_BUCKETS];
    uint32_t *mark, *list; /* [n_states] of the closure */
    uint32_t generation;
    _Atomic bool spent; /* no memory for another state; read without the lock */
    uint64_t cost;      /* moves that this mask, or this step, has looked at */
};

/* Of one mask, or one step: some 30 ms in which the grammar is locked. */
#define TR_GRAMMAR_COST (1u << 23)

/* Is the token one of TR_ANY_SPECIAL's? */
static inline bool
tr_grammar_any(const tr_grammar_t *g, int32_t token)
{
    return g->any != NULL && (g->any[token / 32] >> (token % 32) & 1) != 0;
}

static inline tr_state_t *
tr_state_at(const tr_grammar_t *g, uint32_t state)
{
    return (tr_state_t *) (void *) (g->states.base + (size_t) state * 16);
}

/* NULL when the grammar, or all of them, have used what they may. */
void *tr_grammar_alloc(tr_grammar_arena_t *a, size_t n);
bool tr_grammar_arena_init(tr_grammar_arena_t *a, size_t size,
                           enum tr_arena_kind kind);
void tr_grammar_arena_reset(tr_grammar_arena_t *a);
void tr_grammar_arena_free(tr_grammar_arena_t *a);
/* Have the grammars together used half of what they may, of either kind? */
bool tr_grammar_memory_tight(void);

/* 0 when memory is out: g->spent. */
uint32_t tr_state_start(tr_grammar_t *g, uint32_t rule);
uint32_t tr_state_behind(tr_grammar_t *g, uint32_t site);
uint32_t tr_state_behind_token(tr_grammar_t *g, uint32_t token_edge);
uint32_t tr_state_make(tr_grammar_t *g, uint32_t state, uint8_t class_of,
                       uint8_t byte);

/* TR_DEAD: nothing comes with this byte (or memory is out). */
static inline uint32_t
tr_state_next(tr_grammar_t *g, uint32_t state, uint8_t byte)
{
    uint8_t class_of = g->program.class_of[byte];
    uint32_t next = tr_state_at(g, state)->row[class_of];

    return next != TR_UNKNOWN ? next : tr_state_make(g, state, class_of, byte);
}

/* ---- sets of configurations */

/* A call under way.  Immutable but for its count of references. */
struct tr_frame {
    tr_frame_t *parent;
    tr_frame_t *moved; /* of a scratch frame: the kept copy; free list */
    uint32_t site, count, depth;
    uint32_t refs; /* 0: in a scratch */
};

/* The frame on which a walk of one rule stands: what is below is not known. */
#define TR_FRAME_BOTTOM UINT32_MAX
#define TR_NO_SITE UINT32_MAX /* of a bottom: the stack was empty */

/* Does the frame count the characters in it? */
static inline bool
tr_frame_counts(const tr_grammar_t *g, const tr_frame_t *f)
{
    return f != NULL && f->site != TR_NO_SITE
           && g->program.sites[f->site].kind == TR_SITE_LENGTH;
}

struct tr_frame_pool {
    tr_frame_t *free;
    uint32_t n_free, n;
};

typedef tr_config_of_matcher_t tr_configuration_t;

typedef struct {
    uint32_t first, n; /* in the scratch's configs */
    uint32_t frames;   /* of a walk: of the scratch, with this set's */
    uint32_t end;      /* of a walk: where the siblings end */
    bool ended;        /* the whole grammar may end here */
    bool left;         /* the rule of the bottom frame may end here ... */
    uint32_t ticks;    /* ... after so many ticks */
} tr_config_set_t;

#define TR_SCRATCH_FRAMES 65536u
#define TR_SCRATCH_CONFIGS 65536u
#define TR_SCRATCH_LEAVES 65536u
/* Steps of a mask, at least; more where the vocabulary is large. */
#define TR_SCRATCH_WORK (1u << 20)

/* Node of a trie at which a rule ends that is not the last byte. */
typedef struct {
    uint32_t node; /* bit 31: of the plain trie */
    uint32_t ticks;
} tr_leave_t;

/* Of a walk in which only the state changes: it, where its siblings end, and
 * the characters so far, if they count. */
typedef struct {
    uint32_t state, end, ticks;
} tr_walk_level_t;

struct tr_grammar_scratch {
    const tr_vocabulary_t *vocabulary;
    tr_frame_t *frames; /* [TR_SCRATCH_FRAMES] */
    uint32_t n_frames;
    tr_configuration_t *configs; /* [TR_SCRATCH_CONFIGS] */
    uint32_t n_configs;
    tr_config_set_t *levels; /* [longest token + 2] */
    tr_walk_level_t *path;   /* [longest token + 2] */
    tr_leave_t *leaves;
    uint32_t n_leaves;
    uint32_t *bits;        /* [words] */
    int32_t *few;          /* [vocab] ids of a mask, while they are few */
    uint32_t looked;       /* depth of the lowest frame that was looked at */
    uint32_t bottom_count; /* with which the frame of a walk began */
    uint32_t work, work_limit;
    bool deep;  /* a call was too deep: what came of it holds at this depth */
    bool limit; /* a limit was met: what came of it is worthless */
};

/* A byte in *frame, which counts characters, that leads to a state with these
 * flags; false: there is no room for what it begins. */
bool tr_frame_byte(tr_grammar_t *g, tr_grammar_scratch_t *s, tr_frame_t **frame,
                   uint8_t flags);

/* NULL: too deep, or (s->limit) the scratch is full. */
tr_frame_t *tr_frame_push(tr_grammar_scratch_t *s, tr_frame_t *parent,
                          uint32_t site, uint32_t count);

/* The configurations that s->configs[set->first ..) lead to without a byte: by
 * the ends of rules, and (with calls) by calls. */
void tr_set_close(tr_grammar_t *g, tr_grammar_scratch_t *s,
                  tr_config_set_t *set, bool calls);
/* Adds what a frame's end leads to; ticks: beyond its count. */
void tr_set_pop(tr_grammar_t *g, tr_grammar_scratch_t *s, tr_config_set_t *set,
                tr_frame_t *frame, uint32_t ticks);
void tr_set_add(tr_grammar_scratch_t *s, tr_config_set_t *set,
                tr_frame_t *frame, uint32_t state);
void tr_set_begin(tr_grammar_scratch_t *s, tr_config_set_t *set);
/* *to (begun behind *from) becomes what `byte` makes of *from, which is
 * closed; not closed. */
void tr_set_step(tr_grammar_t *g, tr_grammar_scratch_t *s,
                 const tr_config_set_t *from, uint8_t byte,
                 tr_config_set_t *to);

/* ---- walks through the vocabulary (mask_walk.c) */

#define TR_PLAIN_NODE 0x80000000u /* a node is of the plain trie */

/* What a walk finds: bits in s->bits, and ids in s->few as far as not dense. */
typedef struct {
    tr_grammar_t *g;
    tr_grammar_scratch_t *s;
    uint32_t n_few;
    bool dense;  /* s->bits began with more than what is in s->few */
    bool base;   /* ends of the bottom frame are noted */
    bool counts; /* the bottom frame's count decides whether it may end */
} tr_walk_t;

/* The tokens at a node. */
void tr_walk_take(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t node);
/* The tokens below `root` that *set, which is closed, allows.  dead: [256] bytes
 * that are known to lead nowhere from *set; NULL: none. */
void tr_walk(tr_walk_t *w, const tr_vocabulary_trie_t *t, uint32_t root,
             const tr_config_set_t *set, bool *dead);
/* Plain tokens that *set, which is closed, allows; walks only as far as it must. */
void tr_walk_plain(tr_walk_t *w, const tr_config_set_t *set);
/* Does any plain text go on from here, without an end of the rule in it? */
bool tr_state_takes_plain(tr_grammar_t *g, uint32_t state);

/* ---- masks */

tr_status_t tr_mask_fill(tr_grammar_t *g, tr_grammar_scratch_t *s,
                         const tr_matcher_t *m, uint32_t *mask);

/* ---- sets of code points (charset.c) */

#define TR_CODE_POINTS 0x110000u

typedef struct {
    uint32_t lo, hi;
} tr_range_t;

/* Ascending, apart from each other; no surrogates. */
typedef struct {
    tr_range_t *ranges;
    uint32_t n, cap;
    bool failed; /* memory */
} tr_charset_t;

void tr_charset_add(tr_charset_t *c, uint32_t lo, uint32_t hi);
void tr_charset_normalise(tr_charset_t *c);
void tr_charset_negate(tr_charset_t *c);
void tr_charset_free(tr_charset_t *c);
/* Bytes of the characters as UTF-8; json: as a JSON string spells them.
 * tick: the state that they lead to counts characters. */
void tr_charset_rules(tr_rules_t *b, uint32_t from, const tr_charset_t *c,
                      bool json, uint32_t to);

/* ---- regular expressions */

enum tr_regex_kind {
    TR_REGEX_EMPTY,
    TR_REGEX_SET,
    TR_REGEX_CAT,
    TR_REGEX_ALT,
    TR_REGEX_REPEAT,
    TR_REGEX_BEGIN, /* ^ */
    TR_REGEX_END    /* $ */
};

typedef struct {
    enum tr_regex_kind kind;
    uint32_t a, b;     /* CAT, ALT: nodes; REPEAT: a; SET: a is a set */
    uint32_t min, max; /* REPEAT */
} tr_regex_node_t;

typedef struct {
    tr_regex_node_t *nodes;
    uint32_t n, cap, root;
    tr_charset_t *sets;
    uint32_t n_sets, cap_sets;
    uint64_t work; /* that reading it took */
} tr_regex_tree_t;

/* TR_ERR_INVALID: *why says what at which offset, at most 128 bytes.
 * TR_ERR_UNSUPPORTED: it is an expression, but none that we know. */
tr_status_t tr_regex_parse(const char *text, size_t len, tr_regex_tree_t *out,
                           char why[128]);
void tr_regex_free(tr_regex_tree_t *t);

/* The whole text matches (anchors at both ends are there anyway). */
tr_status_t tr_regex_rules(tr_rules_t *b, const tr_regex_tree_t *t,
                           uint32_t from, uint32_t to, char why[128]);

/* ---- deterministic automata over code points (char_automaton.c) */

typedef struct {
    uint32_t lo, hi, to;
} tr_arc_t;

/* States 0 (the first) to n - 1; arcs of a state: [first[s], first[s + 1]),
 * ascending.  What has no arc is refused. */
typedef struct {
    uint32_t n, cap, n_arcs, cap_arcs;
    uint32_t *first;
    tr_arc_t *arcs;
    bool *accept;
    uint64_t work; /* that making it took, also where that failed */
} tr_chars_t;

#define TR_CHARS_STATES 16384u
#define TR_CHARS_ARCS (1u << 18)

/* All of these: TR_ERR_UNSUPPORTED when it gets too large, TR_ERR_NOMEM.  *out
 * is to be freed in any case. */
/* Texts in which the expression is found. */
tr_status_t tr_chars_of_regex(const tr_regex_tree_t *t, tr_chars_t *out);
/* One of the texts (UTF-8). */
tr_status_t tr_chars_of_texts(const tr_text_t *texts, size_t n,
                              tr_chars_t *out);
/* What a accepts and b accepts, or does not (negative). */
tr_status_t tr_chars_both(const tr_chars_t *a, const tr_chars_t *b,
                          bool negative, tr_chars_t *out);
/* Texts of a with min to max characters. */
tr_status_t tr_chars_length(const tr_chars_t *a, uint32_t min, uint32_t max,
                            tr_chars_t *out);
bool tr_chars_accepts(const tr_chars_t *a, const char *text, size_t len);
void tr_chars_free(tr_chars_t *a);
/* As the inside of a JSON string, and the quote that closes it. */
void tr_chars_rules(tr_rules_t *b, const tr_chars_t *a, uint32_t from,
                    uint32_t to);

/* ---- front ends: rule 0 of b is the whole */

tr_status_t tr_ebnf_rules(tr_rules_t *b, const char *text, size_t len,
                          const char *param, tr_error_t *err);

typedef struct {
    uint32_t value, object, array, string, number, integer, space, chars;
} tr_json_rules_t;

/* Rules of any JSON.  chars: the characters of a string and its closing quote,
 * with ticks. */
void tr_json_rules(tr_rules_t *b, tr_json_rules_t *out);

/* A schema as a rule, whose number is *rule.  json: rules of any JSON that are
 * there already; NULL: none.  property: of this property of the schema alone;
 * NULL: of the whole. */
typedef struct {
    const tr_json_rules_t *json;
    const char *property;
} tr_schema_part_t;
tr_status_t tr_schema_rules(tr_rules_t *b, const tr_grammar_spec_t *spec,
                            const tr_schema_part_t *part, uint32_t *rule,
                            uint32_t *dropped, tr_error_t *err);

/* The tree's rule becomes rule 0.  What was rule 0 becomes another one, for
 * which ["inner"] stands. */
tr_status_t tr_tree_rules(tr_rules_t *b, const char *text, size_t len,
                          uint32_t *dropped, tr_error_t *err);

#endif
