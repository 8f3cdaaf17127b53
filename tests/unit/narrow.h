/* narrow.h: numbers into the block types that the product only reads, plainly (a file's writer would
 * search for better scales), for tests that go over all types. */
#ifndef GERYON_NARROW_H
#define GERYON_NARROW_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

static inline float narrow_f16(float f, uint8_t *out) {
    uint16_t h = f32_to_f16(f);
    memcpy(out, &h, 2);
    return f16_to_f32(h);
}

/* x / d, rounded, within lo .. hi; 0 where d is. */
static inline int narrow_nearest(float x, float d, int lo, int hi) {
    float r = d != 0 ? nearbyintf(x / d) : 0;
    return r < (float)lo ? lo : r > (float)hi ? hi : (int)r;
}

/* The least and the largest, and the one of the largest magnitude. */
static inline void narrow_range(const float *x, int n, float *least, float *most, float *extreme) {
    *least = *most = x[0];
    for (int i = 1; i < n; i++)
        *least = fminf(*least, x[i]), *most = fmaxf(*most, x[i]);
    *extreme = -*least > *most ? *least : *most;
}

static inline void narrow_q5(enum dtype dtype, const float *x, uint8_t *b) {
    float least, most, extreme, d, m = 0;
    narrow_range(x, 32, &least, &most, &extreme);
    bool minima = dtype == DTYPE_Q5_1;
    d = narrow_f16(minima ? (most - least) / 31 : extreme / -16, b);
    if (minima) m = narrow_f16(least, b + 2);
    b += minima ? 4 : 2;
    uint32_t high = 0;
    memset(b, 0, 20);
    for (int i = 0; i < 32; i++) {
        int zero = minima ? 0 : 16, q = narrow_nearest(x[i] - m, d, -zero, 31 - zero) + zero;
        b[4 + i % 16] = (uint8_t)(b[4 + i % 16] | (q & 15) << i / 16 * 4);
        high |= (uint32_t)(q >> 4) << i;
    }
    memcpy(b, &high, 4);
}

static inline void narrow_k(enum dtype dtype, const float *x, uint8_t *b) {
    int bits = dtype == DTYPE_Q5_K ? 5 : 4, top = (1 << bits) - 1;
    float scale[8], min[8], least, most, extreme, d = 0, m = 0;
    for (int s = 0; s < 8; s++) {
        narrow_range(x + 32 * s, 32, &least, &most, &extreme);
        least = fminf(least, 0);
        scale[s] = (most - least) / (float)top, min[s] = -least;
        d = fmaxf(d, scale[s]), m = fmaxf(m, min[s]);
    }
    d = narrow_f16(d / 63, b), m = narrow_f16(m / 63, b + 2);
    uint8_t *scales = b + 4, *high = b + 16, *nibbles = b + (bits == 5 ? 48 : 16);
    memset(scales, 0, dtype_row_bytes(dtype, 256) - 4);
    for (int s = 0; s < 8; s++) {
        int sc = narrow_nearest(scale[s], d, 0, 63), mn = narrow_nearest(min[s], m, 0, 63);
        if (s < 4) {
            scales[s] = (uint8_t)(scales[s] | sc), scales[4 + s] = (uint8_t)(scales[4 + s] | mn);
        } else {
            scales[4 + s] = (uint8_t)((sc & 15) | (mn & 15) << 4);
            scales[s - 4] = (uint8_t)(scales[s - 4] | sc >> 4 << 6);
            scales[s] = (uint8_t)(scales[s] | mn >> 4 << 6);
        }
        for (int k = 0; k < 32; k++) {
            int q = narrow_nearest(x[32 * s + k] + m * (float)mn, d * (float)sc, 0, top);
            uint8_t *to = &nibbles[s / 2 * 32 + k];
            *to = (uint8_t)(*to | (q & 15) << s % 2 * 4);
            if (q > 15) high[k] = (uint8_t)(high[k] | 1 << s);
        }
    }
}

static inline void narrow_q6_k(const float *x, uint8_t *b) {
    float scale[16], least, most, d = 0;
    for (int s = 0; s < 16; s++) {
        narrow_range(x + 16 * s, 16, &least, &most, &scale[s]);
        scale[s] /= -32;
        d = fmaxf(d, fabsf(scale[s]));
    }
    memset(b, 0, 208);
    d = narrow_f16(d / 127, b + 208);
    for (int i = 0; i < 256; i++) {
        int8_t s = (int8_t)narrow_nearest(scale[i / 16], d, -127, 127);
        int q = narrow_nearest(x[i], d * (float)s, -32, 31) + 32, in_half = i % 128;
        uint8_t *low = &b[i / 128 * 64 + in_half % 64];
        uint8_t *high = &b[128 + i / 128 * 32 + in_half % 32];
        *low = (uint8_t)(*low | (q & 15) << in_half / 64 * 4);
        *high = (uint8_t)(*high | q >> 4 << in_half / 32 * 2);
        b[192 + i / 16] = (uint8_t)s;
    }
}

/* dtype_from_f32 in every dtype. */
static inline void narrow(enum dtype dtype, const float *x, size_t n, void *out) {
    if (dtype_narrows(dtype)) {
        dtype_from_f32(dtype, x, n, out);
        return;
    }
    uint32_t block = dtype_block(dtype);
    uint8_t *b = out;
    for (size_t i = 0; i < n; i += block, b += dtype_row_bytes(dtype, block)) {
        if (block == 32)
            narrow_q5(dtype, x + i, b);
        else if (dtype == DTYPE_Q6_K)
            narrow_q6_k(x + i, b);
        else
            narrow_k(dtype, x + i, b);
    }
}

#endif
