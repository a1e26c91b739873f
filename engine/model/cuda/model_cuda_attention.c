/*
 * model_cuda_step.h: which attention the sequences of a step go to, and its
 * launches.
 *
 * Which path a sequence goes is known on the host, whether it takes part at all
 * only on the device: the manager may have stalled it.  Where more than one path
 * occurs, tr_cuda_select makes each path's list of slots.
 */
#include "model_cuda_step.h"

/* ---- paths --------------------------------------------------------------- */

tr_attention_path_t
tr_model_cuda_path(const tr_model_cuda_t *m, const tr_kv_policy_t *policy,
                   uint32_t base, uint32_t n_rows)
{
    bool fast = m->fast;

    if (n_rows > 1) {
        return !fast       ? TR_ATTENTION_GENERIC
               : base == 0 ? TR_ATTENTION_PROMPT
                           : TR_ATTENTION_BEHIND;
    }
    fast = fast && !policy->minmax;
    for (uint32_t i = 0; i < policy->n_levels && base != 0; i++) {
        fast = fast && tr_cuda_decode_level(&policy->level[i]);
    }
    if (base != 0 && policy->n_levels != 0 && policy->window != 0) {
        fast = fast && tr_cuda_decode_level(&policy->window_level);
    }
    return fast ? TR_ATTENTION_DECODE : TR_ATTENTION_GENERIC;
}

/* Layouts that the fast kernels do not have stand for nothing in the sequences
 * that go there; the kernels would refuse a view that has them at all. */
static void
take_fast_layouts(tr_model_cuda_run_t *r)
{
    for (uint32_t i = 0; i < r->kv.n_layouts; i++) {
        bool fast = tr_cuda_decode_level(&r->kv.layout[i].level);

        r->layout[i] = r->kv.layout[fast ? i : 0];
    }
    r->fast = r->kv;
    r->fast.layout = r->layout;
}

bool
tr_model_cuda_choose_paths(tr_model_cuda_t *m, const int32_t *seq_slot,
                           tr_model_cuda_run_t *r)
{
    const tr_cuda_step_t *s = r->step;

    take_fast_layouts(r);

    for (int path = 0; path < TR_ATTENTION_PATHS; path++) {
        r->slots[path] = seq_slot;
        /* the fast kernels look at the number of rows themselves */
        if ((s->paths & 1u << TR_ATTENTION_GENERIC) != 0
            && (s->paths & 1u << path) != 0 && s->paths != 1u << path) {
            r->slots[path] = m->seq_slot[path];
            tr_model_cuda_launched(m,
                                   m->cuda->select(m->stream, seq_slot, s->path,
                                                   s->n_seqs, (uint8_t) path,
                                                   m->seq_slot[path]),
                                   "select");
        }
    }
    return m->failed == NULL;
}

/* ---- a layer's attention ------------------------------------------------- */

/* A layer that slides has nothing that is compressed: what came with the prompts
 * is done. */
static bool
attend_slid(tr_model_cuda_t *m, const tr_model_cuda_run_t *r, uint32_t layer,
            const tr_cuda_queries_t *q)
{
    const int32_t *slots = r->slots[TR_ATTENTION_BEHIND];
    tr_rows_t rows = r->rows;

    rows.seq_slot = slots;
    return ((r->step->paths & 1u << TR_ATTENTION_PROMPT) != 0
            && slots == r->slots[TR_ATTENTION_PROMPT])
           || tr_model_cuda_launched(m,
                                     m->cuda->prompt(m->stream, &r->kv, layer,
                                                     &rows, q, &m->prompt_size,
                                                     m->prompt_work),
                                     "prompt");
}

