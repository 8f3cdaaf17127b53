/* test_msar.cpp: the residual path of MSAR models on a device: its stages against a plain reference in
 * double, written from the formulas alone, over random forwards that mix sequences and views; and bits
 * that must not depend on chunks, batches, refused rows, snapshots or what unused places hold. Sines
 * stand for attention and MLP. */
#include "kernels/cuda/msar.h"
#include "tests/gpu/hand_forward.h"

#include <math.h>

enum {
    SLOTS = 3,
    POSITIONS = 120,
    SNAPSHOTS = 2,
    KINDS = WEIGHT_END - WEIGHT_MSAR_CONV,
    MOST = 64
};

/* A model, its weights on both sides, and the device's memory for it. */
struct model {
    struct hand *h;
    struct rng rng;
    float *weights[KINDS][MOST]; /* as on the device: runs of d padded to ld */
    size_t n_floats[KINDS][MOST];
    const float **device_weights[KINDS];
    float
        *memory[KINDS]; /* of all weights of a kind: the simulator's time grows with allocations */
    size_t ring_floats; /* of all slots */
};

static uint32_t branches(const struct model *m) {
    return 2 * m->h->dev.shape.n_layers;
}

static void make_weight(struct model *m, enum weight which, uint32_t index, uint32_t rows,
                        uint32_t cols, uint32_t ld, float spread) {
    const int kind = which - WEIGHT_MSAR_CONV;
    assert_true(index < MOST);
    float *w = random_rows(&m->rng, rows, cols, ld, 0, spread);
    m->weights[kind][index] = w;
    m->n_floats[kind][index] = (size_t)rows * ld;
}
static void upload_weights(struct model *m) {
    for (int kind = 0; kind < KINDS; kind++) {
        size_t n = 0, at = 0;
        for (size_t floats : m->n_floats[kind])
            n += align_up(floats, GPU_ALIGN / sizeof(float));
        m->memory[kind] = device_array<float>(n + 1);
        for (uint32_t i = 0; i < MOST && m->weights[kind][i]; i++) {
            m->device_weights[kind][i] = m->memory[kind] + at;
            device_set(m->memory[kind] + at, m->weights[kind][i], m->n_floats[kind][i]);
            at += align_up(m->n_floats[kind][i], GPU_ALIGN / sizeof(float));
        }
    }
}

static void poison(void *p, size_t bytes) {
    if (bytes) check_cuda(cudaMemset(p, 0xFF, bytes)); /* NaN */
}

/* What lives for one forward. */
static void poison_workspace(const struct model *m) {
    const struct device *dev = &m->h->dev;
    const struct gpu_msar *g = &dev->msar;
    const size_t n = dev->shape.n_msar_streams, rows = dev->limits.max_rows * sizeof(float);
    poison(dev->x, rows * dev->ld_model);
    poison(g->views, g->n_sources * n * rows * dev->ld_model);
    poison(g->inverse, g->n_sources * n * rows);
    poison(g->z, n * rows * dev->ld_model);
    poison(g->gates, n * (n + 1) * rows);
}

