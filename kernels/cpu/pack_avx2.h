/* pack_avx2.h: the packed matrix of the avx2, avx512 and amx tables; layout in pack_avx2.c. Inline, so that
 * a kernel written for one type sees numbers. */
#ifndef GERYON_KERNELS_CPU_PACK_AVX2_H
#define GERYON_KERNELS_CPU_PACK_AVX2_H

#include "kernels/blocks.h"

enum {
    PACK_HEAD_STEPS = 8,      /* steps of a K type that share a head */
    PACK_NIBBLES_BYTES = 512, /* of a step; what else it has follows */
};

/* Bytes of one step: 32 of K, 32 output columns. */
static inline uint32_t pack_step_bytes(enum dtype dtype) {
    switch ((int)dtype) {
    case DTYPE_F32:
        return 4096;
    case DTYPE_F16:
    case DTYPE_BF16:
        return 2048;
    case DTYPE_Q8_0:
        return 1088;
    case DTYPE_Q4_1:
        return 640;
    case DTYPE_Q5_0:
    case DTYPE_Q5_K:
        return 704;
    case DTYPE_Q5_1:
        return 768;
    case DTYPE_Q6_K:
        return 832;
    default: /* q4_0, q4_k */
        return 576;
    }
}

/* Bytes of a head, in front of steps 0, 8, 16 ..; 0: the type has none. */
static inline uint32_t pack_head_bytes(enum dtype dtype) {
    return dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K ? 128 : dtype == DTYPE_Q6_K ? 64 : 0;
}

/* Where step i of a group begins, and the head that holds for it. */
static inline size_t pack_step_at(enum dtype dtype, uint32_t i) {
    size_t heads = i / PACK_HEAD_STEPS + 1;
    return (size_t)i * pack_step_bytes(dtype) + heads * pack_head_bytes(dtype);
}
static inline size_t pack_head_at(enum dtype dtype, uint32_t i) {
    return pack_step_at(dtype, i - i % PACK_HEAD_STEPS) - pack_head_bytes(dtype);
}

/* Bytes of n steps, from one that a head stands before (in a K type n is a multiple of eight). */
static inline size_t pack_bytes(enum dtype dtype, uint32_t n) {
    return (size_t)n * pack_step_bytes(dtype) +
           (size_t)n / PACK_HEAD_STEPS * pack_head_bytes(dtype);
}

/* A number of steps that takes about `bytes`, and ends before a head. */
static inline uint32_t pack_run(enum dtype dtype, uint32_t bytes) {
    uint32_t n = bytes / pack_step_bytes(dtype);
    return pack_head_bytes(dtype) ? n - n % PACK_HEAD_STEPS : n;
}

/* Where a step of blocks has what follows its numbers: f16, in a K type bytes. */
static inline uint32_t pack_scales_at(enum dtype dtype) {
    bool fifth = dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q5_K;
    if (dtype == DTYPE_Q8_0) return 1024;
    return PACK_NIBBLES_BYTES + (fifth ? 128 : dtype == DTYPE_Q6_K ? 256 : 0);
}

/* How far ahead a stream is fetched, across the border of a memory page where the hardware stops: into
 * the second-level cache, to which more lines can be on their way at once than to the first. Where the
 * products of a step take longer than its way from memory, that is every line. */
static inline void pack_fetch_ahead(const uint8_t *step, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(step + 4096 + i, 0, 2);
}

/* The same for int8 products of so few rows that they wait for memory: every second line, since the
 * hardware fetches lines in pairs. One prefetch a line keeps its own stream from running ahead: an EPYC
 * then decodes a q4_0 model a tenth slower. (With one for two lines, 32 rows take a tenth longer.) */
static inline void pack_fetch_stream(const uint8_t *step, uint32_t bytes) {
#pragma GCC unroll 32
    for (uint32_t i = 0; i < bytes; i += 128)
        __builtin_prefetch(step + 3072 + i, 0, 2);
}

/* Bit at which element j (0 .. 7) of a dword of nibbles begins: 0 .. 3 in the low halves of bytes
 * 0 .. 3, 4 .. 7 in the high ones, so that a mask leaves bytes of consecutive elements. */
#define PACK_NIBBLE(j) ((j) % 4 * 8 + (j) / 4 * 4)

#endif
