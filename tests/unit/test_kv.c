/* What kv_store keeps of a vector, and attention over 8-bit KV, against the definition in cpu.h; a row's
 * bits whatever rows share its tile. Whole models: test_forward, test_draft. */
#include "tests/unit/tiny_model.h"

static struct tiny open_int8(const struct kernels *k, uint32_t head_dim) {
    struct tiny_options o = tiny_defaults();
    o.head_dim = head_dim;
    o.kv = DTYPE_Q8_0;
    return tiny_open(k, &o);
}

/* One vector as it lies in the memory of a kv head. */
struct stored {
    uint16_t scale;
    int8_t q[128];
};

/* ref keeps K and V by position; the fast tables keep K by dimension (attend_avx2.c). */
static struct stored read_stored(const struct device *dev, char *head, uint32_t at, bool v) {
    struct stored s = {.scale = cpu_kv_scales(dev, head, v)[at]};
    const int8_t *from = (const int8_t *)head + (v ? dev->value_bytes : 0);
    bool by_dimension = !v && dev->ops != &cpu_ops_ref;
    for (uint32_t i = 0; i < dev->shape.head_dim; i++)
        s.q[i] = by_dimension ? from[i * PAGE_TOKENS + at] : from[at * dev->head_pad + i];
    return s;
}

static float widened(const struct stored *s, uint32_t i) {
    return f16_to_f32(s->scale) * (float)s->q[i];
}

/* ---- storing ---------------------------------------------------------------------------------- */

static float largest(const float *x, uint32_t n) {
    float most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    return most;
}

static void check_stored(const struct stored *s, const float *x, uint32_t n) {
    double d = (double)f16_to_f32(s->scale), most = (double)largest(x, n);
    assert_int_equal(s->scale, f32_to_f16(fminf(largest(x, n) / 127.0f, 65504.0f)));
    for (uint32_t i = 0; i < n; i++) {
        double ratio = d > 0 ? (double)x[i] / d : 0;
        if (fabs(ratio) > 127) ratio = copysign(127, ratio);
        if (!(fabs(ratio - s->q[i]) <= 0.5 + 1e-5)) /* x / d is rounded to float32 before */
            fail_msg("number %u: %.9g of %.9g by %.9g became %d", i, (double)x[i], most, d,
                     s->q[i]);
    }
}

/* Vectors of every size, some with zeros in front. */
static void random_vector(struct rng *rng, float *x, uint32_t n) {
    float size = ldexpf(1, (int)rng_below(rng, 60) - 34);
    uint32_t first = rng_below(rng, 4) == 0 ? rng_below(rng, n) : 0;
    for (uint32_t i = 0; i < n; i++)
        x[i] = i < first ? 0 : size * rng_normal(rng);
}

static void vectors_are_stored_as_defined_alike_in_every_table(void **state) {
    (void)state;
    const uint32_t dims[] = {2, 6, 8, 16, 20, 48, 64, 128};
    for (size_t d = 0; d < ARRAY_LEN(dims); d++) {
        uint32_t n = dims[d];
        struct tiny t[TABLES_MAX];
        for (uint32_t i = 0; i < n_tables; i++)
            t[i] = open_int8(tables[i], n);
        struct rng rng;
        rng_seed(&rng, n);
        for (uint32_t round = 0; round < 200; round++) {
            float k[128 + 8], v[128 + 8]; /* what lies behind a vector is not its own */
            random_vector(&rng, k, n);
            random_vector(&rng, v, n);
            for (uint32_t i = n; i < n + 8; i++)
                k[i] = v[i] = INFINITY;
            uint32_t at = rng_below(&rng, PAGE_TOKENS);
            for (uint32_t i = 0; i < n_tables; i++) {
                struct device *dev = t[i].dev;
                dev->ops->kv_store(dev, dev->kv, at, k, v);
                struct stored sk = read_stored(dev, dev->kv, at, false),
                              sv = read_stored(dev, dev->kv, at, true);
                check_stored(&sk, k, n);
                check_stored(&sv, v, n);
                if (i == 0) continue;
                struct stored rk = read_stored(t[0].dev, t[0].dev->kv, at, false),
                              rv = read_stored(t[0].dev, t[0].dev->kv, at, true);
                assert_memory_equal(sk.q, rk.q, n);
                assert_memory_equal(sv.q, rv.q, n);
            }
        }
        for (uint32_t i = 0; i < n_tables; i++)
            tiny_close(&t[i]);
    }
}

