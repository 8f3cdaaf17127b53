/* cuda.h: the device of the CUDA backend: what lies where in its memory, and the launchers of its
 * kernels. Private to kernels/cuda; C for the host's part (*.c), CUDA C for the kernels (*.cu).
 *
 * The host's part plans a forward (plan.c), the stages queue kernels (stages.c), and everything
 * runs in one stream in the order it was queued. The host waits in `end` alone, for the outcomes.
 *
 *   begin    rows, tiles and items are made on the host, packed into the pinned inbox and copied;
 *            a kernel (unpack) spreads them over the arrays of struct batch, whose addresses never
 *            change, and fetches the tokens of proposed rows from the slots
 *   stages   read all counts from device memory (batch.counts): a captured graph serves every forward
 *            of its bucket; grids are made for struct grid, blocks beyond the counts return
 *   end      outcomes come back; the one synchronisation of a cycle
 *
 * Numbers. The residual x, q/k/v before the heads kernel, logits and all of MSAR are float32. `act`
 * is the type of what goes into products: f32 (ACTIVATIONS_F32: weights widened to f32, plain FMA) or
 * bf16 (ACTIVATIONS_BF16: weights bf16 or q8_0, tensor cores, float32 sums). A row of n numbers lies
 * in align_up(n, GPU_GROUP) elements whose padding holds zeros; logits alone have no padding.
 *
 * KV memory   [page][layer][kv head][ K: PAGE_TOKENS x ep | V: PAGE_TOKENS x ep | scales ]
 * scratch KV  [draft segment][page][kv head][ K | V | scales ]     of the layer being computed
 *
 * with ep = head_dim rounded up to 16 (padding zero), a position's vector contiguous. 8-bit KV: int8,
 * then f16 scales, PAGE_TOKENS of K and as many of V; d = max |x| / 127 rounded to f16 (65504 at
 * most), x = d * q, q = x / d rounded to nearest even within +-127; a vector that is not finite: d
 * = NaN and q = 0. A draft block at positions pos .. pos + n - 1 lies in scratch pages whose first
 * begins at the page border at or below pos, and what the cache holds of that page is copied in front.
 *
 * Reduction orders (row invariance; nothing here depends on the rows that share a forward):
 *
 *   products   K is cut into GEMM_QUARTERS runs at multiples of 32 by gemm_quarter(); each is one chain
 *              in ascending K, the runs are added in order. bf16: within a chunk of 32 the first mma
 *              takes elements 8t .. 8t+3 of lane t, the second 8t+4 .. 8t+7, so that a lane reads
 *              16 contiguous bytes; weights are the A operand. The same for every row count, by the
 *              streaming kernels (few rows) and the tiled one (many). q8_0: integers as bf16, exact;
 *              each chunk of 32 is summed from zero and enters its chain times its scale.
 *   attention  softmax tiles of KV_TILE positions, splits of SPLIT positions, both at absolute
 *              multiples. A split starts from nothing and goes through its tiles (online softmax);
 *              splits merge in ascending order, whether from parts in memory (few rows, long texts) or
 *              in registers (many rows).
 *   norms      one warp or block a row, by the row's length alone. */
#ifndef GERYON_CUDA_CUDA_H
#define GERYON_CUDA_CUDA_H

#include <cuda_runtime.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GPU_GROUP = 32,      /* elements that rows of activations and of weights are padded to */
    GPU_ALIGN = 256,     /* bytes; every array begins at a multiple */
    GEMM_QUARTERS = 4,   /* chains that K is cut into */
    WEIGHT_ROWS = 16,    /* rows of a matrix are padded to a multiple, with zeros */
    SPLIT = 256,         /* positions of an attention split */
    KV_TILE = 64,        /* positions of a softmax tile */
    QUERY_TILE = 64,     /* query rows (row x head of the group) of a tile at most */
    ATTEND_KINDS = 3,    /* tiles of up to 16, 32, 64 query rows */
    SAMPLE_BLOCKS = 256, /* blocks of a sampling kernel at most: each has scratch of its own */
    GPU_NONE = -1,
};

/* First k of quarter i of a chain over k: multiples of 32; [i] .. [i + 1] may be empty. */
static inline uint32_t gemm_quarter(uint32_t k, uint32_t i) {
    uint32_t quarter = (uint32_t)align_up(div_ceil(k, GEMM_QUARTERS), 32), at = quarter * i;
    return at < k ? at : k;
}

/* ---- weights ---------------------------------------------------------------------------------- */

