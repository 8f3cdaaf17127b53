/* gpusim.h: the device side of CUDA for a host compiler. kernels/cuda/gpu.h includes it where
 * GERYON_GPUSIM is defined; a kernel then runs with one fibre a thread (fibres.cpp).
 *
 * What a kernel calls is either plain arithmetic, here, or an exchange between lanes: publish a value,
 * wait until every lane of the mask has done so, read. An exchange leaves a counted record, so a fast
 * lane may go on to the next one before a slow lane has read. */
#ifndef GERYON_GPUSIM_H
#define GERYON_GPUSIM_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <functional>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#include "tests/gpusim/control.h"

/* Where in a kernel something was called: gs_here() as a default argument is filled in at the call. */
struct gs_site {
    const char *file;
    int line;
};
static inline constexpr gs_site gs_here(const char *file = __builtin_FILE(),
                                        int line = __builtin_LINE()) {
    return {file, line};
}

struct gs_thread {
    uint3 index;
    int lane, warp;
};
extern "C" struct gs_thread *gs_self;
extern "C" uint3 blockIdx;
extern "C" dim3 blockDim, gridDim;
#define threadIdx (gs_self->index)
#define warpSize  32

/* Ends the process; naming kernel, block and thread where a kernel is running. */
[[noreturn]] void gs_fail(gs_site at, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// ---- exchanges between lanes

enum { GS_VALUE_BYTES = 64, GS_RESULT_BYTES = 64 };
struct gs_record {
    unsigned mask;
    alignas(16) unsigned char value[32][GS_VALUE_BYTES];
    alignas(16) unsigned char result[32][GS_RESULT_BYTES];
};
/* Computes all lanes' results from their values, once. */
typedef void gs_finish(gs_record *record);

/* The record lives until this lane's next exchange. op is compared by address. */
const gs_record *gs_exchange(const char *op, unsigned mask, const void *value, int bytes,
                             gs_finish *finish, gs_site at);
/* The value that a lane of the mask has published; fails for a lane outside it. */
const void *gs_value_of(const gs_record *record, int lane, gs_site at);
void gs_sync_warp(unsigned mask, gs_site at);
/* Returns how many threads gave a true value. */
int gs_sync_block(int value, gs_site at);

template <class T> static inline T gs_read(const void *from) {
    T v;
    memcpy(&v, from, sizeof v);
    return v;
}
template <class T>
static inline T gs_shuffle(const char *op, unsigned mask, T v, int source, int width, gs_site at) {
    static_assert(sizeof(T) <= GS_VALUE_BYTES, "too large for an exchange");
    if (width < 1 || width > 32 || (width & (width - 1))) gs_fail(at, "%s: width %d", op, width);
    return gs_read<T>(gs_value_of(gs_exchange(op, mask, &v, sizeof v, NULL, at), source, at));
}
/* The lane itself where the source leaves its group of `width` lanes, as on the device. */
template <class T>
static inline T __shfl_sync(unsigned mask, T v, int src, int width = 32, gs_site at = gs_here()) {
    int lane = gs_self->lane;
    return gs_shuffle("__shfl_sync", mask, v, (lane & ~(width - 1)) | (src & (width - 1)), width,
                      at);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32, gs_site at = gs_here()) {
    int lane = gs_self->lane, source = lane ^ x;
    if (source > (lane | (width - 1))) source = lane;
    return gs_shuffle("__shfl_xor_sync", mask, v, source, width, at);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32,
                                 gs_site at = gs_here()) {
    int lane = gs_self->lane, source = lane + (int)by;
    if (source > (lane | (width - 1))) source = lane;
    return gs_shuffle("__shfl_down_sync", mask, v, source, width, at);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32,
                               gs_site at = gs_here()) {
    int lane = gs_self->lane, source = lane - (int)by;
    if (source < (lane & ~(width - 1))) source = lane;
    return gs_shuffle("__shfl_up_sync", mask, v, source, width, at);
}
unsigned __ballot_sync(unsigned mask, int predicate, gs_site at = gs_here());
static inline int __any_sync(unsigned mask, int predicate, gs_site at = gs_here()) {
    return __ballot_sync(mask, predicate, at) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, gs_site at = gs_here()) {
    return __ballot_sync(mask, predicate, at) == mask;
}
static inline void __syncwarp(unsigned mask = 0xFFFFFFFF, gs_site at = gs_here()) {
    gs_sync_warp(mask, at);
}
static inline void __syncthreads(gs_site at = gs_here()) {
    gs_sync_block(0, at);
}
static inline int __syncthreads_count(int predicate, gs_site at = gs_here()) {
    return gs_sync_block(predicate, at);
}
static inline int __syncthreads_or(int predicate, gs_site at = gs_here()) {
    return gs_sync_block(predicate, at) != 0;
}
/* No __activemask: what it returns is chance. */

/* The same order of additions as butterflies over 16, 8, 4, 2, 1, in one exchange (warp.cpp). */
float gs_warp_sum(float v, gs_site at);
float gs_warp_max(float v, gs_site at);

// ---- matrix fragments and asynchronous copies (warp.cpp)

void gs_ldmatrix_x4(uint32_t out[4], const void *row, bool transposed, gs_site at);
void gs_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], gs_site at);
void gs_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], gs_site at);
void gs_mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], gs_site at);
void gs_cp_async16(void *shared, const void *global, bool ok, gs_site at);
void gs_cp_async_commit(void);
void gs_cp_async_wait(int n_left);
void gs_check_aligned(const void *p, size_t to, gs_site at);
void *gs_dyn_shared(void);

