/* test_rows.cpp: embedding, norms, heads, KV as stored, page copies and random weights against plain C
 * in double. Every array is compared whole: what a kernel must not touch keeps its pattern. */
#include "tests/gpu/hand_forward.h"

#include <math.h>

static const enum dtype kv_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0};

static float of_bf16(uint16_t bits) {
    return bf16_to_f32(bits);
}
/* n numbers of an array of act, widened; calloc'd. */
static float *read_act(const void *device, enum dtype act, size_t n) {
    float *out = (float *)calloc(n, sizeof *out);
    if (act == DTYPE_F32) {
        host_copy(out, (const float *)device, n);
        return out;
    }
    uint16_t *bits = (uint16_t *)calloc(n, sizeof *bits);
    host_copy(bits, (const uint16_t *)device, n);
    for (size_t i = 0; i < n; i++)
        out[i] = of_bf16(bits[i]);
    free(bits);
    return out;
}
static double act_error(enum dtype act) {
    return act == DTYPE_BF16 ? 1.0 / 256 : 4e-6;
}

// ---- embed

/* A matrix of random numbers on the device, and what its rows hold when widened: [rows][ld]. */
static float *make_matrix(struct rng *rng, struct matrix *m, enum dtype dtype, uint32_t rows,
                          uint32_t cols) {
    *m = {};
    m->dtype = dtype;
    m->rows = rows;
    m->cols = cols;
    m->ld = (uint32_t)align_up(cols, GPU_GROUP);
    size_t n = align_up(rows, WEIGHT_ROWS) * m->ld;
    float *w = random_rows(rng, rows, cols, m->ld, 0, 1);
    float *all = (float *)calloc(n, sizeof *all);
    memcpy(all, w, (size_t)rows * m->ld * sizeof *all);
    free(w);
    if (dtype == DTYPE_F32) {
        m->data = device_copy(all, n);
    } else if (dtype == DTYPE_BF16) {
        uint16_t *bits = (uint16_t *)calloc(n, sizeof *bits);
        dtype_from_f32(DTYPE_BF16, all, n, bits);
        dtype_to_f32(DTYPE_BF16, bits, n, all);
        m->data = device_copy(bits, n);
        free(bits);
    } else {
        int8_t *q = (int8_t *)calloc(n, 1);
        float *scales = (float *)calloc(n / GPU_GROUP, sizeof *scales);
        for (size_t i = 0; i < n; i++) {
            if (i % GPU_GROUP == 0) scales[i / GPU_GROUP] = (float)(1 + rng_below(rng, 9)) / 512;
            if (all[i] != 0) q[i] = (int8_t)((int)rng_below(rng, 255) - 127);
            all[i] = scales[i / GPU_GROUP] * (float)q[i];
        }
        m->data = device_copy(q, n);
        m->scales = device_copy(scales, n / GPU_GROUP);
        free(q);
        free(scales);
    }
    return all;
}

static void embedding_rows_are_widened(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    static const uint32_t widths[] = {6, 64, 70, 1500};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0};
    for (uint32_t i = 0; i < 12; i++) {
        use_order((int)i % N_ORDERS, rng_u64(&rng));
        struct hand *h = hand_open();
        struct device *dev = &h->dev;
        const uint32_t d = widths[i / 3], n = 5, vocab = 37;
        float *w = make_matrix(&rng, &dev->embed, types[i % 3], vocab, d);
        int32_t tokens[n] = {0, 36, 7, 7, 19};
        struct segment s = {};
        s.n_rows = n;
        s.tokens = tokens;
        dev->shape.d_model = d;
        const size_t ld = dev->ld_model = dev->embed.ld, all = (n + 2) * ld;
        hand_begin(h, &s, 1, 2);
        float *out = device_array<float>(all), *got = (float *)calloc(all, sizeof *got);
        check_cuda(cudaMemset(out, 0xFF, all * sizeof *out));
        check_cuda(gpu_embed(dev, out, NULL));
        host_copy(got, out, all);
        for (uint32_t r = 0; r < n; r++)
            assert_same_bits(got + r * ld, w + (size_t)tokens[r] * ld, ld, "embed");
        for (size_t k = n * ld; k < all; k++)
            assert_true(isnan(got[k])); /* rows there are not */
        check_cuda(cudaFree(out));
        check_cuda(cudaFree(dev->embed.data));
        check_cuda(cudaFree(dev->embed.scales));
        free(got);
        free(w);
        hand_close(h);
    }
}

