/* cpu.h: the device of the CPU tables, and the operations in which they differ. Private to
 * kernels/cpu.
 *
 * The stages (stages.c, draws.c) are the same for every CPU table: they walk rows, deal out tasks
 * and call `ops` for the arithmetic. A table is one struct cpu_ops (ref: ops_ref.c; avx2:
 * ops_avx2.c, gemm_avx2.c, attend_avx2.c; avx512 and amx likewise, with avx2's layouts and bits).
 *
 * Activations are float32, row-major. A row of n numbers lies in align_up(n, GROUP) floats whose
 * padding holds zeros, so that vector code needs no tail; logits alone have no padding.
 *
 *   KV memory    [layer][page][kv head][ K: PAGE_TOKENS x ep | V: PAGE_TOKENS x ep | scales ]
 *   scratch KV   [draft segment][page][kv head][ K | V | scales ]     of the layer being computed
 *
 * with ep = head_dim rounded up to 16; the order inside K and V is the table's own. Only 8-bit KV
 * has scales: f16, PAGE_TOKENS of K, then as many of V. A position's vector of one kv head is
 *
 *   d = max |x| / 127 rounded to f16 (65504 at most),  x = d * q,  q = x / d in float32, rounded to
 *   the nearest integer (ties to even) within +-127; d = 0: q = 0
 *
 * and one that holds an infinity or NaN gets d = NaN and q = 0, so that all that it touches is NaN.
 * Every table stores the same d and q. A draft block
 * at positions pos .. pos + n - 1 lies in scratch pages whose first begins at the page border at or
 * below pos; what the cache holds of that page is copied in front, so that attention sees one block
 * table of whole pages and the same absolute positions as everywhere. */
#ifndef GERYON_KERNELS_CPU_CPU_H
#define GERYON_KERNELS_CPU_CPU_H

#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"

enum {
    KV_SCALE_NAN = 0x7e00, /* d of a vector that is not finite */
    GROUP = 32,            /* output columns of a weight that lie together, and depth of a K step */
    ROW_TILE = 16,         /* rows that lie together, in int8 and in bf16 for tiles */
    ROW_BLOCK = 96, /* rows of one GEMM task: their activations stay in the second-level cache */
    ROW_BLOCK_MAX =
        512,            /* in bf16 on the tile unit, which needs a quarter of the bytes a product */
    ATTEND_BLOCK = 128, /* positions of one softmax block */
    QUERY_TILE = 32,    /* query rows (row x head) that share each page read, at most */
    SPLIT_SHARE = 8, /* tasks of stage attend a thread, where tiles must be split to have as many */
    NONE = -1,
};
_Static_assert(ATTEND_BLOCK % PAGE_TOKENS == 0, "a page never straddles two blocks");
_Static_assert(ROW_BLOCK % ROW_TILE == 0 && ROW_BLOCK_MAX % (2 * ROW_TILE) == 0,
               "a GEMM task begins with whole tiles of rows, and tiles come in pairs");

/* A weight as a table keeps it. Vectors: rows = 1, float32 padded with zeros. */
struct matrix {
    void *data; /* NULL: the model has no such weight */
    enum dtype dtype;
    bool int8; /* blocks of weights that meet activations in int8 */
    bool bf16; /* meets activations in bf16, rounded to bf16 itself: at load, or as it is used */
    uint32_t rows, cols;
    size_t group_bytes; /* one group of GROUP output columns (rows of the matrix) */
};

/* A step of 32 numbers of ROW_TILE rows in int8:
 *
 *   scale = max |x| / 127,  q = x * (127 / max |x|) to the nearest integer, ties to even
 *
 * A step whose maximum is below 2^-100 becomes zeros; one that holds an infinity or NaN gets that
 * as its scale and q = 0, so that every product with it is NaN. */