static struct model *model_open(const struct model_shape *shape, uint32_t max_rows,
                                uint32_t max_proposed, uint64_t seed) {
    struct model *m = (struct model *)calloc(1, sizeof *m);
    rng_seed(&m->rng, seed);
    m->h = hand_open();
    struct device *dev = &m->h->dev;
    struct gpu_msar *g = &dev->msar;
    const uint32_t n = shape->n_msar_streams, d = shape->d_model;
    dev->shape = *shape;
    dev->limits.max_rows = max_rows;
    const uint32_t ld = dev->ld_model = (uint32_t)align_up(d, GPU_GROUP);
    g->n_pushes = 2 * shape->n_layers;
    g->n_sources = msar_source(shape, g->n_pushes) + 1;
    g->history = msar_history(shape);
    g->ring_len = msar_ring_len(shape, max_proposed);
    for (int kind = 0; kind < KINDS; kind++)
        g->weights[kind] = m->device_weights[kind] =
            (const float **)calloc(MOST, sizeof(const float *));
    for (uint32_t i = 0; i < g->n_sources * (n - 1); i++)
        make_weight(m, WEIGHT_MSAR_CONV, i, shape->msar_kernels[i % (n - 1) + 1], d, ld, 0.4f);
    const float even = 2.0f / sqrtf((float)d); /* scores of some units at any width */
    for (uint32_t l = 0; l < branches(m); l++) {
        make_weight(m, WEIGHT_MSAR_QUERY, l, n, d, ld, even);
        make_weight(m, WEIGHT_MSAR_MIX, l, n * n, d, ld, even);
        make_weight(m, WEIGHT_MSAR_MIX_BIAS, l, 1, n, n, 0.5f);
        make_weight(m, WEIGHT_MSAR_MIX_SCALE, l, 1, 1, 1, 0.5f);
    }
    make_weight(m, WEIGHT_MSAR_READOUT, 0, 1, d, ld, even);
    upload_weights(m);
    const size_t row = (size_t)max_rows * ld, position = (size_t)g->n_pushes * ld;
    m->ring_floats = SLOTS * g->ring_len * position;
    dev->x = device_array<float>(row);
    g->views = device_array<float>(g->n_sources * n * row);
    g->inverse = device_array<float>(g->n_sources * n * max_rows);
    g->z = device_array<float>(n * row);
    g->gates = device_array<float>(max_rows * n * (n + 1));
    g->rings = device_array<float>(m->ring_floats + 1);
    g->snapshots = device_array<float>(SNAPSHOTS * g->history * position + 1);
    poison(g->rings, m->ring_floats * sizeof(float));
    poison(g->snapshots, SNAPSHOTS * g->history * position * sizeof(float));
    return m;
}
static void model_close(struct model *m) {
    const struct device *dev = &m->h->dev;
    const struct gpu_msar *g = &dev->msar;
    for (void *p : {(void *)dev->x, (void *)g->views, (void *)g->inverse, (void *)g->z,
                    (void *)g->gates, (void *)g->rings, (void *)g->snapshots})
        check_cuda(cudaFree(p));
    for (int kind = 0; kind < KINDS; kind++) {
        check_cuda(cudaFree(m->memory[kind]));
        for (float *w : m->weights[kind])
            free(w);
        free(m->device_weights[kind]);
    }
    hand_close(m->h);
    free(m);
}

static const float *weight(const struct model *m, enum weight which, uint32_t index) {
    return m->weights[which - WEIGHT_MSAR_CONV][index];
}

/* The embedding of a token, number i. */
static float embedded(int32_t token, uint32_t i) {
    return (float)sin(0.7 + 1.1 * token + 0.53 * i * (1 + token % 5));
}
/* What stands for attention and MLP: different in every branch, view and place, gain at most 1. */
static double branch_of(uint32_t l, int view, uint32_t i, double h) {
    return sin(h + 1.3 * l + 0.7 * view + 0.37 * i);
}

// ---- a forward on the device

/* Called with x of all rows after each read; readout: rows with logits. */
typedef void (*seen_fn)(void *arg, uint32_t l, const float *x);

static void run_stages(struct model *m, const struct segment *segments, uint32_t n, uint32_t slack,
                       seen_fn seen, void *arg) {
    struct hand *h = m->h;
    struct device *dev = &h->dev;
    hand_begin(h, segments, n, slack);
    poison_workspace(m);
    const uint32_t d = dev->shape.d_model, ld = dev->ld_model, n_rows = h->counts.n_rows;
    const size_t all = dev->limits.max_rows * (size_t)ld;
    assert_true(n_rows <= dev->limits.max_rows);
    float *x = (float *)calloc(all, sizeof *x), *p = (float *)calloc(n_rows * ld, 4);
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t i = 0; i < d; i++)
            p[row * ld + i] = embedded(h->rows[row].token, i);
    float *residual = gpu_msar_view(dev, 0, 0);
    device_set(residual, p, n_rows * ld);
    for (uint32_t l = 0; l <= branches(m); l++) {
        if (l < branches(m)) check_cuda(gpu_msar_push(dev, l, NULL));
        check_cuda(gpu_msar_read(dev, l, NULL));
        host_copy(x, dev->x, all);
        if (seen) seen(arg, l, x);
        if (l == branches(m)) break;
        residual = gpu_msar_residual(dev, l);
        host_copy(p, residual, n_rows * ld);
        for (uint32_t row = 0; row < n_rows; row++)
            for (uint32_t i = 0; i < ld; i++) {
                if (l % dev->shape.msar_branches == 0) assert_true(p[row * ld + i] == 0);
                if (i >= d)
                    assert_true(x[row * ld + i] == 0 && p[row * ld + i] == 0);
                else
                    p[row * ld + i] +=
                        (float)branch_of(l, (int)h->rows[row].view, i, (double)x[row * ld + i]);
            }
        device_set(residual, p, n_rows * ld);
    }
    for (size_t i = n_rows * ld; i < all; i++)
        assert_true(isnan(x[i])); /* rows there are not */
    free(x);
    free(p);
}

