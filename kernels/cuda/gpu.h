/* gpu.h: the only include of a kernel (kernels/cuda/ *.cu).
 *
 * A kernel's source compiles twice. With nvcc this is CUDA and a few PTX instructions behind
 * functions; with a host compiler and -DGERYON_GPUSIM it is tests/gpusim/, where every thread of a
 * block is a fibre. So a kernel holds no `<<<>>>`, no asm and no `extern __shared__`, and computes
 * in float: bf16 and f16 are storage.
 *
 * Masks are full: guard the data (`ok ? load : 0`), not the call. Kernels that are templates are
 * `static`, and files with kernels hold no other static variables inside functions: the simulator
 * takes them all for shared memory. */
#ifndef GERYON_CUDA_GPU_H
#define GERYON_CUDA_GPU_H

#ifdef GERYON_GPUSIM
#include <gpusim.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include <math.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;
typedef __half f16;

#define WARP      32
#define FULL_MASK 0xFFFFFFFFu

#define GPU_INLINE      static __device__ __forceinline__
#define GPU_INLINE_BOTH static __host__ __device__ __forceinline__

/* GPU_LAUNCH(kernel, grid, block, smem_bytes, stream, args...): queue it; its value is the launch's
 * cudaError_t. A kernel that is a template goes in brackets: GPU_LAUNCH((k<4, 8>), ...).
 * GPU_DYN_SHARED(type, name): `type *name`, the launch's smem_bytes, aligned to 16 bytes.
 * GPU_SITE, GPU_AT, GPU_BARRIER_AT: how a helper hands on the line that called it, for the
 * simulator's reports. */
#ifdef GERYON_GPUSIM
#define GPU_LAUNCH(kernel, grid, block, smem_bytes, stream, ...) \
    gs_launch(#kernel, grid, block, smem_bytes, stream, kernel, __VA_ARGS__)
#define GPU_DYN_SHARED(type, name) type *const name = (type *)gs_dyn_shared()
#define GPU_UNROLL
#define GPU_NOINLINE   static __attribute__((noinline))
#define GPU_SITE       , gs_site at = gs_here()
#define GPU_AT         , at
#define GPU_BARRIER_AT __syncthreads(at)
#else
#define GPU_LAUNCH(kernel, grid, block, smem_bytes, stream, ...) \
    (kernel<<<grid, block, smem_bytes, stream>>>(__VA_ARGS__), cudaGetLastError())
#define GPU_DYN_SHARED(type, name)                              \
    extern __shared__ __align__(16) unsigned char gpu_shared[]; \
    type *const name = reinterpret_cast<type *>(gpu_shared)
#define GPU_UNROLL   _Pragma("unroll")
#define GPU_NOINLINE static __device__ __noinline__ /* for code that is seldom run */
#define GPU_SITE
#define GPU_AT
#define GPU_BARRIER_AT __syncthreads()
#endif

/* ---- storage types ---------------------------------------------------------------------------- */

GPU_INLINE_BOTH float to_f32(float v) {
    return v;
}
GPU_INLINE_BOTH float to_f32(bf16 v) {
    return __bfloat162float(v);
}
GPU_INLINE_BOTH float to_f32(f16 v) {
    return __half2float(v);
}
/* Rounded to nearest, ties to even. */
template <class T> GPU_INLINE_BOTH T from_f32(float v);
template <> __host__ __device__ __forceinline__ float from_f32<float>(float v) {
    return v;
}
template <> __host__ __device__ __forceinline__ bf16 from_f32<bf16>(float v) {
    return __float2bfloat16_rn(v);
}
template <> __host__ __device__ __forceinline__ f16 from_f32<f16>(float v) {
    return __float2half_rn(v);
}

/* Two bf16 in a word, the first in the low half, as they lie in memory. */
GPU_INLINE float bf16_lo(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
GPU_INLINE float bf16_hi(uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000u);
}
GPU_INLINE uint32_t bf16_pair(float lo, float hi) {
    return (uint32_t)__bfloat16_as_ushort(from_f32<bf16>(lo)) |
           (uint32_t)__bfloat16_as_ushort(from_f32<bf16>(hi)) << 16;
}
GPU_INLINE float f16_lo(uint32_t pair) {
    return __half2float(__ushort_as_half((unsigned short)(pair & 0xFFFF)));
}
GPU_INLINE float f16_hi(uint32_t pair) {
    return __half2float(__ushort_as_half((unsigned short)(pair >> 16)));
}
GPU_INLINE uint32_t f16_pair(float lo, float hi) {
    return (uint32_t)__half_as_ushort(from_f32<f16>(lo)) |
           (uint32_t)__half_as_ushort(from_f32<f16>(hi)) << 16;
}

/* Four signed bytes as bf16, exactly: out[0] holds bytes 0 and 2, out[1] bytes 1 and 3. With the low
 * seven bits l and the sign s of a byte, it is (128 + l) - (128 + 128 s), and bf16 patterns of both
 * terms are 0x4300 with those bits in place. */
GPU_INLINE void bf16_of_spaced_bytes(uint32_t out[2], uint32_t bytes) {
    GPU_UNROLL
    for (int i = 0; i < 2; i++, bytes >>= 8) {
#ifdef GERYON_GPUSIM
        out[i] = bf16_pair((float)(int8_t)bytes, (float)(int8_t)(bytes >> 16));
#else
        const uint32_t low = (bytes & 0x007F007Fu) | 0x43004300u;
        const uint32_t sign = (bytes & 0x00800080u) | 0xC300C300u; /* -(128 + 128 s) */
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out[i]) : "r"(low), "r"(0x3F803F80u), "r"(sign));
#endif
    }
}

