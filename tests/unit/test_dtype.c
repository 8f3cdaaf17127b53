/* Number formats: exact widening, rounding to nearest even, the block layouts of GGUF. */
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/harness.h"
#include "tests/unit/narrow.h"

static void names_parse_back(void **state) {
    (void)state;
    for (enum dtype d = 0; d < DTYPE_COUNT; d++)
        assert_int_equal(dtype_parse(dtype_name(d)), d);
    assert_int_equal(dtype_parse("F32"), -1);
    assert_int_equal(dtype_parse(""), -1);
    assert_int_equal(dtype_parse("q3_k"), -1);
}

static void sizes_are_those_of_gguf(void **state) {
    (void)state;
    const size_t bytes[DTYPE_COUNT] = {1024, 512, 512, 272, 144, 160, 176, 192, 144, 176, 210};
    for (enum dtype d = 0; d < DTYPE_COUNT; d++) {
        assert_int_equal(dtype_row_bytes(d, 256), bytes[d]);
        assert_int_equal(dtype_block(d), d < DTYPE_Q8_0 ? 1 : d < DTYPE_Q4_K ? 32 : 256);
    }
    assert_trips(dtype_row_bytes(DTYPE_Q4_0, 33));
    assert_trips(dtype_row_bytes(DTYPE_Q6_K, 128));
}

static void every_f16_survives_widening(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
        double value = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
        if (exponent == 31) {
            assert_true(mantissa ? isnan(f) : isinf(f));
            if (mantissa) continue;
        } else {
            assert_true((double)f == (h & 0x8000 ? -value : value));
        }
        assert_int_equal(signbit(f) != 0, h >> 15);
        assert_int_equal(f32_to_f16(f), h);
    }
    assert_true(isnan(f16_to_f32(f32_to_f16(NAN))));
}

/* Between two neighbours a number goes to the nearer one, in the middle to the even one. */
static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        double a = (double)f16_to_f32((uint16_t)h), b = (double)f16_to_f32((uint16_t)(h + 1));
        float middle = (float)((a + b) / 2); /* exact */
        assert_int_equal(f32_to_f16(middle), h % 2 ? h + 1 : h);
        assert_int_equal(f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(f32_to_f16(-nextafterf(middle, INFINITY)), (h + 1) | 0x8000);
    }
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(1e-30f), 0);
    assert_int_equal(f32_to_f16(-1e-30f), 0x8000);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7f7f; h++) {
        uint32_t u = h << 16 | 0x8000;
        float middle;
        memcpy(&middle, &u, 4);
        assert_int_equal(f32_to_bf16(bf16_to_f32((uint16_t)h)), h);
        assert_int_equal(f32_to_bf16(middle), h % 2 ? h + 1 : h);
        assert_int_equal(f32_to_bf16(-nextafterf(middle, 0)), h | 0x8000);
        assert_int_equal(f32_to_bf16(nextafterf(middle, INFINITY)), h + 1);
    }
    uint32_t u = 0x7f800001; /* a NaN whose high half alone would be infinity */
    float nan;
    memcpy(&nan, &u, 4);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(nan))));
    assert_int_equal(f32_to_bf16(INFINITY), 0x7f80);
}

static void blocks_widen_as_gguf_lays_them_out(void **state) {
    (void)state;
    float out[32];
    uint8_t q8[34] = {0x00, 0x38};                                     /* d = 0.5 */
    uint8_t q4[18] = {0x00, 0x38}, q41[20] = {0x00, 0x38, 0x00, 0xbc}; /* m = -1 */
    for (int i = 0; i < 32; i++)
        q8[2 + i] = (uint8_t)(i * 8 - 128);
    for (int i = 0; i < 16; i++)
        q4[2 + i] = q41[4 + i] = (uint8_t)(i | (15 - i) << 4);
    dtype_to_f32(DTYPE_Q8_0, q8, 32, out);
    for (int i = 0; i < 32; i++)
        assert_true(out[i] == 0.5f * (float)(i * 8 - 128));
    dtype_to_f32(DTYPE_Q4_0, q4, 32, out);
    for (int i = 0; i < 32; i++)
        assert_true(out[i] == 0.5f * (float)((i < 16 ? i : 31 - i) - 8));
    dtype_to_f32(DTYPE_Q4_1, q41, 32, out);
    for (int i = 0; i < 32; i++)
        assert_true(out[i] == 0.5f * (float)(i < 16 ? i : 31 - i) - 1);
}

