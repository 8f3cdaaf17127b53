/* kernels_rows.c: what is done to rows outside the products, by the table's operations.
 *
 *   rows   silu_mul, rmsnorm                  of float32
 *          step_sums, quantise, narrow        a row made ready for its matrix
 *          store                              rope of 9 query and 3 key heads, K and V into a page
 *          embed                              a token's row of the embedding, widened
 *   msar   dots, weighted_sum, expand         of 4 or 16 vectors of 576, which are the row's own
 *
 * Bytes are what an operation reads and writes of its rows, though rows of a step are often in a cache:
 * a share above 100 % of memory says so. What all rows share (a norm's factors) is not counted. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/bench/kernels.h"

enum {
    VECTORS_MAX = 16,
    TOKEN_STEP = 12289, /* prime: rows of a call and of the next lie far apart */
};

/* `n_rows` rows of n numbers. silu_mul overwrites its gate y, over and over: with up = 1 + exp(-y) and
 * y between -1 and -1/2 the gate is what comes out, and stays so. */
struct row_op {
    struct device *dev;
    uint32_t n_rows, n, n_vectors;
    uint32_t token;   /* of the last row embedded in the call before */
    float *x, *y;     /* [rows][D_FF] */
    float *vectors;   /* msar: [VECTORS_MAX][rows][D_MODEL] */
    float *factors;   /* msar: [VECTORS_MAX][D_MODEL] */
    uint16_t *narrow; /* [rows, up to a multiple of ROW_TILE][D_FF] */
    struct int8_step *int8;
    void (*fn)(struct row_op *op, uint32_t row);
};

/* ---- on the pool ------------------------------------------------------------------------------- */

static void row_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    struct row_op *op = arg;
    uint32_t end = (task + 1) * TASK_ROWS < op->n_rows ? (task + 1) * TASK_ROWS : op->n_rows;
    for (uint32_t row = task * TASK_ROWS; row < end; row++)
        op->fn(op, row);
}

static void call_row_op(void *arg, uint32_t part) {
    (void)part;
    struct row_op *op = arg;
    pool_run(op->dev->pool, row_task, op, (uint32_t)div_ceil(op->n_rows, TASK_ROWS));
    op->token = (op->token + op->n_rows * TOKEN_STEP) % VOCAB;
}

/* What an operation costs for one row. */
struct row_cost {
    const char *name, *dtype;
    void (*fn)(struct row_op *op, uint32_t row);
    uint32_t n;
    double bytes, flops; /* an exponential counts as one */
};

static void row_lines(struct bench *b, struct row_op *op, const struct row_cost *cost) {
    for (uint32_t i = 0; i < b->plan->rows.n; i++) {
        struct result r = {
            .group = cost->name, .dtype = cost->dtype, .rows = b->plan->rows.items[i]};
        snprintf(r.shape, sizeof r.shape, "%u", cost->n);
        if (op->n_vectors) snprintf(r.shape, sizeof r.shape, "%u x %u", op->n_vectors, cost->n);
        op->fn = cost->fn;
        op->n = cost->n;
        op->n_rows = r.rows;
        r.bytes = r.rows * cost->bytes;
        r.flops = r.rows * cost->flops;
        bench_line(b, &r, call_row_op, op, 1);
    }
}

/* ---- the operations ---------------------------------------------------------------------------- */

static void op_rmsnorm(struct row_op *op, uint32_t row) {
    size_t at = (size_t)row * op->n;
    op->dev->ops->rmsnorm(op->x + at, op->x, op->n, 1e-5f, op->y + at);
}

static void op_silu_mul(struct row_op *op, uint32_t row) {
    size_t at = (size_t)row * op->n;
    op->dev->ops->silu_mul(op->y + at, op->x + at, op->n);
}

static void op_step_sums(struct row_op *op, uint32_t row) {
    size_t at = (size_t)row * op->n;
    op->dev->ops->step_sums(op->x + at, op->n / GROUP, op->y + at / GROUP);
}

static void op_quantise(struct row_op *op, uint32_t row) {
    uint32_t n_steps = op->n / GROUP;
    op->dev->ops->quantise(op->x + (size_t)row * op->n, 0, n_steps, n_steps, op->int8, row);
}

static void op_narrow(struct row_op *op, uint32_t row) {
    uint32_t n_steps = op->n / GROUP;
    op->dev->ops->narrow(op->x + (size_t)row * op->n, 0, n_steps, n_steps, op->narrow, row);
}

