/* faults.cu: kernels with one bug each, for the simulator to find; without a fault each is right.
 *
 * The bugs are real ones, so the fault is an argument: a compiler cannot see which it is. */
#include "kernels/cuda/gpu.h"
#include "tests/gpusim/kernels/kernels.h"

enum { THREADS = 64 };

/* out[i] = in[THREADS - 1 - i] + in[(i + 1) % THREADS], through shared memory, twice over one buffer;
 * out[THREADS + i] = in of lane i ^ 1 of the warp, times in[0]. */
static __global__ void barriers(int fault, float *out, const float *in) {
    __shared__ float buffer[THREADS];
    __shared__ float pairs[THREADS];
    __shared__ float first;
    const int i = (int)threadIdx.x;
    if (i == 0) first = in[0];
    if (fault != FAULT_NO_BARRIER_AFTER_FIRST) __syncthreads();
    const float scale = first;
    buffer[i] = in[i];
    if (fault == FAULT_DIVERGENT_BARRIER) {
        if (i < WARP)
            __syncthreads();
        else
            __syncthreads();
    } else if (fault == FAULT_PARTIAL_BARRIER) {
        if (i < 40) __syncthreads();
        warp_sum(0.0f);
    } else if (fault != FAULT_NO_BARRIER) {
        __syncthreads();
    }
    float sum = buffer[THREADS - 1 - i];
    if (fault != FAULT_NO_BARRIER_BEFORE_REUSE) __syncthreads();
    buffer[i] = in[(i + 1) % THREADS] * 1.0f;
    __syncthreads();
    sum += buffer[i];
    out[i] = sum;
    pairs[i] = in[i];
    if (fault != FAULT_NO_SYNCWARP) __syncwarp();
    out[THREADS + i] = pairs[i ^ 1] * scale;
}
extern "C" int launch_barriers(enum fault fault, float *out, const float *in, int n, void *stream) {
    if (n < THREADS) return cudaErrorInvalidValue;
    return GPU_LAUNCH(barriers, dim3(1), dim3(THREADS), 0, (cudaStream_t)stream, (int)fault, out,
                      in);
}

/* out[s, i] = in[s, i ^ 1] over 4 slices of 128 floats, by a ring of three cp.async slices, one ahead. */
static __global__ void copies(int fault, float *out, const float *in) {
    __shared__ __align__(16) float ring[3][128];
    const int i = (int)threadIdx.x;
    cp_async16(&ring[0][4 * i], in + 4 * i, true);
    cp_async_commit();
    for (int slice = 0; slice < 4; slice++) {
        float *next = &ring[(slice + 1) % 3][4 * i];
        cp_async16(next, in + 128 * ((slice + 1) % 4) + 4 * i, true);
        if (fault == FAULT_TWO_IN_FLIGHT) cp_async16(next, in + 4 * i, true);
        cp_async_commit();
        if (fault == FAULT_WAIT_TOO_WEAK)
            cp_async_wait<2>();
        else
            cp_async_wait<1>();
        __syncwarp();
        for (int j = i; j < 128; j += WARP)
            out[(128 * slice + j) % 256] = ring[slice % 3][j ^ 1];
        __syncwarp();
    }
    if (fault != FAULT_NO_WAIT) cp_async_wait<0>();
}
extern "C" int launch_copies(enum fault fault, float *out, const float *in, int n, void *stream) {
    if (n < 512) return cudaErrorInvalidValue;
    return GPU_LAUNCH(copies, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, (int)fault, out, in);
}

static __global__ void masks(int fault, float *out, const float *in) {
    const int lane = (int)threadIdx.x;
    float v = in[lane];
    switch (fault) {
    case FAULT_LANE_OUTSIDE_MASK:
        if (lane < 16) v = __shfl_xor_sync(0x0000FFFFu, v, 16);
        break;
    case FAULT_NOT_IN_OWN_MASK:
        v = __shfl_sync(0x0000FFFFu, v, 0);
        break;
    case FAULT_LANE_ELSEWHERE:
        if (lane < 16)
            v = __shfl_sync(FULL_MASK, v, 0);
        else
            v = __shfl_sync(FULL_MASK, v, 1);
        break;
    case FAULT_LANE_RETURNED:
        if (lane == 31) return;
        v = __shfl_sync(FULL_MASK, v, 0);
        break;
    case FAULT_OTHER_MASK:
        v = __shfl_sync(lane >= 16 && lane < 31 ? 0xFFFF0000u : FULL_MASK, v, 20);
        break;
    default:
        v = __shfl_xor_sync(FULL_MASK, v, 1);
        break;
    }
    out[lane] = v;
}
extern "C" int launch_masks(enum fault fault, float *out, const float *in, int n, void *stream) {
    if (n < WARP) return cudaErrorInvalidValue;
    return GPU_LAUNCH(masks, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, (int)fault, out, in);
}

