/*
 * Ids to text.  At load the file's decoder is compiled to the bytes that each
 * token stands for; to decode a sequence is then to join bytes, make valid
 * UTF-8 of them, and perhaps drop the first space.
 */
#include "tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */
#define REPLACES_MAX 4

/* A decoder as compiled from the file. */
typedef struct {
    bool byte_level;
    bool byte_fallback;
    bool strip_first_space;
    struct {
        const char *from, *to;
        size_t from_len, to_len;
    } replaces[REPLACES_MAX];
    uint32_t n_replaces;
    bool fused;
} decoder_t;

static tr_status_t
add_replace(decoder_t *d, const json_t *from, const json_t *to, tr_error_t *err)
{
    if (!json_is_string(from) || json_string_length(from) == 0
        || !json_is_string(to) || d->n_replaces == REPLACES_MAX) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                            "tokenizer.json: decoder Replace needs a pattern "
                            "String and a content, and at most %d of them are "
                            "supported",
                            REPLACES_MAX);
    }
    d->replaces[d->n_replaces].from = json_string_value(from);
    d->replaces[d->n_replaces].from_len = json_string_length(from);
    d->replaces[d->n_replaces].to = json_string_value(to);
    d->replaces[d->n_replaces++].to_len = json_string_length(to);
    return TR_OK;
}

static tr_status_t
read_strip(decoder_t *d, const json_t *config, tr_error_t *err)
{
    const char *content = json_string_value(json_object_get(config, "content"));
    json_int_t start = json_integer_value(json_object_get(config, "start"));
    json_int_t stop = json_integer_value(json_object_get(config, "stop"));

    if (content == NULL || strcmp(content, " ") != 0 || start < 0 || start > 1
        || stop != 0 || !d->fused) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                            "tokenizer.json: decoder Strip (content \"%.20s\", "
                            "start %lld, stop %lld) is not supported, only one "
                            "space at the start, after Fuse",
                            content ? content : "", (long long) start,
                            (long long) stop);
    }
    d->strip_first_space = start == 1;
    return TR_OK;
}

static tr_status_t
read_metaspace(decoder_t *d, const json_t *config, tr_error_t *err)
{
    static const char lower_block[] = "\xe2\x96\x81";
    const json_t *from = json_object_get(config, "replacement");
    const char *scheme = json_string_value(
        json_object_get(config, "prepend_scheme"));

    if (json_is_string(from) && strcmp(json_string_value(from), lower_block)) {
        return tr_load_unsupported(err, "replacement of decoder Metaspace",
                                   json_string_value(from), lower_block);
    }
    if (d->n_replaces == REPLACES_MAX) {
        return tr_load_unsupported(err, "decoder", "another Metaspace",
                                   "at most 4 replacements");
    }
    d->replaces[d->n_replaces].from = lower_block;
    d->replaces[d->n_replaces].from_len = 3;
    d->replaces[d->n_replaces].to = " ";
    d->replaces[d->n_replaces++].to_len = 1;
    d->strip_first_space = scheme == NULL || strcmp(scheme, "never") != 0;
    return TR_OK;
}

static tr_status_t
read_decoder(decoder_t *d, const json_t *config, int depth, tr_error_t *err)
{
    const char *type = json_string_value(json_object_get(config, "type"));
    const json_t *item;
    size_t i;

    if (type == NULL) {
        type = config == NULL || json_is_null(config) ? "null" : "(no type)";
    }
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        json_array_foreach (json_object_get(config, "decoders"), i, item) {
            tr_status_t rc = read_decoder(d, item, depth + 1, err);

            if (rc != TR_OK) {
                return rc;
            }
        }
        return TR_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        d->byte_level = true;
        return TR_OK;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        d->byte_fallback = true;
        return TR_OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        d->fused = true;
        return TR_OK;
    }
    if (strcmp(type, "Replace") == 0) {
        return add_replace(d,
                           json_object_get(json_object_get(config, "pattern"),
                                           "String"),
                           json_object_get(config, "content"), err);
    }
    if (strcmp(type, "Strip") == 0) {
        return read_strip(d, config, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return read_metaspace(d, config, err);
    }
    return tr_load_unsupported(err, "decoder", type,
                               "ByteLevel, Metaspace, Sequence of Replace, "
                               "ByteFallback, Fuse, Strip");
}

