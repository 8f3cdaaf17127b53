/* runtime.h: what the host's part of the CUDA backend keeps beside struct device: the stream, memory
 * for weights, pinned buffers, the stages that wait to be queued, captured graphs, and what failed.
 * Private to kernels/cuda.
 *
 *   weights.c   host rows ─▶ staging (pinned, two halves) ─▶ slabs       while loading
 *   begin       plan ─▶ inbox (pinned, two) ─▶ device inbox              one copy a forward
 *   stages      a list; queued when something needs the work: `sample`, `end`, a read-back
 *   end         outcomes ─▶ pinned ─▶ caller                             the wait of a cycle */
#ifndef GERYON_CUDA_RUNTIME_H
#define GERYON_CUDA_RUNTIME_H

#include <cublas_v2.h>

#include "kernels/cuda/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GRAPHS = 64,     /* captured forwards that are kept, the least recently used makes room */
    GRAPH_ROWS = 256 /* rows of a forward that is worth a graph: more keep the device busy anyway */
};

enum stage_kind {
    STAGE_UNPACK,
    STAGE_EMBED,
    STAGE_QKV,
    STAGE_ATTEND,
    STAGE_OUT_RESIDUAL,
    STAGE_MLP,
    STAGE_MSAR_PUSH,
    STAGE_MSAR_READ,
    STAGE_LM_HEAD,
    STAGE_SAMPLE,
    STAGE_ACCEPT,
};
struct stage {
    enum stage_kind kind;
    uint32_t index; /* layer, push or branch */
};

/* A forward that has run: the second time its launches are captured. What it computes depends on its
 * stages and on the grid alone; everything else is read from device memory. */
struct graph {
    uint64_t stages; /* hash of the list; 0: free */
    uint32_t n_stages;
    bool drafting;
    struct grid grid;
    uint64_t used;        /* when last */
    cudaGraphExec_t exec; /* NULL: seen once */
};

struct pinned {
    char *data;
    cudaEvent_t copied; /* the last copy out of it */
    bool busy;          /* that copy may not be over */
};

/* Places in the stream where the forwards of a cycle begin and end, for their times. A forward begins
 * when its list is planned or, if that is later, when what was queued before is done. */
enum mark { MARK_DRAFT, MARK_DRAFTED, MARK_MAIN, MARK_ENDED, MARKS };

/* For tests. */
struct runtime_counts {
    uint64_t plain, captured, replayed; /* forwards, by how they were queued */
    uint64_t waits;                     /* for the stream */
};

struct runtime {
    cudaStream_t cu_stream;
    cublasHandle_t blas; /* NULL: no library products */

    bool failed;
    char fault[256];

    void **slabs; /* device memory */
    uint32_t n_slabs, slabs_cap;
    char *slab_at;                /* what is left of the one that small weights are cut from */
    size_t slab_left, slab_bytes; /* slab_bytes: what a new one has */
    struct pinned staging[2];
    size_t staging_bytes;
    uint32_t next_staging;
    struct pool *loaders; /* until reserve: threads that fill staging */
    bool *loaded;         /* [WEIGHT_END][most of a kind] */
    uint32_t loaded_stride;

    bool reserved;
    char *workspace;
    struct plan plan;
    struct inbox *inbox; /* device */
    struct pinned inboxes[2];
    uint32_t next_inbox;
    struct stage *stages;
    uint32_t n_stages, stages_cap;
    bool accepted;
    struct graph graphs[GRAPHS];
    uint64_t clock; /* counts forwards, for `used` */
    bool no_graphs;
    cudaEvent_t marks[MARKS];
    bool marked[MARKS];         /* in the cycle at hand */
    uint64_t draft_us, main_us; /* of the last one */

    struct gpu_slot *slots; /* pinned, [n_slots] */
    uint64_t *slot_waits;   /* counts.waits when a slot was last copied, plus 1 */
    struct outcome *outcomes;
    float *logits; /* pinned, [vocab] */
    struct runtime_counts counts;
};

/* ---- runtime.c -------------------------------------------------------------------------------- */

int gpu_open_runtime(struct device *dev, uint32_t n_threads, struct err *err);
/* What loading needed: its threads and its staging memory. */
void gpu_close_loading(struct device *dev);
void gpu_close_runtime(struct device *dev);