// ---- atomics: of this block's threads only, since blocks run one after another

#define GS_ATOMIC(name, type, after)                          \
    static inline type name(type *p, type v) {                \
        type old = __atomic_load_n(p, __ATOMIC_RELAXED);      \
        __atomic_store_n(p, (type)(after), __ATOMIC_RELAXED); \
        return old;                                           \
    }
GS_ATOMIC(atomicAdd, int, (unsigned)old + (unsigned)v)
GS_ATOMIC(atomicAdd, unsigned, old + v)
GS_ATOMIC(atomicAdd, unsigned long long, old + v)
GS_ATOMIC(atomicMax, int, old > v ? old : v)
GS_ATOMIC(atomicMax, unsigned, old > v ? old : v)
GS_ATOMIC(atomicMax, unsigned long long, old > v ? old : v)
GS_ATOMIC(atomicMin, int, old < v ? old : v)
GS_ATOMIC(atomicMin, unsigned, old < v ? old : v)
GS_ATOMIC(atomicMin, unsigned long long, old < v ? old : v)
GS_ATOMIC(atomicExch, int, v)
GS_ATOMIC(atomicExch, unsigned, v)
GS_ATOMIC(atomicOr, unsigned, old | v)
GS_ATOMIC(atomicAnd, unsigned, old &v)
#undef GS_ATOMIC
static inline float atomicAdd(float *p, float v) {
    float old, sum;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    sum = old + v;
    __atomic_store(p, &sum, __ATOMIC_RELAXED);
    return old;
}
template <class T> static inline T atomicCAS(T *p, T expected, T v) {
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
static inline void __threadfence(void) {
}
static inline void __threadfence_block(void) {
}

// ---- arithmetic

static inline float __uint_as_float(unsigned u) {
    return gs_read<float>(&u);
}
static inline float __int_as_float(int i) {
    return gs_read<float>(&i);
}
static inline unsigned __float_as_uint(float f) {
    return gs_read<unsigned>(&f);
}
static inline int __float_as_int(float f) {
    return gs_read<int>(&f);
}
static inline int __float2int_rn(float f) {
    return (int)rintf(f);
}
static inline float __int2float_rn(int i) {
    return (float)i;
}
/* The C library has functions of these names. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
static inline float __fdividef(float x, float y) {
    return x / y;
}
static inline float __frcp_rn(float x) {
    return 1.0f / x;
}
static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
static inline float __fadd_rn(float x, float y) {
    return x + y;
}
static inline float __fmul_rn(float x, float y) {
    return x * y;
}
static inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}
template <class T> static inline T __ldg(const T *p) {
    return *p;
}
static inline int min(int a, int b) {
    return a < b ? a : b;
}
static inline int max(int a, int b) {
    return a > b ? a : b;
}
static inline unsigned min(unsigned a, unsigned b) {
    return a < b ? a : b;
}
static inline unsigned max(unsigned a, unsigned b) {
    return a > b ? a : b;
}
static inline int __popc(unsigned v) {
    return __builtin_popcount(v);
}
static inline int __clz(int v) {
    return v ? __builtin_clz((unsigned)v) : 32;
}
static inline int __ffs(int v) {
    return __builtin_ffs(v);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
/* Four products of signed bytes, added to c. */
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8)
        c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}

// ---- launches

/* Fails unless p is NULL or within device memory: position counts the kernel's arguments from 1. */
void gs_check_argument(const char *kernel, int position, const void *p);
/* A struct by value: fails where one of its words is the address of host memory. */
void gs_check_struct(const char *kernel, int position, const void *argument, size_t bytes);
template <class P, class A>
static inline void gs_check_one(const char *kernel, int position, const A &argument) {
    if constexpr (std::is_pointer<P>::value)
        gs_check_argument(kernel, position, (const void *)(P)argument);
    if constexpr (std::is_class<P>::value)
        gs_check_struct(kernel, position, &argument, sizeof argument);
}
cudaError_t gs_enqueue_grid(const char *kernel, const void *func, dim3 grid, dim3 block,
                            size_t smem, cudaStream_t stream, std::function<void()> body);

template <class... P, class... A>
static inline cudaError_t gs_launch(const char *kernel, dim3 grid, dim3 block, size_t smem,
                                    cudaStream_t stream, void (*func)(P...), A... arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "a kernel takes each of its arguments");
    int position = 0;
    (gs_check_one<P>(kernel, ++position, arguments), ...);
    return gs_enqueue_grid(kernel, (const void *)func, grid, block, smem, stream,
                           [=] { func((P)arguments...); });
}

#endif