// ---- the reference

/* What a sequence pushed at each position: [push][d]. */
struct sequence {
    uint32_t pos, floor; /* positions that count; below floor none can be run again */
    double *at[POSITIONS];
};
struct reference {
    struct model *m;
    struct sequence slots[SLOTS], saved[SNAPSHOTS];
    bool has_saved[SNAPSHOTS];
    double *reads[HAND_ROWS]; /* of the forward's rows, [branches + 1][d] */
    uint32_t n_rows;
    int32_t tokens[HAND_ROWS];
    char what[120];
};

static double mean_square(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum / (double)n;
}
/* sum_s softmax_s(w . RMSNorm(v[s])) v[s] */
static void over_depth(const struct model *m, const float *w, double *const *v, uint32_t n,
                       double *out) {
    const struct model_shape *s = &m->h->dev.shape;
    double scores[MOST], most = -INFINITY, total = 0;
    for (uint32_t k = 0; k < n; k++) {
        double sum = 0;
        for (uint32_t i = 0; i < s->d_model; i++)
            sum += (double)w[i] * v[k][i];
        scores[k] = sum / sqrt(mean_square(v[k], s->d_model) + (double)s->rms_eps);
        most = fmax(most, scores[k]);
    }
    for (uint32_t k = 0; k < n; k++)
        total += scores[k] = exp(scores[k] - most);
    for (uint32_t i = 0; i < s->d_model; i++) {
        out[i] = 0;
        for (uint32_t k = 0; k < n; k++)
            out[i] += scores[k] / total * v[k][i];
    }
}
/* View r of a source, which is what push number `push` holds; past[t]: former positions. */
static void view_of(const struct model *m, uint32_t source, uint32_t r, uint32_t push, uint32_t pos,
                    double *const *past, const double *own, double *out) {
    const struct model_shape *s = &m->h->dev.shape;
    const uint32_t d = s->d_model;
    memcpy(out, own + push * d, d * sizeof *out);
    if (r == 0) return;
    const float *conv = weight(m, WEIGHT_MSAR_CONV, source * (s->n_msar_streams - 1) + r - 1);
    for (uint32_t i = 0; i < d; i++)
        out[i] *= (double)conv[i];
    for (uint32_t delta = 1; delta < s->msar_kernels[r] && delta <= pos; delta++)
        for (uint32_t i = 0; i < d; i++)
            out[i] +=
                (double)conv[delta * m->h->dev.ld_model + i] * past[pos - delta][push * d + i];
}
/* What branch l reads of a row whose pushes 0 .. l are in own. */
static void read_of(const struct model *m, uint32_t l, uint32_t pos, double *const *past,
                    const double *own, double *out) {
    const struct model_shape *s = &m->h->dev.shape;
    const uint32_t d = s->d_model, ld = m->h->dev.ld_model, n = s->n_msar_streams;
    const uint32_t block = l / s->msar_branches, inside = l % s->msar_branches;
    double *z = (double *)calloc(n * d, sizeof *z), *views[MOST];
    for (uint32_t k = 0; k < block + 2; k++)
        views[k] = (double *)calloc(d, sizeof(double));
    for (uint32_t r = 0; r < n; r++) {
        uint32_t n_sources = 0;
        for (; n_sources <= block; n_sources++)
            view_of(m, n_sources, r, n_sources * s->msar_branches, pos, past, own,
                    views[n_sources]);
        if (inside > 0) {
            view_of(m, block + 1, r, l, pos, past, own, views[n_sources]);
            n_sources++;
        }
        over_depth(m, weight(m, WEIGHT_MSAR_QUERY, l) + r * ld, views, n_sources, z + r * d);
    }
    const double inverse = 1 / sqrt(mean_square(z, n * d) + (double)s->rms_eps);
    memset(out, 0, d * sizeof *out);
    for (uint32_t k = 0; k < n; k++) {
        double g = 0;
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t i = 0; i < d; i++)
                g += (double)weight(m, WEIGHT_MSAR_MIX, l)[(k * n + r) * ld + i] * z[r * d + i];
        g = (double)*weight(m, WEIGHT_MSAR_MIX_SCALE, l) * g * inverse +
            (double)weight(m, WEIGHT_MSAR_MIX_BIAS, l)[k];
        for (uint32_t i = 0; i < d; i++)
            out[i] += z[k * d + i] / (1 + exp(-g));
    }
    for (uint32_t k = 0; k < block + 2; k++)
        free(views[k]);
    free(z);
}
/* One row: own [pushes][d], reads [branches + 1][d], the last of them the readout. */
static void row_of(const struct model *m, int view, uint32_t pos, int32_t token,
                   double *const *past, double *own, double *reads) {
    const struct model_shape *s = &m->h->dev.shape;
    const uint32_t d = s->d_model, n = branches(m);
    double *sums = (double *)calloc((n + 2) * d, sizeof *sums), *sources[MOST] = {sums};
    uint32_t n_sources = 1;
    for (uint32_t i = 0; i < d; i++)
        sums[i] = own[i] = (double)embedded(token, i);
    for (uint32_t l = 0; l < n; l++) {
        read_of(m, l, pos, past, own, reads + l * d);
        if (l % s->msar_branches == 0) {
            sources[n_sources] = sums + n_sources * d;
            n_sources++;
        }
        double *p = sources[n_sources - 1];
        for (uint32_t i = 0; i < d; i++)
            p[i] += branch_of(l, view, i, reads[l * d + i]);
        if (l + 1 < n) memcpy(own + (l + 1) * d, p, d * sizeof *p);
    }
    over_depth(m, weight(m, WEIGHT_MSAR_READOUT, 0), sources, n_sources, reads + n * d);
    free(sums);
}

