/*
 * decode_iterator.cuh: the tile iterator of a warp of decode attention, and its
 * ring of copies in flight.
 *
 * A warp visits the units of its range in order.  A unit is one tile or two of
 * a page: what a warp attends at once.  Each warp has a ring of slots of shared
 * memory to itself, into which units are copied ahead of their turn, also
 * across the end of pages and heads: by TMA (a unit is one bulk copy), or where
 * there is none, and for uncompressed tiles, by all lanes (cp.async).  Each
 * slot has an mbarrier that says when its unit has arrived.  The producing
 * cursor and the consuming work know the order of units alike, so that only the
 * beginning of a run, the units of one segment, needs a note.
 *
 * In a slot: tiles as in the page (kv_layout.h).  Rows of uncompressed tiles
 * are permuted in chunks of 16 bytes so that reads hit all banks.
 */
#ifndef TR_CUDA_DECODE_ITERATOR_CUH
#define TR_CUDA_DECODE_ITERATOR_CUH

#include "decode.cuh"
#include "kernels/cuda/ptx.cuh"

#define NO_RUN 0xffffffffu /* there is no more */

/* Tokens of a tile, tiles of a unit (kv_layout.c knows it, too), bytes of a
 * tile's codes, and of all of it. */
static __host__ __device__ constexpr uint32_t
tile_tokens(int key_bits)
{
    return key_bits == 16 ? 8 : 16;
}

static __host__ __device__ constexpr uint32_t
unit_tiles(int key_bits, int value_bits)
{
    return key_bits + value_bits < 8 ? 2 : 1;
}

static __host__ __device__ constexpr uint32_t
tile_bytes(int dim, int bits)
{
    return bits == 16 ? dim * 16 : dim * bits * 2;
}

#define META \
    64u /* bytes of a tile's {scale, zero}, of a group of keys or of
                  * values */
#define GROUPS_MOST 4 /* of a key or a value */

static __host__ __device__ constexpr uint32_t
unit_step(int dim, int key_bits, int value_bits, int groups)
{
    return tile_bytes(dim, key_bits) + tile_bytes(dim, value_bits)
           + 2 * META * (uint32_t) groups;
}

/* Tiles of a run: those left in the page, those in later pages, and how many a
 * page has. */
struct pace_t {
    uint32_t left, more, tiles;

    /* Tiles of the next unit. */
    __device__ uint32_t
    take(uint32_t most)
    {
        uint32_t n = min(most, left);

        left -= n;
        return n;
    }
    __device__ void
    turn_page()
    {
        left = min(tiles, more);
        more -= left;
    }
};

#define RUN_TRACED 16u /* its tiles leave traces */
#define RUN_HOLES 32u  /* not all of its tokens are in the window */

/* A run: what a range has of one segment of one head. */
struct run_t {
    uint32_t what; /* segment | flags | layout << 8, or NO_RUN */
    uint32_t head;
    uint32_t token, rest;  /* of the segment: the first, and how many */
    uint32_t row, kv_head; /* whose queries */
    uint32_t trace;        /* of the layer: the first */
    pace_t pace;

    __device__ uint32_t
    layout() const
    {
        return what >> 8;
    }
};

static_assert(sizeof(run_t) == 40, "a note");

/* The largest unit: a tile of K8V8. */
static __host__ __device__ constexpr uint32_t
slot_bytes(int dim, bool grouped)
{
    return unit_step(dim, 8, 8, grouped ? GROUPS_MOST : 1);
}

/* Of a warp: slots, notes, barriers.  The copy engine wants slots at multiples
 * of 128 bytes: it takes longer elsewhere. */
static __host__ __device__ __forceinline__ uint32_t
ring_bytes(uint32_t dim, uint32_t slots, bool grouped)
{
    uint32_t n = slots
                 * (slot_bytes((int) dim, grouped) + (uint32_t) sizeof(run_t)
                    + 8);

    return (n + 127) / 128 * 128;
}

