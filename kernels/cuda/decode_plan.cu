/*
 * The plan of a decode step: describes the heads of every layer and cuts each
 * layer's tiles into ranges of equal cost, one a block.  One block a layer; it
 * runs once a step, so it is plain.
 */
#include "decode.cuh"

#include <cuda_runtime.h>

#define THREADS 1024u
#define ITEM_TILES 2u  /* an item has at most so many */
#define RANGE_ITEMS 4u /* a range is at least so many of the dearest items */

/* ---- workspace ---------------------------------------------------------- */

static size_t
take(size_t *at, size_t bytes)
{
    size_t begin = *at;

    *at += (bytes + 255) / 256 * 256;
    return begin;
}

decode_work_t
decode_work(const tr_cuda_device_t *d, const tr_cuda_decode_size_t *size,
            void *at)
{
    size_t heads = (size_t) size->max_seqs * size->lists, end = 0;
    size_t all = heads * size->layers, parts = (size_t) d->blocks * 2;
    uint32_t page = size->page_tokens;
    uint32_t group = size->heads / size->lists;
    uint8_t *base = (uint8_t *) at;
    decode_work_t w;

    /* a page's last tile may be half full, a segment's last page be nearly
     * empty */
    w.spill_tiles = (size->max_tokens + page - 1) / page
                        * ((page + TILE - 1) / TILE) * size->lists
                    + heads * SEGMENTS * ((page + TILE - 1) / TILE);
    w.head = (decode_head_t *) (base + take(&end, all * sizeof(*w.head)));
    w.before = (uint64_t *) (base
                             + take(&end,
                                    (all + size->layers) * sizeof(*w.before)));
    w.tiles_before = (uint64_t *) (base
                                   + take(&end, (all + size->layers)
                                                    * sizeof(*w.before)));
    w.cut = (decode_cut_t *) (base
                              + take(&end, ((size_t) d->blocks + 1)
                                               * size->layers
                                               * sizeof(*w.cut)));
    w.arrived = (uint32_t *) (base + take(&end, all * 2 * sizeof(uint32_t)));
    w.part_sum = (float2 *) (base + take(&end, parts * GROUP * sizeof(float2)));
    w.part_out = (float *) (base
                            + take(&end, parts * GROUP * size->head_dim
                                             * sizeof(float)));
    w.part_victim = (uint4 *) (base
                               + take(&end,
                                      parts * TR_KV_LISTS_MAX * sizeof(uint4)));
    w.spill = base
              + take(&end,
                     w.spill_tiles
                         * decode_trace_bytes(group > GROUP ? GROUP : group));
    w.bytes = end;
    return w;
}

/* Key and value bits that attend_any (decode.cu) lists. */
static bool
bits_listed(uint32_t key, uint32_t value)
{
    return key == 16  ? value == 16
           : key == 8 ? value == 8 || value == 4 || value == 2
           : key == 4 ? value == 4 || value == 2
                      : key == 2 && value == 2;
}

int
decode_layouts(const tr_kv_view_t *kv, decode_layouts_t *out)
{
    uint32_t dim = kv->head_dim;

    if (kv->n_layouts == 0 || kv->n_layouts > TR_KV_LAYOUTS_MAX) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t i = 0; i < kv->n_layouts; i++) {
        const tr_kv_layout_t *l = &kv->layout[i];
        decode_layout_t *o = &out->of[i];
        bool wide = l->level.key_bits == 16;
        uint32_t row;

        if (l->head_dim != dim || l->level.by_channel
            || !bits_listed(l->level.key_bits, l->level.value_bits)
            || (!wide
                && (l->level.key_groups != 1 || l->level.value_groups != 1))) {
            return TR_KERNEL_BADARG;
        }
        o->tokens = l->tokens;
        o->tiles = (l->tokens + TILE - 1) / TILE;
        o->batch = o->tiles < ITEM_TILES ? o->tiles : ITEM_TILES;
        o->items = (o->tiles + o->batch - 1) / o->batch;
        o->key_bits = l->level.key_bits;
        o->value_bits = l->level.value_bits;
        o->unit = (uint32_t) decode_unit(o->key_bits, o->value_bits);
        o->key_meta = l->key_meta;
        o->value = l->value;
        o->value_meta = l->value_meta;
        o->score = l->score;
        o->position = l->position;
        o->recent = l->recent;
        o->scored = l->level.scored;
        row = dim * (o->key_bits + o->value_bits) / 8 + (wide ? 0 : 8)
              + (o->scored ? 16 : 0);
        o->cost = row * o->tokens / o->items / 16;
    }
    return TR_KERNEL_OK;
}

