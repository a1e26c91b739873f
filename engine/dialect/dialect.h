/*
 * A dialect: how a model writes tool calls and reasoning into its text.
 *
 * The model's output goes in token by token, as (id, text); what comes out are
 * pieces of items: content, reasoning, or a tool call with its name and its
 * arguments as JSON.  The step loop runs one such machine for each choice behind
 * the detokeniser; nothing is allocated after tr_dialect_init.
 *
 *   dialect_forms.c   what each dialect looks like, as a table of programs
 *   dialect_make.c    compiles a program for a tokenizer
 *   dialect.c         the machine that runs a program over the output
 *   dialect_json.c    parts of a program: calls and arguments in JSON
 *   dialect_value.c   the same for arguments that are marked-up text
 *   dialect_tools.c   the tools of a request, and parameters of a tool
 *   dialect_proof.c   finds out which dialect a chat template speaks, by trying
 *   dialect_layout.c  cuts out of its text what it writes round calls
 *   dialect_grammar.c answers that must be calls, as a grammar in that layout
 *   dialect_texts.c   which texts a parameter may have there
 *
 * To add one: a row in dialect_forms.c (dialect_internal.h says what its ops do),
 * its texts in tests/unit/dialect/test_dialect.c, its row in docs/tools.md.
 *
 * Three rules.  The items do not depend on where the borders of tokens lie.
 * What does not parse is content, byte for byte: nothing is lost or doubled.
 * White space beside a mark belongs to the mark.
 *
 * A mark that the tokenizer has as a special token is that token, and the same
 * characters as other tokens are text; other marks are their characters.
 */
#ifndef TR_DIALECT_H
#define TR_DIALECT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "engine/template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"

/* Bytes that are held back at most until it is clear what they are: a call up
 * to its arguments, a value whose type is not known yet. */
#define TR_DIALECT_HELD 1024u
#define TR_DIALECT_NAME_MAX 64u
#define TR_DIALECT_ID_MAX 96u

typedef struct tr_dialect tr_dialect_t; /* does not change once it is made */

/* Which calls and which reasoning the template writes, found out by rendering
 * histories and reading them back.  name: "auto", a dialect's name (it must read
 * them back all the same), or "none": no calls.  t: NULL for a template alone,
 * whose marks are then their characters.  A template without calls or reasoning
 * is no error: see the two functions below.  *out is freed with
 * tr_dialect_free. */
tr_status_t tr_dialect_open(const char *name, const tr_chat_template_t *c,
                            const tr_tokenizer_t *t, tr_dialect_t **out,
                            tr_error_t *err);
void tr_dialect_free(tr_dialect_t *d);

/* The name of its calls' form, NULL: it knows none.  Borrowed. */
const char *tr_dialect_name(const tr_dialect_t *d);
/* Does it know marks of reasoning? */
bool tr_dialect_reasons(const tr_dialect_t *d);
/* Ids of its calls: nine letters and digits, as Mistral's templates want them;
 * or what the model writes. */
bool tr_dialect_short_ids(const tr_dialect_t *d);

/* Is a prompt that ends with this text within reasoning?  tags as of a rendered
 * template; only the template's own marks count. */
bool tr_dialect_begins_inside(const tr_dialect_t *d, const char *text,
                              const uint8_t *tags, size_t len);

/* ---- tools of a request -------------------------------------------------- */

/* Types of a parameter, as bits. */
enum {
    TR_TYPE_STRING = 1,
    TR_TYPE_NUMBER = 2,
    TR_TYPE_INTEGER = 4,
    TR_TYPE_BOOLEAN = 8,
    TR_TYPE_OBJECT = 16,
    TR_TYPE_ARRAY = 32,
    TR_TYPE_NULL = 64
};

typedef struct {
    const char *name;
    uint32_t len;
    uint32_t types; /* TR_TYPE_*; 0: any */
} tr_dialect_param_t;

typedef struct {
    const char *name;
    uint32_t len;
    uint32_t n_params;
    const tr_dialect_param_t *params;
} tr_dialect_tool_t;

typedef struct {
    uint32_t n; /* 0: calls are not looked for */
    const tr_dialect_tool_t *tools;
} tr_dialect_tools_t;

/* The tools of a request's JSON (an array, checked already) in memory that
 * `alloc` gives; TR_ERR_NOMEM.  Strings are copied. */
typedef void *(*tr_dialect_alloc_pt)(void *arg, size_t n);
tr_status_t tr_dialect_read_tools(const json_t *json, tr_dialect_alloc_pt alloc,
                                  void *arg, tr_dialect_tools_t *out);

/* ---- answers that are held to it ---------------------------------------- */

enum tr_dialect_hold_mode {
    TR_HOLD_REQUIRED, /* one call or more, and nothing else */
    TR_HOLD_STRICT,   /* content and calls: a call is one of the tools' */
    TR_HOLD_FORMAT,   /* calls, or what the request says content must be */
    TR_HOLD_NONE      /* content alone: no mark of a call begins */
};

