/*
 * JSON: a client's values into a render, and tojson, which writes what Python's
 * json.dumps does.
 */
#include "jinja_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_numbers.h"

/* ---- in ----------------------------------------------------------------- */

value_t
tr_jinja_text(render_t *r, const char *data, size_t len, uint8_t tag)
{
    return of_string(tr_jinja_string(&r->arena, data, len, tag));
}

static value_t
from_object(render_t *r, const json_t *json, uint8_t tag)
{
    uint32_t n = (uint32_t) json_object_size(json);
    dict_t *d = tr_jinja_dict(&r->arena, n);
    const char *key;
    json_t *value;

    json_object_foreach ((json_t *) json, key, value) {
        d->keys[d->n] = tr_jinja_text(r, key, strlen(key), tag);
        d->values[d->n++] = tr_jinja_from_json(r, value, tag);
    }
    return of_dict(d);
}

value_t
tr_jinja_from_json(render_t *r, const json_t *json, uint8_t tag)
{
    value_t v = NONE;
    list_t *l;

    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return from_object(r, json, tag);
    case JSON_ARRAY:
        l = tr_jinja_list(&r->arena, (uint32_t) json_array_size(json));
        for (uint32_t i = 0; i < l->n; i++) {
            l->items[i] = tr_jinja_from_json(r, json_array_get(json, i), tag);
        }
        return (value_t){ .kind = K_LIST, .list = l };
    case JSON_STRING:
        return tr_jinja_text(r, json_string_value(json),
                             json_string_length(json), tag);
    case JSON_INTEGER:
        v = of_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = of_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        return of_bool(json_is_true(json));
    default:
        return NONE;
    }
    v.tag = tag;
    return v;
}

static json_t *
load(const char *text, size_t len)
{
    json_error_t problem;
    json_t *json = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL,
                              &problem);
    char *rounded = NULL;

    if (json == NULL
        && json_error_code(&problem) == json_error_numeric_overflow) {
        rounded = tr_json_round(text, len, 0, &len);
    }
    if (rounded != NULL) {
        json = json_loadb(rounded, len, JSON_DECODE_ANY | JSON_ALLOW_NUL,
                          &problem);
        free(rounded);
    }
    return json;
}

bool
tr_jinja_read_json(render_t *r, const string_t *s, value_t *out)
{
    json_t *json;

    /* what jansson may take counts as if it were the arena's */
    tr_jinja_account(&r->arena, (size_t) s->len * 32 + 64);
    json = load(s->data, s->len);
    if (json == NULL) {
        return false;
    }
    if (r->parsed == NULL) {
        r->parsed = json_array();
    }
    if (json_array_append_new(r->parsed, json) != 0) {
        tr_jinja_fail_as(&r->arena, TR_ERR_NOMEM, "out of memory");
    }
    *out = tr_jinja_from_json(r, json, TR_JINJA_U);
    return true;
}

value_t
tr_jinja_filter_from_json(render_t *r, value_t v, const value_t *args)
{
    value_t out;

    (void) args;
    if (v.kind != K_STRING) {
        tr_jinja_fail(&r->arena, "from_json needs a string, not %s",
                      tr_jinja_type(v));
    }
    if (!tr_jinja_read_json(r, v.s, &out)) {
        tr_jinja_fail(&r->arena, "from_json: this is no JSON");
    }
    return out;
}

/* ---- out ---------------------------------------------------------------- */

typedef struct {
    render_t *r;
    builder_t *b;
    bool ascii, sort;
    string_t *indent;     /* of one level, NULL: all in a line */
    string_t *item, *key; /* separators */
    uint32_t depth;
} writer_t;

static void
put(writer_t *w, const char *text)
{
    tr_jinja_put_text(&w->r->arena, w->b, text, TR_JINJA_U);
}

static void
put_unit(writer_t *w, uint32_t c, uint8_t tag)
{
    char text[16];

    snprintf(text, sizeof(text), "\\u%04x", c);
    tr_jinja_put_text(&w->r->arena, w->b, text, tag);
}

