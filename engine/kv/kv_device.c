/*
 * A device's KV cache (kv_device.h): what it is made of.
 *
 * One block of device memory is the pool; another holds the manager's arrays,
 * the workspaces of prompts and swaps, and what batches send down.  The pool gets
 * the pages that are left of config.memory; since tables can be as long as the
 * pool, its size is found by trying.
 */
#include "kv_device.h"

#include <stdlib.h>
#include <string.h>

#include "kv_device_internal.h"
#include "engine/config/log.h"

/* Commands before one batch, for which there is room: a sequence that is
 * admitted needs three or four. */
#define TR_KV_COMMANDS(slots) (4 * (slots) + 64)

/* And records of kept blocks: those of some longest prompts, which may be lent
 * and kept at once. */
#define TR_KV_SHARES(slots, blocks) (16 * (slots) + 8 * (blocks) + 256)

/* ---- sizes -------------------------------------------------------------- */

static tr_kv_manager_size_t
manager_size(const tr_kv_gpu_t *g, uint32_t pages)
{
    uint32_t slots = g->kv.config.slots;

    slots = slots > g->device.max_seqs ? slots : g->device.max_seqs;
    return (
        tr_kv_manager_size_t){ .slots = slots,
                               .pages = pages,
                               .max_len = g->kv.config.max_len,
                               .reach = g->kv.reach,
                               .max_prompts = g->device.max_prompts,
                               .blocks = tr_kv_reuse_blocks(&g->kv, pages) };
}

/* Of a slot, by head. */
static size_t
count_bytes(const tr_kv_gpu_t *g)
{
    return (size_t) g->kv.heads * TR_KV_TIERS_MAX * sizeof(uint32_t);
}

/* The next bytes of a block; base NULL: counting. */
static void *
carve(uint8_t *base, size_t *at, size_t bytes)
{
    size_t begin = *at;

    *at += tr_pad(bytes, 256);
    return base == NULL ? NULL : base + begin;
}

/* Fills pointers into g->memory (NULL: none yet); returns the bytes of it, 0: no
 * manager is so large.  *manager: where its part is. */
static size_t
lay_memory(tr_kv_gpu_t *g, uint32_t pages, void **manager)
{
    const tr_device_t *cuda = g->device.cuda;
    tr_kv_manager_size_t size = manager_size(g, pages);
    size_t bytes = cuda->manager_memory(&g->kv.view, &size), at = 0;

    if (bytes == 0) {
        return 0;
    }
    *manager = carve(g->memory, &at, bytes);
    g->compress_work = carve(g->memory, &at,
                             cuda->kv_compress_work(&g->kv.view,
                                                    g->device.max_prompts,
                                                    g->kv.config.max_len));
    g->swap_work = carve(g->memory, &at, cuda->kv_swap_work(&g->kv.view));
    g->input = carve(g->memory, &at, g->input_size);
    g->refused = carve(g->memory, &at,
                       TR_KV_REFUSED(g->kv.config.slots) * sizeof(*g->refused));
    g->swap_max = g->kv.swap.n < pages ? g->kv.swap.n : pages;
    g->ids = carve(g->memory, &at, g->kv.swap.n * sizeof(int32_t));
    g->moved[0] = carve(g->memory, &at, g->swap_max * sizeof(int32_t));
    g->moved[1] = carve(g->memory, &at, g->swap_max * sizeof(int32_t));
    g->arrived = carve(g->memory, &at,
                       ((size_t) g->swap_max + 1) * sizeof(int32_t));
    g->n_moved = carve(g->memory, &at, sizeof(uint32_t));
    g->counts_in = carve(g->memory, &at, count_bytes(g));
    g->guard_queries = carve(g->memory, &at, tr_kv_guard_query_bytes(g));
    g->guard_change = carve(g->memory, &at, tr_kv_guard_change_bytes(g));
    g->alpha = carve(g->memory, &at,
                     2 * sizeof(double) * g->kv.heads * g->n_alpha);
    return at;
}