struct int8_step {
    int8_t q[ROW_TILE][GROUP];
    struct int8_row {
        float scale, sum; /* sum: of q, times scale */
        int32_t qsum;     /* of q */
        int32_t unused;   /* 16 bytes: four rows a cache line */
    } rows[ROW_TILE];
};

_Static_assert(sizeof(struct int8_step) % 64 == 0, "whole cache lines");

/* Rows that go through one matrix, of ldx / GROUP steps. */
struct gemm_rows {
    const float *x; /* [n_rows], stride ldx; of matrices that read float32 alone */
    size_t ldx;
    const float *sums; /* [n_rows][ldsums] sums over each K step of x */
    size_t ldsums;
    /* From a multiple of ROW_TILE rows on: */
    const struct int8_step *int8; /* int8: [row / ROW_TILE][step] */
    const uint16_t *bf16;         /* what `narrow` left there */
    uint32_t n_rows;              /* 1 .. cpu_row_block */
};

struct device;

/* A task of stage attend: a tile of query rows against one kv head, over all blocks or, where the
 * tile is split, one run of them. */
struct attend_task {
    uint32_t tile, kv_head;
    uint32_t part; /* 0 where the tile is whole */
};

struct cpu_ops {
    /* Set m->group_bytes from what else m says, return the bytes of all. */
    size_t (*matrix_bytes)(struct matrix *m);
    /* Fill a group of m->data, which was zeros, from its rows (GROUP, or as many as m has there), in
     * m->dtype one behind another. Groups may be filled by several threads at once. */
    void (*pack_group)(const struct matrix *m, uint32_t group, const void *rows);
    /* Row `row` widened into out [cols]: exactly dtype_to_f32. */
    void (*matrix_row)(const struct matrix *m, uint32_t row, float *out);
    /* sums[i] = sum of x[32 i .. 32 i + 31]. */
    void (*step_sums)(const float *x, uint32_t n_steps, float *sums);
    /* Steps first .. first + n - 1, in x, of row number `row` as int8 into `rows` [row / ROW_TILE][n_steps].
     * The same bits in every table. */
    void (*quantise)(const float *x, uint32_t first, uint32_t n, uint32_t n_steps,
                     struct int8_step *rows, uint32_t row);
    /* acc[i][j] = sum_k W[32 group + j][k] x[i][k]. */
    void (*gemm_group)(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                       float (*acc)[GROUP]);
    /* The same for m->int8, with the same bits in every table: for each step of 32 k
     *   acc = fma((float)(sum of q of x times q of w) * scale, d, acc)
     *   types with minima: acc = fma(m, sums, acc)
     * where w = d * q + m: in a K type d and m are a step's own, in q6_k q has the scales of its halves
     * in it (blocks.h). */
    void (*gemm_int8)(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                      float (*acc)[GROUP]);
    /* Steps first .. first + n - 1, in x, of row number `row` in bf16 (ties to even), for gemm_bf16: into
     * rows [all, up to a multiple of ROW_TILE] of n_steps, or where `tiles` is false rounded in place. */
    void (*narrow)(float *x, uint32_t first, uint32_t n, uint32_t n_steps, uint16_t *rows,
                   uint32_t row);
    /* gemm_group for m->bf16: the same order of sums in every table but ref. acc has room for n_rows
     * up to a multiple of 32. */
    void (*gemm_bf16)(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                      float (*acc)[GROUP]);
    /* Of whole groups: y[i] = acc[i] + bias, added to y[i] where `add`; y [n_rows], stride ldy. */
    void (*finish)(float (*acc)[GROUP], uint32_t n_rows, const float *bias, bool add, float *y,
                   size_t ldy);
    bool tiles; /* gemm_bf16 rounds weights itself, and wants rows in an order of its own */
    void (*task_end)(void); /* of a task that multiplied or attended; NULL: nothing to do */
    /* out = g * x / sqrt(mean(x^2) + eps) over n numbers; in place is fine. */
    void (*rmsnorm)(const float *x, const float *g, uint32_t n, float eps, float *out);
    /* gate[i] = silu(gate[i]) * up[i]; n a multiple of 8. */
    void (*silu_mul)(float *gate, const float *up, uint32_t n);
    /* MSAR; n a multiple of GROUP, n_v >= 1, sums over k in order. out[k] = v[k] . w, each as if it
     * were alone; */
    void (*dots)(const float *const *v, const float *w, uint32_t n_v, uint32_t n, float *out);
    /* out[i] = sum_k w[k] v[k][i]; */
    void (*weighted_sum)(const float *const *v, const float *w, uint32_t n_v, uint32_t n,
                         float *out);
    /* out[i] = sum_k c[k][i] v[k][i], c with rows of n. */
    void (*expand)(const float *const *v, const float *c, uint32_t n_v, uint32_t n, float *out);
    /* Rotate pairs (m, m + half). */
    void (*rope)(float *head, const float *cosines, const float *sines, uint32_t half);
    /* The largest of z [n], n >= 1, or NaN where any of z is not finite, into *most; returns the lowest
     * index that holds it. */
    uint32_t (*maximum)(const float *z, uint32_t n, float *most);
    /* Store k, v [head_dim], or the one that is not NULL, at position `at` of a page of one kv head, as
     * the KV type has it. */
    void (*kv_store)(const struct device *dev, void *page, uint32_t at, const float *k,
                     const float *v);
    /* In scratch of attend_scratch bytes; tasks run at once, in any order. Returns whether what the
     * tile's rows get from this kv head is now all in dev->o. */
    bool (*attend_tile)(struct device *dev, uint32_t layer, const struct attend_task *task,
                        void *scratch);
    size_t (*attend_scratch)(const struct device *dev);
    bool attend_splits; /* attend_tile takes parts of a tile's blocks */
};

