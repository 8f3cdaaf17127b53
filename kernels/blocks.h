/* blocks.h: the quantised types of GGUF that are only read (q5_0, q5_1, q4_k, q5_k, q6_k), taken apart
 * in steps of 32 numbers. For the backends and dtype.c alone; layouts in blocks.c. */
#ifndef GERYON_BLOCKS_H
#define GERYON_BLOCKS_H

#include "kernels/kernels.h"

enum { STEP = 32 };

/* 32 numbers of a row:  w[k] = d * n[k] + m, the sum rounded once. In q6_k every 16 have an integer
 * scale, which is a part of n here: d * scale and scale * n are both exact, so the products are the
 * same number. */
struct block_step {
    float d, m;      /* m: 0 where the type has no minima */
    int16_t n[STEP]; /* within +-4096 */

    /* As stored. */
    uint16_t f16_d,
        f16_m;        /* f16_m: 0 where there is none; in a K type what `min` is multiplied by */
    uint8_t scale[2]; /* K types; q6_k: int8, of either half */
    uint8_t min;      /* q4_k, q5_k */
    uint8_t q[STEP];  /* 0 .. 15, 31 or 63 */
};

/* Is it one of these types? */
static inline bool block_is_read_only(enum dtype dtype) {
    return dtype >= DTYPE_Q5_0 && dtype <= DTYPE_Q6_K;
}

/* Does a sum of products need the sum of x as well (w = d * q + m)? Any dtype. */
static inline bool block_has_minima(enum dtype dtype) {
    return dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K;
}

/* Steps 0 .. 7 of a block of 256, step 0 of one of 32. */
void block_step(enum dtype dtype, const uint8_t *block, uint32_t step, struct block_step *out);
/* Its two halves: what is stored, then d, m and n of that. */
void block_step_load(enum dtype dtype, const uint8_t *block, uint32_t step, struct block_step *out);
void block_step_finish(enum dtype dtype, struct block_step *s);
/* Its 32 numbers. */
void block_step_widen(enum dtype dtype, const struct block_step *s, float *out);
/* n numbers (whole blocks) of a row. */
void blocks_widen(enum dtype dtype, const uint8_t *blocks, size_t n, float *out);

#endif
