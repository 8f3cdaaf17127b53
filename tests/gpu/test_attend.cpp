/* test_attend.cpp: attention of the CUDA device against attention in double, and against itself: a row
 * has the same bits alone and in any tile of any kind, merged in registers or from parts.
 *
 * A scene is some texts with K and V in scattered pages, and rows that attend parts of them. What no
 * text has written is NaN, as are parts before they are written. */
#include "tests/gpusim/gpusim_test.h"

#include <vector>

#include "kernels/cuda/cuda.h"

enum { LAYERS = 2, LAYER = 1, KV_HEADS = 2 };

struct setting {
    enum dtype act, kv;
    uint32_t head_dim, group;
};
struct text {
    uint32_t len;             /* positions that have K and V */
    uint32_t draft_pos = ~0u; /* positions from here on are a draft block, in scratch pages */
    std::vector<uint32_t> pages;
    uint32_t scratch = 0;
    std::vector<float> k, v; /* [len][KV_HEADS][head_dim] as stored */
};
struct query {
    uint32_t text, lo, hi;
};
/* Rows that attend together. */
struct group_of_rows {
    std::vector<uint32_t> rows;
    uint32_t kind;
    bool parts;
};

// ---- a scene

struct scene {
    struct setting set;
    struct device dev = {};
    std::vector<text> texts;
    std::vector<query> queries;
    std::vector<float> q; /* [row][heads][head_dim], rounded to act */
    std::vector<void *> owned;
    uint32_t n_pages = 0, n_scratch = 0;
    struct rng rng;
};

static uint32_t heads_of(const scene &s) {
    return KV_HEADS * s.set.group;
}
static size_t act_bytes(const scene &s) {
    return s.set.act == DTYPE_F32 ? 4 : 2;
}
template <class T> static T *keep(scene *s, const T *from, size_t n) {
    T *p = device_copy(from, n ? n : 1);
    s->owned.push_back((void *)p);
    return p;
}
static char *keep_filled(scene *s, size_t bytes) {
    char *p = device_copy((char *)NULL, bytes);
    check_cuda(cudaMemset(p, 0xFF, bytes));
    s->owned.push_back(p);
    return p;
}
static void forget(scene *s, size_t from) {
    for (size_t i = from; i < s->owned.size(); i++)
        check_cuda(cudaFree(s->owned[i]));
    s->owned.resize(from);
}

static scene scene_new(struct setting set, uint64_t seed) {
    scene s;
    s.set = set;
    rng_seed(&s.rng, seed);
    struct device *d = &s.dev;
    d->act = set.act;
    d->group = set.group;
    d->shape.head_dim = set.head_dim;
    d->shape.n_heads = KV_HEADS * set.group;
    d->shape.n_kv_heads = KV_HEADS;
    d->shape.n_layers = LAYERS;
    d->limits.kv_dtype = set.kv;
    d->head_pad = (uint32_t)align_up(set.head_dim, 16);
    d->tile_rows = QUERY_TILE / set.group;
    d->ld_q = (uint32_t)align_up(KV_HEADS * set.group * set.head_dim, GPU_GROUP);
    const size_t element = set.kv == DTYPE_F32 ? 4 : set.kv == DTYPE_BF16 ? 2 : 1;
    d->value_bytes = PAGE_TOKENS * d->head_pad * element;
    d->head_bytes = 2 * d->value_bytes + (element == 1 ? 4 * PAGE_TOKENS : 0);
    d->layer_bytes = KV_HEADS * d->head_bytes;
    d->page_bytes = LAYERS * d->layer_bytes;
    d->sm = 90;
    d->n_sms = 4;
#ifdef GERYON_GPUSIM
    gpusim_set_device(d->sm, (size_t)1 << 30);
#else
    struct cudaDeviceProp prop;
    check_cuda(cudaGetDeviceProperties(&prop, 0));
    d->sm = 10 * prop.major + prop.minor;
#endif
    return s;
}

