/* test_kernels.cpp: right kernels run right in the simulator, in every order; what gpu.h offers does
 * what it says. The references are plain C in double. nvcc builds the same tests for a device, where the
 * bits of tensor cores are the device's own. */
#include "tests/gpusim/gpusim_test.h"

#include <vector>

#include <math.h>

typedef std::vector<uint16_t> halves;

static float of_bf16(uint16_t bits) {
    return __bfloat162float(__ushort_as_bfloat16(bits));
}
static uint16_t to_bf16(float f) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
static halves random_bf16(struct rng *rng, size_t n, float scale) {
    halves v(n);
    for (uint16_t &x : v)
        x = to_bf16(rng_normal(rng) * scale);
    return v;
}
static std::vector<float> random_floats(struct rng *rng, size_t n) {
    std::vector<float> v(n);
    for (float &x : v)
        x = rng_normal(rng);
    return v;
}

// ---- storage

static void every_bf16_comes_back_and_rounding_is_to_even(void **) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float f = of_bf16((uint16_t)bits);
        if (isnan(f))
            assert_int_equal(to_bf16(f), 0x7FFF);
        else
            assert_int_equal(to_bf16(f), bits);
    }
    assert_int_equal(to_bf16(0x1.01p0f), 0x3F80);   /* halfway, down to even */
    assert_int_equal(to_bf16(0x1.03p0f), 0x3F82);   /* halfway, up to even */
    assert_int_equal(to_bf16(0x1.0101p0f), 0x3F81); /* above halfway */
    assert_int_equal(to_bf16(3.4e38f), 0x7F80);
}
static void every_f16_comes_back_and_rounding_is_to_even(void **) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float f = __half2float(__ushort_as_half((unsigned short)bits));
        uint16_t back = __half_as_ushort(__float2half_rn(f));
        assert_int_equal(back, isnan(f) ? 0x7FFF : bits);
        /* Between this one and the next: halfway goes to the even one, a hair beyond does not. */
        if ((bits & 0x7C00) == 0x7C00 || (bits & 0x7FFF) == 0x7BFF) continue;
        float next = __half2float(__ushort_as_half((unsigned short)(bits + 1)));
        float middle = (float)(((double)f + (double)next) / 2);
        assert_int_equal(__half_as_ushort(__float2half_rn(middle)), bits + (bits & 1));
        assert_int_equal(__half_as_ushort(__float2half_rn(nextafterf(middle, next))), bits + 1);
        assert_int_equal(__half_as_ushort(__float2half_rn(nextafterf(middle, f))), bits);
    }
    assert_int_equal(__half_as_ushort(__float2half_rn(65519.996f)), 0x7BFF);
    assert_int_equal(__half_as_ushort(__float2half_rn(65520.0f)), 0x7C00);
    assert_int_equal(__half_as_ushort(__float2half_rn(-1e30f)), 0xFC00);
}

// ---- gpu.h

