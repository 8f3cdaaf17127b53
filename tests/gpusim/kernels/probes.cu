/* probes.cu: one small kernel for each thing of gpu.h. */
#include "kernels/cuda/gpu.h"
#include "tests/gpusim/kernels/kernels.h"

static __global__ void warp_helpers(float *out, const float *v) {
    const int lane = (int)threadIdx.x;
    float sum = v[lane], largest = v[lane];
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(FULL_MASK, sum, offset);
        largest = fmaxf(largest, __shfl_xor_sync(FULL_MASK, largest, offset));
    }
    out[lane] = warp_sum(v[lane]);
    out[WARP + lane] = sum;
    out[2 * WARP + lane] = warp_max(v[lane]);
    out[3 * WARP + lane] = largest;
    out[4 * WARP + lane] = warp_bcast(v[lane], 5) + __shfl_down_sync(FULL_MASK, v[lane], 1) +
                           __shfl_up_sync(FULL_MASK, v[lane], 1) +
                           __shfl_sync(FULL_MASK, v[lane], 9, 8);
    out[5 * WARP + lane] = (float)(__ballot_sync(FULL_MASK, v[lane] > 0.0f) >> lane & 1);
}
extern "C" int launch_warp_helpers(float *out, const float *v, void *stream) {
    return GPU_LAUNCH(warp_helpers, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, out, v);
}

static __global__ void number_helpers(float *exponentials, uint32_t *pairs, const float *v,
                                      const uint32_t *bytes) {
    exponentials[threadIdx.x] = exp2_approx(v[threadIdx.x]);
    bf16_of_spaced_bytes(pairs + 2 * threadIdx.x, bytes[threadIdx.x]);
}
extern "C" int launch_number_helpers(float *exponentials, uint32_t *pairs, const float *v,
                                     const uint32_t *bytes, int n, void *stream) {
    return GPU_LAUNCH(number_helpers, dim3(1), dim3((unsigned)n), 0, (cudaStream_t)stream,
                      exponentials, pairs, v, bytes);
}

static __global__ void block_helpers(float *out, const float *v) {
    __shared__ float warp[WARP];
    const float x = v[threadIdx.x];
    const float sum = block_sum(x, warp), largest = block_max(x, warp);
    const float again = block_sum(x, warp); /* the same scratch */
    const int n_equal = __syncthreads_count(__float_as_uint(sum) == __float_as_uint(again));
    if (threadIdx.x == 0) {
        out[0] = n_equal == (int)blockDim.x ? sum : NAN;
        out[1] = largest;
    }
}
extern "C" int launch_block_helpers(float *out, const float *v, int n_threads, void *stream) {
    return GPU_LAUNCH(block_helpers, dim3(1), dim3((unsigned)n_threads), 0, (cudaStream_t)stream,
                      out, v);
}

