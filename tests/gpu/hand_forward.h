/* hand_forward.h: a forward's arrays made by hand from segments, for tests of single kernels: what the
 * host part plans, without it. The device struct lives on the host; the test sets what its kernels
 * read beyond the batch. */
#ifndef GERYON_TESTS_HAND_FORWARD_H
#define GERYON_TESTS_HAND_FORWARD_H

#include "kernels/cuda/cuda.h"
#include "tests/gpusim/gpusim_test.h"

enum { HAND_ROWS = 128, HAND_SEGMENTS = 16, HAND_PAGES = 256 };

struct hand {
    struct device dev;
    struct counts counts;
    struct row rows[HAND_ROWS];
    struct seg segments[HAND_SEGMENTS];
    uint32_t logit_rows[HAND_ROWS], pages[HAND_PAGES];
};

template <class T> static inline void device_set(T *to, const T *from, size_t n) {
    check_cuda(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyHostToDevice));
}
template <class T> static inline T *device_array(size_t n) {
    return device_copy((const T *)NULL, n);
}
static inline float *random_array(struct rng *rng, size_t n, float around, float spread) {
    float *v = (float *)calloc(n ? n : 1, sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = around + spread * rng_normal(rng);
    return v;
}
/* Rows of `cols` random numbers, each padded with zeros to ld. */
static inline float *random_rows(struct rng *rng, size_t rows, size_t cols, size_t ld, float around,
                                 float spread) {
    float *v = (float *)calloc(rows * ld, sizeof *v);
    for (size_t i = 0; i < rows * ld; i++)
        if (i % ld < cols) v[i] = around + spread * rng_normal(rng);
    return v;
}

static inline struct hand *hand_open(void) {
    struct hand *h = (struct hand *)calloc(1, sizeof *h);
    struct batch *b = &h->dev.batch;
    b->counts = device_array<struct counts>(1);
    b->rows = device_array<struct row>(HAND_ROWS);
    b->segments = device_array<struct seg>(HAND_SEGMENTS);
    b->logit_rows = device_array<uint32_t>(HAND_ROWS);
    b->pages = device_array<uint32_t>(HAND_PAGES);
    h->dev.limits.max_rows = HAND_ROWS;
    return h;
}
static inline void hand_close(struct hand *h) {
    const struct batch *b = &h->dev.batch;
    for (void *p : {(void *)b->counts, (void *)b->rows, (void *)b->segments, (void *)b->logit_rows,
                    (void *)b->pages})
        check_cuda(cudaFree(p));
    free(h);
}

static inline void hand_row(struct hand *h, const struct segment *s, uint32_t segment, uint32_t i,
                            uint32_t scratch) {
    const uint32_t row = h->counts.n_rows++, page = (s->pos + i) / PAGE_TOKENS;
    const bool draft = s->view == VIEW_DRAFT;
    assert_true(row < HAND_ROWS);
    struct row *r = &h->rows[row];
    memset(r, 0, sizeof *r);
    r->token = s->tokens ? s->tokens[i] : 0;
    r->pos = s->pos + i;
    r->segment = segment;
    r->slot = s->slot;
    r->view = s->view;
    r->kv_page = draft              ? scratch + page - s->pos / PAGE_TOKENS
                 : s->pages != NULL ? s->pages[page]
                                    : 0;
    if (draft ? i < s->n_logits : i >= s->n_rows - s->n_logits)
        h->logit_rows[h->counts.n_logit_rows++] = row;
}

/* slack: how much larger than the counts the grid is, as a graph's may be. */
static inline void hand_begin(struct hand *h, const struct segment *segments, uint32_t n,
                              uint32_t slack) {
    uint32_t n_pages = 0, n_drafts = 0;
    int32_t base[HAND_SEGMENTS];
    h->counts = {};
    assert_true(n <= HAND_SEGMENTS);
    memset(base, -1, sizeof base);
    for (uint32_t i = 0; i < n; i++) {
        const struct segment *s = &segments[i];
        struct seg *to = &h->segments[i];
        const bool draft = s->view == VIEW_DRAFT;
        memset(to, 0, sizeof *to);
        to->slot = s->slot;
        to->view = s->view;
        to->pos = s->pos;
        to->n_rows = s->n_rows;
        to->first_row = h->counts.n_rows;
        to->first_logit = h->counts.n_logit_rows;
        to->n_logits = s->n_logits;
        to->pages = n_pages;
        to->n_pages = (uint32_t)div_ceil(draft ? s->pos : s->pos + s->n_rows, PAGE_TOKENS);
        for (uint32_t p = 0; s->pages && p < to->n_pages; p++)
            h->pages[n_pages++] = s->pages[p];
        if (draft) to->scratch = n_drafts++ * h->dev.scratch_pages;
        if (s->view == VIEW_BASE) base[s->slot] = (int32_t)i;
        to->own = s->view == VIEW_OUTPUT ? base[s->slot] : (int32_t)i;
        for (uint32_t r = 0; r < s->n_rows; r++)
            hand_row(h, s, i, r, to->scratch);
        if (s->view != VIEW_OUTPUT) h->counts.n_kv_rows = h->counts.n_rows;
    }
    assert_true(n_pages <= HAND_PAGES);
    h->counts.n_segments = n;
    struct device *dev = &h->dev;
    dev->drafting = n_drafts > 0;
    dev->grid = {};
    dev->grid.rows = h->counts.n_rows + slack;
    dev->grid.kv_rows = h->counts.n_kv_rows + slack;
    dev->grid.logit_rows = h->counts.n_logit_rows + slack;
    dev->grid.segments = n + slack;
    dev->grid.draft_segments = n_drafts ? n_drafts + slack : 0;
    device_set(dev->batch.counts, &h->counts, 1);
    device_set(dev->batch.rows, h->rows, HAND_ROWS);
    device_set(dev->batch.segments, h->segments, HAND_SEGMENTS);
    device_set(dev->batch.logit_rows, h->logit_rows, HAND_ROWS);
    device_set(dev->batch.pages, h->pages, HAND_PAGES);
}

#endif