/* A text of len positions; pages are dealt out later. */
static uint32_t add_text(scene *s, uint32_t len, uint32_t draft_pos = ~0u) {
    text t;
    t.len = len;
    t.draft_pos = draft_pos;
    const size_t n = (size_t)len * KV_HEADS * s->set.head_dim;
    t.k.resize(n);
    t.v.resize(n);
    for (size_t i = 0; i < n; i++) {
        t.k[i] = 2 * rng_normal(&s->rng);
        t.v[i] = rng_normal(&s->rng);
    }
    s->texts.push_back(t);
    return (uint32_t)s->texts.size() - 1;
}
static void add_row(scene *s, uint32_t text, uint32_t lo, uint32_t hi) {
    s->queries.push_back({text, lo, hi});
}

/* One vector into its place; `value` becomes what is stored. */
static void store(const scene &s, char *head, uint32_t slot, bool is_v, float *value) {
    const uint32_t e = s.set.head_dim, ep = s.dev.head_pad;
    char *row = head + (is_v ? s.dev.value_bytes : 0) + slot * (s.dev.value_bytes / PAGE_TOKENS);
    if (s.set.kv == DTYPE_Q8_0) {
        float most = 0;
        for (uint32_t i = 0; i < e; i++)
            most = fmaxf(most, fabsf(value[i]));
        const uint16_t d = f32_to_f16(most / 127);
        uint16_t *scales = (uint16_t *)(head + 2 * s.dev.value_bytes) + (is_v ? PAGE_TOKENS : 0);
        scales[slot] = d;
        memset(row, 0, ep);
        for (uint32_t i = 0; i < e; i++) {
            const float quotient = d ? rintf(value[i] / f16_to_f32(d)) : 0;
            row[i] = (char)(int8_t)fmaxf(-127, fminf(127, quotient));
            value[i] = f16_to_f32(d) * (float)(int8_t)row[i];
        }
        return;
    }
    for (uint32_t i = 0; i < ep; i++) {
        const float f = i < e ? value[i] : 0;
        if (s.set.kv == DTYPE_F32) {
            memcpy(row + 4 * i, &f, 4);
        } else {
            const uint16_t half = f32_to_bf16(f);
            memcpy(row + 2 * i, &half, 2);
            if (i < e) value[i] = bf16_to_f32(half);
        }
    }
}

/* Pages in scattered order, everything stored, q drawn; then rows may be run. */
static void finish(scene *s) {
    const uint32_t e = s->set.head_dim;
    for (text &t : s->texts) {
        t.pages.resize(div_ceil(t.draft_pos < t.len ? t.draft_pos : t.len, PAGE_TOKENS));
        s->n_pages += (uint32_t)t.pages.size();
        t.scratch = s->n_scratch;
        if (t.draft_pos < t.len)
            s->n_scratch += (uint32_t)div_ceil(t.len, PAGE_TOKENS) - t.draft_pos / PAGE_TOKENS;
    }
    std::vector<uint32_t> deck(++s->n_pages); /* one that nobody uses */
    for (uint32_t i = 0; i < s->n_pages; i++) {
        const uint32_t j = rng_below(&s->rng, i + 1);
        deck[i] = deck[j];
        deck[j] = i;
    }
    std::vector<char> kv(s->n_pages * s->dev.page_bytes, (char)0xFF),
        scratch((s->n_scratch + 1) * s->dev.layer_bytes, (char)0xFF);
    size_t next = 0;
    for (text &t : s->texts) {
        for (uint32_t &page : t.pages)
            page = deck[next++];
        for (uint32_t pos = 0; pos < t.len; pos++)
            for (uint32_t g = 0; g < KV_HEADS; g++) {
                const uint32_t page = pos / PAGE_TOKENS;
                char *at =
                    page >= t.draft_pos / PAGE_TOKENS
                        ? &scratch[(t.scratch + page - t.draft_pos / PAGE_TOKENS) *
                                   s->dev.layer_bytes]
                        : &kv[t.pages[page] * s->dev.page_bytes + LAYER * s->dev.layer_bytes];
                at += g * s->dev.head_bytes;
                const size_t first = ((size_t)pos * KV_HEADS + g) * e;
                store(*s, at, pos % PAGE_TOKENS, false, &t.k[first]);
                store(*s, at, pos % PAGE_TOKENS, true, &t.v[first]);
            }
    }
    s->dev.kv = keep(s, kv.data(), kv.size());
    s->dev.kv_scratch = keep(s, scratch.data(), scratch.size());

    const uint32_t n_rows = (uint32_t)s->queries.size(), width = heads_of(*s) * e;
    s->q.resize((size_t)n_rows * width);
    std::vector<char> q((size_t)n_rows * s->dev.ld_q * act_bytes(*s), 0);
    for (size_t i = 0; i < s->q.size(); i++) {
        const size_t at = i / width * s->dev.ld_q + i % width;
        const uint16_t half = f32_to_bf16(s->q[i] = rng_normal(&s->rng));
        if (s->set.act == DTYPE_BF16) {
            s->q[i] = bf16_to_f32(half);
            memcpy(&q[2 * at], &half, 2);
        } else {
            memcpy(&q[4 * at], &s->q[i], 4);
        }
    }
    s->dev.q = keep(s, q.data(), q.size());
    assert_true(gpu_attend_fits(&s->dev));
}

