/*
 * Statements, and the whole template (jinja.h).
 */
#include "jinja_ast.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "jinja_text.h"

/* What a tree may take: templates are short, and come with the model. */
#define TREE_BYTES ((size_t) 256 << 20)

typedef struct {
    node_t **items;
    uint32_t n, cap;
} body_t;

static void
push(parser_t *p, body_t *b, node_t *n)
{
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 8;

        b->items = tr_jinja_grow(p->a, b->items, b->n * sizeof(node_t *),
                                 cap * sizeof(node_t *));
        b->cap = cap;
    }
    b->items[b->n++] = n;
}

static body_t parse_body(parser_t *p, const char *const *ends);

static void
end_tag(parser_t *p)
{
    if (p->at->kind != T_BLOCK_END) {
        tr_jinja_unexpected(p, "'%}'");
    }
    p->at++;
}

/* From a tag's end to the tag with one of these names, at which p stands. */
static body_t
statements(parser_t *p, const char *const *ends)
{
    tr_jinja_skip_op(p, ':');
    end_tag(p);
    return parse_body(p, ends);
}

static void
take_body(node_t *n, body_t b)
{
    n->items = b.items;
    n->n = b.n;
}

static node_t *
parse_if(parser_t *p, uint32_t place)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    static const char *const last[] = { "endif", NULL };
    node_t *n = tr_jinja_node(p, N_IF, place);
    body_t branches = { 0 };

    for (;;) {
        node_t *branch = tr_jinja_node(p, N_BRANCH, p->at->place);

        branch->a = tr_jinja_tuple(p, false, NULL);
        take_body(branch, statements(p, ends));
        push(p, &branches, branch);
        if (tr_jinja_skip_name(p, "elif")) {
            continue;
        }
        if (tr_jinja_skip_name(p, "else")) {
            branch = tr_jinja_node(p, N_BRANCH, p->at->place);
            take_body(branch, statements(p, last));
            push(p, &branches, branch);
        }
        p->at++; /* endif */
        break;
    }
    take_body(n, branches);
    return n;
}

static node_t *
parse_for(parser_t *p, uint32_t place)
{
    static const char *const ends[] = { "endfor", "else", NULL };
    static const char *const last[] = { "endfor", NULL };
    node_t *n = tr_jinja_node(p, N_FOR, place);
    for_t *f = n->loop = tr_jinja_zalloc(p->a, sizeof(*f));
    body_t otherwise;

    p->fors++;
    f->target = tr_jinja_target(p, false, "in");
    if (!tr_jinja_skip_name(p, "in")) {
        tr_jinja_unexpected(p, "\"in\"");
    }
    f->iter = tr_jinja_tuple(p, false, "recursive");
    if (tr_jinja_skip_name(p, "if")) {
        f->test = tr_jinja_expression(p, true);
    }
    if (tr_jinja_at_name(p, "recursive")) {
        tr_jinja_unexpected(p, "'%}': recursive loops are not supported");
    }
    p->loops++;
    take_body(n, statements(p, ends));
    p->loops--;
    if (tr_jinja_skip_name(p, "else")) {
        otherwise = statements(p, last);
        f->otherwise = otherwise.items;
        f->n_otherwise = otherwise.n;
    }
    p->fors--;
    p->at++; /* endfor */
    return n;
}

static node_t *
parse_set(parser_t *p, uint32_t place)
{
    static const char *const ends[] = { "endset", NULL };
    node_t *target = tr_jinja_target(p, true, NULL), *n;

    if (tr_jinja_skip_op(p, '=')) {
        n = tr_jinja_node(p, N_SET, place);
        n->a = target;
        n->b = tr_jinja_tuple(p, true, NULL);
        return n;
    }
    n = tr_jinja_node(p, N_SETBLOCK, place);
    n->a = target;
    n->b = tr_jinja_filters_of(p, NULL, false);
    take_body(n, statements(p, ends));
    p->at++;
    return n;
}

