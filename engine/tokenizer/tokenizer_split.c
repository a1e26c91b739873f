/*
 * Pre-tokenizers: text to words, within which alone merges happen.
 *
 * Most steps only cut; Metaspace and a prefix space also change the text.  So
 * a step takes spans of one text and gives spans of the same or a new one.
 * Each span is a subject of its own: a pattern does not see its neighbours.
 */
#include "tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#define MATCH_BIT 0x80000000u

/* What ByteLevel cuts by when use_regex is set (GPT-2's). */
static const char byte_level_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| "
                                         "?\\p{N}+| "
                                         "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|"
                                         "\\s+";

static tr_status_t
out_of_memory(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
}

/* A new step; NULL, with *err set, when there are too many. */
static tr_splitter_t *
add_step(tr_tokenizer_t *t, enum tr_split_kind kind, tr_error_t *err)
{
    tr_splitter_t *sp;

    if (t->n_splitters == TR_STEPS_MAX) {
        tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                     "tokenizer.json: more than %d pre-tokenizers",
                     TR_STEPS_MAX);
        return NULL;
    }
    sp = &t->splitters[t->n_splitters++];
    sp->kind = kind;
    return sp;
}

static tr_status_t
load_behaviour(tr_splitter_t *sp, const json_t *config, tr_error_t *err)
{
    static const char *const names[] = { "Removed", "Isolated",
                                         "MergedWithPrevious", "MergedWithNext",
                                         "Contiguous" };
    const char *name = json_string_value(json_object_get(config, "behavior"));

    for (int i = 0; name != NULL && i < 5; i++) {
        if (strcmp(name, names[i]) == 0) {
            sp->behaviour = (enum tr_split_behaviour) i;
            return TR_OK;
        }
    }
    return tr_load_unsupported(err, "behavior of pre_tokenizer Split",
                               name ? name : "(none)",
                               "Removed, Isolated, MergedWithPrevious, "
                               "MergedWithNext, Contiguous");
}

static tr_status_t
load_split(tr_tokenizer_t *t, const json_t *config, tr_error_t *err)
{
    const json_t *pattern = json_object_get(config, "pattern");
    const json_t *string = json_object_get(pattern, "String");
    const json_t *regex = json_object_get(pattern, "Regex");
    tr_splitter_t *sp = add_step(t, TR_SPLIT_PATTERN, err);
    tr_status_t rc;

    if (sp == NULL) {
        return TR_ERR_UNSUPPORTED;
    }
    rc = load_behaviour(sp, config, err);
    if (rc != TR_OK) {
        return rc;
    }
    sp->invert = json_is_true(json_object_get(config, "invert"));
    if (json_is_string(string)) {
        return tr_regex_compile_literal(&sp->pattern, json_string_value(string),
                                        json_string_length(string),
                                        "pre_tokenizer Split", err);
    }
    if (json_is_string(regex)) {
        return tr_regex_compile(&sp->pattern, json_string_value(regex),
                                json_string_length(regex),
                                "pre_tokenizer Split", err);
    }
    return tr_error_set(err, TR_ERR_FORMAT, "",
                        "tokenizer.json: pre_tokenizer Split needs a pattern "
                        "(String or Regex)");
}

static tr_status_t
load_pattern(tr_tokenizer_t *t, const char *pattern,
             enum tr_split_behaviour behaviour, const char *where,
             tr_error_t *err)
{
    tr_splitter_t *sp = add_step(t, TR_SPLIT_PATTERN, err);

    if (sp == NULL) {
        return TR_ERR_UNSUPPORTED;
    }
    sp->behaviour = behaviour;
    return tr_regex_compile(&sp->pattern, pattern, strlen(pattern), where, err);
}

static tr_status_t
load_byte_level(tr_tokenizer_t *t, const json_t *config, tr_error_t *err)
{
    t->byte_level = true;
    if (json_is_true(json_object_get(config, "add_prefix_space"))) {
        tr_splitter_t *sp = add_step(t, TR_SPLIT_PREFIX, err);

        if (sp == NULL) {
            return TR_ERR_UNSUPPORTED;
        }
        strcpy(sp->replacement, " ");
    }
    if (json_is_false(json_object_get(config, "use_regex"))) {
        return TR_OK;
    }
    return load_pattern(t, byte_level_pattern, TR_SPLIT_ISOLATED,
                        "pre_tokenizer ByteLevel", err);
}

