/* kernels.h: small kernels that the simulator is tested with; C or C++. Pointers are device memory,
 * bf16 is uint16_t. Every launcher queues its work on the stream and returns a cudaError_t. */
#ifndef GERYON_GPUSIM_KERNELS_H
#define GERYON_GPUSIM_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[rows, d] = x / sqrt(mean(x^2) + eps) * w. bf16; d a multiple of 8, at most 2048. */
int launch_rmsnorm(uint16_t *y, const uint16_t *x, const uint16_t *w, int rows, int d, float eps,
                   void *stream);

/* c[m, n] = a[m, k] b[n, k]^T: bf16 in, f32 out; k a multiple of 8. wide: the 64-column tile in
 * dynamic shared memory, else the 32-column one in static arrays; the sums are the same. */
int launch_gemm(float *c, const uint16_t *a, const uint16_t *b, int m, int n, int k, bool wide,
                void *stream);

/* Paged decode attention, bf16 with D = 64; see attend.cu. work: rows * heads * n_splits * 66 floats. */
struct attend_shape {
    int rows, heads, kv_heads, max_pages, n_splits;
};
enum { ATTEND_D = 64, ATTEND_PAGE = 16, ATTEND_SPLIT = 64 };
int launch_attend(float *o, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                  const uint32_t *block_table, const int32_t *row_seq, const int32_t *row_len,
                  float *work, struct attend_shape shape, void *stream);

/* One warp writes helper and shuffle results of v[32] side by side: out[6, 32]. */
int launch_warp_helpers(float *out, const float *v, void *stream);
/* 2^v[n], and the four signed bytes of each word of bytes[n] as bf16: pairs[n, 2]. */
int launch_number_helpers(float *exponentials, uint32_t *pairs, const float *v,
                          const uint32_t *bytes, int n, void *stream);
/* out[0] = sum, out[1] = max of v[n_threads] over one block, twice in a row. */
int launch_block_helpers(float *out, const float *v, int n_threads, void *stream);
/* d[16, 8] += a[16, 16] b[16, 8], row-major; 16-bit elements as bf16 or f16. */
int launch_mma_16(float *d, const uint16_t *a, const uint16_t *b, bool half, void *stream);
/* d[16, 8] += a[16, 32] b[32, 8]. */
int launch_mma_s8(int32_t *d, const int8_t *a, const int8_t *b, void *stream);
/* out[2, 4, 32]: ldmatrix of in[32, 8] without and with transposition. */
int launch_ldmatrix(uint32_t *out, const uint16_t *in, void *stream);
/* n_threads add 1 to n[0], and their index to n[1]; n[2] receives the largest. */
int launch_atomics(uint32_t *n, int n_threads, void *stream);
/* out[block] = what shared memory holds at the start of a block, as a sum. */
int launch_fresh_shared(float *out, int blocks, void *stream);
/* The halves of a warp exchange for themselves, a different number of times: out[32] = sum of v over
 * the half, by rotations, times 2 for the upper half. */
int launch_half_warps(float *out, const float *v, void *stream);
/* Threads 40 .. 63 return before the barrier: out[i] = 40 - i for the others. */
int launch_early_return(float *out, void *stream);
/* out[0, lane]: 1 where cp.async's destination is a NaN before the wait; [1, lane], [2, lane]: the first
 * float of a copy and of a copy that is not ok, after it. */
int launch_copy_states(float *out, const float *in, void *stream);
/* p[0..n) += 1: a step that a chain of launches can be read from. */
int launch_increment(int32_t *p, int n, void *stream);
/* p[i] = 2 * p[i]. */
int launch_double(int32_t *p, int n, void *stream);

/* out[0] = in[0], both pointers within a struct. */
struct two_pointers {
    float *out;
    int n, m;
    const float *in;
};
int launch_two_pointers(struct two_pointers args, void *stream);

/* Kernels with a bug where asked for (faults.cu). out has 256 floats, in has n. */
enum fault {
    FAULT_NONE,
    FAULT_NO_BARRIER,
    FAULT_NO_BARRIER_AFTER_FIRST,
    FAULT_NO_SYNCWARP,
    FAULT_NO_BARRIER_BEFORE_REUSE,
    FAULT_WAIT_TOO_WEAK,
    FAULT_NO_WAIT,
    FAULT_TWO_IN_FLIGHT,
    FAULT_LANE_OUTSIDE_MASK,
    FAULT_NOT_IN_OWN_MASK,
    FAULT_LANE_ELSEWHERE,
    FAULT_LANE_RETURNED,
    FAULT_OTHER_MASK,
    FAULT_DIVERGENT_BARRIER,
    FAULT_PARTIAL_BARRIER,
    FAULT_PAST_ROW,
    FAULT_PAST_SHARED,
    FAULT_PAST_TEMPLATE_SHARED,
    FAULT_PAST_DYNAMIC,
    FAULT_PAST_TABLE,
    FAULT_PAST_PAGES,
    FAULT_OTHER_PAGE,
    FAULT_MISALIGNED_LOAD,
    FAULT_MISALIGNED_CAST,
    FAULT_MISALIGNED_LDMATRIX,
    FAULT_MISALIGNED_CP_ASYNC,
    FAULT_LDMATRIX_OF_GLOBAL,
};
int launch_barriers(enum fault fault, float *out, const float *in, int n, void *stream);
int launch_copies(enum fault fault, float *out, const float *in, int n, void *stream);
int launch_masks(enum fault fault, float *out, const float *in, int n, void *stream);
int launch_bounds(enum fault fault, float *out, const float *in, const uint32_t *table, int n,
                  void *stream);
int launch_alignment(enum fault fault, float *out, const float *in, int n, void *stream);
/* A launch of n_threads with smem bytes, opted in or not; grid 0 where blocks is 0. */
int launch_shape(float *out, int blocks, int n_threads, int smem, bool opt_in, void *stream);

#ifdef __cplusplus
}
#endif
#endif