static void powers_of_two_are_close_and_exact_where_it_counts(void **) {
    enum { N = 256 };
    float v[N], got[N];
    uint32_t bytes[N], pairs[2 * N];
    for (int i = 0; i < N; i++) {
        v[i] = -0.37f * (float)i;
        bytes[i] = (uint32_t)i * 0x01010101u ^ 0x00FF7F80u; /* each value at each place */
    }
    v[1] = -INFINITY;
    v[2] = -140.0f;
    float *in = device_copy(v, N), *out = device_copy((float *)NULL, N);
    uint32_t *words = device_copy(bytes, N), *wide = device_copy((uint32_t *)NULL, 2 * N);
    check_cuda(launch_number_helpers(out, wide, in, words, N, NULL));
    host_copy(got, out, N);
    host_copy(pairs, wide, 2 * N);
    assert_true(got[0] == 1.0f && got[1] == 0.0f && got[2] == 0.0f);
    for (int i = 3; i < N; i++) {
        assert_true(fabs(got[i] - exp2((double)v[i])) <= 0x1p-21 * exp2((double)v[i]));
        for (int j = 0; j < 4; j++) {
            const float wide_byte = of_bf16((uint16_t)(pairs[2 * i + j % 2] >> j / 2 * 16));
            assert_true(wide_byte == (float)(int8_t)(bytes[i] >> 8 * j));
        }
    }
    cudaFree(in);
    cudaFree(out);
    cudaFree(words);
    cudaFree(wide);
}
static void warp_helpers_equal_shuffles(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int round = 0; round < 2 * N_ORDERS; round++) {
        use_order(round % N_ORDERS, rng_u64(&rng));
        std::vector<float> v = random_floats(&rng, 32), got(6 * 32);
        float *in = device_copy(v.data(), 32), *out = device_copy((float *)NULL, 6 * 32);
        check_cuda(launch_warp_helpers(out, in, NULL));
        host_copy(got.data(), out, got.size());
        assert_same_bits(&got[0], &got[32], 32, "warp_sum");
        assert_same_bits(&got[64], &got[96], 32, "warp_max");
        for (int i = 0; i < 32; i++) {
            float want = v[5] + v[i < 31 ? i + 1 : i] + v[i > 0 ? i - 1 : i] + v[(i & ~7) + 1];
            assert_true(got[(size_t)(128 + i)] == want);
            assert_true(got[(size_t)(160 + i)] == (v[(size_t)i] > 0 ? 1.0f : 0.0f));
        }
        cudaFree(in);
        cudaFree(out);
    }
}
static void block_helpers_sum_in_every_block_size(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int n = 32, order = 0; n <= 1024; n *= 2, order++) {
        use_order(order % N_ORDERS, rng_u64(&rng));
        std::vector<float> v = random_floats(&rng, (size_t)n);
        float got[2], *in = device_copy(v.data(), v.size()), *out = device_copy((float *)NULL, 2);
        double sum = 0;
        float largest = -INFINITY;
        for (float x : v) {
            sum += x;
            largest = fmaxf(largest, x);
        }
        check_cuda(launch_block_helpers(out, in, n, NULL));
        host_copy(got, out, 2);
        assert_true(fabs(got[0] - sum) < 1e-4 * sqrt(n));
        assert_true(got[1] == largest);
        cudaFree(in);
        cudaFree(out);
    }
}
static void mma_of_16_bit_types_is_the_product(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int half = 0; half < 2; half++)
        for (int order = 0; order < N_ORDERS; order++) {
            use_order(order, rng_u64(&rng));
            uint16_t a[16 * 16], b[16 * 8];
            float fa[16 * 16], fb[16 * 8], d[16 * 8], want[16 * 8];
            for (int i = 0; i < 256; i++) {
                float f = rng_normal(&rng);
                a[i] = half ? __half_as_ushort(__float2half_rn(f)) : to_bf16(f);
                fa[i] = half ? __half2float(__ushort_as_half(a[i])) : of_bf16(a[i]);
            }
            for (int i = 0; i < 128; i++) {
                float f = rng_normal(&rng);
                b[i] = half ? __half_as_ushort(__float2half_rn(f)) : to_bf16(f);
                fb[i] = half ? __half2float(__ushort_as_half(b[i])) : of_bf16(b[i]);
                d[i] = want[i] = rng_normal(&rng);
            }
            for (int i = 0; i < 128; i++)
                for (int k = 0; k < 16; k++)
                    want[i] += fa[i / 8 * 16 + k] * fb[k * 8 + i % 8];
            uint16_t *da = device_copy(a, 256), *db = device_copy(b, 128);
            float *dd = device_copy(d, 128);
            check_cuda(launch_mma_16(dd, da, db, half, NULL));
            host_copy(d, dd, 128);
#ifdef GERYON_GPUSIM
            assert_same_bits(d, want, 128, half ? "f16" : "bf16");
#else
            assert_close(d, want, 128, 1e-4, 1e-5, half ? "f16" : "bf16");
#endif
            cudaFree(da);
            cudaFree(db);
            cudaFree(dd);
        }
}
static void mma_of_bytes_is_exact(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int order = 0; order < N_ORDERS; order++) {
        use_order(order, rng_u64(&rng));
        int8_t a[16 * 32], b[32 * 8];
        int32_t d[16 * 8], want[16 * 8];
        for (int8_t &x : a)
            x = (int8_t)rng_u64(&rng);
        for (int8_t &x : b)
            x = (int8_t)rng_u64(&rng);
        for (int i = 0; i < 128; i++) {
            d[i] = want[i] = (int32_t)rng_below(&rng, 1000);
            for (int k = 0; k < 32; k++)
                want[i] += a[i / 8 * 32 + k] * b[k * 8 + i % 8];
        }
        int8_t *da = device_copy(a, sizeof a), *db = device_copy(b, sizeof b);
        int32_t *dd = device_copy(d, 128);
        check_cuda(launch_mma_s8(dd, da, db, NULL));
        host_copy(d, dd, 128);
        assert_memory_equal(d, want, sizeof d);
        cudaFree(da);
        cudaFree(db);
        cudaFree(dd);
    }
}
static void ldmatrix_reads_rows_and_columns(void **) {
    for (int order = 0; order < N_ORDERS; order++) {
        use_order(order, 7);
        uint16_t in[32 * 8];
        uint32_t out[2 * 4 * 32];
        for (int i = 0; i < 256; i++)
            in[i] = (uint16_t)(i / 8 * 256 + i % 8); /* row and column */
        uint16_t *d = device_copy(in, 256);
        uint32_t *r = device_copy((uint32_t *)NULL, 256);
        check_cuda(launch_ldmatrix(r, d, NULL));
        host_copy(out, r, 256);
        for (int j = 0; j < 4; j++)
            for (int lane = 0; lane < 32; lane++) {
                const uint16_t *rows = in + j * 64;
                int g = lane / 4, t = lane % 4;
                uint32_t straight = rows[g * 8 + 2 * t] | (uint32_t)rows[g * 8 + 2 * t + 1] << 16;
                uint32_t turned = rows[2 * t * 8 + g] | (uint32_t)rows[(2 * t + 1) * 8 + g] << 16;
                assert_int_equal(out[j * 32 + lane], straight);
                assert_int_equal(out[(4 + j) * 32 + lane], turned);
            }
        cudaFree(d);
        cudaFree(r);
    }
}
static void halves_of_a_warp_exchange_for_themselves(void **) {
    float v[32], got[32], *in, *out = device_copy((float *)NULL, 32);
    for (int i = 0; i < 32; i++)
        v[i] = (float)(i * i);
    in = device_copy(v, 32);
    for (int order = 0; order < 4 * N_ORDERS; order++) {
        use_order(order, 31);
        check_cuda(launch_half_warps(out, in, NULL));
        host_copy(got, out, 32);
        for (int i = 0; i < 32; i++)
            assert_true(got[i] == (i < 16 ? 1240.0f : 2 * 9176.0f));
    }
    cudaFree(in);
    cudaFree(out);
}
static void threads_that_have_returned_hold_up_no_barrier(void **) {
    float got[40], *out = device_copy((float *)NULL, 40);
    for (int order = 0; order < N_ORDERS; order++) {
        use_order(order, 13);
        check_cuda(launch_early_return(out, NULL));
        host_copy(got, out, 40);
        for (int i = 0; i < 40; i++)
            assert_true(got[i] == (float)(40 - i));
    }
    cudaFree(out);
}
static void async_copies_are_there_after_the_wait(void **) {
    float v[128], got[96], *in, *out = device_copy((float *)NULL, 96);
    for (int i = 0; i < 128; i++)
        v[i] = (float)(i + 1);
    in = device_copy(v, 128);
    check_cuda(launch_copy_states(out, in, NULL));
    host_copy(got, out, 96);
    for (int i = 0; i < 32; i++) {
#ifdef GERYON_GPUSIM
        assert_true(got[i] == 1); /* a device may have copied by then */
#endif
        assert_true(got[32 + i] == v[4 * i]);
        assert_true(got[64 + i] == 0);
    }
    cudaFree(in);
    cudaFree(out);
}
static void atomics_count_every_thread(void **) {
    const uint32_t zero[3] = {};
    uint32_t n[3], *d = device_copy(zero, 3);
    check_cuda(launch_atomics(d, 100, NULL));
    host_copy(n, d, 3);
    assert_int_equal(n[0], 300);
    assert_int_equal(n[1], 3 * 4950);
    assert_int_equal(n[2], 99);
    cudaFree(d);
}
#ifdef GERYON_GPUSIM
static void shared_memory_is_nan_at_the_start_of_each_block(void **) {
    float got[5], *out = device_copy((float *)NULL, 5);
    for (int order = 0; order < N_ORDERS; order++) {
        use_order(order, 3);
        check_cuda(launch_fresh_shared(out, 5, NULL));
        host_copy(got, out, 5);
        for (float n : got)
            assert_true(n == 32);
    }
    cudaFree(out);
}
#endif

