/*
 * Attributes, items and slices: v.name is Python's attribute first and an item
 * second, v["name"] the other way round, as in jinja2.
 */
#include "jinja_run.h"

#include <string.h>

static value_t
loop_attribute(render_t *r, loop_t *l, const string_t *name)
{
    value_t next;

    if (tr_jinja_is(name, "index0")) {
        return of_int(l->index0);
    }
    if (tr_jinja_is(name, "index")) {
        return of_int(l->index0 + 1);
    }
    if (tr_jinja_is(name, "first")) {
        return of_bool(l->index0 == 0);
    }
    if (tr_jinja_is(name, "previtem")) {
        return l->before.kind == K_MISSING ? UNDEFINED : l->before;
    }
    if (tr_jinja_is(name, "depth") || tr_jinja_is(name, "depth0")) {
        return of_int(tr_jinja_is(name, "depth"));
    }
    if (tr_jinja_is(name, "last") || tr_jinja_is(name, "nextitem")) {
        bool last;

        if (l->after.kind == K_MISSING && !l->ended) {
            if (tr_jinja_loop_next(r, l, &next)) {
                l->after = next;
            } else {
                l->ended = true;
            }
        }
        last = l->after.kind == K_MISSING;
        return name->len == 4 ? of_bool(last) : last ? UNDEFINED : l->after;
    }
    if (tr_jinja_is(name, "length") || tr_jinja_is(name, "revindex")
        || tr_jinja_is(name, "revindex0")) {
        int64_t n;

        /* with a test: who passes is found out now */
        if (l->node != NULL && l->node->loop->test != NULL) {
            list_t rest = { NULL, 0 };
            uint32_t cap = 0;

            while (tr_jinja_loop_next(r, l, &next)) {
                tr_jinja_append(&r->arena, &rest, &cap, next);
            }
            l->items = rest;
            l->next = 0;
            l->node = NULL;
        }
        n = l->index0 + 1 + (l->after.kind != K_MISSING)
            + (l->items.n - l->next);
        return of_int(name->len == 6   ? n
                      : name->len == 8 ? n - l->index0
                                       : n - l->index0 - 1);
    }
    return MISSING;
}

value_t
tr_jinja_getattr(render_t *r, value_t v, string_t *name)
{
    value_t out = MISSING, *there = NULL;

    switch (v.kind) {
    case K_UNDEFINED:
        tr_jinja_undefined(r, v);
    case K_NAMESPACE:
        there = tr_jinja_dict_find(&r->arena, v.dict, name);
        return there ? *there : of_undefined(name);
    case K_LOOP:
        out = loop_attribute(r, v.loop, name);
        if (out.kind != K_MISSING) {
            return out;
        }
        break;
    case K_MACRO:
        if (tr_jinja_is(name, "name") && v.macro->node->name != NULL) {
            return of_string(v.macro->node->name);
        }
        break;
    default:
        break;
    }
    out = tr_jinja_method(r, v, name);
    if (out.kind == K_MISSING && v.kind == K_DICT) {
        there = tr_jinja_dict_find(&r->arena, v.dict, name);
        return there ? *there : of_undefined(name);
    }
    return out.kind == K_MISSING ? of_undefined(name) : out;
}

static bool
at_index(int64_t i, int64_t n, uint32_t *out)
{
    i += i < 0 ? n : 0;
    *out = (uint32_t) i;
    return i >= 0 && i < n;
}

value_t
tr_jinja_getitem(render_t *r, value_t v, value_t key)
{
    bool whole = key.kind == K_INT || key.kind == K_BOOL;
    int64_t i = key.kind == K_BOOL ? key.b : key.i;
    value_t *there;
    uint32_t at;

    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (v.kind == K_DICT && tr_jinja_hashable(key)) {
        there = tr_jinja_dict_get(&r->arena, v.dict, key);
        if (there != NULL) {
            return *there;
        }
    } else if (whole && (v.kind == K_LIST || v.kind == K_TUPLE)) {
        if (at_index(i, v.list->n, &at)) {
            return v.list->items[at];
        }
    } else if (whole && v.kind == K_STRING) {
        if (at_index(i, tr_jinja_chars(v.s), &at)) {
            size_t from = tr_jinja_offset(v.s, at);

            tr_jinja_charge(r, from);
            return of_string(
                tr_jinja_slice(&r->arena, v.s, from,
                               from + tr_jinja_char_bytes(v.s->data + from)));
        }
    } else if (whole && v.kind == K_RANGE) {
        if (at_index(i, v.range->n, &at)) {
            return of_int(v.range->start + v.range->step * at);
        }
    }
    if (key.kind == K_STRING) {
        if (v.kind == K_DICT) {
            value_t m = tr_jinja_method(r, v, key.s);

            return m.kind == K_MISSING ? of_undefined(key.s) : m;
        }
        return tr_jinja_getattr(r, v, key.s);
    }
    return UNDEFINED;
}

