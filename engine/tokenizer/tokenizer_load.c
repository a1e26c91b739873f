/*
 * tokenizer.json to a tr_tokenizer_t.  The file may be faulty: whatever is
 * missing, out of range or contradictory is an error that names the place.  So
 * is what is not supported, since a tokenizer that is nearly right makes a
 * model quietly wrong.
 */
#include "tokenizer_internal.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX_BYTES (256u << 20)

tr_status_t
tr_load_unsupported(tr_error_t *err, const char *what, const char *name,
                    const char *known)
{
    return tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                        "tokenizer.json: %s \"%.60s\" is not supported (%s "
                        "are)",
                        what, name, known);
}

static tr_status_t
out_of_memory(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
}

static tr_status_t
set_piece(tr_tokenizer_t *t, json_int_t id, const char *text, size_t len,
          const char *where, tr_error_t *err)
{
    uint32_t n;

    if (id < 0 || id >= TR_TOKEN_ID_LIMIT) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: %s \"%.60s\" has id %lld, "
                            "expected 0 to %u",
                            where, text, (long long) id, TR_TOKEN_ID_LIMIT - 1);
    }
    if (len > TR_PIECE_MAX_BYTES) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: %s with id %lld is %zu bytes "
                            "long, at most %d are possible",
                            where, (long long) id, len, TR_PIECE_MAX_BYTES);
    }
    (void) tr_strings_get(&t->content, (uint32_t) id, &n);
    if (n > 0) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: id %lld stands for \"%.60s\" and "
                            "for \"%.*s\"",
                            (long long) id, text, (int) (n < 60 ? n : 60),
                            tr_strings_get(&t->content, (uint32_t) id, &n));
    }
    if (!tr_strings_set(&t->content, (uint32_t) id, text, len)
        || !tr_string_map_add(&t->by_content, &t->content, (int32_t) id)) {
        return out_of_memory(err);
    }
    if ((uint32_t) id >= t->n_ids) {
        t->n_ids = (uint32_t) id + 1;
    }
    return TR_OK;
}

static tr_status_t
load_vocabulary(tr_tokenizer_t *t, const json_t *vocab, tr_error_t *err)
{
    const char *piece;
    json_t *id;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: model.vocab is not an object of "
                            "pieces and ids");
    }
    json_object_foreach ((json_t *) vocab, piece, id) {
        tr_status_t rc;

        if (!json_is_integer(id)) {
            return tr_error_set(err, TR_ERR_FORMAT, "",
                                "tokenizer.json: the id of \"%.60s\" in "
                                "model.vocab is not an integer",
                                piece);
        }
        if (piece[0] == '\0') { /* nothing can become it */
            continue;
        }
        rc = set_piece(t, json_integer_value(id), piece, strlen(piece),
                       "the piece", err);
        if (rc != TR_OK) {
            return rc;
        }
    }
    return TR_OK;
}

/* Byte-level: the vocabulary once more, as raw bytes. */
static tr_status_t
make_raw_pieces(tr_tokenizer_t *t, tr_error_t *err)
{
    char raw[TR_PIECE_MAX_BYTES];

    for (uint32_t id = 0; id < t->n_ids; id++) {
        uint32_t len;
        const char *text = tr_strings_get(&t->content, id, &len);
        size_t n;

        if (len == 0 || !tr_byte_level_decode(text, len, raw, &n)) {
            continue;
        }
        if (!tr_strings_set(&t->pieces, id, raw, n)
            || !tr_string_map_add(&t->by_piece, &t->pieces, (int32_t) id)) {
            return out_of_memory(err);
        }
    }
    return TR_OK;
}

