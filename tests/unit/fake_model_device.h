/* fake_model_device.h: a kernel table that only remembers what it was given, for the loader's tests. */
#ifndef GERYON_FAKE_MODEL_DEVICE_H
#define GERYON_FAKE_MODEL_DEVICE_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/load/model_internal.h"
#include "tests/harness.h"

struct record {
    enum weight which;
    uint32_t layer, rows, cols;
    enum dtype dtype;
    uint8_t *data;
    size_t bytes;
};

struct fake {
    struct model_shape shape;
    double freq[512];
    uint32_t n_threads;
    struct record records[512];
    size_t n_records;
};

static int n_open;           /* devices that are open now */
static const char *cut_path; /* a file that shrinks when the first weight arrives */
static struct load_progress *cancel_at_first;

static inline int fake_open(const struct model_shape *shape, uint32_t n_threads,
                            struct device **out, struct err *err) {
    (void)err;
    struct fake *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->shape = *shape;
    memcpy(f->freq, shape->rope_freq, shape->head_dim / 2 * sizeof(double));
    f->n_threads = n_threads;
    n_open++;
    *out = (struct device *)f;
    return OK;
}

static inline void fake_close(struct device *dev) {
    struct fake *f = (struct fake *)dev;
    for (size_t i = 0; i < f->n_records; i++)
        free(f->records[i].data);
    free(f);
    n_open--;
}

static inline int fake_load(struct device *dev, enum weight which, uint32_t layer,
                            const struct tensor *src, struct err *err) {
    (void)err;
    struct fake *f = (struct fake *)dev;
    assert_true(f->n_records < ARRAY_LEN(f->records));
    size_t bytes = src->rows * dtype_row_bytes(src->dtype, src->cols);
    struct record r = {which, layer, src->rows, src->cols, src->dtype, malloc(bytes), bytes};
    assert_non_null(r.data);
    memcpy(r.data, src->data, bytes);
    f->records[f->n_records++] = r;
    if (cut_path) assert_int_equal(truncate(cut_path, 100), 0);
    if (cancel_at_first) atomic_store(&cancel_at_first->cancel, true);
    return OK;
}

static const struct kernels fake_kernels = {
    .name = "fake",
    .activations = 1 << ACTIVATIONS_F32 | 1 << ACTIVATIONS_INT8,
    .open = fake_open,
    .close = fake_close,
    .load = fake_load,
};

static inline const struct fake *device_of(const struct model *m) {
    return (const struct fake *)m->device;
}

static inline const struct record *find(const struct model *m, enum weight which, uint32_t layer) {
    const struct fake *f = device_of(m);
    for (size_t i = 0; i < f->n_records; i++)
        if (f->records[i].which == which && f->records[i].layer == layer) return &f->records[i];
    return NULL;
}

static inline struct model *load(const struct model_options *options) {
    struct model *m = NULL;
    struct err err = {0};
    if (model_load_on(options, &fake_kernels, &m, &err)) fail_msg("%s: %s", options->path, err.msg);
    return m;
}

static inline struct model *load_path(const char *path, const char *dtype) {
    return load(&(struct model_options){.path = path, .dtype = dtype});
}

static inline void refused_with(const struct model_options *options, const char *word) {
    struct model *m = NULL;
    struct err err = {0};
    int rc = model_load_on(options, &fake_kernels, &m, &err);
    if (rc == OK) fail_msg("%s was loaded, \"%s\" was expected", options->path, word);
    assert_null(m);
    assert_int_equal(err.code, rc);
    assert_int_equal(n_open, 0);
    if (!strstr(err.msg, word)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, word);
}

static inline void refused(const char *path, const char *word) {
    refused_with(&(struct model_options){.path = path}, word);
}

#endif