static tr_status_t
load_prepend_scheme(tr_splitter_t *sp, const json_t *config, tr_error_t *err)
{
    const json_t *scheme = json_object_get(config, "prepend_scheme");
    const char *name = json_string_value(scheme);

    /* before prepend_scheme there was add_prefix_space */
    if (scheme == NULL || json_is_null(scheme)) {
        sp->prepend = json_is_false(json_object_get(config, "add_prefix_space"))
                          ? TR_PREPEND_NEVER
                          : TR_PREPEND_ALWAYS;
        return TR_OK;
    }
    if (name != NULL && strcmp(name, "always") == 0) {
        sp->prepend = TR_PREPEND_ALWAYS;
    } else if (name != NULL && strcmp(name, "first") == 0) {
        sp->prepend = TR_PREPEND_FIRST;
    } else if (name != NULL && strcmp(name, "never") == 0) {
        sp->prepend = TR_PREPEND_NEVER;
    } else {
        return tr_load_unsupported(err,
                                   "prepend_scheme of pre_tokenizer Metaspace",
                                   name ? name : "(no string)",
                                   "always, first, never");
    }
    return TR_OK;
}

static tr_status_t
load_metaspace(tr_tokenizer_t *t, const json_t *config, tr_error_t *err)
{
    const char *text = json_string_value(
        json_object_get(config, "replacement"));
    tr_splitter_t *sp = add_step(t, TR_SPLIT_METASPACE, err);
    tr_splitter_t *cut;
    tr_status_t rc;
    uint32_t n;

    if (sp == NULL) {
        return TR_ERR_UNSUPPORTED;
    }
    if (text == NULL) {
        text = "\xe2\x96\x81";
    }
    (void) tr_utf8_next(text, &n);
    if (text[0] == '\0' || text[n] != '\0') {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: the replacement of pre_tokenizer "
                            "Metaspace is \"%.20s\", expected one character",
                            text);
    }
    memcpy(sp->replacement, text, n + 1);
    rc = load_prepend_scheme(sp, config, err);
    if (rc != TR_OK || json_is_false(json_object_get(config, "split"))) {
        return rc;
    }
    cut = add_step(t, TR_SPLIT_PATTERN, err);
    if (cut == NULL) {
        return TR_ERR_UNSUPPORTED;
    }
    cut->behaviour = TR_SPLIT_MERGED_WITH_NEXT;
    return tr_regex_compile_literal(&cut->pattern, text, n,
                                    "pre_tokenizer Metaspace", err);
}

static tr_status_t
load_one(tr_tokenizer_t *t, const json_t *config, const char *type,
         tr_error_t *err)
{
    if (strcmp(type, "Split") == 0) {
        return load_split(t, config, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return load_byte_level(t, config, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return load_metaspace(t, config, err);
    }
    if (strcmp(type, "Digits") == 0) {
        bool each = json_is_true(json_object_get(config, "individual_digits"));

        return load_pattern(t, "\\p{N}",
                            each ? TR_SPLIT_ISOLATED : TR_SPLIT_CONTIGUOUS,
                            "pre_tokenizer Digits", err);
    }
    return tr_load_unsupported(err, "pre_tokenizer", type,
                               "Sequence, Split, ByteLevel, Digits, Metaspace");
}

tr_status_t
tr_splitters_load(tr_tokenizer_t *t, const json_t *config, tr_error_t *err)
{
    const char *type = json_string_value(json_object_get(config, "type"));
    const json_t *list = json_object_get(config, "pretokenizers");
    const json_t *item;
    size_t i;

    if (config == NULL || json_is_null(config)) {
        return TR_OK;
    }
    if (type == NULL) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: a pre_tokenizer without a "
                            "\"type\"");
    }
    if (t->byte_level) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                            "tokenizer.json: pre_tokenizer %.60s after "
                            "ByteLevel, which must be the last",
                            type);
    }
    if (strcmp(type, "Sequence") == 0) {
        json_array_foreach ((json_t *) list, i, item) {
            tr_status_t rc = tr_splitters_load(t, item, err);

            if (rc != TR_OK) {
                return rc;
            }
        }
        return TR_OK;
    }
    return load_one(t, config, type, err);
}

/* All of text as segments, each a match or what lies between two. */
static tr_status_t
find_segments(const tr_splitter_t *sp, tr_tokenizer_scratch_t *s,
              const char *text, uint32_t len, tr_error_t *err)
{
    uint32_t flip = sp->invert ? MATCH_BIT : 0;
    size_t done = 0, from = 0;

    s->segments.len = 0;
    while (from <= len) {
        tr_span_t at;
        bool found;
        tr_status_t rc = tr_regex_find(&sp->pattern, &s->regex, text, len, from,
                                       &at, &found, err);
        uint32_t step = 1;

        if (rc != TR_OK) {
            return rc;
        }
        if (!found) {
            break;
        }
        if (at.start > done
            && !tr_spans_append(&s->segments, (uint32_t) done | flip,
                                at.start)) {
            return out_of_memory(err);
        }
        if (at.end > at.start
            && !tr_spans_append(&s->segments, at.start | (flip ^ MATCH_BIT),
                                at.end)) {
            return out_of_memory(err);
        }
        done = at.end;
        from = at.end;
        if (at.start == at.end) {
            if (from < len) {
                (void) tr_utf8_next(text + from, &step);
            }
            from += step;
        }
    }
    if (done < len
        && !tr_spans_append(&s->segments, (uint32_t) done | flip, len)) {
        return out_of_memory(err);
    }
    return TR_OK;
}