/* A store touches its own position alone, and stays within the head's memory. */
static void a_store_leaves_its_neighbours(void **state) {
    (void)state;
    for (uint32_t i = 0; i < n_tables; i++) {
        struct tiny t = open_int8(tables[i], 20);
        size_t bytes = t.dev->head_bytes;
        assert_int_equal(bytes, 2 * PAGE_TOKENS * (32 + 2));
        char *head = t.dev->kv + bytes;
        float x[20];
        for (int j = 0; j < 20; j++)
            x[j] = (float)j;
        t.dev->ops->kv_store(t.dev, head, 5, x, x);
        uint32_t changed = 0;
        for (size_t b = 0; b < 3 * bytes; b++) {
            bool own = b >= bytes && b < 2 * bytes;
            if ((unsigned char)t.dev->kv[b] == 0xff) continue;
            assert_true(own);
            changed++;
        }
        assert_int_equal(changed, 2 * (20 + 2));
        for (uint32_t at = 0; at < PAGE_TOKENS; at++) {
            struct stored k = read_stored(t.dev, head, at, false),
                          v = read_stored(t.dev, head, at, true);
            assert_true((k.scale == 0xffff) == (at != 5));
            assert_true((v.scale == 0xffff) == (at != 5));
        }
        tiny_close(&t);
    }
}

/* A head's memory in bf16 as the fast tables have it (attend_avx2.c), number by number. */
static void put_slowly(uint16_t *head, uint32_t at, uint32_t n, const float *k, const float *v) {
    uint32_t ep = (uint32_t)align_up(n, 16);
    for (uint32_t i = 0; i < n; i++) {
        head[(i / 2 * PAGE_TOKENS + at) * 2 + i % 2] = f32_to_bf16(k[i]);
        head[PAGE_TOKENS * ep + (at / 2 * ep + i) * 2 + at % 2] = f32_to_bf16(v[i]);
    }
}

static void vectors_in_bf16_lie_where_they_should(void **state) {
    (void)state;
    const uint32_t dims[] = {2, 6, 16, 18, 20, 48, 64, 128};
    for (size_t d = 0; d < ARRAY_LEN(dims); d++)
        for (uint32_t i = 1; i < n_tables; i++) {
            struct tiny_options o = tiny_defaults();
            uint32_t n = o.head_dim = dims[d];
            o.kv = DTYPE_BF16;
            struct tiny t = tiny_open(tables[i], &o);
            size_t bytes = t.dev->head_bytes;
            char *head = t.dev->kv + bytes, *expected = malloc(3 * bytes); /* with neighbours */
            memcpy(expected, t.dev->kv, 3 * bytes);
            struct rng rng;
            rng_seed(&rng, n);
            for (uint32_t round = 0; round < 100; round++) {
                float k[128 + 16], v[128 + 16]; /* what lies behind a vector is not its own */
                for (uint32_t j = 0; j < n + 16; j++) { /* any bits, halfway ones, not finite */
                    uint64_t bits = rng_u64(&rng);
                    uint32_t u[2] = {(uint32_t)bits, (uint32_t)(bits >> 32)};
                    if (j % 5 == 1) u[0] = (u[0] & 0xffff0000) | 0x8000;
                    if (j % 7 == 2) u[1] = u[1] | 0x7f800000;
                    memcpy(&k[j], &u[0], 4);
                    memcpy(&v[j], &u[1], 4);
                }
                uint32_t at = rng_below(&rng, PAGE_TOKENS);
                t.dev->ops->kv_store(t.dev, head, at, k, v);
                put_slowly((uint16_t *)(void *)(expected + bytes), at, n, k, v);
                if (memcmp(t.dev->kv, expected, 3 * bytes) != 0)
                    fail_msg("%s: %u numbers at %u", tables[i]->name, n, at);
            }
            free(expected);
            tiny_close(&t);
        }
}