/* Appends at a multiple of GPU_ALIGN, with as many bytes of 0xFF behind; returns where. */
template <class T> static size_t pack(std::vector<char> *packed, const T *from, size_t n) {
    const size_t at = packed->size();
    packed->resize(align_up(at + n * sizeof(T) + GPU_ALIGN, GPU_ALIGN), (char)0xFF);
    if (n) memcpy(&(*packed)[at], from, n * sizeof(T));
    return at;
}

/* [row][heads][head_dim] by one launch. Rows of no group stay NaN. */
static std::vector<float> run(scene *s, const std::vector<group_of_rows> &groups) {
    const size_t before = s->owned.size(), n_rows = s->queries.size();
    struct device *d = &s->dev;
    struct counts counts = {};
    std::vector<struct row> rows(n_rows);
    std::vector<struct seg> segments;
    std::vector<uint32_t> order, pages = {0x7FFFFFFF};
    std::vector<struct tile> tiles;
    std::vector<struct item> items;
    std::vector<struct merge> merges;
    for (const text &t : s->texts) {
        struct seg seg = {};
        seg.view = t.draft_pos < t.len ? VIEW_DRAFT : VIEW_BASE;
        seg.pos = seg.view == VIEW_DRAFT ? t.draft_pos : 3;
        seg.scratch = t.scratch;
        seg.pages = (uint32_t)pages.size();
        seg.n_pages = (uint32_t)t.pages.size();
        pages.insert(pages.end(), t.pages.begin(), t.pages.end());
        segments.push_back(seg);
    }
    pages.push_back(0x7FFFFFFF);
    for (size_t i = 0; i < n_rows; i++) {
        rows[i].segment = s->queries[i].text;
        rows[i].lo = s->queries[i].lo;
        rows[i].hi = s->queries[i].hi;
    }
    uint32_t n_parts = 0;
    for (uint32_t kind = 0; kind < ATTEND_KINDS; kind++)
        for (const group_of_rows &g : groups) {
            if (g.kind != kind) continue;
            const uint32_t n_query = (uint32_t)g.rows.size() * s->set.group;
            assert_in_range(n_query, 1, 16u << kind);
            struct tile t = {(uint32_t)order.size(), (uint32_t)g.rows.size(),
                             s->queries[g.rows[0]].text, ~0u, 0};
            for (uint32_t row : g.rows) {
                assert_int_equal(s->queries[row].text, t.segment);
                order.push_back(row);
                t.lo = t.lo < rows[row].lo ? t.lo : rows[row].lo;
                t.hi = t.hi > rows[row].hi ? t.hi : rows[row].hi;
            }
            const uint32_t number = (uint32_t)tiles.size(), first = t.lo / SPLIT,
                           end = (uint32_t)div_ceil(t.hi, SPLIT);
            tiles.push_back(t);
            if (!g.parts) {
                items.push_back({number, first, end, GPU_NONE});
                counts.n_items[kind]++;
                continue;
            }
            for (uint32_t i = 0; i < g.rows.size(); i++)
                merges.push_back({g.rows[i], n_parts + i * s->set.group, n_query, end - first});
            for (uint32_t split = first; split < end; split++, n_parts += n_query) {
                items.push_back({number, split, split + 1, (int32_t)n_parts});
                counts.n_items[kind]++;
            }
        }
    counts.n_rows = (uint32_t)n_rows;
    counts.n_tiles = (uint32_t)tiles.size();
    counts.n_merges = (uint32_t)merges.size();
    /* One allocation, since each costs the simulator more than a launch. */
    std::vector<char> packed;
    const size_t at[] = {pack(&packed, &counts, 1),
                         pack(&packed, rows.data(), n_rows),
                         pack(&packed, segments.data(), segments.size()),
                         pack(&packed, order.data(), order.size()),
                         pack(&packed, tiles.data(), tiles.size()),
                         pack(&packed, items.data(), items.size()),
                         pack(&packed, merges.data(), merges.size()),
                         pack(&packed, pages.data(), pages.size())};
    char *const base = keep(s, packed.data(), packed.size());
    d->batch.counts = (struct counts *)(base + at[0]);
    d->batch.rows = (struct row *)(base + at[1]);
    d->batch.segments = (struct seg *)(base + at[2]);
    d->batch.order = (uint32_t *)(base + at[3]);
    d->batch.tiles = (struct tile *)(base + at[4]);
    d->batch.items = (struct item *)(base + at[5]);
    d->batch.merges = (struct merge *)(base + at[6]);
    d->batch.pages = (uint32_t *)(base + at[7]);
    d->parts = (float *)keep_filled(s, ((size_t)n_parts + 1) * KV_HEADS * d->head_pad * 4);
    d->part_stats = (float *)keep_filled(s, ((size_t)n_parts + 1) * KV_HEADS * 8);
    const size_t o_bytes = n_rows * d->ld_q * act_bytes(*s);
    d->o = keep_filled(s, o_bytes);
    /* Grids are bounds: some blocks too many, or (the first kind) too few, which then go on. */
    for (uint32_t kind = 0; kind < ATTEND_KINDS; kind++)
        d->grid.items[kind] = counts.n_items[kind] ? counts.n_items[kind] + kind : 0;
    if (d->grid.items[0] > 2) d->grid.items[0] -= 2;
    d->grid.merges = counts.n_merges ? counts.n_merges + 1 : 0;

    check_cuda(gpu_attend(d, LAYER, NULL));
    check_cuda(cudaDeviceSynchronize());
    std::vector<char> o(o_bytes);
    host_copy(o.data(), (char *)d->o, o_bytes);
    forget(s, before);
    const uint32_t width = heads_of(*s) * s->set.head_dim;
    std::vector<float> out(n_rows * width);
    for (size_t i = 0; i < n_rows * d->ld_q; i++) {
        float f;
        uint16_t half;
        memcpy(&half, &o[2 * i], 2);
        f = bf16_to_f32(half);
        if (s->set.act == DTYPE_F32) memcpy(&f, &o[4 * i], 4);
        if (i % d->ld_q < width)
            out[i / d->ld_q * width + i % d->ld_q] = f;
        else
            assert_true(isnan(f)); /* the padding is left alone */
    }
    return out;
}

