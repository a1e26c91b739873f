/*
 * The guard of a device's cache (kv_guard.h): the queries of the prompt that is
 * watched stay on the device, where steps leave them (tr_kv_device_keep); when
 * it is compressed, they are asked between the move and the return of its old
 * pages, and what that gave comes back with the batch behind it.  Nobody waits.
 */
#include "kv_device_internal.h"

#include <string.h>

static uint32_t
layers_of(const tr_kv_gpu_t *g)
{
    uint32_t n;

    tr_kv_guard_layers(g->kv.config.guard, &n);
    return n;
}

static size_t
layer_bytes(const tr_kv_gpu_t *g)
{
    return TR_KV_GUARD_QUERIES * g->device.guard_ld * sizeof(uint16_t);
}

size_t
tr_kv_guard_query_bytes(const tr_kv_gpu_t *g)
{
    return g->kv.config.guard == NULL ? 0 : layers_of(g) * layer_bytes(g);
}

size_t
tr_kv_guard_change_bytes(const tr_kv_gpu_t *g)
{
    const tr_kv_config_t *c = &g->kv.config;
    uint32_t n = c->guard == NULL ? 0 : layers_of(g);

    /* of a model whose layers all slide there is no layer, but a place */
    n = c->guard != NULL && n == 0 ? 1 : n;
    return (size_t) n * c->kv_heads * c->head_dim * sizeof(*g->guard_change);
}

void
tr_kv_guard_prompt(tr_kv_gpu_t *g, int32_t slot, uint32_t len)
{
    if (g->kv.config.guard != NULL && g->kv.m.slot[slot].rule.n_levels != 0) {
        tr_kv_guard_begin(g->kv.config.guard, slot, len);
    }
}

void
tr_kv_guard_close(tr_kv_gpu_t *g, int32_t slot)
{
    if (g->kv.config.guard != NULL) {
        tr_kv_guard_forget(g->kv.config.guard, slot);
        g->guard_slot = g->guard_slot == slot ? -1 : g->guard_slot;
    }
}

bool
tr_kv_device_keep(tr_kv_cache_t *kv, int32_t slot, uint32_t pos, uint32_t row,
                  uint32_t n, tr_kv_guard_keep_t *out)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_guard_rows_t rows;

    if (kv->config.guard == NULL
        || !tr_kv_guard_rows(kv->config.guard, slot, pos, row, n, &rows)) {
        return false;
    }
    out->row = rows.row;
    out->n = rows.n;
    out->layer = tr_kv_guard_layers(kv->config.guard, &out->n_layers);
    out->layer_bytes = layer_bytes(g);
    out->to = g->guard_queries
              + rows.at * g->device.guard_ld * sizeof(uint16_t);
    return true;
}

int
tr_kv_guard_launch(tr_kv_gpu_t *g, int32_t slot, uint32_t len, uint32_t n,
                   uint32_t longest, uint32_t *refused)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    tr_kv_view_t view = g->m.view;
    tr_cuda_kv_compare_t q;
    tr_kv_compare_t ask;
    int rc;

    if (g->kv.config.guard == NULL
        || !tr_kv_guard_ask(g->kv.config.guard, slot, 0, len, &ask)) {
        return 0;
    }
    q = (tr_cuda_kv_compare_t){ .slot = slot,
                                .first = ask.first,
                                .n = ask.n,
                                .n_layers = ask.n_layers,
                                .heads = ask.heads,
                                .scale = ask.scale,
                                .q = g->guard_queries
                                     + (TR_KV_GUARD_QUERIES - ask.n)
                                           * g->device.guard_ld
                                           * sizeof(uint16_t),
                                .rows = TR_KV_GUARD_QUERIES,
                                .ld = g->device.guard_ld,
                                .type = g->device.guard_type,
                                .change = g->guard_change };
    memcpy(q.layer, ask.layer, ask.n_layers * sizeof(*ask.layer));
    view.sinks = g->device.guard_sinks;
    rc = cuda->kv_compare(s, &view, g->m.compress, n, longest, refused, &q,
                          g->compress_work);
    if (rc == 0) {
        rc = cuda->copy(s, g->guard_told, g->guard_change,
                        tr_kv_guard_change_bytes(g));
    }
    g->guard_slot = slot;
    g->guard_of = g->next;
    return rc;
}

void
tr_kv_guard_settle(tr_kv_gpu_t *g, uint64_t serial)
{
    tr_kv_guard_t *guard = g->kv.config.guard;
    int32_t slot = g->guard_slot;
    tr_kv_guard_error_t error;

    if (guard == NULL || slot < 0 || g->guard_of != serial) {
        return;
    }
    g->guard_slot = -1;
    if (tr_kv_guard_answered(guard, g->guard_told, &error)) {
        tr_kv_guard_count(guard, &g->kv.policy[slot].origin, &error);
        tr_kv_guard_forget(guard, slot);
    }
}
