/*
 * Encoding, from text to ids:
 *
 *   text -> added tokens are cut out -> each stretch between them is normalised
 *        -> added tokens that are looked for in normalised text are cut out
 *        -> what remains is split into words -> each word is merged -> ids
 *
 * and then the post-processor's ids around the whole.
 */
#include "tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

uint32_t
tr_tokenizer_vocab_size(const tr_tokenizer_t *t)
{
    return t->n_ids;
}

int32_t
tr_tokenizer_find(const tr_tokenizer_t *t, const char *content)
{
    return tr_string_map_find(&t->by_content, &t->content, content,
                              strlen(content));
}

bool
tr_tokenizer_is_special(const tr_tokenizer_t *t, int32_t id)
{
    return id >= 0 && (uint32_t) id < t->n_ids
           && (t->flags[id] & TR_TOKEN_SPECIAL);
}

const char *
tr_tokenizer_token_bytes(const tr_tokenizer_t *t, int32_t id, uint32_t *len)
{
    return tr_strings_get(&t->decoded, id < 0 ? UINT32_MAX : (uint32_t) id,
                          len);
}

uint32_t
tr_tokenizer_max_token_bytes(const tr_tokenizer_t *t)
{
    return t->max_decoded;
}

tr_tokenizer_scratch_t *
tr_tokenizer_scratch_new(const tr_tokenizer_t *t)
{
    tr_tokenizer_scratch_t *s = calloc(1, sizeof(*s));

    (void) t; /* every tokenizer needs the same */
    if (s == NULL) {
        return NULL;
    }
    s->cache = calloc(TR_CACHE_SLOTS, sizeof(*s->cache));
    if (s->cache == NULL || !tr_regex_scratch_init(&s->regex)) {
        tr_tokenizer_scratch_free(s);
        return NULL;
    }
    return s;
}

void
tr_tokenizer_scratch_free(tr_tokenizer_scratch_t *s)
{
    if (s == NULL) {
        return;
    }
    tr_regex_scratch_free(&s->regex);
    for (int i = 0; i < 2; i++) {
        free(s->normalized[i].data);
        free(s->split_text[i].data);
        free(s->spans[i].data);
    }
    free(s->segments.data);
    free(s->code_points);
    free(s->symbols);
    free(s->heap);
    free(s->cache);
    free(s);
}

static tr_status_t
check_utf8(const char *text, size_t len, tr_error_t *err)
{
    size_t i = 0;

    if (len > TR_TEXT_MAX_BYTES) {
        return tr_error_set(err, TR_ERR_TOO_LARGE, "",
                            "a text of %zu bytes, at most %u are possible", len,
                            TR_TEXT_MAX_BYTES);
    }
    while (i < len) {
        uint32_t n = tr_utf8_valid(text + i, len - i);

        if (n == 0) {
            return tr_error_set(err, TR_ERR_INVALID, "",
                                "the text is not valid UTF-8: byte 0x%02x at "
                                "offset %zu",
                                (uint8_t) text[i], i);
        }
        i += n;
    }
    return TR_OK;
}

static tr_status_t
encode_words(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s, bool first,
             const char *text, size_t len, tr_ids_t *out, tr_error_t *err)
{
    const tr_spans_t *words;
    tr_status_t rc = tr_split(t, s, first, &text, len, &words, err);

    for (uint32_t i = 0; rc == TR_OK && i < words->len; i++) {
        rc = tr_bpe_encode(t, s, text + words->data[i].start,
                           words->data[i].end - words->data[i].start, out, err);
    }
    return rc;
}

/* Cuts added tokens out of text and hands what lies between them on: the first
 * pass (of the raw text) to itself, the second to encode_words.  In a text with
 * tags the first pass finds all tokens that ask for them: the second one's text
 * may have other bytes. */