// ---- norm

static void norms_match_and_gather(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    static const uint32_t widths[] = {6, 64, 100, 1000, 4100, 8200};
    for (uint32_t i = 0; i < 24; i++) {
        use_order((int)i % N_ORDERS, rng_u64(&rng));
        struct hand *h = hand_open();
        struct device *dev = &h->dev;
        const uint32_t d = widths[i / 4], n = d > 1000 ? 3 : 9;
        const bool gather = i & 1;
        const size_t ld = align_up(d, GPU_GROUP), all = (n + 1) * ld;
        struct segment s = {};
        s.n_rows = n;
        s.n_logits = 2;
        dev->act = i & 2 ? DTYPE_BF16 : DTYPE_F32;
        dev->shape.d_model = d;
        dev->shape.rms_eps = 1e-5f;
        dev->ld_model = (uint32_t)ld;
        hand_begin(h, &s, 1, 1);
        float *x = random_rows(&rng, n + 1, d, ld, 0, 3), *g = random_rows(&rng, 1, d, ld, 1, 0.2f);
        float *weights = device_copy(g, ld);
        dev->x = device_copy(x, all);
        dev->u = device_array<float>(all);
        check_cuda(cudaMemset(dev->u, 0xFF, all * sizeof(float)));
        check_cuda(gpu_norm(dev, weights, gather, NULL));
        float *got = read_act(dev->u, dev->act, all), *want = (float *)calloc(ld, sizeof *want);
        const uint32_t n_out = gather ? 2 : n;
        for (uint32_t r = 0; r < n_out; r++) {
            const float *from = x + (gather ? n - 2 + r : r) * ld;
            double squares = 0;
            for (uint32_t k = 0; k < d; k++)
                squares += (double)from[k] * (double)from[k];
            for (uint32_t k = 0; k < d; k++)
                want[k] = (float)((double)g[k] * (double)from[k] /
                                  sqrt(squares / d + (double)dev->shape.rms_eps));
            assert_close(got + r * ld, want, ld, 1e-6, act_error(dev->act), "norm");
        }
        for (size_t k = n_out * ld; k < all; k++)
            assert_true(isnan(got[k]));
        for (void *p : {(void *)dev->x, dev->u, (void *)weights})
            check_cuda(cudaFree(p));
        for (float *p : {x, g, got, want})
            free(p);
        hand_close(h);
    }
}

// ---- heads

enum { POSITIONS = 100, PAGES = 24, LAYERS = 2 };

/* A layer's vectors on the host; NULL: none. */
struct vectors {
    float *q_norm, *k_norm, *q_diff_norm, *k_diff_norm, *scale[2], *shift[2];
};

struct heads_case {
    struct hand *h;
    struct layer layers[LAYERS];
    struct vectors v;
    float *qkv, *cosines, *sines;
    size_t kv_bytes, scratch_bytes;
    char *kv, *scratch; /* as they were before */
};

static float *both(struct rng *rng, size_t n, float around, const float **device) {
    float *v = random_array(rng, n, around, 0.3f);
    *device = device_copy(v, n);
    return v;
}

static void set_kv_type(struct heads_case *c, enum dtype kv) {
    struct device *dev = &c->h->dev;
    const size_t number = kv == DTYPE_Q8_0 ? 1 : dtype_row_bytes(kv, 1);
    dev->limits.kv_dtype = kv;
    dev->value_bytes = PAGE_TOKENS * dev->head_pad * number;
    dev->head_bytes = 2 * (dev->value_bytes + (kv == DTYPE_Q8_0 ? PAGE_TOKENS * 2 : 0));
    dev->layer_bytes = dev->shape.n_kv_heads * dev->head_bytes;
    dev->page_bytes = LAYERS * dev->layer_bytes;
    c->kv_bytes = PAGES * dev->page_bytes;
    c->scratch_bytes = HAND_SEGMENTS * dev->scratch_pages * dev->layer_bytes;
}