/* The sequences from the first to the last that is behind compressed tokens. */
static bool
attend_behind(tr_model_cuda_t *m, const tr_model_cuda_run_t *r, uint32_t layer,
              const tr_cuda_queries_t *q)
{
    const tr_cuda_step_t *s = r->step;
    uint32_t first = 0, end = s->n_seqs;
    tr_rows_t rows = r->rows;
    tr_kv_view_t kv = r->kv;

    if (tr_kv_slides(&kv, layer)) {
        return attend_slid(m, r, layer, q);
    }
    kv.reach = NULL; /* of this layer there is none */
    while (first < end && s->host_base[first] == 0) {
        first++;
    }
    while (end > first && s->host_base[end - 1] == 0) {
        end--;
    }
    rows.n_seqs = end - first;
    rows.seq_slot = r->slots[TR_ATTENTION_BEHIND] + first;
    rows.seq_row += first;
    return tr_model_cuda_launched(m,
                                  m->cuda->prompt_behind(m->stream, &kv, layer,
                                                         &rows,
                                                         s->host_base + first,
                                                         q, &m->prompt_size,
                                                         m->prompt_work),
                                  "prompt_behind");
}

/* The generic kernel takes so many sequences at a time as its workspace holds.
 * Others among them are not in slots[] and cost little, a launch does. */
static bool
attend_generic(tr_model_cuda_t *m, const tr_model_cuda_run_t *r, uint32_t layer,
               const tr_cuda_queries_t *q)
{
    const tr_cuda_step_t *s = r->step;
    uint32_t i = 0;

    while (i < s->n_seqs && m->failed == NULL) {
        uint32_t left = s->n_seqs - i;
        tr_rows_t rows = r->rows;

        if (s->host_path != NULL && s->host_path[i] != TR_ATTENTION_GENERIC) {
            i++;
            continue;
        }
        rows.n_seqs = left < m->generic_size.max_seqs
                          ? left
                          : m->generic_size.max_seqs;
        rows.seq_slot = r->slots[TR_ATTENTION_GENERIC] + i;
        rows.seq_row += i;
        tr_model_cuda_launched(m,
                               m->cuda->attention(m->stream, &r->kv, layer,
                                                  &rows, q, &m->generic_size,
                                                  m->generic_work),
                               "attention");
        i += rows.n_seqs;
    }
    return m->failed == NULL;
}

bool
tr_model_cuda_attend(tr_model_cuda_t *m, const tr_model_cuda_run_t *r,
                     uint32_t layer)
{
    uint32_t paths = r->step->paths;
    tr_cuda_queries_t q = tr_model_cuda_queries(m);
    tr_rows_t rows = r->rows;

    if (paths & 1u << TR_ATTENTION_DECODE) {
        rows.seq_slot = r->slots[TR_ATTENTION_DECODE];
        tr_model_cuda_launched(m,
                               m->cuda->decode(m->stream, &r->fast, layer,
                                               &rows, &q, &m->decode_size,
                                               m->decode_work),
                               "decode");
    }
    if (paths & 1u << TR_ATTENTION_PROMPT) {
        rows.seq_slot = r->slots[TR_ATTENTION_PROMPT];
        tr_model_cuda_launched(m,
                               m->cuda->prompt(m->stream, &r->fast, layer,
                                               &rows, &q, &m->prompt_size,
                                               m->prompt_work),
                               "prompt");
    }
    if (paths & 1u << TR_ATTENTION_BEHIND) {
        attend_behind(m, r, layer, &q);
    }
    if (paths & 1u << TR_ATTENTION_GENERIC) {
        attend_generic(m, r, layer, &q);
    }
    return m->failed == NULL;
}

void
tr_model_cuda_score(tr_model_cuda_t *m, const tr_model_cuda_run_t *r)
{
    tr_rows_t rows = r->rows;

    rows.seq_slot = r->slots[TR_ATTENTION_DECODE];
    if (tr_model_cuda_side_begin(m)) {
        tr_model_cuda_launched(m,
                               m->cuda->decode_score(&m->side.stream, &r->fast,
                                                     &rows, &m->decode_size,
                                                     m->decode_work),
                               "decode_score");
    }
}