static tr_status_t
too_small(const tr_kv_gpu_t *g, uint64_t n, size_t manager, tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_INVALID, "kv_memory",
                        "%llu MiB of device memory for the KV cache: the"
                        " manager of %u sequences of %u tokens takes %zu MiB,"
                        " which leaves %llu pages of %u bytes, too few for a"
                        " prompt and its compressed copy in %u heads",
                        (unsigned long long) g->kv.config.memory >> 20,
                        g->kv.config.slots, g->kv.config.max_len, manager >> 20,
                        (unsigned long long) n, g->kv.plan.page_bytes,
                        g->kv.heads);
}

/* As many pages as fit beside all else; *rest: the bytes of that. */
static tr_status_t
size_pool(tr_kv_gpu_t *g, size_t *rest, tr_error_t *err)
{
    uint64_t memory = g->kv.config.memory, bytes = g->kv.plan.page_bytes;
    uint64_t n = memory / bytes, fit;
    tr_kv_manager_size_t size;
    void *manager;

    n = n < TR_KV_HOST ? n : TR_KV_HOST - 1;
    for (*rest = 0;; n = fit < n ? fit : n - 1) {
        if (n < g->kv.heads) {
            return too_small(g, n, *rest, err);
        }
        tr_kv_lay_tables(&g->kv, (uint32_t) n);
        *rest = lay_memory(g, (uint32_t) n, &manager);
        if (*rest == 0) {
            return tr_error_set(err, TR_ERR_INVALID, "max_num_seqs",
                                "no page manager on the device for %u sequences"
                                " (at most %u), %u prompts at once",
                                manager_size(g, (uint32_t) n).slots,
                                TR_KV_SLOTS_MAX, g->device.max_prompts);
        }
        if (*rest + n * bytes <= memory) {
            break;
        }
        fit = memory > *rest ? (memory - *rest) / bytes : 0;
    }
    size = manager_size(g, (uint32_t) n);
    manager_shape(&g->kv.view, &size, &g->kv.m);
    if (tr_kv_max_len(&g->kv, NULL) == 0) {
        return too_small(g, n, *rest, err);
    }
    return TR_OK;
}

/* ---- memory ------------------------------------------------------------- */

static tr_status_t
no_memory(const tr_kv_gpu_t *g, const char *what, uint64_t bytes,
          tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "kv_memory",
                        "no %s of %llu MiB for the KV cache: %s", what,
                        (unsigned long long) bytes >> 20,
                        g->device.cuda->reason());
}

static tr_status_t
open_device(tr_kv_gpu_t *g, size_t rest, tr_error_t *err)
{
    const tr_device_t *cuda = g->device.cuda;
    uint32_t pages = g->kv.m.size.pages;
    uint64_t bytes = (uint64_t) pages * g->kv.plan.page_bytes;
    tr_kv_manager_size_t size = manager_size(g, pages);
    void *manager;

    g->pool = cuda->alloc(bytes);
    if (g->pool == NULL) {
        return no_memory(g, "device memory", bytes, err);
    }
    g->memory = cuda->alloc(rest);
    if (g->memory == NULL) {
        return no_memory(g, "device memory", rest, err);
    }
    lay_memory(g, pages, &manager);
    g->kv.view.pool = g->pool;
    if (cuda->manager_create(g->device.stream, &g->kv.view, &size, manager,
                             &g->m)
        != 0) {
        return tr_error_set(err, TR_ERR_INTERNAL, "",
                            "the device's page manager does not start: %s",
                            cuda->reason());
    }
    g->kv.view = g->m.view;
    return TR_OK;
}

static tr_status_t
open_swap(tr_kv_gpu_t *g, tr_error_t *err)
{
    tr_kv_pages_t *swap = &g->kv.swap;
    uint32_t i;

    g->id_free = -1;
    if (swap->n == 0) {
        return TR_OK;
    }
    swap->bytes = g->kv.plan.page_bytes;
    swap->memory = g->device.cuda->pin(swap->n * swap->bytes);
    g->id_next = malloc(swap->n * sizeof(*g->id_next));
    g->list.ids = malloc(swap->n * sizeof(*g->list.ids));
    if (swap->memory == NULL || g->id_next == NULL || g->list.ids == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "swap_memory",
                            "no pinned host memory of %llu MiB for preempted"
                            " sequences: %s",
                            (unsigned long long) (swap->n * swap->bytes) >> 20,
                            g->device.cuda->reason());
    }
    for (i = 0; i < swap->n; i++) {
        g->id_next[i] = i + 1 < swap->n ? (int32_t) i + 1 : -1;
    }
    g->id_free = 0;
    g->n_free_ids = swap->n;
    return TR_OK;
}

