/*
 * Memory and values (jinja_value.h).
 */
#include "jinja_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

#define BLOCK_BYTES 16384u
#define BLOCK_MAX (1u << 20)
#define FEW_KEYS 8u

/* ---- memory ------------------------------------------------------------- */

struct tr_jinja_block {
    tr_jinja_block_t *next;
    size_t size;
    char data[] __attribute__((aligned(16)));
};

static _Noreturn void
set_error(tr_jinja_arena_t *a, tr_status_t status, const char *text)
{
    size_t n = strlen(text);

    /* a message may be cut within a character */
    while (n > 0 && n < TR_ERROR_TEXT && ((text[n - 1] & 0xc0) == 0x80)) {
        size_t k = n - 1, need;

        while (k > 0 && (text[k] & 0xc0) == 0x80) {
            k--;
        }
        need = (text[k] & 0xe0) == 0xc0 ? 2 : (text[k] & 0xf0) == 0xe0 ? 3 : 4;
        n = n - k == need ? n : k;
        break;
    }
    if (n > 0 && (text[n - 1] & 0xc0) == 0xc0) {
        n--;
    }
    a->status = tr_error_set(a->err, status, "messages", "%.*s", (int) n, text);
    longjmp(*a->escape, 1);
}

void
tr_jinja_fail(tr_jinja_arena_t *a, const char *format, ...)
{
    char text[TR_ERROR_TEXT];
    unsigned line = 1, column = 1;
    va_list args;
    int n;

    for (size_t i = 0; i < a->place && i < a->source_len; i++) {
        if (a->source[i] == '\n') {
            line++;
            column = 1;
        } else if ((a->source[i] & 0xc0) != 0x80) {
            column++;
        }
    }
    n = snprintf(text, sizeof(text), "%s:%u:%u: ", a->name, line, column);
    n = n < 0 || (size_t) n >= sizeof(text) ? 0 : n;
    va_start(args, format);
    vsnprintf(text + n, sizeof(text) - (size_t) n, format, args);
    va_end(args);
    set_error(a, TR_ERR_INVALID, text);
}

void
tr_jinja_fail_as(tr_jinja_arena_t *a, tr_status_t status, const char *format,
                 ...)
{
    char text[TR_ERROR_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    set_error(a, status, text);
}

void
tr_jinja_account(tr_jinja_arena_t *a, size_t n)
{
    if (n > a->limit || a->total > a->limit - n) {
        tr_jinja_fail_as(a, TR_ERR_INVALID,
                         "The chat template exceeded its limit of %zu bytes of "
                         "memory.",
                         a->limit);
    }
    a->total += n;
}

static void
new_block(tr_jinja_arena_t *a, size_t n)
{
    size_t size = a->blocks ? a->blocks->size * 2 : BLOCK_BYTES;
    tr_jinja_block_t *b;

    size = size > BLOCK_MAX ? BLOCK_MAX : size;
    size = n > size ? n : size;
    tr_jinja_account(a, size);
    b = malloc(sizeof(*b) + size);
    if (b == NULL) {
        tr_jinja_fail_as(a, TR_ERR_NOMEM, "out of memory");
    }
    b->size = size;
    b->next = a->blocks;
    a->blocks = b;
    a->at = b->data;
    a->end = b->data + size;
}

void *
tr_jinja_alloc(tr_jinja_arena_t *a, size_t n)
{
    void *p;

    if (n > SIZE_MAX - 15) {
        tr_jinja_fail_as(a, TR_ERR_NOMEM, "out of memory");
    }
    n = (n + 15) & ~(size_t) 15;
    if (n > (size_t) (a->end - a->at)) {
        new_block(a, n);
    }
    p = a->at;
    a->at += n;
    return p;
}

void *
tr_jinja_zalloc(tr_jinja_arena_t *a, size_t n)
{
    return memset(tr_jinja_alloc(a, n), 0, n);
}

void *
tr_jinja_grow(tr_jinja_arena_t *a, void *p, size_t old, size_t n)
{
    size_t had = (old + 15) & ~(size_t) 15;
    void *q;

    if (p != NULL && (char *) p + had == a->at
        && n <= (size_t) (a->end - (char *) p) - 15) {
        a->at = (char *) p + ((n + 15) & ~(size_t) 15);
        return p;
    }
    q = tr_jinja_alloc(a, n);
    if (old > 0) {
        memcpy(q, p, old);
    }
    return q;
}

void
tr_jinja_arena_free(tr_jinja_arena_t *a)
{
    while (a->blocks != NULL) {
        tr_jinja_block_t *b = a->blocks;

        a->blocks = b->next;
        free(b);
    }
    a->at = a->end = NULL;
}

/* ---- strings ------------------------------------------------------------ */

string_t *
tr_jinja_string(tr_jinja_arena_t *a, const char *data, size_t len, uint8_t tag)
{
    string_t *s = tr_jinja_alloc(a, sizeof(*s));

    if (len >= UINT32_MAX) {
        tr_jinja_fail(a, "a text of %zu bytes is too long", len);
    }
    *s = (string_t){
        .data = data, .len = (uint32_t) len, .chars = UINT32_MAX, .tag = tag
    };
    return s;
}

string_t *
tr_jinja_copy(tr_jinja_arena_t *a, const char *data, size_t len, uint8_t tag)
{
    char *copy = tr_jinja_alloc(a, len + 1);

    memcpy(copy, data, len);
    return tr_jinja_string(a, copy, len, tag);
}

uint32_t
tr_jinja_chars(string_t *s)
{
    if (s->chars == UINT32_MAX) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < s->len; i++) {
            n += (s->data[i] & 0xc0) != 0x80;
        }
        s->chars = n;
    }
    return s->chars;
}

