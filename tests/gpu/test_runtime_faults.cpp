/* What the CUDA table refuses, and what it says when a call of CUDA fails. */
#include "tests/gpu/small_model.h"

#include "kernels/cuda/runtime.h"

static const struct kernels *cuda(void) {
    struct err err = {};
    const struct kernels *k = kernels_cuda(&err);
    if (!k) fail_msg("%s", err.msg);
    return k;
}

static size_t free_bytes(void) {
    size_t left, total;
    check_cuda(cudaMemGetInfo(&left, &total));
    return left;
}

static void shapes_that_cannot_be_are_refused(void **state) {
    (void)state;
    const char *words[] = {"layers is 0",       "activations int8", "head_dim 258",
                           "130 heads of 2 kv", "head_dim 15",      "window 0"};
    for (int i = 0; i < 6; i++) {
        struct model_shape s = small_shape();
        struct device *dev = NULL;
        struct err err = {};
        if (i == 0) s.n_layers = 0;
        if (i == 1) s.activations = ACTIVATIONS_INT8;
        if (i == 2) s.head_dim = 258;
        if (i == 3) s.n_heads = 130;
        if (i == 4) s.head_dim = 15;
        if (i == 5) s.orthros = true;
        assert_int_equal(cuda()->open(&s, 1, &dev, &err), ERR_INVALID);
        if (!strstr(err.msg, words[i])) fail_msg("%s, wanted \"%s\"", err.msg, words[i]);
        assert_null(dev);
        assert_int_equal(cuda()->open(&s, 1, &dev, NULL), ERR_INVALID);
    }
    cuda()->close(NULL);
}

