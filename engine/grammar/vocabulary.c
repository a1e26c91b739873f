/*
 * The vocabulary as two tries (grammar_internal.h): tokens that are plain text
 * inside a JSON string, and the rest.  A state in which a string goes on with
 * any plain character takes all of the first kind without looking at them.  '<' is
 * not plain: in marked-up text it may begin a mark (rules_barred.c).
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

/* Characters of a plain token; 0: it is none. */
static uint32_t
plain_chars(const uint8_t *p, uint32_t len)
{
    uint32_t n = 0, i = 0;

    while (i < len) {
        uint32_t more, low = 0x80, high = 0xbf;
        uint8_t c = p[i++];

        if (c < 0x80) {
            if (c < 0x20 || c == '"' || c == '\\' || c == '<') {
                return 0;
            }
            n++;
            continue;
        }
        if (c < 0xc2 || c > 0xf4) {
            return 0;
        }
        more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
        low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : low;
        high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : high;
        for (; more > 0; more--, low = 0x80, high = 0xbf) {
            if (i == len || p[i] < low || p[i] > high) {
                return 0;
            }
            i++;
        }
        n++;
    }
    return n;
}

typedef struct {
    const tr_vocabulary_t *v;
    const uint8_t *bytes;
    uint32_t len;
    int32_t id;
} entry_t;

static int
by_bytes(const void *a, const void *b)
{
    const entry_t *x = a, *y = b;
    uint32_t n = x->len < y->len ? x->len : y->len;
    int c = memcmp(x->bytes, y->bytes, n);

    return c != 0             ? c
           : x->len != y->len ? (x->len < y->len ? -1 : 1)
                              : (x->id > y->id) - (x->id < y->id);
}

static void
trie_free(tr_vocabulary_trie_t *t)
{
    free(t->byte);
    free(t->skip);
    free(t->token);
    free(t->ids);
    free(t->below);
}

/* Bytes of e that its neighbour has, too. */
static uint32_t
common(const entry_t *a, const entry_t *b)
{
    uint32_t n = a->len < b->len ? a->len : b->len, i = 0;

    while (i < n && a->bytes[i] == b->bytes[i]) {
        i++;
    }
    return i;
}

/* entries: sorted. */
static bool
trie_build(tr_vocabulary_trie_t *t, const entry_t *entries, uint32_t n,
           uint32_t longest)
{
    size_t most = 1;
    uint32_t *path = calloc((size_t) longest + 1, sizeof(*path)), depth = 0;

    for (uint32_t i = 0; i < n; i++) {
        most += entries[i].len
                - (i > 0 ? common(&entries[i - 1], &entries[i]) : 0);
    }
    t->byte = calloc(most, 1);
    t->skip = calloc(most, sizeof(*t->skip));
    t->token = calloc(most + 1, sizeof(*t->token));
    t->ids = calloc((size_t) n + 1, sizeof(*t->ids));
    if (path == NULL || t->byte == NULL || t->skip == NULL || t->token == NULL
        || t->ids == NULL) {
        free(path);
        return false;
    }
    t->n = 1;
    for (uint32_t i = 0; i < n; i++) {
        const entry_t *e = &entries[i];
        uint32_t keep = i > 0 ? common(&entries[i - 1], e) : 0;

        for (; depth > keep; depth--) {
            t->skip[path[depth]] = t->n;
        }
        while (depth < e->len) {
            t->byte[t->n] = e->bytes[depth++];
            t->token[t->n] = i;
            path[depth] = t->n++;
        }
        t->ids[i] = e->id;
    }
    for (; depth > 0; depth--) {
        t->skip[path[depth]] = t->n;
    }
    t->skip[0] = t->n;
    t->token[t->n] = n;
    free(path);
    return true;
}

/* Equal tokens stand at one node: token[] of the next node is behind them all,
 * and an inner node without a token has none, because its child begins there. */

/* Which bytes there are below each node. */
static bool
trie_add_below(tr_vocabulary_trie_t *t)
{
    t->below = calloc((size_t) t->n * 2, sizeof(*t->below));
    if (t->below == NULL) {
        return false;
    }
    for (uint32_t i = t->n; i-- > 0;) {
        uint64_t *below = t->below + 2 * (size_t) i;

        for (uint32_t k = i + 1; k < t->skip[i]; k = t->skip[k]) {
            uint32_t bit = t->byte[k] < 0x7f ? t->byte[k] : 0x7f;

            below[0] |= t->below[2 * (size_t) k];
            below[1] |= t->below[2 * (size_t) k + 1];
            below[bit / 64] |= 1ull << (bit % 64);
        }
    }
    return true;
}

static bool
add_plain_masks(tr_vocabulary_t *v, const uint32_t *chars)
{
    uint32_t k, at;

    for (k = 0; k <= TR_PLAIN_MASKS; k++) {
        v->plain_mask[k] = calloc(v->words, sizeof(uint32_t));
        if (v->plain_mask[k] == NULL) {
            return false;
        }
    }
    for (uint32_t id = 0; id < v->vocab; id++) {
        for (k = chars[id]; k > 0 && k <= TR_PLAIN_MASKS; k++) {
            v->plain_mask[k][id / 32] |= 1u << (id % 32);
        }
        v->n_long += chars[id] > TR_PLAIN_MASKS;
    }
    v->long_id = calloc((size_t) v->n_long + 1, sizeof(*v->long_id));
    v->long_chars = calloc((size_t) v->n_long + 1, sizeof(*v->long_chars));
    if (v->long_id == NULL || v->long_chars == NULL) {
        return false;
    }
    at = 0;
    for (k = TR_PLAIN_MASKS + 1; k <= v->longest; k++) {
        for (uint32_t id = 0; at < v->n_long && id < v->vocab; id++) {
            if (chars[id] == k) {
                v->long_id[at] = (int32_t) id;
                v->long_chars[at++] = k;
            }
        }
    }
    return true;
}

