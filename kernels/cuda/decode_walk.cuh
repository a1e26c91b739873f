/*
 * decode_walk.cuh: a warp's way through its range, one unit after the other,
 * and its ring of copies under way.
 *
 * A unit is one tile or two of a page: what a warp attends at once.  Each warp
 * has a ring of STAGES slots of shared memory to itself, into which its own
 * cp.async instructions bring units ahead of their turn, also over the end of
 * pages and heads; a slot's note says what is in it.  All lanes have the same
 * cursor, so that no lane waits for another's word.
 *
 * In a slot: key codes of the tiles, value codes, and for each tile and token
 * pair g, g + 8 the metadata {key g, key g + 8, value g, value g + 8}.  Chunks
 * of 16 bytes of values, and of dense rows, are permuted so that reads hit all
 * banks.
 */
#ifndef TR_CUDA_DECODE_WALK_CUH
#define TR_CUDA_DECODE_WALK_CUH

#include "decode.cuh"
#include "ptx.cuh"

#define NO_RUN 0xffffffffu /* there is no more */

/* Tokens of a tile, tiles of a unit, bytes of a tile's codes. */
static __host__ __device__ constexpr uint32_t
tile_tokens(int key_bits)
{
    return key_bits == 16 ? 8 : 16;
}

static __host__ __device__ constexpr uint32_t
unit_tiles(int key_bits, int value_bits)
{
    return key_bits + value_bits <= 8 ? 2 : 1;
}

static __host__ __device__ constexpr uint32_t
tile_bytes(int dim, int bits)
{
    return bits == 16 ? dim * 16 : dim * bits * 2;
}

/* The largest units: K4V4, and a dense tile or K8V8. */
static __host__ __device__ constexpr uint32_t
slot_bytes(int dim)
{
    return dim * 32 + 256;
}

#define NOTE_BYTES 16u

/* What is in a slot.  A run: units of one segment of one part. */
struct unit_t {
    uint32_t run, what, token, head;

    __device__ uint32_t
    segment() const
    {
        return what & 15;
    }
    __device__ uint32_t
    tiles() const
    {
        return what >> 4 & 15;
    }
    __device__ uint32_t
    layout() const
    {
        return what >> 8 & 255;
    }
    __device__ uint32_t
    exist() const
    {
        return what >> 16;
    } /* tokens */
};

struct cursor_t {
    /* of the next unit: what the lane copies first */
    const uint8_t *keys, *values, *meta;
    uint32_t left;              /* tiles of the page */
    uint32_t more;              /* of the segment's part, in later pages */
    uint32_t token, rest;       /* of the segment: the next, and how many */
    uint32_t what, run;         /* see unit_t: segment and layout only */
    uint32_t code;              /* key bits << 8 | value bits */
    uint32_t tiles;             /* of a page */
    uint32_t value, value_meta; /* offsets in the page, for the lane */
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

    c.ids_from = c.page_index;
    c.ids = 0;
    if (i < c.page_index + pages) {
        c.ids = (uint32_t) __ldg(a.kv.tables + (size_t) head * a.kv.table_len
                                 + decode_entry(a.kv, c.what & 15, i));
    }
}

/* At the first tile of page c.page_index. */
static __device__ __forceinline__ void
enter_page(const decode_args_t &a, cursor_t &c)
{
    /* pages of a window that never had a token have no id */
    int id = (int) of_lane(c.ids, c.page_index - c.ids_from);

    c.keys = a.kv.pool + (uint64_t) max(id, 0) * a.kv.page_bytes
             + threadIdx.x % 32 * 16;
    c.values = c.keys + c.value;
    c.meta = c.keys + c.value_meta;
}

static __device__ __forceinline__ void
next_page(const decode_args_t &a, cursor_t &c)
{
    c.page_index++;
    if (c.page_index - c.ids_from == 32) {
        load_ids(a, c, (c.more + c.tiles - 1) / c.tiles);
    }
    enter_page(a, c);
    c.left = min(c.tiles, c.more);
    c.more -= c.left;
}

