/*
 * Texts that are looked for, all at once: the automaton of Aho and Corasick
 * (Efficient string matching, 1975), complete for every byte.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#define NODES_MAX 8192u

static uint32_t
node_new(tr_marks_t *m)
{
    if (m->n == m->cap) {
        uint32_t cap = m->cap == 0 ? 64 : 2 * m->cap;
        tr_mark_node_t *nodes = cap > NODES_MAX
                                    ? NULL
                                    : realloc(m->nodes, cap * sizeof(*nodes));

        if (nodes == NULL) {
            m->failed = true;
            return 0;
        }
        m->nodes = nodes;
        m->cap = cap;
    }
    memset(&m->nodes[m->n], 0, sizeof(*m->nodes));
    m->nodes[m->n].mark = TR_NO_MARK;
    return m->n++;
}

void
tr_marks_add(tr_marks_t *m, const char *text, size_t len, int mark)
{
    uint32_t at = 0;

    if (m->n == 0) {
        node_new(m);
    }
    for (size_t i = 0; !m->failed && i < len; i++) {
        uint8_t c = (uint8_t) text[i];

        if (m->nodes[at].next[c] == 0) {
            uint32_t made = node_new(m);

            m->nodes[at].next[c] = made;
        }
        at = m->nodes[at].next[c];
    }
    if (at != 0 && !m->failed && !m->nodes[at].own) {
        m->nodes[at].mark = mark;
        m->nodes[at].own = true;
    }
}

/* By breadth: where a text does not go on, its longest end that begins another
 * one does. */
bool
tr_marks_complete(tr_marks_t *m)
{
    uint32_t n = 0, *queue;

    if (m->n == 0) {
        node_new(m);
    }
    queue = malloc((m->n + 1) * sizeof(*queue));
    m->failed |= queue == NULL;
    if (!m->failed) {
        queue[n++] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = queue[i];
        tr_mark_node_t *node = &m->nodes[at];

        if (!node->own && at != 0) {
            node->mark = m->nodes[node->fail].mark;
        }
        for (uint32_t c = 0; c < 256; c++) {
            uint32_t child = node->next[c];
            uint32_t back = at == 0 ? 0 : m->nodes[node->fail].next[c];

            if (child == 0) {
                node->next[c] = back;
            } else {
                m->nodes[child].fail = back;
                queue[n++] = child;
            }
        }
    }
    free(queue);
    return !m->failed;
}

void
tr_marks_free(tr_marks_t *m)
{
    free(m->nodes);
    memset(m, 0, sizeof(*m));
}
