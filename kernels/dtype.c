/* dtype.c: how numbers are stored: f32, f16, bf16 and the blocks of GGUF (those of 5 bits, and of
 * 256 numbers, in blocks.c). Widening is exact (where a minimum is added it rounds once, in
 * d * q + m); narrowing rounds to nearest even. */
#include <math.h>
#include <string.h>

#include "kernels/blocks.h"

enum { BLOCK = 32 };

static const struct {
    const char *name;
    uint16_t block, bytes; /* elements and bytes of one block */
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", 1, 4},        [DTYPE_F16] = {"f16", 1, 2},
    [DTYPE_BF16] = {"bf16", 1, 2},      [DTYPE_Q8_0] = {"q8_0", BLOCK, 34},
    [DTYPE_Q4_0] = {"q4_0", BLOCK, 18}, [DTYPE_Q4_1] = {"q4_1", BLOCK, 20},
    [DTYPE_Q5_0] = {"q5_0", BLOCK, 22}, [DTYPE_Q5_1] = {"q5_1", BLOCK, 24},
    [DTYPE_Q4_K] = {"q4_k", 256, 144},  [DTYPE_Q5_K] = {"q5_k", 256, 176},
    [DTYPE_Q6_K] = {"q6_k", 256, 210},
};

const char *dtype_name(enum dtype dtype) {
    ASSERT(dtype < DTYPE_COUNT);
    return dtypes[dtype].name;
}

int dtype_parse(const char *name) {
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0) return i;
    return -1;
}

const char *activations_name(enum activations activations) {
    static const char *const names[ACTIVATIONS_COUNT] = {"f32", "bf16", "int8"};
    ASSERT(activations < ACTIVATIONS_COUNT);
    return names[activations];
}

uint32_t dtype_block(enum dtype dtype) {
    ASSERT(dtype < DTYPE_COUNT);
    return dtypes[dtype].block;
}

bool dtype_narrows(enum dtype dtype) {
    ASSERT(dtype < DTYPE_COUNT);
    return dtype <= DTYPE_Q4_1;
}

size_t dtype_row_bytes(enum dtype dtype, size_t n) {
    ASSERT(dtype < DTYPE_COUNT);
    ASSERT(n % dtypes[dtype].block == 0);
    return n / dtypes[dtype].block * dtypes[dtype].bytes;
}

/* ---- one number ------------------------------------------------------------------------------- */

static uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return bits_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent > 0) return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float tiny = (float)mantissa * 0x1p-24f; /* subnormal: exact in f32 */
    return sign ? -tiny : tiny;
}

/* Drop the low `bits` bits of u, rounding to nearest even. */
static uint32_t shift_rounded(uint32_t u, uint32_t bits) {
    uint32_t half = 1u << (bits - 1), odd = u >> bits & 1;
    return (u + half - 1 + odd) >> bits;
}

uint16_t f32_to_f16(float f) {
    uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) /* NaN stays NaN, quiet */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above */
    if (magnitude >= 0x38800000)                                   /* normal in f16 */
        return (uint16_t)(sign | shift_rounded(magnitude - 0x38000000, 13));
    if (magnitude < 0x33000000) return (uint16_t)sign; /* below half of the least subnormal */
    uint32_t shift = 126 - (magnitude >> 23);          /* 14 .. 24 */
    return (uint16_t)(sign | shift_rounded((magnitude & 0x7fffff) | 0x800000, shift));
}