/* OK, or note what failed where (the first failure stays) and return ERR_DEVICE. */
int gpu_check(struct device *dev, cudaError_t error, const char *where);
/* The same for a person: ERR_NOMEM where memory ran out, which nothing else suffers from. */
int gpu_check_err(struct device *dev, cudaError_t error, const char *where, struct err *err);
const char *gpu_fault(const struct device *dev);
/* Wait for all that was queued. */
int gpu_wait(struct device *dev);

/* Zeroed device memory for weights, aligned to GPU_ALIGN; lives as long as the device. NULL with err set. */
void *gpu_weight_memory(struct device *dev, size_t bytes, struct err *err);
/* Staging memory that is free to fill (staging_bytes), and: its copies are queued. */
char *gpu_staging(struct device *dev, struct err *err);
int gpu_staged(struct device *dev, struct err *err);
/* Pinned memory to copy from: waits for the copy before. */
int gpu_pinned_take(struct device *dev, struct pinned *p);
int gpu_pinned_sent(struct device *dev, struct pinned *p);
int gpu_pinned_alloc(struct device *dev, struct pinned *p, size_t bytes, struct err *err);
void gpu_pinned_free(struct pinned *p);

/* ---- stages.c --------------------------------------------------------------------------------- */

/* Queue the stages that wait. */
int gpu_flush(struct device *dev);
void gpu_drop_graphs(struct device *dev);

/* ---- for tests -------------------------------------------------------------------------------- */

void gpu_use_graphs(struct device *dev, bool on);
struct runtime_counts gpu_counts(const struct device *dev);

/* ---- the rows of the table -------------------------------------------------------------------- */

/* device.c */
int gpu_open(const struct model_shape *shape, uint32_t n_threads, struct device **out,
             struct err *err);
void gpu_close(struct device *dev);
uint64_t gpu_memory_left(const struct device *dev);
size_t gpu_page_bytes(const struct device *dev, enum dtype kv_dtype);
size_t gpu_workspace_bytes(const struct device *dev, const struct device_limits *limits);
int gpu_reserve(struct device *dev, const struct device_limits *limits, struct err *err);
void gpu_slot_set(struct device *dev, uint32_t slot, const struct rules *rules);
void gpu_pages_clear(struct device *dev, const uint32_t *pages, uint32_t n_pages);
void gpu_copy_page(struct device *dev, uint32_t from, uint32_t to);
size_t gpu_snapshot_bytes(const struct device *dev);
void gpu_state_save(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot);
void gpu_state_load(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot);
void gpu_state_copy(struct device *dev, uint32_t from_slot, uint32_t to_slot);

/* weights.c */
int gpu_load(struct device *dev, enum weight which, uint32_t layer, const struct tensor *src,
             struct err *err);
int gpu_load_random(struct device *dev, enum weight which, uint32_t layer, enum dtype dtype,
                    uint64_t seed, float mean, float spread, struct err *err);
int gpu_check_weights(const struct device *dev, struct err *err); /* none missing? */
size_t gpu_weights_estimate(const struct model_shape *shape, enum dtype act);

/* stages.c */
int gpu_begin(struct device *dev, const struct forward *fwd);
int gpu_stage_embed(struct device *dev);
int gpu_stage_qkv(struct device *dev, uint32_t layer);
int gpu_stage_attend(struct device *dev, uint32_t layer);
int gpu_stage_out_residual(struct device *dev, uint32_t layer);
int gpu_stage_mlp(struct device *dev, uint32_t layer);
int gpu_stage_msar_push(struct device *dev, uint32_t push);
int gpu_stage_msar_read(struct device *dev, uint32_t branch);
int gpu_stage_lm_head(struct device *dev);
int gpu_stage_sample(struct device *dev);
int gpu_stage_accept(struct device *dev);
int gpu_end(struct device *dev, struct outcome *out);
void gpu_forward_us(const struct device *dev, uint64_t *draft_us, uint64_t *main_us);
int gpu_read_logits(struct device *dev, uint32_t logit_row, float *out);

#ifdef __cplusplus
}
#endif
#endif
