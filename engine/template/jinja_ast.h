/*
 * The tree of a template.  Made by jinja_parse*.c, completed by jinja_scope.c,
 * unchanged from then on; all of it lives in the tree's arena.
 */
#ifndef TR_JINJA_AST_H
#define TR_JINJA_AST_H

#include "jinja_value.h"

typedef enum {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT, /* items: key, value, key, value ... */
    N_GETATTR,
    N_GETITEM,
    N_SLICE, /* a, b, c: start, stop, step, each or NULL */
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEG,
    N_POS,
    N_AND,
    N_OR,
    N_ADD,
    N_SUB,
    N_MUL,
    N_DIV,
    N_FLOORDIV,
    N_MOD,
    N_POW,
    N_CONCAT,  /* items */
    N_COMPARE, /* a, then items with their `op` */
    N_OPERAND, /* a */
    N_COND,    /* a if b else c */
    N_NSREF,   /* name.attr, only as a target of set */
    /* statements */
    N_DATA,
    N_PRINT,
    N_IF,     /* items: N_BRANCH */
    N_BRANCH, /* a: the test, NULL for else; items: the body */
    N_FOR,
    N_SET,      /* a: target, b: value */
    N_SETBLOCK, /* a: target, b: filter or NULL, items: body */
    N_MACRO,
    N_CALLBLOCK,
    N_FILTERBLOCK, /* b: filter, items: body */
    N_SCOPE,       /* generation */
    N_BREAK,
    N_CONTINUE
} node_kind_t;

typedef enum {
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOTIN
} compare_t;

typedef struct node node_t;
typedef struct scope scope_t;
typedef struct family family_t;

/* Where a variable stands: so many functions outwards, in that slot. */
typedef struct {
    uint16_t hops, slot;
} ref_t;

typedef enum {
    LOAD_PARAMETER,
    LOAD_RESOLVE,
    LOAD_ALIAS,
    LOAD_UNDEFINED
} load_t;

/* What a variable is when its scope is entered. */
typedef struct {
    ref_t at;
    load_t load;
    ref_t alias;    /* ALIAS: the variable outside */
    string_t *name; /* RESOLVE: of the caller's variable */
} entry_t;

typedef struct {
    entry_t *entries;
    uint32_t n;
} entries_t;

/* Arguments of a call, filter or test. */
typedef struct {
    node_t **items;
    uint32_t n;
    string_t **names; /* of keywords */
    node_t **values;
    uint32_t n_names;
    node_t *star, *star_star;
} call_t;

typedef struct {
    string_t *name;
    node_t *fallback; /* its default, NULL: none */
    ref_t at;
} parameter_t;

/* A macro or a call block. */
typedef struct {
    string_t *name; /* NULL: a call block */
    parameter_t *parameters;
    uint32_t n;
    uint32_t n_slots;             /* variables of an activation */
    bool caller, kwargs, varargs; /* what the body asks for beside them */
    bool explicit_caller;
    ref_t caller_at, kwargs_at, varargs_at;
} function_t;

typedef struct {
    node_t *target, *test_target; /* the same names, in two scopes */
    node_t *iter, *test;
    node_t **otherwise;
    uint32_t n_otherwise;
    bool uses_loop;
    ref_t loop_at;
    entries_t test_entries, else_entries;
} for_t;

struct node {
    uint8_t kind;
    uint8_t op;     /* compare_t */
    uint16_t known; /* filter, test: its row in the table + 1, 0: unknown */
    uint32_t place; /* byte of the source */
    string_t *name;
    string_t *attr; /* NSREF */
    node_t *a, *b, *c;
    node_t **items;
    uint32_t n;
    ref_t ref;            /* NAME, NSREF, MACRO */
    value_t value;        /* CONST, DATA (a string) */
    call_t *call;         /* CALL, FILTER, TEST */
    for_t *loop;          /* FOR */
    function_t *function; /* MACRO, CALLBLOCK */
    entries_t entries;    /* of the scope that the node opens */
};

struct tr_jinja {
    tr_jinja_arena_t arena;
    node_t **body;
    uint32_t n;
    uint32_t n_slots;
    entries_t entries;
    list_t reads;    /* names of variables that the caller may give */
    list_t literals; /* all string constants */
    uint32_t reads_cap, literals_cap;
};

/* Tokens. */
typedef enum {
    T_EOF,
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_OPERATOR
} token_kind_t;

/* Operators of two characters are both bytes, the first one shifted. */
#define OP2(a, b) ((a) << 8 | (b))

typedef struct {
    token_kind_t kind;
    uint32_t place;
    uint32_t op;
    value_t value; /* text of data, names and strings; numbers */
} token_t;

typedef struct {
    token_t *items;
    uint32_t n, cap;
} tokens_t;

/* The tokens of a's source; lines end in LF there. */
void tr_jinja_tokens(tr_jinja_arena_t *a, tokens_t *out);

/* How deep statements, brackets and unary operators may nest. */
#define TR_JINJA_NESTING 64

typedef struct {
    tr_jinja_t *t;
    tr_jinja_arena_t *a; /* the tree's */
    const token_t *at;
    uint32_t depth;
    uint32_t loops; /* that are open in this function */
    uint32_t fors;  /* that are open at all */
} parser_t;

/* jinja_parse_expr.c */
node_t *tr_jinja_node(parser_t *p, node_kind_t kind, uint32_t place);
node_t *tr_jinja_expression(parser_t *p, bool with_condition);
/* An expression, or several with commas: a tuple.  end: a name that ends it
 * too, NULL: none. */
node_t *tr_jinja_tuple(parser_t *p, bool with_condition, const char *end);
/* What can be assigned to. */
node_t *tr_jinja_target(parser_t *p, bool with_namespace, const char *end);
/* Filters behind `of` (NULL: what a block holds); inline: without the bar. */
node_t *tr_jinja_filters_of(parser_t *p, node_t *of, bool begun);
void tr_jinja_parse_parameters(parser_t *p, function_t *f);
_Noreturn void tr_jinja_unexpected(parser_t *p, const char *expected);
bool tr_jinja_at_name(const parser_t *p, const char *name);
bool tr_jinja_at_op(const parser_t *p, uint32_t op);
bool tr_jinja_skip_name(parser_t *p, const char *name);
bool tr_jinja_skip_op(parser_t *p, uint32_t op);
string_t *tr_jinja_expect_name(parser_t *p);
void tr_jinja_expect_op(parser_t *p, uint32_t op);
void tr_jinja_deeper(parser_t *p);

/* jinja_scope.c: names to variables, in the whole tree. */
void tr_jinja_scopes(tr_jinja_t *t);

/* Rows of the tables of filters and tests + 1; 0: there is none. */
uint16_t tr_jinja_filter_row(const string_t *name);
uint16_t tr_jinja_test_row(const string_t *name);

#endif
