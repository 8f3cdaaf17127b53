/* The residual path of MSAR models: its stages against a plain reference in double, written from the
 * formulas alone, over random forwards that mix sequences and views; and a tiny whole model, whose
 * bits must not depend on chunks, threads, rejected rows, snapshots or what unused places hold. */
#include <stdio.h>

#include "tests/unit/tiny_model.h"

/* ---- the reference ------------------------------------------------------------------------------ */

enum { SLOTS = 4, POSITIONS = 200, ROWS = 64, SNAPSHOTS = 3, VOCAB = 64 };

/* The vectors of one position: [push][d]. */
struct vectors {
    double *v;
};

struct ref_sequence {
    uint32_t pos;   /* positions that count */
    uint32_t floor; /* below which no row can be run again */
    struct vectors at[POSITIONS];
};

struct ref {
    const struct model_shape *s;
    float *embed, *conv[64], *query[32], *mix[32], *bias[32], *scale[32], *readout;
    struct ref_sequence slots[SLOTS], saved[SNAPSHOTS];
    bool has_saved[SNAPSHOTS];
};

static uint32_t n_branches(const struct ref *ref) {
    return 2 * ref->s->n_layers;
}

static void ref_open(struct ref *ref, const struct model_shape *s) {
    memset(ref, 0, sizeof *ref);
    ref->s = s;
    uint32_t n = s->n_msar_streams, d = s->d_model;
    uint32_t n_blocks = (uint32_t)div_ceil(2 * s->n_layers, s->msar_branches);
    ref->embed = tiny_numbers(WEIGHT_EMBED, 0, (size_t)VOCAB * d, 0, 1);
    for (uint32_t source = 0; source <= n_blocks; source++)
        for (uint32_t r = 1; r < n; r++) {
            uint32_t i = source * (n - 1) + r - 1;
            ref->conv[i] =
                tiny_numbers(WEIGHT_MSAR_CONV, i, s->msar_kernels[r] * d, 0, tiny_msar_spread[0]);
        }
    for (uint32_t l = 0; l < n_branches(ref); l++) {
        ref->query[l] = tiny_numbers(WEIGHT_MSAR_QUERY, l, n * d, 0, tiny_msar_spread[1]);
        ref->mix[l] = tiny_numbers(WEIGHT_MSAR_MIX, l, n * n * d, 0, tiny_msar_spread[2]);
        ref->bias[l] = tiny_numbers(WEIGHT_MSAR_MIX_BIAS, l, n, 0, tiny_msar_spread[3]);
        ref->scale[l] = tiny_numbers(WEIGHT_MSAR_MIX_SCALE, l, 1, 0, tiny_msar_spread[4]);
    }
    ref->readout = tiny_numbers(WEIGHT_MSAR_READOUT, 0, d, 0, tiny_msar_spread[5]);
}

static void ref_close(struct ref *ref) {
    for (size_t i = 0; i < 64; i++)
        free(ref->conv[i]);
    for (size_t i = 0; i < 32; i++)
        free(ref->query[i]), free(ref->mix[i]), free(ref->bias[i]), free(ref->scale[i]);
    free(ref->embed);
    free(ref->readout);
    for (size_t t = 0; t < POSITIONS; t++) {
        for (size_t i = 0; i < SLOTS; i++)
            free(ref->slots[i].at[t].v);
        for (size_t i = 0; i < SNAPSHOTS; i++)
            free(ref->saved[i].at[t].v);
    }
}

static void copy_vectors(const struct ref *ref, struct vectors *to, const double *from) {
    size_t bytes = n_branches(ref) * ref->s->d_model * sizeof(double);
    if (!to->v) to->v = malloc(bytes);
    memcpy(to->v, from, bytes);
}

/* The first `pos` positions. */
static void copy_sequence(const struct ref *ref, struct ref_sequence *to,
                          const struct ref_sequence *from, uint32_t pos) {
    for (uint32_t t = 0; t < pos; t++)
        copy_vectors(ref, &to->at[t], from->at[t].v);
    to->pos = pos;
    to->floor = from->floor;
}

static double mean_square(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum / (double)n;
}

/* w . RMSNorm(v) */
static double score(const struct ref *ref, const float *w, const double *v) {
    double sum = 0;
    for (uint32_t i = 0; i < ref->s->d_model; i++)
        sum += (double)w[i] * v[i];
    return sum / sqrt(mean_square(v, ref->s->d_model) + (double)ref->s->rms_eps);
}