/* The body of a macro or call block is a function of its own. */
static void
function_body(parser_t *p, node_t *n, const char *const *ends)
{
    uint32_t loops = p->loops;

    p->loops = 0;
    take_body(n, statements(p, ends));
    p->loops = loops;
    p->at++;
}

static node_t *
parse_macro(parser_t *p, uint32_t place)
{
    static const char *const ends[] = { "endmacro", NULL };
    node_t *n = tr_jinja_node(p, N_MACRO, place);

    n->function = tr_jinja_zalloc(p->a, sizeof(*n->function));
    n->name = n->function->name = tr_jinja_expect_name(p);
    tr_jinja_parse_parameters(p, n->function);
    function_body(p, n, ends);
    return n;
}

static node_t *
parse_call(parser_t *p, uint32_t place)
{
    static const char *const ends[] = { "endcall", NULL };
    node_t *n = tr_jinja_node(p, N_CALLBLOCK, place);

    n->function = tr_jinja_zalloc(p->a, sizeof(*n->function));
    if (tr_jinja_at_op(p, '(')) {
        tr_jinja_parse_parameters(p, n->function);
    }
    n->a = tr_jinja_expression(p, true);
    if (n->a->kind != N_CALL) {
        p->a->place = place;
        tr_jinja_fail(p->a, "call needs a call, such as m()");
    }
    function_body(p, n, ends);
    return n;
}

static node_t *
parse_filter(parser_t *p, uint32_t place)
{
    static const char *const ends[] = { "endfilter", NULL };
    node_t *n = tr_jinja_node(p, N_FILTERBLOCK, place);

    n->b = tr_jinja_filters_of(p, NULL, true);
    take_body(n, statements(p, ends));
    p->at++;
    return n;
}

/* What an assistant said, marked for training: just a scope here. */
static node_t *
parse_generation(parser_t *p, uint32_t place)
{
    static const char *const ends[] = { "endgeneration", NULL };
    node_t *n = tr_jinja_node(p, N_SCOPE, place);

    function_body(p, n, ends);
    return n;
}

static node_t *
parse_jump(parser_t *p, uint32_t place, node_kind_t kind)
{
    if (p->loops == 0) {
        p->a->place = place;
        tr_jinja_fail(p->a, "break and continue belong in a loop");
    }
    return tr_jinja_node(p, kind, place);
}

static node_t *
statement(parser_t *p)
{
    uint32_t place = p->at->place;

    if (tr_jinja_skip_name(p, "if")) {
        return parse_if(p, place);
    }
    if (tr_jinja_skip_name(p, "for")) {
        return parse_for(p, place);
    }
    if (tr_jinja_skip_name(p, "set")) {
        return parse_set(p, place);
    }
    if (tr_jinja_skip_name(p, "macro")) {
        return parse_macro(p, place);
    }
    if (tr_jinja_skip_name(p, "call")) {
        return parse_call(p, place);
    }
    if (tr_jinja_skip_name(p, "filter")) {
        return parse_filter(p, place);
    }
    if (tr_jinja_skip_name(p, "generation")) {
        return parse_generation(p, place);
    }
    if (tr_jinja_skip_name(p, "break")) {
        return parse_jump(p, place, N_BREAK);
    }
    if (tr_jinja_skip_name(p, "continue")) {
        return parse_jump(p, place, N_CONTINUE);
    }
    tr_jinja_unexpected(p, "a statement: if, for, set, macro, call, filter, "
                           "generation, break, continue or raw");
}

static bool
at_end(const parser_t *p, const char *const *ends)
{
    for (; *ends != NULL; ends++) {
        if (tr_jinja_at_name(p, *ends)) {
            return true;
        }
    }
    return false;
}