string_t *
tr_jinja_slice(tr_jinja_arena_t *a, const string_t *s, size_t from, size_t to)
{
    string_t *out = tr_jinja_alloc(a, sizeof(*out));

    *out = *s;
    out->data += from;
    out->tags = s->tags ? s->tags + from : NULL;
    out->len = (uint32_t) (to - from);
    out->chars = s->chars == s->len ? out->len : UINT32_MAX;
    return out;
}

bool
tr_jinja_same(const string_t *a, const string_t *b)
{
    return a == b
           || (a->len == b->len
               && (a->data == b->data
                   || memcmp(a->data, b->data, a->len) == 0));
}

bool
tr_jinja_is(const string_t *s, const char *text)
{
    return s->len == strlen(text) && memcmp(s->data, text, s->len) == 0;
}

static void
make_room(tr_jinja_arena_t *a, builder_t *b, size_t more)
{
    size_t cap = b->cap ? b->cap : 64;
    char *data;
    uint8_t *tags;

    while (cap - b->len < more) {
        cap *= 2;
    }
    if (cap == b->cap) {
        return;
    }
    /* not in place: strings may share the old bytes */
    data = tr_jinja_alloc(a, cap * 2);
    tags = (uint8_t *) data + cap;
    if (b->len > 0) {
        memcpy(data, b->data, b->len);
        memcpy(tags, b->tags, b->len);
    }
    b->data = data;
    b->tags = tags;
    b->cap = cap;
}

void
tr_jinja_put(tr_jinja_arena_t *a, builder_t *b, const char *data, size_t len,
             uint8_t tag)
{
    if (b->cap - b->len < len) {
        make_room(a, b, len);
    }
    if (len > 0) {
        memcpy(b->data + b->len, data, len);
        memset(b->tags + b->len, tag, len);
        b->len += len;
    }
}

void
tr_jinja_put_text(tr_jinja_arena_t *a, builder_t *b, const char *text,
                  uint8_t tag)
{
    tr_jinja_put(a, b, text, strlen(text), tag);
}

void
tr_jinja_put_slice(tr_jinja_arena_t *a, builder_t *b, const string_t *s,
                   size_t from, size_t to)
{
    if (s->tags == NULL) {
        tr_jinja_put(a, b, s->data + from, to - from, s->tag);
        return;
    }
    if (b->cap - b->len < to - from) {
        make_room(a, b, to - from);
    }
    if (to > from) {
        memcpy(b->data + b->len, s->data + from, to - from);
        memcpy(b->tags + b->len, s->tags + from, to - from);
        b->len += to - from;
    }
}

void
tr_jinja_put_string(tr_jinja_arena_t *a, builder_t *b, const string_t *s)
{
    tr_jinja_put_slice(a, b, s, 0, s->len);
}

void
tr_jinja_put_char(tr_jinja_arena_t *a, builder_t *b, uint32_t c, uint8_t tag)
{
    utf8proc_uint8_t text[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t) c, text);

    tr_jinja_put(a, b, (const char *) text, (size_t) n, tag);
}