/* As finish_heads of stages.c has it, without norms; row r stands at position r. */
static void op_store(struct row_op *op, uint32_t row) {
    struct device *dev = op->dev;
    const size_t at = (size_t)row * HEAD_DIM / 2;
    float *heads = op->x + (size_t)row * D_FF, *v = heads + (N_HEADS + N_KV_HEADS) * HEAD_DIM;
    for (uint32_t h = 0; h < N_HEADS + N_KV_HEADS; h++)
        dev->ops->rope(heads + h * HEAD_DIM, dev->cosines + at, dev->sines + at, HEAD_DIM / 2);
    char *page = cpu_cached_page(dev, row / PAGE_TOKENS, 0);
    for (uint32_t g = 0; g < N_KV_HEADS; g++)
        dev->ops->kv_store(dev, page + g * dev->head_bytes, row % PAGE_TOKENS,
                           heads + (N_HEADS + g) * HEAD_DIM, v + g * HEAD_DIM);
}
_Static_assert((N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM <= D_FF, "q, k and v of a row fit its place");

static void op_embed(struct row_op *op, uint32_t row) {
    uint32_t token = (op->token + (row + 1) * TOKEN_STEP) % VOCAB;
    op->dev->ops->matrix_row(cpu_weight(op->dev, WEIGHT_EMBED, 0), token,
                             op->y + (size_t)row * D_FF);
}

static void row_vectors(const struct row_op *op, uint32_t row, const float **v) {
    for (uint32_t k = 0; k < op->n_vectors; k++)
        v[k] = op->vectors + ((size_t)k * op->n_rows + row) * op->n;
}

static void op_dots(struct row_op *op, uint32_t row) {
    const float *v[VECTORS_MAX];
    row_vectors(op, row, v);
    op->dev->ops->dots(v, op->factors, op->n_vectors, op->n, op->y + (size_t)row * D_FF);
}

static void op_weighted_sum(struct row_op *op, uint32_t row) {
    const float *v[VECTORS_MAX];
    row_vectors(op, row, v);
    op->dev->ops->weighted_sum(v, op->factors, op->n_vectors, op->n, op->y + (size_t)row * D_FF);
}

static void op_expand(struct row_op *op, uint32_t row) {
    const float *v[VECTORS_MAX];
    row_vectors(op, row, v);
    op->dev->ops->expand(v, op->factors, op->n_vectors, op->n, op->y + (size_t)row * D_FF);
}

/* ---- memory ------------------------------------------------------------------------------------ */

static bool op_open(struct bench *b, struct row_op *op, struct memory *memory, bool vectors) {
    uint32_t most = list_largest(&b->plan->rows);
    size_t n = (size_t)most * D_FF, whole = align_up(most, ROW_TILE) * D_FF;
    size_t n_vectors = vectors ? (size_t)VECTORS_MAX * most * D_MODEL : 1;
    *op = (struct row_op){.dev = b->device.dev};
    op->x = memory_take(memory, n * sizeof *op->x);
    op->y = memory_take(memory, n * sizeof *op->y);
    op->narrow = memory_take(memory, whole * sizeof *op->narrow);
    op->int8 = memory_take(memory, whole / ROW_TILE / GROUP * sizeof *op->int8);
    op->vectors = memory_take(memory, n_vectors * sizeof *op->vectors);
    op->factors = memory_take(memory, VECTORS_MAX * D_MODEL * sizeof *op->factors);
    if (!op->x || !op->y || !op->narrow || !op->int8 || !op->vectors || !op->factors) {
        report_note(b->plan, "rows", "no memory");
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        op->y[i] = -0.5f - 0.5f * fabsf(sinf((float)i));
        op->x[i] = 1 + expf(-op->y[i]);
    }
    for (size_t i = 0; i < n_vectors; i++)
        op->vectors[i] = (float)(i % 255) / 255;
    for (size_t i = 0; i < VECTORS_MAX * D_MODEL; i++)
        op->factors[i] = (float)(i % 127) / 127;
    return true;
}

static void op_close(struct bench *b, struct memory *memory) {
    memory_free(memory);
    *memory = (struct memory){0};
    bench_device_close(&b->device);
}

/* ---- group rows -------------------------------------------------------------------------------- */

static void float_lines(struct bench *b, struct row_op *op) {
    double narrow = b->device.dev->ops->tiles ? 6 : 8; /* in place where no tiles want it */
    const struct row_cost costs[] = {
        {"silu_mul", "f32", op_silu_mul, D_FF, 12, 4}, /* first: rmsnorm writes y */
        {"rmsnorm", "f32", op_rmsnorm, D_MODEL, 8, 4},
        {"step_sums", "f32", op_step_sums, D_MODEL, 4 + 4.0 / GROUP, 1},
        {"step_sums", "f32", op_step_sums, D_FF, 4 + 4.0 / GROUP, 1},
        {"quantise", "f32", op_quantise, D_MODEL, 5, 4},
        {"quantise", "f32", op_quantise, D_FF, 5, 4},
        {"narrow", "f32", op_narrow, D_MODEL, narrow, 1}, /* last: it may round x */
        {"narrow", "f32", op_narrow, D_FF, narrow, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(costs); i++) { /* there: of one number */
        struct row_cost cost = costs[i];
        cost.bytes *= cost.n;
        cost.flops *= cost.n;
        row_lines(b, op, &cost);
    }
}

/* A turned head is read and written, V read, both stored; a turn of two numbers is six operations. */
static void store_lines(struct bench *b, enum dtype kv) {
    struct model_shape shape = small_shape(b->activations);
    struct device_limits limits = small_limits(list_largest(&b->plan->rows));
    struct memory memory = {0};
    struct row_op op;
    limits.kv_dtype = kv;
    if (!bench_open(b, &shape, &limits, DTYPE_Q8_0, "store")) return;
    const double turned = (N_HEADS + N_KV_HEADS) * HEAD_DIM, values = N_KV_HEADS * HEAD_DIM;
    double stored = (double)b->table->page_bytes(b->device.dev, kv) / PAGE_TOKENS;
    struct row_cost cost = {"store",
                            dtype_name(kv),
                            op_store,
                            (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM,
                            8 * turned + 4 * values + stored,
                            3 * turned};
    if (op_open(b, &op, &memory, false)) row_lines(b, &op, &cost);
    op_close(b, &memory);
}

static void embed_lines(struct bench *b, enum dtype dtype) {
    if (D_MODEL % dtype_block(dtype) != 0) return; /* as the head, whose matrix it is */
    struct model_shape shape = small_shape(b->activations);
    struct device_limits limits = small_limits(1);
    struct memory memory = {0};
    struct row_op op;
    shape.vocab_size = VOCAB;
    if (!bench_open(b, &shape, &limits, dtype, "embed")) return;
    struct row_cost cost = {"embed",
                            dtype_name(dtype),
                            op_embed,
                            D_MODEL,
                            (double)dtype_row_bytes(dtype, D_MODEL) + 4 * D_MODEL,
                            dtype_block(dtype) > 1 ? 2 * D_MODEL : 0};
    if (op_open(b, &op, &memory, false)) row_lines(b, &op, &cost);
    op_close(b, &memory);
}

void bench_rows(struct bench *b) {
    struct model_shape shape = small_shape(b->activations);
    struct device_limits limits = small_limits(1);
    struct memory memory = {0};
    struct row_op op;
    if (!bench_open(b, &shape, &limits, DTYPE_Q8_0, "rows")) return;
    if (op_open(b, &op, &memory, false)) float_lines(b, &op);
    op_close(b, &memory);
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (b->plan->kv_dtypes[t]) store_lines(b, (enum dtype)t);
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (b->plan->dtypes[t]) embed_lines(b, (enum dtype)t);
}

/* ---- group msar -------------------------------------------------------------------------------- */

void bench_msar(struct bench *b) {
    struct model_shape shape = small_shape(b->activations);
    struct device_limits limits = small_limits(1);
    struct memory memory = {0};
    struct row_op op;
    if (!bench_open(b, &shape, &limits, DTYPE_Q8_0, "msar")) return;
    bool open = op_open(b, &op, &memory, true);
    for (uint32_t n_v = 4; open && n_v <= VECTORS_MAX; n_v *= 4) {
        op.n_vectors = n_v;
        double numbers = (double)n_v * D_MODEL, flops = 2 * numbers;
        const struct row_cost costs[] = {
            {"dots", "f32", op_dots, D_MODEL, 4 * (numbers + n_v), flops},
            {"weighted_sum", "f32", op_weighted_sum, D_MODEL, 4 * (numbers + D_MODEL), flops},
            {"expand", "f32", op_expand, D_MODEL, 4 * (numbers + D_MODEL), flops},
        };
        for (size_t i = 0; i < ARRAY_LEN(costs); i++)
            row_lines(b, &op, &costs[i]);
    }
    op_close(b, &memory);
}