static double f16_of(const uint8_t *p) {
    return (double)f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* Bits lo .. lo + n - 1 of a byte. */
static int bits_of(uint8_t byte, int lo, int n) {
    return byte >> lo & ((1 << n) - 1);
}

/* Number i of a block as the format says, in double, where nothing rounds. */
static double number_q5(enum dtype dtype, const uint8_t *b, int i) {
    bool minima = dtype == DTYPE_Q5_1;
    const uint8_t *high = b + (minima ? 4 : 2);
    int q = bits_of(high[4 + i % 16], i / 16 * 4, 4) + 16 * bits_of(high[i / 8], i % 8, 1);
    return minima ? f16_of(b) * q + f16_of(b + 2) : f16_of(b) * (q - 16);
}

static double number_k(enum dtype dtype, const uint8_t *b, int i) {
    int s = i / 32, k = i % 32, scale, min;
    const uint8_t *six = b + 4, *nibbles = b + (dtype == DTYPE_Q5_K ? 48 : 16);
    if (s < 4) {
        scale = bits_of(six[s], 0, 6), min = bits_of(six[s + 4], 0, 6);
    } else {
        scale = bits_of(six[s + 4], 0, 4) + 16 * bits_of(six[s - 4], 6, 2);
        min = bits_of(six[s + 4], 4, 4) + 16 * bits_of(six[s], 6, 2);
    }
    int q = bits_of(nibbles[i / 64 * 32 + k], s % 2 * 4, 4);
    if (dtype == DTYPE_Q5_K) q += 16 * bits_of(b[16 + k], s, 1);
    return f16_of(b) * scale * q - f16_of(b + 2) * min;
}

static double number_q6_k(const uint8_t *b, int i) {
    int half = i / 128, j = i % 128;
    int low = bits_of(b[64 * half + j % 64], j / 64 * 4, 4);
    int high = bits_of(b[128 + 32 * half + j % 32], j / 32 * 2, 2);
    return f16_of(b + 208) * (int8_t)b[192 + i / 16] * (low + 16 * high - 32);
}

static double number_of(enum dtype dtype, const uint8_t *b, int i) {
    if (dtype_block(dtype) == 32) return number_q5(dtype, b, i);
    return dtype == DTYPE_Q6_K ? number_q6_k(b, i) : number_k(dtype, b, i);
}

/* Any bytes but infinite scales; tests/http/test_gguf.py compares with gguf.quants. */
static void types_that_are_only_read_widen_as_gguf_lays_them_out(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (enum dtype d = DTYPE_Q5_0; d < DTYPE_COUNT; d++)
        for (int round = 0; round < 300; round++) {
            uint8_t stored[2 * 210];
            float out[512];
            int block = (int)dtype_block(d);
            size_t bytes = dtype_row_bytes(d, dtype_block(d));
            for (size_t i = 0; i < sizeof stored; i++)
                stored[i] = (uint8_t)rng_below(&rng, 256);
            for (int b = 0; b < 2; b++) { /* exponents below all ones */
                uint8_t *at = stored + (size_t)b * bytes + (d == DTYPE_Q6_K ? 208 : 0);
                at[1] &= 0xbf;
                if (d != DTYPE_Q6_K) at[3] &= 0xbf;
            }
            dtype_to_f32(d, stored, (size_t)block * 2, out);
            for (int i = 0; i < 2 * block; i++) {
                float expected =
                    (float)number_of(d, stored + (size_t)(i / block) * bytes, i % block);
                if (out[i] != expected)
                    fail_msg("%s number %d: %.9g, not %.9g", dtype_name(d), i, out[i], expected);
            }
        }
}

static void types_that_are_only_read_are_not_written(void **state) {
    (void)state;
    static const float x[256];
    uint8_t stored[256];
    assert_true(dtype_narrows(DTYPE_Q4_1));
    assert_false(dtype_narrows(DTYPE_Q5_0));
    assert_false(dtype_narrows(DTYPE_Q6_K));
    assert_trips(dtype_from_f32(DTYPE_Q5_0, x, 256, stored));
    assert_trips(dtype_from_f32(DTYPE_Q6_K, x, 256, stored));
}

/* The tests' own writer, so that what they multiply are good stand-ins: within a step of its block. */
static void narrowed_numbers_are_near(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (enum dtype d = DTYPE_Q5_0; d < DTYPE_COUNT; d++)
        for (int round = 0; round < 50; round++) {
            float x[512], y[512];
            uint8_t stored[512];
            for (int i = 0; i < 512; i++)
                x[i] = rng_normal(&rng);
            narrow(d, x, 512, stored);
            dtype_to_f32(d, stored, 512, y);
            double error = 0;
            for (int i = 0; i < 512; i++)
                error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]) / 512;
            /* of numbers that spread by 1, over about 4.5: a uniform error of (4.5 / steps) / sqrt 12 */
            double most = d == DTYPE_Q4_K ? 0.11 : d == DTYPE_Q6_K ? 0.025 : 0.06;
            if (!(sqrt(error) < most)) fail_msg("%s: %.3g", dtype_name(d), sqrt(error));
        }
}