/* 16 bytes at once; the address is a multiple of 16. */
GPU_INLINE uint4 load16(const void *p GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_check_aligned(p, 16, at);
#endif
    return *(const uint4 *)p;
}
GPU_INLINE void store16(void *p, uint4 v GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_check_aligned(p, 16, at);
#endif
    *(uint4 *)p = v;
}

/* 16 or 8 bytes that nothing in the grid writes and this thread block alone reads, once: weights. They
 * leave the first-level cache to others. */
GPU_INLINE uint4 load16_once(const void *p GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_check_aligned(p, 16, at);
    return *(const uint4 *)p;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#endif
}
GPU_INLINE uint2 load8_once(const void *p GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_check_aligned(p, 8, at);
    return *(const uint2 *)p;
#else
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
#endif
}

/* Two signed bytes of a word as bf16, exact: bytes 0 and 1, or 2 and 3. With q in its low byte, 0x43qq
 * is 128 + (q & 127) once its bit 7 is cleared, and 128 or 256 once bits 0 to 6 are: their difference
 * is q. */
template <bool UPPER> GPU_INLINE uint32_t bf16_of_bytes(uint32_t bytes) {
#ifdef GERYON_GPUSIM
    const uint32_t pair = UPPER ? bytes >> 16 : bytes;
    return bf16_pair((float)(int8_t)(pair & 0xFF), (float)(int8_t)(pair >> 8 & 0xFF));
#else
    const uint32_t pair = __byte_perm(bytes, 0x43434343, UPPER ? 0x4342 : 0x4140);
    uint32_t v;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(v)
        : "r"(pair & 0xFF80FF80), "r"(0xBF80BF80), "r"(pair & 0xFF7FFF7F));
    return v;
#endif
}

/* 2^v to about 2 units in the last place; 2^0 is 1, 2^-inf is 0, and so is what is denormal. */
GPU_INLINE float exp2_approx(float v) {
#ifdef GERYON_GPUSIM
    const float e = exp2f(v);
    return e < 0x1p-126f ? 0.0f : e;
#else
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v));
    return e;
#endif
}

/* ---- sums and maxima -------------------------------------------------------------------------- */

/* Over the 32 lanes, all present; every lane receives the same bits. The order is that of
 * butterflies over 16, 8, 4, 2, 1 lanes, also in the simulator, where it is one exchange. */
GPU_INLINE float warp_sum(float v GPU_SITE) {
#ifdef GERYON_GPUSIM
    return gs_warp_sum(v, at);
#else
    GPU_UNROLL
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(FULL_MASK, v, offset);
    return v;
#endif
}
/* NaN only where all lanes are: fmaxf takes the other one. */
GPU_INLINE float warp_max(float v GPU_SITE) {
#ifdef GERYON_GPUSIM
    return gs_warp_max(v, at);
#else
    GPU_UNROLL
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        v = fmaxf(v, __shfl_xor_sync(FULL_MASK, v, offset));
    return v;
#endif
}
GPU_INLINE float warp_bcast(float v, int lane GPU_SITE) {
#ifdef GERYON_GPUSIM
    return __shfl_sync(FULL_MASK, v, lane, WARP, at);
#else
    return __shfl_sync(FULL_MASK, v, lane);
#endif
}