static void weights_and_limits_are_refused_by_name(void **state) {
    (void)state;
    struct model_shape s = small_shape();
    struct small m = {cuda(), NULL, s};
    struct err err = {};
    float zeros[64] = {};
    assert_int_equal(m.k->open(&s, 1, &m.dev, &err), OK);
    struct tensor t = {DTYPE_F32, 1, 47, zeros};
    assert_int_equal(m.k->load(m.dev, WEIGHT_ATTN_NORM, 1, &t, &err), ERR_INVALID);
    assert_string_equal(err.msg,
                        "weights: layers.1.input_layernorm: shape [1,47], config wants [1,48]");
    t = {DTYPE_F16, 1, 48, zeros};
    assert_int_equal(m.k->load(m.dev, WEIGHT_ATTN_NORM, 1, &t, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "a vector of type f16"));
    t = {DTYPE_F32, 1, 48, zeros};
    assert_int_equal(m.k->load(m.dev, WEIGHT_ATTN_NORM, 2, &t, &err), ERR_INVALID);
    assert_int_equal(m.k->load(m.dev, WEIGHT_ATTN_NORM, 1, &t, NULL), OK);
    assert_int_equal(m.k->load(m.dev, WEIGHT_ATTN_NORM, 1, &t, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: layers.1.input_layernorm: loaded twice");
    assert_int_equal(m.k->load_random(m.dev, WEIGHT_LM_HEAD, 0, DTYPE_F32, 1, 0, 1, &err),
                     ERR_INVALID);
    assert_string_equal(err.msg, "weights: lm_head: the model's head is tied");
    struct device_limits limits = small_limits();
    assert_int_equal(m.k->reserve(m.dev, &limits, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: embed_tokens: missing");
    m.k->close(m.dev);

    m = {cuda(), NULL, s};
    assert_int_equal(m.k->open(&s, 1, &m.dev, &err), OK);
    small_load_all(&m, DTYPE_F32, false);
    limits.n_slots = 0;
    assert_int_equal(m.k->reserve(m.dev, &limits, &err), ERR_INVALID);
    assert_string_equal(err.msg, "device: 0 slots, expected 1 .. 1073741824");
    limits = small_limits();
    limits.kv_dtype = DTYPE_F16;
    assert_int_equal(m.k->reserve(m.dev, &limits, &err), ERR_INVALID);
    limits = small_limits();
    limits.n_pages = 1u << 30;
    size_t before = free_bytes();
    assert_int_equal(m.k->reserve(m.dev, &limits, &err), ERR_NOMEM);
    assert_non_null(strstr(err.msg, "no memory for KV pages"));
    limits.n_pages = 16;
    limits.max_rows = limits.max_logit_rows = 1u << 30;
    assert_int_equal(m.k->reserve(m.dev, &limits, &err), ERR_NOMEM);
    assert_non_null(strstr(err.msg, "no memory for the workspace"));
    assert_int_equal(free_bytes(), before);
    limits = small_limits();
    assert_int_equal(m.k->reserve(m.dev, &limits, &err), OK);
    assert_int_equal(m.k->page_bytes(m.dev, DTYPE_BF16), 2 * 2 * 2 * 16 * 16 * 2);
    assert_int_equal(m.k->page_bytes(m.dev, DTYPE_Q8_0), 2 * 2 * (2 * 16 * 16 + 2 * 16 * 2));
    size_t workspace = m.k->workspace_bytes(m.dev, &limits),
           kv = 192 * m.k->page_bytes(m.dev, DTYPE_F32);
    assert_true(before - free_bytes() >= workspace + kv);
    assert_true(before - free_bytes() < workspace + kv + (1 << 20));
    m.k->close(m.dev);
}

/* Random weights: each matrix of every type, in its bounds, with zeros where padding is. */
static void random_weights_keep_to_their_bounds(void **state) {
    (void)state;
    struct model_shape s = small_shape();
    s.activations = ACTIVATIONS_BF16;
    small_msar(&s);
    struct small m = {cuda(), NULL, s};
    struct err err = {};
    struct device_limits limits = small_limits();
    assert_int_equal(m.k->open(&s, 1, &m.dev, &err), OK);
    for (int w = 0; w < WEIGHT_END; w++)
        for (uint32_t i = 0; i < weight_count(&s, (enum weight)w); i++)
            if (small_has(&s, (enum weight)w, true))
                assert_int_equal(m.k->load_random(m.dev, (enum weight)w, i, DTYPE_BF16,
                                                  (uint64_t)w * 64 + i, 0.5f, 0.25f, &err),
                                 OK);
    assert_int_equal(m.k->reserve(m.dev, &limits, &err), OK);
    const struct matrix *g = &m.dev->layers[1].gate_up;
    uint16_t *all = (uint16_t *)malloc(2 * 160 * 64);
    assert_int_equal(g->rows, 160);
    host_copy(all, (const uint16_t *)g->data, 160 * 64);
    for (uint32_t r = 0; r < 160; r++)
        for (uint32_t c = 0; c < 64; c++) {
            bool there = c < 48 && r / 16 * 8 + r % 8 < 76;
            float v = bf16_to_f32(all[r * 64 + c]);
            assert_true(there ? v >= 0.25f && v <= 0.75f : v == 0);
        }
    assert_int_not_equal(all[0], all[1]);
    free(all);
    m.k->close(m.dev);
}

#ifdef GERYON_GPUSIM
static void devices_that_are_too_old_are_refused(void **state) {
    (void)state;
    struct err err = {};
    gpusim_set_device(75, (size_t)8 << 30);
    assert_null(kernels_cuda(&err));
    assert_string_equal(err.msg,
                        "cuda: GPU simulator has compute capability 7.5, 8.0 is the least");
    gpusim_set_device(80, (size_t)8 << 30);
    gpusim_fail_call("cudaGetDeviceCount", 1, cudaErrorNoDevice);
    assert_null(kernels_cuda(&err));
    assert_string_equal(err.msg, "cuda: no CUDA-capable device is detected");
    assert_non_null(kernels_cuda(&err));
}

/* The nth call of a name fails, for n = 1, 2, ... until opening, loading and reserving get by without
 * it: each time an error with a reason, and everything is given back. */
static void startup_survives_any_failing_call(void **state) {
    (void)state;
    const char *calls[] = {"cudaMalloc",           "cudaHostAlloc",   "cudaMemcpyAsync",
                           "cudaMemsetAsync",      "cudaEventRecord", "cudaStreamCreateWithFlags",
                           "cudaStreamSynchronize"};
    struct model_shape s = small_shape();
    s.n_layers = 1;
    s.d_ff = 8;
    size_t before = free_bytes();
    for (const char *call : calls) {
        bool memory = !strcmp(call, "cudaMalloc") || !strcmp(call, "cudaHostAlloc");
        bool failed = true;
        for (unsigned nth = 1; failed; nth += nth < 8 ? 1 : 7) {
            struct small m = {cuda(), NULL, s};
            struct device_limits limits = small_limits();
            struct err err = {};
            gpusim_fail_call(call, nth, memory ? cudaErrorMemoryAllocation : cudaErrorUnknown);
            int rc = m.k->open(&s, 1, &m.dev, &err);
            for (int w = 0; w < WEIGHT_COUNT && rc == OK; w++)
                if (small_has(&s, (enum weight)w, false))
                    rc = small_load(&m, (enum weight)w, 0, DTYPE_F32, &err);
            if (rc == OK) rc = m.k->reserve(m.dev, &limits, &err);
            failed = rc != OK;
            if (failed) {
                assert_int_equal(rc, memory ? ERR_NOMEM : ERR_DEVICE);
                assert_int_equal(err.code, rc);
                assert_true(strlen(err.msg) > 10);
            }
            gpusim_fail_call(NULL, 0, 0);
            m.k->close(m.dev);
            assert_int_equal(free_bytes(), before);
        }
    }
}

/* One cycle of a prefill and a decode; the first code that is not OK. */
static int cycle(struct small *m, const struct small_text *t) {
    struct segment s = small_segment(t, VIEW_BASE, 0, 0, 5, 1);
    struct outcome out[SMALL_SLOTS];
    s.pick = PICK_ACCEPT;
    s.prompt_len = 5;
    int rc = small_forward(m, &s, 1);
    if (rc == OK) rc = m->k->accept(m->dev);
    return rc == OK ? m->k->end(m->dev, out) : rc;
}

static void a_failing_call_is_a_device_error_with_a_reason(void **state) {
    (void)state;
    const struct {
        const char *call;
        unsigned nth;
        const char *words; /* of what fault says */
        unsigned cycles;   /* that go well before */
    } cases[] = {
        {"launch", 1, "cuda: unpack: cudaErrorLaunchFailure", 0},
        {"launch", 2, "cuda: embed: ", 0},
        {"launch", 4, "cuda: qkv: ", 0},
        {"cudaMemcpyAsync", 1, "cuda: begin: ", 0},
        {"cudaMemcpyAsync", 2, "cuda: end: ", 0},
        {"cudaEventRecord", 1, "cuda: a forward's border: ", 0},
        {"cudaEventElapsedTime", 1, "cuda: a forward's time: ", 0},
        {"cudaStreamSynchronize", 1, "cuda: waiting for the device: ", 0},
        {"cudaStreamBeginCapture", 1, "cuda: capturing a graph: ", 1},
        {"cudaStreamEndCapture", 1, "cuda: capturing a graph: ", 1},
        {"cudaGraphInstantiate", 1, "cuda: capturing a graph: ", 1},
        {"cudaGraphLaunch", 1, "cuda: launching a graph: ", 1},
        {"cudaGraphLaunch", 1, "cuda: launching a graph: ", 2},
        {"launch", 3, "cuda: ", 1},
    };
    struct model_shape s = small_shape();
    s.n_layers = 1;
    size_t before = free_bytes();
    struct small_text t = small_text(0);
    for (const auto &c : cases) {
        struct small m = small_open(cuda(), &s, DTYPE_F32, false);
        struct outcome out[SMALL_SLOTS];
        float logits[256];
        for (unsigned i = 0; i < c.cycles; i++)
            assert_int_equal(cycle(&m, &t), OK);
        gpusim_fail_call(c.call, c.nth, cudaErrorLaunchFailure);
        assert_int_equal(cycle(&m, &t), ERR_DEVICE);
        const char *fault = m.k->fault(m.dev);
        if (strncmp(fault, c.words, strlen(c.words)) != 0 || !strstr(fault, "launch failure"))
            fail_msg("%s, number %u: %s", c.call, c.nth, fault);
        /* From now on everything says so at once, and what returns nothing does nothing. */
        const struct rules greedy = {};
        m.k->slot_set(m.dev, 0, &greedy);
        m.k->pages_clear(m.dev, t.pages, 2);
        m.k->page_copy(m.dev, 0, 1);
        assert_int_equal(cycle(&m, &t), ERR_DEVICE);
        assert_int_equal(m.k->embed(m.dev), ERR_DEVICE);
        assert_int_equal(m.k->lm_head(m.dev), ERR_DEVICE);
        assert_int_equal(m.k->end(m.dev, out), ERR_DEVICE);
        assert_int_equal(m.k->read_logits(m.dev, 0, logits), ERR_DEVICE);
        assert_string_equal(m.k->fault(m.dev), fault);
        m.k->close(m.dev);
        assert_int_equal(free_bytes(), before);
    }
}

/* Graphs take memory of their own: where there is none left, forwards go on without. */
static void no_memory_for_a_graph_is_no_failure(void **state) {
    (void)state;
    struct model_shape s = small_shape();
    s.n_layers = 1;
    struct small_text t = small_text(0);
    struct small m = small_open(cuda(), &s, DTYPE_F32, false);
    assert_int_equal(cycle(&m, &t), OK);
    gpusim_fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cycle(&m, &t), OK);
    struct runtime_counts n = gpu_counts(m.dev);
    assert_int_equal(n.captured + n.replayed, 0);
    assert_int_equal(n.plain, 4);
    m.k->close(m.dev);
}

/* What returns nothing fails in the next stage. */
static void a_failure_between_forwards_is_told_by_the_next_stage(void **state) {
    (void)state;
    struct model_shape s = small_shape();
    s.n_layers = 1;
    struct small_text t = small_text(0);
    for (int i = 0; i < 3; i++) {
        struct small m = small_open(cuda(), &s, DTYPE_F32, false);
        const struct rules greedy = {};
        assert_int_equal(cycle(&m, &t), OK);
        gpusim_fail_call(i == 1 ? "cudaMemsetAsync" : "cudaMemcpyAsync", 1, cudaErrorUnknown);
        if (i == 0) m.k->slot_set(m.dev, 0, &greedy);
        if (i == 1) m.k->pages_clear(m.dev, t.pages, 3);
        if (i == 2) m.k->page_copy(m.dev, 0, 1);
        assert_int_equal(cycle(&m, &t), ERR_DEVICE);
        assert_non_null(strstr(m.k->fault(m.dev), i == 0   ? "sampling rules"
                                                  : i == 1 ? "clearing pages"
                                                           : "copying a page"));
        m.k->close(m.dev);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_cannot_be_are_refused),
        cmocka_unit_test(weights_and_limits_are_refused_by_name),
        cmocka_unit_test(random_weights_keep_to_their_bounds),
#ifdef GERYON_GPUSIM
        cmocka_unit_test(devices_that_are_too_old_are_refused),
        cmocka_unit_test(startup_survives_any_failing_call),
        cmocka_unit_test(a_failing_call_is_a_device_error_with_a_reason),
        cmocka_unit_test(no_memory_for_a_graph_is_no_failure),
        cmocka_unit_test(a_failure_between_forwards_is_told_by_the_next_stage),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