/* What host and device tell each other. */
static tr_status_t
open_turns(tr_kv_gpu_t *g, tr_error_t *err)
{
    const tr_device_t *cuda = g->device.cuda;
    uint32_t i, slots = g->kv.config.slots;

    g->answer_size = (size_t) ((uint8_t *) (g->m.tally + slots)
                               - (uint8_t *) g->m.report);
    for (i = 0; i < TR_KV_IN_FLIGHT; i++) {
        tr_kv_pinned_t *t = &g->pinned[i];
        uint32_t ids = g->kv.swap.n > 0 ? g->kv.swap.n : 1;

        t->in = cuda->pin(g->input_size);
        t->out = cuda->pin(g->answer_size);
        t->refused = cuda->pin(TR_KV_REFUSED(slots) * sizeof(*t->refused));
        t->ids = cuda->pin(ids * sizeof(*t->ids));
        t->counts = cuda->pin(count_bytes(g));
        if (t->in == NULL || t->out == NULL || t->refused == NULL
            || t->ids == NULL || t->counts == NULL) {
            return no_memory(g, "pinned host memory", g->input_size, err);
        }
    }
    g->guard_slot = -1;
    if (g->kv.config.guard != NULL) {
        g->guard_told = cuda->pin(tr_kv_guard_change_bytes(g));
        if (g->guard_told == NULL) {
            return no_memory(g, "pinned host memory",
                             tr_kv_guard_change_bytes(g), err);
        }
    }
    return TR_OK;
}

static tr_status_t
open_host(tr_kv_gpu_t *g, tr_error_t *err)
{
    tr_kv_list_t *l = &g->list;
    uint32_t i;
    bool good;

    tr_kv_list_empty(l);
    l->command = calloc(l->room, sizeof(*l->command));
    l->share = calloc(l->share_room + 1, sizeof(*l->share));
    l->group = calloc(l->room + l->share_room, sizeof(*l->group));
    l->counts = malloc(count_bytes(g));
    g->mirror = calloc(g->kv.config.slots, sizeof(*g->mirror));
    g->moving = calloc(g->kv.config.slots, sizeof(*g->moving));
    g->kv.m.slot = calloc(g->kv.config.slots, sizeof(*g->kv.m.slot));
    g->kv.m.seq = calloc(g->kv.config.slots, sizeof(*g->kv.m.seq));
    g->kv.m.report = calloc(1, sizeof(*g->kv.m.report));
    good = l->command != NULL && l->share != NULL && l->group != NULL
           && l->counts != NULL && g->mirror != NULL && g->moving != NULL
           && g->kv.m.slot != NULL && g->kv.m.seq != NULL
           && g->kv.m.report != NULL;
    for (i = 0; i < TR_KV_BATCHES; i++) {
        g->batch[i].rows = calloc(g->device.max_seqs,
                                  sizeof(*g->batch[i].rows));
        good = good && g->batch[i].rows != NULL;
    }
    if (!good || !tr_kv_slots_memory(&g->kv)) {
        return tr_error_set(err, TR_ERR_NOMEM, "max_num_seqs",
                            "no memory for %u sequences", g->kv.config.slots);
    }
    return TR_OK;
}

/* ---- thresholds by head ------------------------------------------------- */

/* Which policies have some. */
static tr_status_t
list_alpha(tr_kv_gpu_t *g, const tr_kv_config_t *c, tr_error_t *err)
{
    uint32_t room = sizeof(g->alpha_host) / sizeof(g->alpha_host[0]), i;

    for (i = 0; i < c->n_policies; i++) {
        const tr_kv_policy_t *p = c->policies[i];

        if (p->alpha_of != NULL && g->n_alpha == room) {
            return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                                "KV policy %s cannot run on a device: too many"
                                " have thresholds by head",
                                p->spec);
        }
        if (p->alpha_of != NULL) {
            g->alpha_host[g->n_alpha++] = p->alpha_of;
        }
    }
    return TR_OK;
}