static void keep(const struct model *m, double **to, const double *from) {
    const size_t n = branches(m) * m->h->dev.shape.d_model;
    if (!*to) *to = (double *)calloc(n, sizeof **to);
    memcpy(*to, from, n * sizeof **to);
}
static void keep_sequence(const struct model *m, struct sequence *to, const struct sequence *from,
                          uint32_t pos) {
    for (uint32_t t = 0; t < pos; t++)
        keep(m, &to->at[t], from->at[t]);
    to->pos = pos;
    to->floor = from->floor;
}

/* Expected numbers of a segment's rows; base rows enter the sequence. */
static void expect_segment(struct reference *ref, const struct segment *s) {
    const struct model *m = ref->m;
    struct sequence *seq = &ref->slots[s->slot];
    const size_t n_own = branches(m) * m->h->dev.shape.d_model;
    double *past[POSITIONS], *block[DRAFT_MAX] = {0};
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const uint32_t pos = s->pos + i;
        const bool draft = s->view == VIEW_DRAFT;
        for (uint32_t t = 0; t < pos; t++)
            past[t] = draft && t >= s->pos ? block[t - s->pos] : seq->at[t];
        double *own = (double *)calloc(n_own, sizeof *own);
        double *reads = (double *)calloc(n_own + m->h->dev.shape.d_model, sizeof *reads);
        row_of(m, s->view, pos, s->tokens[i], past, own, reads);
        if (s->view == VIEW_BASE) keep(m, &seq->at[pos], own);
        ref->reads[ref->n_rows++] = reads;
        if (draft)
            block[i] = own;
        else
            free(own);
    }
    for (double *own : block)
        free(own);
}

/* Float32 sums of up to 40 terms, through at most 9 branches of gain about 1. */
static void compare_read(void *arg, uint32_t l, const float *x) {
    const struct reference *ref = (const struct reference *)arg;
    const struct hand *h = ref->m->h;
    const uint32_t d = h->dev.shape.d_model;
    const bool readout = l == branches(ref->m);
    float *want = (float *)calloc(d, sizeof *want);
    for (uint32_t i = 0; i < (readout ? h->counts.n_logit_rows : h->counts.n_rows); i++) {
        const uint32_t row = readout ? h->logit_rows[i] : i;
        char what[200];
        snprintf(what, sizeof what, "%s: row %u, read %u", ref->what, row, l);
        for (uint32_t k = 0; k < d; k++)
            want[k] = (float)ref->reads[row][l * d + k];
        assert_close(x + row * h->dev.ld_model, want, d, 1e-4, 1e-4, what);
    }
    free(want);
}

// ---- random forwards

static uint32_t most_proposed(const struct model_shape *s) {
    return s->block_size ? s->block_size - 1 : 3;
}
static struct segment make_segment(struct reference *ref, enum view view, uint32_t slot,
                                   uint32_t pos, uint32_t n, const int32_t *tokens) {
    struct segment s = {};
    s.view = (uint8_t)view;
    s.slot = slot;
    s.pos = pos;
    s.n_rows = n;
    s.n_logits = 1 + rng_below(&ref->m->rng, n);
    s.tokens = tokens;
    return s;
}