static string_t *
of_builder(tr_jinja_arena_t *a, builder_t *b)
{
    string_t *s = tr_jinja_string(a, b->len ? b->data : "", b->len, TR_JINJA_T);

    s->tags = b->len ? b->tags : NULL;
    s->builder = b;
    return s;
}

string_t *
tr_jinja_built(tr_jinja_arena_t *a, builder_t *b)
{
    builder_t *own = tr_jinja_alloc(a, sizeof(*own));

    *own = *b;
    return of_builder(a, own);
}

/* A text that grows piece by piece is written behind itself: the shorter one
 * keeps its bytes, and what is added costs only itself. */
string_t *
tr_jinja_concat(tr_jinja_arena_t *a, string_t *left, string_t *right)
{
    builder_t *b = left->builder;
    string_t *s;

    if (left->len == 0) {
        return right;
    }
    if (right->len == 0) {
        return left;
    }
    if (b != NULL && left->data >= b->data
        && left->data + left->len == b->data + b->len
        && b->cap - b->len >= right->len) {
        size_t from = (size_t) (left->data - b->data);

        tr_jinja_put_string(a, b, right);
        s = tr_jinja_string(a, b->data + from, b->len - from, TR_JINJA_T);
        s->tags = b->tags + from;
        s->builder = b;
    } else {
        b = tr_jinja_zalloc(a, sizeof(*b));
        make_room(a, b, ((size_t) left->len + right->len) * 3 / 2);
        tr_jinja_put_string(a, b, left);
        tr_jinja_put_string(a, b, right);
        s = of_builder(a, b);
    }
    if (left->chars != UINT32_MAX && right->chars != UINT32_MAX) {
        s->chars = left->chars + right->chars;
    }
    return s;
}

/* ---- lists and dicts ---------------------------------------------------- */

list_t *
tr_jinja_list(tr_jinja_arena_t *a, uint32_t n)
{
    list_t *l = tr_jinja_alloc(a, sizeof(*l));

    l->n = n;
    l->items = tr_jinja_alloc(a, (size_t) n * sizeof(value_t));
    return l;
}

value_t
tr_jinja_pair(tr_jinja_arena_t *a, value_t first, value_t second)
{
    list_t *l = tr_jinja_list(a, 2);

    l->items[0] = first;
    l->items[1] = second;
    return (value_t){ .kind = K_TUPLE, .list = l };
}

void
tr_jinja_append(tr_jinja_arena_t *a, list_t *l, uint32_t *cap, value_t v)
{
    if (l->n == *cap) {
        uint32_t more = *cap ? *cap * 2 : 8;

        l->items = tr_jinja_grow(a, l->items, (size_t) l->n * sizeof(value_t),
                                 (size_t) more * sizeof(value_t));
        *cap = more;
    }
    l->items[l->n++] = v;
}

dict_t *
tr_jinja_dict(tr_jinja_arena_t *a, uint32_t cap)
{
    dict_t *d = tr_jinja_zalloc(a, sizeof(*d));

    d->cap = cap;
    d->keys = tr_jinja_alloc(a, (size_t) cap * 2 * sizeof(value_t));
    d->values = d->keys + cap;
    return d;
}

static uint32_t
hash_of(const string_t *s)
{
    uint32_t h = tr_fnv1a_32(TR_FNV1A_32, s->data, s->len);

    return h ^ h >> 15;
}

static void
index_key(dict_t *d, uint32_t i)
{
    uint32_t at;

    if (d->keys[i].kind != K_STRING) {
        return;
    }
    for (at = hash_of(d->keys[i].s) & d->mask; d->slots[at] != 0;
         at = (at + 1) & d->mask) {
    }
    d->slots[at] = i + 1;
}

static void
make_index(tr_jinja_arena_t *a, dict_t *d)
{
    uint32_t size = 32;

    while (size < d->cap * 2) {
        size *= 2;
    }
    d->slots = tr_jinja_zalloc(a, size * sizeof(*d->slots));
    d->mask = size - 1;
    for (uint32_t i = 0; i < d->n; i++) {
        index_key(d, i);
    }
}