/* sum_s softmax_s(w . RMSNorm(v[s])) v[s] */
static void attend_depth(const struct ref *ref, const float *w, double *const *v, uint32_t n,
                         double *out) {
    double scores[32], most = -INFINITY, total = 0;
    for (uint32_t s = 0; s < n; s++)
        most = fmax(most, scores[s] = score(ref, w, v[s]));
    for (uint32_t s = 0; s < n; s++)
        total += scores[s] = exp(scores[s] - most);
    memset(out, 0, ref->s->d_model * sizeof *out);
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t i = 0; i < ref->s->d_model; i++)
            out[i] += scores[s] / total * v[s][i];
}

/* v_s^(r)_t of source s, which is what push number `push` holds; past[t] are former positions. */
static void ref_view(const struct ref *ref, uint32_t source, uint32_t r, uint32_t push,
                     uint32_t pos, double *const *past, const double *own, double *out) {
    uint32_t d = ref->s->d_model, n = ref->s->n_msar_streams;
    memcpy(out, own + push * d, d * sizeof *out);
    if (r == 0) return;
    const float *conv = ref->conv[source * (n - 1) + r - 1];
    for (uint32_t i = 0; i < d; i++)
        out[i] *= (double)conv[i];
    for (uint32_t delta = 1; delta < ref->s->msar_kernels[r] && delta <= pos; delta++)
        for (uint32_t i = 0; i < d; i++)
            out[i] += (double)conv[delta * d + i] * past[pos - delta][push * d + i];
}

/* What stands for attention and MLP: different in every branch, view and place, gain at most 1. */
static double branch(uint32_t l, int view, uint32_t i, double h) {
    return sin(h + 1.3 * l + 0.7 * view + 0.37 * i);
}

/* What branch l reads of a row whose pushes 0 .. l are in own. */
static void ref_read(const struct ref *ref, uint32_t l, uint32_t pos, double *const *past,
                     const double *own, double *h) {
    uint32_t d = ref->s->d_model, n = ref->s->n_msar_streams, per_block = ref->s->msar_branches;
    uint32_t block = l / per_block, j = l % per_block;
    double *z = malloc(n * d * sizeof *z), *views[32];
    for (uint32_t s = 0; s < 32; s++)
        views[s] = malloc(d * sizeof **views);
    for (uint32_t r = 0; r < n; r++) {
        uint32_t n_sources = 0;
        for (uint32_t s = 0; s <= block; s++)
            ref_view(ref, s, r, s * per_block, pos, past, own, views[n_sources++]);
        if (j > 0) ref_view(ref, block + 1, r, l, pos, past, own, views[n_sources++]);
        attend_depth(ref, ref->query[l] + r * d, views, n_sources, z + r * d);
    }
    double inverse = 1 / sqrt(mean_square(z, n * d) + (double)ref->s->rms_eps);
    memset(h, 0, d * sizeof *h);
    for (uint32_t r = 0; r < n; r++) {
        double g = 0;
        for (uint32_t i = 0; i < n * d; i++)
            g += (double)ref->mix[l][r * n * d + i] * z[i] * inverse;
        g = (double)ref->scale[l][0] * g + (double)ref->bias[l][r];
        for (uint32_t i = 0; i < d; i++)
            h[i] += z[r * d + i] / (1 + exp(-g));
    }
    for (uint32_t s = 0; s < 32; s++)
        free(views[s]);
    free(z);
}

/* One row: own [pushes][d], reads [branches + 1][d], the last of them the readout. */
static void ref_row(const struct ref *ref, int view, uint32_t pos, int32_t token,
                    double *const *past, double *own, double *reads) {
    uint32_t d = ref->s->d_model, n = n_branches(ref), per_block = ref->s->msar_branches;
    double *sums = calloc((n + 2) * d, sizeof *sums); /* per source, for the readout */
    double *sources[32] = {sums};
    uint32_t n_sources = 1;
    for (uint32_t i = 0; i < d; i++)
        sums[i] = own[i] = (double)ref->embed[(uint32_t)token * d + i];
    for (uint32_t l = 0; l < n; l++) {
        ref_read(ref, l, pos, past, own, reads + l * d);
        if (l % per_block == 0) sources[n_sources] = sums + n_sources * d, n_sources++;
        double *p = sources[n_sources - 1];
        for (uint32_t i = 0; i < d; i++)
            p[i] += branch(l, view, i, reads[l * d + i]);
        if (l + 1 < n) memcpy(own + (l + 1) * d, p, d * sizeof *p);
    }
    attend_depth(ref, ref->readout, sources, n_sources, reads + n * d);
    free(sums);
}

/* ---- random forwards ---------------------------------------------------------------------------- */

struct run {
    struct tiny t;
    struct ref ref;
    struct rng rng;
    struct segment segments[2 * SLOTS];
    uint32_t n_segments, n_rows;
    int32_t tokens[ROWS];
    double *reads[ROWS]; /* expected of each row */
    uint32_t pages[POSITIONS];
    char what[160];
};