/* Between two forwards: nothing, cut back, begin anew, another's state, a snapshot taken or put back. */
static void change_slot(struct reference *ref, uint32_t slot) {
    struct model *m = ref->m;
    const struct device *dev = &m->h->dev;
    struct sequence *seq = &ref->slots[slot];
    const uint32_t other = rng_below(&m->rng, SLOTS), shot = rng_below(&m->rng, SNAPSHOTS);
    const uint32_t border = seq->pos / PAGE_TOKENS * PAGE_TOKENS, history = dev->msar.history;
    switch (rng_below(&m->rng, 8)) {
    case 0: /* refused proposals: what they left in the ring is overwritten */
    case 1:
        if (seq->pos > seq->floor) seq->pos -= rng_below(&m->rng, seq->pos - seq->floor + 1);
        return;
    case 2:
        if (rng_below(&m->rng, 3) == 0) seq->pos = seq->floor = 0;
        return;
    case 3:
        if (other == slot) return;
        check_cuda(gpu_msar_copy(dev, other, slot, NULL));
        keep_sequence(m, seq, &ref->slots[other], ref->slots[other].pos);
        return;
    case 4:
    case 5:
        if (border < seq->floor) return;
        check_cuda(gpu_msar_save(dev, slot, border, border < history ? border : history, shot,
                                 false, NULL));
        keep_sequence(m, &ref->saved[shot], seq, border);
        ref->has_saved[shot] = true;
        return;
    case 6:
        if (!ref->has_saved[shot]) return;
        keep_sequence(m, seq, &ref->saved[shot], ref->saved[shot].pos);
        seq->floor = seq->pos;
        check_cuda(gpu_msar_save(dev, slot, seq->pos, seq->pos < history ? seq->pos : history, shot,
                                 true, NULL));
        return;
    default:
        return;
    }
}

static void random_forward(struct reference *ref, bool draft) {
    struct model *m = ref->m;
    const struct model_shape *s = &m->h->dev.shape;
    struct segment segments[2 * SLOTS];
    uint32_t n = 0, n_tokens = 0, reach = PAGE_TOKENS + most_proposed(s);
    for (int32_t &token : ref->tokens)
        token = (int32_t)rng_below(&m->rng, 50);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const struct sequence *seq = &ref->slots[slot];
        const uint32_t most = draft ? s->block_size : slot ? 6 : s->orthros ? 14 : 50; /* > ring */
        const uint32_t rows = 1 + rng_below(&m->rng, most);
        if (seq->pos + rows > POSITIONS || rng_below(&m->rng, 4) == 0) continue;
        segments[n++] = make_segment(ref, draft ? VIEW_DRAFT : VIEW_BASE, slot, seq->pos, rows,
                                     ref->tokens + n_tokens);
        n_tokens += rows;
    }
    const uint32_t n_base = n;
    for (uint32_t i = n_base; s->orthros && !draft && i-- > 0;) { /* in another order */
        const struct segment base = segments[i];
        const uint32_t skip = rng_below(&m->rng, base.n_rows);
        if (rng_below(&m->rng, 4) == 0) continue;
        segments[n++] = make_segment(ref, VIEW_OUTPUT, base.slot, base.pos + skip,
                                     base.n_rows - skip, base.tokens + skip);
    }
    ref->n_rows = 0;
    for (uint32_t i = 0; i < n; i++)
        expect_segment(ref, &segments[i]);
    for (uint32_t i = 0; i < n_base && !draft; i++) {
        struct sequence *seq = &ref->slots[segments[i].slot];
        seq->pos += segments[i].n_rows;
        if (seq->pos > reach && seq->pos - reach > seq->floor) seq->floor = seq->pos - reach;
    }
    if (n) run_stages(m, segments, n, rng_below(&m->rng, 4), compare_read, ref);
    for (uint32_t i = 0; i < ref->n_rows; i++)
        free(ref->reads[i]);
}

static struct model_shape random_shape(struct rng *rng, uint32_t kind) {
    static const uint32_t streams[] = {4, 1, 2, 8};
    struct model_shape s = {};
    s.rms_eps = 1e-6f;
    s.d_model = 8 + rng_below(rng, 60);
    s.n_layers = 1 + rng_below(rng, kind / 4 == 0 ? 4 : 2);
    s.orthros = kind & 1;
    s.block_size = kind & 2 ? 1 + rng_below(rng, 6) : 0;
    s.n_msar_streams = streams[kind / 4];
    s.msar_branches = 1 + rng_below(rng, 2 * s.n_layers);
    if (kind == 2) { /* more sources than a chunk */
        s.n_layers = 4;
        s.msar_branches = 1;
    }
    s.msar_kernels[0] = 1;
    for (uint32_t r = 1; r < MAX_MSAR_STREAMS; r++)
        s.msar_kernels[r] = 1 + rng_below(rng, 14);
    return s;
}