static tr_status_t
load_added_token(tr_tokenizer_t *t, const json_t *item, size_t index,
                 tr_error_t *err)
{
    const json_t *id = json_object_get(item, "id");
    const json_t *content = json_object_get(item, "content");
    const json_t *normalized = json_object_get(item, "normalized");
    tr_added_token_t *a = &t->added[index];
    const char *text = json_string_value(content);
    int32_t known;

    if (!json_is_integer(id) || text == NULL || text[0] == '\0') {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: added_tokens[%zu] needs an "
                            "integer \"id\" and a \"content\"",
                            index);
    }
    known = tr_tokenizer_find(t, text);
    if (known < 0) {
        tr_status_t rc = set_piece(t, json_integer_value(id), text,
                                   strlen(text), "the added token", err);

        if (rc != TR_OK) {
            return rc;
        }
    } else if (known != json_integer_value(id)) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: added_tokens[%zu] gives \"%.60s\" "
                            "the id %lld, it has the id %d already",
                            index, text, (long long) json_integer_value(id),
                            known);
    }
    a->id = (int32_t) json_integer_value(id);
    a->special = json_is_true(json_object_get(item, "special"));
    a->mark = !a->special && tr_added_is_mark(text);
    a->lstrip = json_is_true(json_object_get(item, "lstrip"));
    a->rstrip = json_is_true(json_object_get(item, "rstrip"));
    a->single_word = json_is_true(json_object_get(item, "single_word"));
    a->normalized = normalized ? json_is_true(normalized) : !a->special;
    return TR_OK;
}

static tr_status_t
load_added_tokens(tr_tokenizer_t *t, const json_t *list, tr_error_t *err)
{
    size_t n = json_array_size(list), i;
    const json_t *item;

    if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: added_tokens is not an array");
    }
    if (n > TR_TOKEN_ID_LIMIT) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: %zu added tokens, at most %u are "
                            "possible",
                            n, TR_TOKEN_ID_LIMIT);
    }
    t->added = calloc(n + 1, sizeof(*t->added));
    if (t->added == NULL) {
        return out_of_memory(err);
    }
    json_array_foreach ((json_t *) list, i, item) {
        tr_status_t rc = load_added_token(t, item, i, err);

        if (rc != TR_OK) {
            return rc;
        }
        t->n_added++;
    }
    return TR_OK;
}

/* Flags by id, and the tries; the normalizers are known by now. */
static tr_status_t
index_added_tokens(tr_tokenizer_t *t, tr_error_t *err)
{
    tr_tokenizer_scratch_t *s = tr_tokenizer_scratch_new(t);
    tr_status_t rc = TR_OK;

    t->flags = calloc(t->n_ids, 1);
    if (s == NULL || t->flags == NULL) {
        tr_tokenizer_scratch_free(s);
        return out_of_memory(err);
    }
    for (uint32_t i = 0; rc == TR_OK && i < t->n_added; i++) {
        const tr_added_token_t *a = &t->added[i];
        uint32_t n;
        const char *text = tr_strings_get(&t->content, (uint32_t) a->id, &n);
        size_t len = n;
        bool normalized = a->normalized && t->n_normalizers > 0;

        t->flags[a->id] |= TR_TOKEN_ADDED | (a->special ? TR_TOKEN_SPECIAL : 0);
        if ((!normalized || a->special || a->mark) && len > 0
            && !tr_trie_add(&t->tagged_trie, text, len, (int32_t) i)) {
            rc = out_of_memory(err);
        }
        if (rc == TR_OK && normalized) {
            rc = tr_normalize(t, s, &text, &len, err);
        }
        if (rc == TR_OK && len > 0
            && !tr_trie_add(normalized ? &t->normalized_trie : &t->raw_trie,
                            text, len, (int32_t) i)) {
            rc = out_of_memory(err);
        }
    }
    tr_tokenizer_scratch_free(s);
    return rc;
}

/* The ids of a special token of a template. */
static tr_status_t
template_ids(const tr_tokenizer_t *t, const json_t *config, const json_t *item,
             tr_ids_t *out, tr_error_t *err)
{
    const char *name = json_string_value(json_object_get(item, "id"));
    const json_t *entry, *ids, *id;
    size_t i;

    entry = json_object_get(json_object_get(config, "special_tokens"),
                            name ? name : "");
    ids = json_object_get(entry, "ids");
    if (json_array_size(ids) == 0) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: post_processor TemplateProcessing "
                            "names \"%.60s\" without its ids in special_tokens",
                            name ? name : "(no id)");
    }
    json_array_foreach ((json_t *) ids, i, id) {
        json_int_t v = json_integer_value(id);

        if (!json_is_integer(id) || v < 0 || v >= t->n_ids) {
            return tr_error_set(err, TR_ERR_FORMAT, "",
                                "tokenizer.json: post_processor: the id %lld "
                                "of \"%.60s\" is not in the vocabulary (0 to "
                                "%u)",
                                (long long) v, name, t->n_ids - 1);
        }
        if (!tr_ids_append(out, (int32_t) v)) {
            return out_of_memory(err);
        }
    }
    return TR_OK;
}