/* Without a draft view proposals are given: of any number, which the ring has to bear as well. */
static uint32_t most_proposed(const struct model_shape *shape) {
    return shape->block_size ? shape->block_size - 1 : shape->d_model % 16;
}

static struct tiny open_stages(const struct kernels *k, const struct model_shape *shape,
                               uint32_t n_threads) {
    static const struct tiny_options plain = {.weights = DTYPE_F32};
    struct tiny t = {.k = k, .shape = *shape};
    struct err err = {0};
    if (k->open(&t.shape, n_threads, &t.dev, &err) != OK) fail_msg("%s", err.msg);
    tiny_load(&t, WEIGHT_EMBED, 0, DTYPE_F32, VOCAB, shape->d_model, 0, 1);
    tiny_load(&t, WEIGHT_FINAL_NORM, 0, DTYPE_F32, 1, shape->d_model, 1, 0.2f);
    for (uint32_t l = 0; l < shape->n_layers; l++)
        tiny_load_layer(&t, l, &plain);
    tiny_load_msar(&t);
    struct device_limits limits = {.kv_dtype = DTYPE_F32,
                                   .n_pages = 1,
                                   .n_slots = SLOTS,
                                   .max_rows = ROWS,
                                   .max_logit_rows = ROWS,
                                   .n_snapshots = SNAPSHOTS,
                                   .max_proposed = most_proposed(shape)};
    if (k->reserve(t.dev, &limits, &err) != OK) fail_msg("%s", err.msg);
    tiny_poison_msar(&t);
    return t;
}

/* Expected numbers of a segment's rows; base rows enter the sequence. */
static void expect_segment(struct run *run, const struct segment *s) {
    struct ref *ref = &run->ref;
    struct ref_sequence *seq = &ref->slots[s->slot];
    size_t own_size = n_branches(ref) * ref->s->d_model;
    double *past[POSITIONS], *block[DRAFT_MAX] = {0};
    for (uint32_t i = 0; i < s->n_rows; i++) {
        uint32_t pos = s->pos + i;
        bool draft = s->view == VIEW_DRAFT;
        for (uint32_t t = 0; t < pos; t++)
            past[t] = draft && t >= s->pos ? block[t - s->pos] : seq->at[t].v;
        double *own = malloc(own_size * sizeof *own);
        double *reads = malloc((own_size + ref->s->d_model) * sizeof *reads);
        ref_row(ref, s->view, pos, s->tokens[i], past, own, reads);
        if (s->view == VIEW_BASE) copy_vectors(ref, &seq->at[pos], own);
        run->reads[run->n_rows++] = reads;
        if (draft)
            block[i] = own;
        else
            free(own);
    }
    for (uint32_t i = 0; i < s->n_rows && i < DRAFT_MAX; i++)
        free(block[i]);
}

static void add_segment(struct run *run, enum view view, uint32_t slot, uint32_t pos, uint32_t n,
                        const int32_t *tokens) {
    run->segments[run->n_segments++] = (struct segment){.slot = slot,
                                                        .view = (uint8_t)view,
                                                        .pos = pos,
                                                        .n_rows = n,
                                                        .n_logits = 1 + rng_below(&run->rng, n),
                                                        .tokens = tokens,
                                                        .pages = run->pages};
}

static int32_t *random_tokens(struct run *run, uint32_t used, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        run->tokens[used + i] = (int32_t)rng_below(&run->rng, VOCAB);
    return run->tokens + used;
}

/* What a sequence does between two forwards: nothing, cut back, begin anew, or take another's state
 * from its slot or from a snapshot. */
static void change_slot(struct run *run, uint32_t slot) {
    static const struct rules rules = {.top_p = 1};
    struct ref *ref = &run->ref;
    struct ref_sequence *seq = &ref->slots[slot];
    const struct kernels *k = run->t.k;
    struct device *dev = run->t.dev;
    uint32_t other = rng_below(&run->rng, SLOTS), shot = rng_below(&run->rng, SNAPSHOTS);
    uint32_t border = seq->pos / PAGE_TOKENS * PAGE_TOKENS;
    switch (rng_below(&run->rng, 8)) {
    case 0:
        if (seq->pos > seq->floor) seq->pos -= rng_below(&run->rng, seq->pos - seq->floor + 1);
        return;
    case 1:
        k->slot_set(dev, slot, &rules);
        seq->pos = seq->floor = 0;
        return;
    case 2:
        if (other == slot) return;
        k->slot_set(dev, slot, &rules);
        k->state_copy(dev, other, slot);
        copy_sequence(ref, seq, &ref->slots[other], ref->slots[other].pos);
        return;
    case 3:
    case 4:
        if (border < seq->floor) return;
        k->state_save(dev, slot, border, shot);
        copy_sequence(ref, &ref->saved[shot], seq, border);
        ref->has_saved[shot] = true;
        return;
    case 5:
        if (!ref->has_saved[shot]) return;
        k->slot_set(dev, slot, &rules);
        k->state_load(dev, slot, ref->saved[shot].pos, shot);
        copy_sequence(ref, seq, &ref->saved[shot], ref->saved[shot].pos);
        seq->floor = seq->pos;
        return;
    default:
        return;
    }
}

