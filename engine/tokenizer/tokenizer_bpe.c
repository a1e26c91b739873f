/*
 * Byte-pair merges of one word.
 *
 * The word is a linked list of symbols; a heap holds the possible merges, the
 * best rank first and the leftmost among equals.  A merge makes entries of its
 * neighbours stale; they are recognised when they surface, because the pair
 * that now stands at their place has another rank.  So a word of n symbols
 * costs O(n log n), whatever it consists of.
 */
#include "tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

#define NO_SYMBOL UINT32_MAX

static tr_status_t
out_of_memory(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
}

static uint32_t
hash_pair(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t) left << 32 | right) * 0x9e3779b97f4a7c15ull;

    return (uint32_t) (h >> 32);
}

/* The slot of a pair, or the free one where it belongs. */
static tr_merge_t *
merge_slot(const tr_tokenizer_t *t, uint32_t left, uint32_t right)
{
    uint32_t i = hash_pair(left, right) & t->merge_mask;

    while (t->merges[i].left != UINT32_MAX
           && (t->merges[i].left != left || t->merges[i].right != right)) {
        i = (i + 1) & t->merge_mask;
    }
    return &t->merges[i];
}

/* "a b" or ["a", "b"]. */
static bool
merge_sides(const json_t *item, const char **a, size_t *a_len, const char **b,
            size_t *b_len)
{
    if (json_is_string(item)) {
        const char *text = json_string_value(item);
        size_t len = json_string_length(item);
        const char *space = memchr(text, ' ', len);

        if (space == NULL) {
            return false;
        }
        *a = text;
        *a_len = (size_t) (space - text);
        *b = space + 1;
        *b_len = len - *a_len - 1;
        return memchr(*b, ' ', *b_len) == NULL;
    }
    if (json_is_array(item) && json_array_size(item) == 2) {
        const json_t *left = json_array_get(item, 0);
        const json_t *right = json_array_get(item, 1);

        *a = json_string_value(left);
        *a_len = json_string_length(left);
        *b = json_string_value(right);
        *b_len = json_string_length(right);
        return *a != NULL && *b != NULL;
    }
    return false;
}

/* For messages. */
static int
shown(size_t len)
{
    return len < 60 ? (int) len : 60;
}

static tr_status_t
add_merge(tr_tokenizer_t *t, const json_t *item, uint32_t rank, tr_error_t *err)
{
    const char *a, *b;
    size_t a_len, b_len;
    char joined[2 * TR_PIECE_MAX_BYTES];
    int32_t left, right, merged;
    tr_merge_t *slot;

    if (!merge_sides(item, &a, &a_len, &b, &b_len)) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: model.merges[%u] is neither \"a "
                            "b\" nor [\"a\", \"b\"]",
                            rank);
    }
    left = tr_string_map_find(&t->by_content, &t->content, a, a_len);
    right = tr_string_map_find(&t->by_content, &t->content, b, b_len);
    if (left < 0 || right < 0) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: model.merges[%u] names \"%.*s\", "
                            "which is not in the vocabulary",
                            rank, shown(left < 0 ? a_len : b_len),
                            left < 0 ? a : b);
    }
    memcpy(joined, a, a_len);
    memcpy(joined + a_len, b, b_len);
    merged = tr_string_map_find(&t->by_content, &t->content, joined,
                                a_len + b_len);
    if (merged < 0) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: model.merges[%u] gives \"%.*s\", "
                            "which is not in the vocabulary",
                            rank, shown(a_len + b_len), joined);
    }
    slot = merge_slot(t, (uint32_t) left, (uint32_t) right);
    *slot = (tr_merge_t){ (uint32_t) left, (uint32_t) right, rank, merged };
    return TR_OK;
}

static tr_status_t
load_merges(tr_tokenizer_t *t, const json_t *merges, tr_error_t *err)
{
    size_t n = json_array_size(merges), slots = 16, i;
    const json_t *item;

    if (!json_is_array(merges)) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: model.merges is not an array");
    }
    if (n > TR_TOKEN_ID_LIMIT) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: %zu merges, at most %u are "
                            "possible",
                            n, TR_TOKEN_ID_LIMIT);
    }
    while (slots < n * 2) {
        slots *= 2;
    }
    t->merges = malloc(slots * sizeof(*t->merges));
    if (t->merges == NULL) {
        return out_of_memory(err);
    }
    memset(t->merges, 0xff, slots * sizeof(*t->merges));
    t->merge_mask = (uint32_t) slots - 1;
    json_array_foreach ((json_t *) merges, i, item) {
        tr_status_t rc = add_merge(t, item, (uint32_t) i, err);

        if (rc != TR_OK) {
            return rc;
        }
    }
    return TR_OK;
}