static void stages_match_a_plain_reference(void **) {
    const uint64_t seed = test_seed();
    for (uint32_t kind = 0; kind < 16; kind++) {
        struct reference *ref = (struct reference *)calloc(1, sizeof *ref);
        struct rng rng;
        rng_seed(&rng, seed + kind);
        const struct model_shape shape = random_shape(&rng, kind);
        struct model *m = ref->m = model_open(&shape, 64, most_proposed(&shape), rng_u64(&rng));
        for (uint32_t step = 0; step < 6; step++) {
            use_order((int)(step + kind) % N_ORDERS, rng_u64(&rng));
            snprintf(ref->what, sizeof ref->what,
                     "kind %u (d %u, %u layers, blocks of %u, %u streams), step %u", kind,
                     shape.d_model, shape.n_layers, shape.msar_branches, shape.n_msar_streams,
                     step);
            for (uint32_t slot = 0; slot < SLOTS; slot++)
                change_slot(ref, slot);
            random_forward(ref, shape.block_size && step % 3 == 2);
        }
        for (uint32_t t = 0; t < POSITIONS; t++) {
            for (struct sequence &seq : ref->slots)
                free(seq.at[t]);
            for (struct sequence &seq : ref->saved)
                free(seq.at[t]);
        }
        model_close(m);
        free(ref);
    }
}

/* One row's vectors over several strides of the widest block. */
static void wide_models_match(void **) {
    static const uint32_t widths[] = {1000, 2100, 4100, 8200};
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (uint32_t d : widths) {
        struct reference *ref = (struct reference *)calloc(1, sizeof *ref);
        struct model_shape s = {};
        s.rms_eps = 1e-6f;
        s.d_model = d;
        s.n_layers = 2;
        s.n_msar_streams = 2;
        s.msar_branches = 1;
        s.msar_kernels[0] = 1;
        s.msar_kernels[1] = 3;
        struct model *m = ref->m = model_open(&s, 3, 1, rng_u64(&rng));
        snprintf(ref->what, sizeof ref->what, "d %u", d);
        struct segment rows = make_segment(ref, VIEW_BASE, 1, 0, 2, ref->tokens);
        ref->tokens[1] = 9;
        expect_segment(ref, &rows);
        run_stages(m, &rows, 1, 0, compare_read, ref);
        for (uint32_t i = 0; i < ref->n_rows; i++) {
            free(ref->reads[i]);
            free(ref->slots[1].at[i]);
        }
        m->h->dev.ld_model = 16384 + 32; /* beyond what a block takes */
        assert_int_equal(gpu_msar_read(&m->h->dev, 0, NULL), cudaErrorInvalidValue);
        model_close(m);
        free(ref);
    }
}

// ---- equal bits

enum { N = 52, D = 40 }; /* the ring has 34 places */

static struct model_shape plain_shape(bool orthros) {
    struct model_shape s = {};
    s.rms_eps = 1e-6f;
    s.d_model = D;
    s.n_layers = 2;
    s.orthros = orthros;
    s.block_size = 8;
    s.n_msar_streams = 4;
    s.msar_branches = 3;
    s.msar_kernels[0] = 1;
    s.msar_kernels[1] = 4;
    s.msar_kernels[2] = 8;
    s.msar_kernels[3] = 12;
    return s;
}

/* Where the readouts of a forward go: [position][D], of one view of one slot. */
struct collect {
    const struct model *m;
    uint32_t slot;
    enum view view;
    float *out;
};
static void collect_readout(void *arg, uint32_t l, const float *x) {
    const struct collect *c = (const struct collect *)arg;
    const struct hand *h = c->m->h;
    if (l < branches(c->m)) return;
    for (uint32_t i = 0; i < h->counts.n_logit_rows; i++) {
        const struct row *r = &h->rows[h->logit_rows[i]];
        if (r->slot != c->slot || r->view != (uint32_t)c->view) continue;
        memcpy(c->out + r->pos * D, x + h->logit_rows[i] * h->dev.ld_model, D * sizeof(float));
    }
}