static void plan_main(struct run *run) {
    struct ref *ref = &run->ref;
    uint32_t n_tokens = 0, reach = PAGE_TOKENS + most_proposed(ref->s);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct ref_sequence *seq = &ref->slots[slot];
        uint32_t most = slot == 0 ? ROWS - 3 * 8 : 8; /* slot 0: chunks longer than the ring */
        if (ref->s->orthros) most = slot == 0 ? 16 : 5;
        uint32_t n = 1 + rng_below(&run->rng, most);
        if (seq->pos + n > POSITIONS || rng_below(&run->rng, 4) == 0) continue;
        add_segment(run, VIEW_BASE, slot, seq->pos, n, random_tokens(run, n_tokens, n));
        n_tokens += n;
    }
    uint32_t n_base = run->n_segments;
    for (uint32_t i = n_base; ref->s->orthros && i > 0; i--) { /* in another order */
        struct segment base = run->segments[i - 1];
        uint32_t skip = rng_below(&run->rng, base.n_rows);
        if (rng_below(&run->rng, 4) == 0) continue;
        add_segment(run, VIEW_OUTPUT, base.slot, base.pos + skip, base.n_rows - skip,
                    base.tokens + skip);
    }
    for (uint32_t i = 0; i < run->n_segments; i++)
        expect_segment(run, &run->segments[i]);
    for (uint32_t i = 0; i < n_base; i++) {
        struct ref_sequence *seq = &ref->slots[run->segments[i].slot];
        seq->pos += run->segments[i].n_rows;
        if (seq->pos > reach && seq->pos - reach > seq->floor) seq->floor = seq->pos - reach;
    }
}

static void plan_draft(struct run *run) {
    struct ref *ref = &run->ref;
    uint32_t n_tokens = 0;
    for (uint32_t slot = SLOTS; slot-- > 0;) {
        uint32_t n = 1 + rng_below(&run->rng, ref->s->block_size), pos = ref->slots[slot].pos;
        if (pos + n > POSITIONS || rng_below(&run->rng, 3) == 0) continue;
        add_segment(run, VIEW_DRAFT, slot, pos, n, random_tokens(run, n_tokens, n));
        n_tokens += n;
    }
    for (uint32_t i = 0; i < run->n_segments; i++)
        expect_segment(run, &run->segments[i]);
}

/* Float32 sums of up to 40 terms, through at most 9 branches of gain about 1. */
static void compare_row(struct run *run, uint32_t row, uint32_t l) {
    uint32_t d = run->ref.s->d_model;
    float want[96];
    for (uint32_t i = 0; i < d; i++)
        want[i] = (float)run->reads[row][l * d + i];
    char what[256];
    snprintf(what, sizeof what, "%s: row %u, read %u", run->what, row, l);
    assert_close(run->t.dev->x + row * run->t.dev->ld_model, want, d, 1e-4, 1e-4, what);
}

/* The stages with sines for branches; every read of every row is compared. */
static void run_stages(struct run *run) {
    struct device *dev = run->t.dev;
    const struct kernels *k = run->t.k;
    uint32_t n = n_branches(&run->ref);
    struct forward fwd = {run->n_segments, run->segments};
    assert_int_equal(k->begin(dev, &fwd), OK);
    assert_int_equal(k->embed(dev), OK);
    for (uint32_t l = 0; l <= n; l++) {
        if (l < n) assert_int_equal(k->msar_push(dev, l), OK);
        assert_int_equal(k->msar_read(dev, l), OK);
        for (uint32_t row = 0; l < n && row < run->n_rows; row++) {
            compare_row(run, row, l);
            const float *x = dev->x + row * dev->ld_model;
            float *p = dev->residual + row * dev->ld_model;
            int view = run->segments[dev->row_segment[row]].view;
            for (uint32_t i = 0; i < run->ref.s->d_model; i++)
                p[i] += (float)branch(l, view, i, (double)x[i]);
        }
    }
    for (uint32_t i = 0; i < dev->n_logit_rows; i++)
        compare_row(run, dev->logit_row[i], n);
    struct outcome none[1];
    assert_int_equal(k->end(dev, none), OK);
}

