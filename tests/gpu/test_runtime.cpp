/* The host's part of the CUDA table: where weights lie, whole forwards against the CPU's table, and that
 * graphs change nothing. */
#include "tests/gpu/small_model.h"

#include <time.h>

#include "kernels/cuda/runtime.h"

static const struct kernels *cuda(void) {
    struct err err = {};
    const struct kernels *k = kernels_cuda(&err);
    if (!k) fail_msg("%s", err.msg);
    return k;
}

/* ---- weights ------------------------------------------------------------------------------------ */

/* All rows of a matrix, widened; malloc'd [padded rows][ld]. */
static float *fetch(const struct matrix *m) {
    size_t rows = align_up(m->rows, WEIGHT_ROWS), n = rows * m->ld;
    float *out = (float *)malloc(n * sizeof *out);
    check_cuda(cudaDeviceSynchronize()); /* copies go by a stream of their own */
    if (m->dtype == DTYPE_F32) {
        host_copy(out, (const float *)m->data, n);
    } else if (m->dtype == DTYPE_BF16) {
        uint16_t *raw = (uint16_t *)malloc(n * sizeof *raw);
        host_copy(raw, (const uint16_t *)m->data, n);
        dtype_to_f32(DTYPE_BF16, raw, n, out);
        free(raw);
    } else {
        int8_t *raw = (int8_t *)malloc(n);
        float *scales = (float *)malloc(n / 32 * sizeof *scales);
        host_copy(raw, (const int8_t *)m->data, n);
        host_copy(scales, m->scales, n / 32);
        for (size_t i = 0; i < n; i++)
            out[i] = scales[i / 32] * (float)raw[i];
        free(raw);
        free(scales);
    }
    return out;
}

/* What a weight's numbers are once stored as `dtype` and then as the matrix's type. */
static float *stored_as(const struct small *m, enum weight which, uint32_t index, enum dtype dtype,
                        enum dtype kept) {
    uint32_t rows, cols;
    weight_size(&m->shape, which, index, &rows, &cols);
    if (cols % dtype_block(dtype)) dtype = DTYPE_BF16;
    size_t n = (size_t)rows * cols;
    float *x = small_numbers(which, index, n);
    void *raw = malloc(n * 4);
    dtype_from_f32(dtype, x, n, raw);
    dtype_to_f32(dtype, raw, n, x);
    if (kept == DTYPE_BF16) {
        dtype_from_f32(kept, x, n, raw);
        dtype_to_f32(kept, raw, n, x);
    }
    free(raw);
    return x;
}

/* The weight's rows begin at `first` of the matrix; octets: 8 rows of 16. They are cleared in `all`. */
static void take_rows(const struct small *m, const struct matrix *w, float *all, enum weight which,
                      uint32_t index, enum dtype dtype, uint32_t first, bool octets) {
    uint32_t rows, cols;
    weight_size(&m->shape, which, index, &rows, &cols);
    assert_int_equal(w->cols, cols);
    assert_int_equal(w->ld, align_up(cols, 32));
    float *x = stored_as(m, which, index, dtype, w->dtype);
    for (uint32_t r = 0; r < rows; r++) {
        float *row = all + (size_t)(first + (octets ? r / 8 * 16 + r % 8 : r)) * w->ld;
        assert_same_bits(row, x + (size_t)r * cols, cols, "a row of a matrix");
        memset(row, 0, cols * sizeof *row);
    }
    free(x);
}
static void only_zeros_left(const struct matrix *w, float *all) {
    for (size_t i = 0; i < align_up(w->rows, WEIGHT_ROWS) * w->ld; i++)
        if (all[i] != 0) fail_msg("padding holds %g at %zu", (double)all[i], i);
    free(all);
}

