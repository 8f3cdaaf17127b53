/* A tiny random model through all stages: the fast tables against ref, and row invariance: a row's
 * bits depend on its own sequence alone. With the CUDA backend (tests/sim) that table against ref, over
 * fewer positions, since a simulated device takes its time. */
#include "tests/unit/tiny_model.h"

static float *logits_of(uint32_t n) {
    return calloc((size_t)n * 320, sizeof(float));
}

/* Two tables in float32, 2 layers: rounding of sums of about 100 terms, carried through. */
static const double ROUNDING = 2e-4;

static void prefill_on(const struct kernels *k, const struct tiny_options *o, uint32_t n_tokens,
                       uint32_t chunk, float *out) {
    struct tiny_sequence s = tiny_sequence(0, n_tokens, 7, 9, 5);
    struct tiny t = tiny_open(k, o);
    tiny_prefill(&t, &s, chunk, out);
    tiny_close(&t);
}

/* The first fast table is close to ref, the others have its bits. */
static void compare_over(const struct tiny_options *o, uint32_t n_tokens, uint32_t chunk,
                         double tolerance, const char *what) {
    uint32_t first = tables[0] == kernels_ref();
    if (n_tables == first) skip();
    size_t n = (size_t)n_tokens * o->vocab;
    float *want = logits_of(n_tokens), *fast = logits_of(n_tokens), *got = logits_of(n_tokens);
    prefill_on(kernels_ref(), o, n_tokens, chunk, want);
    prefill_on(tables[first], o, n_tokens, chunk, fast);
    assert_close(fast, want, n, tolerance, tolerance, what);
    for (uint32_t i = first + 1; i < n_tables; i++) {
        prefill_on(tables[i], o, n_tokens, chunk, got);
        assert_same_bits(got, fast, n, what);
    }
    free(want);
    free(fast);
    free(got);
}

static uint32_t compared_positions(void) {
    return tables_are_cuda() ? 67 : 150;
}

static void compare_with_ref(const struct tiny_options *o, const char *what) {
    uint32_t n = compared_positions();
    compare_over(o, n, n / (o->orthros ? 2 : 1), ROUNDING, what);
}

static void fast_tables_match_ref_in_every_weight_type(void **state) {
    (void)state;
    for (enum dtype w = 0; w < DTYPE_COUNT; w++) {
        struct tiny_options o = tiny_defaults();
        o.weights = w;
        if (w == DTYPE_F32 || !tables_are_cuda()) compare_with_ref(&o, dtype_name(w));
        if (dtype_block(w) == 256) continue; /* a wide model, slow on ref and in the simulator */
        o.biases = o.untied = true;
        o.head_norms = false;
        compare_with_ref(&o, dtype_name(w));
    }
}

static void fast_tables_match_ref_in_odd_shapes(void **state) {
    (void)state;
    const uint32_t dims[] = {2, 6, 12, 20, 48};
    for (size_t i = 0; i < ARRAY_LEN(dims); i++) {
        struct tiny_options o = tiny_defaults();
        o.head_dim = dims[i];
        o.vocab = 289; /* one column into its last group */
        compare_with_ref(&o, "odd head_dim");
    }
}

static void fast_tables_match_ref_over_long_histories(void **state) {
    (void)state;
    struct tiny_options o = tiny_defaults();
    uint32_t n = tables_are_cuda() ? 300 : 500; /* beyond two splits of attention */
    compare_over(&o, n, n / 2, ROUNDING, "long history");
}

static void fast_tables_match_ref_in_orthros_models(void **state) {
    (void)state;
    const uint32_t windows[] = {1, 8, 20, 130};
    for (size_t i = 0; i < ARRAY_LEN(windows); i++) {
        struct tiny_options o = tiny_defaults();
        o.orthros = true;
        o.window = windows[i];
        compare_with_ref(&o, "orthros");
    }
}

/* The branches' inputs are sums of sources divided by their norms: rounding grows a little. */
static void fast_tables_match_ref_in_msar_models(void **state) {
    (void)state;
    for (uint32_t branches = 1; branches <= 4; branches++) {
        struct tiny_options o = tiny_defaults();
        o.msar_streams = 5 - branches;
        o.msar_branches = branches;
        o.orthros = branches % 2;
        o.window = 20;
        compare_over(&o, compared_positions(), 50, 5e-4, "msar");
    }
}

/* Values that differ in their last bit are rounded to neighbours now and then: 2^-8 apart in bf16,
 * a 127th of their vector's largest in 8 bits. */
