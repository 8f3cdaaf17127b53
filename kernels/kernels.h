/* kernels.h: the table of stages of a forward, and the plain data that crosses between the engine
 * and a backend. A backend owns every number: weights, KV pages, activations, sampling state. The
 * engine owns every decision: which rows run, which pages they use, what a request wants.
 *
 * The row is the one idea (design). A row is (sequence, position, token, view); a forward is a
 * ragged batch of rows. Rows that follow each other in one sequence and view are handed over as
 * one `segment`. Views:
 *
 *   view    projections             attends                              writes KV   logits
 *   base    q,k,v,o + base affine   last `window` positions (0: all)     yes         single stream
 *   output  q,o + output affine     all positions up to its own          no          Orthros models
 *   draft   *_diff                  all cached + its own block, both ways scratch    proposals
 *
 * A step of the engine is one cycle of at most two forwards on one device:
 *
 *   draft:  begin  embed  (qkv attend out_residual mlp) x layers  lm_head  sample
 *   main:   begin  embed  (qkv attend out_residual mlp) x layers  lm_head  accept   end
 *
 * In an MSAR model (n_msar_streams > 0) sources take the place of the residual x:
 *
 *   embed  msar_push 0  (msar_read 2i  qkv attend out_residual  msar_push 2i+1
 *                        msar_read 2i+1  mlp  msar_push 2i+2) x layers i  msar_read 2L  lm_head
 *
 * where the last msar_push is left out, since nothing reads it expanded.
 *
 * Nothing returns to the host between the two: proposals stay in the device's buffers and the main
 * forward's rows take their tokens from there (`segment.n_proposed`).
 *
 * Row invariance: what a row yields depends on its own sequence's tokens alone. Every reduction
 * has an order fixed by model shape and absolute position, whatever rows share the forward,
 * whatever the thread count. A row reads K and V as stored (rounded to the KV type), also its own.
 *
 * Threads: one thread at a time may use a device (the engine thread; during load the loader). */
#ifndef GERYON_KERNELS_H
#define GERYON_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PAGE_TOKENS = 16,  /* positions in one KV page */
    DRAFT_MAX = 64,    /* rows of a draft block at most; a cycle emits at most DRAFT_MAX tokens */
    MAX_END_IDS = 128, /* tokens that end a text: end-of-sequence and stop tokens together */
    MAX_BIAS = 1024,   /* ids that a request may bias */
    MAX_MSAR_STREAMS = 8,
};

/* ---- numbers ---------------------------------------------------------------------------------- */

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q8_0, /* blocks of 32: f16 scale d, 32 x int8 q;           w = d * q           (34 bytes) */
    DTYPE_Q4_0, /* blocks of 32: f16 scale d, 16 bytes of nibbles;   w = d * (q - 8)     (18 bytes) */
    DTYPE_Q4_1, /* blocks of 32: f16 d, f16 m, 16 bytes of nibbles;  w = d * q + m       (20 bytes) */
    /* nibble layout: byte i holds element i in its low and element i + 16 in its high half (GGUF) */

    /* The types below are only read: there is no dtype_from_f32 for them. Layouts: kernels/blocks.c.
     * Blocks of 256 (the "K" types) have scales of their own for every 32, q6_k for every 16. */
    DTYPE_Q5_0, /* blocks of 32: f16 d, 5 bits a number;    w = d * (q - 16)             (22 bytes) */
    DTYPE_Q5_1, /* blocks of 32: f16 d, f16 m, 5 bits;      w = d * q + m                (24 bytes) */
    DTYPE_Q4_K, /* blocks of 256: 4 bits;  w = d * scale * q - m * min, f16 d and m     (144 bytes) */
    DTYPE_Q5_K, /* blocks of 256: 5 bits;  the same                                     (176 bytes) */
    DTYPE_Q6_K, /* blocks of 256: 6 bits;  w = d * scale * (q - 32), f16 d, int8 scales (210 bytes) */
    DTYPE_COUNT
};

