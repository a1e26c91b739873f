/*
 * Added tokens in text: the longest of those that begin leftmost, found with a
 * trie over bytes (the first byte by table, so that ordinary text costs one
 * load a byte).  There are two tries: tokens that are looked for in the text
 * as it came, and those looked for after normalisation.
 */
#include "tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void
tr_trie_init(tr_trie_t *t)
{
    memset(t, 0, sizeof(*t));
    memset(t->root, 0xff, sizeof(t->root));
}

static int32_t
new_node(tr_trie_t *t, uint8_t byte)
{
    if (t->n == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 256;
        tr_trie_node_t *nodes = realloc(t->nodes, cap * sizeof(*nodes));

        if (nodes == NULL) {
            return -1;
        }
        t->nodes = nodes;
        t->cap = cap;
    }
    t->nodes[t->n] = (tr_trie_node_t){ byte, -1, -1, -1 };
    return (int32_t) t->n++;
}

static int32_t
child_of(const tr_trie_t *t, int32_t node, uint8_t byte)
{
    int32_t c = t->nodes[node].child;

    while (c >= 0 && t->nodes[c].byte != byte) {
        c = t->nodes[c].sibling;
    }
    return c;
}

bool
tr_trie_add(tr_trie_t *t, const char *data, size_t len, int32_t token)
{
    int32_t node = -1;

    for (size_t i = 0; i < len; i++) {
        uint8_t byte = (uint8_t) data[i];
        int32_t next = i == 0 ? t->root[byte] : child_of(t, node, byte);

        if (next < 0) {
            next = new_node(t, byte);
            if (next < 0) {
                return false;
            }
            if (i == 0) {
                t->root[byte] = next;
            } else {
                t->nodes[next].sibling = t->nodes[node].child;
                t->nodes[node].child = next;
            }
        }
        node = next;
    }
    t->nodes[node].token = token;
    return true;
}

static bool
is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0
           || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028
           || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool
is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t) c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* The character that ends before text[at]; *len its bytes. */
static uint32_t
previous(const char *text, size_t at, uint32_t *len)
{
    size_t i = at - 1;
    uint32_t n;

    while ((text[i] & 0xc0) == 0x80) {
        i--;
    }
    *len = (uint32_t) (at - i);
    return tr_utf8_next(text + i, &n);
}

static bool
stands_alone(const char *text, size_t len, tr_span_t at)
{
    uint32_t n;

    return (at.start == 0 || !is_word(previous(text, at.start, &n)))
           && (at.end == len || !is_word(tr_utf8_next(text + at.end, &n)));
}

bool
tr_added_is_mark(const char *content)
{
    static const char *const marks[] = {
        "<think>",        "</think>",          "<tool_call>",
        "</tool_call>",   "<tool_response>",   "</tool_response>",
        "<tools>",        "</tools>",          "<arg_key>",
        "</arg_key>",     "<arg_value>",       "</arg_value>",
        "[TOOL_CALLS]",   "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]", "[/TOOL_RESULTS]",   "[THINK]",
        "[/THINK]",
    };

    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        if (strcmp(content, marks[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* worst: the least trusted of the token's bytes. */
static bool
counts(const tr_added_token_t *token, tr_added_rule_t rule, uint8_t worst)
{
    if (token->special) {
        return rule.tags ? worst == TR_TEXT_TRUSTED : rule.special;
    }
    if (token->mark) {
        return rule.tags ? worst <= TR_TEXT_MODEL : rule.marks;
    }
    return true;
}

/* The longest token of the trie at text[i]: its index, -1 for none. */
static int32_t
longest_at(const tr_tokenizer_t *t, const tr_trie_t *trie, tr_added_rule_t rule,
           const char *text, size_t len, size_t i, size_t *end)
{
    int32_t node = trie->root[(uint8_t) text[i]];
    int32_t found = -1;
    uint8_t worst = TR_TEXT_TRUSTED;

    while (node >= 0) {
        int32_t token = trie->nodes[node].token;

        if (rule.tags != NULL && rule.tags[i] > worst) {
            worst = rule.tags[i];
        }
        i++;
        if (token >= 0 && counts(&t->added[token], rule, worst)) {
            found = token;
            *end = i;
        }
        node = i < len ? child_of(trie, node, (uint8_t) text[i]) : -1;
    }
    return found;
}

bool
tr_added_find(const tr_tokenizer_t *t, const tr_trie_t *trie,
              tr_added_rule_t rule, const char *text, size_t len, size_t from,
              tr_span_t *at, int32_t *id)
{
    for (size_t i = from; i < len;) {
        size_t end = i;
        int32_t found = longest_at(t, trie, rule, text, len, i, &end);
        const tr_added_token_t *token;
        tr_span_t span;
        uint32_t n;

        if (found < 0) {
            i++;
            continue;
        }
        token = &t->added[found];
        span = (tr_span_t){ (uint32_t) i, (uint32_t) end };
        if (token->single_word && !stands_alone(text, len, span)) {
            i = end;
            continue;
        }
        while (token->lstrip && span.start > from
               && is_space(previous(text, span.start, &n))) {
            span.start -= n;
        }
        while (token->rstrip && span.end < len
               && is_space(tr_utf8_next(text + span.end, &n))) {
            span.end += n;
        }
        *at = span;
        *id = token->id;
        return true;
    }
    return false;
}