static void check_matrices(const struct small *m, enum dtype dtype) {
    const struct device *dev = m->dev;
    for (uint32_t i = 0; i < m->shape.n_layers; i++) {
        const struct layer *l = &dev->layers[i];
        float *all = fetch(&l->qkv);
        take_rows(m, &l->qkv, all, WEIGHT_Q, i, dtype, 0, false);
        take_rows(m, &l->qkv, all, WEIGHT_K, i, dtype, dev->k_at, false);
        take_rows(m, &l->qkv, all, WEIGHT_V, i, dtype, dev->v_at, false);
        only_zeros_left(&l->qkv, all);
        all = fetch(&l->gate_up);
        take_rows(m, &l->gate_up, all, WEIGHT_GATE, i, dtype, 0, true);
        take_rows(m, &l->gate_up, all, WEIGHT_UP, i, dtype, 8, true);
        only_zeros_left(&l->gate_up, all);
        all = fetch(&l->o);
        take_rows(m, &l->o, all, WEIGHT_O, i, dtype, 0, false);
        only_zeros_left(&l->o, all);
        all = fetch(&l->down);
        take_rows(m, &l->down, all, WEIGHT_DOWN, i, dtype, 0, false);
        only_zeros_left(&l->down, all);
        all = fetch(&l->qkv_diff);
        take_rows(m, &l->qkv_diff, all, WEIGHT_K_DIFF, i, dtype, dev->k_at, false);
        free(all);
    }
    float *all = fetch(&dev->embed);
    take_rows(m, &dev->embed, all, WEIGHT_EMBED, 0, dtype, 0, false);
    only_zeros_left(&dev->embed, all);
}

static void check_bias(const struct small *m, const float *device, enum weight which,
                       uint32_t index, uint32_t first, bool octets) {
    uint32_t one, n;
    weight_size(&m->shape, which, index, &one, &n);
    float *all = (float *)malloc(1024 * sizeof *all), *x = small_numbers(which, index, n);
    host_copy(all, device, first + (octets ? 2 * n : n));
    for (uint32_t i = 0; i < n; i++)
        assert_float_equal(all[first + (octets ? i / 8 * 16 + i % 8 : i)], x[i], 0);
    free(all);
    free(x);
}

static void weights_lie_where_kernels_look(void **state) {
    (void)state;
    const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_1};
    for (int i = 0; i < 10; i++) {
        struct model_shape s = small_shape();
        s.activations = i % 2 ? ACTIVATIONS_BF16 : ACTIVATIONS_F32;
        s.block_size = 4;
        s.head_dim = i % 4 ? 16 : 12; /* k and v begin behind padding */
        if (i / 2 > 2) s.d_model = 64, s.d_ff = 96;
        struct small m = small_open(cuda(), &s, dtypes[i / 2], true, 1 + (uint32_t)i % 3);
        check_matrices(&m, dtypes[i / 2]);
        const struct layer *l = &m.dev->layers[1];
        check_bias(&m, l->qkv_bias, WEIGHT_K_BIAS, 1, m.dev->k_at, false);
        check_bias(&m, l->gate_up_bias, WEIGHT_UP_BIAS, 1, 8, true);
        check_bias(&m, l->attn_norm, WEIGHT_ATTN_NORM, 1, 0, false);
        check_bias(&m, l->q_diff_norm, WEIGHT_Q_DIFF_NORM, 1, 0, false);
        assert_null(l->base_scale);
        enum dtype kept = l->qkv.dtype, wanted = i % 2 == 0   ? DTYPE_F32
                                                 : i / 2 == 3 ? DTYPE_Q8_0
                                                              : DTYPE_BF16;
        assert_int_equal(kept, wanted);
        m.k->close(m.dev);
    }
}

static void parts_of_two_types_become_bf16(void **state) {
    (void)state;
    struct model_shape s = small_shape();
    struct err err = {};
    s.activations = ACTIVATIONS_BF16;
    s.d_model = 64;
    for (int first = 0; first < 2; first++) {
        struct small m = {cuda(), NULL, s};
        assert_int_equal(m.k->open(&s, 1, &m.dev, &err), OK);
        const enum dtype types[] = {first ? DTYPE_F16 : DTYPE_Q8_0, DTYPE_Q8_0,
                                    first ? DTYPE_Q8_0 : DTYPE_F32};
        for (int i = 0; i < 3; i++)
            assert_int_equal(small_load(&m, (enum weight)(WEIGHT_Q + i), 0, types[i], &err), OK);
        const struct matrix *w = &m.dev->layers[0].qkv;
        assert_int_equal(w->dtype, DTYPE_BF16);
        assert_null(w->scales);
        float *all = fetch(w);
        take_rows(&m, w, all, WEIGHT_Q, 0, types[0], 0, false);
        take_rows(&m, w, all, WEIGHT_K, 0, types[1], m.dev->k_at, false);
        take_rows(&m, w, all, WEIGHT_V, 0, types[2], m.dev->v_at, false);
        only_zeros_left(w, all);
        m.k->close(m.dev);
    }
}