const char *dtype_name(enum dtype dtype); /* "f32", "f16", "bf16", "q8_0", "q4_0", .. "q6_k" */
/* The dtype of that name, or -1. */
int dtype_parse(const char *name);
/* Elements in one block: 1, 32 or 256. */
uint32_t dtype_block(enum dtype dtype);
/* Can dtype_from_f32 write it? */
bool dtype_narrows(enum dtype dtype);
/* Bytes of a row of n elements; n must be a multiple of dtype_block. */
size_t dtype_row_bytes(enum dtype dtype, size_t n);
/* Exact widening of n elements (a multiple of the block), and rounding to nearest even (blocks:
 * Q8_0 d = max|x| / 127; Q4_0 as GGUF quantises: the signed extreme maps to -8; Q4_1 from min and
 * max, scales rounded to f16 first so that the result is the best for the stored scale). */
void dtype_to_f32(enum dtype dtype, const void *src, size_t n, float *dst);
void dtype_from_f32(enum dtype dtype, const float *src, size_t n, void *dst);
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
static inline float bf16_to_f32(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t f32_to_bf16(float f); /* to nearest even; NaN stays NaN */

/* A weight in host memory, row-major [rows, cols]; a vector has rows = 1. Borrowed. */
struct tensor {
    enum dtype dtype;
    uint32_t rows, cols;
    const void *data;
};

/* ---- the model as a backend sees it ----------------------------------------------------------- */

enum weight {
    /* once a model (layer = 0) */
    WEIGHT_EMBED,   /* [vocab, d]; also the head when `tied_head` */
    WEIGHT_LM_HEAD, /* [vocab, d]; only when not tied */
    WEIGHT_FINAL_NORM,
    /* once a layer; matrices [out, in], vectors f32 */
    WEIGHT_ATTN_NORM,
    WEIGHT_MLP_NORM,
    WEIGHT_Q,
    WEIGHT_K,
    WEIGHT_V,
    WEIGHT_O,
    WEIGHT_Q_BIAS, /* biases: optional */
    WEIGHT_K_BIAS,
    WEIGHT_V_BIAS,
    WEIGHT_O_BIAS,
    WEIGHT_Q_NORM, /* [head_dim], optional (qwen3) */
    WEIGHT_K_NORM,
    WEIGHT_AFFINE_BASE_SCALE, /* [heads * head_dim] Orthros, optional: missing = identity */
    WEIGHT_AFFINE_BASE_SHIFT,
    WEIGHT_AFFINE_OUTPUT_SCALE,
    WEIGHT_AFFINE_OUTPUT_SHIFT,
    WEIGHT_GATE,
    WEIGHT_UP,
    WEIGHT_DOWN,
    WEIGHT_GATE_BIAS,
    WEIGHT_UP_BIAS,
    WEIGHT_DOWN_BIAS,
    WEIGHT_Q_DIFF, /* Orthrus: the draft view's own projections */
    WEIGHT_K_DIFF,
    WEIGHT_V_DIFF,
    WEIGHT_O_DIFF,
    WEIGHT_Q_DIFF_BIAS,
    WEIGHT_K_DIFF_BIAS,
    WEIGHT_V_DIFF_BIAS,
    WEIGHT_O_DIFF_BIAS,
    WEIGHT_Q_DIFF_NORM,
    WEIGHT_K_DIFF_NORM,
    WEIGHT_COUNT,
    /* MSAR, all handed over as f32. Their `layer` is an index of its own; R streams, N blocks. */
    WEIGHT_MSAR_CONV = WEIGHT_COUNT, /* s * (R - 1) + r - 1: [kernels[r], d] of source s = 0 .. N */
    WEIGHT_MSAR_QUERY,               /* branch l = 0 .. 2L - 1: [R, d] */
    WEIGHT_MSAR_MIX,                 /* branch: [R, R * d] */
    WEIGHT_MSAR_MIX_BIAS,            /* branch: [1, R] */
    WEIGHT_MSAR_MIX_SCALE,           /* branch: [1, 1] */
    WEIGHT_MSAR_READOUT,             /* 0: [1, d] */
    WEIGHT_END
};

/* How products with matrices are computed; one for all rows of a device. Each table has its own. */
enum activations {
    ACTIVATIONS_F32, /* float32 rows, weights as they are (cuda: widened to float32) */
    ACTIVATIONS_BF16, /* rows rounded to bf16, float32 sums; weights bf16 (cuda: or q8_0), or made so */
    ACTIVATIONS_INT8, /* rows quantised by blocks of 32, for matrices of blocks; others as f32 */
    ACTIVATIONS_COUNT
};
const char *activations_name(enum activations activations); /* "f32", "bf16", "int8" */

struct model_shape {
    uint32_t n_layers;
    uint32_t d_model;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim; /* even */
    uint32_t d_ff;
    uint32_t vocab_size; /* rows of the embedding; may exceed the tokenizer's count */
    float rms_eps;
    bool tied_head;
    bool orthros;            /* two streams: base rows write KV, output rows yield logits */
    uint32_t window;         /* Orthros: positions a base row attends, its own included; > 0 */
    uint32_t block_size;     /* Orthrus: largest draft block in rows, 0 = no draft view */
    int32_t mask_token;      /* Orthrus: the token of draft rows after the first */
    uint32_t n_msar_streams; /* MSAR residual path: streams R, 0 = plain additions */
    uint32_t msar_kernels[MAX_MSAR_STREAMS]; /* kappa_r; [0] = 1 */
    uint32_t msar_branches;                  /* S: branches of a block; a layer has two */
    uint32_t max_position;                   /* rows run at positions 0 .. max_position - 1 */
    const double *rope_freq; /* [head_dim / 2] angle per position; borrowed during open */
    double rope_scale;       /* multiplies cos and sin (yarn); 1 otherwise */
    enum activations activations;
    bool deterministic; /* no library products: every row count gives the same bits (cuda) */
    bool pin_threads;   /* each thread stays on a processor of its own (cpu) */
};

/* MSAR: the 2 n_layers branches (attention, MLP, attention, ...) stand in blocks of msar_branches,
 * the last of which may be shorter. Source 0 is the embedding, source n + 1 the running sum of block
 * n. This is the source that push number `push` fills; branch `push`, which follows, reads sources
 * 0 to this one (2 n_layers: the readout). */
static inline uint32_t msar_source(const struct model_shape *s, uint32_t push) {
    return push == 0 ? 0 : (push - 1) / s->msar_branches + 1;
}
/* Positions before a row that its expansions reach. */
static inline uint32_t msar_history(const struct model_shape *s) {
    uint32_t most = 1;
    for (uint32_t r = 0; r < s->n_msar_streams; r++)
        if (s->msar_kernels[r] > most) most = s->msar_kernels[r];
    return most - 1;
}
/* Positions that a sequence's ring holds: the last page border stays in reach behind max_proposed
 * proposals (of struct device_limits) that were refused. 0: nothing is ever read back. */
static inline uint32_t msar_ring_len(const struct model_shape *s, uint32_t max_proposed) {
    uint32_t history = msar_history(s);
    return history ? history + PAGE_TOKENS + max_proposed : 0;
}

/* ---- sampling --------------------------------------------------------------------------------- */

/* Added to the logit of one token. */
struct bias {
    int32_t id;
    float value; /* -INFINITY forbids it */
};

/* Rules from logits to a token; order and meaning: "From logits to text" in the README. Copied into
 * the device's slot by slot_set. */
struct rules {
    uint32_t n_bias;
    const struct bias *bias;   /* distinct ids < vocab; borrowed while the slot keeps the rules */
    float repetition;          /* 0 or 1 = off; every token of prompt or output */
    float frequency, presence; /* 0 = off; tokens of the output */
    float temperature;         /* < 1e-4: greedy */
    float top_p;               /* 0 .. 1; 0 keeps one token, 1 = off */
    float min_p;               /* 0 = off */
    uint32_t top_k;            /* 0 = off */
    bool seeded;   /* Gumbel coupling: the text never depends on drafts; else rejection sampling */
    uint64_t seed; /* always set: an unseeded request was given one from the system */
    uint32_t choice;     /* choice number within its prompt */
    uint32_t min_tokens; /* end_ids are masked at output positions < min_tokens */
    uint32_t n_end_ids;
    int32_t end_ids[MAX_END_IDS];
};

/* Purposes of a random draw: third word of the Philox counter. */
enum draw_purpose { DRAW_GUMBEL = 0, DRAW_ACCEPT = 1, DRAW_DRAFT = 2, DRAW_RESIDUAL = 3 };

/* ---- one forward ------------------------------------------------------------------------------ */

enum view { VIEW_BASE, VIEW_OUTPUT, VIEW_DRAFT };

enum pick {
    PICK_NONE,    /* nothing is sampled (prefill, or logits to be read back) */
    PICK_PROPOSE, /* draft rows: stage `sample` draws one proposal from each row with logits */
    PICK_ACCEPT,  /* main rows: stage `accept` verifies n_proposed proposals, then draws one more */
};

/* n_rows consecutive positions of one sequence in one view. Pointers stay valid until `end`. */
struct segment {
    uint32_t slot; /* device slot of the sequence, 0 .. n_slots - 1 */
    uint8_t view;  /* enum view */
    uint8_t pick;  /* enum pick */
    uint32_t pos;  /* position of the first row = number of positions before it in the KV */
    uint32_t n_rows;
    uint32_t n_proposed; /* the last n_proposed rows take their tokens from the slot's proposals */
    bool given; /* those proposals are in `tokens` instead ([n_rows] then), each certain: q = 1 */
    uint32_t n_logits;      /* rows that reach the lm_head: the last n_logits (draft: the first) */
    uint32_t out_pos;       /* output position that the first row with logits decides (0 = first) */
    uint32_t prompt_len;    /* tokens of the prompt: position = prompt_len + output position */
    const int32_t *tokens;  /* [n_rows - n_proposed], or given: [n_rows] */
    const int32_t *history; /* pick: the sequence's tokens so far, [prompt_len + out_pos] */
    const uint32_t
        *pages; /* block table: pages of positions 0 .. pos + n_rows - 1 (draft: .. pos - 1) */
};

/* Segments come grouped by view (base, then output; or all draft), at most one of each view a
 * slot. Base and output segments of a slot cover the positions of a verification together. Row
 * numbers count through the segments in order; so do logit rows (rows with logits). */
struct forward {
    uint32_t n_segments;
    const struct segment *segments;
};

/* What a cycle did to a slot, filled by `end` for every segment with PICK_ACCEPT, in order. */
struct outcome {
    uint32_t slot;
    int status;          /* OK, or ERR_INVALID: this sequence alone failed */
    uint32_t n_drafted;  /* proposals that the draft forward made for this cycle */
    uint32_t n_proposed; /* how many of them were verified: fewer before a limit or an end */
    uint32_t n_accepted; /* how many of them were kept */
    uint32_t n_tokens;   /* n_accepted + 1; n_accepted when `exhausted`, or its last ends */
    bool exhausted;      /* every token was masked at the last place: the text ends */
    int32_t proposed[DRAFT_MAX]; /* [n_drafted] */
    int32_t tokens[DRAFT_MAX];   /* [n_tokens] */
};

/* ---- the table -------------------------------------------------------------------------------- */

struct device; /* opaque; each backend has its own */
struct meter;  /* the same */

struct device_limits {
    enum dtype
        kv_dtype;      /* DTYPE_F32, DTYPE_BF16; DTYPE_Q8_0: int8, one f16 scale a head's vector */
    uint32_t n_pages;  /* KV pages, all layers of PAGE_TOKENS positions in each */
    uint32_t n_slots;  /* sequences that run at once */
    uint32_t max_rows; /* rows of one forward */
    uint32_t max_logit_rows; /* rows with logits of one forward */
    uint32_t n_snapshots;    /* of a sequence's state beyond its KV (MSAR); 0 = none are taken */
    uint32_t max_proposed;   /* proposals of a verification, drawn or given, < DRAFT_MAX */
};

/* What stages spend their time with. */
enum stage_work {
    WORK_PRODUCTS,  /* rows times matrices, with what is done to their results while in cache */
    WORK_ATTENTION, /* over KV pages */
    WORK_ROWS,      /* the rest of a forward: embed, norms, RoPE and KV writes, MSAR */
    WORK_SAMPLING,  /* from logits to tokens */
    WORK_KINDS
};

struct kernels {
    const char *name;     /* "ref", "avx2", "avx512", "amx", "cuda", "scripted" */
    unsigned activations; /* bits 1 << enum activations: what this table computes with */

    /* A device for this model; n_threads includes the caller's. */
    int (*open)(const struct model_shape *shape, uint32_t n_threads, struct device **out,
                struct err *err);
    void (*close)(struct device *dev); /* NULL is fine */

    /* Copy one weight in, repacked as the backend likes. Matrices: any dtype; vectors: f32. */
    int (*load)(struct device *dev, enum weight which, uint32_t layer, const struct tensor *src,
                struct err *err);
    /* The same with random numbers made on the device, uniform in mean +- spread, for benches; NULL
     * where the host makes them. */
    int (*load_random)(struct device *dev, enum weight which, uint32_t layer, enum dtype dtype,
                       uint64_t seed, float mean, float spread, struct err *err);
    /* Bytes of device memory that are left now for pages and workspace; NULL: it is the host's. */
    uint64_t (*memory_left)(const struct device *dev);
    /* Bytes of KV memory that one page takes. */
    size_t (*page_bytes)(const struct device *dev, enum dtype kv_dtype);
    /* Bytes of workspace that these limits need, KV pages not counted. */
    size_t (*workspace_bytes)(const struct device *dev, const struct device_limits *limits);
    /* After all weights: check that none is missing, allocate KV and workspace. Once. */
    int (*reserve)(struct device *dev, const struct device_limits *limits, struct err *err);

    /* Sampling rules of the sequence that takes the slot. What the slot's ring holds is forgotten, so
     * state_load and state_copy come after it. */
    void (*slot_set)(struct device *dev, uint32_t slot, const struct rules *rules);
    /* Forget what pages held (a stale page may hold NaN); copy one page (copy on write). */
    void (*pages_clear)(struct device *dev, const uint32_t *pages, uint32_t n_pages);
    void (*page_copy)(struct device *dev, uint32_t from, uint32_t to);

    /* What a sequence keeps beyond its KV: in an MSAR model the source vectors of its last positions,
     * a ring in its slot, indexed by position. The ring reaches back over the last
     * max(kernels) - 1 + 16 + max_proposed positions that were ever run, so a snapshot may be taken
     * at the last page border at or below the positions kept. A snapshot at `pos` holds what
     * rows at pos and beyond need of the positions before it. All no-ops in other models. */
    size_t (*snapshot_bytes)(const struct device *dev); /* 0: the model has no such state */
    void (*state_save)(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot);
    void (*state_load)(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot);
    /* All of one slot's ring to another: two texts that share their positions so far. */
    void (*state_copy)(struct device *dev, uint32_t from_slot, uint32_t to_slot);

    /* The stages. u = RMSNorm(x; g) = g * x / sqrt(mean(x^2) + eps). */

    /* Take the row list; rows, pages and limits are checked by ASSERT. */
    int (*begin)(struct device *dev, const struct forward *fwd);
    /* x[row] = embed[token]. */
    int (*embed)(struct device *dev);
    /* u = RMSNorm(x; attn_norm); q = W_q u + b_q, affine of the view, per-head norm, RoPE; base and
     * draft rows: k, v alike (no affine); base rows store k, v into their page, draft rows into
     * scratch. Output rows compute q alone. */
    int (*qkv)(struct device *dev, uint32_t layer);
    /* o[row, h] = sum_t softmax_t(q[row, h] . k[t, g] / sqrt(head_dim)) v[t, g], g = h / (H / G),
     * t over what the view attends. Blocks at absolute multiples of 128 positions, merged in
     * ascending order (online softmax: Milakov & Gimelshein 2018). */
    int (*attend)(struct device *dev, uint32_t layer);
    /* x += W_o o + b_o (draft rows: W_o_diff). */
    int (*out_residual)(struct device *dev, uint32_t layer);
    /* u = RMSNorm(x; mlp_norm); x += W_down(silu(W_gate u + b) * (W_up u + b)) + b. */
    int (*mlp)(struct device *dev, uint32_t layer);
    /* MSAR ("MSAR residual path" in the README): source number `push` of each row is done, x after
     * `embed` (0) or the running sum of its block after branch push - 1. Its expansions v^(r) over
     * the positions before it are computed, from rows of this forward and from the ring; base rows
     * then enter the ring. At a block's first branch the running sum starts from zero. */
    int (*msar_push)(struct device *dev, uint32_t push);
    /* x = what branch `branch` reads: per stream a softmax over the sources, then the sigmoid mix.
     * out_residual and mlp then add to the running sum instead of x. branch 2L: the readout. */
    int (*msar_read)(struct device *dev, uint32_t branch);
    /* logits = W_lm RMSNorm(x; final_norm), rows with logits only. */
    int (*lm_head)(struct device *dev);
    /* Draft forward: draw the proposals of every PICK_PROPOSE segment into its slot. */
    int (*sample)(struct device *dev);
    /* Main forward: verify and draw for every PICK_ACCEPT segment. */
    int (*accept)(struct device *dev);
    /* The one read-back of a cycle: outcomes of the PICK_ACCEPT segments in order. */
    int (*end)(struct device *dev, struct outcome *out);
    /* After `end`: microseconds that the draft and the main forward of its cycle took, 0 where there was
     * none. NULL: stages are done when they return, so the caller's clock tells. */
    void (*forward_us)(const struct device *dev, uint64_t *draft_us, uint64_t *main_us);

    /* Nanoseconds that stages have taken so far, by what they do; waits for threads are a part of it.
     * NULL: the table does not know. */
    void (*work_ns)(const struct device *dev, uint64_t ns[WORK_KINDS]);

    /* Tests and `geryon logits`: one logit row of the last forward, [vocab] into out. */
    int (*read_logits)(struct device *dev, uint32_t logit_row, float *out);

    /* After a stage that returned ERR_DEVICE: what failed, for a person; lives as long as the device.
     * NULL: this table's stages cannot fail. */
    const char *(*fault)(const struct device *dev);
    /* What the table computes on, as its maker calls it, e.g. "NVIDIA H200", into out[cap]. NULL: on the
     * host's processor. */
    void (*hardware)(char *out, size_t cap);
    /* What the hardware reaches at best (CPU: on n_threads threads): bytes a second read from memory (a
     * buffer larger than the caches) and operations a second (a multiply-add is two) in the products of
     * weights with these activations in this table's instructions; for int8, weights of blocks. Takes
     * some tenths of a second. ERR_NOMEM, ERR_DEVICE, or ERR_IO when the system gives no threads. */
    int (*peaks)(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                 double *flops_per_s, struct err *err);
    /* The rate of memory at a moment: where others share it, it may be half the best or all of it from
     * one second to the next. A meter keeps its buffer and threads; a rate takes some milliseconds. All
     * three are NULL where memory is the device's own. */
    int (*meter_open)(uint32_t n_threads, struct meter **out, struct err *err); /* as peaks */
    double (*meter_rate)(struct meter *meter); /* bytes a second that n_threads threads read */
    void (*meter_close)(struct meter *meter);  /* NULL is fine */
};

/* Tables of this machine; NULL where the processor or the build lacks it. */
const struct kernels *kernels_ref(void);
const struct kernels *kernels_avx2(void);
const struct kernels *kernels_avx512(void);
const struct kernels *kernels_amx(void);
/* NULL with err set: why this build or machine has none ("built without CUDA", what the driver says). */
const struct kernels *kernels_cuda(struct err *err);
/* The CPU table called name ("auto": the fastest here), or NULL with err set. */
const struct kernels *kernels_find(const char *name, struct err *err);

/* ---- sampling on the host, shared by CPU tables and the scripted one --------------------------- */

/* Philox4x32-10 (Salmon et al. 2011): 4 words for a 64-bit key and a 128-bit counter. */
void philox4x32(const uint32_t counter[4], uint64_t key, uint32_t out[4]);
/* Gumbel noise of one 32-bit word, float32, always finite: v = min((x + 0.5) 2^-32, 1 - 2^-24),
 * g = -log(-log1p(-v)). */
float gumbel_noise(uint32_t word);

/* The text before a row: prompt, output, then proposals that count as output. The row decides output
 * position n_tokens - n_prompt + n_drafted. */
struct history {
    const int32_t *tokens; /* [n_tokens], ids < vocab; read only where rules count */
    uint32_t n_prompt, n_tokens;
    const int32_t *drafted; /* [n_drafted] */
    uint32_t n_drafted;
};

/* What lies before the first row with logits of a segment with a pick. */
static inline struct history segment_history(const struct segment *s) {
    struct history history = {s->history, s->prompt_len, s->prompt_len + s->out_pos, NULL, 0};
    return history;
}

/* Scratch of one sampling call, all [vocab]; made by the caller once, `counts` zeroed. */
struct sample_scratch {
    uint32_t vocab;
    float *probs;      /* target distribution p */
    float *draft;      /* proposal distribution q */
    uint32_t *ids;     /* sorting space */
    uint32_t *counts;  /* by id: 0 between calls and for tokens never seen, else 1 + its outputs */
    uint32_t *counted; /* the ids seen, [n_counted] */
    uint32_t n_counted;
};

/* Steps 2 to 10 and the draw (step 11) for the row after `history`: logits [vocab] are read only.
 * Returns the token, or -1 when every token is masked. For an unseeded draft row (`purpose`
 * DRAW_DRAFT) the noise is its own; seeded rows, draft and target, share DRAW_GUMBEL. */
int32_t sample_token(const struct rules *rules, const float *logits, const struct history *history,
                     enum draw_purpose purpose, struct sample_scratch *scratch);

/* Proposals from n_rows draft rows, logits [n_rows][vocab], the first after `history`: drawn left
 * to right, each with its predecessors counted, until a row is masked altogether. Returns how many. */
uint32_t sample_propose(const struct rules *rules, const float *logits, uint32_t n_rows,
                        const struct history *history, struct sample_scratch *scratch,
                        int32_t *proposals);

/* Verify n_draft proposals against target logits [n_draft + 1][vocab], the first row after
 * `history`, row i with the first i proposals counted, and fill out (all fields but slot, status;
 * n_drafted = n_draft). Greedy or seeded: keep while equal to the target's own draw. Otherwise
 * rejection sampling: keep d with probability min(1, p(d) / q(d)), on refusal draw from
 * normalise(max(p - q, 0)). draft_logits [n_draft][vocab] give q; NULL: q = 1 at the proposal (a
 * source without a distribution). Nothing is verified or drawn after an end id that was kept: then
 * n_tokens = n_proposed = n_accepted. Each token costs one row, and so does being exhausted: no row
 * beyond those is read. */
void sample_accept(const struct rules *rules, const int32_t *draft, uint32_t n_draft,
                   const float *target_logits, const float *draft_logits,
                   const struct history *history, struct sample_scratch *scratch,
                   struct outcome *out);

/* Is each row's token the argmax of its logits, from output position out_pos on, whatever the text
 * before it? Then the logits need not be read again by who knows their argmax: */
bool sample_is_argmax(const struct rules *rules, uint32_t out_pos);
/* sample_accept where that is so, best [n_draft + 1]: the argmax of each row. */
void sample_accept_argmax(const struct rules *rules, const int32_t *draft, uint32_t n_draft,
                          const int32_t *best, struct outcome *out);

#ifdef __cplusplus
}
#endif
#endif
