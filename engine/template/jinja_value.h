/*
 * Values of a rendering: Python's types as far as templates meet them.
 *
 * All of them live in the arena of a render (or of a tree, for constants) and
 * are never freed one by one.  Nothing but a namespace changes after it was
 * made.  A function that cannot go on (no memory, a limit, a type error) does
 * not return: tr_jinja_fail unwinds to whoever began the parse or the render.
 */
#ifndef TR_JINJA_VALUE_H
#define TR_JINJA_VALUE_H

#include "jinja.h"

#include <setjmp.h>

/* ---- memory ------------------------------------------------------------- */

typedef struct tr_jinja_block tr_jinja_block_t;

/* An arena, and where to go when something fails. */
typedef struct {
    tr_jinja_block_t *blocks;
    char *at, *end; /* what is left of the newest block */
    size_t total, limit;
    jmp_buf *escape;
    tr_error_t *err;
    tr_status_t status;
    const char *name;   /* of the source */
    const char *source; /* [source_len], for the place of an error */
    size_t source_len;
    uint32_t place; /* byte of the source that is being read or run */
} tr_jinja_arena_t;

void *tr_jinja_alloc(tr_jinja_arena_t *a, size_t n); /* not zeroed */
void *tr_jinja_zalloc(tr_jinja_arena_t *a, size_t n);
/* Makes p (old bytes, the newest allocation or not) at least n bytes. */
void *tr_jinja_grow(tr_jinja_arena_t *a, void *p, size_t old, size_t n);
/* Counts memory that is not the arena's against its limit. */
void tr_jinja_account(tr_jinja_arena_t *a, size_t n);
void tr_jinja_arena_free(tr_jinja_arena_t *a);