static struct model_shape random_shape(struct rng *rng, uint32_t kind) {
    static const double freq[4] = {1, 0.5, 0.25, 0.125};
    struct tiny_options o = tiny_defaults();
    o.head_dim = 4;
    o.vocab = VOCAB;
    struct model_shape s = tiny_shape(&o, freq);
    s.n_heads = s.n_kv_heads = 1;
    s.d_ff = 8;
    s.d_model = 8 + rng_below(rng, 80);
    s.n_layers = 1 + rng_below(rng, 4);
    s.orthros = kind & 1;
    s.window = 5;
    s.block_size = kind & 2 ? 1 + rng_below(rng, 8) : 0;
    static const uint32_t streams[] = {1, 4, 2, 8};
    s.n_msar_streams = streams[kind / 4 % 4];
    if (s.n_msar_streams == 8 && s.n_layers > 3) s.n_layers = 3;
    s.msar_branches = 1 + rng_below(rng, 2 * s.n_layers);
    for (uint32_t r = 1; r < MAX_MSAR_STREAMS; r++)
        s.msar_kernels[r] = 1 + rng_below(rng, kind & 4 ? 12 : 20);
    return s;
}

static void stages_match_a_plain_reference(void **state) {
    (void)state;
    if (tables_are_cuda()) skip(); /* tests/gpu/test_msar */
    uint64_t seed = test_seed();
    for (uint32_t kind = 0; kind < 16 * n_tables; kind++) {
        struct run *run = calloc(1, sizeof *run);
        rng_seed(&run->rng, seed + kind / n_tables);
        struct model_shape shape = random_shape(&run->rng, kind / n_tables);
        const struct kernels *k = tables[kind % n_tables];
        run->t = open_stages(k, &shape, 1 + kind % 3);
        ref_open(&run->ref, &shape);
        for (uint32_t step = 0; step < 25; step++) {
            run->n_segments = run->n_rows = 0;
            for (uint32_t slot = 0; slot < SLOTS; slot++)
                change_slot(run, slot);
            snprintf(run->what, sizeof run->what,
                     "seed %llu, %s, kind %u (d %u, %u layers, blocks of %u, %u streams), step %u",
                     (unsigned long long)seed, k->name, kind / n_tables, shape.d_model,
                     shape.n_layers, shape.msar_branches, shape.n_msar_streams, step);
            if (shape.block_size && step % 3 == 2)
                plan_draft(run);
            else
                plan_main(run);
            run_stages(run);
            for (uint32_t i = 0; i < run->n_rows; i++)
                free(run->reads[i]);
        }
        ref_close(&run->ref);
        tiny_close(&run->t);
        free(run);
    }
}

/* ---- a whole model: equal bits ------------------------------------------------------------------ */

enum { MOST = 145, WIDTH = 320 };
static uint32_t N = MOST; /* positions; fewer on a simulated device */

static struct tiny_options options(bool orthros) {
    struct tiny_options o = tiny_defaults();
    tiny_on_tiles(&o);
    o.msar_streams = 4;
    o.msar_branches = 3;
    o.block_size = 8;
    o.orthros = orthros;
    o.window = 20;
    o.n_snapshots = 2;
    return o;
}

static float *numbers(void) {
    return calloc((size_t)MOST * WIDTH, sizeof(float));
}

/* Rows pos .. pos + n - 1 of s with all their logits, into the rows of out where they belong. */
static void run_rows(struct tiny *t, const struct tiny_sequence *s, uint32_t pos, uint32_t n,
                     float *out) {
    bool orthros = t->shape.orthros;
    struct segment segments[2] = {tiny_segment(s, VIEW_BASE, pos, n, orthros ? 0 : n),
                                  tiny_segment(s, VIEW_OUTPUT, pos, n, n)};
    tiny_forward(t, segments, orthros ? 2 : 1);
    tiny_logits(t, 0, n, out + (size_t)pos * WIDTH);
    tiny_end(t);
}

static void whole(const struct kernels *k, const struct tiny_options *o, float *out) {
    struct tiny t = tiny_open(k, o);
    struct tiny_sequence s = tiny_sequence(0, N, 5, 0, 1);
    tiny_prefill(&t, &s, o->orthros ? N / 2 + 1 : N, out);
    tiny_close(&t);
}