static bool
sort_tokens(tr_vocabulary_t *v)
{
    entry_t *entries = calloc((size_t) v->vocab + 1, sizeof(*entries));
    uint32_t *chars = calloc((size_t) v->vocab + 1, sizeof(*chars));
    uint32_t n[2] = { 0, 0 };
    bool good = entries != NULL && chars != NULL;

    for (uint32_t id = 0; good && id < v->vocab; id++) {
        chars[id] = plain_chars((const uint8_t *) v->bytes + v->start[id],
                                v->start[id + 1] - v->start[id]);
    }
    for (int plain = 0; good && plain < 2; plain++) {
        for (uint32_t id = 0; id < v->vocab; id++) {
            uint32_t len = v->start[id + 1] - v->start[id];

            if (len > 0 && (chars[id] > 0) == plain) {
                entries[n[plain]++] = (entry_t){ v,
                                                 (const uint8_t *) v->bytes
                                                     + v->start[id],
                                                 len, (int32_t) id };
            }
        }
        qsort(entries, n[plain], sizeof(*entries), by_bytes);
        good = trie_build(plain ? &v->plain : &v->rest, entries, n[plain],
                          v->longest);
    }
    for (uint32_t id = 0; good && id < v->vocab; id++) {
        uint32_t len = v->start[id + 1] - v->start[id], k = 0;

        while (k < len && (uint8_t) v->bytes[v->start[id] + k] >= 0x20) {
            k++;
        }
        /* what precedes a control character counts, too */
        if (chars[id] == 0 && k > v->longest_in_string) {
            v->longest_in_string = k;
        }
    }
    good = good && trie_add_below(&v->plain) && add_plain_masks(v, chars);
    free(entries);
    free(chars);
    return good;
}

tr_vocabulary_t *
tr_vocabulary_new(uint32_t vocab, tr_token_bytes_f bytes, void *arg)
{
    tr_vocabulary_t *v = calloc(1, sizeof(*v));
    size_t total = 0;
    uint32_t len;

    if (v == NULL) {
        return NULL;
    }
    v->vocab = vocab;
    v->words = (vocab + 31) / 32;
    v->start = calloc((size_t) vocab + 1, sizeof(*v->start));
    v->special = calloc((size_t) v->words + 1, sizeof(*v->special));
    for (uint32_t id = 0; id < vocab; id++) {
        bytes(arg, (int32_t) id, &len);
        total += len;
    }
    v->bytes = malloc(total + 1);
    if (v->start == NULL || v->special == NULL || v->bytes == NULL
        || total > UINT32_MAX) {
        tr_vocabulary_free(v);
        return NULL;
    }
    total = 0;
    for (uint32_t id = 0; id < vocab; id++) {
        const char *text = bytes(arg, (int32_t) id, &len);

        v->start[id] = (uint32_t) total;
        if (len > 0) {
            memcpy(v->bytes + total, text, len);
        }
        total += len;
        v->longest = len > v->longest ? len : v->longest;
    }
    v->start[vocab] = (uint32_t) total;
    if (!sort_tokens(v)) {
        tr_vocabulary_free(v);
        return NULL;
    }
    return v;
}

static const char *
bytes_of(void *arg, int32_t id, uint32_t *len)
{
    const tr_tokenizer_t *t = arg;

    *len = 0;
    return (uint32_t) id >= tr_tokenizer_vocab_size(t)
                   || tr_tokenizer_is_special(t, id)
               ? ""
               : tr_tokenizer_token_bytes(t, id, len);
}

tr_vocabulary_t *
tr_vocabulary_of(const tr_tokenizer_t *t, uint32_t vocab)
{
    tr_vocabulary_t *v = tr_vocabulary_new(vocab, bytes_of,
                                           (void *) (uintptr_t) t);

    for (uint32_t id = 0; v != NULL && id < vocab; id++) {
        if (id < tr_tokenizer_vocab_size(t)
            && tr_tokenizer_is_special(t, (int32_t) id)) {
            tr_vocabulary_add_special(v, id);
        }
    }
    return v;
}

void
tr_vocabulary_add_special(tr_vocabulary_t *v, uint32_t id)
{
    v->special[id / 32] |= 1u << (id % 32);
}

void
tr_vocabulary_free(tr_vocabulary_t *v)
{
    if (v == NULL) {
        return;
    }
    trie_free(&v->plain);
    trie_free(&v->rest);
    for (uint32_t k = 0; k <= TR_PLAIN_MASKS; k++) {
        free(v->plain_mask[k]);
    }
    free(v->long_id);
    free(v->long_chars);
    free(v->special);
    free(v->start);
    free(v->bytes);
    free(v);
}

uint32_t
tr_vocabulary_words(const tr_vocabulary_t *v)
{
    return v->words;
}