struct cursor_t {
    const uint8_t *from; /* the next unit; uncompressed: the lane's piece of its
                          * keys */
    uint32_t offset;     /* of the lane's piece */
    uint32_t step;       /* bytes of a tile; uncompressed: of its keys */
    uint32_t values;     /* uncompressed: from keys to values; 0: of a level */
    uint32_t most;       /* tiles of a unit */
    pace_t pace;
    uint32_t what;                      /* as in run_t */
    uint32_t ids, page_index, ids_from; /* ids: the lane's of 32 pages */
    uint32_t head, next, last_head, last_tile;
    uint32_t words, words_next; /* lane i: word i of the head's description,
                                 * and of the next head's */
};

static __device__ __forceinline__ uint32_t
of_lane(uint32_t x, uint32_t lane)
{
    return __shfl_sync(TR_ALL_LANES, x, lane);
}

/* Word `lane` of the description of a head, when the range has tiles of it. */
static __device__ __forceinline__ uint32_t
load_word(const decode_args_t &a, const cursor_t &c, uint32_t head)
{
    uint32_t lane = threadIdx.x % 32;
    bool part = head < c.last_head || (head == c.last_head && c.last_tile > 0);

    return lane < 16 && part
               ? __ldg((const uint32_t *) (a.work.head + head) + lane)
               : 0;
}

/* Page ids from page_index on, one a lane. */
static __device__ __forceinline__ void
load_ids(const decode_args_t &a, cursor_t &c, uint32_t pages)
{
    uint32_t i = c.page_index + threadIdx.x % 32;
    uint32_t head = of_lane(c.words, WORD_HEAD);
    uint32_t skipped = a.reaches ? of_lane(c.words, WORD_SKIPPED) : 0;

    c.ids_from = c.page_index;
    c.ids = 0;
    if (i < c.page_index + pages) {
        c.ids = (uint32_t) __ldg(a.kv.tables + (size_t) head * a.kv.table_len
                                 + decode_entry(a.kv, c.what & 15, i)
                                 + skipped);
    }
}

/* At the first tile of page c.page_index. */
static __device__ __forceinline__ void
enter_page(const decode_args_t &a, cursor_t &c)
{
    /* pages of a window that never had a token have no id */
    int id = (int) of_lane(c.ids, c.page_index - c.ids_from);

    c.from = a.kv.pool + (uint64_t) max(id, 0) * a.kv.page_bytes + c.offset;
}

static __device__ __forceinline__ void
next_page(const decode_args_t &a, cursor_t &c)
{
    c.page_index++;
    if (c.page_index - c.ids_from == 32) {
        load_ids(a, c, (c.pace.more + c.pace.tiles - 1) / c.pace.tiles);
    }
    enter_page(a, c);
    c.pace.turn_page();
}

/* ---- runs --------------------------------------------------------------- */

struct ring_t {
    uint32_t slots, notes, bars; /* addresses in shared memory */
    uint32_t at, free;           /* slot in work, slot to be filled */
    uint32_t parity;             /* of the phase that `at` waits for */
    uint64_t policy;
    uint64_t stay; /* of traces */
};

static __device__ __forceinline__ void
write_note(const ring_t &ring, const run_t &r)
{
    uint32_t at = ring.notes + ring.free * (uint32_t) sizeof(run_t);

    if (threadIdx.x % 32 == 0) {
        shared_store8(at, r.what, r.head);
        shared_store8(at + 8, r.token, r.rest);
        shared_store8(at + 16, r.row, r.kv_head);
        shared_store8(at + 24, r.trace, r.pace.left);
        shared_store8(at + 32, r.pace.more, r.pace.tiles);
    }
}

/* What begins with the slot in work. */
static __device__ __forceinline__ run_t
read_note(const ring_t &ring)
{
    uint32_t at = ring.notes + ring.at * (uint32_t) sizeof(run_t);
    uint2 x[5];

#pragma unroll
    for (int i = 0; i < 5; i++) {
        x[i] = shared_load8(at + i * 8);
    }
    __syncwarp(); /* before the note is written again */

    run_t r = { x[0].x, x[0].y, x[1].x, x[1].y,
                x[2].x, x[2].y, x[3].x, { x[3].y, x[4].x, x[4].y } };

    return r;
}

