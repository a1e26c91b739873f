/*
 * Filters of sequences.  map, select and their like are generators, as in
 * jinja2: nothing is looked at until somebody asks for the values, which come
 * once.
 */
#include "jinja_run.h"

#include <string.h>

/* ---- the attribute of an item ------------------------------------------- */

/* "a.b.0": items of items, digits as integers. */
static value_t
attribute_of(render_t *r, value_t v, value_t path, value_t otherwise)
{
    list_t *parts;

    if (path.kind == K_INT) {
        v = tr_jinja_getitem(r, v, path);
        return v.kind == K_UNDEFINED && otherwise.kind > K_NONE ? otherwise : v;
    }
    if (path.kind != K_STRING) {
        tr_jinja_fail(&r->arena, "an attribute is a string, not %s",
                      tr_jinja_type(path));
    }
    parts = tr_jinja_split(&r->arena, path.s,
                           tr_jinja_string(&r->arena, ".", 1, TR_JINJA_T), -1,
                           false);
    for (uint32_t i = 0; i < parts->n; i++) {
        string_t *s = parts->items[i].s;
        value_t key = of_string(s);

        if (tr_jinja_digits(s, &key.i)) {
            key.kind = K_INT;
        } else {
            key.s = s;
        }
        v = tr_jinja_getitem(r, v, key);
        if (v.kind == K_UNDEFINED && otherwise.kind > K_NONE) {
            v = otherwise;
        }
    }
    return v;
}

static value_t
lowered(render_t *r, value_t v)
{
    return v.kind == K_STRING
               ? of_string(tr_jinja_case(&r->arena, v.s, CASE_LOWER))
               : v;
}

/* What an item is compared by. */
static value_t
key_of(render_t *r, value_t v, value_t attribute, bool case_sensitive)
{
    if (attribute.kind != K_MISSING && attribute.kind != K_NONE) {
        v = attribute_of(r, v, attribute, MISSING);
    }
    return case_sensitive ? v : lowered(r, v);
}

static bool
flag(render_t *r, value_t v)
{
    return v.kind != K_MISSING && tr_jinja_truth(r, v);
}

/* ---- generators --------------------------------------------------------- */

static value_t
generator(render_t *r, list_t (*make)(render_t *r, iter_t *it), value_t source,
          const void *call, uint8_t how)
{
    iter_t *it = tr_jinja_zalloc(&r->arena, sizeof(*it));

    it->make = make;
    it->source = source;
    it->extra = MISSING;
    it->call = call;
    it->how = how;
    return (value_t){ .kind = K_ITER, .iter = it };
}

static const arguments_t *
kept(render_t *r, const arguments_t *args)
{
    arguments_t *a = tr_jinja_alloc(&r->arena, sizeof(*a));

    *a = *args;
    return a;
}

static arguments_t
behind(const arguments_t *args, uint32_t n)
{
    arguments_t a = *args;

    a.items = n < a.n ? a.items + n : NULL;
    a.n -= n;
    return a;
}

static list_t
make_map(render_t *r, iter_t *it)
{
    const arguments_t *args = it->call;
    value_t named[2];
    list_t in, out = { NULL, 0 };
    arguments_t rest = { 0 };
    uint16_t row = 0;
    uint32_t cap = 0;

    if (!tr_jinja_truth(r, it->source)) {
        return out;
    }
    in = tr_jinja_items(r, it->source);
    if (args->n == 0) {
        tr_jinja_bind(r, "map", args, "attribute,default", 1, named);
    } else {
        if (args->items[0].kind != K_STRING) {
            tr_jinja_fail(&r->arena, "map needs a filter's name");
        }
        row = tr_jinja_filter_row(args->items[0].s);
        if (row == 0) {
            tr_jinja_fail(&r->arena, "there is no filter \"%.*s\"",
                          args->items[0].s->len, args->items[0].s->data);
        }
        rest = behind(args, 1);
    }
    for (uint32_t i = 0; i < in.n; i++) {
        r->steps++;
        tr_jinja_append(&r->arena, &out, &cap,
                        row != 0
                            ? tr_jinja_filter(r, row, args->items[0].s,
                                              in.items[i], &rest)
                            : attribute_of(r, in.items[i], named[0], named[1]));
    }
    tr_jinja_charge(r, 0);
    return out;
}

