/*
 * What the files of this folder share: the program of a form, the compiled
 * dialect, and the state of its machine (dialect.h).
 */
#ifndef TR_DIALECT_INTERNAL_H
#define TR_DIALECT_INTERNAL_H

#include "dialect.h"

/* In a pattern: optional white space; from here on it is only looked at; in a
 * compiled one: a special token, followed by its number. */
#define P_SPACE '\1'
#define P_KEEP '\2'
#define P_TOKEN '\xff'

#define SPACE_MAX 256u /* bytes of white space that a pattern may span */
#define HEADER_MAX 256u
#define WORD_MAX (TR_DIALECT_ID_MAX + 16) /* bytes of a name or a key */

#define ALTS 7
#define OPS 12
#define MARKS 14
#define PATTERN_MAX 96

enum op_kind {
    OP_NONE,
    OP_TEXT,   /* content up to one of the patterns */
    OP_ALT,    /* one of the patterns, else what is held is content */
    OP_NAME,   /* a call's name, or its id, up to one of the patterns */
    OP_ID,     /* skipped up to one of the patterns */
    OP_CALL,   /* a JSON object with name and arguments; then the next op */
    OP_JSON,   /* arguments as a JSON object; then the next op */
    OP_KEY,    /* a parameter's name up to one of the patterns */
    OP_VALUE,  /* its value, by the schema's type */
    OP_STRING, /* its value, a string */
    OP_BARE,   /* its value, JSON */
    OP_HEADER, /* harmony: channel and recipient up to <|message|> */
    OP_BODY    /* harmony: a message up to one of the patterns */
};

/* go: the op that follows; CLOSE: and the arguments are complete. */
#define CLOSE 0x40
#define GO(x) ((x) &0x3f)

typedef struct {
    const char *pattern;
    uint8_t go;
} alt_t;

typedef struct {
    uint8_t kind;
    alt_t alts[ALTS];
} op_t;

#define FORM_START \
    0x1u                  /* op 0 is tried only where an answer begins; op 1 is
                             the content */
#define FORM_KNOWN 0x2u   /* no mark: only names of the request's tools */
#define FORM_SHORT 0x4u   /* ids of nine characters */
#define FORM_OWN_IDS 0x8u /* the name is the model's id: functions.NAME:i */
#define FORM_LINES 0x10u  /* a line feed round a value is no part of it */
#define FORM_HARMONY 0x20u

typedef struct {
    const char *name;
    uint32_t flags;
    const char *marks[MARKS]; /* those that may be special tokens */
    op_t ops[OPS];
} form_t;

extern const form_t tr_dialect_forms[];
extern const uint32_t tr_dialect_n_forms;

typedef struct {
    char open[PATTERN_MAX], close[PATTERN_MAX];
} reasoning_t;

/* Pairs of marks round reasoning, those of all models. */
extern const reasoning_t tr_dialect_thoughts[];
extern const uint32_t tr_dialect_n_thoughts;

typedef struct {
    uint8_t len; /* 0: no such alternative */
    uint8_t go;
    char bytes[PATTERN_MAX];
} pattern_t;

/* How the template writes calls, as pieces of a tree (grammar.h): nodes with
 * commas between them, at least one.  A call is head NAME after ARGUMENTS, then
 * tail; between stands in place of tail and head before another call. */
typedef struct {
    char *head, *after, *between, *tail; /* between: NULL: one call at most */
    char *stops; /* marks at which a call begins in content, and what follows
                  * up to the name: of "stop" */
    char *bars;  /* all marks with which the machine would begin one */
    bool starts; /* a call may also be how the answer begins, without a mark */
    /* Arguments as marked-up text: open KEY is VALUE close for each. */
    char *open, *is_string, *is_other; /* open: NULL: one JSON object */
    char *value_end;                   /* of "stop": [close] */
    char *close;
    char *value_bars; /* of texts */
    char *json_bars;  /* texts that strings of JSON must not hold; "": none */
} layout_t;