/* Full pages of so many tiles. */
static __device__ __forceinline__ uint32_t
pages(const decode_layout_t &l, uint32_t tiles)
{
    return l.inverse == 0 ? tiles : __umulhi(tiles, l.inverse);
}

/* What is copied of tiles of a layout. */
static __device__ __forceinline__ void
aim(const decode_layout_t &l, cursor_t &c)
{
    const bool uncompressed = l.key_bits == 16;

    c.most = uncompressed ? 1 : unit_tiles(l.key_bits, l.value_bits);
    c.step = l.bytes;
    c.offset = uncompressed ? threadIdx.x % 32 * 16 : 0;
    c.values = uncompressed ? l.value : 0;
}

/* The run's queries, which are needed when its units are. */
static __device__ __forceinline__ void
ask_queries(const decode_args_t &a, const run_t &r)
{
    const uint32_t size = tr_dtype_size((tr_dtype_t) a.q_type),
                   lane = threadIdx.x % 32;
    const size_t n = (size_t) a.group * a.kv.head_dim;

    for (size_t o = lane * 128; o < n * size; o += 32 * 128) {
        prefetch_l2((const uint8_t *) a.q
                    + (r.row * a.ldq + r.kv_head * n) * size + o);
    }
}

/* Goes on at tile c.next of c.head, or at the next head; or ends. */
static __device__ __forceinline__ void
next_run(const decode_args_t &a, cursor_t &c, const ring_t &ring)
{
    uint32_t stop, start = 0, n = 0, tokens = 0, index = 0, trace = 0, s;
    run_t r;

    for (;;) {
        bool last = c.head == c.last_head;

        stop = last ? c.last_tile : of_lane(c.words, WORD_TILES);
        if (c.next < stop) {
            break;
        }
        if (!last) {
            c.head++;
            c.next = 0;
            c.words = c.words_next;
            c.words_next = load_word(a, c, c.head + 1);
        } else {
            r = {};
            r.what = c.what = NO_RUN;
            write_note(ring, r);
            return;
        }
    }
    for (s = 0; s < SEGMENTS; s++) {
        tokens = of_lane(c.words, WORD_TOKENS + s);
        index = of_lane(c.words, WORD_LAYOUT + s / 4) >> (s % 4 * 8) & 255;
        n = decode_tiles(&a.layouts.of[index], tokens);
        if (c.next < start + n) {
            break;
        }
        start += n;
        trace += decode_even(decode_traces(&a.layouts.of[index], n));
    }
    const decode_layout_t &l = a.layouts.of[index];
    uint32_t tile = c.next - start, end = min(n, stop - start);
    uint32_t in_page, later;

    c.what = s | index << 8;
    r.head = c.head;
    r.token = tile * l.tile;
    r.rest = min(tokens, end * l.tile) - r.token;
    c.page_index = pages(l, tile);
    in_page = tile - c.page_index * l.tiles;
    c.pace.tiles = l.tiles;
    c.pace.left = min(l.tiles - in_page, end - tile);
    c.pace.more = end - tile - c.pace.left;
    r.pace = c.pace;
    r.row = of_lane(c.words, WORD_ROW);
    r.kv_head = of_lane(c.words, WORD_HEAD) % a.kv.kv_heads;
    r.trace = of_lane(c.words, WORD_BEFORE) + trace + decode_traces(&l, tile);
    r.what = c.what;
    if ((of_lane(c.words, WORD_FLAGS) >> 16 & HEAD_SCORED) && l.scored) {
        r.what |= RUN_TRACED;
    }
    if (s == SEG_WINDOW && (of_lane(c.words, WORD_FLAGS) >> 16 & HEAD_HOLES)) {
        r.what |= RUN_HOLES;
    }
    write_note(ring, r);
    c.next = start + end;
    later = pages(l, c.pace.more + l.tiles - 1);
    load_ids(a, c, 1 + later);
    aim(l, c);
    enter_page(a, c);
    c.from += in_page * c.step;
    ask_queries(a, r);
}