/* Rows of one slot and view kind that attend together: base and output rows, or a draft block. */
struct attend_tile {
    uint32_t first, n_rows; /* into order[] */
    uint32_t segment;       /* whose block table reaches farthest */
    uint32_t lo, hi;        /* all that its rows attend lies in lo .. hi - 1 */
    int32_t split;          /* into splits[], or NONE: whole */
};

/* A tile whose blocks are dealt out in runs, because few tiles are to keep all threads busy. Each
 * block leaves what attend.c would merge at once in `parts`, behind `at`:
 *
 *   [kv head][block][ part: n x ep | m: n | l: n | padding ]      n = query rows of the tile */
struct attend_split {
    uint32_t tile;
    uint32_t first_block, n_blocks; /* in units of ATTEND_BLOCK positions */
    uint32_t run, n_parts;          /* blocks of a part, parts of a kv head */
    size_t at, block_floats;        /* in floats */
};

/* What the lm_head notes of each GROUP of logits while it has them at hand, so that a draw need not
 * read the vocabulary again to find the largest, or one that is not finite: `ops->maximum` of each. */
struct maxima {
    uint32_t n_groups;
    float *most; /* [max_logit_rows][n_groups] */
    uint8_t *at; /* the same; within the group */
};

/* Rows as the matrices that they go through next want them beside float32: see gemm_rows. */
struct ready {
    float *sums; /* [rows][ld_sums] */
    struct int8_step
        *int8; /* NULL where activations are others; so is bf16, and where !ops->tiles */
    uint16_t *bf16;
};

struct slot {
    struct rules rules;
    uint32_t n_asked;      /* rows of the last draft forward that were to propose */
    uint32_t n_proposals;  /* how many tokens came of it */
    uint32_t draft_logits; /* first of their rows in dev->draft_logits */
    int32_t proposals[DRAFT_MAX];
};

/* MSAR: the vectors that a sum takes in, and their weights. */
struct msar_scratch {
    const float **v;
    float *weights;
};

