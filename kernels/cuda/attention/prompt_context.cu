/*
 * prompt_context.cu: unpacks what is compressed of a KV head (prompt_context.cuh).
 *
 * A warp takes a tile of 16 tokens of a page, keys and then values.  Codes stand
 * in a page as a tensor core's lanes want them (kv_layout.h); each lane makes
 * numbers of its own codes and puts them where they belong in a tile of shared
 * memory, from where rows go out, 16 bytes a lane, to the places of their
 * tokens.  A list's tokens need not begin at a multiple of 16.
 *
 * The window's tokens go in order of their position, wherever in the ring they
 * stand.
 */
#include "attention_head.cuh"
#include "prompt_context.cuh"

#define WARPS 8u
#define BLOCKS 2048u /* about, of a launch */

typedef struct {
    generic_args_t of; /* what it is to the generic kernel: its tiles */
    uint32_t first_head;
    const uint32_t *at;
    uint8_t *memory;
} unpack_args_t;

/* A warp's part: a tile's rows as atom_place has them. */
template <int D> struct unpack_smem_t {
    uint4 tile[TILE_TOKENS * D / 8];
};

/* A tile, and for each of its rows where it goes; lane i has that of row i. */
typedef struct {
    generic_tile_t tile;
    uint32_t row; /* CONTEXT_NONE: nobody's */
} unpack_t;

/* ---- numbers of codes ----------------------------------------------------- */

typedef struct {
    float scale, zero;
} unpack_meta_t;

static __device__ __forceinline__ unpack_meta_t
load_meta(const uint8_t *page, uint32_t at)
{
    uint32_t pair = __ldg((const uint32_t *) (page + at));
    float2 x = half2_floats(pair);

    return { x.x, x.y };
}

/* FP16 saturates, as stored tokens do. */
static __device__ __forceinline__ float
unpack_number(uint32_t code, const unpack_meta_t &m)
{
    /* the code, exactly: the last bits of a float of 2^23 */
    float x = __uint_as_float(0x4b000000u | code) - 8388608.0f;

    return fminf(fmaxf(__fmaf_rn(x, m.scale, m.zero), -65504.0f), 65504.0f);
}

/* A lane's words of a side, from page byte `at` on, in its chunks. */
template <int WORDS>
static __device__ __forceinline__ void
load_codes(const uint8_t *page, uint32_t at, uint32_t lane,
           uint32_t (&w)[WORDS])
{
    if constexpr (WORDS == 2) {
        uint2 x = __ldg((const uint2 *) (page + at + lane * 8));

        w[0] = x.x;
        w[1] = x.y;
    } else {
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            uint4 x = __ldg((const uint4 *) (page + at + i * 512 + lane * 16));

            w[4 * i] = x.x;
            w[4 * i + 1] = x.y;
            w[4 * i + 2] = x.z;
            w[4 * i + 3] = x.w;
        }
    }
}

/* ---- keys ---------------------------------------------------------------- */

/* Codes of dimensions 2j, 2j + 1 of a word. */
template <int BITS>
static __device__ __forceinline__ void
key_codes(uint32_t w, int j, uint32_t (&code)[2])
{
    const uint32_t MASK = (1u << BITS) - 1;

    code[0] = BITS == 8 ? w >> 16 * j & MASK : w >> BITS * j & MASK;
    code[1] = BITS == 8 ? w >> (16 * j + 8) & MASK
                        : w >> (16 + BITS * j) & MASK;
}

/* Lane 4g + t has of tokens g and g + 8 dimensions [t D/4, (t + 1) D/4).  ONE: a
 * token has one pair of metadata. */
template <int D, int BITS, bool ONE>
static __device__ __forceinline__ void
unpack_keys(const place_t &p, uint8_t *tile, uint32_t lane)
{
    const int WORDS = D * BITS / 64, PAIRS = 16 / BITS;
    uint32_t w[WORDS], g = lane / 4, t = lane % 4;

    load_codes(p.page, tr_kv_tile_byte(p.layout, p.at), lane, w);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t row = g + 8 * r, half[D / 8];
        unpack_meta_t m = {};

        if (ONE) {
            m = load_meta(p.page, tr_kv_key_meta(p.layout, p.at + row, 0));
        }
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            uint32_t code[2], dim = t * (D / 4) + 2 * i;
            unpack_meta_t n = m;

            if (!ONE) {
                m = load_meta(p.page,
                              tr_kv_key_meta(p.layout, p.at + row, dim));
                n = load_meta(p.page,
                              tr_kv_key_meta(p.layout, p.at + row, dim + 1));
            }
            key_codes<BITS>(w[r * (WORDS / 2) + i / PAIRS], i % PAIRS, code);
            half[i] = half2_bits(unpack_number(code[0], m),
                                 unpack_number(code[1], n));
        }
