/* gemm.cu: c[m, n] = sum_k a[m, k] b[n, k], bf16 in, f32 sums and out.
 *
 *   A block has 4 warps and computes a tile of 32 rows by BN columns; K goes by in slices of 32:
 *
 *   shared, two slices:  | a 32 x 32 | b BN x 32 |   | a | b |     rows padded to 40: no bank conflicts
 *                          computed on                filled by cp.async meanwhile
 *
 *   warp w: rows 16 (w % 2) ..., columns BN/2 (w / 2) ...; each mma takes 16 x 8 with 16 of K.
 *
 * Rows and columns past the end are filled with zero and not stored. K is summed in one order for every
 * m and n and both tiles, so a row's bits do not depend on the other rows. */
#include "kernels/cuda/gpu.h"
#include "tests/gpusim/kernels/kernels.h"

enum { BM = 32, BK = 32, LD = BK + 8, THREADS = 128 };

/* One slice of `rows` rows by BK from src[n_rows, k]: 4 chunks of 8 elements a row. */
template <int ROWS>
GPU_INLINE void fill(bf16 *tile, const bf16 *src, int row0, int n_rows, int k0, int k) {
    GPU_UNROLL
    for (int i = (int)threadIdx.x; i < ROWS * (BK / 8); i += THREADS) {
        const int row = i / (BK / 8), column = i % (BK / 8) * 8;
        const bool ok = row0 + row < n_rows && k0 + column < k;
        cp_async16(tile + row * LD + column, src + (size_t)(row0 + row) * (size_t)k + k0 + column,
                   ok);
    }
}

/* sum[BN / 16][4] += the warp's part of one slice. */
template <int BN> GPU_INLINE void multiply(float (*sum)[4], const bf16 *a, const bf16 *b) {
    const int lane = (int)threadIdx.x % WARP, w = (int)threadIdx.x / WARP;
    const int row = w % 2 * 16 + lane % 16, column = w / 2 * (BN / 2) + lane / 16 * 8 + lane % 8;
    GPU_UNROLL
    for (int k = 0; k < BK; k += 16) {
        uint32_t fa[4], fb[4];
        ldmatrix_x4(fa, a + row * LD + k + lane / 16 * 8);
        GPU_UNROLL
        for (int n = 0; n < BN / 32; n++) {
            ldmatrix_x4(fb, b + (column + 16 * n) * LD + k + lane / 8 % 2 * 8);
            mma_m16n8k16(sum[2 * n], fa, fb);
            mma_m16n8k16(sum[2 * n + 1], fa, fb + 2);
        }
    }
}

template <int BN>
GPU_INLINE void gemm_tile(float *c, const bf16 *a, const bf16 *b, int m, int n, int k,
                          bf16 *tiles) {
    const int row0 = (int)blockIdx.y * BM, column0 = (int)blockIdx.x * BN;
    const int n_slices = (k + BK - 1) / BK, slice_size = (BM + BN) * LD;
    float sum[BN / 16][4] = {};
    fill<BM>(tiles, a, row0, m, 0, k);
    fill<BN>(tiles + BM * LD, b, column0, n, 0, k);
    cp_async_commit();
    for (int slice = 0; slice < n_slices; slice++) {
        bf16 *now = tiles + slice % 2 * slice_size, *next = tiles + (slice + 1) % 2 * slice_size;
        if (slice + 1 < n_slices) {
            fill<BM>(next, a, row0, m, (slice + 1) * BK, k);
            fill<BN>(next + BM * LD, b, column0, n, (slice + 1) * BK, k);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        multiply<BN>(sum, now, now + BM * LD);
        __syncthreads(); /* before the slice after next overwrites this one */
    }
    const int lane = (int)threadIdx.x % WARP, w = (int)threadIdx.x / WARP;
    GPU_UNROLL
    for (int i = 0; i < BN / 16 * 4; i++) {
        const int row = row0 + w % 2 * 16 + lane / 4 + i % 4 / 2 * 8;
        const int column = column0 + w / 2 * (BN / 2) + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < m && column < n) c[(size_t)row * (size_t)n + column] = sum[i / 4][i % 4];
    }
}

template <int BN>
static __global__ void gemm_static(float *c, const bf16 *a, const bf16 *b, int m, int n, int k) {
    __shared__ __align__(16) bf16 tiles[2 * (BM + BN) * LD];
    gemm_tile<BN>(c, a, b, m, n, k, tiles);
}
template <int BN>
static __global__ void gemm_dynamic(float *c, const bf16 *a, const bf16 *b, int m, int n, int k) {
    GPU_DYN_SHARED(bf16, tiles);
    gemm_tile<BN>(c, a, b, m, n, k, tiles);
}

extern "C" int launch_gemm(float *c, const uint16_t *a, const uint16_t *b, int m, int n, int k,
                           bool wide, void *stream) {
    const cudaStream_t s = (cudaStream_t)stream;
    const unsigned rows = (unsigned)((m + BM - 1) / BM);
    if (k % 8) return cudaErrorInvalidValue;
    if (!wide)
        return GPU_LAUNCH((gemm_static<32>), dim3((unsigned)((n + 31) / 32), rows), dim3(THREADS),
                          0, s, c, (const bf16 *)a, (const bf16 *)b, m, n, k);
    return GPU_LAUNCH((gemm_dynamic<64>), dim3((unsigned)((n + 63) / 64), rows), dim3(THREADS),
                      2 * (BM + 64) * LD * sizeof(bf16), s, c, (const bf16 *)a, (const bf16 *)b, m,
                      n, k);
}