static void fast_tables_match_ref_with_rounded_kv(void **state) {
    (void)state;
    const enum dtype kinds[] = {DTYPE_BF16, DTYPE_Q8_0};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct tiny_options o = tiny_defaults();
        uint32_t n = compared_positions();
        o.kv = kinds[i];
        compare_over(&o, n, n, 5e-2, dtype_name(o.kv));
        o.orthros = true;
        o.window = 20;
        compare_over(&o, n, n / 2, 5e-2, dtype_name(o.kv));
    }
}

/* |a - b| / |b| over all numbers. */
static double distance(const float *a, const float *b, size_t n) {
    double square = 0, error = 0;
    for (size_t k = 0; k < n; k++) {
        double d = (double)a[k] - (double)b[k];
        square += (double)b[k] * (double)b[k], error += d * d;
    }
    return sqrt(error / square);
}

/* A quantised number is off by up to a 254th of the largest of its block; where norms or attention
 * round differently, it moves by one. Other weights do not take part. */
static void int8_activations_stay_near_float_ones(void **state) {
    (void)state;
    if (tables_are_cuda()) skip();
    size_t n = (size_t)150 * 320;
    float *plain = logits_of(150), *int8[TABLES_MAX];
    for (uint32_t i = 0; i < n_tables; i++)
        int8[i] = logits_of(150);
    for (enum dtype w = 0; w < DTYPE_COUNT; w++)
        for (uint32_t i = 0; i < n_tables; i++) {
            struct tiny_options o = tiny_defaults();
            o.weights = w;
            prefill_on(tables[i], &o, 150, 150, plain);
            o.activations = ACTIVATIONS_INT8;
            prefill_on(tables[i], &o, 150, 150, int8[i]);
            double d = distance(int8[i], plain, n);
            if (dtype_block(w) == 1 ? d != 0 : !(d > 0 && d < 0.04))
                fail_msg("%s %s: %.3g", tables[i]->name, dtype_name(w), d);
            if (i == 1 && !(distance(int8[1], int8[0], n) < 0.03))
                fail_msg("ref, %s", dtype_name(w));
            if (i > 1) assert_same_bits(int8[i], int8[1], n, dtype_name(w));
        }
    free(plain);
    for (uint32_t i = 0; i < n_tables; i++)
        free(int8[i]);
}

/* The products of gate and up leave rows as the matrix behind them wants them, which may be of another
 * type, and attention does where a kv head's heads are whole steps of 32. */
static void rows_are_ready_for_a_matrix_of_another_type(void **state) {
    (void)state;
    if (tables_are_cuda()) skip();
    static const struct {
        enum dtype weights, down;
        uint32_t d_ff;
    } kinds[] = {{DTYPE_Q4_0, DTYPE_F16, 0},  {DTYPE_F16, DTYPE_Q4_1, 0},
                 {DTYPE_Q4_K, DTYPE_Q6_K, 0}, {DTYPE_Q8_0, DTYPE_F32, 0},
                 {DTYPE_BF16, DTYPE_F16, 80}, {DTYPE_Q5_1, DTYPE_BF16, 90}};
    enum { N = 60 };
    size_t n = (size_t)N * 320;
    float *want = logits_of(N), *got = logits_of(N), *first = logits_of(N);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
        for (uint32_t i = 1; i < n_tables; i++)
            for (int kind = 0; kind < 4; kind++) {
                struct tiny_options o = tiny_defaults();
                o.weights = kinds[k].weights;
                o.down_differs = true;
                o.down = kinds[k].down;
                o.d_ff = kinds[k].d_ff;
                o.head_dim = kind % 2 ? 32 : 20;
                o.n_threads = 2;
                prefill_on(tables[i], &o, N, N, want);
                o.activations = kind / 2 ? ACTIVATIONS_BF16 : ACTIVATIONS_INT8;
                prefill_on(tables[i], &o, N, 37, got);
                double d = distance(got, want, n);
                bool rounds = kind / 2 || dtype_block(o.weights) > 1 || dtype_block(o.down) > 1;
                if (rounds ? !(d > 0 && d < (kind / 2 ? 0.015 : 0.04)) : d != 0)
                    fail_msg("%s %zu %d: %.3g", tables[i]->name, k, kind, d);
                prefill_on(tables[i], &o, N, N, first); /* in one piece: the same */
                assert_same_bits(got, first, n, tables[i]->name);
            }
    free(want);
    free(got);
    free(first);
}