/* Row-major [rows, cols] of `dtype` f32, bf16 or q8_0; each row has `ld` = align_up(cols, 32)
 * elements, padding zero, and there are align_up(rows, WEIGHT_ROWS) rows, padding zero. q8_0: data is
 * int8, scales float [padded rows][ld / 32]. Some matrices are kept together as one:
 *
 *   qkv       [ q | k | v ] below each other; so q_diff k_diff v_diff. n_heads * head_dim and n_kv_heads
 *             * head_dim rows, each part padded to a multiple of WEIGHT_ROWS
 *   gate_up   8 rows of gate, 8 of up, and so on (d_ff padded to a multiple of 8): lanes that hold a
 *             gate in an mma's result hold its up */
struct matrix {
    void *data; /* device; NULL: the model has none */
    float *scales;
    enum dtype dtype;
    uint32_t rows, cols; /* of all parts, with the padding between them */
    uint32_t ld;
};

/* Vectors are float32, padded with zeros to a multiple of 32; NULL: the model has none. */
struct layer {
    struct matrix qkv, o, qkv_diff, o_diff, gate_up, down;
    const float *attn_norm, *mlp_norm;
    const float *qkv_bias, *qkv_diff_bias; /* in the rows of their matrix; missing parts zero */
    const float *o_bias, *o_diff_bias, *gate_up_bias, *down_bias;
    const float *q_norm, *k_norm, *q_diff_norm, *k_diff_norm;
    const float *base_scale, *base_shift, *output_scale, *output_shift; /* [n_heads * head_dim] */
};

/* ---- a forward -------------------------------------------------------------------------------- */

struct counts {
    uint32_t n_rows, n_kv_rows; /* rows that make K and V come first */
    uint32_t n_logit_rows;
    uint32_t n_segments;
    uint32_t n_tiles;
    uint32_t n_items[ATTEND_KINDS]; /* items come kind by kind */
    uint32_t n_merges;              /* query rows (row x all heads) that are merged from parts */
    uint32_t n_accept;              /* segments with PICK_ACCEPT */
    uint32_t n_propose;             /* logit rows of segments with PICK_PROPOSE */
};

struct row {
    int32_t token;
    uint32_t pos, segment, slot;
    uint32_t lo, hi;  /* attends lo .. hi - 1 */
    uint32_t view;    /* enum view */
    uint32_t kv_page; /* base: page; draft: scratch page; output: unused */
};

struct seg {
    uint32_t slot, view, pick;
    uint32_t pos, n_rows, n_proposed, given;
    uint32_t first_row, first_logit, n_logits;
    uint32_t out_pos, prompt_len;
    uint32_t pages,
        n_pages;      /* its block table: batch.pages[pages .. + n_pages] (draft: cached ones) */
    uint32_t scratch; /* draft: its first scratch page */
    uint32_t tokens;  /* given: batch.tokens[tokens ..], [n_proposed] */
    uint32_t history; /* rules that count: batch.tokens[history .. + prompt_len + out_pos] */
    uint32_t outcome; /* PICK_ACCEPT: its place among the outcomes */
    int32_t own;      /* segment of the slot's rows that a row's MSAR history lies in: its own,
                              * for output rows the base rows; GPU_NONE: it has none (ring only) */
};

/* Rows of one slot that attend together; [first, first + n_rows) of batch.order. */
struct tile {
    uint32_t first, n_rows;
    uint32_t segment; /* whose block table reaches farthest */
    uint32_t lo, hi;  /* positions that some row of it attends */
};

/* What one block of attention does (for each kv head): a tile over the splits [split, split_end). */
struct item {
    uint32_t tile, split, split_end;
    int32_t
        part; /* GPU_NONE: all splits of the tile, merged in registers, the result into o. Else one
                   * split, its part into part rows part .. part + n_rows * group - 1 */
};

/* Row `row` is merged from the parts of its tile: query row (row, head h of the group) of split
 * first_split + i is part row part + i * stride + h; splits outside its span hold total 0. */
struct merge {
    uint32_t row, part, stride, n_splits;
};

/* Arrays of the forward at hand, in device memory, at addresses that never change. */
struct batch {
    struct counts *counts;
    struct row *rows;         /* [max_rows] */
    struct seg *segments;     /* [2 n_slots] */
    uint32_t *order;          /* [max_rows] rows, tile by tile */
    struct tile *tiles;       /* [max_rows] */
    struct item *items;       /* [max_items] */
    struct merge *merges;     /* [max_rows] */
    uint32_t *logit_rows;     /* [max_logit_rows]: its row */
    uint32_t *logit_segments; /* [max_logit_rows]: its segment */
    uint32_t *pages;          /* [max_pages] block tables of all segments */
    int32_t *tokens;          /* [max_tokens] given proposals and histories */
};