/* What a type can hold exactly comes back exactly, and other numbers within half a step. */
static void narrowing_blocks_is_within_half_a_step(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (enum dtype d = DTYPE_Q8_0; d <= DTYPE_Q4_1; d++)
        for (int round = 0; round < 200; round++) {
            float x[64], y[64], z[64], least = INFINITY, most = -INFINITY;
            uint8_t stored[80];
            double scale = exp(8 * rng_unit(&rng) - 6);
            for (int i = 0; i < 64; i++)
                x[i] = (float)scale * rng_normal(&rng);
            dtype_from_f32(d, x, 64, stored);
            dtype_to_f32(d, stored, 64, y);
            for (int b = 0; b < 64; b += 32) {
                least = INFINITY, most = -INFINITY;
                for (int i = b; i < b + 32; i++)
                    least = fminf(least, x[i]), most = fmaxf(most, x[i]);
                double amax = fmax(fabs((double)least), fabs((double)most));
                double step = d == DTYPE_Q8_0   ? amax / 127
                              : d == DTYPE_Q4_0 ? amax / 8
                                                : ((double)most - (double)least) / 15;
                /* Q4_0 has no +8: the far end of the other sign may lose a whole step. f16
                 * scales add a part in 2^11 of the range, or of its subnormal spacing. */
                double slack = (d == DTYPE_Q4_0 ? 1.01 : 0.51) * step + amax / 1000 + 1e-5;
                for (int i = b; i < b + 32; i++)
                    assert_true(fabs((double)y[i] - (double)x[i]) <= slack);
            }
            dtype_from_f32(d, y, 64, stored);
            dtype_to_f32(d, stored, 64, z);
            if (d != DTYPE_Q4_1) assert_close(z, y, 64, 1e-6 * scale, 1e-3, dtype_name(d));
        }
}

static void hostile_numbers_narrow_to_finite_blocks(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0, -0.0f, 1e-40f};
    for (enum dtype d = DTYPE_Q8_0; d <= DTYPE_Q4_1; d++)
        for (size_t k = 0; k < ARRAY_LEN(bad); k++) {
            float x[32] = {1, -1, bad[k]}, y[32];
            uint8_t stored[40];
            dtype_from_f32(d, x, 32, stored);
            dtype_to_f32(d, stored, 32, y);
            for (int i = 0; i < 32; i++)
                assert_true(isfinite(y[i]));
        }
}

static void plain_types_convert_rows(void **state) {
    (void)state;
    const float x[5] = {1, -2.5f, 0, 1000, 0.1f};
    float y[5];
    uint8_t stored[21];
    for (enum dtype d = DTYPE_F32; d <= DTYPE_BF16; d++) {
        dtype_from_f32(d, x, 5, stored + 1); /* unaligned is fine */
        dtype_to_f32(d, stored + 1, 5, y);
        assert_close(y, x, 5, 0, d == DTYPE_F32 ? 0 : d == DTYPE_F16 ? 0x1p-11 : 0x1p-8, "row");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_parse_back),
        cmocka_unit_test(sizes_are_those_of_gguf),
        cmocka_unit_test(every_f16_survives_widening),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(blocks_widen_as_gguf_lays_them_out),
        cmocka_unit_test(types_that_are_only_read_widen_as_gguf_lays_them_out),
        cmocka_unit_test(types_that_are_only_read_are_not_written),
        cmocka_unit_test(narrowed_numbers_are_near),
        cmocka_unit_test(narrowing_blocks_is_within_half_a_step),
        cmocka_unit_test(hostile_numbers_narrow_to_finite_blocks),
        cmocka_unit_test(plain_types_convert_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