/* Ids of single bytes: of byte-level pieces, or "<0x41>" for the fallback. */
static void
find_byte_ids(tr_tokenizer_t *t)
{
    for (int b = 0; b < 256; b++) {
        char text[8] = { (char) b };

        if (t->byte_level) {
            t->byte_ids[b] = tr_string_map_find(&t->by_piece, &t->pieces, text,
                                                1);
        } else {
            snprintf(text, sizeof(text), "<0x%02X>", b);
            t->byte_ids[b] = tr_string_map_find(&t->by_content, &t->content,
                                                text, 6);
        }
    }
}

/* Affixes and dropout: known to the format, used by no supported family. */
static tr_status_t
check_unused_options(const json_t *model, tr_error_t *err)
{
    static const char *const affixes[] = { "continuing_subword_prefix",
                                           "end_of_word_suffix" };
    const json_t *dropout = json_object_get(model, "dropout");

    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, affixes[i]);

        if (v != NULL && !json_is_null(v) && json_string_length(v) > 0) {
            return tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                                "tokenizer.json: model.%s \"%.60s\" is not "
                                "supported, only an empty one",
                                affixes[i], json_string_value(v));
        }
    }
    if (json_is_number(dropout) && json_number_value(dropout) > 0) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                            "tokenizer.json: model.dropout %g is not "
                            "supported: encoding must not be random",
                            json_number_value(dropout));
    }
    return TR_OK;
}

tr_status_t
tr_bpe_load(tr_tokenizer_t *t, const json_t *model, tr_error_t *err)
{
    const json_t *unk = json_object_get(model, "unk_token");
    tr_status_t rc = check_unused_options(model, err);

    if (rc != TR_OK) {
        return rc;
    }
    t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    t->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    t->unk = -1;
    if (json_is_string(unk)) {
        t->unk = tr_tokenizer_find(t, json_string_value(unk));
        if (t->unk < 0) {
            return tr_error_set(err, TR_ERR_FORMAT, "",
                                "tokenizer.json: model.unk_token \"%.60s\" is "
                                "not in the vocabulary",
                                json_string_value(unk));
        }
    }
    find_byte_ids(t);
    return load_merges(t, json_object_get(model, "merges"), err);
}

static bool
heap_push(tr_tokenizer_scratch_t *s, uint64_t key)
{
    size_t i = s->heap_len;

    if (s->heap_len == s->heap_cap) {
        size_t cap = s->heap_cap ? s->heap_cap * 2 : 256;
        uint64_t *heap = realloc(s->heap, cap * sizeof(*heap));

        if (heap == NULL) {
            return false;
        }
        s->heap = heap;
        s->heap_cap = cap;
    }
    s->heap_len++;
    while (i > 0 && s->heap[(i - 1) / 2] > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = key;
    return true;
}

static uint64_t
heap_pop(tr_tokenizer_scratch_t *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->heap_len];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= s->heap_len) {
            break;
        }
        if (child + 1 < s->heap_len && s->heap[child + 1] < s->heap[child]) {
            child++;
        }
        if (s->heap[child] >= last) {
            break;
        }
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Queues the merge of symbol i with its right neighbour, if there is one. */
static bool
queue_merge(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s, uint32_t i)
{
    uint32_t next = s->symbols[i].next;
    const tr_merge_t *m;

    if (next == NO_SYMBOL) {
        return true;
    }
    m = merge_slot(t, (uint32_t) s->symbols[i].id,
                   (uint32_t) s->symbols[next].id);
    return m->left == UINT32_MAX || heap_push(s, (uint64_t) m->rank << 32 | i);
}

static bool
merge_symbols(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s, uint32_t n)
{
    tr_symbol_t *sym = s->symbols;

    s->heap_len = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!queue_merge(t, s, i)) {
            return false;
        }
    }
    while (s->heap_len > 0) {
        uint64_t key = heap_pop(s);
        uint32_t i = (uint32_t) key, next;
        const tr_merge_t *m;

        if (sym[i].id < 0 || sym[i].next == NO_SYMBOL) {
            continue;
        }
        next = sym[i].next;
        m = merge_slot(t, (uint32_t) sym[i].id, (uint32_t) sym[next].id);
        if (m->left == UINT32_MAX || m->rank != key >> 32) {
            continue;
        }
        sym[i].id = m->merged;
        sym[i].next = sym[next].next;
        sym[next].id = -1;
        if (sym[i].next != NO_SYMBOL) {
            sym[sym[i].next].prev = i;
        }
        if ((sym[i].prev != NO_SYMBOL && !queue_merge(t, s, sym[i].prev))
            || !queue_merge(t, s, i)) {
            return false;
        }
    }
    return true;
}