static void chunks_and_threads_change_no_bit(void **state) {
    (void)state;
    float *expected = numbers(), *got = numbers();
    for (uint32_t i = 0; i < 2 * n_tables; i++) {
        struct tiny_options o = options(i >= n_tables);
        whole(tables[i % n_tables], &o, expected);
        uint32_t most_threads = tables_are_cuda() ? 1 : 3;
        for (o.n_threads = 1; o.n_threads <= most_threads; o.n_threads++) {
            static const uint32_t chunks[] = {1, 7, 16, 60, 100};
            struct tiny t = tiny_open(tables[i % n_tables], &o);
            for (size_t c = 0; c < ARRAY_LEN(chunks); c++) {
                struct tiny_sequence s = tiny_sequence((uint32_t)c, N, 5, 0, 1);
                tiny_prefill(&t, &s, chunks[c], got);
                assert_same_bits(got, expected, (size_t)N * WIDTH, tables[i % n_tables]->name);
            }
            tiny_close(&t);
        }
    }
    free(expected);
    free(got);
}

/* Blocks of the wrong tokens are run and cut off all along the way, drafts between them. */
static void rejected_rows_leave_no_trace(void **state) {
    (void)state;
    float *expected = numbers(), *got = numbers(), *waste = numbers();
    for (uint32_t i = 0; i < 2 * n_tables; i++) {
        struct tiny_options o = options(i >= n_tables);
        whole(tables[i % n_tables], &o, expected);
        struct tiny t = tiny_open(tables[i % n_tables], &o);
        struct tiny_sequence s = tiny_sequence(2, N, 5, 0, 1), wrong = s;
        for (uint32_t p = 0; p < N; p++)
            wrong.tokens[p] = (s.tokens[p] + 1 + (int32_t)p % 7) % 256;
        for (uint32_t pos = 0, n; pos < N; pos += n) {
            struct segment draft = tiny_segment(&wrong, VIEW_DRAFT, pos, 1 + pos % 8, 1);
            if (pos + 8 <= N) {
                tiny_forward(&t, &draft, 1);
                tiny_end(&t);
                run_rows(&t, &wrong, pos, 8, waste);
            }
            n = 1 + pos % 3;
            if (n > N - pos) n = N - pos;
            run_rows(&t, &s, pos, n, got);
        }
        assert_same_bits(got, expected, (size_t)N * WIDTH, tables[i % n_tables]->name);
        tiny_close(&t);
    }
    free(expected);
    free(got);
    free(waste);
}

/* A snapshot is taken at the last page border after the text went on by a rejected block; a second
 * sequence begins there with the first one's pages, a third takes the whole ring. */
static void taken_over_state_gives_the_same_bits(void **state) {
    (void)state;
    float *expected = numbers(), *got = numbers();
    for (uint32_t i = 0; i < 2 * n_tables; i++) {
        struct tiny_options o = options(i >= n_tables);
        const struct kernels *k = tables[i % n_tables];
        whole(k, &o, expected);
        struct tiny t = tiny_open(k, &o);
        const struct rules rules = {.top_p = 1};
        for (uint32_t border = 0; border <= 48; border += 16)
            for (uint32_t beyond = tables_are_cuda() ? 10 : 0; beyond < 16; beyond += 5) {
                uint32_t kept = border + beyond;
                struct tiny_sequence s = tiny_sequence(0, N, 5, 0, 1), wrong = s;
                wrong.tokens[kept] ^= 1;
                memset(got, 0, (size_t)N * WIDTH * sizeof *got);
                for (uint32_t pos = 0; pos < kept; pos += 40)
                    run_rows(&t, &s, pos, kept - pos < 40 ? kept - pos : 40, got);
                run_rows(&t, &wrong, kept, 8, got); /* rejected */
                t.k->state_save(t.dev, 0, border, 1);

                struct tiny_sequence second = tiny_sequence(3, N, 5, 0, 1);
                t.k->slot_set(t.dev, 3, &rules);
                t.k->state_load(t.dev, 3, border, 1);
                for (uint32_t pos = border; pos < N; pos += 30)
                    run_rows(&t, &second, pos, N - pos < 30 ? N - pos : 30, got);
                size_t from = (size_t)border * WIDTH, n = (size_t)N * WIDTH - from;
                assert_same_bits(got + from, expected + from, n, "snapshot");

                struct tiny_sequence third = tiny_sequence(4, N, 5, 0, 1);
                t.k->slot_set(t.dev, 4, &rules);
                t.k->state_copy(t.dev, 0, 4);
                for (uint32_t pos = kept; pos < N; pos += 45)
                    run_rows(&t, &third, pos, N - pos < 45 ? N - pos : 45, got);
                from = (size_t)kept * WIDTH, n = (size_t)N * WIDTH - from;
                assert_same_bits(got + from, expected + from, n, "copied ring");
            }
        tiny_close(&t);
    }
    free(expected);
    free(got);
}