static struct heads_case *heads_open(struct rng *rng, uint32_t e, uint32_t heads, uint32_t kv_heads,
                                     bool norms, bool orthros, enum dtype act) {
    struct heads_case *c = (struct heads_case *)calloc(1, sizeof *c);
    c->h = hand_open();
    struct device *dev = &c->h->dev;
    struct layer *l = &c->layers[1];
    const uint32_t half = e / 2, q = heads * e, kv = kv_heads * e;
    dev->act = act;
    dev->shape.head_dim = e;
    dev->shape.n_heads = heads;
    dev->shape.n_kv_heads = kv_heads;
    dev->shape.rms_eps = 1e-6f;
    dev->shape.orthros = orthros;
    dev->head_pad = (uint32_t)align_up(e, 16);
    dev->ld_q = (uint32_t)align_up(q, GPU_GROUP);
    dev->k_at = (uint32_t)align_up(q, WEIGHT_ROWS);
    dev->v_at = dev->k_at + (uint32_t)align_up(kv, WEIGHT_ROWS);
    dev->ld_qkv = dev->v_at + (uint32_t)align_up(kv, WEIGHT_ROWS);
    dev->scratch_pages = 2;
    dev->layers = c->layers;
    if (norms) {
        c->v.q_norm = both(rng, e, 1, &l->q_norm);
        c->v.k_norm = both(rng, e, 1, &l->k_norm);
        c->v.q_diff_norm = both(rng, e, 1, &l->q_diff_norm);
        c->v.k_diff_norm = both(rng, e, 1, &l->k_diff_norm);
    }
    if (orthros) { /* one of the four is missing */
        c->v.scale[0] = both(rng, q, 1, &l->base_scale);
        c->v.shift[0] = both(rng, q, 0, &l->base_shift);
        c->v.shift[1] = both(rng, q, 0, &l->output_shift);
    }
    c->cosines = (float *)calloc(POSITIONS * half, sizeof(float));
    c->sines = (float *)calloc(POSITIONS * half, sizeof(float));
    for (uint32_t i = 0; i < POSITIONS * half; i++) {
        const double angle = i / half * pow(1000, -2.0 * (i % half) / e);
        c->cosines[i] = (float)cos(angle);
        c->sines[i] = (float)sin(angle);
    }
    dev->cosines = device_copy(c->cosines, POSITIONS * half);
    dev->sines = device_copy(c->sines, POSITIONS * half);
    c->qkv = random_array(rng, HAND_ROWS * dev->ld_qkv, 0, 1);
    dev->qkv = device_copy(c->qkv, HAND_ROWS * dev->ld_qkv);
    dev->q = device_array<float>(HAND_ROWS * dev->ld_q);
    return c;
}
static void heads_close(struct heads_case *c) {
    struct device *dev = &c->h->dev;
    const struct layer *l = &c->layers[1];
    for (const float *p : {l->q_norm, l->k_norm, l->q_diff_norm, l->k_diff_norm, l->base_scale,
                           l->base_shift, l->output_scale, l->output_shift})
        check_cuda(cudaFree((void *)p));
    for (float *p : {c->v.q_norm, c->v.k_norm, c->v.q_diff_norm, c->v.k_diff_norm, c->v.scale[0],
                     c->v.scale[1], c->v.shift[0], c->v.shift[1], c->qkv, c->cosines, c->sines})
        free(p);
    for (void *p : {(void *)dev->cosines, (void *)dev->sines, (void *)dev->qkv, dev->q})
        check_cuda(cudaFree(p));
    hand_close(c->h);
    free(c);
}

/* Random bytes in the KV memory: what a kernel leaves alone is then seen. Runs layer 1 and returns all
 * of the memory; c->kv, c->scratch hold what was there before. */
static void run_heads(struct heads_case *c, struct rng *rng, char **kv, char **scratch) {
    struct device *dev = &c->h->dev;
    c->kv = (char *)calloc(1, c->kv_bytes);
    c->scratch = (char *)calloc(1, c->scratch_bytes);
    for (size_t i = 0; i < c->kv_bytes; i++)
        c->kv[i] = (char)rng_u64(rng);
    for (size_t i = 0; i < c->scratch_bytes; i++)
        c->scratch[i] = (char)rng_u64(rng);
    dev->kv = device_copy(c->kv, c->kv_bytes);
    dev->kv_scratch = device_copy(c->scratch, c->scratch_bytes);
    check_cuda(cudaMemset(dev->q, 0xFF, HAND_ROWS * dev->ld_q * sizeof(float)));
    check_cuda(gpu_heads(dev, 1, NULL));
    *kv = (char *)calloc(1, c->kv_bytes);
    *scratch = (char *)calloc(1, c->scratch_bytes);
    host_copy(*kv, dev->kv, c->kv_bytes);
    host_copy(*scratch, dev->kv_scratch, c->scratch_bytes);
    check_cuda(cudaFree(dev->kv));
    check_cuda(cudaFree(dev->kv_scratch));
}

