/* ops_avx512.c: the avx512 table's operations on one row, with the bits of the avx2 table: two of
 * its vectors of 8 lanes side by side. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attend.h"

/* sum of x^2 as in ops_avx2.c: s0 and s1, s2 and s3 share a register. */
static float sum_squares(const float *x, uint32_t n) {
    __m512 s01 = _mm512_setzero_ps(), s23 = s01;
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
        s01 = _mm512_fmadd_ps(a, a, s01);
        s23 = _mm512_fmadd_ps(b, b, s23);
    }
    __m256 s0 = _mm512_castps512_ps256(s01), s1 = _mm512_extractf32x8_ps(s01, 1);
    __m256 s2 = _mm512_castps512_ps256(s23), s3 = _mm512_extractf32x8_ps(s23, 1);
    for (; i + 8 <= n; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i);
        s0 = _mm256_fmadd_ps(a, a, s0);
    }
    float sum = avx2_sum(_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
    for (; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

static void rmsnorm(const float *x, const float *g, uint32_t n, float eps, float *out) {
    float inverse = 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
    __m512 inverse16 = _mm512_set1_ps(inverse);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse16),
                                                _mm512_loadu_ps(g + i)));
    for (; i < n; i++)
        out[i] = x[i] * inverse * g[i];
}

/* n is a multiple of 8: the last vector may be half of one. */
static void silu_mul(float *gate, const float *up, uint32_t n) {
    const __m512 one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 in = n - i < 16 ? 0xff : 0xffff;
        __m512 z = _mm512_maskz_loadu_ps(in, gate + i);
        __m512 e = avx512_exp(_mm512_sub_ps(_mm512_setzero_ps(), z));
        __m512 silu = _mm512_div_ps(z, _mm512_add_ps(one, e));
        /* below -88 e is cut off: the truth is 0 to 36 places; NaN passes */
        __mmask16 keep = _mm512_cmp_ps_mask(z, _mm512_set1_ps(-88.0f), _CMP_NLT_UQ);
        silu = _mm512_maskz_mov_ps(keep, silu);
        _mm512_mask_storeu_ps(gate + i, in, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(in, up + i)));
    }
}