static void begin_at(struct tiny *t, const struct tiny_sequence *s, uint32_t pos) {
    struct segment rows = tiny_segment(s, VIEW_BASE, pos, 1, 1);
    struct forward fwd = {1, &rows};
    t->k->begin(t->dev, &fwd);
}

/* The rings of all slots; malloc'd. */
static char *read_rings(const struct tiny *t, size_t *bytes) {
    const struct msar *m = &t->dev->msar;
    *bytes = tiny_on_cuda(t) ? cuda_peek_bytes(t->dev, CUDA_RINGS)
                             : (size_t)TINY_SLOTS * m->ring_len * m->n_pushes * t->dev->ld_model *
                                   sizeof(float);
    char *out = malloc(*bytes);
    if (tiny_on_cuda(t))
        cuda_peek_read(t->dev, CUDA_RINGS, 0, *bytes, out);
    else
        memcpy(out, m->rings, *bytes);
    return out;
}

static void drafts_leave_the_rings_as_they_were(void **state) {
    (void)state;
    struct tiny_options o = options(true);
    struct tiny t = tiny_open(tables[n_tables - 1], &o);
    struct tiny_sequence s = tiny_sequence(1, N, 5, 0, 1);
    float *got = numbers();
    run_rows(&t, &s, 0, 60, got);
    size_t bytes;
    char *before = read_rings(&t, &bytes);
    struct segment draft = tiny_segment(&s, VIEW_DRAFT, 60, 8, 8);
    tiny_forward(&t, &draft, 1);
    tiny_end(&t);
    char *after = read_rings(&t, &bytes);
    assert_memory_equal(before, after, bytes);
    begin_at(&t, &s, 60); /* 60 positions are still there, and no more */
    assert_trips(begin_at(&t, &s, 61));
    free(before);
    free(after);
    free(got);
    tiny_close(&t);
}

/* ---- limits ------------------------------------------------------------------------------------- */

static void rows_whose_history_is_gone_trip_assertions(void **state) {
    (void)state;
    struct tiny_options o = options(false);
    struct tiny t = tiny_open(tables[n_tables - 1], &o);
    struct tiny_sequence s = tiny_sequence(1, MOST, 5, 0, 1);
    const struct rules rules = {.top_p = 1};
    float *got = numbers();
    run_rows(&t, &s, 0, 100, got);
    begin_at(&t, &s, 100);
    begin_at(&t, &s, 100 - 15 - 8);
    assert_trips(begin_at(&t, &s, 100 - 15 - 8 - 1));
    assert_trips(begin_at(&t, &s, 101));
    assert_trips(t.k->state_save(t.dev, 1, 101, 0));
    assert_trips(t.k->state_save(t.dev, 1, 64, 0));
    assert_trips(t.k->state_save(t.dev, 1, 96, 2)); /* of 2 snapshots */
    t.k->state_save(t.dev, 1, 96, 0);
    t.k->slot_set(t.dev, 1, &rules); /* another sequence takes the slot */
    assert_trips(begin_at(&t, &s, 100));
    begin_at(&t, &s, 0);
    t.k->state_load(t.dev, 1, 96, 0);
    begin_at(&t, &s, 96);
    assert_trips(begin_at(&t, &s, 95));
    tiny_close(&t);
    free(got);
}

static void memory_is_what_the_shape_asks_for(void **state) {
    (void)state;
    struct tiny_options o = options(false);
    struct tiny t = tiny_open(tables[0], &o);
    size_t position = 4 * 64 * sizeof(float);
    assert_int_equal(t.k->snapshot_bytes(t.dev), 11 * position);
    struct device_limits limits = t.limits;
    size_t two = t.k->workspace_bytes(t.dev, &limits);
    limits.n_snapshots = 5;
    size_t arrays = tables_are_cuda() ? 256 : 0; /* each begins at a multiple there */
    size_t more = t.k->workspace_bytes(t.dev, &limits) - two;
    assert_true(more >= 3 * 11 * position && more <= 3 * 11 * position + arrays);
    limits = t.limits;
    limits.n_slots++;
    assert_true(t.k->workspace_bytes(t.dev, &limits) - two >= (11 + 15 + 8) * position);
    limits = t.limits;
    limits.max_proposed += 5; /* of every slot */
    more = t.k->workspace_bytes(t.dev, &limits) - two;
    assert_true(more >= limits.n_slots * 5 * position);
    if (!tables_are_cuda()) assert_int_equal(more, limits.n_slots * 5 * position);
    tiny_close(&t);

    o.msar_streams = 1; /* kernel 1 alone: no history */
    t = tiny_open(tables[0], &o);
    assert_int_equal(t.k->snapshot_bytes(t.dev), 0);
    struct tiny_sequence s = tiny_sequence(1, N, 5, 0, 1);
    begin_at(&t, &s, 70);
    tiny_close(&t);
    o.msar_streams = 0;
    t = tiny_open(tables[0], &o);
    assert_int_equal(t.k->snapshot_bytes(t.dev), 0);
    t.k->state_save(t.dev, 0, 16, 0);
    t.k->state_load(t.dev, 0, 16, 0);
    t.k->state_copy(t.dev, 0, 1);
    tiny_close(&t);
}

