/* ops_avx2.c: the avx2 table's operations on one row. Sums run in eight or more lanes over absolute
 * index, so they depend on the vector's length alone. */
#include <math.h>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/avx2.h"

/* sum of x^2: four vectors of lanes over blocks of 32, one over what is left, then the tail. */
static float sum_squares(const float *x, uint32_t n) {
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        __m256 c = _mm256_loadu_ps(x + i + 16), d = _mm256_loadu_ps(x + i + 24);
        s0 = _mm256_fmadd_ps(a, a, s0);
        s1 = _mm256_fmadd_ps(b, b, s1);
        s2 = _mm256_fmadd_ps(c, c, s2);
        s3 = _mm256_fmadd_ps(d, d, s3);
    }
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
    __m256 inverse8 = _mm256_set1_ps(inverse);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse8),
                                                _mm256_loadu_ps(g + i)));
    for (; i < n; i++)
        out[i] = x[i] * inverse * g[i];
}

static void silu_mul(float *gate, const float *up, uint32_t n) {
    const __m256 one = _mm256_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 z = _mm256_loadu_ps(gate + i);
        __m256 e = avx2_exp(_mm256_sub_ps(_mm256_setzero_ps(), z));
        __m256 silu = _mm256_div_ps(z, _mm256_add_ps(one, e));
        /* below -88 e is cut off: the truth is 0 to 36 places; NaN passes */
        silu = _mm256_and_ps(silu, _mm256_cmp_ps(z, _mm256_set1_ps(-88.0f), _CMP_NLT_UQ));
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
}

static void rope(float *head, const float *cosines, const float *sines, uint32_t half) {
    uint32_t m = 0;
    for (; m + 8 <= half; m += 8) {
        __m256 a = _mm256_loadu_ps(head + m), b = _mm256_loadu_ps(head + half + m);
        __m256 c = _mm256_loadu_ps(cosines + m), s = _mm256_loadu_ps(sines + m);
        _mm256_storeu_ps(head + m, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(head + half + m, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; m < half; m++) {
        float a = head[m], b = head[half + m];
        head[m] = a * cosines[m] - b * sines[m];
        head[half + m] = b * cosines[m] + a * sines[m];
    }
}

/* ---- MSAR --------------------------------------------------------------------------------------- */

/* Lanes as in sum_squares; two vectors at a time, so that one's sums hide the other's latency. */
static void dot_pair(const float *a, const float *b, const float *w, uint32_t n, float out[2]) {
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (uint32_t i = 0; i < n; i += 32) {
        __m256 w0 = _mm256_loadu_ps(w + i), w1 = _mm256_loadu_ps(w + i + 8);
        __m256 w2 = _mm256_loadu_ps(w + i + 16), w3 = _mm256_loadu_ps(w + i + 24);
        a0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), w0, a0);
        a1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8), w1, a1);
        a2 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 16), w2, a2);
        a3 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 24), w3, a3);
        b0 = _mm256_fmadd_ps(_mm256_loadu_ps(b + i), w0, b0);
        b1 = _mm256_fmadd_ps(_mm256_loadu_ps(b + i + 8), w1, b1);
        b2 = _mm256_fmadd_ps(_mm256_loadu_ps(b + i + 16), w2, b2);
        b3 = _mm256_fmadd_ps(_mm256_loadu_ps(b + i + 24), w3, b3);
    }
    out[0] = avx2_sum(_mm256_add_ps(_mm256_add_ps(a0, a1), _mm256_add_ps(a2, a3)));
    out[1] = avx2_sum(_mm256_add_ps(_mm256_add_ps(b0, b1), _mm256_add_ps(b2, b3)));
}

static float dot(const float *a, const float *w, uint32_t n) {
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    for (uint32_t i = 0; i < n; i += 32) {
        s0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(w + i), s0);
        s1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(w + i + 8), s1);
        s2 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 16), _mm256_loadu_ps(w + i + 16), s2);
        s3 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 24), _mm256_loadu_ps(w + i + 24), s3);
    }
    return avx2_sum(_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
}

static void dots(const float *const *v, const float *w, uint32_t n_v, uint32_t n, float *out) {
    uint32_t k = 0;
    for (; k + 2 <= n_v; k += 2)
        dot_pair(v[k], v[k + 1], w, n, out + k);
    if (k < n_v) out[k] = dot(v[k], w, n);
}