// ---- whole kernels

static void rmsnorm_equals_plain_c_in_every_order(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int d : {8, 64, 520, 1544}) { /* the last two wrap the block, unevenly */
        const int rows = 5;
        halves x = random_bf16(&rng, (size_t)(rows * d), 1), w = random_bf16(&rng, (size_t)d, 1);
        halves first, got((size_t)(rows * d));
        uint16_t *dx = device_copy(x.data(), x.size()), *dw = device_copy(w.data(), w.size());
        uint16_t *dy = device_copy((uint16_t *)NULL, x.size());
        for (int order = 0; order < N_ORDERS; order++) {
            use_order(order, rng_u64(&rng));
            check_cuda(launch_rmsnorm(dy, dx, dw, rows, d, 1e-5f, NULL));
            host_copy(got.data(), dy, got.size());
            if (order == 0) first = got;
            assert_memory_equal(got.data(), first.data(), got.size() * 2);
        }
        for (int r = 0; r < rows; r++) {
            double sum = 0;
            for (int i = 0; i < d; i++)
                sum += pow(of_bf16(x[(size_t)(r * d + i)]), 2);
            for (int i = 0; i < d; i++) {
                double want =
                    of_bf16(x[(size_t)(r * d + i)]) / sqrt(sum / d + 1e-5) * of_bf16(w[(size_t)i]);
                assert_true(fabs(of_bf16(got[(size_t)(r * d + i)]) - want) <=
                            fabs(want) * 0x1p-8 + 1e-30);
            }
            /* Alone the row has the same bits. */
            check_cuda(launch_rmsnorm(dy, dx + r * d, dw, 1, d, 1e-5f, NULL));
            halves alone((size_t)d);
            host_copy(alone.data(), dy, alone.size());
            assert_memory_equal(alone.data(), &got[(size_t)(r * d)], alone.size() * 2);
        }
        cudaFree(dx);
        cudaFree(dw);
        cudaFree(dy);
    }
}