/* What launches are sized for: upper bounds of the counts (a graph: of its bucket). */
struct grid {
    uint32_t rows, kv_rows, logit_rows, segments, items[ATTEND_KINDS], merges, accept, propose;
    uint32_t draft_segments; /* 0 in a main forward */
};

/* ---- sampling --------------------------------------------------------------------------------- */

struct gpu_slot {
    float repetition, frequency, presence, temperature, top_p, min_p;
    uint32_t top_k, seeded, choice, min_tokens, n_end_ids, n_bias;
    uint64_t seed;
    int32_t end_ids[MAX_END_IDS];
    struct bias bias[MAX_BIAS];
    /* of the cycle at hand */
    uint32_t n_asked, n_proposals;
    uint32_t draft_logits; /* first of their rows in draft_logits */
    int32_t proposals[DRAFT_MAX];
};

/* ---- the device ------------------------------------------------------------------------------- */

struct gpu_msar {
    uint32_t n_pushes, n_sources, history, ring_len;
    const float *
        *weights[WEIGHT_END - WEIGHT_MSAR_CONV]; /* host arrays of device vectors, rows padded */
    uint32_t n_weights[WEIGHT_END - WEIGHT_MSAR_CONV];
    float *views;     /* [n_sources][R][max_rows][ld_model] */
    float *inverse;   /* [n_sources][R][max_rows]: 1 / sqrt(mean(view^2) + eps) */
    float *z;         /* [max_rows][R][ld_model] */
    float *gates;     /* [max_rows][R][R + 1]: what stream r adds to each gate, then its squares */
    float *rings;     /* [n_slots][ring_len][n_pushes][ld_model], place = position mod ring_len */
    float *snapshots; /* [n_snapshots][history][n_pushes][ld_model] */
};

struct runtime; /* runtime.c: staging, graphs, events, library handles, what failed */

struct device {
    struct model_shape shape;               /* rope_freq NULL */
    enum dtype act;                         /* f32, bf16 */
    uint32_t group;                         /* query heads of a kv head; at most QUERY_TILE */
    uint32_t head_pad;                      /* ep */
    uint32_t tile_rows;                     /* QUERY_TILE / group */
    uint32_t ld_model, ld_q, ld_ff, ld_qkv; /* padded row lengths; ld_qkv: rows of the qkv matrix */
    uint32_t k_at, v_at;                    /* first row of k, of v in the qkv matrix */
    uint32_t n_sms;                         /* multiprocessors */
    int sm;                                 /* compute capability, 80 .. */
    float *cosines, *sines;                 /* [max_position][head_dim / 2] */
    struct matrix embed, lm_head;           /* tied: lm_head is embed */
    const float *final_norm;
    struct layer *layers; /* host array [n_layers] */

    struct device_limits limits;
    size_t value_bytes, head_bytes, layer_bytes, page_bytes; /* of KV memory */
    uint32_t scratch_pages;                                  /* pages of one draft block */
    char *kv, *kv_scratch;
    uint32_t max_items, max_pages, max_tokens, max_part_rows;

    struct batch batch;
    struct grid grid;
    bool drafting;

    float *x;    /* [max_rows][ld_model] */
    void *u;     /* act, [max_rows or more logit rows][ld_model] */
    float *qkv;  /* [max_rows][ld_qkv]: products before the heads kernel */
    void *q, *o; /* act, [max_rows][ld_q] */
    void *gate;  /* act, [max_rows][ld_ff]: silu(gate) * up */
    float *wide; /* library products of gate_up: [chunk rows][2 ld_ff]; NULL when never used */
    float *logits, *draft_logits; /* [max_logit_rows][vocab] */
    float *last_logits;           /* the one that the last forward writes */
    float *parts;                 /* [max_part_rows][n_kv_heads][ep]: sums, not divided */
    float *part_stats;            /* [max_part_rows][n_kv_heads][2]: maximum, total */
    struct gpu_slot *slots;       /* [n_slots] */
    struct outcome *outcomes;     /* [n_slots] */
    float *scores;                /* [SAMPLE_BLOCKS][2][vocab] */
    uint32_t *seen;               /* [n_slots][vocab]: zero between stages (sample.cu) */
    struct draw *draws;           /* [max_logit_rows] (sample.cu) */
    struct gpu_msar msar;

    struct runtime *runtime;
};

struct draw; /* what a row with logits decided: sample.cu */
size_t gpu_draw_bytes(void);

/* ---- launchers -------------------------------------------------------------------------------- */

/* Each queues kernels in `stream` and returns the first error of a launch. Pointers are device memory
 * unless said. They read dev on the host and batch.counts on the device. */