/* What a template puts before and after the text comes outside of what is
 * there from earlier processors. */
static tr_status_t
load_template(tr_tokenizer_t *t, const json_t *config, tr_error_t *err)
{
    tr_ids_t before = { 0 };
    const json_t *item;
    tr_status_t rc = TR_OK;
    unsigned sequences = 0;
    size_t i;

    json_array_foreach (json_object_get(config, "single"), i, item) {
        const json_t *special = json_object_get(item, "SpecialToken");

        if (json_object_get(item, "Sequence") != NULL) {
            sequences++;
        } else if (special != NULL && rc == TR_OK) {
            rc = template_ids(t, config, special,
                              sequences ? &t->suffix : &before, err);
        }
    }
    if (rc == TR_OK && sequences != 1) {
        rc = tr_error_set(err, TR_ERR_FORMAT, "",
                          "tokenizer.json: the \"single\" template of "
                          "post_processor TemplateProcessing has %u sequences, "
                          "expected 1",
                          sequences);
    }
    for (uint32_t k = 0; rc == TR_OK && k < t->prefix.len; k++) {
        if (!tr_ids_append(&before, t->prefix.data[k])) {
            rc = out_of_memory(err);
        }
    }
    free(t->prefix.data);
    t->prefix = before;
    return rc;
}

static tr_status_t
load_post_processor(tr_tokenizer_t *t, const json_t *config, int depth,
                    tr_error_t *err)
{
    const char *type = json_string_value(json_object_get(config, "type"));
    const json_t *item;
    size_t i;

    if (config == NULL || json_is_null(config)) {
        return TR_OK;
    }
    if (type != NULL && strcmp(type, "ByteLevel") == 0) {
        return TR_OK; /* offsets only, which nobody asks for here */
    }
    if (type != NULL && strcmp(type, "TemplateProcessing") == 0) {
        return load_template(t, config, err);
    }
    if (type != NULL && strcmp(type, "Sequence") == 0 && depth < 4) {
        json_array_foreach (json_object_get(config, "processors"), i, item) {
            tr_status_t rc = load_post_processor(t, item, depth + 1, err);

            if (rc != TR_OK) {
                return rc;
            }
        }
        return TR_OK;
    }
    return tr_load_unsupported(err, "post_processor", type ? type : "(no type)",
                               "TemplateProcessing, ByteLevel, Sequence");
}

static tr_status_t
build(tr_tokenizer_t *t, const json_t *root, tr_error_t *err)
{
    const json_t *model = json_object_get(root, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    tr_status_t rc;

    if (!json_is_object(model)) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: there is no object \"model\"");
    }
    /* old files name no type; their merges tell */
    if (type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges")) {
        return tr_load_unsupported(err, "model.type", type ? type : "(none)",
                                   "BPE models");
    }
    rc = tr_splitters_load(t, json_object_get(root, "pre_tokenizer"), err);
    if (rc == TR_OK) {
        rc = tr_normalizers_load(t, json_object_get(root, "normalizer"), err);
    }
    if (rc == TR_OK) {
        rc = load_vocabulary(t, json_object_get(model, "vocab"), err);
    }
    if (rc == TR_OK && t->byte_level) {
        rc = make_raw_pieces(t, err);
    }
    if (rc == TR_OK) {
        rc = tr_bpe_load(t, model, err);
    }
    if (rc == TR_OK) {
        rc = load_added_tokens(t, json_object_get(root, "added_tokens"), err);
    }
    if (rc == TR_OK) {
        rc = index_added_tokens(t, err);
    }
    if (rc == TR_OK) {
        rc = load_post_processor(t, json_object_get(root, "post_processor"), 0,
                                 err);
    }
    if (rc == TR_OK) {
        rc = tr_decoder_load(t, json_object_get(root, "decoder"),
                             json_object_get(root, "pre_tokenizer"), err);
    }
    return rc;
}

/* There is no tokenizer.json: names what people have in its place. */
static tr_status_t
say_missing(const char *path, tr_error_t *err)
{
    static const char *const others[] = { "tokenizer.model", "tekken.json",
                                          "vocab.json" };
    size_t dir = (size_t) (strrchr(path, '/') - path);
    char other[4096];

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (snprintf(other, sizeof(other), "%.*s/%s", (int) dir, path,
                     others[i])
                < (int) sizeof(other)
            && access(other, F_OK) == 0) {
            return tr_error_set(err, TR_ERR_IO, "",
                                "%s is missing, and %s alone is not "
                                "supported; transformers can make it: "
                                "AutoTokenizer.from_pretrained(DIR).save_"
                                "pretrained(DIR)",
                                path, others[i]);
        }
    }
    errno = ENOENT;
    return tr_error_set(err, TR_ERR_IO, "", "%s: %m", path);
}

static tr_status_t
read_json(const char *path, json_t **out, tr_error_t *err)
{
    struct stat st;
    json_error_t problem;

    if (stat(path, &st) != 0 && errno == ENOENT) {
        return say_missing(path, err);
    }
    if (stat(path, &st) != 0) {
        return tr_error_set(err, TR_ERR_IO, "", "%s: %m", path);
    }
    if (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX_BYTES) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "%s: %lld bytes, expected a file of at most %u",
                            path, (long long) st.st_size, FILE_MAX_BYTES);
    }
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (*out == NULL) {
        return tr_error_set(err, TR_ERR_FORMAT, "", "%s: line %d, byte %d: %s",
                            path, problem.line, problem.position, problem.text);
    }
    return TR_OK;
}

tr_status_t
tr_tokenizer_load(const char *dir, tr_tokenizer_t **out, tr_error_t *err)
{
    char path[4096];
    json_t *root;
    tr_tokenizer_t *t;
    tr_status_t rc;

    *out = NULL;
    if (snprintf(path, sizeof(path), "%s/tokenizer.json", dir)
        >= (int) sizeof(path)) {
        return tr_error_set(err, TR_ERR_IO, "", "the path %.60s... is too long",
                            dir);
    }
    rc = read_json(path, &root, err);
    if (rc != TR_OK) {
        return rc;
    }
    t = calloc(1, sizeof(*t));
    if (t == NULL) {
        json_decref(root);
        return out_of_memory(err);
    }
    tr_trie_init(&t->raw_trie);
    tr_trie_init(&t->normalized_trie);
    tr_trie_init(&t->tagged_trie);
    rc = build(t, root, err);
    json_decref(root);
    malloc_trim(0); /* the parsed file was many times the tokenizer */
    if (rc != TR_OK) {
        tr_tokenizer_free(t);
        return rc;
    }
    *out = t;
    return TR_OK;
}

void
tr_tokenizer_free(tr_tokenizer_t *t)
{
    if (t == NULL) {
        return;
    }
    for (uint32_t i = 0; i < t->n_normalizers; i++) {
        free(t->normalizers[i].text);
        pcre2_code_free(t->normalizers[i].pattern.code);
    }
    for (uint32_t i = 0; i < t->n_splitters; i++) {
        pcre2_code_free(t->splitters[i].pattern.code);
    }
    tr_strings_free(&t->content);
    tr_strings_free(&t->pieces);
    tr_strings_free(&t->decoded);
    free(t->by_content.slots);
    free(t->by_piece.slots);
    free(t->flags);
    free(t->added);
    free(t->raw_trie.nodes);
    free(t->normalized_trie.nodes);
    free(t->tagged_trie.nodes);
    free(t->merges);
    free(t->prefix.data);
    free(t->suffix.data);
    free(t);
}