struct tr_dialect {
    layout_t *layout;  /* NULL: answers cannot be held to it */
    char *thought_end; /* the text that closes reasoning; NULL: none does */
    char *
        around[2]; /* before an answer that is held, by inside; NULL: nothing */
    const tr_tokenizer_t *tokenizer; /* borrowed; NULL: none */
    const form_t *form;              /* NULL: no calls */
    uint32_t max_token;
    uint32_t n_tokens;
    int32_t tokens[MARKS + 2];    /* special tokens that are marks */
    const char *texts[MARKS + 2]; /* of these */
    pattern_t patterns[OPS][ALTS];
    pattern_t open, close; /* of reasoning; len 0: none */
    bool by_prompt;        /* the prompt opens reasoning, or there is none */
    char plain_open[PATTERN_MAX], plain_close[PATTERN_MAX];
};

/* Scanner of one JSON value. */
typedef struct {
    uint64_t stack; /* bit i: the i-th open bracket is a brace */
    uint8_t depth;
    bool string, escape, begun;
} scan_t;

enum scan_result { SCAN_MORE, SCAN_DONE, SCAN_BAD };
/* One byte more of it.  DONE: with this byte it is complete (objects, arrays
 * and strings only; a scalar ends where something else begins). */
enum scan_result tr_dialect_scan(scan_t *s, char c);

enum call_phase {
    CALL_OPEN,
    CALL_KEY,      /* a key or the end */
    CALL_KEY_NEXT, /* a key, behind a comma */
    CALL_KEY_TEXT,
    CALL_COLON,
    CALL_VALUE,
    CALL_NAME,
    CALL_ARGUMENTS,
    CALL_STRING, /* arguments as a string of JSON */
    CALL_NULL,
    CALL_OTHER,
    CALL_OTHER_SCALAR,
    CALL_AFTER
};

struct tr_dialect_state {
    const tr_dialect_t *d;
    tr_dialect_start_t start;
    char *buf; /* [cap] what is not decided yet, then what is not read yet */
    uint32_t cap, len, at;
    uint32_t base; /* where the op in progress began */
    uint8_t pc;
    uint8_t kind; /* of the newest item */
    bool calls_on, inside, fresh, strip, quiet, over;
    bool begun;   /* the item of the call in progress is there */
    bool arg_any; /* a parameter was written */
    uint32_t n_calls;
    uint8_t body; /* harmony: kind of the message */
    char name[TR_DIALECT_NAME_MAX + 1];
    char id[TR_DIALECT_ID_MAX + 1];
    uint32_t name_len, id_len;
    scan_t scan;
    /* OP_CALL */
    uint8_t phase, nested;
    uint8_t key;       /* 0: another, 1: name, 2: arguments, 3: function */
    uint32_t from, to; /* of arguments that came before the name, in buf */
    uint8_t unescape, n_hex;
    uint32_t code, high;
    /* values */
    uint8_t value;   /* enum value_mode */
    bool lf, opened; /* a line feed is held; the value's first byte was seen */
    bool json;       /* it is JSON in any case */
    uint32_t types;
    const tr_dialect_tool_t *tool;
    char key_text[WORD_MAX];
    uint32_t key_len;
};

static inline bool
is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Without white space around it: *text moves, and the length is returned. */
static inline uint32_t
tr_dialect_trim(const char **text, uint32_t len)
{
    while (len != 0 && is_space(**text)) {
        (*text)++;
        len--;
    }
    while (len != 0 && is_space((*text)[len - 1])) {
        len--;
    }
    return len;
}

/* dialect.c, for the others */
void tr_dialect_emit(tr_dialect_state_t *s, tr_dialect_out_t *out, uint8_t kind,
                     const char *text, uint32_t len);
/* The call's item begins: s->name is there.  False: the name is none. */
bool tr_dialect_begin_call(tr_dialect_state_t *s, tr_dialect_out_t *out);
void tr_dialect_end_call(tr_dialect_state_t *s);
bool tr_dialect_name_ok(const char *name, uint32_t len);
/* Is this name of a parameter read as it is written? */
bool tr_dialect_key_ok(const tr_dialect_t *d, const char *key, size_t len);