static void faults_of_shapes_and_weights_are_named(void **state) {
    (void)state;
    static const double freq[8] = {1};
    const struct kernels *k = tables[0];
    struct tiny_options o = options(false);
    struct err err = {0};
    struct device *dev = NULL;
    static const char *const words[] = {"9 MSAR streams, expected 0 .. 8",
                                        "MSAR blocks of 0 branches",
                                        "MSAR blocks of 5 branches",
                                        "MSAR kernel 0 is 2",
                                        "MSAR kernel 2 is 257",
                                        "MSAR kernel 3 is 0"};
    for (uint32_t i = 0; i < ARRAY_LEN(words); i++) {
        struct model_shape s = tiny_shape(&o, freq);
        if (i == 0) s.n_msar_streams = 9;
        if (i == 1) s.msar_branches = 0;
        if (i == 2) s.msar_branches = 5;
        if (i == 3) s.msar_kernels[0] = 2;
        if (i == 4) s.msar_kernels[2] = 257;
        if (i == 5) s.msar_kernels[3] = 0;
        assert_int_equal(k->open(&s, 1, &dev, &err), ERR_INVALID);
        if (!strstr(err.msg, words[i])) fail_msg("%u: %s", i, err.msg);
    }
    struct tiny t = {.k = k, .shape = tiny_shape(&o, freq)};
    t.shape.block_size = 0;
    assert_int_equal(k->open(&t.shape, 1, &t.dev, &err), OK);
    static float zeros[4 * 4 * 64];
    struct tensor src = {DTYPE_F32, 4, 64, zeros};
    assert_int_equal(k->load(t.dev, WEIGHT_MSAR_CONV, 1, &src, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: msar.conv 1: shape [4,64], config wants [8,64]");
    assert_int_equal(k->load(t.dev, WEIGHT_MSAR_CONV, 0, &src, &err), OK);
    assert_int_equal(k->load(t.dev, WEIGHT_MSAR_CONV, 0, &src, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: msar.conv 0: loaded twice");
    assert_int_equal(k->load(t.dev, WEIGHT_MSAR_QUERY, 4, &src, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: read.query: number 4 of 4");
    src.dtype = DTYPE_F16;
    assert_int_equal(k->load(t.dev, WEIGHT_MSAR_QUERY, 3, &src, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: read.query 3: type f16, expected f32");
    tiny_load(&t, WEIGHT_EMBED, 0, DTYPE_F32, 320, 64, 0, 1);
    tiny_load(&t, WEIGHT_FINAL_NORM, 0, DTYPE_F32, 1, 64, 0, 1);
    for (uint32_t l = 0; l < 2; l++)
        tiny_load_layer(&t, l, &o);
    struct device_limits limits = {
        .kv_dtype = DTYPE_F32, .n_pages = 8, .n_slots = 2, .max_rows = 16, .max_logit_rows = 4};
    assert_int_equal(k->reserve(t.dev, &limits, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: msar.conv 1: missing");
    k->close(t.dev);
}

int main(void) {
    tables_find();
    if (tables_are_cuda()) N = 75;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_match_a_plain_reference),
        cmocka_unit_test(chunks_and_threads_change_no_bit),
        cmocka_unit_test(rejected_rows_leave_no_trace),
        cmocka_unit_test(taken_over_state_gives_the_same_bits),
        cmocka_unit_test(drafts_leave_the_rings_as_they_were),
        cmocka_unit_test(rows_whose_history_is_gone_trip_assertions),
        cmocka_unit_test(memory_is_what_the_shape_asks_for),
        cmocka_unit_test(faults_of_shapes_and_weights_are_named),
    };
    const struct CMUnitTest on_tiles[] = {
        cmocka_unit_test(chunks_and_threads_change_no_bit),
        cmocka_unit_test(rejected_rows_leave_no_trace),
        cmocka_unit_test(taken_over_state_gives_the_same_bits),
        cmocka_unit_test(drafts_leave_the_rings_as_they_were),
    };
    if (tiles_are_emulated()) return cmocka_run_group_tests(on_tiles, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