/* The residual path of an MSAR model: see msar.c; R streams. All zero in other models. */
struct msar {
    uint32_t n_pushes;          /* 2 n_layers: what is pushed, and a position's vectors in a ring */
    uint32_t n_sources;         /* N + 1 */
    uint32_t history, ring_len; /* positions */
    float *
        *weights[WEIGHT_END - WEIGHT_MSAR_CONV]; /* [kind][its index], rows padded as activations */
    uint32_t n_weights[WEIGHT_END - WEIGHT_MSAR_CONV];

    float *views;     /* [n_sources][R][max_rows][ld_model]: v_s^(r) of the forward's rows */
    float *inverse;   /* [n_sources][R][max_rows]: 1 / sqrt(mean(view^2) + eps) */
    float *z;         /* [max_rows][R][ld_model] */
    float *rings;     /* [n_slots][ring_len][n_pushes][ld_model], place = position mod ring_len */
    float *snapshots; /* [n_snapshots][history][n_pushes][ld_model] */
    uint32_t *ring_lo, *ring_hi;  /* [n_slots]: positions whose vectors a ring holds */
    struct msar_scratch *scratch; /* one a thread */
};

struct device {
    const struct cpu_ops *ops;
    struct model_shape shape;
    uint32_t group;                      /* query heads of a kv head */
    uint32_t head_pad;                   /* ep */
    uint32_t tile_rows;                  /* rows of an attention tile at most */
    size_t ld_model, ld_q, ld_kv, ld_ff; /* padded row lengths */
    float *cosines, *sines;              /* [max_position][head_dim / 2] */
    struct pool *pool;
    struct memory memory;
    struct matrix *weights; /* [n_layers][WEIGHT_COUNT] */
    bool reserved;

    struct device_limits limits;
    size_t head_bytes, layer_bytes; /* of a page of KV memory: in one layer */
    size_t value_bytes;             /* of K, and of V, in a head's memory */
    uint32_t scratch_pages;         /* pages of one draft block */
    char *kv, *kv_scratch;

    /* The forward at hand. */
    struct forward fwd;
    bool drafting;
    uint32_t n_rows, n_kv_rows; /* rows that make K and V come first */
    uint32_t n_logit_rows, n_tiles, n_accept;
    int32_t *row_token;
    uint32_t *row_pos, *row_segment, *row_lo, *row_hi; /* attends lo .. hi - 1 */
    uint32_t *logit_row;                               /* its row */
    uint32_t *order;                                   /* rows, tile by tile */
    struct attend_tile *tiles;
    uint32_t n_splits;
    struct attend_split *splits;
    _Atomic uint32_t *arrivals; /* [split][kv head] parts done; 0 between the layers */
    float *parts;
    size_t parts_cap;                      /* floats */
    uint32_t *segment_row, *segment_logit; /* first row and logit row of each segment */
    uint32_t *segment_scratch;             /* draft: its number in kv_scratch */
    int32_t *slot_segment[3];              /* [view][slot], NONE */
    _Atomic uint64_t kv_pages_read;        /* (page, layer, kv head) reads, for tests */

    /* Activations, [max_rows]. */
    float *x, *u, *q, *k, *v, *o;
    float *gate;     /* silu(gate) * up where the next matrix reads float32, else not written */
    float *residual; /* what embed sets and branches add to: x, in an MSAR model a source */
    size_t ld_sums;
    struct ready ready, ready_ff; /* of u or o; of gate, made while u is read */
    float *logits, *draft_logits; /* [max_logit_rows][vocab] */
    float *last_logits;           /* the one that the last forward wrote */
    struct maxima maxima;         /* of last_logits */

    struct msar msar;

    struct slot *slots;
    struct outcome *outcomes; /* [n_slots] */
    bool accepted;
    uint64_t work_ns[WORK_KINDS], work_at; /* kernels.h; when the last of it ended */
    void **thread_scratch;                 /* attention, one a thread */
    struct sample_scratch *thread_sample;
};

/* What was done since the last note, or since cpu_begin, was this. */
static inline void cpu_note_work(struct device *dev, enum stage_work work) {
    uint64_t now = pool_clock_ns();
    dev->work_ns[work] += now - dev->work_at;
    dev->work_at = now;
}