enum step { STEP_ON, STEP_WAIT, STEP_FAIL };

/* dialect_json.c: one byte of OP_CALL or of OP_JSON; ON: s->at moved or the op
 * changed. */
enum step tr_dialect_step_call(tr_dialect_state_t *s, tr_dialect_out_t *out);
enum step tr_dialect_step_json(tr_dialect_state_t *s, tr_dialect_out_t *out);

/* dialect_tools.c: types that the schema, which is part of `whole`, allows; 0:
 * any, also where it says so in a way that is not read.  *steps: what is left of
 * TR_DIALECT_STEPS, which all parameters of a tool share; 0 left: any. */
#define TR_DIALECT_STEPS 8192u
uint32_t tr_dialect_types(const json_t *whole, const json_t *schema,
                          uint32_t *steps);

/* The types that "type" of this schema names; 0: any. */
uint32_t tr_dialect_own_types(const json_t *schema);
/* The type of a value; of an integer NUMBER, too. */
uint32_t tr_dialect_type_of(const json_t *value);
/* What a local reference means ("#/$defs/NAME"); NULL: nothing that is read. */
const json_t *tr_dialect_target(const json_t *whole, const char *ref);
/* Takes a step that looks at so many items; false: none is left. */
bool tr_dialect_step(uint32_t *steps, size_t items);

/* dialect_texts.c: texts of a parameter that may be a string (types has STRING).
 * What is not free is one of strings, or a value of others as JSON. */
typedef struct {
    bool free; /* any text */
    json_t *strings, *others;
    const char *beyond; /* a keyword that texts cannot be held to; NULL: none */
} tr_dialect_texts_t;
void tr_dialect_find_texts(const json_t *whole, const json_t *schema,
                           uint32_t types, uint32_t *steps,
                           tr_dialect_texts_t *out);
void tr_dialect_free_texts(tr_dialect_texts_t *texts);

/* dialect_value.c */
/* What a value that is this text is read as (TR_TYPE_*), 0: nothing but a string. */
uint32_t tr_dialect_read_type(const char *text, uint32_t len);
void tr_dialect_open_arguments(tr_dialect_state_t *s, tr_dialect_out_t *out);
void tr_dialect_close_arguments(tr_dialect_state_t *s, tr_dialect_out_t *out);
void tr_dialect_begin_value(tr_dialect_state_t *s, uint8_t op);
void tr_dialect_value(tr_dialect_state_t *s, const char *text, uint32_t len,
                      tr_dialect_out_t *out);
void tr_dialect_end_value(tr_dialect_state_t *s, tr_dialect_out_t *out);

/* dialect_layout.c: what the template writes round calls.  one, two: an
 * assistant's turn with one call and with two (NULL: it writes one at a time). */
void tr_dialect_read_layout(tr_dialect_t *d, const tr_tokenizer_t *t,
                            const char *one, const char *two);
void tr_dialect_free_layout(tr_dialect_t *d);
/* The text as nodes of a tree: its special tokens apart.  malloc'ed. */
char *tr_dialect_nodes(const tr_tokenizer_t *t, const char *text, size_t len);

/* dialect_grammar.c: what stands before an answer that is held. */
void tr_dialect_make_around(tr_dialect_t *d, const tr_tokenizer_t *t);

/* Of the history whose turns are read (dialect_proof.c). */
#define TR_PROBE_NAME_1 "probe_first"
#define TR_PROBE_NAME_2 "probe_second"
#define TR_PROBE_ID "probecal" /* of nine characters, but for Kimi */
#define TR_PROBE_KEY "city"
#define TR_PROBE_VALUE "Zprobe <b> \"q\" \xc3\xa9\\ end"
#define TR_PROBE_KEY_2 "n"
#define TR_PROBE_VALUE_2 3

/* dialect_make.c, for dialect_proof.c: a dialect of one form (NULL: none). */
tr_status_t tr_dialect_make(const form_t *form, const reasoning_t *reasoning,
                            const tr_tokenizer_t *t, tr_dialect_t **out,
                            tr_error_t *err);

#endif