/* out = what becomes of a head of e numbers; norm, scale, shift, cosines may be NULL. */
static void expect_head(const struct heads_case *c, const float *in, const float *scale,
                        const float *shift, const float *norm, int64_t pos, float *out) {
    const uint32_t e = c->h->dev.shape.head_dim, half = e / 2;
    double x[HAND_ROWS * 2], squares = 0;
    for (uint32_t i = 0; i < e; i++) {
        x[i] = (double)in[i];
        if (scale) x[i] *= (double)scale[i];
        if (shift) x[i] += (double)shift[i];
        squares += x[i] * x[i];
    }
    for (uint32_t i = 0; norm && i < e; i++)
        x[i] *= (double)norm[i] / sqrt(squares / e + (double)c->h->dev.shape.rms_eps);
    for (uint32_t m = 0; m < half; m++) {
        const size_t at = (size_t)(pos < 0 ? 0 : pos) * half + m;
        const double cosine = pos < 0 ? 1 : (double)c->cosines[at];
        const double sine = pos < 0 ? 0 : (double)c->sines[at];
        out[m] = (float)(x[m] * cosine - x[m + half] * sine);
        out[m + half] = (float)(x[m + half] * cosine + x[m] * sine);
    }
}

static void compare_queries(const struct heads_case *c) {
    const struct device *dev = &c->h->dev;
    const uint32_t e = dev->shape.head_dim, n_heads = dev->shape.n_heads, ld = dev->ld_q;
    float *got = read_act(dev->q, dev->act, HAND_ROWS * ld), *want = (float *)calloc(ld, 4);
    for (uint32_t row = 0; row < c->h->counts.n_rows; row++) {
        const struct row *r = &c->h->rows[row];
        const bool draft = r->view == VIEW_DRAFT;
        for (uint32_t h = 0; h < n_heads; h++) {
            const float *scale = draft ? NULL : c->v.scale[r->view];
            const float *shift = draft ? NULL : c->v.shift[r->view];
            expect_head(c, c->qkv + row * dev->ld_qkv + h * e, scale ? scale + h * e : NULL,
                        shift ? shift + h * e : NULL, draft ? c->v.q_diff_norm : c->v.q_norm,
                        r->pos, want + h * e);
        }
        assert_close(got + row * ld, want, ld, 4e-6, act_error(dev->act), "q");
    }
    for (size_t i = c->h->counts.n_rows * ld; i < HAND_ROWS * ld; i++)
        assert_true(isnan(got[i]));
    free(got);
    free(want);
}

/* d and q of cuda.h's "8-bit KV". */
static uint16_t to_int8(const float *x, uint32_t n, int8_t *q) {
    float most = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        most = fmaxf(most, fabsf(x[i]));
    }
    memset(q, 0, n);
    if (!finite) return 0x7E00;
    const uint16_t scale = f32_to_f16(fminf(most / 127.0f, 65504.0f));
    const float d = f16_to_f32(scale);
    for (uint32_t i = 0; d > 0 && i < n; i++)
        q[i] = (int8_t)lrintf(fminf(fmaxf(x[i] / d, -127.0f), 127.0f));
    return scale;
}

/* K or V of a position, as the KV type has it, into a kv head's memory of a page. */
static void store_expected(const struct device *dev, char *head, uint32_t at, bool v,
                           const float *x) {
    const uint32_t e = dev->shape.head_dim, ep = dev->head_pad;
    char *to = head + (v ? dev->value_bytes : 0) + at * (dev->value_bytes / PAGE_TOKENS);
    memset(to, 0, dev->value_bytes / PAGE_TOKENS);
    if (dev->limits.kv_dtype != DTYPE_Q8_0) {
        dtype_from_f32(dev->limits.kv_dtype, x, e, to);
        return;
    }
    int8_t q[HAND_ROWS * 2] = {0};
    const uint16_t d = to_int8(x, e, q);
    memcpy(to, q, ep < sizeof q ? ep : sizeof q);
    memcpy(head + 2 * dev->value_bytes + (v ? PAGE_TOKENS * 2 : 0) + at * 2, &d, 2);
}