static void store_one(struct tiny *t, const float *x, struct stored *k, struct stored *v) {
    t->dev->ops->kv_store(t->dev, t->dev->kv, 3, x, x);
    *k = read_stored(t->dev, t->dev->kv, 3, false);
    *v = read_stored(t->dev, t->dev->kv, 3, true);
    assert_memory_equal(k->q, v->q, t->shape.head_dim);
    assert_int_equal(k->scale, v->scale);
}

static void ties_go_to_even(void **state) {
    (void)state;
    const float x[16] = {127,    0.5f,    1.5f,   2.5f,  3.5f,  -0.5f, -1.5f, -2.5f,
                         126.5f, -126.5f, 125.5f, 0.49f, 0.51f, -0.0f, -127,  64};
    const int8_t q[16] = {127, 0, 2, 2, 4, 0, -2, -2, 126, -126, 126, 0, 1, 0, -127, 64};
    for (uint32_t i = 0; i < n_tables; i++) {
        struct tiny t = open_int8(tables[i], 16);
        struct stored k, v;
        store_one(&t, x, &k, &v);
        assert_int_equal(k.scale, 0x3c00);
        assert_memory_equal(k.q, q, 16);
        tiny_close(&t);
    }
}

static void extremes_have_an_answer(void **state) {
    (void)state;
    const float values[] = {0,     -0.0f, 1e-45f, 1e-20f, 2e-6f,  3e-6f,
                            1e-5f, 8e6f,  8.4e6f, 1e30f,  3.4e38f};
    for (uint32_t i = 0; i < n_tables; i++) {
        struct tiny t = open_int8(tables[i], 20);
        for (size_t j = 0; j < ARRAY_LEN(values); j++) {
            float x[20];
            struct stored k, v;
            for (uint32_t n = 0; n < 20; n++)
                x[n] = n == 17 ? -values[j] : values[j] / (float)(n + 1);
            store_one(&t, x, &k, &v);
            check_stored(&k, x, 20);
        }
        tiny_close(&t);
    }
}

static void what_is_not_finite_stays_visible(void **state) {
    (void)state;
    const float values[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < n_tables; i++) {
        struct tiny t = open_int8(tables[i], 20);
        for (size_t j = 0; j < ARRAY_LEN(values) * 20; j++) {
            float x[20];
            struct stored k, v;
            for (uint32_t n = 0; n < 20; n++)
                x[n] = n == j % 20 ? values[j / 20] : (float)n;
            store_one(&t, x, &k, &v);
            assert_int_equal(k.scale, KV_SCALE_NAN);
            for (uint32_t n = 0; n < 20; n++) {
                assert_int_equal(k.q[n], 0);
                assert_true(isnan(widened(&k, n)));
            }
        }
        tiny_close(&t);
    }
}

/* ---- attention -------------------------------------------------------------------------------- */

enum { HISTORY = 280, ROWS = 45 };

/* Random K and V of `n` positions in the pages of s, layer 0. */
static void fill_pages(struct tiny *t, const struct tiny_sequence *s, uint32_t n) {
    struct device *dev = t->dev;
    struct rng rng;
    rng_seed(&rng, 77);
    for (uint32_t pos = 0; pos < n; pos++)
        for (uint32_t g = 0; g < dev->shape.n_kv_heads; g++) {
            float k[128], v[128];
            for (uint32_t i = 0; i < dev->shape.head_dim; i++)
                k[i] = 1.5f * rng_normal(&rng), v[i] = rng_normal(&rng);
            char *page = cpu_cached_page(dev, s->pages[pos / PAGE_TOKENS], 0);
            dev->ops->kv_store(dev, page + g * dev->head_bytes, pos % PAGE_TOKENS, k, v);
        }
}