/* Bytes of the template stay the template's; all else is a client's. */
static void
put_part(writer_t *w, const string_t *s, uint32_t from, uint32_t to)
{
    size_t at;

    if (s->tags == NULL) {
        tr_jinja_put(&w->r->arena, w->b, s->data + from, to - from,
                     s->tag == TR_JINJA_T ? TR_JINJA_T : TR_JINJA_U);
        return;
    }
    tr_jinja_put_slice(&w->r->arena, w->b, s, from, to);
    for (at = w->b->len - (to - from); at < w->b->len; at++) {
        w->b->tags[at] = w->b->tags[at] == TR_JINJA_T ? TR_JINJA_T : TR_JINJA_U;
    }
}

static void
write_string(writer_t *w, const string_t *s)
{
    tr_jinja_arena_t *a = &w->r->arena;
    uint32_t from = 0, i = 0;

    put(w, "\"");
    while (i < s->len) {
        uint8_t c = (uint8_t) s->data[i];
        uint8_t tag = tag_at(s, i) == TR_JINJA_T ? TR_JINJA_T : TR_JINJA_U;
        const char *by = c == '"'    ? "\\\""
                         : c == '\\' ? "\\\\"
                         : c == '\n' ? "\\n"
                         : c == '\r' ? "\\r"
                         : c == '\t' ? "\\t"
                         : c == '\b' ? "\\b"
                         : c == '\f' ? "\\f"
                                     : NULL;
        uint32_t n = tr_jinja_char_bytes(s->data + i);

        if (by == NULL && c >= 0x20 && !(w->ascii && c >= 0x7f)) {
            i += n;
            continue;
        }
        put_part(w, s, from, i);
        if (by != NULL) {
            tr_jinja_put_text(a, w->b, by, tag);
        } else if (n < 4) {
            uint32_t u = n == 1 ? c
                         : n == 2
                             ? (c & 0x1fu) << 6
                                   | ((uint8_t) s->data[i + 1] & 0x3fu)
                             : (c & 0xfu) << 12
                                   | ((uint8_t) s->data[i + 1] & 0x3fu) << 6
                                   | ((uint8_t) s->data[i + 2] & 0x3fu);

            put_unit(w, u, tag);
        } else {
            uint32_t u = ((c & 7u) << 18
                          | ((uint8_t) s->data[i + 1] & 0x3fu) << 12
                          | ((uint8_t) s->data[i + 2] & 0x3fu) << 6
                          | ((uint8_t) s->data[i + 3] & 0x3fu))
                         - 0x10000;

            put_unit(w, 0xd800 + (u >> 10), tag);
            put_unit(w, 0xdc00 + (u & 0x3ff), tag);
        }
        i += n;
        from = i;
    }
    put_part(w, s, from, s->len);
    put(w, "\"");
}

static void write_value(writer_t *w, value_t v);

static void
write_float(writer_t *w, double f)
{
    char text[40];

    if (isnan(f) || isinf(f)) {
        put(w, isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
        return;
    }
    tr_jinja_float_text(f, text);
    put(w, text);
}

static void
new_line(writer_t *w)
{
    if (w->indent != NULL) {
        put(w, "\n");
        for (uint32_t i = 0; i < w->depth; i++) {
            tr_jinja_put_string(&w->r->arena, w->b, w->indent);
        }
    }
}

static void
write_list(writer_t *w, const list_t *l)
{
    if (l->n == 0) {
        put(w, "[]");
        return;
    }
    put(w, "[");
    w->depth++;
    for (uint32_t i = 0; i < l->n; i++) {
        if (i > 0) {
            tr_jinja_put_string(&w->r->arena, w->b, w->item);
        }
        new_line(w);
        write_value(w, l->items[i]);
    }
    w->depth--;
    new_line(w);
    put(w, "]");
}

static void
write_key(writer_t *w, value_t key)
{
    switch (key.kind) {
    case K_STRING:
        write_string(w, key.s);
        return;
    case K_INT:
    case K_FLOAT:
    case K_BOOL:
    case K_NONE:
        put(w, "\"");
        write_value(w, key);
        put(w, "\"");
        return;
    default:
        tr_jinja_fail(&w->r->arena, "tojson: a key cannot be %s",
                      tr_jinja_type(key));
    }
}

/* The order of a mapping's keys, by insertion or sorted. */
static uint32_t *
key_order(writer_t *w, const dict_t *d)
{
    uint32_t *order = tr_jinja_alloc(&w->r->arena, d->n * sizeof(*order));

    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t k = i;

        if (w->sort) {
            tr_jinja_charge(w->r, (uint64_t) i * 64);
        }
        while (w->sort && k > 0
               && tr_jinja_order(w->r, d->keys[order[k - 1]], d->keys[i]) > 0) {
            order[k] = order[k - 1];
            k--;
        }
        order[k] = i;
    }
    return order;
}