/* Columns are independent, each a chain of fused multiply-adds over v in order. */
static void weighted_sum(const float *const *v, const float *w, uint32_t n_v, uint32_t n,
                         float *out) {
    for (uint32_t i = 0; i < n; i += 32) {
        __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
        for (uint32_t k = 0; k < n_v; k++) {
            __m256 wk = _mm256_set1_ps(w[k]);
            const float *x = v[k] + i;
            s0 = _mm256_fmadd_ps(wk, _mm256_loadu_ps(x), s0);
            s1 = _mm256_fmadd_ps(wk, _mm256_loadu_ps(x + 8), s1);
            s2 = _mm256_fmadd_ps(wk, _mm256_loadu_ps(x + 16), s2);
            s3 = _mm256_fmadd_ps(wk, _mm256_loadu_ps(x + 24), s3);
        }
        _mm256_storeu_ps(out + i, s0);
        _mm256_storeu_ps(out + i + 8, s1);
        _mm256_storeu_ps(out + i + 16, s2);
        _mm256_storeu_ps(out + i + 24, s3);
    }
}

static void expand(const float *const *v, const float *c, uint32_t n_v, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += 32) {
        __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
        for (uint32_t k = 0; k < n_v; k++) {
            const float *x = v[k] + i, *w = c + (size_t)k * n + i;
            s0 = _mm256_fmadd_ps(_mm256_loadu_ps(w), _mm256_loadu_ps(x), s0);
            s1 = _mm256_fmadd_ps(_mm256_loadu_ps(w + 8), _mm256_loadu_ps(x + 8), s1);
            s2 = _mm256_fmadd_ps(_mm256_loadu_ps(w + 16), _mm256_loadu_ps(x + 16), s2);
            s3 = _mm256_fmadd_ps(_mm256_loadu_ps(w + 24), _mm256_loadu_ps(x + 24), s3);
        }
        _mm256_storeu_ps(out + i, s0);
        _mm256_storeu_ps(out + i + 8, s1);
        _mm256_storeu_ps(out + i + 16, s2);
        _mm256_storeu_ps(out + i + 24, s3);
    }
}

static void finish(float (*acc)[GROUP], uint32_t n_rows, const float *bias, bool add, float *y,
                   size_t ldy) {
    for (uint32_t i = 0; i < n_rows; i++, y += ldy)
        for (uint32_t j = 0; j < GROUP; j += 8) {
            __m256 a = _mm256_loadu_ps(acc[i] + j);
            if (bias) a = _mm256_add_ps(a, _mm256_loadu_ps(bias + j));
            if (add) a = _mm256_add_ps(_mm256_loadu_ps(y + j), a);
            _mm256_storeu_ps(y + j, a);
        }
}

/* Those of z[i .. i + 7] that exist, others as -inf. */
static inline __m256 maximum_load(const float *z, uint32_t i, uint32_t n) {
    if (i + 8 <= n) return _mm256_loadu_ps(z + i);
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i inside = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n - i)), lane);
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_maskload_ps(z + i, inside),
                            _mm256_castsi256_ps(inside));
}

/* Sums of x - x, which is 0 or NaN, tell whether all are finite. */
static uint32_t maximum(const float *z, uint32_t n, float *most) {
    __m256 most8 = _mm256_set1_ps(-INFINITY), sum8 = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 x = maximum_load(z, i, n);
        most8 = _mm256_max_ps(most8, x);
        if (i + 8 <= n) sum8 = _mm256_add_ps(sum8, _mm256_sub_ps(x, x));
    }
    float sum = avx2_sum(sum8);
    for (uint32_t i = n & ~7u; i < n; i++)
        sum += z[i] - z[i];
    if (sum != 0) { /* NaN */
        *most = NAN;
        return 0;
    }
    __m128 most4 = _mm_max_ps(_mm256_castps256_ps128(most8), _mm256_extractf128_ps(most8, 1));
    most4 = _mm_max_ps(most4, _mm_movehl_ps(most4, most4));
    *most = _mm_cvtss_f32(_mm_max_ss(most4, _mm_movehdup_ps(most4)));
    most8 = _mm256_set1_ps(*most);
    for (uint32_t i = 0;; i += 8) { /* ends: it is there */
        int found = _mm256_movemask_ps(_mm256_cmp_ps(maximum_load(z, i, n), most8, _CMP_EQ_OQ));
        if (found) return i + (uint32_t)__builtin_ctz((unsigned)found);
    }
}

const struct cpu_ops cpu_ops_avx2 = {
    .finish = finish,
    .matrix_bytes = avx2_matrix_bytes,
    .pack_group = avx2_pack_group,
    .matrix_row = avx2_matrix_row,
    .step_sums = avx2_step_sums,
    .quantise = avx2_quantise,
    .gemm_group = avx2_gemm_group,
    .gemm_int8 = avx2_gemm_int8,
    .narrow = cpu_narrow,
    .gemm_bf16 = avx2_gemm_group,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .dots = dots,
    .weighted_sum = weighted_sum,
    .expand = expand,
    .rope = rope,
    .maximum = maximum,
    .kv_store = avx2_kv_store,
    .attend_tile = avx2_attend_tile,
    .attend_scratch = attend_scratch,
    .attend_splits = true,
};
