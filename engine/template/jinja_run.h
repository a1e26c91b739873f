/*
 * Running a tree: what the files that evaluate share.
 *
 *   jinja_eval.c     expressions
 *   jinja_exec.c     statements, and the whole rendering
 *   jinja_call.c     arguments, macros, global functions
 *   jinja_attr.c     attributes, items, slices
 *   jinja_operate.c  arithmetic, comparisons, iteration
 *   jinja_filters.c, jinja_lists.c   filters, of values and of sequences
 *   jinja_tests.c    tests
 *   jinja_methods.c  methods of strings, dicts and lists
 *   jinja_format.c   numbers and values as text; % and format()
 *   jinja_json.c     tojson and from_json
 */
#ifndef TR_JINJA_RUN_H
#define TR_JINJA_RUN_H

#include "jinja_ast.h"
#include "jinja_text.h"

/* Levels of evaluation (an expression in an expression, ...) and of macros. */
#define TR_JINJA_LEVELS 2000u
#define TR_JINJA_CALLS 64u

/* An activation of a function. */
typedef struct frame {
    struct frame *outer; /* of the function that this one stands in */
    value_t *slots;
} frame_t;

struct macro {
    const node_t *node;
    frame_t *outer;
};

struct method {
    uint16_t row; /* of the table of methods */
    value_t of;
};

/* The variable `loop`, and what a loop still has to give. */
struct loop {
    list_t items;
    uint32_t next;                  /* of items */
    const node_t *node;             /* with a test: items may be passed over */
    value_t before, current, after; /* after: MISSING until somebody looks */
    bool ended;                     /* nothing comes behind `current` */
    int64_t index0;
    value_t seen; /* of loop.changed */
};

struct tr_jinja_render {
    tr_jinja_arena_t arena;
    const tr_jinja_t *tree;
    uint64_t steps, max_steps;
    uint64_t max_output;
    uint32_t levels, calls;
    frame_t *frame;
    builder_t *out;
    dict_t *variables; /* what the caller gave */
    time_t now;
    json_t *parsed; /* by from_json, whose strings values borrow */
};

/* A call's arguments, evaluated. */
typedef struct {
    value_t *items;
    uint32_t n;
    string_t **names;
    value_t *values;
    uint32_t n_names;
} arguments_t;

/* Counts work that the nodes do not show, such as bytes that are searched. */
void tr_jinja_charge(render_t *r, uint64_t bytes);

value_t tr_jinja_eval(render_t *r, const node_t *n);
bool tr_jinja_truth(render_t *r, value_t v);
value_t *tr_jinja_slot(render_t *r, ref_t at);

typedef enum { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow_t;
flow_t tr_jinja_exec(render_t *r, node_t *const *body, uint32_t n);
void tr_jinja_enter(render_t *r, const entries_t *e);
void tr_jinja_assign(render_t *r, const node_t *target, value_t v);
/* The next item of a loop; false at its end. */
bool tr_jinja_loop_next(render_t *r, loop_t *l, value_t *out);

/* jinja_call.c */
arguments_t tr_jinja_arguments(render_t *r, const call_t *c);
value_t tr_jinja_call(render_t *r, value_t f, const arguments_t *args);
/* Puts arguments into out[] by the parameters' names ("a,b,c", the first
 * `needed` of them required; what is absent is MISSING). */
void tr_jinja_bind(render_t *r, const char *what, const arguments_t *args,
                   const char *parameters, uint32_t needed, value_t *out);
#define TR_JINJA_PARAMETERS 6
bool tr_jinja_global(const string_t *name, value_t *out);

/* jinja_attr.c */
value_t tr_jinja_getattr(render_t *r, value_t v, string_t *name);
value_t tr_jinja_getitem(render_t *r, value_t v, value_t key);
value_t tr_jinja_getslice(render_t *r, value_t v, const node_t *slice);

/* jinja_operate.c */
value_t tr_jinja_arithmetic(render_t *r, node_kind_t op, value_t a, value_t b);
bool tr_jinja_compare(render_t *r, compare_t op, value_t a, value_t b);
/* < 0, 0, > 0; fails for what has no order. */
int tr_jinja_order(render_t *r, value_t a, value_t b);
bool tr_jinja_contains(render_t *r, value_t in, value_t what);
/* The items of anything that can be iterated; fails otherwise. */
list_t tr_jinja_items(render_t *r, value_t v);
bool tr_jinja_iterable(value_t v);
bool tr_jinja_length(render_t *r, value_t v, int64_t *out); /* false: none */
_Noreturn void tr_jinja_undefined(render_t *r, value_t v);
const char *tr_jinja_type(value_t v);

/* jinja_filters.c */
value_t tr_jinja_filter(render_t *r, uint16_t row, const string_t *name,
                        value_t v, const arguments_t *args);
typedef value_t (*filter_pt)(render_t *r, value_t v, const value_t *args);
typedef value_t (*filter_call_pt)(render_t *r, value_t v,
                                  const arguments_t *args);

/* jinja_lists.c */
value_t tr_jinja_filter_map(render_t *r, value_t v, const arguments_t *args);
value_t tr_jinja_filter_select(render_t *r, value_t v, const arguments_t *args);
value_t tr_jinja_filter_reject(render_t *r, value_t v, const arguments_t *args);
value_t tr_jinja_filter_selectattr(render_t *r, value_t v,
                                   const arguments_t *args);
value_t tr_jinja_filter_rejectattr(render_t *r, value_t v,
                                   const arguments_t *args);
value_t tr_jinja_filter_items(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_dictsort(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_sort(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_unique(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_min(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_max(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_sum(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_join(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_first(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_last(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_reverse(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_list(render_t *r, value_t v, const value_t *args);
/* Python's join: sep between the items as they print. */
string_t *tr_jinja_join(render_t *r, const list_t *items, string_t *sep);

/* jinja_tests.c; row 0: the truth of v */
bool tr_jinja_test(render_t *r, uint16_t row, const string_t *name, value_t v,
                   const arguments_t *args);

/* jinja_methods.c: the method of v with that name, or MISSING. */
value_t tr_jinja_method(render_t *r, value_t v, const string_t *name);
value_t tr_jinja_call_method(render_t *r, const method_t *m,
                             const arguments_t *args);

/* jinja_format.c */
string_t *tr_jinja_str(render_t *r, value_t v);
void tr_jinja_print(render_t *r, builder_t *b, value_t v); /* as str() */
void tr_jinja_repr(render_t *r, builder_t *b, value_t v);
uint32_t tr_jinja_float_text(double f, char out[40]);
value_t tr_jinja_percent(render_t *r, string_t *format, value_t args);
value_t tr_jinja_format(render_t *r, string_t *format, const arguments_t *args);

/* jinja_json.c */
value_t tr_jinja_filter_tojson(render_t *r, value_t v, const value_t *args);
value_t tr_jinja_filter_from_json(render_t *r, value_t v, const value_t *args);

/* ---- for who fills in variables (tr_jinja_fill_pt) ----------------------- */

/* A JSON value; its strings are borrowed, tagged with `tag`. */
value_t tr_jinja_from_json(render_t *r, const json_t *json, uint8_t tag);
/* The text as JSON; false: it is none. */
bool tr_jinja_read_json(render_t *r, const string_t *s, value_t *out);
value_t tr_jinja_text(render_t *r, const char *data, size_t len, uint8_t tag);
void tr_jinja_set(render_t *r, const char *name, value_t v);

#endif