static char *head_of(const struct heads_case *c, char *kv, char *scratch, const struct row *r,
                     uint32_t g) {
    const struct device *dev = &c->h->dev;
    char *page = r->view == VIEW_DRAFT ? scratch + r->kv_page * dev->layer_bytes
                                       : kv + r->kv_page * dev->page_bytes + dev->layer_bytes;
    return page + g * dev->head_bytes;
}

/* What the cache holds of draft blocks' first pages, position by position. */
static void begin_expected(const struct heads_case *c, const char *kv, char *scratch) {
    const struct device *dev = &c->h->dev;
    const size_t bytes = dev->value_bytes / PAGE_TOKENS;
    for (uint32_t i = 0; i < c->h->counts.n_segments; i++) {
        const struct seg *s = &c->h->segments[i];
        if (s->view != VIEW_DRAFT || s->pos % PAGE_TOKENS == 0) continue;
        const uint32_t page = c->h->pages[s->pages + s->pos / PAGE_TOKENS];
        for (uint32_t g = 0; g < dev->shape.n_kv_heads; g++)
            for (uint32_t at = 0; at < s->pos % PAGE_TOKENS; at++)
                for (int v = 0; v < 2; v++) {
                    const char *from =
                        kv + page * dev->page_bytes + dev->layer_bytes + g * dev->head_bytes;
                    char *to = scratch + s->scratch * dev->layer_bytes + g * dev->head_bytes;
                    size_t value = v * dev->value_bytes + at * bytes;
                    size_t scale = 2 * dev->value_bytes + (v * PAGE_TOKENS + at) * 2;
                    memcpy(to + value, from + value, bytes);
                    if (dev->limits.kv_dtype == DTYPE_Q8_0) memcpy(to + scale, from + scale, 2);
                }
    }
}

/* K and V of every row as float32, from a run with float32 KV: [row][kv head][2][e]. */
static float *exact_kv(struct heads_case *c, struct rng *rng) {
    char *kv, *scratch;
    const uint32_t e = c->h->dev.shape.head_dim, n_kv = c->h->dev.shape.n_kv_heads;
    float *out = (float *)calloc(HAND_ROWS * n_kv * 2 * e, sizeof *out);
    set_kv_type(c, DTYPE_F32);
    run_heads(c, rng, &kv, &scratch);
    for (uint32_t row = 0; row < c->h->counts.n_kv_rows; row++)
        for (uint32_t i = 0; i < 2 * n_kv; i++) {
            const struct row *r = &c->h->rows[row];
            const struct device *dev = &c->h->dev;
            const char *head = head_of(c, kv, scratch, r, i / 2) + i % 2 * dev->value_bytes;
            memcpy(out + (row * n_kv * 2 + i) * e,
                   head + r->pos % PAGE_TOKENS * (dev->value_bytes / PAGE_TOKENS),
                   e * sizeof(float));
        }
    free(kv);
    free(scratch);
    free(c->kv);
    free(c->scratch);
    return out;
}

static void compare_kv(const struct heads_case *c, const float *exact) {
    const struct device *dev = &c->h->dev;
    const uint32_t e = dev->shape.head_dim, n_kv = dev->shape.n_kv_heads;
    float want[HAND_ROWS * 2];
    for (uint32_t row = 0; row < c->h->counts.n_kv_rows; row++)
        for (uint32_t g = 0; g < n_kv; g++) {
            const struct row *r = &c->h->rows[row];
            const float *norm = r->view == VIEW_DRAFT ? c->v.k_diff_norm : c->v.k_norm;
            const float *in = c->qkv + row * dev->ld_qkv + g * e;
            const float *k = exact + (row * n_kv + g) * 2 * e;
            expect_head(c, in + dev->k_at, NULL, NULL, norm, r->pos, want);
            assert_close(k, want, e, 4e-6, 4e-6, "k");
            assert_same_bits(k + e, in + dev->v_at, e, "v");
        }
}

