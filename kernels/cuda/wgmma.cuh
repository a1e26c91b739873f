/*
 * wgmma.cuh: instructions without a name in CUDA C++ that work on tiles in shared
 * memory: copies and products of a warpgroup.
 *
 * Tiles stand in shared memory in the form that a tensor core of Hopper reads
 * and the copy engine writes: rows of 128 bytes (64 dimensions), eight rows an
 * atom of 1024 bytes aligned to that, and in row r the 16-byte chunk c at place
 * c ^ (r % 8).  A head of 128 dimensions has two atoms for eight tokens, one
 * after the other; then come those of the next eight.  Addresses here are those
 * of shared memory (smem_address).
 */
#ifndef TR_CUDA_WGMMA_CUH
#define TR_CUDA_WGMMA_CUH

#include <cuda.h>

#include "kernels/cuda/ptx.cuh"

/* ---- barriers ----------------------------------------------------------- */

/* Barrier `id` (1 .. 15) of `threads` threads of a block. */
static __device__ __forceinline__ void
bar_named(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Comes to that barrier without waiting. */
static __device__ __forceinline__ void
bar_named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* What ordinary instructions wrote to shared memory, the copy engine and the
 * tensor cores see. */
static __device__ __forceinline__ void
fence_async(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- copies into shared memory ------------------------------------------ */

/* 16 bytes, of which `bytes` (16 or 0) come from src and the others are 0. */
static __device__ __forceinline__ void
copy16(uint32_t dst, const void *src, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst),
                 "l"(src), "r"(bytes)
                 : "memory");
}

/* Contiguous bytes by the copy engine; a multiple of 16. */
static __device__ __forceinline__ void
copy_bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes [%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar)
                 : "memory");
#endif
}

/* Some groups of eight tokens from `group` of a page on, in the order above, by
 * the copy engine. */
static __device__ __forceinline__ void
copy_box(uint32_t dst, const CUtensorMap *map, uint32_t group, int32_t page,
         uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile."
                 "mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %3, %3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(0), "r"(group), "r"(page)
                 : "memory");
#endif
}

/* A tile of a matrix of bytes, in the order above: the map's box, from column
 * `column` of row `row` on. */
static __device__ __forceinline__ void
copy_tile(uint32_t dst, const CUtensorMap *map, uint32_t column, uint32_t row,
          uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile."
        "mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
        "l"(map), "r"(bar), "r"(column), "r"(row)
        : "memory");
#endif
}

/* Four 8 x 8 matrices of 16-bit elements, of which lane 4g + t has elements 2t and
 * 2t + 1 of row g, by columns: column l % 8 of matrix l / 8 goes to where lane l
 * says. */
static __device__ __forceinline__ void
store_turned(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], "
                 "{%1, %2, %3, %4};" ::"r"(at),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
#endif
}

static __device__ __forceinline__ void
zero16(uint32_t dst)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(dst), "r"(0)
                 : "memory");
}

static __device__ __forceinline__ float4
load_float4(uint32_t at)
{
    float4 r;

    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
                 : "r"(at)
                 : "memory");
    return r;
}

/* ---- matrices of a warpgroup: Hopper alone ------------------------------- */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TR_WGMMA 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 10 == 90
#error "CUDA_ARCH has 90: only 90a has the products of a warpgroup"
#else
#define TR_WGMMA 0
#endif