extern const struct cpu_ops cpu_ops_ref;
#if defined(__x86_64__)
extern const struct cpu_ops cpu_ops_avx2;
extern const struct cpu_ops cpu_ops_avx512; /* without VNNI: avx2's gemm_int8 */
extern const struct cpu_ops cpu_ops_avx512_vnni;
extern const struct cpu_ops cpu_ops_amx;
#endif

/* The next of the parts that n are cut into: as even as can be, at most `most`. */
static inline uint32_t even_part(uint32_t n, uint32_t most) {
    return (uint32_t)div_ceil(n, div_ceil(n, most));
}

/* The same from row i on, of those that lie in its struct int8_step. */
static inline uint32_t int8_rows_together(uint32_t i, uint32_t n_rows, uint32_t most) {
    uint32_t border = (i / ROW_TILE + 1) * ROW_TILE;
    return even_part((n_rows < border ? n_rows : border) - i, most);
}

/* Rows of a GEMM task at most. */
static inline uint32_t cpu_row_block(const struct device *dev) {
    return dev->ops->tiles && dev->shape.activations == ACTIVATIONS_BF16 ? ROW_BLOCK_MAX
                                                                         : ROW_BLOCK;
}

static inline const struct matrix *cpu_weight(const struct device *dev, enum weight which,
                                              uint32_t layer) {
    return &dev->weights[(size_t)layer * WEIGHT_COUNT + which];
}

/* MSAR: view r of source s of a row. */
static inline float *msar_view(const struct device *dev, uint32_t s, uint32_t r, uint32_t row) {
    size_t at = (size_t)s * dev->shape.n_msar_streams + r;
    return dev->msar.views + (at * dev->limits.max_rows + row) * dev->ld_model;
}

static inline float *msar_inverse(const struct device *dev, uint32_t s, uint32_t r, uint32_t row) {
    size_t at = (size_t)s * dev->shape.n_msar_streams + r;
    return dev->msar.inverse + at * dev->limits.max_rows + row;
}

/* The vector of push `push` at a position in a slot's ring. */
static inline float *msar_ring(const struct device *dev, uint32_t slot, uint32_t pos,
                               uint32_t push) {
    const struct msar *m = &dev->msar;
    size_t place = (size_t)slot * m->ring_len + pos % m->ring_len;
    return m->rings + (place * m->n_pushes + push) * dev->ld_model;
}

static inline const float *msar_weight(const struct device *dev, enum weight which,
                                       uint32_t index) {
    return dev->msar.weights[which - WEIGHT_MSAR_CONV][index];
}

/* The values of a vector, or NULL where the model has none. */
static inline const float *cpu_vector(const struct device *dev, enum weight which, uint32_t layer) {
    return cpu_weight(dev, which, layer)->data;
}

/* A cached page in one layer: [kv head][K | V]. A layer's pages lie together: those of a text, often
 * one behind the other, are then nearly one stream to the hardware. */
static inline char *cpu_cached_page(const struct device *dev, uint32_t page, uint32_t layer) {
    return dev->kv + ((size_t)layer * dev->limits.n_pages + page) * dev->layer_bytes;
}

/* The same of page `index` of a segment's block table. */
static inline char *cpu_page(const struct device *dev, uint32_t segment, uint32_t layer,
                             uint32_t index) {
    const struct segment *s = &dev->fwd.segments[segment];
    uint32_t own = s->pos / PAGE_TOKENS;
    if (s->view == VIEW_DRAFT && index >= own)
        return dev->kv_scratch +
               ((size_t)dev->segment_scratch[segment] * dev->scratch_pages + index - own) *
                   dev->layer_bytes;
    return cpu_cached_page(dev, s->pages[index], layer);
}

/* Floats that one block of a split tile with this many rows leaves for one kv head. */
static inline size_t attend_block_floats(const struct device *dev, uint32_t n_rows) {
    return align_up((size_t)n_rows * dev->group, 16) * (dev->head_pad + 2);
}