/* The whole of KV and scratch memory after a run in each KV type. */
static void compare_memory(struct heads_case *c, struct rng *rng, const float *exact) {
    struct device *dev = &c->h->dev;
    const uint32_t e = dev->shape.head_dim, n_kv = dev->shape.n_kv_heads;
    for (enum dtype type : kv_types) {
        char *kv, *scratch;
        set_kv_type(c, type);
        run_heads(c, rng, &kv, &scratch);
        begin_expected(c, c->kv, c->scratch);
        for (uint32_t row = 0; row < c->h->counts.n_kv_rows; row++)
            for (uint32_t i = 0; i < 2 * n_kv; i++) {
                const struct row *r = &c->h->rows[row];
                store_expected(dev, head_of(c, c->kv, c->scratch, r, i / 2), r->pos % PAGE_TOKENS,
                               i % 2, exact + (row * n_kv * 2 + i) * e);
            }
        assert_memory_equal(kv, c->kv, c->kv_bytes);
        assert_memory_equal(scratch, c->scratch, c->scratch_bytes);
        compare_queries(c);
        free(kv);
        free(scratch);
        free(c->kv);
        free(c->scratch);
    }
}

static struct segment make_segment(enum view view, uint32_t slot, uint32_t pos, uint32_t n,
                                   const uint32_t *pages) {
    struct segment s = {};
    s.view = (uint8_t)view;
    s.slot = slot;
    s.pos = pos;
    s.n_rows = n;
    s.pages = pages;
    return s;
}

static const uint32_t tables[3][7] = {
    {3, 9, 1, 20, 5, 6, 7}, {0, 2, 4, 8, 10, 11, 12}, {23, 22, 21, 19, 18, 17, 16}};

static void heads_are_turned_and_stored(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    static const struct {
        uint32_t e, heads, kv_heads;
    } sizes[] = {{6, 3, 1},  {16, 2, 2},  {20, 5, 1}, {64, 2, 1},
                 {90, 2, 1}, {128, 2, 1}, {256, 1, 1}};
    for (uint32_t i = 0; i < 3 * ARRAY_LEN(sizes); i++) {
        const uint32_t kind = i % 3; /* plain, Orthros, draft */
        use_order((int)i % N_ORDERS, rng_u64(&rng));
        struct heads_case *c =
            heads_open(&rng, sizes[i / 3].e, sizes[i / 3].heads, sizes[i / 3].kv_heads, i % 4 != 3,
                       kind == 1 || i % 2, i % 5 < 3 ? DTYPE_BF16 : DTYPE_F32);
        if (kind == 2) {
            struct segment s[] = {make_segment(VIEW_DRAFT, 2, 35, 7, tables[0]),
                                  make_segment(VIEW_DRAFT, 0, 32, 3, tables[1]),
                                  make_segment(VIEW_DRAFT, 1, 12, 6, tables[2]),
                                  make_segment(VIEW_DRAFT, 3, 0, 1, NULL)};
            hand_begin(c->h, s, 4, i % 3);
        } else {
            struct segment s[] = {make_segment(VIEW_BASE, 0, 0, 5, tables[0]),
                                  make_segment(VIEW_BASE, 2, 90, 10, tables[1]),
                                  make_segment(VIEW_BASE, 1, 30, 4, tables[2]),
                                  make_segment(VIEW_OUTPUT, 1, 32, 2, tables[2]),
                                  make_segment(VIEW_OUTPUT, 0, 1, 4, tables[0])};
            hand_begin(c->h, s, kind ? 5 : 3, i % 4);
        }
        float *exact = exact_kv(c, &rng);
        compare_kv(c, exact);
        compare_memory(c, &rng, exact);
        free(exact);
        heads_close(c);
    }
}