/* Over all threads of a one-dimensional block of 32, 64, ... 1024 threads; each receives the same bits.
 * warp[32] is shared memory, and free to use again on return: both barriers are within. */
GPU_INLINE float block_sum(float v, float *warp GPU_SITE) {
    const int n_warps = (int)blockDim.x / WARP, lane = (int)threadIdx.x % WARP;
    v = warp_sum(v GPU_AT);
    if (n_warps == 1) return v;
    if (lane == 0) warp[threadIdx.x / WARP] = v;
    GPU_BARRIER_AT;
    v = warp_sum(lane < n_warps ? warp[lane] : 0.0f GPU_AT);
    GPU_BARRIER_AT;
    return v;
}
GPU_INLINE float block_max(float v, float *warp GPU_SITE) {
    const int n_warps = (int)blockDim.x / WARP, lane = (int)threadIdx.x % WARP;
    v = warp_max(v GPU_AT);
    if (n_warps == 1) return v;
    if (lane == 0) warp[threadIdx.x / WARP] = v;
    GPU_BARRIER_AT;
    v = warp_max(lane < n_warps ? warp[lane] : -INFINITY GPU_AT);
    GPU_BARRIER_AT;
    return v;
}

/* ---- tensor cores ----------------------------------------------------------------------------- */

/* Four 8x8 matrices of 16-bit elements from shared memory. Lane 8j + i gives the address of row i of
 * matrix j, a multiple of 16; out[j] of lane l holds elements 2(l%4) and 2(l%4) + 1 of row l/4 of
 * matrix j, or with _trans of column l/4. */
GPU_INLINE void ldmatrix_x4(uint32_t out[4], const void *row GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_ldmatrix_x4(out, row, false, at);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}
GPU_INLINE void ldmatrix_x4_trans(uint32_t out[4], const void *row GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_ldmatrix_x4(out, row, true, at);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

/* d[16, 8] += a[16, 16] b[16, 8]: bf16 or f16 in, f32 out. With g = lane / 4 and t = lane % 4:
 *
 *   a[0], a[1]  rows g, g + 8, columns 2t, 2t + 1         d[0], d[1]  row g, columns 2t, 2t + 1
 *   a[2], a[3]  the same rows, columns 2t + 8, 2t + 9     d[2], d[3]  row g + 8, the same columns
 *   b[0], b[1]  rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g
 *
 * The simulator adds K in ascending order in f32; a device's order is its own, but fixed. */
GPU_INLINE void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2] GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_mma_bf16(d, a, b, at);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
GPU_INLINE void mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2] GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_mma_f16(d, a, b, at);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
/* d[16, 8] += a[16, 32] b[32, 8]: signed bytes in, exact s32 out. a[0], a[1]: rows g, g + 8, columns
 * 4t .. 4t + 3; a[2], a[3]: columns 16 further; b likewise, rows of column g; d as above. */
GPU_INLINE void mma_m16n8k32(int32_t d[4], const uint32_t a[4], const uint32_t b[2] GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_mma_s8(d, a, b, at);
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* ---- asynchronous copies ---------------------------------------------------------------------- */

/* 16 bytes from global to shared memory, or 16 zero bytes where not ok (global is then not read).
 * They are there for this thread after the wait that covers their group, for others after a barrier
 * that follows it. */
GPU_INLINE void cp_async16(void *shared, const void *global, bool ok GPU_SITE) {
#ifdef GERYON_GPUSIM
    gs_cp_async16(shared, global, ok, at);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(ok ? 16 : 0)
                 : "memory");
#endif
}
/* Closes this thread's group of copies, which may be empty. */
GPU_INLINE void cp_async_commit(void) {
#ifdef GERYON_GPUSIM
    gs_cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Waits for all of this thread's groups but the N youngest. */
template <int N> GPU_INLINE void cp_async_wait(void) {
#ifdef GERYON_GPUSIM
    gs_cp_async_wait(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif
