/*
 * Finding a model's chat template and reading it.
 */
#include "chat_template.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#define TEMPLATE_MAX_BYTES (1u << 20)

static tr_status_t
out_of_memory(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "chat_template", "out of memory");
}

/* "bos_token": "<s>" or {"content": "<s>", ...}. */
static tr_status_t
read_token(const json_t *config, const char *key, char **out, tr_error_t *err)
{
    const json_t *v = json_object_get(config, key);
    const char *text = json_string_value(
        json_is_object(v) ? json_object_get(v, "content") : v);

    if (text != NULL && *out == NULL) {
        *out = strdup(text);
        return *out ? TR_OK : out_of_memory(err);
    }
    return TR_OK;
}

static json_t *
read_config(const char *dir, tr_status_t *rc, tr_error_t *err)
{
    char path[4096];
    json_error_t problem;
    json_t *config;

    snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
    *rc = TR_OK;
    errno = 0;
    /* integers as reals: model_max_length is 1e30 in real files */
    config = json_load_file(path,
                            JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL
                                | JSON_ALLOW_NUL,
                            &problem);
    if (config == NULL && errno != ENOENT) {
        *rc = tr_error_set(err, TR_ERR_FORMAT, "", "%s: line %d: %s", path,
                           problem.line, problem.text);
    }
    return config;
}

/* *text: malloc'ed, NULL when there is no such file. */
static tr_status_t
read_file(const char *path, char **text, size_t *len, tr_error_t *err)
{
    FILE *f = fopen(path, "re");
    tr_status_t rc = TR_OK;

    *text = NULL;
    *len = 0;
    if (f == NULL) {
        return errno == ENOENT
                   ? TR_OK
                   : tr_error_set(err, TR_ERR_IO, "chat_template",
                                  "cannot read %s: %s", path, strerror(errno));
    }
    *text = malloc(TEMPLATE_MAX_BYTES + 1);
    if (*text == NULL) {
        rc = out_of_memory(err);
    } else {
        *len = fread(*text, 1, TEMPLATE_MAX_BYTES + 1, f);
        if (*len > TEMPLATE_MAX_BYTES) {
            rc = tr_error_set(err, TR_ERR_FORMAT, "chat_template",
                              "%s is longer than %u bytes", path,
                              TEMPLATE_MAX_BYTES);
        } else if (ferror(f)) {
            rc = tr_error_set(err, TR_ERR_IO, "chat_template", "cannot read %s",
                              path);
        }
    }
    fclose(f);
    return rc;
}

static tr_status_t
parse_json(const json_t *text, const char *name, tr_jinja_t **out,
           tr_error_t *err)
{
    return json_is_string(text)
               ? tr_jinja_parse(json_string_value(text),
                                json_string_length(text), name, out, err)
               : TR_OK;
}

/* chat_template.jinja of newer directories, else in the configuration as a
 * string, or in a list with names: default, tool_use. */
static tr_status_t
load_directory(const char *dir, const json_t *config, tr_chat_template_t *c,
               tr_error_t *err)
{
    const json_t *v = json_object_get(config, "chat_template"), *item;
    char path[4096], *text;
    tr_status_t rc;
    size_t len, i;

    snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
    rc = read_file(path, &text, &len, err);
    if (rc == TR_OK && text != NULL) {
        rc = tr_jinja_parse(text, len, "chat_template.jinja", &c->chat, err);
    } else if (rc == TR_OK && json_is_string(v)) {
        rc = parse_json(v, "chat_template", &c->chat, err);
    } else if (rc == TR_OK && v != NULL && !json_is_null(v)
               && !json_is_array(v)) {
        rc = tr_error_set(err, TR_ERR_FORMAT, "chat_template",
                          "tokenizer_config.json: chat_template is neither a "
                          "string nor a list of templates with names");
    }
    for (i = 0; rc == TR_OK && text == NULL && i < json_array_size(v); i++) {
        const char *name;

        item = json_array_get(v, i);
        name = json_string_value(json_object_get(item, "name"));
        if (name != NULL && strcmp(name, "default") == 0 && !c->chat) {
            rc = parse_json(json_object_get(item, "template"),
                            "chat_template default", &c->chat, err);
        } else if (name != NULL && strcmp(name, "tool_use") == 0
                   && !c->tool_use) {
            rc = parse_json(json_object_get(item, "template"),
                            "chat_template tool_use", &c->tool_use, err);
        }
    }
    free(text);
    return rc;
}

static tr_status_t
load_named(const tr_chat_named_t *named, const tr_tokenizer_t *t,
           tr_chat_template_t *c, tr_error_t *err)
{
    const char *const given[] = { named->bos, named->eos };

    for (int i = 0; i < 2; i++) {
        if (c->tokens[i] == NULL && given[i] != NULL) {
            c->tokens[i] = strdup(given[i]);
            if (c->tokens[i] == NULL) {
                return out_of_memory(err);
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        const char *mark = i < 3                ? named->marks[i]
                           : named->eos != NULL ? c->tokens[1]
                                                : NULL;

        if (mark != NULL && tr_tokenizer_find(t, mark) < 0) {
            return tr_error_set(err, TR_ERR_UNSUPPORTED, "chat_template",
                                "chat template %s needs the token \"%s\", "
                                "which the tokenizer does not have",
                                named->name, mark);
        }
    }
    return tr_jinja_parse(named->source, strlen(named->source), named->name,
                          &c->chat, err);
}

static tr_status_t
load(const char *dir, const char *name, const tr_tokenizer_t *t,
     tr_chat_template_t *c, tr_error_t *err)
{
    static const char *const keys[TR_CHAT_TOKENS] = { "bos_token", "eos_token",
                                                      "unk_token",
                                                      "pad_token" };
    const tr_chat_named_t *named = tr_chat_template_named(name);
    tr_status_t rc;
    json_t *config = read_config(dir, &rc, err);

    for (int i = 0; rc == TR_OK && i < TR_CHAT_TOKENS; i++) {
        rc = read_token(config, keys[i], &c->tokens[i], err);
    }
    if (rc == TR_OK && strcmp(name, "auto") == 0) {
        rc = load_directory(dir, config, c, err);
    } else if (rc == TR_OK && named != NULL) {
        rc = load_named(named, t, c, err);
    } else if (rc == TR_OK && strcmp(name, "none") != 0) {
        rc = tr_error_set(err, TR_ERR_INVALID, "chat_template",
                          "chat_template \"%s\" is not known, expected auto, "
                          "llama3, chatml, llama2, mistral or none",
                          name);
    }
    json_decref(config);
    if (rc == TR_OK && c->chat != NULL && tr_jinja_reads(c->chat, "bos_token")
        && c->tokens[0] != NULL && c->tokens[0][0] != '\0'
        && tr_tokenizer_find(t, c->tokens[0]) < 0) {
        rc = tr_error_set(err, TR_ERR_FORMAT, "",
                          "tokenizer_config.json: bos_token \"%s\" is not in "
                          "the tokenizer",
                          c->tokens[0]);
    }
    return rc;
}

tr_status_t
tr_chat_template_load(const char *dir, const char *name,
                      const tr_tokenizer_t *t, tr_chat_template_t *out,
                      tr_error_t *err)
{
    tr_status_t rc;

    memset(out, 0, sizeof(*out));
    out->end_of_turn = -1;
    rc = load(dir, name, t, out, err);
    if (rc == TR_OK && out->chat != NULL) {
        rc = tr_chat_template_probe(out, t, err);
    }
    if (rc != TR_OK) {
        tr_chat_template_free(out);
    }
    return rc;
}