static tr_status_t
encode_around_added(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
                    bool raw, tr_added_rule_t rule, bool first,
                    const char *text, size_t len, tr_ids_t *out,
                    tr_error_t *err)
{
    const tr_trie_t *trie = raw ? &t->raw_trie : &t->normalized_trie;
    tr_added_rule_t inner = { 0 };
    size_t done = 0;

    if (rule.tags == NULL) {
        inner = rule;
    } else if (raw) {
        trie = &t->tagged_trie;
    }
    while (done < len) {
        tr_span_t at = { (uint32_t) len, (uint32_t) len };
        int32_t id = -1;
        tr_status_t rc = TR_OK;

        (void) tr_added_find(t, trie, rule, text, len, done, &at, &id);
        if (at.start > done) {
            const char *part = text + done;
            size_t n = at.start - done;

            if (raw) {
                rc = tr_normalize(t, s, &part, &n, err);
            }
            if (rc == TR_OK && raw) {
                rc = encode_around_added(t, s, false, inner, first && done == 0,
                                         part, n, out, err);
            } else if (rc == TR_OK) {
                rc = encode_words(t, s, first && done == 0, part, n, out, err);
            }
        }
        if (rc == TR_OK && id >= 0 && !tr_ids_append(out, id)) {
            rc = tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
        }
        if (rc != TR_OK) {
            return rc;
        }
        done = at.end;
    }
    return TR_OK;
}

static tr_status_t
append_ids(tr_ids_t *out, const tr_ids_t *ids, tr_error_t *err)
{
    for (uint32_t i = 0; i < ids->len; i++) {
        if (!tr_ids_append(out, ids->data[i])) {
            return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
        }
    }
    return TR_OK;
}

/* What one long prompt needed does not stay: a scratch lives as long as its
 * thread. */
#define KEEP_BYTES (1u << 20)

static void
trim_scratch(tr_tokenizer_scratch_t *s)
{
    tr_bytes_t *texts[] = { &s->normalized[0], &s->normalized[1],
                            &s->split_text[0], &s->split_text[1] };
    tr_spans_t *spans[] = { &s->spans[0], &s->spans[1], &s->segments };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i]->cap > KEEP_BYTES) {
            free(texts[i]->data);
            *texts[i] = (tr_bytes_t){ 0 };
        }
    }
    for (size_t i = 0; i < sizeof(spans) / sizeof(spans[0]); i++) {
        if (spans[i]->cap > KEEP_BYTES / sizeof(tr_span_t)) {
            free(spans[i]->data);
            *spans[i] = (tr_spans_t){ 0 };
        }
    }
    if (s->code_points_cap > KEEP_BYTES / sizeof(*s->code_points)) {
        free(s->code_points);
        s->code_points = NULL;
        s->code_points_cap = 0;
    }
    if (s->symbols_cap > KEEP_BYTES / sizeof(*s->symbols)) {
        free(s->symbols);
        s->symbols = NULL;
        s->symbols_cap = 0;
    }
    if (s->heap_cap > KEEP_BYTES / sizeof(*s->heap)) {
        free(s->heap);
        s->heap = NULL;
        s->heap_cap = 0;
    }
}

tr_status_t
tr_tokenizer_encode(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
                    const char *text, size_t len, unsigned flags, tr_ids_t *out,
                    tr_error_t *err)
{
    tr_status_t rc = check_utf8(text, len, err);
    tr_added_rule_t rule = { .special = flags & TR_ENCODE_PARSE_SPECIAL,
                             .marks = true };

    if (rc == TR_OK && (flags & TR_ENCODE_SPECIAL)) {
        rc = append_ids(out, &t->prefix, err);
    }
    if (rc == TR_OK) {
        rc = encode_around_added(t, s, true, rule, !(flags & TR_ENCODE_MIDDLE),
                                 text, len, out, err);
    }
    if (rc == TR_OK && (flags & TR_ENCODE_SPECIAL)) {
        rc = append_ids(out, &t->suffix, err);
    }
    trim_scratch(s);
    return rc;
}

tr_status_t
tr_tokenizer_encode_tagged(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
                           const char *text, const uint8_t *tags, size_t len,
                           tr_ids_t *out, tr_error_t *err)
{
    tr_added_rule_t rule = { .tags = tags };
    tr_status_t rc = check_utf8(text, len, err);

    if (rc == TR_OK && len > 0) {
        rc = encode_around_added(t, s, true, rule, true, text, len, out, err);
    }
    trim_scratch(s);
    return rc;
}