/* V goes to memory as it is, so that it may hold anything. */
static void extreme_vectors_are_kept_in_8_bits(void **) {
    static const float values[] = {INFINITY, -INFINITY, NAN,    1e30f, -3e38f,     1e-7f,
                                   3e-8f,    1e-12f,    1e-45f, 0,     8323072.0f, 127};
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct heads_case *c = heads_open(&rng, 64, 2, 2, false, false, DTYPE_F32);
    struct device *dev = &c->h->dev;
    struct segment s = make_segment(VIEW_BASE, 0, 7, ARRAY_LEN(values), tables[0]);
    hand_begin(c->h, &s, 1, 0);
    float *exact = exact_kv(c, &rng);
    for (uint32_t row = 0; row < s.n_rows; row++)
        for (uint32_t g = 0; g < 2; g++) {
            float *v = c->qkv + row * dev->ld_qkv + dev->v_at + g * 64;
            for (uint32_t i = 0; g == 0 && i < 64; i++)
                v[i] *= row < 5 || values[row] > 1 ? 1 : values[row]; /* nothing greater */
            v[row * 5] = values[row];
            memcpy(exact + ((row * 2 + g) * 2 + 1) * 64, v, 64 * sizeof *v);
        }
    device_set(dev->qkv, c->qkv, HAND_ROWS * dev->ld_qkv);
    char *kv, *scratch;
    set_kv_type(c, DTYPE_Q8_0);
    run_heads(c, &rng, &kv, &scratch);
    for (uint32_t row = 0; row < s.n_rows; row++)
        for (uint32_t i = 0; i < 4; i++)
            store_expected(dev, head_of(c, c->kv, c->scratch, &c->h->rows[row], i / 2),
                           c->h->rows[row].pos % PAGE_TOKENS, i % 2, exact + (row * 4 + i) * 64);
    assert_memory_equal(kv, c->kv, c->kv_bytes);
    for (char *p : {kv, scratch, c->kv, c->scratch})
        free(p);
    free(exact);
    heads_close(c);
}

static void a_row_alone_has_the_same_bits(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct heads_case *c = heads_open(&rng, 90, 3, 1, true, true, DTYPE_F32);
    struct device *dev = &c->h->dev;
    const size_t ld = dev->ld_q, ld_in = dev->ld_qkv;
    struct segment s = make_segment(VIEW_BASE, 0, 20, 11, tables[0]);
    char *kv[2], *scratch[2];
    hand_begin(c->h, &s, 1, 5);
    set_kv_type(c, DTYPE_BF16);
    run_heads(c, &rng, &kv[0], &scratch[0]);
    float *all = read_act(dev->q, DTYPE_F32, 11 * ld);
    for (uint32_t i = 0; i < 11; i++) {
        struct segment one = make_segment(VIEW_BASE, 0, 20 + i, 1, tables[0]);
        free(c->kv);
        free(c->scratch);
        use_order((int)i % N_ORDERS, rng_u64(&rng));
        hand_begin(c->h, &one, 1, 0);
        device_set(dev->qkv, c->qkv + i * ld_in, ld_in);
        run_heads(c, &rng, &kv[1], &scratch[1]);
        float *alone = read_act(dev->q, DTYPE_F32, ld);
        assert_same_bits(alone, all + i * ld, ld, "q");
        const struct row *r = &c->h->rows[0];
        const size_t bytes = dev->value_bytes / PAGE_TOKENS, at = r->pos % PAGE_TOKENS * bytes;
        for (size_t v = 0; v < 2; v++)
            assert_memory_equal(head_of(c, kv[0], scratch[0], r, 0) + at + v * dev->value_bytes,
                                head_of(c, kv[1], scratch[1], r, 0) + at + v * dev->value_bytes,
                                bytes);
        free(alone);
        free(kv[1]);
        free(scratch[1]);
    }
    for (char *p : {kv[0], scratch[0], c->kv, c->scratch})
        free(p);
    free(all);
    heads_close(c);
}

static void a_page_is_copied_whole(void **) {
    struct device dev = {};
    char before[5 * 96], after[5 * 96];
    for (size_t i = 0; i < sizeof before; i++)
        before[i] = (char)(i * 7 + i / 96);
    dev.page_bytes = 96;
    dev.kv = device_copy(before, sizeof before);
    check_cuda(gpu_page_copy(&dev, 3, 1, NULL));
    memcpy(before + 96, before + 3 * 96, 96);
    host_copy(after, dev.kv, sizeof after);
    assert_memory_equal(after, before, sizeof before);
    check_cuda(cudaFree(dev.kv));
}

// ---- random weights