/* Large weights have memory of their own, and small ones go on where they were. */
static void large_weights_leave_small_ones_together(void **state) {
    (void)state;
    struct model_shape s = small_shape();
    struct device *dev;
    struct err err = {};
    assert_int_equal(cuda()->open(&s, 1, &dev, &err), OK);
    const size_t large = (5 << 20) + 1, small = 1000;
    char *first = (char *)gpu_weight_memory(dev, small, &err), *last = first;
    size_t before, after, total;
    check_cuda(cudaMemGetInfo(&before, &total));
    for (int i = 0; i < 8; i++) {
        char *own = (char *)gpu_weight_memory(dev, large, &err);
        char *next = (char *)gpu_weight_memory(dev, small, &err);
        assert_non_null(own);
        assert_ptr_equal(next, last + align_up(small, GPU_ALIGN));
        assert_true(own + large <= first || own > next);
        last = next;
    }
    check_cuda(cudaMemGetInfo(&after, &total));
    assert_true(before - after <= 8 * align_up(large, 2 << 20));
    cuda()->close(dev);
}

/* ---- forwards ----------------------------------------------------------------------------------- */

enum { N_KINDS = 6 };
static struct model_shape shape_of(int kind) {
    struct model_shape s = small_shape();
    if (kind == 1) s.orthros = true, s.window = 20;
    if (kind == 2) s.block_size = 8;
    if (kind == 3) small_msar(&s);
    if (kind == 4) s.orthros = true, s.window = 9, s.block_size = 4, s.tied_head = false;
    if (kind == 5) s.orthros = true, s.window = 30, s.block_size = 4, small_msar(&s);
    return s;
}

/* Logits of the last forward's rows. */
static float *logits_of(struct small *m, uint32_t n) {
    float *out = (float *)malloc((size_t)n * m->shape.vocab_size * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(m->k->read_logits(m->dev, i, out + (size_t)i * m->shape.vocab_size), OK);
    return out;
}

/* The same segments through both; logits close to each other. */
static void compare(struct small *a, struct small *b, const struct segment *s, uint32_t n,
                    double tolerance, const char *what) {
    uint32_t n_logits = 0;
    for (uint32_t i = 0; i < n; i++)
        n_logits += s[i].n_logits;
    assert_int_equal(small_forward(a, s, n), OK);
    assert_int_equal(small_forward(b, s, n), OK);
    float *x = logits_of(a, n_logits), *y = logits_of(b, n_logits), most = 0;
    for (size_t i = 0; i < (size_t)n_logits * a->shape.vocab_size; i++)
        if (fabsf(y[i]) > most) most = fabsf(y[i]);
    assert_close(x, y, (size_t)n_logits * a->shape.vocab_size, tolerance * (double)most, 0, what);
    free(x);
    free(y);
    struct outcome none[SMALL_SLOTS];
    assert_int_equal(a->k->end(a->dev, none), OK);
    assert_int_equal(b->k->end(b->dev, none), OK);
}

static void compare_forwards(struct small *a, struct small *b, double tolerance) {
    const bool orthros = a->shape.orthros;
    struct small_text t[3] = {small_text(0), small_text(1), small_text(2)};
    struct segment s[6];
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < 3; slot++) /* prefill, ragged */
        s[n++] = small_segment(&t[slot], VIEW_BASE, slot, 0, 13 + 10 * slot, orthros ? 0 : 2);
    for (uint32_t slot = 0; orthros && slot < 3; slot++)
        s[n++] = small_segment(&t[slot], VIEW_OUTPUT, slot, 12 + 10 * slot, 1, 1);
    compare(a, b, s, n, tolerance, "prefill");
    if (a->shape.block_size) {
        for (uint32_t slot = 0; slot < 2; slot++)
            s[slot] = small_segment(&t[slot], VIEW_DRAFT, slot, 13 + 10 * slot, 4, 3);
        compare(a, b, s, 2, tolerance, "draft");
    }
    n = 0;
    for (uint32_t slot = 0; slot < 3; slot++) /* a verification, a decode, a prefill chunk */
        s[n++] = small_segment(&t[slot], VIEW_BASE, slot, 13 + 10 * slot,
                               slot == 0   ? 5
                               : slot == 1 ? 1
                                           : 40,
                               orthros ? 0 : 1);
    for (uint32_t slot = 0; orthros && slot < 2; slot++)
        s[n++] = small_segment(&t[slot], VIEW_OUTPUT, slot, 13 + 10 * slot, slot == 0 ? 5 : 1,
                               slot == 0 ? 5 : 1);
    compare(a, b, s, n, tolerance, "mixed");
}

