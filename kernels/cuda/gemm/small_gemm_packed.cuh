/*
 * small_gemm_packed.cuh: products of small_gemm.cuh with packed weights
 * (kernels/weight_form.h).
 *
 * Codes travel through the ring as they are in memory, with the scales of their
 * groups behind them.  A warp of a group has 16 rows of w, a strip of blocks: it
 * makes BF16 of its codes in registers, which are operand a of the group's
 * product.  Codes are exact in BF16, so scales, which are FP32, are applied to
 * FP32 sums: of each group of columns, or where the whole row has one, in the
 * end.
 */
#ifndef TR_CUDA_SMALL_GEMM_PACKED_CUH
#define TR_CUDA_SMALL_GEMM_PACKED_CUH

#include "kernels/cuda/packed.cuh"
#include "small_gemm_smem.cuh"

/* What weights a kernel is for; packed ones of a kind have slots of 128
 * columns. */
typedef enum {
    GEMM_IN_16_BITS,
    GEMM_FP8_ROWS,
    GEMM_INT4_32,
    GEMM_INT4_64,
    GEMM_INT4_128,
    GEMM_ANY
} gemm_kind_t;

/* Where a group is in the ring. */
typedef struct {
    uint32_t slot, parity;
    bool later; /* than a slot's first use */
} gemm_pipeline_t;

/* What of a slot a warp reads: addresses of the first slot. */
typedef struct {
    uint32_t codes, x, scales; /* scales: of this lane's row g, of group 0 */
    uint32_t piece, row; /* bytes to the next piece; of a group's scales */
    uint32_t teams;      /* slots to the next */
} gemm_strip_t;

static __device__ __forceinline__ void
gemm_wait_slot(const gemm_smem_t &s, uint32_t p, const gemm_pipeline_t &t)
{
    if (!t.later) {
        bar_wait(gemm_early(s, p, t.slot), 0);
    }
    bar_wait(gemm_full(s, p, t.slot), t.parity);
    __syncwarp();
}

static __device__ __forceinline__ void
gemm_leave_slot(const gemm_smem_t &s, uint32_t p, uint32_t slot)
{
    if (threadIdx.x % 32 == 0) {
        bar_arrive(gemm_empty(s, p, slot));
    }
    __syncwarp();
}

/* The n-th slot from here, in a ring of so many. */
static __device__ __forceinline__ void
gemm_next_slot(gemm_pipeline_t &t, uint32_t slots, uint32_t n)
{
    for (t.slot += n; t.slot >= slots; t.slot -= slots) {
        t.parity ^= 1;
        t.later = true;
    }
}

/* Some steps of 16 columns, from registers. */
template <int N, int STEPS>
static __device__ __forceinline__ void
gemm_multiply_steps(float (&c)[N / 2], uint32_t (&a)[STEPS][4], uint32_t x,
                    bool add)
{
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        multiply(c, a[k], wgmma_operand(x + k * 32, 1024, 16), add || k > 0);
    }
    wgmma_end();
}

/* A piece of FP8. */
static __device__ __forceinline__ void
gemm_expand(uint32_t (&a)[4][4], uint32_t at)
{
    uint4 w[2] = { shared_load16(at), shared_load16(at + 512) };

#pragma unroll
    for (int h = 0; h < 2; h++) {
        packed_fp8(a[2 * h], w[h].x, w[h].y);
        packed_fp8(a[2 * h + 1], w[h].z, w[h].w);
    }
}

/* c += part, scaled. */
template <int N>
static __device__ __forceinline__ void
gemm_add_scaled(float (&c)[N / 2], float (&part)[N / 2],
                const float (&scale)[2])
{
    wgmma_wait<0>();
    wgmma_touch(part);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        c[i] += part[i] * scale[i / 2 % 2];
    }
}

/* Sets of operands that registers have room for, beside sums of N rows of x. */
template <int N>
static __device__ constexpr int
gemm_sets(void)
{
    return N < 32 ? 2 : 1;
}

