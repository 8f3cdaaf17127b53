/* passes_body.h: the loops of passes.h, for vectors of VECTOR_BYTES; included once by each passes*.c,
 * which names its table and says how its vectors do what C cannot:
 *
 *   VECTOR_MAX(a, b)          floats: a > b ? a : b
 *   VECTOR_ANY(m)             is any lane of an int32 mask set?
 *   VECTOR_MUL_EVEN(a, b)     64-bit products of the even uint32 lanes
 *   VECTOR_UNPACK32/64(LO|HI, a, b)   interleaving within each 128 bits, as x86 does it */
#ifndef GERYON_KERNELS_CPU_PASSES_BODY_H
#define GERYON_KERNELS_CPU_PASSES_BODY_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/base.h"
#include "kernels/cpu/passes.h"

enum { LANES = VECTOR_BYTES / 4, HALF = LANES / 2, SUMS = WEIGHT_LANES / HALF };
_Static_assert(SUMS >= 1, "sums run in eight lanes");

typedef float vf __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VECTOR_BYTES)));
typedef double vd __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t vl __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t vul __attribute__((vector_size(VECTOR_BYTES)));
typedef float vh
    __attribute__((vector_size(VECTOR_BYTES / 2))); /* as many floats as vd has lanes */

static inline vf splat(float x) {
    return x - (vf){0};
}

static inline vd splat_d(double x) {
    return x - (vd){0};
}

