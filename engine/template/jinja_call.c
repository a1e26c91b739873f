/*
 * Calls: arguments, macros, global functions.
 */
#include "jinja_run.h"

#include <stdio.h>
#include <string.h>

#define RANGE_MAX 100000

/* ---- arguments ---------------------------------------------------------- */

static void
spread(render_t *r, value_t v, arguments_t *a, uint32_t *room)
{
    list_t l = tr_jinja_items(r, v), all = { a->items, a->n };

    for (uint32_t i = 0; i < l.n; i++) {
        tr_jinja_append(&r->arena, &all, room, l.items[i]);
    }
    a->items = all.items;
    a->n = all.n;
}

static void
spread_names(render_t *r, value_t v, arguments_t *a)
{
    uint32_t n = a->n_names;
    string_t **names;
    value_t *values;

    if (v.kind != K_DICT) {
        tr_jinja_fail(&r->arena, "** needs a mapping, not %s",
                      tr_jinja_type(v));
    }
    names = tr_jinja_alloc(&r->arena, (n + v.dict->n) * sizeof(*names));
    values = tr_jinja_alloc(&r->arena, (n + v.dict->n) * sizeof(*values));
    for (uint32_t i = 0; i < n; i++) {
        names[i] = a->names[i];
        values[i] = a->values[i];
    }
    for (uint32_t i = 0; i < v.dict->n; i++) {
        if (v.dict->keys[i].kind != K_STRING) {
            tr_jinja_fail(&r->arena, "a keyword must be a string, not %s",
                          tr_jinja_type(v.dict->keys[i]));
        }
        names[n] = v.dict->keys[i].s;
        values[n] = v.dict->values[i];
        for (uint32_t k = 0; k < a->n_names; k++) {
            if (tr_jinja_same(names[k], names[n])) {
                tr_jinja_fail(&r->arena, "the keyword \"%.*s\" is there twice",
                              names[n]->len, names[n]->data);
            }
        }
        n++;
    }
    a->names = names;
    a->values = values;
    a->n_names = n;
}

arguments_t
tr_jinja_arguments(render_t *r, const call_t *c)
{
    arguments_t a = { .n = c->n, .n_names = c->n_names, .names = c->names };
    uint32_t room = c->n;

    if (c->n > 0) {
        a.items = tr_jinja_alloc(&r->arena, c->n * sizeof(value_t));
        for (uint32_t i = 0; i < c->n; i++) {
            a.items[i] = tr_jinja_eval(r, c->items[i]);
        }
    }
    if (c->star != NULL) {
        spread(r, tr_jinja_eval(r, c->star), &a, &room);
    }
    if (c->n_names > 0) {
        a.values = tr_jinja_alloc(&r->arena, c->n_names * sizeof(value_t));
        for (uint32_t i = 0; i < c->n_names; i++) {
            a.values[i] = tr_jinja_eval(r, c->values[i]);
        }
    }
    if (c->star_star != NULL) {
        spread_names(r, tr_jinja_eval(r, c->star_star), &a);
    }
    return a;
}

static bool
is_parameter(const char *p, const string_t *name)
{
    size_t n = strcspn(p, ",");

    return n == name->len && memcmp(p, name->data, n) == 0;
}

void
tr_jinja_bind(render_t *r, const char *what, const arguments_t *args,
              const char *parameters, uint32_t needed, value_t *out)
{
    const char *p = parameters;
    uint32_t i = 0, named = 0;

    for (; *p != '\0'; i++) {
        out[i] = i < args->n ? args->items[i] : MISSING;
        for (uint32_t k = 0; k < args->n_names; k++) {
            if (is_parameter(p, args->names[k])) {
                if (i < args->n) {
                    tr_jinja_fail(&r->arena, "%s got \"%.*s\" twice", what,
                                  args->names[k]->len, args->names[k]->data);
                }
                out[i] = args->values[k];
                named++;
            }
        }
        if (i < needed && out[i].kind == K_MISSING) {
            tr_jinja_fail(&r->arena, "%s needs \"%.*s\"", what,
                          (int) strcspn(p, ","), p);
        }
        p += strcspn(p, ",");
        p += *p == ',';
    }
    if (args->n > i || named < args->n_names) {
        tr_jinja_fail(&r->arena, "%s takes no such argument", what);
    }
}

/* ---- macros ------------------------------------------------------------- */

static bool
take_name(arguments_t *left, const char *name, size_t len, value_t *out)
{
    for (uint32_t i = 0; i < left->n_names; i++) {
        if (left->names[i] != NULL && left->names[i]->len == len
            && memcmp(left->names[i]->data, name, len) == 0) {
            *out = left->values[i];
            left->names[i] = NULL;
            return true;
        }
    }
    return false;
}