/* FP8, a scale a row: pieces are made while those before are multiplied. */
template <int N, int DEPTH>
static __device__ __forceinline__ void
gemm_multiply_rows(const gemm_smem_t &s, uint32_t p, const gemm_strip_t &o,
                   uint32_t bytes, uint32_t slots, uint32_t steps,
                   gemm_pipeline_t &t, float (&c)[N / 2])
{
    const int SETS = gemm_sets<N>() < DEPTH ? 1 : DEPTH;
    uint32_t a[SETS][4][4], left = 0;

#pragma unroll 1
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t at = t.slot * bytes;

        gemm_wait_slot(s, p, t);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            gemm_expand(a[d % SETS], o.codes + at + d * o.piece);
            gemm_multiply_steps<N, 4>(c, a[d % SETS], o.x + at + d * (N * 128),
                                      i > 0 || d > 0);
            wgmma_wait<SETS - 1>(); /* the piece before has been read */
            wgmma_touch(a[(d + 1) % SETS]);
            if (SETS > 1 && d == 0 && i > 0) {
                gemm_leave_slot(s, p, left);
            }
        }
        if (SETS == 1) {
            gemm_leave_slot(s, p, t.slot);
        }
        left = t.slot;
        gemm_next_slot(t, slots, o.teams);
    }
    wgmma_wait<0>();
    wgmma_touch(c);
    if (SETS > 1 && steps > 0) {
        gemm_leave_slot(s, p, left);
    }
}

/* FP8, a scale for 128 columns: a slot. */
template <int N>
static __device__ __forceinline__ void
gemm_multiply_blocks(const gemm_smem_t &s, uint32_t p, const gemm_strip_t &o,
                     uint32_t bytes, uint32_t slots, uint32_t steps,
                     gemm_pipeline_t &t, float (&c)[N / 2])
{
    const int SETS = gemm_sets<N>();
    float part[N / 2];
    uint32_t a[SETS][4][4];

#pragma unroll 1
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t at = t.slot * bytes;
        float scale[2];

        gemm_wait_slot(s, p, t);
        scale[0] = __uint_as_float(shared_load4(o.scales + at));
        scale[1] = __uint_as_float(shared_load4(o.scales + at + 32));
#pragma unroll
        for (int d = 0; d < 2; d++) {
            gemm_expand(a[d % SETS], o.codes + at + d * o.piece);
            gemm_multiply_steps<N, 4>(part, a[d % SETS],
                                      o.x + at + d * (N * 128), d > 0);
            if (SETS == 1) {
                wgmma_wait<0>();
                wgmma_touch(a[0]);
            }
        }
        gemm_add_scaled<N>(c, part, scale);
        wgmma_touch(a[0]);
        wgmma_touch(a[SETS - 1]);
        gemm_leave_slot(s, p, t.slot);
        gemm_next_slot(t, slots, o.teams);
    }
}

/* INT4, in groups of GROUP columns. */
template <int N, int DEPTH, int GROUP>
static __device__ __forceinline__ void
gemm_multiply_groups(const gemm_smem_t &s, uint32_t p, const gemm_strip_t &o,
                     uint32_t bytes, uint32_t slots, uint32_t steps,
                     gemm_pipeline_t &t, float (&c)[N / 2])
{
    const int STEPS = GROUP == 32 ? 2 : 4; /* made at once */
    /* A group of 128 is made in halves: the second while products still read
     * the first, where registers have room for both. */
    const int SETS = GROUP == 128 ? gemm_sets<N>() : 1;
    float part[N / 2], scale[2];
    uint32_t zero[2], a[SETS][STEPS][4];

#pragma unroll 1
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t at = t.slot * bytes;

        gemm_wait_slot(s, p, t);
#pragma unroll
        for (int u = 0; u < DEPTH * 4 / STEPS; u++) {
            const int d = u * STEPS / 4, group = u * STEPS * 16 / GROUP;
            const bool first = u * STEPS * 16 % GROUP == 0;
            const bool last = (u + 1) * STEPS * 16 % GROUP == 0;
            uint4 w = shared_load16(o.codes + at + d * o.piece);
            uint32_t word[4] = { w.x, w.y, w.z, w.w };

            if (first) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t v = shared_load4(o.scales + at + group * o.row
                                              + 32 * r);

                    zero[r] = packed_int4_zero(v);
                    scale[r] = packed_int4_scale(v);
                }
            }
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                packed_int4(a[u % SETS][k], word[(u * STEPS + k) % 4], zero);
            }
            gemm_multiply_steps<N, STEPS>(part, a[u % SETS],
                                          o.x + at + d * (N * 128)
                                              + u * STEPS % 4 * 32,
                                          !first);
            if (last) {
                gemm_add_scaled<N>(c, part, scale); /* waits */
            } else if (SETS == 1) {
                wgmma_wait<0>();
            }
            if (last || SETS == 1) { /* nothing is on its way */
                wgmma_touch(a[0]);
                wgmma_touch(a[SETS - 1]);
            }
        }
        gemm_leave_slot(s, p, t.slot);
        gemm_next_slot(t, slots, o.teams);
    }
}