static void forwards_agree_with_the_cpu(void **state) {
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++) {
        struct model_shape s = shape_of(kind);
        struct small a = small_open(cuda(), &s, DTYPE_F32, kind != 1);
        struct small b = small_open(kernels_ref(), &s, DTYPE_F32, kind != 1);
        compare_forwards(&a, &b, 1e-5);
        a.k->close(a.dev);
        b.k->close(b.dev);
    }
}

/* Products of bf16: each rounds its rows to 8 bits, so a small model stays within some percent. */
static void bf16_forwards_are_near_the_cpu(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct model_shape s = shape_of(i % 2 ? 5 : 0), plain;
        if (i >= 2) s.d_model = 64, s.d_ff = 96;
        plain = s;
        s.activations = ACTIVATIONS_BF16;
        enum dtype dtype = i >= 2 ? DTYPE_Q8_0 : DTYPE_BF16;
        struct small a = small_open(cuda(), &s, dtype, true);
        struct small b = small_open(kernels_ref(), &plain, dtype, true);
        compare_forwards(&a, &b, 0.06);
        a.k->close(a.dev);
        b.k->close(b.dev);
    }
}

/* A text longer than a split, so that its decode is cut into parts. */
static void long_texts_agree_with_the_cpu(void **state) {
    (void)state;
    struct model_shape s = shape_of(0);
    struct small a = small_open(cuda(), &s, DTYPE_F32, true);
    struct small b = small_open(kernels_ref(), &s, DTYPE_F32, true);
    struct small_text t = small_text(1);
    struct outcome none[SMALL_SLOTS];
    for (uint32_t pos = 0; pos < 570; pos += 95) {
        struct segment chunk = small_segment(&t, VIEW_BASE, 1, pos, 95, 0);
        assert_int_equal(small_forward(&a, &chunk, 1), OK);
        assert_int_equal(small_forward(&b, &chunk, 1), OK);
        assert_int_equal(a.k->end(a.dev, none), OK);
        assert_int_equal(b.k->end(b.dev, none), OK);
    }
    struct segment decode = small_segment(&t, VIEW_BASE, 1, 570, 2, 2);
    compare(&a, &b, &decode, 1, 1e-5, "decode");
    assert_true(a.dev->grid.merges > 0);
    a.k->close(a.dev);
    b.k->close(b.dev);
}

/* ---- cycles ------------------------------------------------------------------------------------- */

enum { CYCLES = 6 };
struct cycles {
    struct outcome outcomes[CYCLES][2];
};