value_t
tr_jinja_filter_map(render_t *r, value_t v, const arguments_t *args)
{
    return generator(r, make_map, v, kept(r, args), 0);
}

enum { BY_ATTRIBUTE = 1, REJECTING = 2 };

static list_t
make_select(render_t *r, iter_t *it)
{
    const arguments_t *args = it->call;
    bool by_attribute = it->how & BY_ATTRIBUTE;
    uint32_t at = by_attribute ? 1 : 0, cap = 0;
    list_t in, out = { NULL, 0 };
    arguments_t rest = { 0 };
    uint16_t row = 0;

    if (!tr_jinja_truth(r, it->source)) {
        return out;
    }
    in = tr_jinja_items(r, it->source);
    if (args->n < at) {
        tr_jinja_fail(&r->arena, "selectattr needs an attribute");
    }
    if (args->n > at) {
        if (args->items[at].kind != K_STRING
            || (row = tr_jinja_test_row(args->items[at].s)) == 0) {
            tr_jinja_fail(&r->arena, "select needs the name of a test");
        }
        rest = behind(args, at + 1);
    }
    for (uint32_t i = 0; i < in.n; i++) {
        value_t v = by_attribute
                        ? attribute_of(r, in.items[i], args->items[0], MISSING)
                        : in.items[i];
        bool yes;

        r->steps++;
        yes = row == 0 ? tr_jinja_truth(r, v)
                       : tr_jinja_test(r, row, args->items[at].s, v, &rest);
        if (yes != ((it->how & REJECTING) != 0)) {
            tr_jinja_append(&r->arena, &out, &cap, in.items[i]);
        }
    }
    tr_jinja_charge(r, 0);
    return out;
}

value_t
tr_jinja_filter_select(render_t *r, value_t v, const arguments_t *args)
{
    return generator(r, make_select, v, kept(r, args), 0);
}

value_t
tr_jinja_filter_reject(render_t *r, value_t v, const arguments_t *args)
{
    return generator(r, make_select, v, kept(r, args), REJECTING);
}

value_t
tr_jinja_filter_selectattr(render_t *r, value_t v, const arguments_t *args)
{
    return generator(r, make_select, v, kept(r, args), BY_ATTRIBUTE);
}

value_t
tr_jinja_filter_rejectattr(render_t *r, value_t v, const arguments_t *args)
{
    return generator(r, make_select, v, kept(r, args),
                     BY_ATTRIBUTE | REJECTING);
}

static list_t
make_items(render_t *r, iter_t *it)
{
    view_t view = { it->source.dict, VIEW_ITEMS };

    if (it->source.kind == K_UNDEFINED) {
        return (list_t){ NULL, 0 };
    }
    if (it->source.kind != K_DICT) {
        tr_jinja_fail(&r->arena, "items needs a mapping, not %s",
                      tr_jinja_type(it->source));
    }
    return tr_jinja_items(r, (value_t){ .kind = K_VIEW, .view = &view });
}

value_t
tr_jinja_filter_items(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return generator(r, make_items, v, NULL, 0);
}

static list_t
make_unique(render_t *r, iter_t *it)
{
    list_t in = tr_jinja_items(r, it->source), out = { NULL, 0 };
    dict_t *seen = tr_jinja_dict(&r->arena, 8);
    uint32_t cap = 0;

    for (uint32_t i = 0; i < in.n; i++) {
        value_t key = key_of(r, in.items[i], it->extra, it->how != 0);

        r->steps++;
        if (!tr_jinja_hashable(key)) {
            tr_jinja_fail(&r->arena, "unique cannot compare %s",
                          tr_jinja_type(key));
        }
        tr_jinja_charge(r, seen->n);
        if (tr_jinja_dict_get(&r->arena, seen, key) == NULL) {
            tr_jinja_dict_set(&r->arena, seen, key, NONE);
            tr_jinja_append(&r->arena, &out, &cap, in.items[i]);
        }
    }
    return out;
}

value_t
tr_jinja_filter_unique(render_t *r, value_t v, const value_t *args)
{
    value_t out = generator(r, make_unique, v, NULL, flag(r, args[0]));

    out.iter->extra = args[1];
    return out;
}

static list_t
make_reverse(render_t *r, iter_t *it)
{
    list_t in = tr_jinja_items(r, it->source);
    list_t *out = tr_jinja_list(&r->arena, in.n);

    for (uint32_t i = 0; i < in.n; i++) {
        out->items[i] = in.items[in.n - 1 - i];
    }
    return *out;
}