/* sizes: of each result, the sum of probabilities times |v|. */
static std::vector<float> reference(const scene &s, std::vector<double> *sizes) {
    const uint32_t e = s.set.head_dim, heads = heads_of(s);
    std::vector<float> out(s.queries.size() * heads * e);
    sizes->resize(out.size());
    for (size_t row = 0; row < s.queries.size(); row++)
        for (uint32_t h = 0; h < heads; h++) {
            const query &r = s.queries[row];
            const text &t = s.texts[r.text];
            const size_t at = (row * heads + h) * e;
            std::vector<double> score(r.hi), sum(e), size(e);
            double most = -INFINITY, total = 0;
            for (uint32_t p = r.lo; p < r.hi; p++) {
                for (uint32_t i = 0; i < e; i++)
                    score[p] +=
                        (double)s.q[at + i] * t.k[((size_t)p * KV_HEADS + h / s.set.group) * e + i];
                score[p] /= sqrt((double)e);
                most = score[p] > most ? score[p] : most;
            }
            for (uint32_t p = r.lo; p < r.hi; p++) {
                const double share = exp(score[p] - most);
                total += share;
                for (uint32_t i = 0; i < e; i++) {
                    const double v = t.v[((size_t)p * KV_HEADS + h / s.set.group) * e + i];
                    sum[i] += share * v;
                    size[i] += share * fabs(v);
                }
            }
            for (uint32_t i = 0; i < e; i++) {
                out[at + i] = (float)(sum[i] / total);
                (*sizes)[at + i] = size[i] / total;
            }
        }
    return out;
}