/* out[i] = in[page of i, i]: pages of 16 floats, found through a table that ends with 0x7FFFFFFF. */
template <int N>
static __global__ void bounds(int fault, float *out, const float *in, const uint32_t *table,
                              int n) {
    __shared__ float words[N];
    GPU_DYN_SHARED(float, dynamic);
    const int i = (int)threadIdx.x;
    words[i] = in[i];
    dynamic[i] = in[i];
    __syncthreads();
    float v = words[N - 1 - i] + dynamic[N - 1 - i];
    const float *volatile all = words; /* else UBSan knows the end before ASan does */
    if (fault == FAULT_PAST_TEMPLATE_SHARED) v += all[i + 1];
    if (fault == FAULT_PAST_DYNAMIC) v += dynamic[i + 1];
    if (fault == FAULT_PAST_ROW) v += in[n - N + i + 1];
    uint32_t page = table[i / 16];
    if (fault == FAULT_PAST_TABLE) page = table[N / 16]; /* not in use */
    if (fault == FAULT_OTHER_PAGE) page = page + 1;      /* a neighbour's */
    if (fault == FAULT_PAST_PAGES) page = (uint32_t)n / 16;
    out[i] = v + in[(size_t)page * 16 + (size_t)(i % 16)];
}
static __global__ void past_shared(float *out, const float *in) {
    __shared__ float words[WARP];
    const int i = (int)threadIdx.x;
    words[i] = in[i];
    __syncthreads();
    const float *volatile all = words;
    out[i] = all[i + 1];
}
extern "C" int launch_bounds(enum fault fault, float *out, const float *in, const uint32_t *table,
                             int n, void *stream) {
    if (fault == FAULT_PAST_SHARED)
        return GPU_LAUNCH(past_shared, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, out, in);
    return GPU_LAUNCH((bounds<WARP>), dim3(1), dim3(WARP), WARP * sizeof(float),
                      (cudaStream_t)stream, (int)fault, out, in, table, n);
}

static __global__ void alignment(int fault, float *out, const float *in) {
    __shared__ __align__(16) float words[8 * WARP];
    const int i = (int)threadIdx.x, skew = fault == FAULT_NONE ? 0 : 1;
    uint32_t r[4] = {};
    uint4 v = make_uint4(0, 0, 0, 0);
    for (int j = i; j < 8 * WARP; j += WARP)
        words[j] = in[j];
    __syncwarp();
    switch (fault) {
    case FAULT_MISALIGNED_LOAD:
        v = load16(in + 4 * i + skew);
        break;
    case FAULT_MISALIGNED_CAST:
        v.x = ((const uint4 *)(in + 4 * i + skew))->x;
        break;
    case FAULT_MISALIGNED_LDMATRIX:
        ldmatrix_x4(r, words + 4 * i + skew);
        break;
    case FAULT_LDMATRIX_OF_GLOBAL:
        ldmatrix_x4(r, in + 4 * i);
        break;
    case FAULT_MISALIGNED_CP_ASYNC:
        cp_async16(words + 4 * i, in + 4 * i + skew, true);
        break;
    default:
        v = load16(in + 4 * i);
        ldmatrix_x4(r, words + 4 * i);
        cp_async16(words + 4 * WARP + 4 * i, in + 4 * i, true);
        break;
    }
    cp_async_commit();
    cp_async_wait<0>();
    out[i] = __uint_as_float(v.x) + (float)(r[0] & 1);
}
extern "C" int launch_alignment(enum fault fault, float *out, const float *in, int n,
                                void *stream) {
    if (n < 8 * WARP) return cudaErrorInvalidValue;
    return GPU_LAUNCH(alignment, dim3(1), dim3(WARP), 0, (cudaStream_t)stream, (int)fault, out, in);
}

static __global__ void shape(float *out, int last) {
    GPU_DYN_SHARED(float, dynamic);
    if (threadIdx.x != 0) return;
    dynamic[last] = 1.0f;
    out[0] = dynamic[last];
}
extern "C" int launch_shape(float *out, int blocks, int n_threads, int smem, bool opt_in,
                            void *stream) {
    const int asked = opt_in ? smem : 0;
    cudaError_t error =
        cudaFuncSetAttribute(shape, cudaFuncAttributeMaxDynamicSharedMemorySize, asked);
    if (error) return error;
    return GPU_LAUNCH(shape, dim3((unsigned)blocks), dim3((unsigned)n_threads), (size_t)smem,
                      (cudaStream_t)stream, out, smem / 4 - 1);
}
