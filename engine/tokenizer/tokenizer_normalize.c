/*
 * Normalizers: the Unicode forms by utf8proc's tables, lower case, Prepend and
 * Replace, in the order of the file.
 *
 * The Unicode forms are put together here from utf8proc's parts: its own
 * canonical ordering moves one mark at a time, which a long run of combining
 * marks would make quadratic.
 */
#include "tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static tr_status_t
out_of_memory(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
}

static tr_status_t
load_replace(tr_normalizer_t *n, const json_t *config, tr_error_t *err)
{
    const json_t *pattern = json_object_get(config, "pattern");
    const json_t *string = json_object_get(pattern, "String");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *content = json_object_get(config, "content");

    if (!json_is_string(content)
        || (!json_is_string(string) && !json_is_string(regex))) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: normalizer Replace needs a "
                            "pattern (String or Regex) and a content");
    }
    n->kind = TR_NORMALIZE_REPLACE;
    n->text = strdup(json_string_value(content));
    n->text_len = json_string_length(content);
    if (n->text == NULL) {
        return out_of_memory(err);
    }
    if (json_is_string(string)) {
        return tr_regex_compile_literal(&n->pattern, json_string_value(string),
                                        json_string_length(string),
                                        "normalizer Replace", err);
    }
    return tr_regex_compile(&n->pattern, json_string_value(regex),
                            json_string_length(regex), "normalizer Replace",
                            err);
}

static tr_status_t
load_one(tr_normalizer_t *n, const json_t *config, const char *type,
         tr_error_t *err)
{
    if (strcmp(type, "NFC") == 0 || strcmp(type, "NFD") == 0
        || strcmp(type, "NFKC") == 0 || strcmp(type, "NFKD") == 0) {
        n->kind = TR_NORMALIZE_UNICODE;
        n->compat = type[2] == 'K';
        n->compose = type[strlen(type) - 1] == 'C';
        return TR_OK;
    }
    if (strcmp(type, "Lowercase") == 0) {
        n->kind = TR_NORMALIZE_LOWERCASE;
        return TR_OK;
    }
    if (strcmp(type, "Prepend") == 0) {
        const json_t *text = json_object_get(config, "prepend");

        if (!json_is_string(text)) {
            return tr_error_set(err, TR_ERR_FORMAT, "",
                                "tokenizer.json: normalizer Prepend needs a "
                                "string \"prepend\"");
        }
        n->kind = TR_NORMALIZE_PREPEND;
        n->text = strdup(json_string_value(text));
        n->text_len = json_string_length(text);
        return n->text ? TR_OK : out_of_memory(err);
    }
    if (strcmp(type, "Replace") == 0) {
        return load_replace(n, config, err);
    }
    return tr_load_unsupported(err, "normalizer", type,
                               "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, "
                               "Replace, Sequence");
}

tr_status_t
tr_normalizers_load(tr_tokenizer_t *t, const json_t *config, tr_error_t *err)
{
    const char *type = json_string_value(json_object_get(config, "type"));
    const json_t *list = json_object_get(config, "normalizers");
    const json_t *item;
    size_t i;

    if (config == NULL || json_is_null(config)) {
        return TR_OK;
    }
    if (type == NULL) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: a normalizer without a \"type\"");
    }
    if (strcmp(type, "Sequence") == 0) {
        json_array_foreach ((json_t *) list, i, item) {
            tr_status_t rc = tr_normalizers_load(t, item, err);

            if (rc != TR_OK) {
                return rc;
            }
        }
        return TR_OK;
    }
    if (t->n_normalizers == TR_STEPS_MAX) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                            "tokenizer.json: more than %d normalizers",
                            TR_STEPS_MAX);
    }
    return load_one(&t->normalizers[t->n_normalizers++], config, type, err);
}

/* A stable sort by combining class of marks[0..n), by counting. */
static bool
sort_marks(int32_t *marks, size_t n)
{
    size_t starts[257] = { 0 }, at;
    int32_t *sorted;

    for (at = 1; at < n; at++) {
        if (utf8proc_get_property(marks[at - 1])->combining_class
            > utf8proc_get_property(marks[at])->combining_class) {
            break;
        }
    }
    if (at >= n) {
        return true;
    }
    sorted = malloc(n * sizeof(*sorted));
    if (sorted == NULL) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        starts[utf8proc_get_property(marks[i])->combining_class + 1]++;
    }
    for (int c = 1; c <= 256; c++) {
        starts[c] += starts[c - 1];
    }
    for (size_t i = 0; i < n; i++) {
        int c = utf8proc_get_property(marks[i])->combining_class;

        sorted[starts[c]++] = marks[i];
    }
    memcpy(marks, sorted, n * sizeof(*sorted));
    free(sorted);
    return true;
}

static bool
order_canonically(int32_t *c, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t start;

        while (i < n && utf8proc_get_property(c[i])->combining_class == 0) {
            i++;
        }
        start = i;
        while (i < n && utf8proc_get_property(c[i])->combining_class != 0) {
            i++;
        }
        if (i - start > 1 && !sort_marks(c + start, i - start)) {
            return false;
        }
    }
    return true;
}

/* Room for n more code points behind the first `used`. */
static bool
reserve_code_points(tr_tokenizer_scratch_t *s, size_t used, size_t n)
{
    size_t cap = s->code_points_cap ? s->code_points_cap : 256;
    uint32_t *data;

    if (used + n <= s->code_points_cap) {
        return true;
    }
    while (cap < used + n) {
        cap *= 2;
    }
    data = realloc(s->code_points, cap * sizeof(*data));
    if (data == NULL) {
        return false;
    }
    s->code_points = data;
    s->code_points_cap = cap;
    return true;
}