static void
bind_rest(render_t *r, const node_t *n, frame_t *frame, arguments_t *left,
          bool found_caller)
{
    const function_t *f = n->function;
    dict_t *kwargs = tr_jinja_dict(&r->arena, 2);
    list_t *varargs;
    value_t v;

    if (f->caller && !found_caller) {
        if (!take_name(left, "caller", 6, &v) || v.kind == K_NONE) {
            v = UNDEFINED;
        }
        frame->slots[f->caller_at.slot] = v;
    }
    for (uint32_t i = 0; i < left->n_names; i++) {
        if (left->names[i] == NULL) {
            continue;
        }
        if (!f->kwargs) {
            tr_jinja_fail(&r->arena, "the macro takes no argument \"%.*s\"",
                          left->names[i]->len, left->names[i]->data);
        }
        tr_jinja_dict_set(&r->arena, kwargs, of_string(left->names[i]),
                          left->values[i]);
    }
    if (f->kwargs) {
        frame->slots[f->kwargs_at.slot] = of_dict(kwargs);
    }
    if (left->n > f->n && !f->varargs) {
        tr_jinja_fail(&r->arena, "the macro takes %u arguments, not %u", f->n,
                      left->n);
    }
    if (f->varargs) {
        varargs = tr_jinja_list(&r->arena, left->n > f->n ? left->n - f->n : 0);
        for (uint32_t i = 0; i < varargs->n; i++) {
            varargs->items[i] = left->items[f->n + i];
        }
        frame->slots[f->varargs_at.slot] = (value_t){ .kind = K_TUPLE,
                                                      .list = varargs };
    }
}

/* The names that are used up are struck out of a copy. */
static void
bind_macro(render_t *r, const node_t *n, frame_t *frame,
           const arguments_t *args)
{
    const function_t *f = n->function;
    arguments_t left = *args;
    bool found_caller = args->n >= f->n && f->explicit_caller;

    if (args->n_names > 0) {
        left.names = tr_jinja_alloc(&r->arena,
                                    args->n_names * sizeof(string_t *));
        memcpy(left.names, args->names, args->n_names * sizeof(string_t *));
    }
    for (uint32_t i = 0; i < f->n; i++) {
        const parameter_t *p = &f->parameters[i];
        value_t v = MISSING;

        if (i < args->n) {
            v = args->items[i];
        } else {
            take_name(&left, p->name->data, p->name->len, &v);
            found_caller |= tr_jinja_is(p->name, "caller");
        }
        frame->slots[p->at.slot] = v;
    }
    bind_rest(r, n, frame, &left, found_caller);
}

static value_t
call_macro(render_t *r, const macro_t *m, const arguments_t *args)
{
    const node_t *n = m->node;
    const function_t *f = n->function;
    frame_t frame = { m->outer, NULL },
            *here = tr_jinja_alloc(&r->arena, sizeof(*here));
    frame_t *before = r->frame;
    builder_t text = { 0 }, *out = r->out;
    uint32_t place = r->arena.place;

    if (++r->calls > TR_JINJA_CALLS) {
        tr_jinja_fail(&r->arena, "macros call each other deeper than %u",
                      TR_JINJA_CALLS);
    }
    *here = frame;
    here->slots = tr_jinja_zalloc(&r->arena, f->n_slots * sizeof(value_t));
    bind_macro(r, n, here, args);
    r->frame = here;
    r->out = &text;
    tr_jinja_enter(r, &n->entries);
    for (uint32_t i = 0; i < f->n; i++) {
        const parameter_t *p = &f->parameters[i];
        value_t *slot = &here->slots[p->at.slot];

        if (slot->kind == K_MISSING) {
            *slot = p->fallback ? tr_jinja_eval(r, p->fallback)
                                : of_undefined(p->name);
        }
    }
    tr_jinja_exec(r, n->items, n->n);
    r->frame = before;
    r->out = out;
    r->calls--;
    r->arena.place = place;
    return of_string(tr_jinja_built(&r->arena, &text));
}

/* ---- global functions --------------------------------------------------- */

static int64_t
integer(render_t *r, const char *what, value_t v)
{
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (v.kind != K_INT && v.kind != K_BOOL) {
        tr_jinja_fail(&r->arena, "%s needs integers, not %s", what,
                      tr_jinja_type(v));
    }
    return v.kind == K_BOOL ? v.b : v.i;
}

static value_t
global_range(render_t *r, const arguments_t *args)
{
    range_t *range = tr_jinja_alloc(&r->arena, sizeof(*range));
    int64_t start, stop, step = 1, n;
    value_t v[3];

    tr_jinja_bind(r, "range", args, "start,stop,step", 1, v);
    start = integer(r, "range", v[0]);
    if (v[1].kind == K_MISSING) {
        stop = start;
        start = 0;
    } else {
        stop = integer(r, "range", v[1]);
    }
    if (v[2].kind != K_MISSING) {
        step = integer(r, "range", v[2]);
    }
    if (step == 0) {
        tr_jinja_fail(&r->arena, "range's step is zero");
    }
    if (__builtin_sub_overflow(stop, start, &n)) {
        n = INT64_MAX;
        step = 1;
    }
    n = step > 0 ? (n > 0 ? (n - 1) / step + 1 : 0)
                 : (n < 0 ? (n + 1) / step + 1 : 0);
    if (n > RANGE_MAX) {
        tr_jinja_fail(&r->arena, "a range has more than %d items", RANGE_MAX);
    }
    *range = (range_t){ start, step, (uint32_t) n };
    return (value_t){ .kind = K_RANGE, .range = range };
}