struct gemm_shape {
    int m, n, k;
};
static void gemm_equals_plain_c_in_every_order(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (gemm_shape s : {gemm_shape{1, 32, 32}, {33, 65, 40}, {40, 70, 168}}) {
        const size_t m = (size_t)s.m, n = (size_t)s.n, k = (size_t)s.k;
        halves a = random_bf16(&rng, m * k, 1), b = random_bf16(&rng, n * k, 1);
        std::vector<float> got(m * n), first, want(m * n);
        uint16_t *da = device_copy(a.data(), a.size()), *db = device_copy(b.data(), b.size());
        float *dc = device_copy((float *)NULL, m * n);
        for (size_t i = 0; i < m * n; i++) {
            double sum = 0;
            for (size_t j = 0; j < k; j++)
                sum += (double)of_bf16(a[i / n * k + j]) * of_bf16(b[i % n * k + j]);
            want[i] = (float)sum;
        }
        for (int order = 0; order < N_ORDERS; order++) {
            use_order(order, rng_u64(&rng));
            check_cuda(launch_gemm(dc, da, db, s.m, s.n, s.k, order % 2, NULL));
            host_copy(got.data(), dc, got.size());
            if (order == 0) first = got;
            assert_same_bits(got.data(), first.data(), got.size(), "another order or tile");
        }
        assert_close(got.data(), want.data(), got.size(), 1e-4, 1e-4, "gemm");
        for (size_t row = 0; row < m; row += 7) { /* alone, and as the last row of a tile */
            check_cuda(launch_gemm(dc, da + row * k, db, 1, s.n, s.k, true, NULL));
            host_copy(got.data(), dc, n);
            assert_same_bits(got.data(), &first[row * n], n, "a row alone");
        }
        cudaFree(da);
        cudaFree(db);
        cudaFree(dc);
    }
}