static void tokens_of(uint64_t seed, int32_t *tokens) {
    struct rng rng;
    rng_seed(&rng, seed);
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = (int32_t)rng_below(&rng, 50);
}

/* Rows pos .. pos + n - 1 of a slot's text; beside them rows of another slot where `company`. */
static void run_rows(struct model *m, uint32_t slot, const int32_t *tokens, uint32_t pos,
                     uint32_t n, bool company, float *out) {
    static const int32_t others[5] = {4, 8, 15, 16, 23};
    struct segment s[4] = {};
    uint32_t count = 0;
    const bool orthros = m->h->dev.shape.orthros;
    for (int view = 0; view < (orthros ? 2 : 1); view++) {
        for (int who = company ? 0 : 1; who < 2; who++) {
            struct segment *to = &s[count++];
            to->view = (uint8_t)view;
            to->slot = who ? slot : (slot + 1) % SLOTS;
            to->pos = who ? pos : 0;
            to->n_rows = who ? n : 5;
            to->n_logits = view || !orthros ? to->n_rows : 0;
            to->tokens = who ? tokens + pos : others;
        }
    }
    struct collect c = {m, slot, orthros ? VIEW_OUTPUT : VIEW_BASE, out};
    run_stages(m, s, count, company, collect_readout, &c);
}

static float *numbers(void) {
    return (float *)calloc(N * D, sizeof(float));
}

/* Chunks of a text that is run whole first, with other rows beside them, in every order. */
static void chunks_and_batches_change_no_bit(void **) {
    static const uint32_t chunks[] = {1, 7, 16, 33};
    int32_t tokens[N];
    float *want = numbers(), *got = numbers();
    for (uint32_t orthros = 0; orthros < 2; orthros++) {
        const struct model_shape shape = plain_shape(orthros);
        struct model *m = model_open(&shape, HAND_ROWS, 7, test_seed());
        tokens_of(3, tokens);
        run_rows(m, 0, tokens, 0, N, false, want);
        for (uint32_t i = orthros; i < ARRAY_LEN(chunks); i++) {
            memset(got, 0, N * D * sizeof *got);
            use_order((int)i + 1, test_seed());
            for (uint32_t pos = 0; pos < N; pos += chunks[i])
                run_rows(m, i % SLOTS, tokens, pos, N - pos < chunks[i] ? N - pos : chunks[i],
                         i % 2 == 0, got);
            assert_same_bits(got, want, N * D, "chunks");
        }
        model_close(m);
    }
    free(want);
    free(got);
}

/* The height of a grid ends at 65535, the rows that a forward may have do not. */
static void a_read_takes_any_number_of_rows(void **) {
    int32_t tokens[N];
    float *out = numbers();
    const struct model_shape shape = plain_shape(false);
    struct model *m = model_open(&shape, HAND_ROWS, 7, test_seed());
    tokens_of(3, tokens);
    run_rows(m, 0, tokens, 0, 3, false, out);
    m->h->dev.grid.rows = 65536;
    check_cuda(gpu_msar_read(&m->h->dev, 1, NULL));
    check_cuda(cudaDeviceSynchronize());
    model_close(m);
    free(out);
}

/* Wrong tokens are run and cut off all along the way, with drafts between them. */
static void refused_rows_leave_no_trace(void **) {
    int32_t tokens[N], wrong[N];
    float *want = numbers(), *got = numbers(), *waste = numbers();
    const struct model_shape shape = plain_shape(false);
    struct model *m = model_open(&shape, HAND_ROWS, 7, test_seed());
    tokens_of(4, tokens);
    tokens_of(5, wrong);
    run_rows(m, 0, tokens, 0, N, false, want);
    for (uint32_t pos = 0, n; pos < N; pos += n) {
        if (pos + 8 <= N) {
            struct segment draft = {};
            draft.view = VIEW_DRAFT;
            draft.slot = 1;
            draft.pos = pos;
            draft.n_rows = 1 + pos % 8;
            draft.tokens = wrong + pos;
            run_stages(m, &draft, 1, 0, NULL, NULL);
            run_rows(m, 1, wrong, pos, 8, false, waste);
        }
        n = 1 + pos % 5;
        if (n > N - pos) n = N - pos;
        run_rows(m, 1, tokens, pos, n, false, got);
    }
    assert_same_bits(got, want, N * D, "after refused rows");
    model_close(m);
    for (float *p : {want, got, waste})
        free(p);
}