static void rope(float *head, const float *cosines, const float *sines, uint32_t half) {
    uint32_t m = 0;
    for (; m + 8 <= half; m += 16) { /* whole eights fused, the rest not, as in ops_avx2.c */
        __mmask16 in = half - m < 16 ? 0xff : 0xffff;
        __m512 a = _mm512_maskz_loadu_ps(in, head + m);
        __m512 b = _mm512_maskz_loadu_ps(in, head + half + m);
        __m512 c = _mm512_maskz_loadu_ps(in, cosines + m), s = _mm512_maskz_loadu_ps(in, sines + m);
        _mm512_mask_storeu_ps(head + m, in, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(head + half + m, in, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
    for (m = half / 8 * 8; m < half; m++) {
        float a = head[m], b = head[half + m];
        head[m] = a * cosines[m] - b * sines[m];
        head[half + m] = b * cosines[m] + a * sines[m];
    }
}

/* ---- MSAR --------------------------------------------------------------------------------------- */

/* The sum of lanes as dot in ops_avx2.c has it. */
static float sum_lanes(__m512 s01, __m512 s23) {
    __m256 s0 = _mm512_castps512_ps256(s01), s1 = _mm512_extractf32x8_ps(s01, 1);
    __m256 s2 = _mm512_castps512_ps256(s23), s3 = _mm512_extractf32x8_ps(s23, 1);
    return avx2_sum(_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
}

/* Four vectors at a time; where fewer are left, the first of them again. */
static void dots(const float *const *v, const float *w, uint32_t n_v, uint32_t n, float *out) {
    for (uint32_t k = 0; k < n_v; k += 4) {
        const float *a = v[k], *b = v[k + 1 < n_v ? k + 1 : k];
        const float *c = v[k + 2 < n_v ? k + 2 : k], *d = v[k + 3 < n_v ? k + 3 : k];
        __m512 a0 = _mm512_setzero_ps(), a1 = a0, b0 = a0, b1 = a0;
        __m512 c0 = a0, c1 = a0, d0 = a0, d1 = a0;
        for (uint32_t i = 0; i < n; i += 32) {
            __m512 w0 = _mm512_loadu_ps(w + i), w1 = _mm512_loadu_ps(w + i + 16);
            a0 = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), w0, a0);
            a1 = _mm512_fmadd_ps(_mm512_loadu_ps(a + i + 16), w1, a1);
            b0 = _mm512_fmadd_ps(_mm512_loadu_ps(b + i), w0, b0);
            b1 = _mm512_fmadd_ps(_mm512_loadu_ps(b + i + 16), w1, b1);
            c0 = _mm512_fmadd_ps(_mm512_loadu_ps(c + i), w0, c0);
            c1 = _mm512_fmadd_ps(_mm512_loadu_ps(c + i + 16), w1, c1);
            d0 = _mm512_fmadd_ps(_mm512_loadu_ps(d + i), w0, d0);
            d1 = _mm512_fmadd_ps(_mm512_loadu_ps(d + i + 16), w1, d1);
        }
        out[k] = sum_lanes(a0, a1);
        if (k + 1 < n_v) out[k + 1] = sum_lanes(b0, b1);
        if (k + 2 < n_v) out[k + 2] = sum_lanes(c0, c1);
        if (k + 3 < n_v) out[k + 3] = sum_lanes(d0, d1);
    }
}

static void weighted_sum(const float *const *v, const float *w, uint32_t n_v, uint32_t n,
                         float *out) {
    for (uint32_t i = 0; i < n; i += 32) {
        __m512 s0 = _mm512_setzero_ps(), s1 = s0;
        for (uint32_t k = 0; k < n_v; k++) {
            __m512 wk = _mm512_set1_ps(w[k]);
            s0 = _mm512_fmadd_ps(wk, _mm512_loadu_ps(v[k] + i), s0);
            s1 = _mm512_fmadd_ps(wk, _mm512_loadu_ps(v[k] + i + 16), s1);
        }
        _mm512_storeu_ps(out + i, s0);
        _mm512_storeu_ps(out + i + 16, s1);
    }
}

static void expand(const float *const *v, const float *c, uint32_t n_v, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += 32) {
        __m512 s0 = _mm512_setzero_ps(), s1 = s0;
        for (uint32_t k = 0; k < n_v; k++) {
            const float *w = c + (size_t)k * n + i;
            s0 = _mm512_fmadd_ps(_mm512_loadu_ps(w), _mm512_loadu_ps(v[k] + i), s0);
            s1 = _mm512_fmadd_ps(_mm512_loadu_ps(w + 16), _mm512_loadu_ps(v[k] + i + 16), s1);
        }
        _mm512_storeu_ps(out + i, s0);
        _mm512_storeu_ps(out + i + 16, s1);
    }
}

/* Those of z[i .. i + 15] that exist, others as `rest`. */
static inline __m512 maximum_load(const float *z, uint32_t i, uint32_t n, __m512 rest) {
    if (i + 16 <= n) return _mm512_loadu_ps(z + i);
    return _mm512_mask_loadu_ps(rest, (__mmask16)((1u << (n - i)) - 1), z + i);
}

static uint32_t maximum(const float *z, uint32_t n, float *most) {
    enum { NOT_FINITE = 0x99 }; /* both kinds of NaN, both infinities */
    const __m512 lowest = _mm512_set1_ps(-FLT_MAX);
    __m512 most16 = lowest;
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 x = maximum_load(z, i, n, lowest);
        most16 = _mm512_max_ps(most16, x);
        bad = (__mmask16)(bad | _mm512_fpclass_ps_mask(x, NOT_FINITE));
    }
    if (bad) {
        *most = NAN;
        return 0;
    }
    *most = _mm512_reduce_max_ps(most16);
    most16 = _mm512_set1_ps(*most);
    for (uint32_t i = 0;; i += 16) { /* ends: it is there */
        __m512 x = maximum_load(z, i, n, _mm512_set1_ps(NAN));
        __mmask16 found = _mm512_cmp_ps_mask(x, most16, _CMP_EQ_OQ);
        if (found) return i + (uint32_t)__builtin_ctz(found);
    }
}