static void random_vectors_are_uniform_and_repeat(void **) {
    enum { N = 20000 };
    float *out = device_array<float>(N);
    float *a = (float *)calloc(N, sizeof *a), *b = (float *)calloc(N, sizeof *b);
    check_cuda(gpu_random_vector(out, N, 5, 0.5f, 0.25f, NULL));
    host_copy(a, out, N);
    check_cuda(gpu_random_vector(out, N - 77, 5, 0.5f, 0.25f, NULL)); /* a prefix */
    host_copy(b, out, N);
    assert_same_bits(a, b, N, "prefix");
    double mean = 0, square = 0, neighbours = 0;
    for (int i = 0; i < N; i++) {
        assert_true(a[i] >= 0.25f && a[i] < 0.75f);
        const double x = ((double)a[i] - 0.5) / 0.25;
        mean += x / N;
        square += x * x / N;
        if (i > 0) neighbours += x * ((double)a[i - 1] - 0.5) / 0.25 / N;
    }
    assert_true(fabs(mean) < 0.02 && fabs(square - 1.0 / 3) < 0.02 && fabs(neighbours) < 0.02);
    check_cuda(gpu_random_vector(out, N, 6, 0.5f, 0.25f, NULL));
    host_copy(b, out, N);
    int same = 0;
    for (int i = 0; i < N; i++)
        same += a[i] == b[i];
    assert_true(same < 10);
    check_cuda(cudaFree(out));
    free(a);
    free(b);
}

/* Values of a matrix, [padded rows][ld], and its bytes for comparison. */
static float *random_values(struct matrix *m, const uint32_t *runs, uint32_t n_runs) {
    const size_t rows = align_up(m->rows, WEIGHT_ROWS), n = rows * m->ld;
    const size_t number = m->dtype == DTYPE_F32 ? 4 : m->dtype == DTYPE_BF16 ? 2 : 1;
    char *bytes = (char *)calloc(n, number);
    float *out = (float *)calloc(n, sizeof *out);
    m->data = device_array<char>(n * number);
    m->scales = device_array<float>(n / GPU_GROUP);
    check_cuda(cudaMemset(m->data, 0xFF, n * number));
    for (uint32_t i = 0; i < n_runs; i++)
        check_cuda(gpu_random_matrix(m, runs[i],
                                     (i + 1 < n_runs ? runs[i + 1] : (uint32_t)rows) - runs[i], 99,
                                     0.1f, 0.7f, NULL));
    host_copy(bytes, (const char *)m->data, n * number);
    if (m->dtype == DTYPE_Q8_0) {
        host_copy(out, m->scales, n / GPU_GROUP);
        for (size_t i = n; i-- > 0;) /* scales lie in front of their numbers */
            out[i] = out[i / GPU_GROUP] * (float)(int8_t)bytes[i];
    } else {
        dtype_to_f32(m->dtype, bytes, n, out);
    }
    free(bytes);
    check_cuda(cudaFree(m->data));
    check_cuda(cudaFree(m->scales));
    return out;
}

static void random_matrices_agree_in_every_type(void **) {
    static const uint32_t whole[] = {0}, parts[] = {0, 3, 16, 29};
    const uint32_t rows = 37, cols = 75;
    struct matrix m = {};
    m.rows = rows;
    m.cols = cols;
    m.ld = 96;
    const size_t n = 48 * 96;
    m.dtype = DTYPE_F32;
    float *exact = random_values(&m, whole, 1);
    for (size_t i = 0; i < n; i++) {
        const bool padding = i / 96 >= rows || i % 96 >= cols;
        assert_true(padding ? exact[i] == 0 : exact[i] != 0 && fabsf(exact[i] - 0.1f) <= 0.7001f);
    }
    for (enum dtype type : kv_types)
        for (int cut = 0; cut < 2; cut++) {
            m.dtype = type;
            float *got = random_values(&m, cut ? parts : whole, cut ? 4 : 1);
            const float error = type == DTYPE_F32    ? 0
                                : type == DTYPE_BF16 ? 0.8f / 256
                                                     : 0.5001f * 0.8f / 127;
            assert_close(got, exact, n, (double)error, 0, dtype_name(type));
            free(got);
        }
    free(exact);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_rows_are_widened),
        cmocka_unit_test(norms_match_and_gather),
        cmocka_unit_test(heads_are_turned_and_stored),
        cmocka_unit_test(extreme_vectors_are_kept_in_8_bits),
        cmocka_unit_test(a_row_alone_has_the_same_bits),
        cmocka_unit_test(a_page_is_copied_whole),
        cmocka_unit_test(random_vectors_are_uniform_and_repeat),
        cmocka_unit_test(random_matrices_agree_in_every_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