/* A snapshot at a page border behind a refused block; one sequence begins there, another takes the
 * whole ring. */
static void state_that_is_taken_over_gives_the_same_bits(void **) {
    int32_t tokens[N], wrong[N];
    float *want = numbers(), *got = numbers();
    const struct model_shape shape = plain_shape(true);
    struct model *m = model_open(&shape, HAND_ROWS, 7, test_seed());
    const struct device *dev = &m->h->dev;
    tokens_of(6, tokens);
    run_rows(m, 0, tokens, 0, N, false, want);
    static const uint32_t kept[] = {0, 7, 31, 44};
    for (uint32_t at : kept) {
        const uint32_t border = at / PAGE_TOKENS * PAGE_TOKENS;
        const uint32_t history = border < dev->msar.history ? border : dev->msar.history;
        memcpy(wrong, tokens, sizeof wrong);
        wrong[at] ^= 1;
        if (at) run_rows(m, 0, tokens, 0, at, false, got);
        run_rows(m, 0, wrong, at, 8, false, got);
        check_cuda(gpu_msar_save(dev, 0, border, history, 1, false, NULL));
        poison(gpu_msar_ring(dev, 1, 0), m->ring_floats / SLOTS * sizeof(float));
        check_cuda(gpu_msar_save(dev, 1, border, history, 1, true, NULL));
        run_rows(m, 1, tokens, border, N - border, false, got);
        assert_same_bits(got + border * D, want + border * D, (N - border) * D, "snapshot");

        check_cuda(gpu_msar_copy(dev, 0, 2, NULL));
        run_rows(m, 2, tokens, at, N - at, false, got);
        assert_same_bits(got + at * D, want + at * D, (N - at) * D, "copied ring");
    }
    assert_int_equal(gpu_msar_save(dev, 0, 5, 6, 0, false, NULL), cudaErrorInvalidValue);
    model_close(m);
    free(want);
    free(got);
}

/* The rings after a forward: positions of base rows, the last ring_len of them, and nothing else. */
static void base_rows_alone_enter_the_ring(void **) {
    int32_t tokens[N];
    const struct model_shape shape = plain_shape(true);
    struct model *m = model_open(&shape, HAND_ROWS, 7, test_seed());
    const struct device *dev = &m->h->dev;
    const uint32_t ring_len = dev->msar.ring_len, ld = dev->ld_model;
    const size_t position = (size_t)dev->msar.n_pushes * ld;
    float *rings = (float *)calloc(m->ring_floats, sizeof *rings);
    tokens_of(7, tokens);
    struct segment s[3] = {};
    s[0].slot = s[2].slot = 1;
    s[0].n_rows = ring_len + 9;
    s[0].tokens = tokens;
    s[1].n_rows = 4;
    s[1].tokens = tokens;
    s[2].view = VIEW_OUTPUT;
    s[2].pos = ring_len;
    s[2].n_rows = 9;
    s[2].tokens = tokens;
    run_stages(m, s, 3, 2, NULL, NULL);
    host_copy(rings, dev->msar.rings, m->ring_floats);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t place = 0; place < ring_len; place++) {
            const bool there = slot == 1 || (slot == 0 && place < 4);
            const float *at = rings + (slot * ring_len + place) * position;
            for (size_t i = 0; i < position; i++)
                assert_true(isnan(at[i]) == !there);
            if (!there) continue;
            /* push 0 is the embedding: it tells the position */
            const uint32_t pos = slot == 1 && place < 9 ? place + ring_len : place;
            for (uint32_t i = 0; i < D; i++)
                assert_true(at[i] == embedded(tokens[pos], i));
        }
    poison(dev->msar.rings, m->ring_floats * sizeof(float));
    struct segment draft = {};
    draft.view = VIEW_DRAFT;
    draft.n_rows = 8;
    draft.tokens = tokens;
    run_stages(m, &draft, 1, 0, NULL, NULL);
    host_copy(rings, dev->msar.rings, m->ring_floats);
    for (size_t i = 0; i < m->ring_floats; i++)
        assert_true(isnan(rings[i]));
    free(rings);
    model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_match_a_plain_reference),
        cmocka_unit_test(wide_models_match),
        cmocka_unit_test(chunks_and_batches_change_no_bit),
        cmocka_unit_test(a_read_takes_any_number_of_rows),
        cmocka_unit_test(refused_rows_leave_no_trace),
        cmocka_unit_test(state_that_is_taken_over_gives_the_same_bits),
        cmocka_unit_test(base_rows_alone_enter_the_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
