/* kernels.h: what the benchmark of kernels shares: devices of random weights that hold one thing to
 * time (kernels_device.c), operations on rows (kernels_rows.c), measuring, and the report
 * (kernels_report.c). One thread. */
#ifndef GERYON_TESTS_BENCH_KERNELS_H
#define GERYON_TESTS_BENCH_KERNELS_H

#include "kernels/kernels.h"

enum {
    LIST_MAX = 16,
    NAME_MAX_BYTES = 48,
    TASK_ROWS = 16, /* rows of one task, as the stages deal them out */
    VOCAB = 49152,
    D_MODEL = 576,
    D_FF = 1536,
    HEAD_DIM = 64,
    N_HEADS = 9,
    N_KV_HEADS = 3,
};

struct list {
    uint32_t n, items[LIST_MAX];
};

/* What the command line asks for. */
struct plan {
    const char *groups, *tables, *shapes; /* words between commas; NULL: all there are */
    bool activations[ACTIVATIONS_COUNT], dtypes[DTYPE_COUNT], kv_dtypes[DTYPE_COUNT];
    struct list rows, contexts, windows;
    uint32_t n_threads, ms, weights_mib, attend_layers;
    bool json, no_peaks;
};

/* ---- devices ---------------------------------------------------------------------------------- */

/* A device of one table and the forward it is in. Its timed matrices are w_o of every layer, or its MLP,
 * or the embedding; all else is small. */
struct bench_device {
    const struct kernels *table;
    struct device *dev;
    struct model_shape shape;
    struct device_limits limits;
    struct segment segments[LIST_MAX];
    uint32_t *pages; /* [n_pages] 0, 1, .. */
    int32_t *tokens; /* [max_position] */
    double *rope_freq;
};

/* Load random weights (w_o and, where their rows are whole blocks, the embedding and the MLP in `dtype`;
 * other matrices in q8_0 or bf16), reserve.
 * On failure everything is given back. */
int bench_device_open(const struct kernels *table, const struct model_shape *shape,
                      const struct device_limits *limits, enum dtype dtype, uint32_t n_threads,
                      struct bench_device *out, struct err *err);
void bench_device_close(struct bench_device *d);
/* Begin a forward of n_slots segments of n_rows rows at pos and run it up to x and, in layer 0, o: all
 * buffers that a stage reads hold numbers. The last n_logits rows of each want logits. */
void bench_device_begin(struct bench_device *d, uint32_t n_slots, uint32_t pos, uint32_t n_rows,
                        uint32_t n_logits, enum pick pick);
void bench_device_end(struct bench_device *d);

/* ---- measuring -------------------------------------------------------------------------------- */

struct limits { /* measured peaks */
    double bytes_per_s, flops_per_s;
};

/* One line of the report. bytes: what must come from memory (weights, KV; for operations on
 * activations what they move); limit_us: what that and the operations take at the peaks. */
struct result {
    const char *group, *table, *dtype;
    enum activations activations;
    char shape[NAME_MAX_BYTES];
    uint32_t rows;
    double median_us, best_us, bytes, flops;
    double limit_us;   /* 0: not known */
    bool memory_bound; /* which of the two the limit is */
};

/* fn(arg, i) with i = 0, 1, .. n_parts - 1, 0, ..: the time of one call, over at least `ms`
 * milliseconds and five samples; a sample is as many calls as make it long enough for the clock. */
void measure(void (*fn)(void *arg, uint32_t part), void *arg, uint32_t n_parts, uint32_t ms,
             struct result *out);
/* limit_us and memory_bound from bytes, flops and the peaks; untouched where those are unknown. */
void result_limit(struct result *r, const struct limits *peaks);

/* One combination at hand. */
struct bench {
    const struct plan *plan;
    const struct kernels *table;
    enum activations activations;
    struct limits peaks;
    struct bench_device device;
};

/* A line for fn, whose bytes and operations are in `r` already. */
void bench_line(struct bench *b, struct result *r, void (*fn)(void *, uint32_t), void *arg,
                uint32_t n_parts);
/* b->device; false after a note in the report where that is not possible. */
bool bench_open(struct bench *b, const struct model_shape *shape,
                const struct device_limits *limits, enum dtype dtype, const char *what);
/* One layer with a small MLP and vocabulary; n_rows positions of bf16 KV. */
struct model_shape small_shape(enum activations activations);
struct device_limits small_limits(uint32_t n_rows);
uint32_t list_largest(const struct list *list);

/* kernels_rows.c: all lines of a group. */
void bench_rows(struct bench *b);
void bench_msar(struct bench *b);

/* ---- the report ------------------------------------------------------------------------------- */

void report_begin(const struct plan *plan);
void report_peaks(const struct plan *plan, const char *table, enum activations activations,
                  const struct limits *peaks);
void report_result(const struct plan *plan, const struct result *r);
void report_note(const struct plan *plan, const char *where, const char *why);
void report_end(const struct plan *plan);

#endif