static void
write_dict(writer_t *w, const dict_t *d)
{
    uint32_t *order = w->sort ? key_order(w, d) : NULL;

    if (d->n == 0) {
        put(w, "{}");
        return;
    }
    put(w, "{");
    w->depth++;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t k = order ? order[i] : i;

        if (i > 0) {
            tr_jinja_put_string(&w->r->arena, w->b, w->item);
        }
        new_line(w);
        write_key(w, d->keys[k]);
        tr_jinja_put_string(&w->r->arena, w->b, w->key);
        write_value(w, d->values[k]);
    }
    w->depth--;
    new_line(w);
    put(w, "}");
}

static void
write_value(writer_t *w, value_t v)
{
    char text[32];

    w->r->steps++;
    if (++w->r->levels > TR_JINJA_LEVELS) {
        tr_jinja_fail(&w->r->arena, "tojson: nested deeper than %u",
                      TR_JINJA_LEVELS);
    }
    switch (v.kind) {
    case K_NONE:
        put(w, "null");
        break;
    case K_BOOL:
        put(w, v.b ? "true" : "false");
        break;
    case K_INT:
        snprintf(text, sizeof(text), "%lld", (long long) v.i);
        put(w, text);
        break;
    case K_FLOAT:
        write_float(w, v.f);
        break;
    case K_STRING:
        write_string(w, v.s);
        break;
    case K_LIST:
    case K_TUPLE:
        write_list(w, v.list);
        break;
    case K_DICT:
        write_dict(w, v.dict);
        break;
    default:
        tr_jinja_fail(&w->r->arena, "tojson: %s is no JSON", tr_jinja_type(v));
    }
    w->r->levels--;
}

static string_t *
literal(writer_t *w, const char *text)
{
    return tr_jinja_string(&w->r->arena, text, strlen(text), TR_JINJA_U);
}

static void
take_indent(writer_t *w, value_t v)
{
    if (v.kind == K_STRING) {
        w->indent = v.s;
    } else if (v.kind == K_INT || v.kind == K_BOOL) {
        w->indent = tr_jinja_repeat(&w->r->arena, literal(w, " "),
                                    v.kind == K_BOOL ? v.b : v.i);
    } else if (v.kind != K_MISSING && v.kind != K_NONE) {
        tr_jinja_fail(&w->r->arena, "tojson: indent is a width or a string");
    }
}

static void
take_separators(writer_t *w, value_t v)
{
    if (v.kind == K_MISSING || v.kind == K_NONE) {
        w->item = literal(w, w->indent ? "," : ", ");
        w->key = literal(w, ": ");
        return;
    }
    if ((v.kind != K_LIST && v.kind != K_TUPLE) || v.list->n != 2
        || v.list->items[0].kind != K_STRING
        || v.list->items[1].kind != K_STRING) {
        tr_jinja_fail(&w->r->arena, "tojson: separators are two strings");
    }
    w->item = v.list->items[0].s;
    w->key = v.list->items[1].s;
}

value_t
tr_jinja_filter_tojson(render_t *r, value_t v, const value_t *args)
{
    builder_t b = { 0 };
    writer_t w = { .r = r, .b = &b };

    w.ascii = args[0].kind != K_MISSING && tr_jinja_truth(r, args[0]);
    w.sort = args[3].kind != K_MISSING && tr_jinja_truth(r, args[3]);
    take_indent(&w, args[1]);
    take_separators(&w, args[2]);
    write_value(&w, v);
    tr_jinja_charge(r, b.len);
    return of_string(tr_jinja_built(&r->arena, &b));
}