/* Affine, norms, RoPE and KV writes belong to the products of q, k and v where heads are whole steps of
 * 32 and every thread gets some of them (one thread does, eight do not), else they are a phase. */
static void heads_are_finished_with_their_products_or_after(void **state) {
    (void)state;
    if (tables_are_cuda()) skip();
    enum { N = 60 };
    size_t n = (size_t)N * 320;
    float *with = logits_of(N), *after = logits_of(N);
    for (uint32_t i = 0; i < n_tables; i++)
        for (int kind = 0; kind < 6; kind++) {
            struct tiny_options o = tiny_defaults();
            o.weights = kind % 2 ? DTYPE_Q8_0 : DTYPE_BF16;
            o.kv = kind == 0 ? DTYPE_F32 : kind < 4 ? DTYPE_BF16 : DTYPE_Q8_0;
            o.head_dim = kind % 3 ? 64 : 32;
            o.head_norms = kind != 3;
            o.orthros = kind > 1;
            o.window = 20;
            o.biases = true;
            o.activations = kind % 2 ? ACTIVATIONS_INT8 : ACTIVATIONS_BF16;
            prefill_on(tables[i], &o, N, 30, with);
            o.n_threads = 8;
            prefill_on(tables[i], &o, N, 30, after);
            assert_same_bits(after, with, n, tables[i]->name);
        }
    free(with);
    free(after);
}

/* Rows are rounded to bf16 before each product, which moves a number by up to 2^-9 of itself: of the
 * logits' size (root mean square) some 0.5 % after two layers. So are weights (cuda: but q8_0). */
static void bf16_activations_stay_near_float_ones(void **state) {
    (void)state;
    uint32_t positions = compared_positions();
    size_t n = (size_t)positions * 320;
    float *want = logits_of(positions), *got = logits_of(positions), *first = logits_of(positions);
    for (enum dtype w = 0; w < DTYPE_COUNT; w++)
        for (int orthros = 0; orthros < 2; orthros++) {
            struct tiny_options o = tiny_defaults();
            o.orthros = orthros;
            o.window = 20;
            o.biases = w % 2;
            o.weights = w;
            prefill_on(kernels_ref(), &o, positions, 35, want);
            o.activations = ACTIVATIONS_BF16;
            for (uint32_t i = 0; i < n_tables; i++) {
                prefill_on(tables[i], &o, positions, 35, i == 1 ? first : got);
                double d = distance(i == 1 ? first : got, want, n);
                if (!(d > 0 && d < 0.015))
                    fail_msg("%s %s: %.3g", tables[i]->name, dtype_name(w), d);
                if (i > 1) assert_same_bits(got, first, n, dtype_name(w));
            }
        }
    free(want);
    free(got);
    free(first);
}

/* Tables that attend in bf16 where activations are rounded: queries and probabilities too then move by
 * up to 2^-9 of themselves. */
static void attention_in_bf16_stays_near_float_one(void **state) {
    (void)state;
    if (tables_are_cuda()) skip();
    enum { N = 300 };
    float *want = logits_of(N), *got = logits_of(N);
    static const uint32_t dims[] = {16, 32, 48, 64};
    for (size_t d = 0; d < ARRAY_LEN(dims); d++)
        for (int orthros = 0; orthros < 2; orthros++) {
            struct tiny_options o = tiny_defaults();
            o.orthros = orthros;
            o.window = 37;
            o.head_dim = dims[d];
            o.kv = DTYPE_BF16;
            o.weights = DTYPE_BF16;
            o.activations = ACTIVATIONS_BF16;
            prefill_on(kernels_ref(), &o, N, 50, want);
            for (uint32_t i = 1; i < n_tables; i++) {
                prefill_on(tables[i], &o, N, 50, got);
                double off = distance(got, want, (size_t)N * o.vocab);
                if (!(off < 0.01)) fail_msg("%s, heads of %u: %.3g", tables[i]->name, dims[d], off);
            }
        }
    free(want);
    free(got);
}

/* Logits with KV in 8 bits beside those with KV in float32: each number of K and V is off by up to a
 * 254th of the largest of its vector. */
static void int8_kv_stays_near_float_kv(void **state) {
    (void)state;
    uint32_t positions = compared_positions();
    size_t n = (size_t)positions * 320;
    float *exact = logits_of(positions), *int8 = logits_of(positions);
    for (uint32_t i = 0; i < n_tables; i++)
        for (int orthros = 0; orthros < 2; orthros++) {
            struct tiny_options o = tiny_defaults();
            o.orthros = orthros;
            o.window = 30;
            prefill_on(tables[i], &o, positions, positions / 2, exact);
            o.kv = DTYPE_Q8_0;
            prefill_on(tables[i], &o, positions, positions / 2, int8);
            double d = distance(int8, exact, n);
            if (!(d > 0 && d < 0.01)) fail_msg("%s: %.3g", tables[i]->name, d);
        }
    free(exact);
    free(int8);
}