#pragma unroll
        for (uint32_t i = 0; i < D / 32; i++) {
            uint32_t c = t * (D / 32) + i;

            *(uint4 *) (tile + atom_place(D / 64, row, c)) = make_uint4(
                half[4 * i], half[4 * i + 1], half[4 * i + 2], half[4 * i + 3]);
        }
    }
}

/* ---- values -------------------------------------------------------------- */

/* Lane 8t + g has of tokens 2t + x + 8r dimensions 16i + g and 16i + 8 + g; the
 * code of (r, x, i, y). */
template <int D, int BITS>
static __device__ __forceinline__ uint32_t
value_code(const uint32_t (&w)[D * BITS / 64], int r, int x, int i, int y)
{
    const int HALF_WORDS = D * BITS / 128;
    const uint32_t MASK = (1u << BITS) - 1;

    return BITS == 8 ? w[r * HALF_WORDS + i] >> (x * 16 + y * 8) & MASK
           : BITS == 4
               ? w[r * HALF_WORDS + i / 2] >> (x * 16 + (i & 1) * 8 + y * 4)
                     & MASK
               : w[i / 2] >> (x * 16 + (i & 1) * 8 + r * 4 + y * 2) & MASK;
}

template <int D, int BITS, bool ONE>
static __device__ __forceinline__ void
unpack_values(const place_t &p, uint8_t *tile, uint32_t lane)
{
    uint32_t w[D * BITS / 64], g = lane % 8, t = lane / 8;

    load_codes(p.page, p.layout->value + tr_kv_tile_byte(p.layout, p.at), lane,
               w);
#pragma unroll
    for (int token = 0; token < 4; token++) {
        int r = token / 2, x = token % 2;
        uint32_t row = 2 * t + x + 8 * r;
        unpack_meta_t m = {};

        if (ONE) {
            m = load_meta(p.page, tr_kv_value_meta(p.layout, p.at + row, 0));
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            if (!ONE) {
                m = load_meta(p.page,
                              tr_kv_value_meta(p.layout, p.at + row, 16 * i));
            }
            uint32_t two = half2_bits(
                unpack_number(value_code<D, BITS>(w, r, x, i, 0), m),
                unpack_number(value_code<D, BITS>(w, r, x, i, 1), m));

            *(uint16_t *) (tile + atom_place(D / 64, row, 2 * i)
                           + 2 * g) = (uint16_t) two;
            *(uint16_t *) (tile + atom_place(D / 64, row, 2 * i + 1)
                           + 2 * g) = (uint16_t) (two >> 16);
        }
    }
}

/* ---- a tile -------------------------------------------------------------- */

/* Row k to its place: what is there of the tile, or of a page as it is. */
template <int D>
static __device__ __forceinline__ void
rows_out(const unpack_t &u, side_t side, const uint8_t *tile, uint8_t *to,
         uint32_t lane)
{
    const uint32_t CHUNKS = D / 8, AT_A_TIME = 32 / CHUNKS;
    bool whole = side_bits(u.tile.at.layout, side) == 16;

    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < TILE_TOKENS / AT_A_TIME; i++) {
        uint32_t k = i * AT_A_TIME + lane / CHUNKS, c = lane % CHUNKS;
        uint32_t row = __shfl_sync(TR_ALL_LANES, u.row, (int) k);
        place_t p = u.tile.at;
        const uint8_t *from = tile + atom_place(D / 64, k, c);

        p.at += k;
        if (whole) {
            from = (const uint8_t *) side_row(p, side) + c * 16;
        }
        if (row != CONTEXT_NONE) {
            *(uint4 *) (to
                        + atom_place(D / 64, row, c)) = *(const uint4 *) from;
        }
    }
    __syncwarp(); /* the tile is free again */
}

#define UNPACK_BITS(f, bits)                          \
    case bits:                                        \
        if (one) {                                    \
            f<D, bits, true>(u.tile.at, tile, lane);  \
        } else {                                      \
            f<D, bits, false>(u.tile.at, tile, lane); \
        }                                             \
        break;

#define UNPACK(f, all_bits) \
    switch (all_bits) {     \
        UNPACK_BITS(f, 8)   \
        UNPACK_BITS(f, 4)   \
        UNPACK_BITS(f, 2)   \
    }