/* bf16: the result, and on tensor cores each probability, is rounded by up to 2^-8 of its size. float32:
 * chains of up to some hundred sums, and 2 units of the power of two. */
static void assert_right(const scene &s, const std::vector<float> &got, const char *what) {
    std::vector<double> sizes;
    const std::vector<float> want = reference(s, &sizes);
    const bool half = s.set.act == DTYPE_BF16,
               mma = half && s.set.kv != DTYPE_F32 && s.set.head_dim <= 128;
    for (size_t i = 0; i < want.size(); i++) {
        const double most = (mma ? 0x1p-8 + 1e-5 : 1e-5) * sizes[i] +
                            (half ? 0x1p-8 + 1e-5 : 1e-5) * fabs((double)want[i]);
        if (!(fabs((double)got[i] - (double)want[i]) <= most))
            fail_msg("%s: act %s, kv %s, head_dim %u, group %u: [%zu] is %.9g, expected %.9g "
                     "within %.3g",
                     what, dtype_name(s.set.act), dtype_name(s.set.kv), s.set.head_dim, s.set.group,
                     i, (double)got[i], (double)want[i], most);
    }
}

/* All rows, those of a text and `at_most` of them a group. */
static std::vector<group_of_rows> grouped(const scene &s, uint32_t at_most, uint32_t kind,
                                          bool parts) {
    std::vector<group_of_rows> groups;
    for (uint32_t i = 0; i < s.queries.size(); i++) {
        if (groups.empty() || groups.back().rows.size() == at_most ||
            s.queries[groups.back().rows[0]].text != s.queries[i].text)
            groups.push_back({{}, kind, parts});
        groups.back().rows.push_back(i);
    }
    return groups;
}
static uint32_t least_kind(uint32_t n_query) {
    return n_query <= 16 ? 0 : n_query <= 32 ? 1 : 2;
}

// ---- tests

static const struct setting mma_settings[] = {
    {DTYPE_BF16, DTYPE_BF16, 64, 2},  {DTYPE_BF16, DTYPE_Q8_0, 64, 4},
    {DTYPE_BF16, DTYPE_BF16, 128, 3}, {DTYPE_BF16, DTYPE_Q8_0, 128, 1},
    {DTYPE_BF16, DTYPE_BF16, 80, 1},  {DTYPE_BF16, DTYPE_Q8_0, 80, 8},
    {DTYPE_BF16, DTYPE_BF16, 16, 8},  {DTYPE_BF16, DTYPE_Q8_0, 16, 3},
};
/* Heads above 128 are all the plain kernel's; it is slow here, so most are small. */
static const struct setting f32_settings[] = {
    {DTYPE_F32, DTYPE_F32, 48, 2},  {DTYPE_F32, DTYPE_BF16, 80, 4},
    {DTYPE_F32, DTYPE_Q8_0, 32, 1}, {DTYPE_BF16, DTYPE_F32, 16, 8},
    {DTYPE_F32, DTYPE_F32, 10, 3},  {DTYPE_BF16, DTYPE_Q8_0, 130, 1},
};
static std::vector<setting> all_settings(void) {
    std::vector<setting> all(mma_settings, mma_settings + ARRAY_LEN(mma_settings));
    all.insert(all.end(), f32_settings, f32_settings + ARRAY_LEN(f32_settings));
    return all;
}