/* ---- row invariance --------------------------------------------------------------------------- */

/* Rows of s one or more at a time while other sequences prefill and decode in the same forwards. */
static void prefill_among_others(struct tiny *t, const struct tiny_sequence *s, float *out) {
    struct tiny_sequence a = tiny_sequence(1, 200, 100, 40, 1),
                         b = tiny_sequence(4, 200, 101, 60, 1);
    bool orthros = t->shape.orthros;
    uint32_t at_a = 0, at_b = 0, vocab = t->shape.vocab_size;
    for (uint32_t pos = 0, step = 0; pos < s->n_tokens; step++) {
        uint32_t n = 1 + step % 5 * 3;
        if (n > s->n_tokens - pos) n = s->n_tokens - pos;
        uint32_t na = 1 + step % 4, nb = 2;
        struct segment all[6] = {
            tiny_segment(&a, VIEW_BASE, at_a, na, orthros ? 0 : 1),
            tiny_segment(s, VIEW_BASE, pos, n, orthros ? 0 : n),
            tiny_segment(&b, VIEW_BASE, at_b, nb, orthros ? 0 : nb),
            tiny_segment(&b, VIEW_OUTPUT, at_b, nb, nb),
            tiny_segment(&a, VIEW_OUTPUT, at_a + na - 1, 1, 1),
            tiny_segment(s, VIEW_OUTPUT, pos, n, n),
        };
        tiny_forward(t, all, orthros ? 6 : 3);
        tiny_logits(t, orthros ? 3 : 1, n, out + (size_t)pos * vocab);
        tiny_end(t);
        at_a += na, at_b += nb, pos += n;
    }
}

static void rows_do_not_depend_on_company(const struct tiny_options *options) {
    enum { N = 145 };
    uint32_t n_tokens = tables_are_cuda() ? 70 : N;
    float *whole = logits_of(N), *other = logits_of(N);
    size_t n = (size_t)n_tokens * options->vocab;
    if (tables_are_cuda() && dtype_block(options->weights) == 256)
        goto done; /* widened as others */
    for (uint32_t i = dtype_block(options->weights) == 256; i < n_tables; i++) { /* slow on ref */
        struct tiny_options o = *options;
        struct tiny t = tiny_open(tables[i], &o);
        struct tiny_sequence s = tiny_sequence(2, n_tokens, 5, 0, 1);
        tiny_prefill(&t, &s, o.orthros ? n_tokens / 2 + 1 : n_tokens, whole);
        s = tiny_sequence(2, n_tokens, 5, 30, 1);
        tiny_prefill(&t, &s, 7, other);
        assert_same_bits(other, whole, n, "chunks of 7");
        s = tiny_sequence(3, n_tokens, 5, 3, 7); /* scattered pages; slot 3 */
        tiny_prefill(&t, &s, 1, other);
        assert_same_bits(other, whole, n, "one by one in scattered pages");
        tiny_close(&t);

        o.n_threads = 2;
        t = tiny_open(tables[i], &o);
        if (!tables_are_cuda()) {
            tiny_prefill(&t, &s, o.orthros ? 100 : n_tokens, other);
            assert_same_bits(other, whole, n, "two threads");
        }
        tiny_poison_pages(&t, 0, TINY_PAGES);
        s = tiny_sequence(0, n_tokens, 5, 5, 1);
        prefill_among_others(&t, &s, other);
        assert_same_bits(other, whole, n, "among others");
        tiny_close(&t);
    }
done:
    free(whole);
    free(other);
}

static const enum dtype kv_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0};

static void standard_rows_do_not_depend_on_company(void **state) {
    (void)state;
    for (enum dtype w = 0; w < DTYPE_COUNT; w++) {
        if (tables_are_cuda() && w > DTYPE_BF16) continue; /* they are all f32 there, or as below */
        struct tiny_options o = tiny_defaults();
        o.weights = w;
        o.biases = w % 2;
        o.kv = kv_types[w % 3];
        rows_do_not_depend_on_company(&o);
    }
}