/* "NAME:LINE:COLUMN: message" and out. */
_Noreturn void tr_jinja_fail(tr_jinja_arena_t *a, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same with a status, and without the place. */
_Noreturn void tr_jinja_fail_as(tr_jinja_arena_t *a, tr_status_t status,
                                const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- values ------------------------------------------------------------- */

typedef enum {
    K_MISSING, /* no value at all; templates never see it */
    K_UNDEFINED,
    K_NONE,
    K_BOOL,
    K_INT,
    K_FLOAT,
    K_STRING,
    K_LIST,
    K_TUPLE,
    K_DICT,
    K_RANGE,
    K_NAMESPACE,
    K_VIEW,     /* items, keys or values of a dict */
    K_ITER,     /* a generator: its values come once */
    K_LOOP,     /* the variable `loop` */
    K_MACRO,    /* of the template */
    K_FUNCTION, /* a global function */
    K_METHOD    /* of a value */
} kind_t;

typedef struct string string_t;
typedef struct list list_t;
typedef struct dict dict_t;
typedef struct view view_t;
typedef struct iter iter_t;
typedef struct loop loop_t;
typedef struct macro macro_t;
typedef struct method method_t;
typedef struct range range_t;
typedef struct builder builder_t;
typedef struct tr_jinja_value value_t;
typedef struct tr_jinja_render render_t;

struct tr_jinja_value {
    uint8_t kind;
    uint8_t tag;       /* of a number: what its digits are tagged with */
    uint16_t function; /* K_FUNCTION */
    union {
        bool b;
        int64_t i;
        double f;
        string_t *s;  /* K_UNDEFINED: its name, NULL for none */
        list_t *list; /* also of a tuple */
        dict_t *dict; /* also of a namespace */
        view_t *view;
        iter_t *iter;
        loop_t *loop;
        macro_t *macro;
        method_t *method;
        range_t *range;
    };
};

/* Text as UTF-8, always valid. */
struct string {
    const char *data;
    const uint8_t *tags; /* of each byte; NULL: all are `tag` */
    uint32_t len;
    uint32_t chars; /* code points, UINT32_MAX: not counted yet */
    uint8_t tag;
    bool markup;        /* Markup of the filter safe */
    builder_t *builder; /* whose bytes these are: what is added may be written
                         * behind them.  NULL: none */
};

struct list {
    value_t *items;
    uint32_t n;
};

/* In order of insertion. */
struct dict {
    value_t *keys, *values;
    uint32_t n, cap;
    uint32_t *slots; /* hash of string keys to index + 1, NULL: few keys */
    uint32_t mask;
};

enum view_what { VIEW_ITEMS, VIEW_KEYS, VIEW_VALUES };

struct view {
    dict_t *dict;
    enum view_what what;
};

struct range {
    int64_t start, step;
    uint32_t n;
};

/* make: NULL once the values are there. */
struct iter {
    list_t (*make)(render_t *r, iter_t *it);
    value_t source;
    value_t extra; /* what else `make` needs */
    const void *call;
    uint8_t how;
    list_t values;
    uint32_t next;
};

/* Text under construction, with its tags; grows in the arena. */
struct builder {
    char *data;
    uint8_t *tags;
    size_t len, cap;
};

#define NONE ((value_t){ .kind = K_NONE })
#define MISSING ((value_t){ .kind = K_MISSING })
#define UNDEFINED ((value_t){ .kind = K_UNDEFINED })

static inline value_t
of_bool(bool b)
{
    return (value_t){ .kind = K_BOOL, .b = b };
}

static inline value_t
of_int(int64_t i)
{
    return (value_t){ .kind = K_INT, .i = i };
}

static inline value_t
of_float(double f)
{
    return (value_t){ .kind = K_FLOAT, .f = f };
}

static inline value_t
of_string(string_t *s)
{
    return (value_t){ .kind = K_STRING, .s = s };
}

static inline value_t
of_undefined(string_t *name)
{
    return (value_t){ .kind = K_UNDEFINED, .s = name };
}

static inline value_t
of_dict(dict_t *d)
{
    return (value_t){ .kind = K_DICT, .dict = d };
}

static inline bool
is_number(value_t v)
{
    return v.kind == K_BOOL || v.kind == K_INT || v.kind == K_FLOAT;
}

/* ---- strings ------------------------------------------------------------ */

/* Borrows data. */
string_t *tr_jinja_string(tr_jinja_arena_t *a, const char *data, size_t len,
                          uint8_t tag);
string_t *tr_jinja_copy(tr_jinja_arena_t *a, const char *data, size_t len,
                        uint8_t tag);
uint32_t tr_jinja_chars(string_t *s);
/* Bytes from..to of s, sharing them. */
string_t *tr_jinja_slice(tr_jinja_arena_t *a, const string_t *s, size_t from,
                         size_t to);
/* What a + b is of two plain strings. */
string_t *tr_jinja_concat(tr_jinja_arena_t *a, string_t *left, string_t *right);
bool tr_jinja_same(const string_t *a, const string_t *b);
bool tr_jinja_is(const string_t *s, const char *text);

static inline uint8_t
tag_at(const string_t *s, size_t i)
{
    return s->tags ? s->tags[i] : s->tag;
}

void tr_jinja_put(tr_jinja_arena_t *a, builder_t *b, const char *data,
                  size_t len, uint8_t tag);
void tr_jinja_put_text(tr_jinja_arena_t *a, builder_t *b, const char *text,
                       uint8_t tag);
void tr_jinja_put_slice(tr_jinja_arena_t *a, builder_t *b, const string_t *s,
                        size_t from, size_t to);
void tr_jinja_put_string(tr_jinja_arena_t *a, builder_t *b, const string_t *s);
void tr_jinja_put_char(tr_jinja_arena_t *a, builder_t *b, uint32_t c,
                       uint8_t tag);
/* The text; the builder must not be used for anything else afterwards. */
string_t *tr_jinja_built(tr_jinja_arena_t *a, builder_t *b);

/* ---- lists and dicts ---------------------------------------------------- */

list_t *tr_jinja_list(tr_jinja_arena_t *a, uint32_t n); /* items not set */
value_t tr_jinja_pair(tr_jinja_arena_t *a, value_t first, value_t second);
/* Appends to a list that is being made; *cap is its room. */
void tr_jinja_append(tr_jinja_arena_t *a, list_t *l, uint32_t *cap, value_t v);

dict_t *tr_jinja_dict(tr_jinja_arena_t *a, uint32_t cap);
/* NULL: not there.  key: hashable (tr_jinja_hashable). */
value_t *tr_jinja_dict_get(tr_jinja_arena_t *a, dict_t *d, value_t key);
value_t *tr_jinja_dict_find(tr_jinja_arena_t *a, dict_t *d,
                            const string_t *key);
void tr_jinja_dict_set(tr_jinja_arena_t *a, dict_t *d, value_t key, value_t v);
bool tr_jinja_hashable(value_t v);

bool tr_jinja_equal(value_t a, value_t b);

#endif
