/*
 * Fuzzes dialects.  The first byte of an input chooses the form of calls, and
 * what the request has; the rest is what a model writes.  Whatever it is: cut
 * anywhere it gives the same items, and without a call or reasoning in it all of
 * it is content, byte for byte.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dialect/dialect_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define TEXT_MAX 4096

typedef struct {
    char items[8 * TEXT_MAX], content[TEXT_MAX];
    size_t n_items, n_content;
    bool others;
} seen_t;

static const tr_dialect_param_t params[] = {
    { "a", 1, TR_TYPE_STRING },
    { "b", 1, TR_TYPE_INTEGER | TR_TYPE_NULL },
    { "c", 1, 0 },
};
static const tr_dialect_tool_t list[] = { { "f", 1, 3, params },
                                          { "g", 1, 0, NULL } };
static const tr_dialect_tools_t tools = { 2, list };
static tr_dialect_t *dialects[64];
static tr_dialect_out_t out;

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    tr_error_t err;

    (void) argc;
    (void) argv;
    for (uint32_t i = 0; i < tr_dialect_n_forms; i++) {
        if (tr_dialect_make(&tr_dialect_forms[i], &tr_dialect_thoughts[0], NULL,
                            &dialects[i], &err)
            != TR_OK) {
            fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
    }
    return 0;
}

static void
add(seen_t *s, const char *text, size_t len)
{
    assert(s->n_items + len <= sizeof(s->items));
    memcpy(s->items + s->n_items, text, len);
    s->n_items += len;
}

static void
take(seen_t *s)
{
    for (uint32_t i = 0; i < out.n; i++) {
        const tr_dialect_piece_t *p = &out.pieces[i];

        if (p->begins) {
            add(s, "|", 1);
            add(s, out.bytes + p->name, p->name_len);
        }
        add(s, out.bytes + p->text, p->text_len);
        if (p->kind == TR_DIALECT_TEXT) {
            assert(s->n_content + p->text_len <= sizeof(s->content));
            memcpy(s->content + s->n_content, out.bytes + p->text, p->text_len);
            s->n_content += p->text_len;
        } else {
            s->others = true;
        }
    }
}

/* most: bytes of a push. */
static void
run(const tr_dialect_t *d, const tr_dialect_start_t *start, const char *text,
    size_t len, size_t most, seen_t *s)
{
    void *memory = calloc(1, tr_dialect_size(d));
    tr_dialect_state_t *state = tr_dialect_init(d, start, memory);

    s->n_items = s->n_content = 0;
    s->others = false;
    for (size_t at = 0, n; at < len; at += n) {
        n = len - at < most ? len - at : most;
        tr_dialect_push(state, -1, text + at, (uint32_t) n, &out);
        take(s);
    }
    tr_dialect_finish(state, &out);
    take(s);
    free(memory);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static seen_t whole, cut;
    static char text[TEXT_MAX];
    const tr_dialect_t *d;
    tr_dialect_start_t start = { .tools = &tools };

    if (size == 0 || size - 1 > sizeof(text)) {
        return 0;
    }
    d = dialects[(data[0] & 0x1f) % tr_dialect_n_forms];
    start.inside = data[0] & 0x20;
    start.single = data[0] & 0x40;
    for (size_t i = 1; i < size; i++) {
        text[i - 1] = (char) (data[i] & 0x7f); /* characters of one byte */
    }
    run(d, &start, text, size - 1, 64, &whole);
    run(d, &start, text, size - 1, 1, &cut);
    assert(whole.n_items == cut.n_items
           && memcmp(whole.items, cut.items, cut.n_items) == 0);
    run(d, &start, text, size - 1, 7, &cut);
    assert(whole.n_items == cut.n_items
           && memcmp(whole.items, cut.items, cut.n_items) == 0);
    if (!whole.others && !start.inside
        && memmem(text, size - 1, "think>", 6) == NULL
        && !(d->form->flags & FORM_HARMONY)) {
        assert(whole.n_content == size - 1
               && memcmp(whole.content, text, size - 1) == 0);
    }
    return 0;
}