static inline vf select_f(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* z[i ..], n - i of them at most, -inf behind. */
static inline vf load(const float *z, uint32_t i, uint32_t n) {
    vf x;
    if (n - i >= LANES) {
        memcpy(&x, z + i, sizeof x);
        return x;
    }
    x = splat(-INFINITY);
    memcpy(&x, z + i, (n - i) * sizeof *z);
    return x;
}

static inline void store(float *z, uint32_t i, uint32_t n, vf x) {
    if (n - i >= LANES)
        memcpy(z + i, &x, sizeof x);
    else
        memcpy(z + i, &x, (n - i) * sizeof *z);
}

/* ---- simple ones ------------------------------------------------------------------------------ */

static void clean(const float *logits, uint32_t n, float *z) {
    for (uint32_t i = 0; i < n; i += LANES) {
        vf x = load(logits, i, n);
        x = select_f(x == x, x, splat(-INFINITY));
        store(z, i, n, select_f(x > FLT_MAX, splat(FLT_MAX), x));
    }
}

/* Blocks keep the search for the id short: only the best block is walked again. */
static int32_t argmax(const float *z, uint32_t n) {
    enum { BLOCK = 1024 };
    float best = -INFINITY;
    uint32_t best_lo = 0, best_hi = 0;
    for (uint32_t lo = 0; lo < n; lo += BLOCK) {
        uint32_t hi = n - lo < BLOCK ? n : lo + BLOCK, i = lo;
        vf a = splat(-INFINITY), b = a;
        for (; hi - i >= 2 * LANES; i += 2 * LANES) {
            a = VECTOR_MAX(load(z, i, hi), a); /* the second operand wins when one is NaN */
            b = VECTOR_MAX(load(z, i + LANES, hi), b);
        }
        for (; i < hi; i += LANES)
            a = VECTOR_MAX(load(z, i, hi), a);
        a = VECTOR_MAX(a, b);
        if (!VECTOR_ANY(a > best)) continue;
        for (uint32_t j = 0; j < LANES; j++)
            if (a[j] > best) best = a[j];
        best_lo = lo, best_hi = hi;
    }
    for (uint32_t i = best_lo; i < best_hi; i++)
        if (z[i] == best) return (int32_t)i;
    return -1;
}

static void scores(float *z, uint32_t n, float max, float temperature) {
    for (uint32_t i = 0; i < n; i += LANES)
        store(z, i, n, (load(z, i, n) - max) / temperature);
}

/* Sets are strided: set j of a strip of 16 * len numbers holds numbers j, j + 16, .. of it. */
static uint32_t maxima(const float *z, uint32_t n, uint32_t len, float *out) {
    uint32_t n_out = 0;
    for (uint32_t lo = 0; lo < n; n_out += 16) {
        uint32_t hi = n - lo < 16 * len ? n : lo + 16 * len;
        vf most[16 / LANES];
        for (uint32_t k = 0; k < 16 / LANES; k++)
            most[k] = splat(-INFINITY);
        for (; lo < hi; lo += 16)
            for (uint32_t k = 0; k < 16 / LANES && lo + k * LANES < hi; k++)
                most[k] = VECTOR_MAX(load(z, lo + k * LANES, hi), most[k]);
        lo = hi;
        memcpy(out + n_out, most, sizeof most);
    }
    return n_out;
}

static uint32_t list(float *z, uint32_t n, float least, uint32_t *ids) {
    uint32_t n_ids = 0;
    for (uint32_t i = 0; i < n; i += LANES) {
        vf x = load(z, i, n);
        vi keep = (x >= least) & (x > -INFINITY);
        store(z, i, n, select_f(keep, x, splat(-INFINITY)));
        if (!VECTOR_ANY(keep)) continue;
        for (uint32_t t = i; t < n && t < i + LANES; t++) {
            ids[n_ids] = t;
            n_ids += z[t] > -INFINITY;
        }
    }
    return n_ids;
}

static uint32_t between(const float *z, uint32_t n, float lo, float hi, uint32_t *ids) {
    uint32_t n_ids = 0;
    for (uint32_t i = 0; i < n; i += LANES) {
        vf x = load(z, i, n);
        vi inside = (x >= lo) & (x < hi) & (x > -INFINITY);
        if (!VECTOR_ANY(inside)) continue;
        for (uint32_t j = 0; j < LANES; j++)
            if (inside[j]) ids[n_ids++] = i + j;
    }
    return n_ids;
}

/* ---- weights ---------------------------------------------------------------------------------- */

static inline vd low_half(vf x) {
    vh h;
    memcpy(&h, &x, sizeof h);
    return __builtin_convertvector(h, vd);
}

static inline vd high_half(vf x) {
    vh h;
    memcpy(&h, (const char *)&x + sizeof h, sizeof h);
    return __builtin_convertvector(h, vd);
}

/* x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its series to r^7, 2^n by the exponent's bits. Adding
 * 3 * 2^51 rounds to an integer, which then stands in the lowest bits. */
static inline vd weights(vd x) {
    vl live = x >= -700.0;
    x = (vd)((vl)x & live); /* -inf becomes 0 */
    vd shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52, n = shifted - 0x1.8p52;
    vd r = (x - n * 0x1.62e42fefa3800p-1) - n * 0x1.ef35793c76730p-45;
    vd p = r * (1.0 / 5040) + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return (vd)((vl)((vul)p + ((vul)shifted << 52)) & live);
}

static double total(const float *z, uint32_t n, float least) {
    vd sum[SUMS];
    for (uint32_t k = 0; k < SUMS; k++)
        sum[k] = splat_d(0);
    for (uint32_t i = 0, h = 0; i < n; i += LANES, h += 2) {
        vf x = load(z, i, n);
        x = select_f(x >= least, x, splat(-INFINITY));
        sum[h % SUMS] += weights(low_half(x)); /* sum[k]: lanes k * HALF and on */
        sum[(h + 1) % SUMS] += weights(high_half(x));
    }
    double lane[WEIGHT_LANES];
    memcpy(lane, sum, sizeof lane);
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void bins(const float *z, uint32_t n, float least, float scale, double *sum) {
    const vf last = splat(SCORE_BINS - 1);
    for (uint32_t i = 0; i < n; i += LANES) {
        vf x = load(z, i, n);
        vi live = (x >= least) & (x > -INFINITY);
        if (!VECTOR_ANY(live)) continue;
        x = select_f(live, x, splat(-INFINITY));
        vf down = x * -scale;
        down = select_f(down < last, down, last);
        vi bin = (SCORE_BINS - 1) - __builtin_convertvector(down, vi);
        vd weight[2] = {weights(low_half(x)), weights(high_half(x))};
        for (uint32_t j = 0; j < LANES; j++)
            sum[bin[j]] += weight[j / HALF][j % HALF];
    }
}

/* log d for 2^-126 <= d < 2: d = 2^e m, sqrt(1/2) <= m < sqrt(2), by the series of atanh. */
static inline vd logs(vd d) {
    const int64_t root = 0x3fe6a09e667f3bcd; /* bits of sqrt(1/2) */
    vl e = ((vl)d - root) >> 52;
    vd m = (vd)((vl)d - (vl)((vul)e << 52));
    vd f = (m - 1.0) / (m + 1.0), s = f * f;
    vd p = s * (2.0 / 11) + 2.0 / 9;
    p = p * s + 2.0 / 7;
    p = p * s + 2.0 / 5;
    p = p * s + 2.0 / 3;
    p = p * s + 2.0;
    /* e as a number: it is small, so the bits of 3 * 2^51 + e are those of the sum */
    vd exponent = (vd)(e + 0x4338000000000000) - 0x1.8p52;
    return exponent * 0x1.62e42fefa39efp-1 + f * p;
}

static inline vh residual_half(vd p, double p_share, vd q, double q_share) {
    vd d = weights(p) * p_share - weights(q) * q_share;
    vl live = d >= 0x1p-123; /* 1e-37 */
    d = logs((vd)(((vl)d & live) | ((vl)splat_d(1) & ~live)));
    return __builtin_convertvector((vd)(((vl)d & live) | ((vl)splat_d(-INFINITY) & ~live)), vh);
}

static void residual(const float *p, double p_share, const float *q, double q_share, uint32_t n,
                     float *out) {
    for (uint32_t i = 0; i < n; i += LANES) {
        vf x = load(p, i, n), y = q ? load(q, i, n) : splat(-INFINITY), both = splat(-INFINITY);
        if (VECTOR_ANY(x > -INFINITY)) {
            vh half = residual_half(low_half(x), p_share, low_half(y), q_share);
            memcpy(&both, &half, sizeof half);
            half = residual_half(high_half(x), p_share, high_half(y), q_share);
            memcpy((char *)&both + sizeof half, &half, sizeof half);
        }
        store(out, i, n, both);
    }
}

/* ---- noise ------------------------------------------------------------------------------------ */

/* The two halves of the products with a constant. */
static inline vu mul_hi_lo(vu x, uint32_t by, vu *lo) {
    const vu factor = by - (vu){0};
    const vul low = 0xffffffffu - (vul){0};
    vul even = VECTOR_MUL_EVEN(x, factor), odd = VECTOR_MUL_EVEN((vu)((vul)x >> 32), factor);
    *lo = (vu)((even & low) | (odd << 32));
    return (vu)((even >> 32) | (odd & ~low));
}

/* philox4x32 (sample.c) of LANES blocks: c[3] their numbers, the others the same in each; c becomes
 * the words. */
static inline void philox(vu c[4], uint64_t key) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        vu lo0, lo1, hi0 = mul_hi_lo(c[0], 0xD2511F53u, &lo0),
                     hi1 = mul_hi_lo(c[2], 0xCD9E8D57u, &lo1);
        c[0] = hi1 ^ c[1] ^ k0;
        c[1] = lo1;
        c[2] = hi0 ^ c[3] ^ k1;
        c[3] = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* Words of the LANES blocks from number `block` on, in the order of their tokens: lane 4 i + j of c[3]
 * is block j * LANES / 4 + i, so that the transposition within each 128 bits puts them in line. */
static inline void token_words(const struct noise_place *place, uint32_t block, vu words[4]) {
    vu c[4], numbers;
    for (uint32_t i = 0; i < LANES; i++)
        numbers[i] = i % 4 * (LANES / 4) + i / 4;
    for (int j = 0; j < 3; j++)
        c[j] = place->counter[j] - (vu){0};
    c[3] = numbers + block;
    philox(c, place->key);
    vu t0 = VECTOR_UNPACK32(LO, c[0], c[1]), t1 = VECTOR_UNPACK32(HI, c[0], c[1]);
    vu t2 = VECTOR_UNPACK32(LO, c[2], c[3]), t3 = VECTOR_UNPACK32(HI, c[2], c[3]);
    words[0] = VECTOR_UNPACK64(LO, t0, t2), words[1] = VECTOR_UNPACK64(HI, t0, t2);
    words[2] = VECTOR_UNPACK64(LO, t1, t3), words[3] = VECTOR_UNPACK64(HI, t1, t3);
}

/* A bound of the noise: -log1p(-v) >= v, so g <= -log v, and v >= x 2^-24 where x is the word's upper
 * 24 bits. log2 x is at least what its float's bits say, read as one fixed-point number. */
static inline vf noise_bound(vu word) {
    vf x = __builtin_convertvector((vi)(word >> 8), vf);
    vf log2 = __builtin_convertvector((vi)x, vf) * 0x1p-23f; /* + 127 */
    return (127 + 24 - log2) * 0.69314724f + 0.001f;
}

static uint32_t noisy(const float *z, uint32_t lo, uint32_t hi, const struct noise_place *place,
                      float floor, uint32_t *ids, uint32_t *words) {
    const float noise_max = 23; /* gumbel_noise stays below */
    uint32_t n_ids = 0;
    for (; lo < hi; lo += 4 * LANES) {
        vf x[4];
        for (uint32_t k = 0; k < 4; k++)
            x[k] = lo + k * LANES < hi ? load(z, lo + k * LANES, hi) : splat(-INFINITY);
        vf most = VECTOR_MAX(VECTOR_MAX(x[0], x[1]), VECTOR_MAX(x[2], x[3]));
        if (!VECTOR_ANY(most + noise_max >= floor)) continue;
        vu own[4];
        token_words(place, lo / 4, own);
        for (uint32_t k = 0; k < 4; k++) {
            vi may = x[k] + noise_bound(own[k]) >= floor;
            if (!VECTOR_ANY(may)) continue;
            for (uint32_t j = 0; j < LANES; j++) {
                if (!may[j]) continue;
                ids[n_ids] = lo + k * LANES + j;
                words[n_ids++] = own[k][j];
            }
        }
    }
    return n_ids;
}

const struct passes PASSES = {
    .name = PASSES_NAME,
    .clean = clean,
    .argmax = argmax,
    .scores = scores,
    .maxima = maxima,
    .list = list,
    .between = between,
    .total = total,
    .bins = bins,
    .residual = residual,
    .noisy = noisy,
};

#endif