/* No decomposition is longer (U+FDFA: 18). */
#define DECOMPOSED_MAX 32

static tr_status_t
normalize_unicode(const tr_normalizer_t *n, tr_tokenizer_scratch_t *s,
                  const char *text, size_t len, tr_bytes_t *out,
                  tr_error_t *err)
{
    int options = UTF8PROC_DECOMPOSE | (n->compat ? UTF8PROC_COMPAT : 0);
    size_t used = 0;
    uint32_t step;
    int32_t *c;
    utf8proc_ssize_t count;

    for (size_t i = 0; i < len; i += step) {
        uint32_t code = tr_utf8_next(text + i, &step);

        if (!reserve_code_points(s, used, DECOMPOSED_MAX)) {
            return out_of_memory(err);
        }
        count = utf8proc_decompose_char((int32_t) code,
                                        (int32_t *) s->code_points + used,
                                        DECOMPOSED_MAX,
                                        (utf8proc_option_t) options, NULL);
        if (count < 0 || count > DECOMPOSED_MAX) {
            return tr_error_set(err, TR_ERR_INTERNAL, "",
                                "U+%04X does not decompose: %s", code,
                                utf8proc_errmsg(count));
        }
        used += (size_t) count;
    }
    c = (int32_t *) s->code_points;
    if (!order_canonically(c, used)) {
        return out_of_memory(err);
    }
    count = (utf8proc_ssize_t) used;
    if (n->compose) {
        count = utf8proc_normalize_utf32(c, count,
                                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    }
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        if (!tr_bytes_reserve(out, 4)) {
            return out_of_memory(err);
        }
        out->len += (size_t) utf8proc_encode_char(c[i],
                                                  (utf8proc_uint8_t *) out->data
                                                      + out->len);
    }
    return TR_OK;
}

static tr_status_t
normalize_lowercase(const char *text, size_t len, tr_bytes_t *out,
                    tr_error_t *err)
{
    uint32_t step;

    for (size_t i = 0; i < len; i += step) {
        uint32_t c = tr_utf8_next(text + i, &step);

        if (!tr_bytes_reserve(out, 4)) {
            return out_of_memory(err);
        }
        if (c == 0x130) { /* the one lower case of two characters */
            (void) tr_bytes_append(out, "i\xcc\x87", 3);
            continue;
        }
        out->len += (size_t) utf8proc_encode_char(utf8proc_tolower((int32_t) c),
                                                  (utf8proc_uint8_t *) out->data
                                                      + out->len);
    }
    return TR_OK;
}

static tr_status_t
normalize_replace(const tr_normalizer_t *n, tr_tokenizer_scratch_t *s,
                  const char *text, size_t len, tr_bytes_t *out,
                  tr_error_t *err)
{
    size_t done = 0, from = 0;

    while (from <= len) {
        tr_span_t at;
        bool found;
        tr_status_t rc = tr_regex_find(&n->pattern, &s->regex, text, len, from,
                                       &at, &found, err);

        if (rc != TR_OK) {
            return rc;
        }
        if (!found) {
            break;
        }
        if (!tr_bytes_append(out, text + done, at.start - done)
            || !tr_bytes_append(out, n->text, n->text_len)) {
            return out_of_memory(err);
        }
        done = at.end;
        from = at.end;
        if (at.start == at.end) { /* after an empty match, one character on */
            uint32_t step = 1;

            if (from < len) {
                (void) tr_utf8_next(text + from, &step);
            }
            from += step;
        }
    }
    return tr_bytes_append(out, text + done, len - done) ? TR_OK
                                                         : out_of_memory(err);
}

/* Text that the step cannot change, decided by a look at the bytes. */
static bool
is_normal_already(const tr_normalizer_t *n, const char *text, size_t len)
{
    /* below U+0300 everything is in NFC, ASCII in every form */
    uint8_t bound = n->compose && !n->compat ? 0xcc : 0x80;

    if (n->kind != TR_NORMALIZE_UNICODE) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if ((uint8_t) text[i] >= bound) {
            return false;
        }
    }
    return true;
}

tr_status_t
tr_normalize(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
             const char **text, size_t *len, tr_error_t *err)
{
    unsigned turn = 0;

    for (uint32_t i = 0; i < t->n_normalizers; i++) {
        const tr_normalizer_t *n = &t->normalizers[i];
        tr_bytes_t *out = &s->normalized[turn];
        tr_status_t rc = TR_OK;

        if (*len == 0 || is_normal_already(n, *text, *len)) {
            continue;
        }
        out->len = 0;
        switch (n->kind) {
        case TR_NORMALIZE_UNICODE:
            rc = normalize_unicode(n, s, *text, *len, out, err);
            break;
        case TR_NORMALIZE_LOWERCASE:
            rc = normalize_lowercase(*text, *len, out, err);
            break;
        case TR_NORMALIZE_PREPEND:
            if (!tr_bytes_append(out, n->text, n->text_len)
                || !tr_bytes_append(out, *text, *len)) {
                rc = out_of_memory(err);
            }
            break;
        case TR_NORMALIZE_REPLACE:
            rc = normalize_replace(n, s, *text, *len, out, err);
            break;
        }
        if (rc != TR_OK) {
            return rc;
        }
        if (out->len > TR_TEXT_MAX_BYTES) {
            return tr_error_set(err, TR_ERR_TOO_LARGE, "",
                                "the text grows to %zu bytes in normalisation, "
                                "at most %u are possible",
                                out->len, TR_TEXT_MAX_BYTES);
        }
        *text = out->data ? out->data : "";
        *len = out->len;
        turn ^= 1;
    }
    return TR_OK;
}
