/* blocks.c: the layouts of GGUF's types of 5 bits and of its blocks of 256 numbers (8 steps of 32).
 *
 *   q5_0   f16 d | u32 high bits, of number i bit i | 16 bytes of nibbles, as q4_0                 22
 *   q5_1   f16 d, f16 m | the same                                                                 24
 *   q4_k   f16 d, f16 m | 12 bytes of scales and minima | 128 bytes of nibbles                    144
 *   q5_k   the same, and before the nibbles 32 bytes of high bits: of number k of step s
 *          bit s of byte k                                                                        176
 *   q6_k   128 bytes of nibbles | 64 bytes of high pairs | int8 scale[16], of 16 numbers | f16 d  210
 *
 * Byte k of the nibbles of q4_k and q5_k: number k of steps 2 j (low) and 2 j + 1 (high half), 32 bytes
 * a j. Either half of a q6_k block, steps t = 0 .. 3 of it, has 64 bytes of nibbles: 32 for t = 0
 * (low) and 2 (high), 32 for t = 1 and 3; and 32 of pairs: bits 2 t and 2 t + 1 of byte k.
 *
 * Scales s and minima m of 6 bits, by step: 12 bytes
 *
 *   0 .. 3   low six bits s[0 .. 3], above them the top two of s[4 .. 7]
 *   4 .. 7   low six bits m[0 .. 3], above them the top two of m[4 .. 7]
 *   8 .. 11  low four bits of s[4 .. 7], above them those of m[4 .. 7] */
#include <string.h>

#include "kernels/blocks.h"

static uint16_t u16_at(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static void split_scales(const uint8_t p[12], uint32_t step, struct block_step *out) {
    uint32_t i = step % 4;
    out->scale[0] = step < 4 ? p[i] & 63 : (uint8_t)((p[8 + i] & 15) | p[i] >> 6 << 4);
    out->min = step < 4 ? p[4 + i] & 63 : (uint8_t)(p[8 + i] >> 4 | p[4 + i] >> 6 << 4);
}

static void split_q5(const uint8_t *p, struct block_step *out) {
    uint32_t high;
    memcpy(&high, p, sizeof high);
    p += sizeof high;
    for (uint32_t i = 0; i < STEP / 2; i++) {
        out->q[i] = (uint8_t)((p[i] & 15) | (high >> i & 1) << 4);
        out->q[i + STEP / 2] = (uint8_t)(p[i] >> 4 | (high >> (i + STEP / 2) & 1) << 4);
    }
}

static void split_k(const uint8_t *nibbles, const uint8_t *high, uint32_t step,
                    struct block_step *out) {
    const uint8_t *p = nibbles + step / 2 * STEP;
    for (uint32_t k = 0; k < STEP; k++)
        out->q[k] = (uint8_t)(p[k] >> step % 2 * 4 & 15);
    for (uint32_t k = 0; high && k < STEP; k++)
        out->q[k] = (uint8_t)(out->q[k] | (high[k] >> step & 1) << 4);
}

static void split_q6_k(const uint8_t *block, uint32_t step, struct block_step *out) {
    uint32_t half = step / 4, t = step % 4;
    const uint8_t *low = block + 64 * half + t % 2 * STEP, *high = block + 128 + 32 * half;
    for (uint32_t k = 0; k < STEP; k++)
        out->q[k] = (uint8_t)((low[k] >> t / 2 * 4 & 15) | (high[k] >> 2 * t & 3) << 4);
    memcpy(out->scale, block + 192 + (size_t)step * 2, 2);
    out->f16_d = u16_at(block + 208);
}

void block_step_load(enum dtype dtype, const uint8_t *block, uint32_t step,
                     struct block_step *out) {
    *out = (struct block_step){.f16_d = u16_at(block)};
    if (block_has_minima(dtype)) out->f16_m = u16_at(block + 2);
    switch ((int)dtype) {
    case DTYPE_Q5_0:
        split_q5(block + 2, out);
        break;
    case DTYPE_Q5_1:
        split_q5(block + 4, out);
        break;
    case DTYPE_Q4_K:
        split_scales(block + 4, step, out);
        split_k(block + 16, NULL, step, out);
        break;
    case DTYPE_Q5_K:
        split_scales(block + 4, step, out);
        split_k(block + 48, block + 16, step, out);
        break;
    case DTYPE_Q6_K:
        split_q6_k(block, step, out);
        break;
    default:
        ASSERT(block_is_read_only(dtype));
    }
}

void block_step_finish(enum dtype dtype, struct block_step *s) {
    int16_t zero = dtype == DTYPE_Q5_0 ? 16 : dtype == DTYPE_Q6_K ? 32 : 0;
    for (uint32_t k = 0; k < STEP; k++)
        s->n[k] = (int16_t)(s->q[k] - zero);
    s->d = f16_to_f32(s->f16_d);
    s->m = f16_to_f32(s->f16_m);
    if (dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K) {
        s->d *= (float)s->scale[0];
        s->m *= -(float)s->min;
    }
    if (dtype == DTYPE_Q6_K)
        for (uint32_t k = 0; k < STEP; k++)
            s->n[k] = (int16_t)(s->n[k] * (int8_t)s->scale[k / 16]);
}

void block_step(enum dtype dtype, const uint8_t *block, uint32_t step, struct block_step *out) {
    block_step_load(dtype, block, step, out);
    block_step_finish(dtype, out);
}

void block_step_widen(enum dtype dtype, const struct block_step *s, float *out) {
    if (block_has_minima(dtype))
        for (uint32_t k = 0; k < STEP; k++)
            out[k] = s->d * (float)s->n[k] + s->m;
    else
        for (uint32_t k = 0; k < STEP; k++)
            out[k] = s->d * (float)s->n[k];
}

void blocks_widen(enum dtype dtype, const uint8_t *blocks, size_t n, float *out) {
    uint32_t steps = dtype_block(dtype) / STEP;
    size_t bytes = dtype_row_bytes(dtype, dtype_block(dtype));
    struct block_step s;
    for (size_t i = 0; i < n / STEP; i++) {
        block_step(dtype, blocks + i / steps * bytes, (uint32_t)(i % steps), &s);
        block_step_widen(dtype, &s, out + i * STEP);
    }
}