static void rounded_rows_do_not_depend_on_company(void **state) {
    (void)state;
    for (enum dtype w = DTYPE_Q8_0; w < DTYPE_COUNT; w++) {
        struct tiny_options o = tiny_defaults();
        o.activations = w % 2 ? ACTIVATIONS_BF16 : tiny_rounded();
        o.weights = w;
        o.orthros = w == DTYPE_Q4_0 || w == DTYPE_Q5_K;
        o.window = 20;
        o.kv = w == DTYPE_Q4_0 ? DTYPE_Q8_0 : DTYPE_BF16;
        rows_do_not_depend_on_company(&o);
    }
}

static void orthros_rows_do_not_depend_on_company(void **state) {
    (void)state;
    for (size_t kv = 0; kv < ARRAY_LEN(kv_types); kv++) {
        struct tiny_options o = tiny_defaults();
        o.orthros = true;
        o.window = 20;
        o.weights = DTYPE_Q4_1;
        o.kv = kv_types[kv];
        rows_do_not_depend_on_company(&o);
    }
}

static void msar_rows_do_not_depend_on_company(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct tiny_options o = tiny_defaults();
        o.msar_streams = 4;
        o.msar_branches = 1 + (uint32_t)kind;
        o.orthros = kind > 0;
        o.window = 20;
        o.weights = kind > 1 ? DTYPE_Q4_0 : DTYPE_F32;
        if (kind > 1) o.activations = tiny_rounded();
        o.kv = kind > 1 ? DTYPE_BF16 : DTYPE_F32;
        rows_do_not_depend_on_company(&o);
    }
}

static void wide_identity_orthros_equals_the_standard_model(void **state) {
    (void)state;
    float *standard = logits_of(140), *dual = logits_of(140);
    uint32_t n = tables_are_cuda() ? 70 : 140;
    for (uint32_t i = 0; i < n_tables; i++) {
        struct tiny_options o = tiny_defaults();
        struct tiny_sequence s = tiny_sequence(0, n, 3, 0, 1);
        struct tiny t = tiny_open(tables[i], &o);
        tiny_prefill(&t, &s, n, standard);
        tiny_close(&t);
        o.orthros = o.identity_affine = true;
        o.window = n;
        t = tiny_open(tables[i], &o);
        tiny_prefill(&t, &s, 35, dual);
        tiny_close(&t);
        assert_same_bits(dual, standard, (size_t)n * 320, tables[i]->name);
    }
    free(standard);
    free(dual);
}

static void copied_pages_serve_a_second_sequence(void **state) {
    (void)state;
    float *whole = logits_of(60), *second = logits_of(60);
    for (uint32_t i = 0; i < 2 * n_tables; i++) {
        struct tiny_options o = tiny_defaults();
        o.kv = i < n_tables ? DTYPE_F32 : DTYPE_Q8_0;
        struct tiny t = tiny_open(tables[i % n_tables], &o);
        struct tiny_sequence s = tiny_sequence(0, 60, 3, 0, 1), copy = s;
        tiny_prefill(&t, &s, 60, whole);
        copy.slot = 1;
        copy.pages[2] = 50; /* shares pages 0 and 1; has its own copy of the third, cut at 40 */
        copy.pages[3] = 51;
        t.k->page_copy(t.dev, s.pages[2], 50);
        struct segment rest = tiny_segment(&copy, VIEW_BASE, 40, 20, 20);
        tiny_forward(&t, &rest, 1);
        tiny_logits(&t, 0, 20, second);
        tiny_end(&t);
        assert_same_bits(second, whole + (size_t)40 * 320, (size_t)20 * 320,
                         tables[i % n_tables]->name);
        tiny_close(&t);
    }
    free(whole);
    free(second);
}

static void cleared_pages_hold_zeros(void **state) {
    (void)state;
    struct tiny_options o = tiny_defaults();
    o.kv = DTYPE_Q8_0;
    struct tiny t = tiny_open(tables[0], &o);
    const uint32_t pages[] = {3, 9};
    t.k->pages_clear(t.dev, pages, 2);
    size_t bytes = tiny_page_bytes(&t);
    char *held = tiny_read_pages(&t, 2, 9);
    for (size_t i = 0; i < 9 * bytes; i++) {
        bool clear = i / bytes + 2 == 3 || i / bytes + 2 == 9;
        assert_int_equal((unsigned char)held[i], clear ? 0 : 0xff);
    }
    free(held);
    tiny_close(&t);
}

/* ---- cost: pages read ------------------------------------------------------------------------- */

