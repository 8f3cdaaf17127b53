/* pack_avx2.h: the packed matrix of the avx2 and avx512 tables; layout in pack_avx2.c. */
#ifndef GERYON_KERNELS_CPU_PACK_AVX2_H
#define GERYON_KERNELS_CPU_PACK_AVX2_H

#include "kernels/kernels.h"

/* Bytes of one step: 32 of K, 32 output columns. */
uint32_t pack_step_bytes(enum dtype dtype);

/* Bit at which element j (0 .. 7) of a dword of nibbles begins: 0 .. 3 in the low halves of bytes
 * 0 .. 3, 4 .. 7 in the high ones, so that a mask leaves bytes of consecutive elements. */
#define PACK_NIBBLE(j) ((j) % 4 * 8 + (j) / 4 * 4)

#endif