/* Fragments loaded by hand, as gpu.h draws them. */
static __global__ void mma_16(float *d, const uint16_t *a, const uint16_t *b, bool half) {
    const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    uint32_t fa[4], fb[2];
    float sum[4];
    for (int i = 0; i < 4; i++) {
        const uint16_t *from = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
        fa[i] = (uint32_t)from[0] | (uint32_t)from[1] << 16;
        sum[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    }
    for (int i = 0; i < 2; i++) {
        const uint16_t *from = b + (2 * t + 8 * i) * 8 + g;
        fb[i] = (uint32_t)from[0] | (uint32_t)from[8] << 16;
    }
    if (half)
        mma_m16n8k16_f16(sum, fa, fb);
    else
        mma_m16n8k16(sum, fa, fb);
    for (int i = 0; i < 4; i++)
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
extern "C" int launch_mma_16(float *d, const uint16_t *a, const uint16_t *b, bool half,
                             void *stream) {
    return GPU_LAUNCH(mma_16, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, d, a, b, half);
}

static __global__ void mma_s8(int32_t *d, const int8_t *a, const int8_t *b) {
    const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    uint32_t fa[4], fb[2];
    int32_t sum[4];
    for (int i = 0; i < 4; i++) {
        fa[i] = *(const uint32_t *)(a + (g + i % 2 * 8) * 32 + 4 * t + i / 2 * 16);
        sum[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    }
    for (int i = 0; i < 2; i++) {
        fb[i] = 0;
        for (int j = 0; j < 4; j++)
            fb[i] |= (uint32_t)(uint8_t)b[(4 * t + 16 * i + j) * 8 + g] << 8 * j;
    }
    mma_m16n8k32(sum, fa, fb);
    for (int i = 0; i < 4; i++)
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
extern "C" int launch_mma_s8(int32_t *d, const int8_t *a, const int8_t *b, void *stream) {
    return GPU_LAUNCH(mma_s8, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, d, a, b);
}

static __global__ void ldmatrix_both(uint32_t *out, const uint16_t *in) {
    __shared__ __align__(16) uint16_t rows[32 * 8];
    const int lane = (int)threadIdx.x;
    uint32_t r[4];
    store16(rows + lane * 8, load16(in + lane * 8));
    __syncwarp();
    ldmatrix_x4(r, rows + lane * 8);
    for (int j = 0; j < 4; j++)
        out[j * WARP + lane] = r[j];
    ldmatrix_x4_trans(r, rows + lane * 8);
    for (int j = 0; j < 4; j++)
        out[(4 + j) * WARP + lane] = r[j];
}
extern "C" int launch_ldmatrix(uint32_t *out, const uint16_t *in, void *stream) {
    return GPU_LAUNCH(ldmatrix_both, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, out, in);
}

static __global__ void atomics(uint32_t *n) {
    atomicAdd(&n[0], 1u);
    atomicAdd(&n[1], threadIdx.x);
    atomicMax(&n[2], threadIdx.x);
}
extern "C" int launch_atomics(uint32_t *n, int n_threads, void *stream) {
    return GPU_LAUNCH(atomics, dim3(3), dim3((unsigned)n_threads), 0, (cudaStream_t)stream, n);
}

/* Reads shared memory that nobody has written, on purpose, and then writes it: a NaN in every block.
 * volatile, or a compiler may do without the memory. */
template <int N> static __global__ void fresh_shared(float *out) {
    __shared__ volatile float words[N];
    GPU_DYN_SHARED(volatile float, dynamic);
    const int lane = (int)threadIdx.x;
    const bool fresh = isnan(words[lane]) && isnan(dynamic[lane]);
    words[lane] = dynamic[lane] = 1.0f;
    const int n_fresh = __syncthreads_count(fresh);
    if (lane == 0) out[blockIdx.x] = (float)n_fresh;
}
extern "C" int launch_fresh_shared(float *out, int blocks, void *stream) {
    return GPU_LAUNCH((fresh_shared<WARP>), dim3((unsigned)blocks), dim3(WARP),
                      WARP * sizeof(float), (cudaStream_t)stream, out);
}

static __global__ void half_warps(float *out, const float *v) {
    const int lane = (int)threadIdx.x, base = lane & 16;
    const unsigned half = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
    float sum = 0.0f;
    for (int round = 0; round < (lane < 16 ? 1 : 2); round++)
        for (int i = 0; i < 16; i++)
            sum += __shfl_sync(half, v[lane], base + (lane + i) % 16);
    out[lane] = sum;
}
extern "C" int launch_half_warps(float *out, const float *v, void *stream) {
    return GPU_LAUNCH(half_warps, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, out, v);
}

static __global__ void early_return(float *out) {
    __shared__ float numbers[64];
    const int i = (int)threadIdx.x;
    if (i >= 40) return;
    numbers[i] = (float)(i + 1);
    __syncthreads();
    out[i] = numbers[39 - i];
}
extern "C" int launch_early_return(float *out, void *stream) {
    return GPU_LAUNCH(early_return, dim3(1), dim3(64), 0, (cudaStream_t)stream, out);
}

static __global__ void copy_states(float *out, const float *in) {
    __shared__ __align__(16) volatile float words[2][4 * WARP];
    const int lane = (int)threadIdx.x;
    words[0][4 * lane] = words[1][4 * lane] = 1.0f;
    cp_async16((void *)&words[0][4 * lane], in + 4 * lane, true);
    cp_async16((void *)&words[1][4 * lane], NULL, false);
    out[lane] = isnan(words[0][4 * lane]) && isnan(words[1][4 * lane]) ? 1.0f : 0.0f;
    cp_async_commit();
    cp_async_wait<0>();
    out[WARP + lane] = words[0][4 * lane];
    out[2 * WARP + lane] = words[1][4 * lane];
}
extern "C" int launch_copy_states(float *out, const float *in, void *stream) {
    return GPU_LAUNCH(copy_states, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, out, in);
}

static __global__ void increment(int32_t *p, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) p[i] += 1;
}
extern "C" int launch_increment(int32_t *p, int n, void *stream) {
    return GPU_LAUNCH(increment, dim3((unsigned)(n + 31) / 32), dim3(32), 0, (cudaStream_t)stream,
                      p, n);
}
static __global__ void twice(int32_t *p, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) p[i] *= 2;
}
extern "C" int launch_double(int32_t *p, int n, void *stream) {
    return GPU_LAUNCH(twice, dim3((unsigned)(n + 31) / 32), dim3(32), 0, (cudaStream_t)stream, p,
                      n);
}

static __global__ void copy_one(two_pointers args) {
    if (threadIdx.x == 0) args.out[0] = args.in[0];
}
extern "C" int launch_two_pointers(struct two_pointers args, void *stream) {
    return GPU_LAUNCH(copy_one, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, args);
}