/* ---- by warps ------------------------------------------------------------- */

/* Two steps of x as operands b: of 8 rows each. */
template <int N>
static __device__ __forceinline__ void
gemm_warp_x(uint32_t (&b)[N / 8][4], uint32_t x, uint32_t half)
{
    uint32_t lane = threadIdx.x % 32, row = lane % 8;
    uint32_t at = x + row * 128 + ((half * 4 + lane / 8) ^ row) * 16;

#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        load_matrices<false>(b[j], at + j * 1024);
    }
}

/* Two steps of w as operands a, of FP8 or INT4. */
template <bool FP8>
static __device__ __forceinline__ void
gemm_warp_w(uint32_t (&a)[2][4], uint32_t codes, uint32_t half,
            const uint32_t (&zero)[2])
{
    if (FP8) {
        uint4 w = shared_load16(codes + half * 512);

        packed_fp8(a[0], w.x, w.y);
        packed_fp8(a[1], w.z, w.w);
    } else {
        uint2 w = shared_load8(codes + half * 8);

        packed_int4(a[0], w.x, zero);
        packed_int4(a[1], w.y, zero);
    }
}

/* c += the slot's part of the sums, two steps at a time; groups of GROUP columns,
 * 0: none. */
template <int N, int DEPTH, bool FP8, int GROUP>
static __device__ __forceinline__ void
gemm_warp_slot(const gemm_strip_t &o, uint32_t at, float (&c)[N / 2])
{
    const int OF = GROUP == 0 ? 2 * DEPTH : GROUP / 32; /* halves of a piece */
    float part[2][N / 8][4], scale[2] = { 1, 1 };
    uint32_t zero[2];

#pragma unroll
    for (int h = 0; h < 2 * DEPTH; h++) {
        uint32_t b[N / 8][4], a[2][4];

        if (GROUP != 0 && h % OF == 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t v = shared_load4(o.scales + at + h / OF * o.row
                                          + 32 * r);

                zero[r] = packed_int4_zero(v);
                scale[r] = FP8 ? __uint_as_float(v) : packed_int4_scale(v);
            }
        }
        if (h % OF == 0) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                part[i / (N / 2)][i % (N / 2) / 4][i % 4] = 0;
            }
        }
        gemm_warp_x<N>(b, o.x + at + h / 2 * (N * 128), h % 2);
        gemm_warp_w<FP8>(a, o.codes + at + h / 2 * o.piece, h % 2, zero);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            mma_bf16(part[0][j], a[0], b[j][0], b[j][1]);
            mma_bf16(part[1][j], a[1], b[j][2], b[j][3]);
        }
        if ((h + 1) % OF == 0) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                c[i] += (part[0][i / 4][i % 4] + part[1][i / 4][i % 4])
                        * scale[i / 2 % 2];
            }
        }
    }
}

/* Products of a warp in place of a warpgroup's: each of four warps goes on as soon
 * as it has what it needs, and nothing waits for products that are on their way. */
template <int N, int DEPTH, bool FP8, int GROUP>
static __device__ __forceinline__ void
gemm_multiply_by_warps(const gemm_smem_t &s, uint32_t p, const gemm_strip_t &o,
                       uint32_t bytes, uint32_t slots, uint32_t steps,
                       gemm_pipeline_t &t, float (&c)[N / 2])
{
#pragma unroll 1
    for (uint32_t i = 0; i < steps; i++) {
        gemm_wait_slot(s, p, t);
        gemm_warp_slot<N, DEPTH, FP8, GROUP>(o, t.slot * bytes, c);
        __syncwarp(); /* all of it has been read */
        gemm_leave_slot(s, p, t.slot);
        gemm_next_slot(t, slots, o.teams);
    }
}