/* Note z [n], n <= GROUP: group number `group` of a logit row. */
static inline void cpu_note_maximum(const struct device *dev, uint32_t row, uint32_t group,
                                    const float *z, uint32_t n) {
    size_t to = (size_t)row * dev->maxima.n_groups + group;
    dev->maxima.at[to] = (uint8_t)dev->ops->maximum(z, n, &dev->maxima.most[to]);
}

/* 8-bit KV: the scales of K, or of V, in the memory of one kv head. */
static inline uint16_t *cpu_kv_scales(const struct device *dev, void *head, bool v) {
    return (uint16_t *)(void *)((char *)head + 2 * dev->value_bytes) + (v ? PAGE_TOKENS : 0);
}

/* ops_ref.c: cpu_ops' finish for n columns, and narrow in place. */
void cpu_finish_columns(float (*acc)[GROUP], uint32_t n_rows, uint32_t n, const float *bias,
                        bool add, float *y, size_t ldy);
void cpu_narrow(float *x, uint32_t first, uint32_t n, uint32_t n_steps, uint16_t *rows,
                uint32_t row);

/* weights.c */
int cpu_load(struct device *dev, enum weight which, uint32_t layer, const struct tensor *src,
             struct err *err);
int cpu_check_weights(const struct device *dev, struct err *err); /* none missing? */

/* device.c */
int cpu_open(const struct cpu_ops *ops, const struct model_shape *shape, uint32_t n_threads,
             struct device **out, struct err *err);
void cpu_close(struct device *dev);
size_t cpu_page_bytes(const struct device *dev, enum dtype kv_dtype);
size_t cpu_workspace_bytes(const struct device *dev, const struct device_limits *limits);
int cpu_reserve(struct device *dev, const struct device_limits *limits, struct err *err);
void cpu_slot_set(struct device *dev, uint32_t slot, const struct rules *rules);
void cpu_pages_clear(struct device *dev, const uint32_t *pages, uint32_t n_pages);
void cpu_page_copy(struct device *dev, uint32_t from, uint32_t to);
int cpu_read_logits(struct device *dev, uint32_t logit_row, float *out);
void cpu_work_ns(const struct device *dev, uint64_t ns[WORK_KINDS]);

/* rows.c */
int cpu_begin(struct device *dev, const struct forward *fwd);
int cpu_end(struct device *dev, struct outcome *out);

/* stages.c */
int cpu_embed(struct device *dev);
int cpu_qkv(struct device *dev, uint32_t layer);
int cpu_attend(struct device *dev, uint32_t layer);
int cpu_out_residual(struct device *dev, uint32_t layer);
int cpu_mlp(struct device *dev, uint32_t layer);
int cpu_lm_head(struct device *dev);

/* msar.c */
int cpu_msar_push(struct device *dev, uint32_t push);
int cpu_msar_read(struct device *dev, uint32_t branch);

/* msar_state.c; all of it does nothing in other models */
int cpu_msar_open(struct device *dev, struct err *err);
int cpu_msar_load(struct device *dev, enum weight which, uint32_t index, const struct tensor *src,
                  struct err *err);
void cpu_msar_cut(struct device *dev, const struct device_limits *limits, struct carve *c);
void cpu_msar_forget(struct device *dev, uint32_t slot); /* what its ring holds */
void cpu_msar_check_rows(const struct device *dev);      /* the rings hold what they will read */
void cpu_msar_enter(struct device *dev, uint32_t push);  /* base rows into the rings */
size_t cpu_snapshot_bytes(const struct device *dev);
void cpu_state_save(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot);
void cpu_state_load(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot);
void cpu_state_copy(struct device *dev, uint32_t from_slot, uint32_t to_slot);

/* draws.c */
int cpu_sample(struct device *dev);
int cpu_accept(struct device *dev);

#endif