static int
hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* "<0x41>": the byte, else -1. */
static int
fallback_byte(const char *text, uint32_t len)
{
    int high, low;

    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    high = hex_digit(text[3]);
    low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static bool
replace_all(tr_bytes_t *out, tr_bytes_t *tmp, const char *from, size_t from_len,
            const char *to, size_t to_len)
{
    const char *p = out->data, *end = out->data + out->len, *hit;

    tmp->len = 0;
    while ((hit = memmem(p, (size_t) (end - p), from, from_len)) != NULL) {
        if (!tr_bytes_append(tmp, p, (size_t) (hit - p))
            || !tr_bytes_append(tmp, to, to_len)) {
            return false;
        }
        p = hit + from_len;
    }
    if (!tr_bytes_append(tmp, p, (size_t) (end - p))) {
        return false;
    }
    out->len = 0;
    return tr_bytes_append(out, tmp->data, tmp->len);
}

/* The bytes of one token; two buffers of work. */
static bool
decode_token(const tr_tokenizer_t *t, const decoder_t *d, uint32_t id,
             tr_bytes_t *out, tr_bytes_t *tmp)
{
    uint32_t len;
    const char *text = tr_strings_get(&t->content, id, &len);
    int byte = d->byte_fallback ? fallback_byte(text, len) : -1;
    size_t n;

    out->len = 0;
    if (byte >= 0) {
        char c = (char) byte;

        return tr_bytes_append(out, &c, 1);
    }
    if (!tr_bytes_append(out, text, len)) {
        return false;
    }
    for (uint32_t i = 0; i < d->n_replaces; i++) {
        if (!replace_all(out, tmp, d->replaces[i].from, d->replaces[i].from_len,
                         d->replaces[i].to, d->replaces[i].to_len)) {
            return false;
        }
    }
    /* added tokens are written plainly; so is what is not of the alphabet */
    if (d->byte_level && !(t->flags[id] & TR_TOKEN_ADDED)) {
        tmp->len = 0;
        if (!tr_bytes_reserve(tmp, out->len)) {
            return false;
        }
        if (tr_byte_level_decode(out->data, out->len, tmp->data, &n)) {
            out->len = 0;
            return tr_bytes_append(out, tmp->data, n);
        }
    }
    return true;
}

/* The pre-tokenizer that says how bytes are written in tokens; NULL: none. */
static const json_t *
spelling(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "type"));
    const json_t *item, *found = NULL;
    size_t i;

    if (type == NULL) {
        return NULL;
    }
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Metaspace") == 0) {
        return config;
    }
    if (strcmp(type, "Sequence") == 0) {
        json_array_foreach (json_object_get(config, "pretokenizers"), i, item) {
            type = json_string_value(json_object_get(item, "type"));
            if (type != NULL
                && (strcmp(type, "ByteLevel") == 0
                    || strcmp(type, "Metaspace") == 0)) {
                found = item;
            }
        }
    }
    return found;
}

tr_status_t
tr_decoder_load(tr_tokenizer_t *t, const json_t *config,
                const json_t *pre_tokenizer, tr_error_t *err)
{
    decoder_t d = { 0 };
    tr_bytes_t out = { 0 }, tmp = { 0 };
    tr_status_t rc;

    if (json_is_null(config) && spelling(pre_tokenizer) != NULL) {
        /* without a decoder, the one that undoes the pre-tokenizer */
        config = spelling(pre_tokenizer);
    }
    rc = read_decoder(&d, config, 0, err);

    for (uint32_t id = 0; rc == TR_OK && id < t->n_ids; id++) {
        if (!decode_token(t, &d, id, &out, &tmp)
            || !tr_strings_set(&t->decoded, id, out.data, out.len)) {
            rc = tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
        }
        if (out.len > t->max_decoded) {
            t->max_decoded = (uint32_t) out.len;
        }
    }
    t->strip_first_space = d.strip_first_space;
    free(out.data);
    free(tmp.data);
    return rc;
}

void
tr_detok_init(tr_detok_t *d, bool skip_special)
{
    memset(d, 0, sizeof(*d));
    d->at_start = true;
    d->skip_special = skip_special;
}

void
tr_detok_continue(tr_detok_t *d)
{
    d->at_start = false;
}

/* Can byte b stand behind the n bytes that are held?  Table 3-7 of the Unicode
 * standard: the second byte's range depends on the first. */
static bool
continues(const uint8_t *held, uint8_t n, uint8_t b)
{
    uint8_t low = 0x80, high = 0xbf;

    if (n == 1) {
        switch (held[0]) {
        case 0xe0:
            low = 0xa0;
            break;
        case 0xed:
            high = 0x9f;
            break;
        case 0xf0:
            low = 0x90;
            break;
        case 0xf4:
            high = 0x8f;
            break;
        default:
            break;
        }
    }
    return b >= low && b <= high;
}

static uint8_t
character_length(uint8_t lead)
{
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* One byte; a sequence that cannot be completed any more becomes one U+FFFD
 * (the "maximal subpart" practice).  Writes at most 6 bytes. */
static uint32_t
push_byte(tr_detok_t *d, uint8_t b, char *out)
{
    uint32_t n = 0;

    if (d->n_held > 0) {
        if (continues(d->held, d->n_held, b)) {
            d->held[d->n_held++] = b;
            if (d->n_held == character_length(d->held[0])) {
                n = d->n_held;
                memcpy(out, d->held, n);
                d->n_held = 0;
            }
            return n;
        }
        memcpy(out, REPLACEMENT, 3);
        n = 3;
        d->n_held = 0;
    }
    if (b < 0x80) {
        out[n++] = (char) b;
    } else if (b >= 0xc2 && b <= 0xf4) {
        d->held[d->n_held++] = b;
    } else {
        memcpy(out + n, REPLACEMENT, 3);
        n += 3;
    }
    return n;
}

uint32_t
tr_detok_push(tr_detok_t *d, const tr_tokenizer_t *t, int32_t id, char *out,
              uint32_t cap)
{
    uint32_t len, n = 0, i = 0;
    const char *bytes;

    if (d->skip_special && tr_tokenizer_is_special(t, id)) {
        return 0;
    }
    bytes = tr_tokenizer_token_bytes(t, id, &len);
    if (len > 0 && d->at_start) {
        d->at_start = false;
        i = t->strip_first_space && bytes[0] == ' ';
    }
    for (; i < len && n + 6 <= cap; i++) {
        n += push_byte(d, (uint8_t) bytes[i], out + n);
    }
    return n;
}

uint32_t
tr_detok_finish(tr_detok_t *d, char *out, uint32_t cap)
{
    if (d->n_held == 0 || cap < 3) {
        return 0;
    }
    d->n_held = 0;
    memcpy(out, REPLACEMENT, 3);
    return 3;
}