/* Whatever kind weights are of, by warps. */
template <int N>
static __device__ __forceinline__ void
gemm_multiply_any_by_warps(const gemm_smem_t &s, uint32_t p,
                           const gemm_strip_t &o, const gemm_tiling_t &h,
                           tr_weight_form_t form, uint32_t bytes,
                           uint32_t steps, gemm_pipeline_t &t,
                           float (&c)[N / 2])
{
#define GEMM_BY_WARPS(depth, fp8, group)                                  \
    gemm_multiply_by_warps<N, depth, fp8, group>(s, p, o, bytes, h.slots, \
                                                 steps, t, c)
    if (form.format == TR_WEIGHT_FP8) {
        if (form.group != 0) {
            GEMM_BY_WARPS(2, true, 128);
        } else if (h.depth == 2) {
            GEMM_BY_WARPS(2, true, 0);
        } else {
            GEMM_BY_WARPS(1, true, 0);
        }
    } else if (form.group == 128) {
        GEMM_BY_WARPS(2, false, 128);
    } else if (form.group == 64 && h.depth == 2) {
        GEMM_BY_WARPS(2, false, 64);
    } else if (form.group == 64) {
        GEMM_BY_WARPS(1, false, 64);
    } else if (h.depth == 2) {
        GEMM_BY_WARPS(2, false, 32);
    } else {
        GEMM_BY_WARPS(1, false, 32);
    }
#undef GEMM_BY_WARPS
}

/* ---- by warpgroups, or warps ----------------------------------------------- */

/* Who shares a tile with whom.  Where a tile has rows for one or two groups of
 * warps alone, the others are teams of their own, which take its slots in turn:
 * what happens to a slot takes longer than its bytes. */
static __device__ __forceinline__ uint32_t
gemm_team(const gemm_tiling_t &h)
{
    return threadIdx.x / 128 / gemm_groups(h);
}

/* Whatever kind weights are of. */
template <int N>
static __device__ __forceinline__ void
gemm_multiply_any(const gemm_smem_t &s, uint32_t p, const gemm_strip_t &o,
                  const gemm_tiling_t &h, tr_weight_form_t form, uint32_t bytes,
                  uint32_t steps, gemm_pipeline_t &t, float (&c)[N / 2])
{
    const uint32_t slots = h.slots;

    if (form.format == TR_WEIGHT_FP8) {
        if (form.group != 0) {
            gemm_multiply_blocks<N>(s, p, o, bytes, slots, steps, t, c);
        } else if (h.depth == 2) {
            gemm_multiply_rows<N, 2>(s, p, o, bytes, slots, steps, t, c);
        } else {
            gemm_multiply_rows<N, 1>(s, p, o, bytes, slots, steps, t, c);
        }
    } else if (form.group == 128) {
        gemm_multiply_groups<N, 2, 128>(s, p, o, bytes, slots, steps, t, c);
    } else if (form.group == 64 && h.depth == 2) {
        gemm_multiply_groups<N, 2, 64>(s, p, o, bytes, slots, steps, t, c);
    } else if (form.group == 64) {
        gemm_multiply_groups<N, 1, 64>(s, p, o, bytes, slots, steps, t, c);
    } else if (h.depth == 2) {
        gemm_multiply_groups<N, 2, 32>(s, p, o, bytes, slots, steps, t, c);
    } else {
        gemm_multiply_groups<N, 1, 32>(s, p, o, bytes, slots, steps, t, c);
    }
}