/* ---- slices ------------------------------------------------------------- */

static bool
bound(render_t *r, const node_t *n, int64_t *out)
{
    value_t v = n ? tr_jinja_eval(r, n) : NONE;

    if (v.kind == K_NONE) {
        return false;
    }
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (v.kind != K_INT && v.kind != K_BOOL) {
        tr_jinja_fail(&r->arena, "a slice needs integers, not %s",
                      tr_jinja_type(v));
    }
    *out = v.kind == K_BOOL ? v.b : v.i;
    return true;
}

static int64_t
clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    i = i < 0 ? (i < -n ? low : i + n) : i;
    return i < low ? low : i > high ? high : i;
}

/* Python's rule for the first item, the step and how many there are. */
static uint32_t
resolve(render_t *r, const node_t *slice, int64_t n, int64_t *from,
        int64_t *step)
{
    int64_t start, stop, given;

    *step = bound(r, slice->c, &given) ? given : 1;
    if (*step == 0) {
        tr_jinja_fail(&r->arena, "a slice's step is zero");
    }
    if (*step > 0) {
        start = bound(r, slice->a, &given) ? clamp(given, n, 0, n) : 0;
        stop = bound(r, slice->b, &given) ? clamp(given, n, 0, n) : n;
        *from = start;
        return start < stop ? (uint32_t) ((stop - start - 1) / *step + 1) : 0;
    }
    *step = *step < -n - 1 ? -n - 1 : *step;
    start = bound(r, slice->a, &given) ? clamp(given, n, -1, n - 1) : n - 1;
    stop = bound(r, slice->b, &given) ? clamp(given, n, -1, n - 1) : -1;
    *from = start;
    return start > stop ? (uint32_t) ((start - stop - 1) / -*step + 1) : 0;
}

static value_t
slice_string(render_t *r, string_t *s, int64_t from, int64_t step, uint32_t n)
{
    builder_t b = { 0 };
    string_t *out;

    tr_jinja_charge(r, s->len);
    if (step == 1) {
        size_t at = tr_jinja_offset(s, (uint32_t) from);
        size_t end = tr_jinja_offset(s, (uint32_t) from + n);

        return of_string(tr_jinja_slice(&r->arena, s, at, n ? end : at));
    }
    for (uint32_t i = 0; i < n; i++, from += step) {
        size_t at = tr_jinja_offset(s, (uint32_t) from);

        tr_jinja_charge(r, at);
        tr_jinja_put_slice(&r->arena, &b, s, at,
                           at + tr_jinja_char_bytes(s->data + at));
    }
    out = tr_jinja_built(&r->arena, &b);
    out->markup = s->markup;
    return of_string(out);
}

value_t
tr_jinja_getslice(render_t *r, value_t v, const node_t *slice)
{
    int64_t from, step, length;
    list_t items, *out;
    uint32_t n;

    r->arena.place = slice->place;
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (v.kind != K_STRING && v.kind != K_LIST && v.kind != K_TUPLE
        && v.kind != K_RANGE) {
        tr_jinja_fail(&r->arena, "%s cannot be sliced", tr_jinja_type(v));
    }
    tr_jinja_length(r, v, &length);
    n = resolve(r, slice, length, &from, &step);
    if (v.kind == K_STRING) {
        return slice_string(r, v.s, from, step, n);
    }
    items = tr_jinja_items(r, v);
    out = tr_jinja_list(&r->arena, n);
    if (step == 1 && n > 0) { /* values do not change: shared */
        out->items = items.items + from;
        out->n = n;
    } else {
        for (uint32_t i = 0; i < n; i++) {
            out->items[i] = items.items[from + (int64_t) i * step];
        }
    }
    return (value_t){ .kind = v.kind == K_TUPLE ? K_TUPLE : K_LIST,
                      .list = out };
}
