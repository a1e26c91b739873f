/*
 * The tokenizer's tables: strings by id in one blob, ids by string in an open
 * hash table of ids; growing buffers; and the alphabet of byte-level files.
 */
#include "tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

bool
tr_bytes_reserve(tr_bytes_t *b, size_t more)
{
    size_t cap = b->cap ? b->cap : 256;
    char *data;

    if (more <= b->cap - b->len) {
        return true;
    }
    if (more > SIZE_MAX / 2 - b->len) {
        return false;
    }
    while (cap < b->len + more) {
        cap *= 2;
    }
    data = realloc(b->data, cap);
    if (data == NULL) {
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

bool
tr_bytes_append(tr_bytes_t *b, const char *data, size_t len)
{
    if (!tr_bytes_reserve(b, len)) {
        return false;
    }
    if (len > 0) {
        memcpy(b->data + b->len, data, len);
    }
    b->len += len;
    return true;
}

bool
tr_spans_append(tr_spans_t *s, uint32_t start, uint32_t end)
{
    if (s->len == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 64;
        tr_span_t *data = realloc(s->data, cap * sizeof(*data));

        if (data == NULL) {
            return false;
        }
        s->data = data;
        s->cap = cap;
    }
    s->data[s->len++] = (tr_span_t){ start, end };
    return true;
}

bool
tr_ids_append(tr_ids_t *ids, int32_t id)
{
    if (ids->len == ids->cap) {
        uint32_t cap = ids->cap ? ids->cap * 2 : 64;
        int32_t *data = realloc(ids->data, cap * sizeof(*data));

        if (data == NULL) {
            return false;
        }
        ids->data = data;
        ids->cap = cap;
    }
    ids->data[ids->len++] = id;
    return true;
}

bool
tr_strings_set(tr_strings_t *s, uint32_t id, const char *data, size_t len)
{
    if (s->blob.len + len > UINT32_MAX) {
        return false;
    }
    if (id >= s->n) {
        uint32_t n = s->n ? s->n : 256;
        tr_span_t *at;

        while (n <= id) {
            n *= 2;
        }
        at = realloc(s->at, n * sizeof(*at));
        if (at == NULL) {
            return false;
        }
        memset(at + s->n, 0, (n - s->n) * sizeof(*at));
        s->at = at;
        s->n = n;
    }
    s->at[id].start = (uint32_t) s->blob.len;
    if (!tr_bytes_append(&s->blob, data, len)) {
        return false;
    }
    s->at[id].end = (uint32_t) s->blob.len;
    return true;
}

const char *
tr_strings_get(const tr_strings_t *s, uint32_t id, uint32_t *len)
{
    if (id >= s->n || s->at[id].start == s->at[id].end) {
        *len = 0;
        return "";
    }
    *len = s->at[id].end - s->at[id].start;
    return s->blob.data + s->at[id].start;
}

void
tr_strings_free(tr_strings_t *s)
{
    free(s->blob.data);
    free(s->at);
    memset(s, 0, sizeof(*s));
}

/* Short keys, and the table is at most half full. */
static uint32_t
hash_bytes(const char *data, size_t len)
{
    uint64_t h = tr_fnv1a_64(TR_FNV1A_64, data, len);

    return (uint32_t) (h ^ h >> 32);
}

int32_t
tr_string_map_find(const tr_string_map_t *m, const tr_strings_t *s,
                   const char *data, size_t len)
{
    if (m->slots == NULL) {
        return -1;
    }
    for (uint32_t i = hash_bytes(data, len) & m->mask;; i = (i + 1) & m->mask) {
        int32_t id = m->slots[i];
        uint32_t n;
        const char *p;

        if (id < 0) {
            return -1;
        }
        p = tr_strings_get(s, (uint32_t) id, &n);
        if (n == len && memcmp(p, data, len) == 0) {
            return id;
        }
    }
}

static void
insert(tr_string_map_t *m, const tr_strings_t *s, int32_t id)
{
    uint32_t len, i;
    const char *data = tr_strings_get(s, (uint32_t) id, &len);

    for (i = hash_bytes(data, len) & m->mask; m->slots[i] >= 0;
         i = (i + 1) & m->mask) {
    }
    m->slots[i] = id;
    m->used++;
}

static bool
grow(tr_string_map_t *m, const tr_strings_t *s)
{
    tr_string_map_t bigger = { 0 };
    uint32_t n = m->slots ? (m->mask + 1) * 2 : 1024;

    bigger.slots = malloc(n * sizeof(*bigger.slots));
    if (bigger.slots == NULL) {
        return false;
    }
    memset(bigger.slots, 0xff, n * sizeof(*bigger.slots));
    bigger.mask = n - 1;
    for (uint32_t i = 0; m->slots != NULL && i <= m->mask; i++) {
        if (m->slots[i] >= 0) {
            insert(&bigger, s, m->slots[i]);
        }
    }
    free(m->slots);
    *m = bigger;
    return true;
}

bool
tr_string_map_add(tr_string_map_t *m, const tr_strings_t *s, int32_t id)
{
    uint32_t len;
    const char *data = tr_strings_get(s, (uint32_t) id, &len);

    if ((m->slots == NULL || m->used >= m->mask / 2) && !grow(m, s)) {
        return false;
    }
    if (tr_string_map_find(m, s, data, len) < 0) {
        insert(m, s, id);
    }
    return true;
}

/*
 * The alphabet of byte-level files (GPT-2's): the printable bytes of Latin-1
 * stand for themselves, the other 68 bytes follow in order from U+0100.
 */
static int
byte_of_character(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac)
        || (c >= 0xae && c <= 0xff)) {
        return (int) c;
    }
    if (c < 0x100 || c >= 0x100 + 68) {
        return -1;
    }
    c -= 0x100;
    if (c <= 0x20) { /* 00..20 */
        return (int) c;
    }
    if (c <= 0x42) { /* 7f..a0 */
        return (int) (c - 0x21 + 0x7f);
    }
    return 0xad;
}

bool
tr_byte_level_decode(const char *text, size_t len, char *out, size_t *out_len)
{
    size_t n = 0;
    uint32_t step;

    for (size_t i = 0; i < len; i += step) {
        int byte = byte_of_character(tr_utf8_next(text + i, &step));

        if (byte < 0) {
            return false;
        }
        out[n++] = (char) byte;
    }
    *out_len = n;
    return true;
}

/* The well-formed sequences of the Unicode standard's table 3-7. */
uint32_t
tr_utf8_valid(const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *) text;
    uint8_t low = 0x80, high = 0xbf;
    uint32_t n;

    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4) {
        return 0;
    }
    n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (len < n) {
        return 0;
    }
    if (p[0] == 0xe0) {
        low = 0xa0;
    } else if (p[0] == 0xed) {
        high = 0x9f;
    } else if (p[0] == 0xf0) {
        low = 0x90;
    } else if (p[0] == 0xf4) {
        high = 0x8f;
    }
    if (p[1] < low || p[1] > high) {
        return 0;
    }
    for (uint32_t i = 2; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}
