/*
 * Scripted answers (null_script.h).
 */
#include "null_script.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

struct tr_null_script {
    int32_t *tokens; /* of all lines */
    size_t n_tokens, cap_tokens;
    size_t *lines; /* [n_lines + 1] where each begins, in tokens */
    uint32_t n_lines;
    uint32_t next; /* line of the next sequence */
    uint32_t n_slots;
    uint32_t *line_of; /* [n_slots] */
};

static tr_status_t
no_memory(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "null_script", "out of memory");
}

static tr_status_t
add_token(tr_null_script_t *s, int32_t token, tr_error_t *err)
{
    if (s->n_tokens == s->cap_tokens) {
        size_t cap = s->cap_tokens != 0 ? s->cap_tokens * 2 : 1024;
        int32_t *grown = realloc(s->tokens, cap * sizeof(*grown));

        if (grown == NULL) {
            return no_memory(err);
        }
        s->tokens = grown;
        s->cap_tokens = cap;
    }
    s->tokens[s->n_tokens++] = token;
    return TR_OK;
}

static tr_status_t
add_line(tr_null_script_t *s, char *line, uint32_t vocab, const char *path,
         tr_error_t *err)
{
    size_t *grown = realloc(s->lines, (s->n_lines + 2) * sizeof(*grown));
    size_t before = s->n_tokens;
    tr_status_t rc = grown != NULL ? TR_OK : no_memory(err);
    char *word, *left = NULL, *end;

    if (grown != NULL) {
        s->lines = grown;
        s->lines[s->n_lines++] = before;
    }
    for (word = strtok_r(line, " \t\r\n", &left); rc == TR_OK && word != NULL;
         word = strtok_r(NULL, " \t\r\n", &left)) {
        unsigned long id = strtoul(word, &end, 10);

        rc = *end != '\0' || id >= vocab
                 ? tr_error_set(err, TR_ERR_INVALID, "null_script",
                                "%s:%u: \"%.32s\" is not a token of this "
                                "vocabulary (%u)",
                                path, s->n_lines, word, vocab)
                 : add_token(s, (int32_t) id, err);
    }
    if (rc == TR_OK && s->n_tokens == before) {
        rc = tr_error_set(err, TR_ERR_INVALID, "null_script",
                          "%s:%u: the line is empty", path, s->n_lines);
    }
    if (grown != NULL) {
        s->lines[s->n_lines] = s->n_tokens;
    }
    return rc;
}

tr_status_t
tr_null_script_open(const char *path, uint32_t vocab, uint32_t slots,
                    tr_null_script_t **out, tr_error_t *err)
{
    tr_null_script_t *s = calloc(1, sizeof(*s));
    FILE *f = fopen(path, "re");
    tr_status_t rc = TR_OK;
    char *line = NULL;
    size_t cap = 0;

    *out = NULL;
    if (f == NULL) {
        rc = tr_error_set(err, TR_ERR_IO, "null_script",
                          "cannot read null_script %s: %s", path,
                          strerror(errno));
    } else if (s == NULL
               || (s->line_of = calloc(slots, sizeof(*s->line_of))) == NULL) {
        rc = no_memory(err);
    }
    while (rc == TR_OK && getline(&line, &cap, f) >= 0) {
        rc = add_line(s, line, vocab, path, err);
    }
    if (rc == TR_OK && s->n_lines == 0) {
        rc = tr_error_set(err, TR_ERR_INVALID, "null_script", "%s is empty",
                          path);
    }
    free(line);
    if (f != NULL) {
        fclose(f);
    }
    if (rc != TR_OK) {
        tr_null_script_free(s);
        return rc;
    }
    s->n_slots = slots;
    *out = s;
    return TR_OK;
}

void
tr_null_script_free(tr_null_script_t *s)
{
    if (s != NULL) {
        free(s->tokens);
        free(s->lines);
        free(s->line_of);
        free(s);
    }
}

int32_t
tr_null_script_token(tr_null_script_t *s, uint32_t slot, uint32_t n)
{
    size_t at;

    if (slot >= s->n_slots) {
        return -1;
    }
    if (n == 0) {
        s->line_of[slot] = s->next;
        s->next = (s->next + 1) % s->n_lines;
    }
    at = s->lines[s->line_of[slot]] + n;
    return at < s->lines[s->line_of[slot] + 1] ? s->tokens[at] : -1;
}