typedef struct {
    enum tr_dialect_hold_mode mode;
    const char *only; /* REQUIRED: this tool; NULL: any */
    bool inside;      /* the prompt opened the reasoning */
    bool single;      /* one call at most */
    bool json;        /* FORMAT: content must be JSON */
} tr_dialect_hold_t;

/* Can answers be held?  The form that the template writes calls in was found. */
bool tr_dialect_holds(const tr_dialect_t *d);
/* What an answer may be, with the reasoning before it, as a tree (grammar.h) of
 * *len bytes in *out, which is malloc'ed and zero-terminated.  FORMAT's has an
 * ["inner"] and stands around another grammar.  tools: of a request's JSON,
 * checked.  TR_ERR_INVALID: a strict schema that this form of
 * calls cannot hold. */
tr_status_t tr_dialect_hold(const tr_dialect_t *d, const json_t *tools,
                            const tr_dialect_hold_t *how, char **out,
                            size_t *len, tr_error_t *err);
/* The tree with reasoning before any other answer that is held, NULL: nothing
 * stands before it.  Borrowed. */
const char *tr_dialect_around(const tr_dialect_t *d, bool inside);
/* Where a budget is spent, reasoning is closed with this text (\n: a line feed),
 * which ends with the mark that closes it and has it nowhere else: the setting
 * reasoning_end.  Else TR_ERR_INVALID, as where nothing closes it.  Before d is
 * used. */
tr_status_t tr_dialect_end_thoughts(tr_dialect_t *d, const char *text,
                                    tr_error_t *err);
/* The text that closes reasoning: the mark, or what it was set to.  NULL: it
 * knows none.  Borrowed. */
const char *tr_dialect_thought_end(const tr_dialect_t *d);

/* ---- one choice ---------------------------------------------------------- */

enum tr_dialect_kind {
    TR_DIALECT_TEXT = 1, /* as enum tr_item_kind of wire.h */
    TR_DIALECT_REASONING = 2,
    TR_DIALECT_CALL = 3
};

/* A piece of an item: its beginning, more of its text, or both.  Texts are
 * offsets into the bytes of the output. */
typedef struct {
    uint8_t kind; /* enum tr_dialect_kind */
    bool begins;
    uint32_t index;                      /* of a call, from 0 */
    uint32_t id, id_len, name, name_len; /* of a call that begins */
    uint32_t text, text_len;             /* whole UTF-8 characters */
} tr_dialect_piece_t;

/* What is held, and what a longest token adds, as one piece of content. */
#define TR_DIALECT_TEXT_MAX 4096u

#define TR_DIALECT_PIECES 256u
#define TR_DIALECT_BYTES 32768u

/* What one push gives.  Large: one for all choices. */
typedef struct {
    uint32_t n, len;
    tr_dialect_piece_t pieces[TR_DIALECT_PIECES];
    char bytes[TR_DIALECT_BYTES];
} tr_dialect_out_t;

typedef struct tr_dialect_state tr_dialect_state_t;

typedef struct {
    const tr_dialect_tools_t *tools; /* borrowed; NULL or none: no calls */
    bool inside;                     /* the prompt opened the reasoning */
    bool single;                     /* one call at most */
    uint64_t seed;                   /* of the calls' ids */
} tr_dialect_start_t;

/* Bytes of memory of one choice. */
size_t tr_dialect_size(const tr_dialect_t *d);
/* memory: that many bytes, 16-byte aligned, zeroed, borrowed. */
tr_dialect_state_t *tr_dialect_init(const tr_dialect_t *d,
                                    const tr_dialect_start_t *start,
                                    void *memory);

/* One token and the text that it completed (whole characters; none for a
 * special token).  token -1: text alone. */
void tr_dialect_push(tr_dialect_state_t *s, int32_t token, const char *text,
                     uint32_t len, tr_dialect_out_t *out);
/* The end of the output: what is held becomes what it is. */
void tr_dialect_finish(tr_dialect_state_t *s, tr_dialect_out_t *out);

/* Calls that began. */
uint32_t tr_dialect_calls(const tr_dialect_state_t *s);
/* The one call that was allowed is complete: the answer is over. */
bool tr_dialect_over(const tr_dialect_state_t *s);
/* Is the output within reasoning; is it content, and nothing else begun? */
bool tr_dialect_inside(const tr_dialect_state_t *s);
bool tr_dialect_in_text(const tr_dialect_state_t *s);

/* Bytes that a piece of content has at most. */
uint32_t tr_dialect_room(const tr_dialect_t *d);
/* Rows of room (response_writer.h) that a step of one choice may take. */
uint32_t tr_dialect_rows(const tr_dialect_t *d);

#endif