/* o of n rows from position pos on, each with its own random q: [n][heads * head_dim]. */
static void attend(struct tiny *t, const struct tiny_sequence *s, uint32_t pos, uint32_t n,
                   float *out) {
    struct device *dev = t->dev;
    uint32_t width = dev->shape.n_heads * dev->shape.head_dim;
    struct segment rows = tiny_segment(s, VIEW_BASE, pos, n, 0);
    struct forward fwd = {1, &rows};
    assert_int_equal(t->k->begin(dev, &fwd), OK);
    for (uint32_t r = 0; r < n; r++) {
        struct rng rng;
        rng_seed(&rng, 1000 + pos + r);
        for (uint32_t i = 0; i < width; i++)
            dev->q[r * dev->ld_q + i] = rng_normal(&rng);
    }
    assert_int_equal(t->k->attend(dev, 0), OK);
    for (uint32_t r = 0; r < n; r++)
        memcpy(out + (size_t)r * width, dev->o + r * dev->ld_q, width * sizeof *out);
}

/* One head of the row at `pos`, in double over what is stored. */
static void attend_double(const struct tiny *t, const struct tiny_sequence *s, uint32_t row,
                          uint32_t pos, uint32_t head, double *out) {
    struct device *dev = t->dev;
    uint32_t e = dev->shape.head_dim, g = head / dev->group;
    const float *q = dev->q + row * dev->ld_q + head * e;
    static double score[TINY_POSITIONS];
    double most = -INFINITY, total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t at = 0; at <= pos; at++) {
            char *page = cpu_cached_page(dev, s->pages[at / PAGE_TOKENS], 0);
            struct stored x =
                read_stored(dev, page + g * dev->head_bytes, at % PAGE_TOKENS, pass == 1);
            double p = exp(score[at] - most), sum = 0;
            for (uint32_t i = 0; i < e; i++)
                if (pass == 0)
                    sum += (double)q[i] * (double)widened(&x, i);
                else
                    out[i] = (at == 0 ? 0 : out[i]) + p * (double)widened(&x, i);
            if (pass == 0) {
                score[at] = sum / sqrt((double)e);
                most = fmax(most, score[at]);
            } else {
                total += p;
            }
        }
    for (uint32_t i = 0; i < e; i++)
        out[i] /= total;
}

/* Scores reach +-10 here and are float32 sums of up to 128 terms, off by some 1e-6 each; so are the
 * probabilities, relatively, and |v| reaches 4. */
static const double ATTEND_TOLERANCE = 2e-5;

static void attention_is_that_of_the_stored_vectors(void **state) {
    (void)state;
    const uint32_t dims[] = {6, 16, 64, 128};
    for (size_t d = 0; d < ARRAY_LEN(dims); d++)
        for (uint32_t i = 0; i < n_tables; i++) {
            struct tiny t = open_int8(tables[i], dims[d]);
            struct tiny_sequence s = tiny_sequence(0, HISTORY + ROWS, 1, 5, 7);
            fill_pages(&t, &s, HISTORY + ROWS);
            uint32_t heads = t.shape.n_heads, e = dims[d];
            float *got = calloc((size_t)ROWS * heads * e, sizeof *got);
            attend(&t, &s, HISTORY, ROWS, got);
            for (uint32_t r = 0; r < ROWS; r += 11)
                for (uint32_t h = 0; h < heads; h++) {
                    double want[128];
                    attend_double(&t, &s, r, HISTORY + r, h, want);
                    for (uint32_t j = 0; j < e; j++) {
                        double error = fabs((double)got[(r * heads + h) * e + j] - want[j]);
                        if (!(error < ATTEND_TOLERANCE))
                            fail_msg("%s: row %u head %u: off by %.3g", tables[i]->name, r, h,
                                     error);
                    }
                }
            free(got);
            tiny_close(&t);
        }
}

