/* pack_avx2.h: the packed matrix of the avx2 table; layout in pack_avx2.c. */
#ifndef GERYON_KERNELS_CPU_PACK_AVX2_H
#define GERYON_KERNELS_CPU_PACK_AVX2_H

#include "kernels/kernels.h"

/* Bytes of one step: 32 of K, 32 output columns. */
uint32_t pack_step_bytes(enum dtype dtype);

#endif