/* dict(...) and namespace(...): a mapping or pairs, then keywords. */
static dict_t *
global_dict(render_t *r, const arguments_t *args)
{
    dict_t *d = tr_jinja_dict(&r->arena, args->n_names);

    if (args->n > 1) {
        tr_jinja_fail(&r->arena, "dict takes one argument and keywords");
    }
    if (args->n == 1 && args->items[0].kind == K_DICT) {
        const dict_t *from = args->items[0].dict;

        for (uint32_t i = 0; i < from->n; i++) {
            tr_jinja_dict_set(&r->arena, d, from->keys[i], from->values[i]);
        }
    } else if (args->n == 1) {
        list_t pairs = tr_jinja_items(r, args->items[0]);

        for (uint32_t i = 0; i < pairs.n; i++) {
            list_t pair = tr_jinja_items(r, pairs.items[i]);

            if (pair.n != 2 || !tr_jinja_hashable(pair.items[0])) {
                tr_jinja_fail(&r->arena, "dict needs pairs of key and value");
            }
            tr_jinja_dict_set(&r->arena, d, pair.items[0], pair.items[1]);
        }
    }
    for (uint32_t i = 0; i < args->n_names; i++) {
        tr_jinja_dict_set(&r->arena, d, of_string(args->names[i]),
                          args->values[i]);
    }
    return d;
}

static value_t
global_raise(render_t *r, const arguments_t *args)
{
    const string_t *s;
    value_t v[1];

    tr_jinja_bind(r, "raise_exception", args, "message", 1, v);
    s = tr_jinja_str(r, v[0]);
    tr_jinja_fail_as(&r->arena, TR_ERR_INVALID, "%.*s", (int) s->len, s->data);
}

static value_t
global_now(render_t *r, const arguments_t *args)
{
    char format[256], text[1024];
    const string_t *s;
    struct tm day;
    value_t v[1];
    size_t n;

    tr_jinja_bind(r, "strftime_now", args, "format", 1, v);
    if (v[0].kind != K_STRING || v[0].s->len >= sizeof(format)
        || memchr(v[0].s->data, '\0', v[0].s->len) != NULL) {
        tr_jinja_fail(&r->arena, "strftime_now needs a short string");
    }
    s = v[0].s;
    memcpy(format, s->data, s->len);
    format[s->len] = '\0';
    if (localtime_r(&r->now, &day) == NULL) {
        tr_jinja_fail(&r->arena, "there is no local time");
    }
    n = strftime(text, sizeof(text), format, &day);
    return of_string(tr_jinja_copy(&r->arena, text, n, tag_at(s, 0)));
}

enum { F_RANGE = 1, F_DICT, F_NAMESPACE, F_RAISE, F_NOW };

static const struct {
    const char *name;
    uint16_t function;
} globals[] = {
    { "range", F_RANGE },         { "dict", F_DICT },
    { "namespace", F_NAMESPACE }, { "raise_exception", F_RAISE },
    { "strftime_now", F_NOW },
};

bool
tr_jinja_global(const string_t *name, value_t *out)
{
    for (size_t i = 0; i < sizeof(globals) / sizeof(globals[0]); i++) {
        if (tr_jinja_is(name, globals[i].name)) {
            *out = (value_t){ .kind = K_FUNCTION,
                              .function = globals[i].function };
            return true;
        }
    }
    return false;
}

bool
tr_jinja_is_global(const char *name)
{
    for (size_t i = 0; i < sizeof(globals) / sizeof(globals[0]); i++) {
        if (strcmp(name, globals[i].name) == 0) {
            return true;
        }
    }
    return false;
}

static value_t
call_global(render_t *r, uint16_t function, const arguments_t *args)
{
    dict_t *d;

    switch (function) {
    case F_RANGE:
        return global_range(r, args);
    case F_RAISE:
        return global_raise(r, args);
    case F_NOW:
        return global_now(r, args);
    default:
        d = global_dict(r, args);
        return (value_t){ .kind = function == F_DICT ? K_DICT : K_NAMESPACE,
                          .dict = d };
    }
}

/* loop.cycle(a, b, ...) and loop.changed(v) are methods. */
value_t
tr_jinja_call(render_t *r, value_t f, const arguments_t *args)
{
    switch (f.kind) {
    case K_MACRO:
        return call_macro(r, f.macro, args);
    case K_FUNCTION:
        return call_global(r, f.function, args);
    case K_METHOD:
        return tr_jinja_call_method(r, f.method, args);
    case K_UNDEFINED:
        tr_jinja_undefined(r, f);
    default:
        tr_jinja_fail(&r->arena, "%s cannot be called", tr_jinja_type(f));
    }
}