/* Few rows read the integers as they are, many have them widened first. */
static void attention_does_not_depend_on_the_rows_beside(void **state) {
    (void)state;
    const uint32_t dims[] = {6, 64};
    for (size_t d = 0; d < ARRAY_LEN(dims); d++)
        for (uint32_t i = 0; i < n_tables; i++) {
            struct tiny t = open_int8(tables[i], dims[d]);
            struct tiny_sequence s = tiny_sequence(0, HISTORY + ROWS, 1, 5, 7);
            fill_pages(&t, &s, HISTORY + ROWS);
            uint32_t width = t.shape.n_heads * dims[d];
            float *whole = calloc((size_t)ROWS * width, sizeof *whole),
                  *part = calloc((size_t)ROWS * width, sizeof *part);
            attend(&t, &s, HISTORY, ROWS, whole);
            for (uint32_t n = 1; n <= 12; n += n < 4 ? 1 : 3)
                for (uint32_t at = 0; at < ROWS; at += n) {
                    uint32_t count = ROWS - at < n ? ROWS - at : n;
                    attend(&t, &s, HISTORY + at, count, part);
                    assert_same_bits(part, whole + (size_t)at * width, (size_t)count * width,
                                     tables[i]->name);
                }
            free(whole);
            free(part);
            tiny_close(&t);
        }
}

static void a_broken_position_is_seen_by_those_who_attend_it(void **state) {
    (void)state;
    static const enum dtype kinds[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0};
    for (uint32_t i = 0; i < n_tables; i++)
        for (uint32_t kind = 0; kind < 12; kind++) {
            bool in_v = kind % 2, rounded = kind / 2 % 2;
            struct tiny_options o = tiny_defaults();
            o.kv = kinds[kind / 4];
            o.orthros = false;
            if (rounded) o.activations = ACTIVATIONS_BF16;
            o.head_dim = 16;
            struct tiny t = tiny_open(tables[i], &o);
            struct tiny_sequence s = tiny_sequence(0, 60, 1, 5, 7);
            fill_pages(&t, &s, 60);
            /* Position 45 is in the midst of the rows of a tile. */
            float fine[16] = {1}, broken[16] = {1};
            broken[9] = in_v ? INFINITY : NAN; /* a score of -inf would be a probability of 0 */
            char *page = cpu_cached_page(t.dev, s.pages[2], 0);
            t.dev->ops->kv_store(t.dev, page, 13, in_v ? fine : broken, in_v ? broken : fine);
            float out[60 * 96];
            attend(&t, &s, 0, 60, out);
            for (uint32_t row = 0; row < 60; row++)
                for (uint32_t j = 0; j < 96; j++) { /* kv head 0: the first three heads */
                    bool sees = row >= 45 && j < 48, finite = isfinite(out[row * 96 + j]);
                    if (finite == !sees) continue;
                    /* In V alone that number of the vector need be broken. */
                    if (sees && in_v && o.kv != DTYPE_Q8_0 && j % 16 != 9) continue;
                    fail_msg("%s, kv %s, %s: row %u, %u is %g", tables[i]->name, dtype_name(o.kv),
                             in_v ? "v" : "k", row, j, (double)out[row * 96 + j]);
                }
            tiny_close(&t);
        }
}

int main(void) {
    tables_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_stored_as_defined_alike_in_every_table),
        cmocka_unit_test(a_store_leaves_its_neighbours),
        cmocka_unit_test(vectors_in_bf16_lie_where_they_should),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(extremes_have_an_answer),
        cmocka_unit_test(what_is_not_finite_stays_visible),
        cmocka_unit_test(attention_is_that_of_the_stored_vectors),
        cmocka_unit_test(attention_does_not_depend_on_the_rows_beside),
        cmocka_unit_test(a_broken_position_is_seen_by_those_who_attend_it),
    };
    const struct CMUnitTest on_tiles[] = {
        cmocka_unit_test(a_broken_position_is_seen_by_those_who_attend_it),
    };
    if (tiles_are_emulated()) return cmocka_run_group_tests(on_tiles, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