value_t *
tr_jinja_dict_find(tr_jinja_arena_t *a, dict_t *d, const string_t *key)
{
    if (d->n <= FEW_KEYS) {
        for (uint32_t i = 0; i < d->n; i++) {
            if (d->keys[i].kind == K_STRING
                && tr_jinja_same(d->keys[i].s, key)) {
                return &d->values[i];
            }
        }
        return NULL;
    }
    if (d->slots == NULL) {
        make_index(a, d);
    }
    for (uint32_t at = hash_of(key) & d->mask; d->slots[at] != 0;
         at = (at + 1) & d->mask) {
        uint32_t i = d->slots[at] - 1;

        if (tr_jinja_same(d->keys[i].s, key)) {
            return &d->values[i];
        }
    }
    return NULL;
}

value_t *
tr_jinja_dict_get(tr_jinja_arena_t *a, dict_t *d, value_t key)
{
    if (key.kind == K_STRING) {
        return tr_jinja_dict_find(a, d, key.s);
    }
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->keys[i].kind != K_STRING && tr_jinja_equal(d->keys[i], key)) {
            return &d->values[i];
        }
    }
    return NULL;
}

void
tr_jinja_dict_set(tr_jinja_arena_t *a, dict_t *d, value_t key, value_t v)
{
    value_t *there = tr_jinja_dict_get(a, d, key);

    if (there != NULL) {
        *there = v;
        return;
    }
    if (d->n == d->cap) {
        dict_t *more = tr_jinja_dict(a, d->cap ? d->cap * 2 : 4);

        if (d->n > 0) {
            memcpy(more->keys, d->keys, d->n * sizeof(value_t));
            memcpy(more->values, d->values, d->n * sizeof(value_t));
        }
        more->n = d->n;
        *d = *more; /* the index is made anew */
    }
    d->keys[d->n] = key;
    d->values[d->n++] = v;
    if (d->slots != NULL) {
        index_key(d, d->n - 1);
    }
}

bool
tr_jinja_hashable(value_t v)
{
    if (v.kind == K_TUPLE) {
        for (uint32_t i = 0; i < v.list->n; i++) {
            if (!tr_jinja_hashable(v.list->items[i])) {
                return false;
            }
        }
    }
    return v.kind != K_LIST && v.kind != K_DICT && v.kind != K_VIEW;
}

/* ---- equality ----------------------------------------------------------- */

static bool
equal_numbers(value_t a, value_t b)
{
    if (a.kind != K_FLOAT && b.kind != K_FLOAT) {
        return (a.kind == K_BOOL ? a.b : a.i) == (b.kind == K_BOOL ? b.b : b.i);
    }
    return (a.kind == K_FLOAT  ? a.f
            : a.kind == K_BOOL ? (double) a.b
                               : (double) a.i)
           == (b.kind == K_FLOAT  ? b.f
               : b.kind == K_BOOL ? (double) b.b
                                  : (double) b.i);
}

static bool
equal_dicts(dict_t *a, dict_t *b)
{
    tr_jinja_arena_t none = { 0 };

    if (a->n != b->n) {
        return false;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        value_t *other = NULL;

        /* without making an index: there is no arena here */
        if (b->slots != NULL || b->n <= FEW_KEYS) {
            other = tr_jinja_dict_get(&none, b, a->keys[i]);
        } else {
            for (uint32_t k = 0; k < b->n && other == NULL; k++) {
                other = tr_jinja_equal(a->keys[i], b->keys[k]) ? &b->values[k]
                                                               : NULL;
            }
        }
        if (other == NULL || !tr_jinja_equal(a->values[i], *other)) {
            return false;
        }
    }
    return true;
}

bool
tr_jinja_equal(value_t a, value_t b)
{
    if (is_number(a) && is_number(b)) {
        return equal_numbers(a, b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    switch (a.kind) {
    case K_UNDEFINED:
    case K_NONE:
        return true;
    case K_STRING:
        return tr_jinja_same(a.s, b.s);
    case K_LIST:
    case K_TUPLE:
        if (a.list->n != b.list->n) {
            return false;
        }
        for (uint32_t i = 0; a.list != b.list && i < a.list->n; i++) {
            if (!tr_jinja_equal(a.list->items[i], b.list->items[i])) {
                return false;
            }
        }
        return true;
    case K_DICT:
        return a.dict == b.dict || equal_dicts(a.dict, b.dict);
    case K_RANGE:
        return a.range->n == b.range->n
               && (a.range->n == 0
                   || (a.range->start == b.range->start
                       && (a.range->n == 1 || a.range->step == b.range->step)));
    case K_FUNCTION:
        return a.function == b.function;
    default:
        return a.dict == b.dict; /* the same object */
    }
}