/* Waits for the stream, also for the manager. */
static tr_status_t
send_alpha(tr_kv_gpu_t *g, tr_error_t *err)
{
    const tr_device_t *cuda = g->device.cuda;
    size_t each = 2 * sizeof(double) * g->kv.heads;
    uint32_t i;
    int rc = 0;

    for (i = 0; i < g->n_alpha && rc == 0; i++) {
        memcpy(g->pinned[0].in, g->alpha_host[i], each);
        rc = cuda->copy(g->device.stream,
                        g->alpha + i * (each / sizeof(double)), g->pinned[0].in,
                        each);
        rc = rc != 0 ? rc : cuda->stream_wait(g->device.stream);
    }
    if (rc == 0) {
        rc = cuda->stream_wait(g->device.stream);
    }
    return rc == 0 ? TR_OK
                   : tr_error_set(err, TR_ERR_INTERNAL, "",
                                  "the device's page manager does not start:"
                                  " %s",
                                  cuda->reason());
}

/* ---- create ------------------------------------------------------------- */

static void
unpin(const tr_device_t *cuda, void *p)
{
    if (p != NULL) {
        cuda->unpin(p);
    }
}

static void
gpu_free(tr_kv_cache_t *kv)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_device_t *cuda = g->device.cuda;
    uint32_t i;

    cuda->stream_wait(g->device.stream); /* nothing of it is in use */
    for (i = 0; i < TR_KV_IN_FLIGHT; i++) {
        unpin(cuda, g->pinned[i].in);
        unpin(cuda, g->pinned[i].out);
        unpin(cuda, g->pinned[i].refused);
        unpin(cuda, g->pinned[i].ids);
        unpin(cuda, g->pinned[i].counts);
    }
    unpin(cuda, kv->swap.memory);
    unpin(cuda, g->counts);
    unpin(cuda, g->guard_told);
    cuda->release(g->memory);
    cuda->release(g->pool);
    for (i = 0; i < TR_KV_BATCHES; i++) {
        free(g->batch[i].rows);
    }
    tr_kv_reuse_free(kv);
    free(g->list.command);
    free(g->list.share);
    free(g->list.group);
    free(g->list.ids);
    free(g->list.counts);
    free(g->id_next);
    free(g->mirror);
    free(g->moving);
    free(kv->m.seq);
    free(kv->m.slot);
    free(kv->m.report);
    free(kv->policy);
    free(kv->free_slots);
    free(g);
}

static bool
gpu_settled(const tr_kv_cache_t *kv)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);

    return g->list.n_groups == 0 && g->n_moving == 0 && !g->flushed
           && g->oldest == g->next;
}

static bool
gpu_compressing(const tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_gpu(kv)->mirror[slot].trial == TR_KV_TRIED;
}

static const tr_kv_ops_t gpu_ops = {
    .free = gpu_free,
    .settled = gpu_settled,
    .free_pages = tr_kv_gpu_free_pages,
    .open = tr_kv_gpu_open,
    .close = tr_kv_gpu_close,
    .prompt = tr_kv_gpu_prompt,
    .reserve_batch = tr_kv_gpu_reserve_batch,
    .compress = tr_kv_gpu_compress,
    .stage = tr_kv_gpu_stage,
    .compressing = gpu_compressing,
    .fork = tr_kv_gpu_fork,
    .swap_out = tr_kv_gpu_swap_out,
    .swap_in = tr_kv_gpu_swap_in,
    .coming = tr_kv_gpu_coming,
    .usage = tr_kv_gpu_usage,
    .usage_in = tr_kv_gpu_usage_in,
    .totals = tr_kv_gpu_totals,
    .sound = tr_kv_gpu_sound,
    .ring = tr_kv_gpu_ring,
    .share = tr_kv_gpu_share,
    .release = tr_kv_gpu_release,
    .held = tr_kv_gpu_held,
    .copy_pages = tr_kv_gpu_copy_pages,
    .told = tr_kv_gpu_told,
    .copy = tr_kv_gpu_copy,
    .can_absorb = tr_kv_gpu_can_absorb,
    .absorb = tr_kv_gpu_absorb,
    .restore = tr_kv_gpu_restore,
    .files = &tr_kv_gpu_files,
};