/* Prefill two texts, then draft and verify: greedy, and sampled with every rule on. */
static struct cycles run_cycles(struct small *m) {
    struct small_text t[2] = {small_text(0), small_text(1)};
    struct cycles c;
    struct rules rules = {};
    const struct bias bias[] = {{5, 1.5f}, {9, -INFINITY}};
    rules.temperature = 0.8f;
    rules.top_p = 0.9f;
    rules.top_k = 40;
    rules.repetition = 1.1f;
    rules.presence = 0.2f;
    rules.seed = 77;
    rules.bias = bias;
    rules.n_bias = 2;
    memset(&c, 0, sizeof c);
    m->k->slot_set(m->dev, 1, &rules);
    m->k->slot_set(m->dev, 1, &rules); /* again, before the first went out */
    uint32_t n[2] = {20, 33};          /* tokens so far; the newest is not in the cache yet */
    const uint32_t prompt[2] = {20, 33};
    struct segment s[4];
    for (uint32_t i = 0; i < 2; i++)
        s[i] = small_segment(&t[i], VIEW_BASE, i, 0, n[i] - 1, 0);
    assert_int_equal(small_forward(m, s, 2), OK);
    struct outcome none[SMALL_SLOTS];
    assert_int_equal(m->k->end(m->dev, none), OK);
    for (int cycle = 0; cycle < CYCLES; cycle++) {
        int32_t block[2][4];
        for (uint32_t i = 0; i < 2; i++) {
            block[i][0] = t[i].tokens[n[i] - 1];
            block[i][1] = block[i][2] = block[i][3] = m->shape.mask_token;
            s[i] = small_segment(&t[i], VIEW_DRAFT, i, n[i] - 1, 4, 3);
            s[i].tokens = block[i];
            s[i].pick = PICK_PROPOSE;
            s[i].prompt_len = prompt[i];
            s[i].out_pos = n[i] - prompt[i];
            s[i].history = t[i].tokens;
        }
        assert_int_equal(small_forward(m, s, 2), OK);
        assert_int_equal(m->k->sample(m->dev), OK);
        const uint32_t n_views = m->shape.orthros ? 2 : 1;
        for (uint32_t view = 0; view < n_views; view++)
            for (uint32_t i = 0; i < 2; i++) {
                struct segment *v = &s[2 * view + i];
                *v = small_segment(&t[i], view ? VIEW_OUTPUT : VIEW_BASE, i, n[i] - 1, 4, 4);
                v->n_proposed = 3;
                v->prompt_len = prompt[i];
                v->out_pos = n[i] - prompt[i];
                v->history = t[i].tokens;
                if (view + 1 == n_views)
                    v->pick = PICK_ACCEPT;
                else
                    v->n_logits = 0;
            }
        assert_int_equal(small_forward(m, s, 2 * n_views), OK);
        assert_int_equal(m->k->accept(m->dev), OK);
        assert_int_equal(m->k->end(m->dev, c.outcomes[cycle]), OK);
        for (uint32_t i = 0; i < 2; i++) {
            const struct outcome *out = &c.outcomes[cycle][i];
            assert_int_equal(out->slot, i);
            assert_int_equal(out->status, OK);
            memcpy(t[i].tokens + n[i], out->tokens, out->n_tokens * sizeof *out->tokens);
            n[i] += out->n_tokens;
        }
    }
    return c;
}

static void same_outcomes(const struct cycles *a, const struct cycles *b) {
    for (int i = 0; i < CYCLES; i++)
        for (int k = 0; k < 2; k++) {
            const struct outcome *x = &a->outcomes[i][k], *y = &b->outcomes[i][k];
            assert_int_equal(x->n_drafted, y->n_drafted);
            assert_int_equal(x->n_proposed, y->n_proposed);
            assert_int_equal(x->n_accepted, y->n_accepted);
            assert_int_equal(x->n_tokens, y->n_tokens);
            assert_memory_equal(x->proposed, y->proposed, x->n_drafted * sizeof *x->proposed);
            assert_memory_equal(x->tokens, y->tokens, x->n_tokens * sizeof *x->tokens);
        }
}

static void cycles_agree_with_the_cpu(void **state) {
    (void)state;
    for (int kind = 2; kind < N_KINDS; kind++) {
        if (kind == 3) continue; /* no drafts */
        struct model_shape s = shape_of(kind);
        struct small a = small_open(cuda(), &s, DTYPE_F32, true);
        struct small b = small_open(kernels_ref(), &s, DTYPE_F32, true);
        struct cycles x = run_cycles(&a), y = run_cycles(&b);
        same_outcomes(&x, &y);
        a.k->close(a.dev);
        b.k->close(b.dev);
    }
}

static void graphs_change_nothing(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    struct model_shape s = shape_of(5);
    struct cycles first;
    for (int i = 0; i < 4; i++) {
        use_order(i / 2 * 2, seed);
        struct small m = small_open(cuda(), &s, DTYPE_F32, true);
        gpu_use_graphs(m.dev, i % 2);
        struct cycles c = run_cycles(&m);
        struct runtime_counts n = gpu_counts(m.dev);
        if (i == 0) first = c;
        same_outcomes(&c, &first);
        if (i % 2) {
            assert_true(n.captured >= 2);
            assert_true(n.replayed >= 2 * (CYCLES - 1));
            assert_true(n.replayed >= n.captured);
        } else {
            assert_int_equal(n.replayed, 0);
            assert_int_equal(n.plain, 1 + 2 * CYCLES);
        }
        m.k->close(m.dev);
    }
}