static void every_length_is_attention(void **) {
    for (const setting &set : all_settings()) {
        scene s = scene_new(set, test_seed());
        for (uint32_t len : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 255u, 256u, 257u, 600u})
            add_row(&s, add_text(&s, len), 0, len);
        finish(&s);
        const uint32_t kind = least_kind(set.group);
        const std::vector<float> got = run(&s, grouped(s, 1, kind, false));
        assert_right(s, got, "lengths");
        const std::vector<float> merged = run(&s, grouped(s, 1, kind, true));
        assert_same_bits(merged.data(), got.data(), got.size(), "from parts");
        forget(&s, 0);
    }
}

/* Base rows see a window, output rows all: as a verification orders them, by position. */
static void add_verification(scene *s, uint32_t len, uint32_t n_rows, uint32_t window,
                             uint32_t n_output) {
    const uint32_t text = add_text(s, len);
    for (uint32_t hi = len - n_rows + 1; hi <= len; hi++) {
        add_row(s, text, hi > window ? hi - window : 0, hi);
        if (hi > len - n_output) add_row(s, text, 0, hi);
    }
}
static void tiling_changes_no_bit(void **) {
    uint32_t n_settings = 0;
    for (const setting &set : all_settings()) {
        scene s = scene_new(set, test_seed() + 1);
        add_verification(&s, 330, 6, 70, 3); /* spans begin in split 0 and 1, and within tiles */
        add_verification(&s, 260, 5, 5, 2);  /* the windows move over a split's border */
        add_verification(&s, 70, 6, 100, 0); /* the window holds all */
        finish(&s);
        const uint32_t alone_kind = least_kind(set.group);
        const std::vector<float> alone = run(&s, grouped(s, 1, alone_kind, false));
        assert_right(s, alone, "alone");
        /* Tiles full or half full, merged either way: each with every kind in every other setting. */
        n_settings++;
        for (uint32_t kind = alone_kind; kind < ATTEND_KINDS; kind++)
            for (uint32_t parts = 0; parts < 2; parts++) {
                const uint32_t most = (16u << kind) / set.group;
                const uint32_t n = (n_settings + kind + parts) % 2 ? most : most / 2 + 1;
                use_order((int)(kind + parts) % N_ORDERS, test_seed());
                const std::vector<float> got = run(&s, grouped(s, n, kind, parts));
                assert_same_bits(got.data(), alone.data(), alone.size(), "in a tile");
            }
        forget(&s, 0);
    }
}

static void kinds_and_ways_mix_in_one_forward(void **) {
    for (const setting &set : {mma_settings[0], mma_settings[1], f32_settings[1]}) {
        scene s = scene_new(set, test_seed() + 2);
        add_verification(&s, 600, 3, 300, 1);
        add_verification(&s, 300, 16, 40, 0);
        add_verification(&s, 90, 8, 1000, 0);
        finish(&s);
        const std::vector<float> alone = run(&s, grouped(s, 1, 0, true));
        assert_right(s, alone, "alone");
        std::vector<group_of_rows> groups = grouped(s, 16 / set.group, 0, false);
        for (size_t i = 0; i < groups.size(); i++) {
            groups[i].kind = (uint32_t)(i * 2 % 3);
            groups[i].parts = i % 2 == 0;
        }
        for (int order = 0; order < N_ORDERS; order++) {
            use_order(order, test_seed());
            const std::vector<float> got = run(&s, groups);
            assert_same_bits(got.data(), alone.data(), alone.size(), "mixed");
        }
        forget(&s, 0);
    }
}

/* Rows of a draft block see the cached text and all of the block. What the cache holds of its first
 * page is in scratch, too, and read there: in the cache that page is NaN here. */
static void draft_blocks_are_read_from_scratch(void **) {
    for (const setting &set : all_settings()) {
        scene s = scene_new(set, test_seed() + 3);
        for (uint32_t pos : {0u, 5u, 16u, 250u, 287u}) {
            const uint32_t n = pos == 250 ? 16 : 6, text = add_text(&s, pos + n, pos);
            for (uint32_t i = 0; i < n; i++)
                add_row(&s, text, 0, pos + n);
        }
        finish(&s);
        const uint32_t most = QUERY_TILE / set.group;
        const std::vector<float> got = run(&s, grouped(s, most, 2, false));
        assert_right(s, got, "draft");
        const std::vector<float> merged = run(&s, grouped(s, most, 2, true));
        assert_same_bits(merged.data(), got.data(), got.size(), "draft, from parts");
        forget(&s, 0);
    }
}