/* Sizes that do not depend on the pool's. */
static void
size_parts(tr_kv_gpu_t *g)
{
    const tr_kv_config_t *c = &g->kv.config;
    size_t counts = count_bytes(g);
    uint64_t n = c->swap_memory / g->kv.plan.page_bytes;
    tr_kv_list_t *l = &g->list;

    g->piece = UINT32_MAX;
    if (c->piece != 0) {
        uint64_t pages = c->piece / g->kv.plan.page_bytes;

        g->piece = pages < 1 ? 1 : (uint32_t) pages;
    }
    g->kv.swap.n = (uint32_t) (n < TR_KV_HOST ? n : TR_KV_HOST - 1);
    l->room = TR_KV_COMMANDS(c->slots);
    if (c->reuse) {
        l->share_room = TR_KV_SHARES(c->slots,
                                     manager_ceil(c->max_len,
                                                  g->kv.plan.layout[0].tokens));
    }
    g->input_size = g->device.max_seqs * sizeof(tr_kv_page_request_t)
                    + tr_kv_list_bytes(l->room, l->share_room);
    /* also what is fetched and sent at other times */
    g->input_size = g->input_size > counts ? g->input_size : counts;
}

static tr_status_t
gpu_fill(tr_kv_gpu_t *g, const tr_kv_config_t *config, tr_error_t *err)
{
    size_t rest = 0;
    tr_status_t rc = tr_kv_shape(&g->kv, config, err);

    g->kv.config.kernels = NULL;
    if (rc == TR_OK) {
        g->kv.config.slots = tr_kv_all_slots(&g->kv.config);
        size_parts(g);
        rc = list_alpha(g, config, err);
    }
    rc = rc != TR_OK ? rc : size_pool(g, &rest, err);
    rc = rc != TR_OK ? rc : open_host(g, err);
    rc = rc != TR_OK ? rc : tr_kv_reuse_create(&g->kv, err);
    rc = rc != TR_OK ? rc : open_device(g, rest, err);
    rc = rc != TR_OK ? rc : open_swap(g, err);
    rc = rc != TR_OK ? rc : open_turns(g, err);
    rc = rc != TR_OK ? rc : send_alpha(g, err);
    if (rc == TR_OK) {
        g->kv.config.policies = NULL;
        g->free = g->kv.m.size.pages;
        g->report.end = g->kv.m.size.pages;
        g->next = g->oldest = g->needs = 1;
        tr_log(TR_LEVEL_NOTICE,
               "kv device pool_mib=%llu manager_mib=%zu slots=%u",
               (unsigned long long) g->kv.m.size.pages * g->kv.plan.page_bytes
                   >> 20,
               rest >> 20, g->kv.config.slots);
    }
    return rc;
}

tr_status_t
tr_kv_device_create(const tr_kv_config_t *config, const tr_kv_device_t *device,
                    tr_kv_cache_t **out, tr_error_t *err)
{
    tr_kv_gpu_t *g = calloc(1, sizeof(*g));
    tr_status_t rc;

    *out = NULL;
    if (g == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory");
    }
    g->kv.ops = &gpu_ops;
    g->device = *device;
    if (device->max_prompts > config->slots) {
        g->device.max_prompts = config->slots;
    }
    rc = device->max_seqs != 0 && device->max_prompts != 0
             ? gpu_fill(g, config, err)
             : tr_error_set(err, TR_ERR_INVALID, "",
                            "a KV cache on a device for %u sequences and %u"
                            " prompts at once: both must be positive",
                            device->max_seqs, device->max_prompts);
    if (rc != TR_OK) {
        gpu_free(&g->kv);
        return rc;
    }
    *out = &g->kv;
    return TR_OK;
}

const tr_kv_manager_t *
tr_kv_device_manager(const tr_kv_cache_t *kv)
{
    return &tr_kv_gpu(kv)->m;
}

uint32_t
tr_kv_device_base(const tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_slot(kv, slot);
    return kv->m.seq[slot].base;
}