/* ---- device ------------------------------------------------------------- */

typedef struct {
    tr_kv_view_t kv;
    tr_rows_t rows;
    decode_layouts_t layouts;
    decode_work_t work;
    uint32_t max_heads; /* of a layer, in the workspace */
    uint32_t blocks;
} plan_args_t;

/* Tiles of a segment, and items. */
static __device__ uint32_t
segment_tiles(const decode_layout_t *l, uint32_t tokens)
{
    return tokens / l->tokens * l->tiles
           + (tokens % l->tokens + TILE - 1) / TILE;
}

static __device__ uint32_t
segment_items(const decode_layout_t *l, uint32_t tokens)
{
    uint32_t tiles = (tokens % l->tokens + TILE - 1) / TILE;

    return tokens / l->tokens * l->items + (tiles + l->batch - 1) / l->batch;
}

/* Fills h; returns its cost. */
static __device__ uint64_t
describe(const plan_args_t &a, uint32_t layer, uint32_t seq, uint32_t list,
         decode_head_t *h)
{
    int32_t slot = a.rows.seq_slot[seq];
    uint32_t row = a.rows.seq_row[seq];
    uint64_t cost = 0;

    memset(h, 0, sizeof(*h));
    if (slot < 0 || a.rows.seq_row[seq + 1] - row != 1) {
        return 0;
    }
    const tr_kv_seq_t s = a.kv.seq[slot];
    size_t head = ((size_t) slot * a.kv.layers + layer) * a.kv.lists + list;
    uint32_t n = a.rows.row_pos[row];
    uint32_t dense = n >= s.base ? n - s.base + 1 : 0;
    bool other = false;

    h->head = (uint32_t) head;
    h->row = row;
    h->n = n;
    h->n_lists = s.n_lists;
    h->window = s.window;
    h->window_from = s.window_from;
    h->base = s.base;
    for (uint32_t l = 0; l < s.n_lists; l++) {
        h->tokens[l] = a.kv.count[head * TR_KV_LISTS_MAX + l];
        h->layout[l] = s.list_layout[l];
        other = other || h->tokens[l] > 0;
    }
    if (s.base > s.window_from && s.window > 0) {
        h->tokens[SEG_WINDOW] = min(s.base, s.window);
        h->layout[SEG_WINDOW] = s.window_layout;
        other = true;
    }
    h->tokens[SEG_DENSE] = dense;
    h->flags = (s.scored ? HEAD_SCORED : 0) | (s.by_sum ? HEAD_BY_SUM : 0)
               | (n >= s.recent_from ? HEAD_RECENT : 0)
               | (dense == 0 ? 0
                  : other    ? HEAD_MIXED
                             : HEAD_DENSE);
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        const decode_layout_t *l = &a.layouts.of[h->layout[i]];
        uint32_t items = segment_items(l, h->tokens[i]);

        h->items_before[i] = h->items;
        h->tiles_before[i] = h->tiles;
        h->items += items;
        h->tiles += segment_tiles(l, h->tokens[i]);
        cost += (uint64_t) items * l->cost;
    }
    return cost;
}

/* Sums of all lower threads' x; `total` is that of the block. */
static __device__ uint64_t
block_scan(uint64_t x, uint64_t *total)
{
    __shared__ uint64_t of_warp[THREADS / 32];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t sum = x, below = 0;

    for (uint32_t d = 1; d < 32; d *= 2) {
        uint64_t y = __shfl_up_sync(0xffffffffu, sum, d);

        sum += lane >= d ? y : 0;
    }
    __syncthreads();
    if (lane == 31) {
        of_warp[warp] = sum;
    }
    __syncthreads();
    *total = 0;
    for (uint32_t i = 0; i < THREADS / 32; i++) {
        below += i < warp ? of_warp[i] : 0;
        *total += of_warp[i];
    }
    return below + sum - x;
}

/* The item at which `target` falls. */
static __device__ decode_cut_t
cut_at(const plan_args_t &a, const decode_head_t *head, const uint64_t *before,
       const uint64_t *tiles_before, uint32_t n_heads, uint64_t target)
{
    uint32_t lo = 0, hi = n_heads; /* before[lo] <= target < before[hi] */
    decode_cut_t c;

    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;

        if (before[mid] <= target) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    const decode_head_t &h = head[lo];

    c.head = lo;
    c.item = c.tile = c.pad = 0;
    target -= before[lo];
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        const decode_layout_t *l = &a.layouts.of[h.layout[i]];
        uint32_t items = segment_items(l, h.tokens[i]);

        if (target < (uint64_t) items * l->cost) {
            uint32_t k = (uint32_t) (target / l->cost);

            c.item = h.items_before[i] + k;
            c.tile = h.tiles_before[i] + k / l->items * l->tiles
                     + k % l->items * l->batch;
            break;
        }
        target -= (uint64_t) items * l->cost;
    }
    c.tile_of_layer = tiles_before[lo] + c.tile;
    return c;
}