/* The largest heads and groups, long enough for all buffers to be used again. */
static void large_heads_and_groups_fit(void **) {
    static const struct setting settings[] = {
        {DTYPE_BF16, DTYPE_BF16, 256, 1}, {DTYPE_BF16, DTYPE_Q8_0, 256, 2},
        {DTYPE_BF16, DTYPE_BF16, 192, 2}, {DTYPE_BF16, DTYPE_F32, 200, 1},
        {DTYPE_BF16, DTYPE_BF16, 32, 2},  {DTYPE_BF16, DTYPE_Q8_0, 32, 64},
        {DTYPE_BF16, DTYPE_BF16, 32, 33}, {DTYPE_F32, DTYPE_F32, 256, 2},
        {DTYPE_F32, DTYPE_BF16, 144, 1},  {DTYPE_F32, DTYPE_Q8_0, 136, 2},
        {DTYPE_F32, DTYPE_F32, 128, 1},   {DTYPE_F32, DTYPE_Q8_0, 32, 64},
    };
    for (const setting &set : settings) {
        scene s = scene_new(set, test_seed() + 4);
        const uint32_t kind = least_kind(set.group);
        add_verification(&s, 400, set.group > 16 ? 1 : 3, 40, 1);
        finish(&s);
        const std::vector<float> alone = run(&s, grouped(s, 1, kind, false));
        assert_right(s, alone, "large");
        for (int parts = 0; parts < 2; parts++) {
            const std::vector<float> got = run(&s, grouped(s, QUERY_TILE / set.group, 2, parts));
            assert_same_bits(got.data(), alone.data(), alone.size(), "large, in a tile");
        }
        forget(&s, 0);
    }
}

/* More than 512 positions: the window of page numbers moves on. */
static void page_tables_are_read_to_the_end(void **) {
    for (const setting &set : {mma_settings[6], mma_settings[7], f32_settings[3]}) {
        scene s = scene_new(set, test_seed() + 5);
        add_verification(&s, 1800, 1, 700, 1);
        add_verification(&s, 1024, 1, 512, 1);
        finish(&s);
        const std::vector<float> got = run(&s, grouped(s, 1, least_kind(set.group), false));
        assert_right(s, got, "long");
        const std::vector<float> merged = run(&s, grouped(s, 2, 2, true));
        assert_same_bits(merged.data(), got.data(), got.size(), "long, from parts");
        forget(&s, 0);
    }
}

static void too_large_heads_are_refused(void **) {
    scene s = scene_new({DTYPE_BF16, DTYPE_BF16, 256, 1}, test_seed());
    assert_true(gpu_attend_fits(&s.dev));
    s.dev.head_pad = 272;
    assert_false(gpu_attend_fits(&s.dev));
    s.dev.head_pad = 256;
    s.dev.group = 65;
    assert_false(gpu_attend_fits(&s.dev));
#ifdef GERYON_GPUSIM
    gpusim_set_device(80, (size_t)1 << 30);
    for (enum dtype kv : {DTYPE_BF16, DTYPE_Q8_0, DTYPE_F32})
        for (uint32_t head_dim : {128u, 256u}) {
            s = scene_new({DTYPE_BF16, kv, head_dim, 1}, test_seed());
            gpusim_set_device(s.dev.sm = 80, (size_t)1 << 30);
            assert_true(gpu_attend_fits(&s.dev));
        }
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_is_attention),
        cmocka_unit_test(tiling_changes_no_bit),
        cmocka_unit_test(kinds_and_ways_mix_in_one_forward),
        cmocka_unit_test(draft_blocks_are_read_from_scratch),
        cmocka_unit_test(large_heads_and_groups_fit),
        cmocka_unit_test(page_tables_are_read_to_the_end),
        cmocka_unit_test(too_large_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