/* Goes on at tile c.next of c.head, or at the next head or range. */
static __device__ __forceinline__ void
next_segment(const decode_args_t &a, cursor_t &c)
{
    uint32_t stop, start = 0, n = 0, tokens = 0, index = 0, s;

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
            c.run = NO_RUN;
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
    }
    const decode_layout_t &l = a.layouts.of[index];
    uint32_t tile = c.next - start, end = min(n, stop - start);
    uint32_t lane = threadIdx.x % 32;

    c.next = start + end;
    c.token = tile * l.tile;
    c.rest = tokens - c.token;
    c.tiles = l.tiles;
    c.code = l.key_bits << 8 | l.value_bits;
    c.page_index = tile / l.tiles;
    tile -= c.page_index * l.tiles; /* of the page */
    c.left = min(l.tiles - tile, end - (c.token / l.tile));
    c.more = end - c.token / l.tile - c.left;
    c.what = s | index << 8;
    c.value = l.value;
    /* lanes 16 and more copy the values' metadata; all of them 4 bytes */
    c.value_meta = (lane < 16 ? l.key_meta : l.value_meta) + lane % 16 * 4
                   - lane * 16;
    c.run++;
    load_ids(a, c, 1 + (c.more + l.tiles - 1) / l.tiles);
    enter_page(a, c);
    c.keys += tile * l.key_tile;
    c.values += tile * l.value_tile;
    c.meta += tile * 64;
}

/* At the beginning of a range; ranges of which there is no need are empty. */
static __device__ __forceinline__ void
take_range(const decode_args_t &a, uint32_t range, cursor_t &c)
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
    next_segment(a, c);
}

/* ---- copies ------------------------------------------------------------- */

struct ring_t {
    uint32_t slots, notes; /* addresses in shared memory */
    uint32_t at, free;     /* slot in work, slot to be filled */
    uint64_t policy;
};

/* A chunk of a value tile among the 32 of its 512 bytes, place 8t + g. */
static __device__ __forceinline__ uint32_t
value_chunk(uint32_t t, uint32_t g)
{
    return (t * 8 + (g ^ 2 * t)) * 16;
}

/* Chunk c of row g of a dense tile. */
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

/* Whether the lane's part of chunk i, of 512 bytes, belongs to n of the U tiles
 * of BYTES bytes; n > 0. */
template <uint32_t U, uint32_t BYTES>
static __device__ __forceinline__ bool
covers(uint32_t n, uint32_t i)
{
    if (BYTES % 512 == 0) {
        return i * 512 < BYTES || n > i * 512 / BYTES;
    }
    return i * 512 + threadIdx.x % 32 * 16 < n * BYTES;
}