/* begin.cu. packed: struct inbox (plan.h) in device memory. Spreads it over the batch's arrays, and
 * sets the tokens of rows that take theirs from their slot's proposals; a proposal that was never
 * drawn: token 0. */
struct inbox;
cudaError_t gpu_unpack(const struct device *dev, const struct inbox *packed, cudaStream_t stream);

/* rows.cu. */
/* residual[row] = embed[token], widened. */
cudaError_t gpu_embed(const struct device *dev, float *residual, cudaStream_t stream);
/* u[i] = RMSNorm(x[row]; g) as act; logit_rows: i counts rows with logits, else all rows. */
cudaError_t gpu_norm(const struct device *dev, const float *g, bool logit_rows,
                     cudaStream_t stream);
/* qkv rows (bias is in them already) to q (act, not scaled) and into the KV pages: affine of the view,
 * per-head norm, RoPE; k, v rounded to the KV type. In a draft forward the first scratch page of each
 * block is begun with what the cache holds. One warp a (row, head). */
cudaError_t gpu_heads(const struct device *dev, uint32_t layer, cudaStream_t stream);
cudaError_t gpu_page_copy(const struct device *dev, uint32_t from, uint32_t to,
                          cudaStream_t stream);
/* Random numbers, uniform in mean +- spread, a function of (seed, index) alone: n f32 numbers; or a
 * matrix's padded rows (its padding zero). */
cudaError_t gpu_random_vector(float *out, uint32_t n, uint64_t seed, float mean, float spread,
                              cudaStream_t stream);
cudaError_t gpu_random_matrix(const struct matrix *m, uint32_t row0, uint32_t n_rows, uint64_t seed,
                              float mean, float spread, cudaStream_t stream);

/* gemm.cu. */
enum gemm_out {
    GEMM_STORE, /* y = W x + bias, float32 */
    GEMM_ADD,   /* y += W x + bias, float32 */
    GEMM_SILU,  /* w is gate_up: y = silu(gate) * up of act, [.., ld_ff], padding zeros */
};
struct gemm_call {
    const struct matrix *w;
    const float *bias; /* [w->rows] or NULL */
    const void *x;     /* act, stride ldx elements, padding zero; max_rows of them may be read */
    uint32_t ldx;
    void *y;
    uint32_t ldy; /* elements */
    enum gemm_out out;
    uint32_t n_out;              /* columns of y that are written: <= w->rows */
    uint32_t max_rows;           /* the grid's */
    const uint32_t *n_rows;      /* device: rows there are */
    uint32_t tail;               /* columns from here on ... */
    const uint32_t *n_tail_rows; /* ... only of so many rows (device; NULL: of all) */
};
cudaError_t gpu_gemm(const struct device *dev, const struct gemm_call *call, cudaStream_t stream);
/* What a library product of gate_up leaves: rows row0 .. of y = silu(gate) * up, bias added, from wide
 * [n_rows][w->rows]. */
cudaError_t gpu_silu(const struct device *dev, const struct gemm_call *call, const float *wide,
                     uint32_t row0, uint32_t n_rows, cudaStream_t stream);
/* What a library product leaves out: y += bias where the product writes y, of n_rows rows at most. */
cudaError_t gpu_bias(const struct gemm_call *call, uint32_t n_rows, cudaStream_t stream);

/* attend.cu: o = attention of q over the pages, for all items, then the merges. */
cudaError_t gpu_attend(const struct device *dev, uint32_t layer, cudaStream_t stream);
/* Once, at reserve: opt in to the shared memory that its kernels want; false: head_dim too large. */
bool gpu_attend_fits(const struct device *dev);

/* msar.cu: as kernels/cpu/msar.c says, float32. */
cudaError_t gpu_msar_push(const struct device *dev, uint32_t push, cudaStream_t stream);
cudaError_t gpu_msar_read(const struct device *dev, uint32_t branch, cudaStream_t stream);
/* Base rows enter the rings in gpu_msar_read, which follows each push and has the vectors at hand; so do
 * the norms of what was pushed. State: positions pos - n .. pos - 1 to a snapshot, or from it. */
cudaError_t gpu_msar_save(const struct device *dev, uint32_t slot, uint32_t pos, uint32_t n,
                          uint32_t snapshot, bool load, cudaStream_t stream);
cudaError_t gpu_msar_copy(const struct device *dev, uint32_t from_slot, uint32_t to_slot,
                          cudaStream_t stream);

/* sample.cu: stages `sample` and `accept`. */
cudaError_t gpu_sample(const struct device *dev, cudaStream_t stream);
cudaError_t gpu_accept(const struct device *dev, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