static void paged_attention_equals_plain_c_in_every_order(void **) {
    enum { D = ATTEND_D, P = ATTEND_PAGE, H = 4, G = 2, SEQS = 3, T = 12, PAGES = 40 };
    const int lens[5] = {1, 33, 64, 65, 190}, seqs[5] = {0, 1, 1, 2, 2};
    const int n_splits = (T * P + ATTEND_SPLIT - 1) / ATTEND_SPLIT, R = 5;
    struct rng rng;
    rng_seed(&rng, test_seed());
    halves q = random_bf16(&rng, R * H * D, 1), k = random_bf16(&rng, PAGES * G * P * D, 1);
    halves v = random_bf16(&rng, PAGES * G * P * D, 1);
    uint32_t table[SEQS * T], order_of[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        order_of[i] = i;
    for (uint32_t i = PAGES - 1; i > 0; i--)
        std::swap(order_of[i], order_of[rng_below(&rng, i + 1)]);
    for (uint32_t i = 0; i < SEQS * T; i++)
        table[i] = order_of[i];
    for (int i = 1; i < T; i++)
        table[i] =
            0x7FFFFFFF; /* sequence 0 holds one position; the rest of its table is not in use */
    uint16_t *dq = device_copy(q.data(), q.size()), *dk = device_copy(k.data(), k.size());
    uint16_t *dv = device_copy(v.data(), v.size());
    uint32_t *dt = device_copy(table, SEQS * T);
    int32_t *ds = device_copy(seqs, 5), *dl = device_copy(lens, 5);
    float *work = device_copy((float *)NULL, (size_t)(R * H * n_splits * (D + 2)));
    float *dout = device_copy((float *)NULL, (size_t)(R * H * D));
    std::vector<float> got((size_t)(R * H * D)), first, want((size_t)(R * H * D));
    for (int order = 0; order < N_ORDERS; order++) {
        use_order(order, rng_u64(&rng));
        check_cuda(launch_attend(dout, dq, dk, dv, dt, ds, dl, work, {R, H, G, T, n_splits}, NULL));
        host_copy(got.data(), dout, got.size());
        if (order == 0) first = got;
        assert_same_bits(got.data(), first.data(), got.size(), "another order");
    }
    for (int r = 0; r < R; r++)
        for (int h = 0; h < H; h++) {
            double score[T * P], best = -INFINITY, sum = 0;
            const int g = h / (H / G);
            auto at = [&](int t) {
                return (size_t)((table[seqs[r] * T + t / P] * G + (uint32_t)g) * P +
                                (uint32_t)(t % P)) *
                       D;
            };
            for (int t = 0; t < lens[r]; t++) {
                score[t] = 0;
                for (size_t i = 0; i < D; i++)
                    score[t] +=
                        (double)of_bf16(q[(size_t)(r * H + h) * D + i]) * of_bf16(k[at(t) + i]);
                score[t] /= sqrt((double)D);
                best = fmax(best, score[t]);
            }
            for (int t = 0; t < lens[r]; t++)
                sum += score[t] = exp(score[t] - best);
            for (size_t i = 0; i < D; i++) {
                double o = 0;
                for (int t = 0; t < lens[r]; t++)
                    o += score[t] / sum * of_bf16(v[at(t) + i]);
                want[(size_t)(r * H + h) * D + i] = (float)o;
            }
        }
    assert_close(got.data(), want.data(), got.size(), 1e-5, 1e-4, "attention");
    for (int r = 0; r < R; r++) { /* a row alone */
        check_cuda(launch_attend(dout, dq + r * H * D, dk, dv, dt, ds + r, dl + r, work,
                                 {1, H, G, T, n_splits}, NULL));
        host_copy(got.data(), dout, (size_t)(H * D));
        assert_same_bits(got.data(), &first[(size_t)(r * H * D)], (size_t)(H * D), "a row alone");
    }
    for (void *p : {(void *)dq, (void *)dk, (void *)dv, (void *)dt, (void *)ds, (void *)dl,
                    (void *)work, (void *)dout})
        cudaFree(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_comes_back_and_rounding_is_to_even),
        cmocka_unit_test(every_f16_comes_back_and_rounding_is_to_even),
        cmocka_unit_test(powers_of_two_are_close_and_exact_where_it_counts),
        cmocka_unit_test(warp_helpers_equal_shuffles),
        cmocka_unit_test(block_helpers_sum_in_every_block_size),
        cmocka_unit_test(mma_of_16_bit_types_is_the_product),
        cmocka_unit_test(mma_of_bytes_is_exact),
        cmocka_unit_test(ldmatrix_reads_rows_and_columns),
        cmocka_unit_test(halves_of_a_warp_exchange_for_themselves),
        cmocka_unit_test(threads_that_have_returned_hold_up_no_barrier),
        cmocka_unit_test(async_copies_are_there_after_the_wait),
        cmocka_unit_test(atomics_count_every_thread),
#ifdef GERYON_GPUSIM
        cmocka_unit_test(shared_memory_is_nan_at_the_start_of_each_block),
#endif
        cmocka_unit_test(rmsnorm_equals_plain_c_in_every_order),
        cmocka_unit_test(gemm_equals_plain_c_in_every_order),
        cmocka_unit_test(paged_attention_equals_plain_c_in_every_order),
    };
    return cmocka_run_group_tests_name("gpusim_kernels", tests, NULL, NULL);
}