/* Registers of a warpgroup's threads, taken from or given to the others. */
template <int N>
static __device__ __forceinline__ void
registers_more(void)
{
#if TR_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <int N>
static __device__ __forceinline__ void
registers_less(void)
{
#if TR_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

static __device__ __forceinline__ void
wgmma_begin(void)
{
#if TR_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void
wgmma_end(void)
{
#if TR_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* Until at most N groups of products are on their way. */
template <int N>
static __device__ __forceinline__ void
wgmma_wait(void)
{
#if TR_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

/* The compiler must not move what reads or writes these over this line. */
template <int N>
static __device__ __forceinline__ void
wgmma_touch(float (&c)[N])
{
#if TR_WGMMA
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(c[i])::"memory");
    }
#endif
}

/* Descriptor of an operand as the head of this file says: where its 16
 * dimensions or tokens are; the next eight rows are `atom` bytes on, the next
 * 64 dimensions `column` bytes (used where a row is of the sum, that is by
 * values). */
static __device__ __forceinline__ uint64_t
wgmma_operand(uint32_t at, uint32_t atom, uint32_t column)
{
    return (uint64_t) ((at & 0x3ffff) >> 4) | (uint64_t) (column >> 4) << 16
           | (uint64_t) (atom >> 4) << 32 | (uint64_t) 1 << 62;
}

/* The registers of an accumulator from i on, as operands of an instruction, and
 * their names in its text, where they are its first. */
#define WGMMA_SUMS4(c, i) \
    "+f"(c[(i)]), "+f"(c[(i) + 1]), "+f"(c[(i) + 2]), "+f"(c[(i) + 3])
#define WGMMA_SUMS8(c, i) WGMMA_SUMS4(c, i), WGMMA_SUMS4(c, (i) + 4)
#define WGMMA_SUMS16(c, i) WGMMA_SUMS8(c, i), WGMMA_SUMS8(c, (i) + 8)
#define WGMMA_SUMS32(c, i) WGMMA_SUMS16(c, i), WGMMA_SUMS16(c, (i) + 16)
#define WGMMA_SUMS64(c, i) WGMMA_SUMS32(c, i), WGMMA_SUMS32(c, (i) + 32)
#define WGMMA_SUMS128(c, i) WGMMA_SUMS64(c, i), WGMMA_SUMS64(c, (i) + 64)

#define WGMMA_NAMES4 "%0,%1,%2,%3"
#define WGMMA_NAMES8 WGMMA_NAMES4 ",%4,%5,%6,%7"
#define WGMMA_NAMES16 WGMMA_NAMES8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_NAMES32                                        \
    WGMMA_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25" \
                  ",%26,%27,%28,%29,%30,%31"
#define WGMMA_NAMES64                                        \
    WGMMA_NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41" \
                  ",%42,%43,%44,%45,%46,%47,%48,%49,%50,%51" \
                  ",%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_NAMES128                                                 \
    WGMMA_NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73"           \
                  ",%74,%75,%76,%77,%78,%79,%80,%81,%82,%83"           \
                  ",%84,%85,%86,%87,%88,%89,%90,%91,%92,%93"           \
                  ",%94,%95,%96,%97,%98,%99,%100,%101,%102,%103"       \
                  ",%104,%105,%106,%107,%108,%109,%110,%111,%112,%113" \
                  ",%114,%115,%116,%117,%118,%119,%120,%121,%122,%123" \
                  ",%124,%125,%126,%127"

/* c = a b (+ c when `add`), 64 x N x 16, a from shared memory; the
 * accumulator is that of mma(), warp w having rows 16 w .. 16 w + 15. */
static __device__ __forceinline__ void
wgmma_ss(float (&c)[32], uint64_t a, uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{" WGMMA_NAMES32 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : WGMMA_SUMS32(c, 0)
                 : "l"(a), "l"(b), "r"(add));
#endif
}

static __device__ __forceinline__ void
wgmma_ss(float (&c)[64], uint64_t a, uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{" WGMMA_NAMES64 "}, %64, %65, p, 1, 1, 0, 0; }"
                 : WGMMA_SUMS64(c, 0)
                 : "l"(a), "l"(b), "r"(add));
#endif
}

/* The same, a from registers as mma() has it; TRANSPOSED: b's rows are of its
 * 16 tokens, else of its N. */
template <int TRANSPOSED>
static __device__ __forceinline__ void
wgmma_rs(float (&c)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{" WGMMA_NAMES32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38; }"
                 : WGMMA_SUMS32(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
                   "n"(TRANSPOSED));
#endif
}

template <int TRANSPOSED>
static __device__ __forceinline__ void
wgmma_rs(float (&c)[64], const uint32_t (&a)[4], uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{" WGMMA_NAMES64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, %70; }"
                 : WGMMA_SUMS64(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
                   "n"(TRANSPOSED));
#endif
}

template <int TRANSPOSED>
static __device__ __forceinline__ void
wgmma_rs(float (&c)[128], const uint32_t (&a)[4], uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{" WGMMA_NAMES128
                 "}, {%128,%129,%130,%131}, %132, p, 1, 1, %134; }"
                 : WGMMA_SUMS128(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
                   "n"(TRANSPOSED));
#endif
}

/* c = a b (+ c when `add`), 64 x 128 x 32 in FP8 (E4M3); a from registers: lane
 * 4g + t of the group's warp w has columns 4t .. 4t + 3 of rows 16w + g and
 * 16w + g + 8, then the same columns 16 further on. */
static __device__ __forceinline__ void
wgmma_fp8(float (&c)[64], const uint32_t (&a)[4], uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
                 "{" WGMMA_NAMES64 "}, {%64,%65,%66,%67}, %68, p, 1, 1; }"
                 : WGMMA_SUMS64(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "r"(add));
#endif
}

/* Operands of products that are on their way must stay up to this line. */
template <int N>
static __device__ __forceinline__ void
wgmma_touch(uint32_t (&a)[N][4])
{
#if TR_WGMMA
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile(""
                     : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]),
                       "+r"(a[i][3])::"memory");
    }
#endif
}

#endif
