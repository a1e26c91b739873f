/*
 * Rows from which keys and values are made again (engine/kv/kv_inputs.h): which of
 * a sequence's tokens have some, and who comes back by them.
 *
 * A sequence keeps the rows of positions [inputs_from, inputs_to): from the first
 * token that it computes itself, until there is no chunk for one.  Its pages may go
 * at any time; the rows stay until it ends.
 */
#include "scheduler_internal.h"

static bool
tr_scheduler_keeps_inputs(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    return s->inputs != NULL && q->prompt_scores == NULL && q->pooled == NULL;
}

void
tr_scheduler_take_inputs(tr_scheduler_t *s, tr_chunk_t *chunk)
{
    tr_sequence_t *q = chunk->sequence;
    uint32_t from = chunk->pos, end = from + chunk->n;

    if (!tr_scheduler_keeps_inputs(s, q)) {
        return;
    }
    if (q->inputs_from == q->inputs_to) {
        q->inputs_from = q->inputs_to = from;
    }
    if (q->inputs_to != from) {
        return; /* it has them, or misses some in front */
    }
    for (uint32_t i = from / TR_KV_INPUTS_TOKENS; i * TR_KV_INPUTS_TOKENS < end;
         i++) {
        if (q->inputs[i] == 0) {
            q->inputs[i] = tr_kv_inputs_take(s->inputs);
        }
        if (q->inputs[i] == 0) {
            return;
        }
    }
    chunk->keeps = true;
}

void
tr_scheduler_lose_inputs(tr_chunk_t *chunk)
{
    tr_sequence_t *q = chunk->sequence;

    if (chunk->keeps && q->inputs_to > chunk->pos) {
        q->inputs_to = chunk->pos;
    }
}

void
tr_scheduler_drop_inputs(tr_scheduler_t *s, tr_sequence_t *q)
{
    for (uint32_t i = 0; s->inputs != NULL && i * TR_KV_INPUTS_TOKENS < q->cap;
         i++) {
        if (q->inputs[i] != 0) {
            tr_kv_inputs_give(s->inputs, q->inputs[i]);
            q->inputs[i] = 0;
        }
    }
    q->inputs_from = q->inputs_to = 0;
}

uint32_t
tr_scheduler_returning(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint32_t end = tr_sequence_goal(q);

    if (s->inputs == NULL || q->computed < q->inputs_from
        || q->computed >= q->inputs_to || tr_sequence_paused(q)) {
        return 0;
    }
    if (end == tr_sequence_known(q)) {
        end--; /* its last position gives a token */
    }
    end = end < q->inputs_to ? end : q->inputs_to;
    return end > q->computed ? end - q->computed : 0;
}