/* The last of n cuts that is not behind (head, item). */
static __device__ uint32_t
block_of(const decode_cut_t *cut, uint32_t n, uint32_t head, uint32_t item)
{
    uint32_t lo = 0, hi = n;

    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        bool behind = cut[mid].head > head
                      || (cut[mid].head == head && cut[mid].item > item);

        if (behind) {
            hi = mid;
        } else {
            lo = mid;
        }
    }
    return lo;
}

static __global__ void
__launch_bounds__(THREADS) plan_kernel(const __grid_constant__ plan_args_t a)
{
    uint32_t layer = blockIdx.x, n_heads = a.rows.n_seqs * a.kv.lists;
    decode_head_t *head = a.work.head + (size_t) layer * a.max_heads;
    uint64_t *before = a.work.before + (size_t) layer * (a.max_heads + 1);
    uint64_t *tiles_before = a.work.tiles_before
                             + (size_t) layer * (a.max_heads + 1);
    uint32_t *arrived = a.work.arrived + (size_t) layer * a.max_heads * 2;
    decode_cut_t *cut = a.work.cut + (size_t) layer * (a.blocks + 1);
    uint64_t cost = 0, tiles = 0, dearest = 1, total;

    for (uint32_t from = 0; from < n_heads; from += THREADS) {
        uint32_t i = from + threadIdx.x;
        uint64_t mine = 0, mine_tiles = 0, sum, at;

        if (i < n_heads) {
            decode_head_t h;

            mine = describe(a, layer, i / a.kv.lists, i % a.kv.lists, &h);
            mine_tiles = h.tiles;
            head[i] = h;
            arrived[2 * i] = arrived[2 * i + 1] = 0;
        }
        at = block_scan(mine, &sum);
        if (i < n_heads) {
            before[i] = cost + at;
        }
        cost += sum;
        at = block_scan(mine_tiles, &sum);
        if (i < n_heads) {
            tiles_before[i] = tiles + at;
        }
        tiles += sum;
    }
    if (threadIdx.x == 0) {
        before[n_heads] = cost;
        tiles_before[n_heads] = tiles;
    }
    __syncthreads();

    /* ranges of at least one item, so that every one of them has work */
    for (uint32_t i = 0; i < a.kv.n_layouts; i++) {
        dearest = max(dearest, (uint64_t) a.layouts.of[i].cost);
    }
    total = cost / (dearest * RANGE_ITEMS);
    uint32_t ranges = total == 0 ? 1
                                 : (uint32_t) min(total, (uint64_t) a.blocks);

    for (uint32_t b = threadIdx.x; b <= a.blocks; b += THREADS) {
        decode_cut_t c = { n_heads, 0, 0, 0, tiles };

        if (b < ranges) {
            c = cut_at(a, head, before, tiles_before, n_heads,
                       cost * b / ranges);
        }
        cut[b] = c;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_heads; i += THREADS) {
        uint32_t n = head[i].items;

        if (n > 0) {
            uint32_t first = block_of(cut, ranges, i, 0);

            head[i].first = (uint16_t) first;
            head[i].parts = (uint16_t) (block_of(cut, ranges, i, n - 1) - first
                                        + 1);
        }
    }
}

/* ---- launchers ---------------------------------------------------------- */

extern "C" size_t
tr_cuda_decode_work(const tr_cuda_device_t *d,
                    const tr_cuda_decode_size_t *size)
{
    return decode_work(d, size, NULL).bytes;
}

extern "C" int
tr_cuda_decode_plan(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                    const tr_rows_t *rows, const tr_cuda_decode_size_t *size,
                    void *work)
{
    plan_args_t a;

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (rows->n_seqs > size->max_seqs || kv->lists != size->lists
        || kv->layers != size->layers || kv->head_dim != size->head_dim) {
        return TR_KERNEL_BADARG;
    }
    a.kv = *kv;
    a.rows = *rows;
    a.work = decode_work(s->device, size, work);
    a.max_heads = size->max_seqs * size->lists;
    a.blocks = s->device->blocks;
    if (decode_layouts(kv, &a.layouts) != TR_KERNEL_OK) {
        return TR_KERNEL_BADARG;
    }
    plan_kernel<<<kv->layers, THREADS, 0, (cudaStream_t) s->stream>>>(a);
    return tr_cuda_check();
}