uint16_t f32_to_bf16(float f) {
    uint32_t u = float_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- blocks ----------------------------------------------------------------------------------- */

static float load_f16(const uint8_t *p) {
    return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* Store a scale and return it as stored; what f16 cannot hold is cut to its range. */
static float store_f16(uint8_t *p, float f) {
    if (!(f <= 65504.0f)) f = f > 0 ? 65504.0f : 0.0f;
    if (f < -65504.0f) f = -65504.0f;
    uint16_t h = f32_to_f16(f);
    p[0] = (uint8_t)h, p[1] = (uint8_t)(h >> 8);
    return f16_to_f32(h);
}

/* Nearest integer to x / d + offset within lo .. hi; 0 / 0 and NaN give the offset. */
static int nearest(float x, float d, int offset, int lo, int hi) {
    double r = d != 0 ? (double)x / (double)d : 0;
    if (isnan(r)) r = 0;
    r += offset;
    if (r < lo) return lo;
    if (r > hi) return hi;
    int q = (int)nearbyint(r);
    return q;
}

static void q8_0_widen(const uint8_t *b, float *dst) {
    float d = load_f16(b);
    for (int i = 0; i < BLOCK; i++)
        dst[i] = d * (float)(int8_t)b[2 + i];
}

static void q4_widen(const uint8_t *nibbles, float d, float m, float zero, float *dst) {
    for (int i = 0; i < BLOCK / 2; i++) {
        dst[i] = d * ((float)(nibbles[i] & 15) - zero) + m;
        dst[i + BLOCK / 2] = d * ((float)(nibbles[i] >> 4) - zero) + m;
    }
}

static void q8_0_narrow(const float *src, uint8_t *b) {
    float most = 0;
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(src[i]) > most) most = fabsf(src[i]);
    float d = store_f16(b, most / 127);
    for (int i = 0; i < BLOCK; i++)
        b[2 + i] = (uint8_t)(int8_t)nearest(src[i], d, 0, -127, 127);
}

static void q4_0_narrow(const float *src, uint8_t *b) {
    float most = 0;
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(src[i]) > fabsf(most)) most = src[i];
    float d = store_f16(b, most / -8);
    for (int i = 0; i < BLOCK / 2; i++)
        b[2 + i] =
            (uint8_t)(nearest(src[i], d, 8, 0, 15) | nearest(src[i + BLOCK / 2], d, 8, 0, 15) << 4);
}

static void q4_1_narrow(const float *src, uint8_t *b) {
    float least = INFINITY, most = -INFINITY;
    for (int i = 0; i < BLOCK; i++) {
        if (src[i] < least) least = src[i];
        if (src[i] > most) most = src[i];
    }
    if (!(least <= most)) least = most = 0; /* nothing but NaN */
    float d = store_f16(b, most / 15 - least / 15), m = store_f16(b + 2, least);
    for (int i = 0; i < BLOCK / 2; i++)
        b[4 + i] = (uint8_t)(nearest(src[i] - m, d, 0, 0, 15) |
                             nearest(src[i + BLOCK / 2] - m, d, 0, 0, 15) << 4);
}

void dtype_to_f32(enum dtype dtype, const void *src, size_t n, float *dst) {
    ASSERT(n % dtype_block(dtype) == 0);
    const uint8_t *b = src;
    uint16_t h;
    switch (dtype) {
    case DTYPE_F32:
        if (n) memcpy(dst, src, n * sizeof *dst);
        break;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            memcpy(&h, b + 2 * i, 2), dst[i] = f16_to_f32(h);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            memcpy(&h, b + 2 * i, 2), dst[i] = bf16_to_f32(h);
        break;
    case DTYPE_Q8_0:
        for (size_t i = 0; i < n; i += BLOCK, b += 34)
            q8_0_widen(b, dst + i);
        break;
    case DTYPE_Q4_0:
        for (size_t i = 0; i < n; i += BLOCK, b += 18)
            q4_widen(b + 2, load_f16(b), 0, 8, dst + i);
        break;
    case DTYPE_Q4_1:
        for (size_t i = 0; i < n; i += BLOCK, b += 20)
            q4_widen(b + 4, load_f16(b), load_f16(b + 2), 0, dst + i);
        break;
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
        blocks_widen(dtype, b, n, dst);
        break;
    case DTYPE_COUNT:
        ASSERT(dtype < DTYPE_COUNT);
    }
}

void dtype_from_f32(enum dtype dtype, const float *src, size_t n, void *dst) {
    ASSERT(n % dtype_block(dtype) == 0);
    uint8_t *b = dst;
    uint16_t h;
    switch (dtype) {
    case DTYPE_F32:
        if (n) memcpy(dst, src, n * sizeof *src);
        break;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            h = f32_to_f16(src[i]), memcpy(b + 2 * i, &h, 2);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            h = f32_to_bf16(src[i]), memcpy(b + 2 * i, &h, 2);
        break;
    case DTYPE_Q8_0:
        for (size_t i = 0; i < n; i += BLOCK, b += 34)
            q8_0_narrow(src + i, b);
        break;
    case DTYPE_Q4_0:
        for (size_t i = 0; i < n; i += BLOCK, b += 18)
            q4_0_narrow(src + i, b);
        break;
    case DTYPE_Q4_1:
        for (size_t i = 0; i < n; i += BLOCK, b += 20)
            q4_1_narrow(src + i, b);
        break;
    default:
        ASSERT(dtype_narrows(dtype));
    }
}