/* Does a segment continue the word of its left neighbour? */
static bool
joins_left(enum tr_split_behaviour behaviour, bool left_match, bool match)
{
    switch (behaviour) {
    case TR_SPLIT_CONTIGUOUS:
        return match == left_match;
    case TR_SPLIT_MERGED_WITH_PREVIOUS:
        return match && !left_match;
    case TR_SPLIT_MERGED_WITH_NEXT:
        return !match && left_match;
    default:
        return false;
    }
}

static tr_status_t
cut_span(const tr_splitter_t *sp, tr_tokenizer_scratch_t *s, const char *text,
         tr_span_t span, tr_spans_t *out, tr_error_t *err)
{
    tr_status_t rc = find_segments(sp, s, text + span.start,
                                   span.end - span.start, err);
    bool left = false;

    for (uint32_t i = 0; rc == TR_OK && i < s->segments.len; i++) {
        tr_span_t segment = s->segments.data[i];
        bool match = segment.start & MATCH_BIT;

        segment.start &= ~MATCH_BIT;
        if (i > 0 && joins_left(sp->behaviour, left, match)) {
            out->data[out->len - 1].end = span.start + segment.end;
        } else if (!(match && sp->behaviour == TR_SPLIT_REMOVED)
                   && !tr_spans_append(out, span.start + segment.start,
                                       span.start + segment.end)) {
            rc = out_of_memory(err);
        }
        left = match;
    }
    return rc;
}

/* ByteLevel's prefix space and Metaspace: the spans' texts, changed, one
 * behind the other in a new buffer. */
static tr_status_t
change_spans(const tr_splitter_t *sp, const char *text, const tr_spans_t *in,
             bool first, tr_bytes_t *buf, tr_spans_t *out, tr_error_t *err)
{
    const char *mark = sp->replacement;
    size_t mark_len = strlen(mark);
    bool metaspace = sp->kind == TR_SPLIT_METASPACE;
    bool prepend = !metaspace || sp->prepend == TR_PREPEND_ALWAYS;

    buf->len = 0;
    for (uint32_t i = 0; i < in->len; i++) {
        const char *p = text + in->data[i].start;
        size_t n = in->data[i].end - in->data[i].start;
        size_t start = buf->len;
        bool has = n >= mark_len && memcmp(p, mark, mark_len) == 0;

        has |= metaspace && p[0] == ' ';
        if ((prepend || (sp->prepend == TR_PREPEND_FIRST && first && i == 0))
            && !has && !tr_bytes_append(buf, mark, mark_len)) {
            return out_of_memory(err);
        }
        for (size_t j = 0, k; j < n; j = k) {
            for (k = j; k < n && !(metaspace && p[k] == ' '); k++) {
            }
            if (!tr_bytes_append(buf, p + j, k - j)
                || (k < n && !tr_bytes_append(buf, mark, mark_len))) {
                return out_of_memory(err);
            }
            k += k < n;
        }
        if (buf->len > TR_TEXT_MAX_BYTES) {
            return tr_error_set(err, TR_ERR_TOO_LARGE, "",
                                "the text grows to more than %u bytes",
                                TR_TEXT_MAX_BYTES);
        }
        if (!tr_spans_append(out, (uint32_t) start, (uint32_t) buf->len)) {
            return out_of_memory(err);
        }
    }
    return TR_OK;
}

tr_status_t
tr_split(const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s, bool first,
         const char **text, size_t len, const tr_spans_t **words,
         tr_error_t *err)
{
    unsigned in = 0, buf = 0;

    s->spans[in].len = 0;
    if (!tr_spans_append(&s->spans[in], 0, (uint32_t) len)) {
        return out_of_memory(err);
    }
    for (uint32_t i = 0; i < t->n_splitters; i++) {
        const tr_splitter_t *sp = &t->splitters[i];
        tr_spans_t *from = &s->spans[in], *to = &s->spans[in ^ 1];
        tr_status_t rc = TR_OK;

        to->len = 0;
        if (sp->kind == TR_SPLIT_PATTERN) {
            for (uint32_t k = 0; rc == TR_OK && k < from->len; k++) {
                rc = cut_span(sp, s, *text, from->data[k], to, err);
            }
        } else {
            rc = change_spans(sp, *text, from, first, &s->split_text[buf], to,
                              err);
            *text = s->split_text[buf].data;
            buf ^= 1;
        }
        if (rc != TR_OK) {
            return rc;
        }
        in ^= 1;
    }
    *words = &s->spans[in];
    return TR_OK;
}