/* The unit at the cursor, of a level known here. */
template <int D, int KEY, int VALUE>
static __device__ __forceinline__ void
copy_known(const cursor_t &c, uint32_t n, uint32_t slot, uint64_t policy)
{
    constexpr uint32_t U = unit_tiles(KEY, VALUE);
    constexpr uint32_t KT = tile_bytes(D, KEY), VT = tile_bytes(D, VALUE);
    const uint32_t lane = threadIdx.x % 32;

    if (KEY == 16) {
        copy_rows<D>(c.keys, slot, policy);
        copy_rows<D>(c.values, slot + KT, policy);
        return;
    }
    const uint32_t at = slot + lane * 16,
                   meta = slot + U * (KT + VT) + lane % 8 * 16 + lane / 8 * 4;
    const uint32_t to = slot + U * KT
                        + (D * VALUE < 256 ? lane * 16
                                           : value_chunk(lane / 8, lane % 8));

#pragma unroll
    for (uint32_t i = 0; i < (U * KT + 511) / 512; i++) {
        if (covers<U, KT>(n, i)) {
            copy_async16(at + i * 512, c.keys + i * 512, policy);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < (U * VT + 511) / 512; i++) {
        if (covers<U, VT>(n, i)) {
            copy_async16(to + i * 512, c.values + i * 512, policy);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < U; i++) {
        if (i == 0 || i < n) {
            copy_async4(meta + i * 128, c.meta + i * 64, policy);
        }
    }
}

/* The unit at the cursor, whatever it is. */
template <int D>
static __device__ __forceinline__ void
copy_any(const decode_layout_t &l, const cursor_t &c, uint32_t n, uint32_t slot,
         uint64_t policy)
{
    const uint32_t lane = threadIdx.x % 32;

    if (l.key_bits == 16) {
        copy_known<D, 16, 16>(c, n, slot, policy);
        return;
    }
    const uint32_t kt = l.key_tile, vt = l.value_tile;
    const uint32_t u = unit_tiles(l.key_bits, l.value_bits);
    const uint32_t to = D * l.value_bits < 256
                            ? lane * 16
                            : value_chunk(lane / 8, lane % 8);

#pragma unroll 1
    for (uint32_t o = 0; o + lane * 16 < n * kt; o += 512) {
        copy_async16(slot + lane * 16 + o, c.keys + o, policy);
    }
    slot += u * kt;
#pragma unroll 1
    for (uint32_t o = 0; o + lane * 16 < n * vt; o += 512) {
        copy_async16(slot + o + to, c.values + o, policy);
    }
    slot += u * vt + lane % 8 * 16 + lane / 8 * 4;
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        copy_async4(slot + i * 128, c.meta + i * 64, policy);
    }
}

/* Asks for the next unit, for slot ring.free; KEY, VALUE: what it probably is.
 * KEY 0: no idea. */
template <int D, int STAGES, int KEY, int VALUE>
static __device__ __forceinline__ void
produce(const decode_args_t &a, cursor_t &c, ring_t &ring)
{
    const uint32_t note = ring.notes + ring.free * NOTE_BYTES;
    const uint32_t slot = ring.slots + ring.free * slot_bytes(D);
    const uint32_t lane = threadIdx.x % 32;

    ring.free = ring.free + 1 == STAGES ? 0 : ring.free + 1;
    if (c.run == NO_RUN) {
        if (lane == 0) {
            shared_store16(note, make_uint4(NO_RUN, 0, 0, 0));
        }
        return;
    }
    const bool known = KEY != 0 && c.code == (KEY << 8 | VALUE);
    uint32_t n, exist, tile;

    if (known) {
        n = min(unit_tiles(KEY, VALUE), c.left);
        tile = tile_tokens(KEY);
    } else {
        n = min(unit_tiles(c.code >> 8, c.code & 255), c.left);
        tile = tile_tokens(c.code >> 8);
    }
    exist = min(n * tile, c.rest);
    if (lane == 0) {
        shared_store16(note, make_uint4(c.run, c.what | n << 4 | exist << 16,
                                        c.token, c.head));
    }
    if (known) {
        copy_known<D, KEY == 0 ? 16 : KEY, VALUE == 0 ? 16 : VALUE>(
            c, n, slot, ring.policy);
        c.keys += n * tile_bytes(D, KEY);
        c.values += n * tile_bytes(D, VALUE);
    } else {
        const decode_layout_t &l = a.layouts.of[c.what >> 8];

        copy_any<D>(l, c, n, slot, ring.policy);
        c.keys += n * l.key_tile;
        c.values += n * l.value_tile;
    }
    c.meta += n * 64;
    c.left -= n;
    c.token += exist;
    c.rest -= exist;
    if (c.left == 0) {
        if (c.more > 0) {
            next_page(a, c);
        } else {
            next_segment(a, c);
        }
    }
}

/* What is in the slot in work. */
static __device__ __forceinline__ unit_t
read_note(const ring_t &ring)
{
    uint4 x = shared_load16(ring.notes + ring.at * NOTE_BYTES);
    unit_t u = { x.x, x.y, x.z, x.w };

    return u;
}

#endif