/* Appends a symbol behind the first n. */
static uint32_t
add_symbol(tr_tokenizer_scratch_t *s, uint32_t n, int32_t id)
{
    s->symbols[n] = (tr_symbol_t){ id, n > 0 ? n - 1 : NO_SYMBOL, NO_SYMBOL };
    if (n > 0) {
        s->symbols[n - 1].next = n;
    }
    return n + 1;
}

static bool
has_byte_ids(const tr_tokenizer_t *t, const char *p, uint32_t len)
{
    for (uint32_t i = 0; i < len; i++) {
        if (t->byte_ids[(uint8_t) p[i]] < 0) {
            return false;
        }
    }
    return true;
}

/* A word's first symbols: bytes, or characters with byte fallback and unknown
 * token.  What has none of these is left out, as in the reference. */
static uint32_t
make_symbols(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
             const char *word, size_t len)
{
    uint32_t n = 0, step;
    bool after_unk = false;

    for (size_t i = 0; i < len; i += step) {
        const char *p = word + i;
        int32_t id;

        if (t->byte_level) {
            step = 1;
            id = t->byte_ids[(uint8_t) *p];
        } else {
            (void) tr_utf8_next(p, &step);
            id = tr_string_map_find(&t->by_content, &t->content, p, step);
        }
        if (id >= 0) {
            n = add_symbol(s, n, id);
            after_unk = false;
        } else if (!t->byte_level && t->byte_fallback
                   && has_byte_ids(t, p, step)) {
            for (uint32_t k = 0; k < step; k++) {
                n = add_symbol(s, n, t->byte_ids[(uint8_t) p[k]]);
            }
            after_unk = false;
        } else if (t->unk >= 0) {
            if (!(after_unk && t->fuse_unk)) {
                n = add_symbol(s, n, t->unk);
            }
            after_unk = true;
        }
    }
    return n;
}

static tr_cache_entry_t *
cache_slot(tr_tokenizer_scratch_t *s, const char *word, size_t len)
{
    uint32_t h = tr_fnv1a_32(TR_FNV1A_32, word, len);

    return &s->cache[(h ^ h >> 15) & (TR_CACHE_SLOTS - 1)];
}

static bool
append_all(tr_ids_t *out, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!tr_ids_append(out, ids[i])) {
            return false;
        }
    }
    return true;
}

static tr_status_t
encode_slowly(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
              const char *word, size_t len, tr_ids_t *out, tr_error_t *err)
{
    uint32_t n;

    if (t->ignore_merges) {
        int32_t id = t->byte_level ? tr_string_map_find(&t->by_piece,
                                                        &t->pieces, word, len)
                                   : tr_string_map_find(&t->by_content,
                                                        &t->content, word, len);

        if (id >= 0) {
            return tr_ids_append(out, id) ? TR_OK : out_of_memory(err);
        }
    }
    if (len > s->symbols_cap) {
        size_t cap = len < 256 ? 256 : len;
        tr_symbol_t *symbols = realloc(s->symbols, cap * sizeof(*symbols));

        if (symbols == NULL) {
            return out_of_memory(err);
        }
        s->symbols = symbols;
        s->symbols_cap = cap;
    }
    n = make_symbols(t, s, word, len);
    if (!merge_symbols(t, s, n)) {
        return out_of_memory(err);
    }
    /* symbol 0 is never merged into a left neighbour */
    for (uint32_t i = 0; n > 0 && i != NO_SYMBOL; i = s->symbols[i].next) {
        if (!tr_ids_append(out, s->symbols[i].id)) {
            return out_of_memory(err);
        }
    }
    return TR_OK;
}

tr_status_t
tr_bpe_encode(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
              const char *word, size_t len, tr_ids_t *out, tr_error_t *err)
{
    tr_cache_entry_t *entry;
    uint32_t first = out->len;
    tr_status_t rc;

    if (len == 0 || len > TR_CACHE_WORD) {
        return encode_slowly(t, s, word, len, out, err);
    }
    entry = cache_slot(s, word, len);
    if (entry->len == len && memcmp(entry->word, word, len) == 0) {
        return append_all(out, entry->ids, entry->n) ? TR_OK
                                                     : out_of_memory(err);
    }
    rc = encode_slowly(t, s, word, len, out, err);
    if (rc == TR_OK && out->len - first <= TR_CACHE_IDS) {
        entry->len = (uint8_t) len;
        entry->n = (uint8_t) (out->len - first);
        memcpy(entry->word, word, len);
        if (entry->n > 0) {
            memcpy(entry->ids, out->data + first,
                   entry->n * sizeof(*entry->ids));
        }
    }
    return rc;
}