template <int D>
static __device__ void
unpack_side(const unpack_t &u, side_t side, uint8_t *tile, uint8_t *to,
            uint32_t lane)
{
    const tr_kv_layout_t *l = u.tile.at.layout;
    bool one = side_groups(l, side) == 1
               && (side == VALUE || !l->level.by_channel);

    if (side == KEY) {
        UNPACK(unpack_keys, l->level.key_bits)
    } else {
        UNPACK(unpack_values, l->level.value_bits)
    }
    rows_out<D>(u, side, tile, to, lane);
}

/* Where token k of a tile goes. */
static __device__ __forceinline__ uint32_t
row_of(const generic_head_t *h, const generic_tile_t *t, uint32_t k)
{
    const tr_kv_seq_t *q = h->seq;
    uint32_t first = 0, at = t->index + k;

    if (k >= TILE_TOKENS || !(t->used >> k & 1)) {
        return CONTEXT_NONE;
    }
    for (uint32_t l = 0; l < q->n_tiers && l < t->run; l++) {
        first += h->count[l];
    }
    if (t->run == RUN_WINDOW && at >= q->sinks) {
        uint32_t begun = (q->window_from - q->sinks) % q->window;

        at = q->sinks + (at - q->sinks + q->window - begun) % q->window;
    }
    return first + at;
}

/* What stands behind the tokens. */
template <int D>
static __device__ __forceinline__ void
clear_rest(const prompt_context_t &c)
{
    uint32_t n = (c.padded - c.tokens) * (D / 8);

    for (uint32_t e = threadIdx.x; e < 2 * n; e += blockDim.x) {
        uint32_t i = e % n;
        uint8_t *to = e < n ? c.key : c.value;

        *(uint4 *) (to
                    + atom_place(D / 64, c.tokens + i / (D / 8),
                                 i % (D / 8))) = make_uint4(0, 0, 0, 0);
    }
}

/* A KV head of a sequence: so many blocks. */
template <int D>
static __global__ void __launch_bounds__(WARPS * 32, 3)
    unpack_kernel(const __grid_constant__ unpack_args_t a)
{
    __shared__ unpack_smem_t<D> smem[WARPS];
    uint32_t s = blockIdx.z, head = blockIdx.y, lane = threadIdx.x % 32;
    uint32_t warp = threadIdx.x / 32, kv_head = a.first_head + head;
    generic_head_t h;
    unpack_t u;

    if (a.at[s] == CONTEXT_NONE || !head_open(&h, &a.of, s, kv_head)) {
        return;
    }
    prompt_context_t c = context_of(&a.of.kv, a.of.rows.seq_slot[s], a.of.layer,
                                    kv_head, a.memory, a.at[s], head);

    if (blockIdx.x == 0) {
        clear_rest<D>(c);
    }
    for (uint32_t i = blockIdx.x * WARPS + warp; head_tile(&h, i, &u.tile);
         i += gridDim.x * WARPS) {
        uint8_t *tile = (uint8_t *) smem[warp].tile;

        u.row = row_of(&h, &u.tile, lane);
        unpack_side<D>(u, KEY, tile, c.key, lane);
        unpack_side<D>(u, VALUE, tile, c.value, lane);
    }
}

/* ---- launcher ------------------------------------------------------------ */

int
prompt_unpack(cudaStream_t stream, const context_job_t *job)
{
    uint32_t lists = job->rows->n_seqs * job->n_heads;
    uint32_t want = (job->most / TILE_TOKENS + WARPS - 1) / WARPS + 1;
    uint32_t most = BLOCKS / lists + 1;
    unpack_args_t a;
    dim3 grid;

    memset(&a, 0, sizeof(a));
    a.of.kv = *job->kv;
    a.of.kv.layout = NULL;
    memcpy(a.of.layout, job->kv->layout,
           job->kv->n_layouts * sizeof(*job->kv->layout));
    a.of.rows = *job->rows;
    a.of.layer = job->layer;
    a.first_head = job->first_head;
    a.at = job->at;
    a.memory = job->memory;
    grid = dim3(want < most ? want : most, job->n_heads, job->rows->n_seqs);
    if (job->kv->head_dim == 128) {
        unpack_kernel<128><<<grid, WARPS * 32, 0, stream>>>(a);
    } else {
        unpack_kernel<64><<<grid, WARPS * 32, 0, stream>>>(a);
    }
    return tr_cuda_check();
}