/* The team's part of the sums, as gemm_multiply of small_gemm.cuh. */
template <int N, gemm_kind_t KIND, bool WARPS>
static __device__ __forceinline__ void
gemm_multiply_packed(const gemm_args_t &a, const gemm_smem_t &s, uint32_t p,
                     uint32_t steps, gemm_pipeline_t &t, float (&c)[N / 2])
{
    const gemm_tiling_t &h = a.phase[p].tiling;
    const tr_weight_form_t form = a.phase[p].p.form;
    uint32_t team = gemm_team(h), lane = threadIdx.x % 32;
    uint32_t strip = threadIdx.x / 32 - team * gemm_groups(h) * 4;
    uint32_t bytes = gemm_slot(h, N), slots = h.slots;
    gemm_strip_t o = { s.ring + strip * tr_weight_block(form.format)
                           + lane * 16,
                       s.ring + h.w,
                       s.ring + h.depth * h.piece + (strip * 16 + lane / 4) * 4,
                       h.piece,
                       h.tile * 4,
                       h.teams };
    gemm_pipeline_t end = t;

    gemm_next_slot(end, slots, steps);
    gemm_next_slot(t, slots, team);
    steps = (steps + h.teams - 1 - team) / h.teams;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        c[i] = 0;
    }
    if constexpr (WARPS && KIND != GEMM_ANY) {
        gemm_multiply_by_warps<N, 2, KIND == GEMM_FP8_ROWS,
                               KIND == GEMM_FP8_ROWS  ? 0
                               : KIND == GEMM_INT4_32 ? 32
                               : KIND == GEMM_INT4_64 ? 64
                                                      : 128>(s, p, o, bytes,
                                                             slots, steps, t,
                                                             c);
    } else if constexpr (WARPS) {
        gemm_multiply_any_by_warps<N>(s, p, o, h, form, bytes, steps, t, c);
    } else if constexpr (KIND == GEMM_FP8_ROWS) {
        gemm_multiply_rows<N, 2>(s, p, o, bytes, slots, steps, t, c);
    } else if constexpr (KIND == GEMM_INT4_32) {
        gemm_multiply_groups<N, 2, 32>(s, p, o, bytes, slots, steps, t, c);
    } else if constexpr (KIND == GEMM_INT4_64) {
        gemm_multiply_groups<N, 2, 64>(s, p, o, bytes, slots, steps, t, c);
    } else if constexpr (KIND == GEMM_INT4_128) {
        gemm_multiply_groups<N, 2, 128>(s, p, o, bytes, slots, steps, t, c);
    } else {
        gemm_multiply_any<N>(s, p, o, h, form, bytes, steps, t, c);
    }
    t = end;
}

/* Where thread `thread` of a team behind the first leaves its first sum. */
static __device__ __forceinline__ uint32_t
gemm_left_at(const gemm_tiling_t &h, const gemm_smem_t &s, uint32_t columns,
             uint32_t team)
{
    uint32_t threads = gemm_groups(h) * 128;

    return s.partial + (team - 1) * threads * columns * 2
           + threadIdx.x % threads * 4;
}

/* All teams: those behind the first leave their sums, which it adds, in their
 * order. */
template <int N>
static __device__ __forceinline__ void
gemm_join_teams(const gemm_tiling_t &h, const gemm_smem_t &s, float (&c)[N / 2])
{
    uint32_t team = gemm_team(h), threads = gemm_groups(h) * 128;

    if (team > 0) {
        uint32_t at = gemm_left_at(h, s, N, team);

#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            shared_store4(at + i * threads * 4, c[i]);
        }
    }
    bar_named(2, threads * h.teams);
    for (uint32_t other = 1; team == 0 && other < h.teams; other++) {
        uint32_t at = gemm_left_at(h, s, N, other);

#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            c[i] += __uint_as_float(shared_load4(at + i * threads * 4));
        }
    }
    bar_named(2, threads * h.teams); /* there is room for the next */
}

/* FP8 with a scale a row: those of the lane's rows; 1 otherwise. */
static __device__ __forceinline__ void
gemm_row_scales(const gemm_phase_t &f, uint32_t tile, float (&scale)[2])
{
    const tr_weight_form_t form = f.p.form;
    uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    uint32_t at = tile * f.tiling.tile + row;
    const float *scales = (const float *) ((const uint8_t *) f.p.w
                                           + tr_weight_code_bytes(form, f.p.n,
                                                                  f.p.k));

    scale[0] = scale[1] = 1;
    if (form.format == TR_WEIGHT_FP8 && form.group == 0 && row < f.tiling.tile
        && at < f.p.n) {
        scale[0] = scales[at];
        scale[1] = scales[at + 8];
    }
}

#endif