static uint64_t pages_of_prefill(const struct kernels *k, uint32_t n_tokens, uint32_t window) {
    struct tiny_options o = tiny_defaults();
    o.orthros = true;
    o.window = window;
    struct tiny t = tiny_open(k, &o);
    struct tiny_sequence s = tiny_sequence(0, n_tokens, 3, 0, 1);
    uint64_t before = t.dev->kv_pages_read;
    for (uint32_t pos = 0; pos < n_tokens; pos += 100) {
        struct segment chunk = tiny_segment(&s, VIEW_BASE, pos, 100, 0);
        tiny_forward(&t, &chunk, 1);
        tiny_end(&t);
    }
    uint64_t n = t.dev->kv_pages_read - before;
    tiny_close(&t);
    return n;
}

static void windowed_prefill_reads_pages_in_linear_time(void **state) {
    (void)state;
    if (n_tables < 2) skip(); /* cuda does not count */
    for (uint32_t i = 1; i < n_tables; i++) {
        uint64_t n200 = pages_of_prefill(tables[i], 200, 16);
        uint64_t n400 = pages_of_prefill(tables[i], 400, 16);
        uint64_t full = pages_of_prefill(tables[i], 400, 400);
        assert_true(n400 <= 2 * n200 + n200 / 4);
        assert_true(full > 3 * n400);
    }
}

static void rows_of_a_position_share_each_page_read(void **state) {
    (void)state;
    for (uint32_t i = 1; i < n_tables; i++) {
        struct tiny_options o = tiny_defaults();
        o.orthros = true;
        o.window = 300;
        struct tiny t = tiny_open(tables[i], &o);
        struct tiny_sequence s = tiny_sequence(0, 170, 3, 0, 1);
        struct segment chunk = tiny_segment(&s, VIEW_BASE, 0, 160, 0);
        tiny_forward(&t, &chunk, 1);
        tiny_end(&t);
        struct segment both[2] = {tiny_segment(&s, VIEW_BASE, 160, 4, 0),
                                  tiny_segment(&s, VIEW_OUTPUT, 160, 4, 4)};
        uint64_t before = t.dev->kv_pages_read;
        tiny_forward(&t, both, 2);
        tiny_end(&t);
        /* 8 rows of 3 heads are one tile: 11 pages once for each layer and kv head */
        assert_int_equal(t.dev->kv_pages_read - before, 11 * 2 * 2);
        tiny_close(&t);
    }
}

int main(void) {
    tables_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_tables_match_ref_in_every_weight_type),
        cmocka_unit_test(fast_tables_match_ref_in_odd_shapes),
        cmocka_unit_test(fast_tables_match_ref_over_long_histories),
        cmocka_unit_test(fast_tables_match_ref_in_orthros_models),
        cmocka_unit_test(fast_tables_match_ref_in_msar_models),
        cmocka_unit_test(fast_tables_match_ref_with_rounded_kv),
        cmocka_unit_test(attention_in_bf16_stays_near_float_one),
        cmocka_unit_test(int8_kv_stays_near_float_kv),
        cmocka_unit_test(int8_activations_stay_near_float_ones),
        cmocka_unit_test(rows_are_ready_for_a_matrix_of_another_type),
        cmocka_unit_test(heads_are_finished_with_their_products_or_after),
        cmocka_unit_test(bf16_activations_stay_near_float_ones),
        cmocka_unit_test(standard_rows_do_not_depend_on_company),
        cmocka_unit_test(orthros_rows_do_not_depend_on_company),
        cmocka_unit_test(rounded_rows_do_not_depend_on_company),
        cmocka_unit_test(msar_rows_do_not_depend_on_company),
        cmocka_unit_test(wide_identity_orthros_equals_the_standard_model),
        cmocka_unit_test(copied_pages_serve_a_second_sequence),
        cmocka_unit_test(cleared_pages_hold_zeros),
        cmocka_unit_test(windowed_prefill_reads_pages_in_linear_time),
        cmocka_unit_test(rows_of_a_position_share_each_page_read),
    };
    const struct CMUnitTest on_tiles[] = {
        cmocka_unit_test(rows_are_ready_for_a_matrix_of_another_type),
        cmocka_unit_test(heads_are_finished_with_their_products_or_after),
        cmocka_unit_test(attention_in_bf16_stays_near_float_one),
        cmocka_unit_test(rounded_rows_do_not_depend_on_company),
        cmocka_unit_test(msar_rows_do_not_depend_on_company),
    };
    if (tiles_are_emulated()) return cmocka_run_group_tests(on_tiles, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