/* One wait a cycle; device memory is what it was. */
static void a_cycle_waits_once_and_allocates_nothing(void **state) {
    (void)state;
    struct model_shape s = shape_of(4);
    struct small m = small_open(cuda(), &s, DTYPE_F32, true);
    gpu_use_graphs(m.dev, false);
    size_t before, after, total;
    uint64_t waits = gpu_counts(m.dev).waits;
    check_cuda(cudaMemGetInfo(&before, &total));
    run_cycles(&m);
    check_cuda(cudaMemGetInfo(&after, &total));
    assert_int_equal(before, after);
    assert_int_equal(gpu_counts(m.dev).waits - waits,
                     2 + 1 + CYCLES); /* one slot was set three times */
    m.k->close(m.dev);
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Both forwards take time, and together no longer than the cycle, queued plainly or as a graph; a
 * forward that a cycle lacks took none. */
static void forwards_are_timed_where_they_run(void **state) {
    (void)state;
    struct model_shape s = shape_of(2);
    struct small m = small_open(cuda(), &s, DTYPE_F32, false);
    struct small_text t = small_text(0);
    struct outcome out[SMALL_SLOTS];
    uint64_t draft_us = 7, main_us = 7, waits = gpu_counts(m.dev).waits;
    m.k->forward_us(m.dev, &draft_us, &main_us);
    assert_int_equal(draft_us + main_us, 0); /* nothing has run */
    enum { DRAFTS = 1, MAINS = 2 };
    const int kinds[] = {MAINS, DRAFTS | MAINS, DRAFTS | MAINS, DRAFTS | MAINS, MAINS, DRAFTS};
    for (int kind : kinds) {
        uint64_t begun = now_us();
        if (kind & DRAFTS) {
            struct segment draft = small_segment(&t, VIEW_DRAFT, 0, 15, 4, 3);
            draft.pick = PICK_PROPOSE;
            draft.prompt_len = 16;
            draft.history = t.tokens;
            assert_int_equal(small_forward(&m, &draft, 1), OK);
            assert_int_equal(m.k->sample(m.dev), OK);
        }
        if (kind & MAINS) {
            struct segment base = small_segment(&t, VIEW_BASE, 0, 0, 16, 1);
            assert_int_equal(small_forward(&m, &base, 1), OK);
        }
        assert_int_equal(m.k->end(m.dev, out), OK);
        uint64_t wall = now_us() - begun + 2; /* both clocks round */
        m.k->forward_us(m.dev, &draft_us, &main_us);
        assert_int_equal(draft_us > 0, (kind & DRAFTS) != 0);
        assert_int_equal(main_us > 0, (kind & MAINS) != 0);
        if (draft_us + main_us > wall)
            fail_msg("draft %llu us, main %llu us, wall %llu us", (unsigned long long)draft_us,
                     (unsigned long long)main_us, (unsigned long long)wall);
#ifdef GERYON_GPUSIM /* whose forwards take milliseconds */
        if (2 * (draft_us + main_us) < wall) fail_msg("the forwards took less than half");
        if (kind == (DRAFTS | MAINS) && (draft_us < wall / 20 || main_us < wall / 20))
            fail_msg("draft %llu us, main %llu us", (unsigned long long)draft_us,
                     (unsigned long long)main_us);
#endif
    }
    assert_int_equal(gpu_counts(m.dev).waits, waits + ARRAY_LEN(kinds)); /* none for this */
    assert_true(gpu_counts(m.dev).replayed > 0);
    m.k->close(m.dev);
}

/* A forward that is queued in two parts, as a change of pages between stages would have it: the first is
 * replayed, the second is not, and finds what its branches add to all the same. */
static void parts_of_a_forward_do_not_lean_on_each_other(void **state) {
    (void)state;
    struct model_shape s = shape_of(3);
    struct small m = small_open(cuda(), &s, DTYPE_F32, true);
    struct small_text t = small_text(0);
    struct segment one = small_segment(&t, VIEW_BASE, 0, 0, 4, 1);
    struct outcome none[SMALL_SLOTS];
    float *want = NULL;
    for (int round = 0; round < 6; round++) { /* whole; cut once, three times; whole; cut twice */
        struct forward fwd = {1, &one};
        const struct kernels *k = m.k;
        assert_int_equal(k->begin(m.dev, &fwd), OK);
        assert_int_equal(k->embed(m.dev), OK);
        for (uint32_t l = 0; l < s.n_layers; l++) {
            assert_int_equal(k->msar_push(m.dev, 2 * l), OK);
            assert_int_equal(k->msar_read(m.dev, 2 * l), OK);
            assert_int_equal(k->qkv(m.dev, l), OK);
            assert_int_equal(k->attend(m.dev, l), OK);
            if (l == 0 && round % 4 != 0) assert_int_equal(gpu_flush(m.dev), OK);
            assert_int_equal(k->out_residual(m.dev, l), OK);
            if (l == 0 && round == 5) assert_int_equal(gpu_flush(m.dev), OK);
            assert_int_equal(k->msar_push(m.dev, 2 * l + 1), OK);
            assert_int_equal(k->msar_read(m.dev, 2 * l + 1), OK);
            assert_int_equal(k->mlp(m.dev, l), OK);
        }
        assert_int_equal(k->msar_read(m.dev, 2 * s.n_layers), OK);
        assert_int_equal(k->lm_head(m.dev), OK);
        float *got = logits_of(&m, 1);
        assert_int_equal(k->end(m.dev, none), OK);
        if (!want) want = got;
        assert_same_bits(got, want, s.vocab_size, "a forward in parts");
        if (got != want) free(got);
    }
    assert_true(gpu_counts(m.dev).replayed >= 4);
    free(want);
    m.k->close(m.dev);
}

/* More keys than graphs are kept: the oldest make room, and nothing is lost. */
static void graphs_make_room_for_each_other(void **state) {
    (void)state;
    struct model_shape s = shape_of(0);
    s.n_layers = 1;
    struct small m = small_open(cuda(), &s, DTYPE_F32, true);
    struct small_text t = small_text(0);
    struct outcome none[SMALL_SLOTS];
    const uint32_t n_keys = 5 * 15;
    static_assert(n_keys > GRAPHS, "they cannot all be kept");
    for (int round = 0; round < 3; round++)
        for (uint32_t rows = 1; rows <= 16; rows *= 2)
            for (uint32_t n = 1; n <= 15; n++) { /* the embedding n times over */
                struct segment one = small_segment(&t, VIEW_BASE, 0, 0, rows, 0);
                struct forward fwd = {1, &one};
                assert_int_equal(m.k->begin(m.dev, &fwd), OK);
                for (uint32_t i = 0; i < n; i++)
                    assert_int_equal(m.k->embed(m.dev), OK);
                assert_int_equal(m.k->end(m.dev, none), OK);
            }
    struct runtime_counts n = gpu_counts(m.dev);
    assert_int_equal(n.plain, 3 * n_keys); /* each is gone when its turn comes again */
    struct segment one = small_segment(&t, VIEW_BASE, 0, 0, 16, 0);
    struct forward fwd = {1, &one};
    for (int round = 0; round < 2; round++) {
        assert_int_equal(m.k->begin(m.dev, &fwd), OK);
        for (uint32_t i = 0; i < 15; i++)
            assert_int_equal(m.k->embed(m.dev), OK);
        assert_int_equal(m.k->end(m.dev, none), OK);
    }
    n = gpu_counts(m.dev); /* the newest is there still */
    assert_int_equal(n.captured, 1);
    assert_int_equal(n.replayed, 2);
    m.k->close(m.dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_lie_where_kernels_look),
        cmocka_unit_test(large_weights_leave_small_ones_together),
        cmocka_unit_test(parts_of_two_types_become_bf16),
        cmocka_unit_test(forwards_agree_with_the_cpu),
        cmocka_unit_test(bf16_forwards_are_near_the_cpu),
        cmocka_unit_test(long_texts_agree_with_the_cpu),
        cmocka_unit_test(cycles_agree_with_the_cpu),
        cmocka_unit_test(graphs_change_nothing),
        cmocka_unit_test(a_cycle_waits_once_and_allocates_nothing),
        cmocka_unit_test(forwards_are_timed_where_they_run),
        cmocka_unit_test(parts_of_a_forward_do_not_lean_on_each_other),
        cmocka_unit_test(graphs_make_room_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