/* At the beginning of a range; ranges of which there is no need are empty. */
static __device__ __forceinline__ void
take_range(const decode_args_t &a, uint32_t range, cursor_t &c,
           const ring_t &ring)
{
    const decode_cut_t from = a.work.cut[range];
    const decode_cut_t to = a.work.cut[range + 1];

    memset(&c, 0, sizeof(c));
    c.head = from.head;
    c.next = from.tile;
    c.last_head = to.head;
    c.last_tile = to.tile;
    c.words = load_word(a, c, c.head);
    c.words_next = load_word(a, c, c.head + 1);
    next_run(a, c, ring);
}

/* The range's first units, into the L2 cache, while the kernel in front still
 * runs: it may write to them, but not behind that cache. */
static __device__ __forceinline__ void
ask_units(const decode_args_t &a, const cursor_t &c)
{
    const uint32_t bytes = min(a.slots * c.most, c.pace.left) * c.step;

    if (threadIdx.x % 32 == 0 && bytes > 0) {
        prefetch_l2_bytes(c.from, bytes);
        if (c.values != 0) {
            prefetch_l2_bytes(c.from + c.values, bytes);
        }
    }
}

/* ---- copies ------------------------------------------------------------- */

/* Chunk c of row g of an uncompressed tile. */
template <int D>
static __device__ __forceinline__ uint32_t
row_chunk(uint32_t g, uint32_t c)
{
    return g * (2 * D) + ((c ^ g) * 16);
}

/* src: the lane's first chunk. */
template <int D>
static __device__ __forceinline__ void
copy_rows(const uint8_t *src, uint32_t dst, uint64_t policy)
{
    constexpr uint32_t CHUNKS = D / 8; /* of a row */
    uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t i = 0; i < CHUNKS / 4; i++) {
        uint32_t j = i * 32 + lane;

        copy_async16(dst + row_chunk<D>(j / CHUNKS, j % CHUNKS), src + i * 512,
                     policy);
    }
}

/* Arrivals of a slot's phase: of each lane's copies, and of who asked for them.
 * The copy engine needs the latter alone, who stands in for the lanes. */
#define ARRIVALS 33u

/* What lanes copied, all of them, is of a barrier's phase. */
static __device__ __forceinline__ void
end_copies(uint32_t bar)
{
    copy_arrive(bar);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        bar_arrive(bar);
    }
}

/* An uncompressed tile. */
template <int D>
static __device__ __forceinline__ void
copy_uncompressed(const cursor_t &c, uint32_t slot, uint32_t bar,
                  uint64_t policy)
{
    copy_rows<D>(c.from, slot, policy);
    copy_rows<D>(c.from + c.values, slot + D * 16, policy);
    end_copies(bar);
}

/* n tiles of a level. */
static __device__ __forceinline__ void
copy_tiles(const cursor_t &c, uint32_t n, uint32_t slot, uint32_t bar,
           uint64_t policy)
{
    const uint32_t lane = threadIdx.x % 32, bytes = n * c.step;

#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        bar_arrive_for(bar, ARRIVALS - 1);
        bar_expect(bar, bytes);
        copy_engine(slot, c.from, bytes, bar, policy);
    }
#else
    for (uint32_t o = lane * 16; o < bytes; o += 512) {
        copy_async16(slot + o, c.from + o, policy);
    }
    end_copies(bar);
#endif
}

/* Asks for the next unit, for slot ring.free. */
template <int D, bool GROUPED>
static __device__ __forceinline__ void
produce(const decode_args_t &a, cursor_t &c, ring_t &ring)
{
    const uint32_t slot = ring.slots + ring.free * slot_bytes(D, GROUPED);
    const uint32_t bar = ring.bars + ring.free * 8;
    uint32_t n;

    if (c.what == NO_RUN) {
        return;
    }
    n = c.pace.take(c.most);
    if (c.values != 0) {
        copy_uncompressed<D>(c, slot, bar, ring.policy);
    } else {
        copy_tiles(c, n, slot, bar, ring.policy);
    }
    c.from += n * c.step;
    ring.free = ring.free + 1 == a.slots ? 0 : ring.free + 1;
    if (c.pace.left == 0) {
        if (c.pace.more > 0) {
            next_page(a, c);
        } else {
            next_run(a, c, ring);
        }
    }
}

#endif