value_t
tr_jinja_filter_reverse(render_t *r, value_t v, const value_t *args)
{
    builder_t b = { 0 };
    list_t chars;

    (void) args;
    if (v.kind == K_STRING) {
        chars = tr_jinja_items(r, v);
        for (uint32_t i = chars.n; i > 0; i--) {
            tr_jinja_put_string(&r->arena, &b, chars.items[i - 1].s);
        }
        return of_string(tr_jinja_built(&r->arena, &b));
    }
    if (!tr_jinja_iterable(v)) {
        tr_jinja_fail(&r->arena, "%s cannot be reversed", tr_jinja_type(v));
    }
    return generator(r, make_reverse, v, NULL, 0);
}

/* ---- sorting ------------------------------------------------------------ */

typedef struct {
    value_t key, item;
} keyed_t;

/* Stable, from below: merges runs of doubled length. */
static void
merge_sort(render_t *r, keyed_t *a, uint32_t n, bool reverse)
{
    keyed_t *b = tr_jinja_alloc(&r->arena, n * sizeof(*b)), *from = a, *to = b;

    for (uint64_t width = 1; width < n; width *= 2) {
        keyed_t *t;

        for (uint64_t low = 0; low < n; low += 2 * width) {
            uint64_t mid = low + width < n ? low + width : n;
            uint64_t high = mid + width < n ? mid + width : n;
            uint64_t i = low, k = mid;

            for (uint64_t out = low; out < high; out++) {
                bool left = i < mid
                            && (k >= high
                                || (reverse ? tr_jinja_order(r, from[i].key,
                                                             from[k].key)
                                                  >= 0
                                            : tr_jinja_order(r, from[i].key,
                                                             from[k].key)
                                                  <= 0));

                to[out] = left ? from[i++] : from[k++];
            }
            r->steps += high - low;
        }
        tr_jinja_charge(r, 0);
        t = from;
        from = to;
        to = t;
    }
    if (from != a) {
        memcpy(a, from, n * sizeof(*a));
    }
}

static value_t
sorted(render_t *r, keyed_t *k, uint32_t n, bool reverse)
{
    list_t *out = tr_jinja_list(&r->arena, n);

    merge_sort(r, k, n, reverse);
    for (uint32_t i = 0; i < n; i++) {
        out->items[i] = k[i].item;
    }
    return (value_t){ .kind = K_LIST, .list = out };
}

value_t
tr_jinja_filter_dictsort(render_t *r, value_t v, const value_t *args)
{
    bool case_sensitive = flag(r, args[0]), by_value = false;
    keyed_t *k;

    if (args[1].kind == K_STRING && tr_jinja_is(args[1].s, "value")) {
        by_value = true;
    } else if (args[1].kind != K_MISSING
               && !(args[1].kind == K_STRING
                    && tr_jinja_is(args[1].s, "key"))) {
        tr_jinja_fail(&r->arena, "dictsort sorts by key or value");
    }
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (v.kind != K_DICT) {
        tr_jinja_fail(&r->arena, "dictsort needs a mapping, not %s",
                      tr_jinja_type(v));
    }
    k = tr_jinja_alloc(&r->arena, v.dict->n * sizeof(*k));
    for (uint32_t i = 0; i < v.dict->n; i++) {
        value_t key = by_value ? v.dict->values[i] : v.dict->keys[i];

        k[i].key = case_sensitive ? key : lowered(r, key);
        k[i].item = tr_jinja_pair(&r->arena, v.dict->keys[i],
                                  v.dict->values[i]);
    }
    return sorted(r, k, v.dict->n, flag(r, args[2]));
}

/* "a,b": by the first, then by the second. */
static value_t
keys_of(render_t *r, value_t v, value_t attribute, bool case_sensitive)
{
    list_t *parts, *out;

    if (attribute.kind != K_STRING
        || memchr(attribute.s->data, ',', attribute.s->len) == NULL) {
        return key_of(r, v, attribute, case_sensitive);
    }
    parts = tr_jinja_split(&r->arena, attribute.s,
                           tr_jinja_string(&r->arena, ",", 1, TR_JINJA_T), -1,
                           false);
    out = tr_jinja_list(&r->arena, parts->n);
    for (uint32_t i = 0; i < parts->n; i++) {
        out->items[i] = key_of(r, v, parts->items[i], case_sensitive);
    }
    return (value_t){ .kind = K_LIST, .list = out };
}