/* Up to the name of an end tag, or with no ends to the end of the template. */
static body_t
parse_body(parser_t *p, const char *const *ends)
{
    body_t body = { 0 };

    tr_jinja_deeper(p);
    for (;;) {
        const token_t *t = p->at;
        node_t *n;

        if (t->kind == T_EOF) {
            if (ends[0] != NULL) {
                tr_jinja_unexpected(p, ends[0]);
            }
            break;
        }
        p->at++;
        if (t->kind == T_DATA) {
            n = tr_jinja_node(p, N_DATA, t->place);
            n->value = t->value;
        } else if (t->kind == T_VARIABLE_BEGIN) {
            n = tr_jinja_node(p, N_PRINT, t->place);
            n->a = tr_jinja_tuple(p, true, NULL);
            if (p->at->kind != T_VARIABLE_END) {
                tr_jinja_unexpected(p, "'}}'");
            }
            p->at++;
        } else {
            if (at_end(p, ends)) {
                break;
            }
            n = statement(p);
            end_tag(p);
        }
        push(p, &body, n);
    }
    p->depth--;
    return body;
}

/* Lines end in LF, and the last line end goes. */
static void
take_source(tr_jinja_arena_t *a, const char *source, size_t len)
{
    char *to = tr_jinja_alloc(a, len + 8);
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            i += i + 1 < len && source[i + 1] == '\n';
            to[n++] = '\n';
        } else {
            to[n++] = source[i];
        }
    }
    n -= n > 0 && to[n - 1] == '\n';
    memset(to + n, 0, 8); /* what is read ahead */
    a->source = to;
    a->source_len = n;
    for (size_t i = 0; i < n;) {
        uint32_t bytes = tr_jinja_valid(to + i, n - i);

        if (bytes == 0) {
            a->place = (uint32_t) i;
            tr_jinja_fail(a, "byte 0x%02x is not UTF-8", (uint8_t) to[i]);
        }
        i += bytes;
    }
}

static void
parse(tr_jinja_t *t, const char *source, size_t len, const char *name)
{
    static const char *const none[] = { NULL };
    tr_jinja_arena_t *a = &t->arena;
    tokens_t tokens = { 0 };
    parser_t p = { .t = t, .a = a };
    body_t body;

    a->name = tr_jinja_copy(a, name, strlen(name) + 1, TR_JINJA_T)->data;
    if (len > UINT32_MAX / 8) {
        tr_jinja_fail(a, "%zu bytes are too many", len);
    }
    take_source(a, source, len);
    tr_jinja_tokens(a, &tokens);
    p.at = tokens.items;
    body = parse_body(&p, none);
    t->body = body.items;
    t->n = body.n;
    tr_jinja_scopes(t);
}

tr_status_t
tr_jinja_parse(const char *source, size_t len, const char *name,
               tr_jinja_t **out, tr_error_t *err)
{
    tr_jinja_t *t = calloc(1, sizeof(*t));
    tr_status_t rc = TR_OK;
    jmp_buf escape;

    *out = NULL;
    if (t == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    t->arena.limit = TREE_BYTES;
    t->arena.err = err;
    t->arena.escape = &escape;
    t->arena.name = "chat template";
    if (setjmp(escape) == 0) {
        parse(t, source, len, name);
        *out = t;
        return TR_OK;
    }
    rc = t->arena.status == TR_ERR_NOMEM ? TR_ERR_NOMEM : TR_ERR_FORMAT;
    tr_jinja_free(t);
    err->status = rc;
    strcpy(err->param, "chat_template");
    return rc;
}

void
tr_jinja_free(tr_jinja_t *t)
{
    if (t != NULL) {
        tr_jinja_arena_free(&t->arena);
        free(t);
    }
}

static bool
has(const list_t *l, const char *text)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (tr_jinja_is(l->items[i].s, text)) {
            return true;
        }
    }
    return false;
}

bool
tr_jinja_reads(const tr_jinja_t *t, const char *name)
{
    return has(&t->reads, name);
}

bool
tr_jinja_has_literal(const tr_jinja_t *t, const char *text)
{
    return has(&t->literals, text);
}

bool
tr_jinja_mentions(const tr_jinja_t *t, const char *text)
{
    return memmem(t->arena.source, t->arena.source_len, text, strlen(text))
           != NULL;
}
