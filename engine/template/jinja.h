/*
 * Chat templates in Jinja: a template's text to a tree, the tree and a request's
 * values to a prompt.
 *
 * The meaning is that of Python's jinja2 as transformers sets it up: immutable
 * sandbox, trim_blocks, lstrip_blocks, break and continue, {% generation %}
 * passed through.  docs/chat-templates.md has the subset.
 *
 *   jinja_lexer.c    text to tokens
 *   jinja_parse*.c   tokens to a tree (jinja_ast.h)
 *   jinja_scope.c    which variable a name means, decided once
 *   jinja_eval.c, jinja_exec.c, jinja_call.c, ...   the tree, run (jinja_run.h)
 *
 * A tree does not change after parsing: any number of threads may render it.
 * Every byte of a rendered text carries where it comes from (TR_JINJA_T ...), so
 * that the tokenizer can tell the template's marks from a client's.
 */
#ifndef TR_JINJA_H
#define TR_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <jansson.h>
#include <tokenring/error.h>

#include "engine/tokenizer/tokenizer.h"

/* Origin of a byte, as tr_tokenizer_encode_tagged takes it.  T: the template
 * itself, or what is as good (bos_token, a checked role).  A: what an assistant
 * wrote.  U: anything else of a client. */
enum {
    TR_JINJA_T = TR_TEXT_TRUSTED,
    TR_JINJA_A = TR_TEXT_MODEL,
    TR_JINJA_U = TR_TEXT_CLIENT
};

typedef struct tr_jinja tr_jinja_t;
typedef struct tr_jinja_render tr_jinja_render_t;
typedef struct tr_jinja_value tr_jinja_value_t;

/* name: of the source, for messages; copied.  A mistake: TR_ERR_FORMAT, err
 * with line and column. */
tr_status_t tr_jinja_parse(const char *source, size_t len, const char *name,
                           tr_jinja_t **out, tr_error_t *err);
void tr_jinja_free(tr_jinja_t *t);

/* Does the template look at this variable of its caller's? */
bool tr_jinja_reads(const tr_jinja_t *t, const char *name);
/* Does a string literal of it equal this text? */
bool tr_jinja_has_literal(const tr_jinja_t *t, const char *text);
/* Does its source hold this text anywhere? */
bool tr_jinja_mentions(const tr_jinja_t *t, const char *text);
/* Is this the name of a global function, such as "range"? */
bool tr_jinja_is_global(const char *name);

typedef struct {
    uint64_t steps;  /* evaluated nodes; 0: 20 million */
    size_t memory;   /* bytes of all values; 0: 16 MiB */
    uint64_t output; /* bytes of the text, 0: no limit of its own */
    time_t now;      /* what strftime_now tells */
} tr_jinja_limits_t;

/* One rendering.  Its values live until tr_jinja_render_free.  NULL: no
 * memory. */
tr_jinja_render_t *tr_jinja_render_new(const tr_jinja_t *t,
                                       const tr_jinja_limits_t *limits);
void tr_jinja_render_free(tr_jinja_render_t *r);

typedef struct {
    const char *text; /* the render's */
    const uint8_t *tags;
    size_t len;
    uint64_t steps; /* that it took */
} tr_jinja_text_t;

/* The variables of a rendering, set by a callback: it runs where a failed
 * allocation can unwind. */
typedef void (*tr_jinja_fill_pt)(tr_jinja_render_t *r, void *arg);

/* fill: sets the variables with tr_jinja_set.  Errors: TR_ERR_INVALID (the
 * template refused or failed: err->param "messages"), TR_ERR_CONTEXT_LENGTH
 * (more than limits->output), TR_ERR_NOMEM. */
tr_status_t tr_jinja_render(tr_jinja_render_t *r, tr_jinja_fill_pt fill,
                            void *arg, tr_jinja_text_t *out, tr_error_t *err);

#endif