value_t
tr_jinja_filter_sort(render_t *r, value_t v, const value_t *args)
{
    list_t in = tr_jinja_items(r, v);
    keyed_t *k = tr_jinja_alloc(&r->arena, in.n * sizeof(*k));

    for (uint32_t i = 0; i < in.n; i++) {
        k[i].key = keys_of(r, in.items[i], args[2], flag(r, args[1]));
        k[i].item = in.items[i];
    }
    return sorted(r, k, in.n, flag(r, args[0]));
}

static value_t
extreme(render_t *r, value_t v, const value_t *args, int sign)
{
    list_t in = tr_jinja_items(r, v);
    value_t best = UNDEFINED, best_key = MISSING;

    for (uint32_t i = 0; i < in.n; i++) {
        value_t key = key_of(r, in.items[i], args[1], flag(r, args[0]));

        r->steps++;
        if (i == 0 || tr_jinja_order(r, key, best_key) * sign > 0) {
            best = in.items[i];
            best_key = key;
        }
    }
    return best;
}

value_t
tr_jinja_filter_min(render_t *r, value_t v, const value_t *args)
{
    return extreme(r, v, args, -1);
}

value_t
tr_jinja_filter_max(render_t *r, value_t v, const value_t *args)
{
    return extreme(r, v, args, 1);
}

value_t
tr_jinja_filter_sum(render_t *r, value_t v, const value_t *args)
{
    list_t in = tr_jinja_items(r, v);
    value_t sum = args[1].kind == K_MISSING ? of_int(0) : args[1];

    for (uint32_t i = 0; i < in.n; i++) {
        value_t item = in.items[i];

        if (args[0].kind != K_MISSING && args[0].kind != K_NONE) {
            item = attribute_of(r, item, args[0], MISSING);
        }
        r->steps++;
        sum = tr_jinja_arithmetic(r, N_ADD, sum, item);
    }
    return sum;
}

/* ---- ends, join --------------------------------------------------------- */

value_t
tr_jinja_filter_first(render_t *r, value_t v, const value_t *args)
{
    list_t l = tr_jinja_items(r, v);

    (void) args;
    if (v.kind == K_ITER && l.n > 0) {
        v.iter->next -= l.n - 1; /* the others are still to come */
    }
    return l.n > 0 ? l.items[0] : UNDEFINED;
}

value_t
tr_jinja_filter_last(render_t *r, value_t v, const value_t *args)
{
    list_t l;

    (void) args;
    if (v.kind == K_ITER) {
        tr_jinja_fail(&r->arena, "last needs a sequence, not %s",
                      tr_jinja_type(v));
    }
    l = tr_jinja_items(r, v);
    return l.n > 0 ? l.items[l.n - 1] : UNDEFINED;
}

value_t
tr_jinja_filter_list(render_t *r, value_t v, const value_t *args)
{
    list_t l = tr_jinja_items(r, v);
    list_t *out = tr_jinja_alloc(&r->arena, sizeof(*out));

    (void) args;
    *out = l;
    return (value_t){ .kind = K_LIST, .list = out };
}

string_t *
tr_jinja_join(render_t *r, const list_t *items, string_t *sep)
{
    builder_t b = { 0 };

    for (uint32_t i = 0; i < items->n; i++) {
        if (i > 0) {
            tr_jinja_put_string(&r->arena, &b, sep);
        }
        r->steps++;
        tr_jinja_print(r, &b, items->items[i]);
    }
    tr_jinja_charge(r, 0);
    return tr_jinja_built(&r->arena, &b);
}

value_t
tr_jinja_filter_join(render_t *r, value_t v, const value_t *args)
{
    list_t l = tr_jinja_items(r, v), *items = &l;
    string_t *sep = args[0].kind == K_MISSING
                        ? tr_jinja_string(&r->arena, "", 0, TR_JINJA_T)
                        : tr_jinja_str(r, args[0]);

    if (args[1].kind != K_MISSING && args[1].kind != K_NONE) {
        items = tr_jinja_list(&r->arena, l.n);
        for (uint32_t i = 0; i < l.n; i++) {
            items->items[i] = attribute_of(r, l.items[i], args[1], MISSING);
        }
    }
    return of_string(tr_jinja_join(r, items, sep));
}
