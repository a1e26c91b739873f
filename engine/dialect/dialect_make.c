/*
 * Making a dialect (dialect.h): a form's program, with its marks compiled for one
 * tokenizer.  A mark that the tokenizer has as a special token is that token
 * wherever a pattern has its characters.  Then what a dialect says of itself.
 */
#include "dialect_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

/* The pattern with special tokens in place of their characters. */
static void
compile(tr_dialect_t *d, const char *text, uint8_t go, pattern_t *out)
{
    out->go = go;
    out->len = 0;
    while (*text != '\0') {
        uint32_t i;

        for (i = 0; i < d->n_tokens; i++) {
            size_t n = strlen(d->texts[i]);

            if (strncmp(text, d->texts[i], n) == 0) {
                out->bytes[out->len++] = P_TOKEN;
                out->bytes[out->len++] = (char) (16 + i);
                text += n;
                break;
            }
        }
        if (i == d->n_tokens) {
            out->bytes[out->len++] = *text++;
        }
        assert(out->len < PATTERN_MAX);
    }
}

static void
add_token(tr_dialect_t *d, const tr_tokenizer_t *t, const char *text)
{
    int32_t id = t != NULL ? tr_tokenizer_find(t, text) : -1;

    if (id >= 0 && tr_tokenizer_is_special(t, id)) {
        d->tokens[d->n_tokens] = id;
        d->texts[d->n_tokens++] = text;
    }
}

tr_status_t
tr_dialect_make(const form_t *form, const reasoning_t *reasoning,
                const tr_tokenizer_t *t, tr_dialect_t **out, tr_error_t *err)
{
    tr_dialect_t *d = calloc(1, sizeof(*d));

    *out = d;
    if (d == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "tool_dialect", "out of memory");
    }
    d->form = form;
    d->max_token = t != NULL ? tr_tokenizer_max_token_bytes(t) : 64;
    if (reasoning != NULL) {
        memcpy(d->plain_open, reasoning->open, sizeof(d->plain_open));
        memcpy(d->plain_close, reasoning->close, sizeof(d->plain_close));
        add_token(d, t, d->plain_open);
        add_token(d, t, d->plain_close);
    }
    for (int i = 0; form != NULL && i < MARKS && form->marks[i] != NULL; i++) {
        add_token(d, t, form->marks[i]);
    }
    for (int i = 0; form != NULL && i < OPS; i++) {
        for (int k = 0; k < ALTS && form->ops[i].alts[k].pattern; k++) {
            compile(d, form->ops[i].alts[k].pattern, form->ops[i].alts[k].go,
                    &d->patterns[i][k]);
        }
    }
    if (reasoning != NULL) {
        char spaced[PATTERN_MAX + 2];

        snprintf(spaced, sizeof(spaced), "\1%s", d->plain_open);
        compile(d, spaced, 0, &d->open);
        snprintf(spaced, sizeof(spaced), "\1%s", d->plain_close);
        compile(d, spaced, 0, &d->close);
    }
    tr_dialect_make_around(d, t);
    return TR_OK;
}

void
tr_dialect_free(tr_dialect_t *d)
{
    if (d != NULL) {
        tr_dialect_free_layout(d);
        free(d->around[0]);
        free(d->around[1]);
        free(d->thought_end);
    }
    free(d);
}

const char *
tr_dialect_name(const tr_dialect_t *d)
{
    return d != NULL && d->form != NULL ? d->form->name : NULL;
}

bool
tr_dialect_reasons(const tr_dialect_t *d)
{
    return d != NULL
           && (d->open.len != 0
               || (d->form != NULL && (d->form->flags & FORM_HARMONY)));
}

bool
tr_dialect_short_ids(const tr_dialect_t *d)
{
    return d != NULL && d->form != NULL && (d->form->flags & FORM_SHORT);
}

bool
tr_dialect_begins_inside(const tr_dialect_t *d, const char *text,
                         const uint8_t *tags, size_t len)
{
    size_t n = d != NULL ? strlen(d->plain_open) : 0, from;

    if (n == 0) {
        return false;
    }
    while (len > 0 && is_space(text[len - 1])) {
        len--;
    }
    if (len < n || memcmp(text + len - n, d->plain_open, n) != 0) {
        return false;
    }
    for (from = len - n; from < len; from++) {
        if (tags != NULL && tags[from] != TR_TEXT_TRUSTED) {
            return false;
        }
    }
    return true;
}