static void finish(float (*acc)[GROUP], uint32_t n_rows, const float *bias, bool add, float *y,
                   size_t ldy) {
    for (uint32_t i = 0; i < n_rows; i++, y += ldy) {
        __m512 a = _mm512_loadu_ps(acc[i]), b = _mm512_loadu_ps(acc[i] + 16);
        if (bias) {
            a = _mm512_add_ps(a, _mm512_loadu_ps(bias));
            b = _mm512_add_ps(b, _mm512_loadu_ps(bias + 16));
        }
        if (add) {
            a = _mm512_add_ps(_mm512_loadu_ps(y), a);
            b = _mm512_add_ps(_mm512_loadu_ps(y + 16), b);
        }
        _mm512_storeu_ps(y, a);
        _mm512_storeu_ps(y + 16, b);
    }
}

/* ---- storing K and V in bf16 -------------------------------------------------------------------- */

/* Numbers i .. i + 15 of x [n] to bf16, as f32_to_bf16, one in each dword. */
static inline __m512i rounded(const float *x, uint32_t i, uint32_t n) {
    __mmask16 in = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xffff;
    __m512 z = _mm512_maskz_loadu_ps(in, x + i);
    __m512i u = _mm512_castps_si512(z);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(z, z, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_srli_epi32(r, 16);
}

/* avx2's layout: attend_avx2.c. Dwords one by one: scattering them takes up to twice as long. */
static void store_k_bf16(uint32_t *kd, uint32_t e, const float *k) {
    uint32_t pairs[8];
    for (uint32_t i = 0; i < e; i += 16, kd += 8 * PAGE_TOKENS) {
        uint32_t n = e - i < 16 ? e - i : 16;
        __m256i both = _mm512_cvtepi32_epi16(rounded(k, i, e));
        _mm256_storeu_si256((__m256i *)(void *)pairs, both);
        for (uint32_t j = 0; j < n / 2; j++)
            kd[j * PAGE_TOKENS] = pairs[j];
    }
}

/* A dword has two positions, which may be stored by two threads at once: a masked store writes its own
 * half alone. */
static void store_v_bf16(uint32_t *vd, bool high, uint32_t e, const float *v) {
    for (uint32_t i = 0; i < e; i += 16) {
        uint32_t n = e - i < 16 ? e - i : 16;
        __m512i b = rounded(v, i, e);
        b = _mm512_or_si512(b, _mm512_slli_epi32(b, 16));
        __mmask32 own = high ? 0xaaaaaaaa : 0x55555555;
        _mm512_mask_storeu_epi16(vd + i, own & (__mmask32)((1ull << 2 * n) - 1), b);
    }
}

static void kv_store(const struct device *dev, void *page, uint32_t at, const float *k,
                     const float *v) {
    if (dev->limits.kv_dtype != DTYPE_BF16) {
        avx2_kv_store(dev, page, at, k, v);
        return;
    }
    uint32_t *v_page = (uint32_t *)(void *)((char *)page + dev->value_bytes);
    if (k) store_k_bf16((uint32_t *)page + at, dev->shape.head_dim, k);
    if (v) store_v_bf16(v_page + at / 2 * dev->head_pad, at % 2, dev->shape.head_dim, v);
}

#define OPS(GEMM_INT8, NARROW, GEMM_BF16, ATTEND, ...)                                         \
    {                                                                                          \
        .matrix_bytes = avx2_matrix_bytes, .pack_group = avx2_pack_group,                      \
        .matrix_row = avx2_matrix_row, .step_sums = avx2_step_sums, .quantise = avx2_quantise, \
        .gemm_group = avx512_gemm_group, .gemm_int8 = GEMM_INT8, .narrow = NARROW,             \
        .gemm_bf16 = GEMM_BF16, .finish = finish, .rmsnorm = rmsnorm, .silu_mul = silu_mul,    \
        .dots = dots, .weighted_sum = weighted_sum, .expand = expand, .rope = rope,            \
        .maximum = maximum, .kv_store = kv_store, .attend_tile = ATTEND,                       \
        .attend_scratch = attend_scratch, .attend_splits = true, __VA_ARGS__                   \
    }
const struct cpu_ops cpu_ops_avx512 =
    OPS(avx2_gemm_int8, cpu_narrow, avx512_gemm_group, avx512_attend_tile, .tiles = false);
const struct cpu_ops cpu_ops_avx512_vnni =
    OPS(avx512_gemm_int8, cpu_narrow, avx512_gemm_group, avx512_attend_tile, .tiles = false);
const struct cpu_ops cpu_ops_amx = OPS(amx_gemm_int8, amx_narrow, amx_gemm_bf16, amx_attend_tile,
                                       .tiles = true, .task_end = amx_release);
