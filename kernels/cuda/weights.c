/* weights.c: weights into device memory, in the layouts of cuda.h.
 *
 *   source rows     any type ─▶ staging: f32, bf16, or q8_0 as int8 and scales ─▶ their rows of a matrix
 *
 * There are two staging buffers: while one is copied, the loading threads fill the other, each some
 * rows of it. Rows that change their type do so through float32, in pieces of PIECE numbers.
 *
 *   qkv      | q ............ pad | k ...... pad | v ...... pad |        parts begin at multiples of 16
 *   gate_up  | gate 0-7 | up 0-7 | gate 8-15 | up 8-15 | ...             two strided copies
 *
 * Memory comes zeroed, so that padding and parts that a model lacks need no writing. q8_0 stays q8_0
 * where activations are bf16; every other type becomes bf16. Where the parts of a matrix come in
 * different types, it is bf16: what is already there as q8_0 is fetched and stored anew. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/cuda/runtime.h"
#include "kernels/weights.h"

enum {
    OCTET = 8,    /* rows of gate, or of up, that lie together */
    PIECE = 1024, /* numbers; a multiple of every type's block */
    SHARES = 4,   /* of a staging buffer, for each thread: one that lost its core holds up little */
};

/* Where the rows of a weight go. */
struct target {
    struct matrix *matrix; /* or */
    const float **vector;  /* bias of a matrix: its rows are numbers */
    uint32_t rows;         /* of the whole */
    uint32_t first;        /* row of it that this weight begins at */
    bool octets;           /* 8 rows of every 16 */
};

/* ---- places ----------------------------------------------------------------------------------- */

static uint32_t qkv_rows(const struct device *dev) {
    uint32_t kv = dev->shape.n_kv_heads * dev->shape.head_dim;
    return dev->v_at + (uint32_t)align_up(kv, WEIGHT_ROWS);
}

static uint32_t gate_up_rows(const struct device *dev) {
    return 2 * (uint32_t)align_up(dev->shape.d_ff, OCTET);
}

static struct target matrix_target(const struct device *dev, struct layer *l, enum weight which) {
    struct target t = {.rows = dev->shape.d_model};
    switch ((int)which) {
    case WEIGHT_Q:
    case WEIGHT_K:
    case WEIGHT_V:
        t.matrix = &l->qkv;
        break;
    case WEIGHT_Q_DIFF:
    case WEIGHT_K_DIFF:
    case WEIGHT_V_DIFF:
        t.matrix = &l->qkv_diff;
        break;
    case WEIGHT_O:
        t.matrix = &l->o;
        return t;
    case WEIGHT_O_DIFF:
        t.matrix = &l->o_diff;
        return t;
    case WEIGHT_DOWN:
        t.matrix = &l->down;
        return t;
    default: /* gate, up */
        t.matrix = &l->gate_up;
        t.rows = gate_up_rows(dev);
        t.first = which == WEIGHT_UP ? OCTET : 0;
        t.octets = true;
        return t;
    }
    t.rows = qkv_rows(dev);
    if (which == WEIGHT_K || which == WEIGHT_K_DIFF) t.first = dev->k_at;
    if (which == WEIGHT_V || which == WEIGHT_V_DIFF) t.first = dev->v_at;
    return t;
}

/* The matrix whose rows a bias belongs to, or WEIGHT_COUNT. */
static enum weight biased(enum weight which) {
    static const uint8_t pairs[][2] = {
        {WEIGHT_Q_BIAS, WEIGHT_Q},           {WEIGHT_K_BIAS, WEIGHT_K},
        {WEIGHT_V_BIAS, WEIGHT_V},           {WEIGHT_O_BIAS, WEIGHT_O},
        {WEIGHT_GATE_BIAS, WEIGHT_GATE},     {WEIGHT_UP_BIAS, WEIGHT_UP},
        {WEIGHT_DOWN_BIAS, WEIGHT_DOWN},     {WEIGHT_Q_DIFF_BIAS, WEIGHT_Q_DIFF},
        {WEIGHT_K_DIFF_BIAS, WEIGHT_K_DIFF}, {WEIGHT_V_DIFF_BIAS, WEIGHT_V_DIFF},
        {WEIGHT_O_DIFF_BIAS, WEIGHT_O_DIFF},
    };
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        if (pairs[i][0] == which) return (enum weight)pairs[i][1];
    return WEIGHT_COUNT;
}

static struct target bias_target(const struct device *dev, struct layer *l, enum weight matrix) {
    struct target t = matrix_target(dev, l, matrix);
    const struct {
        const struct matrix *matrix;
        const float **bias;
    } biases[] = {
        {&l->qkv, &l->qkv_bias},       {&l->qkv_diff, &l->qkv_diff_bias}, {&l->o, &l->o_bias},
        {&l->o_diff, &l->o_diff_bias}, {&l->gate_up, &l->gate_up_bias},   {&l->down, &l->down_bias},
    };
    for (size_t i = 0; i < ARRAY_LEN(biases); i++)
        if (biases[i].matrix == t.matrix) t.vector = biases[i].bias;
    t.matrix = NULL;
    return t;
}

static struct target vector_target(struct device *dev, struct layer *l, enum weight which) {
    struct target t = {0};
    uint32_t one, cols;
    weight_size(&dev->shape, which, 0, &one, &cols);
    t.rows = cols;
    const struct {
        enum weight which;
        const float **at;
    } vectors[] = {
        {WEIGHT_FINAL_NORM, &dev->final_norm},
        {WEIGHT_ATTN_NORM, &l->attn_norm},
        {WEIGHT_MLP_NORM, &l->mlp_norm},
        {WEIGHT_Q_NORM, &l->q_norm},
        {WEIGHT_K_NORM, &l->k_norm},
        {WEIGHT_Q_DIFF_NORM, &l->q_diff_norm},
        {WEIGHT_K_DIFF_NORM, &l->k_diff_norm},
        {WEIGHT_AFFINE_BASE_SCALE, &l->base_scale},
        {WEIGHT_AFFINE_BASE_SHIFT, &l->base_shift},
        {WEIGHT_AFFINE_OUTPUT_SCALE, &l->output_scale},
        {WEIGHT_AFFINE_OUTPUT_SHIFT, &l->output_shift},
    };
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++)
        if (vectors[i].which == which) t.vector = vectors[i].at;
    ASSERT(t.vector);
    return t;
}

static struct target target_of(struct device *dev, enum weight which, uint32_t layer) {
    struct target t = {.rows = dev->shape.vocab_size};
    if (which == WEIGHT_EMBED || which == WEIGHT_LM_HEAD) {
        t.matrix = which == WEIGHT_EMBED ? &dev->embed : &dev->lm_head;
        return t;
    }
    struct layer *l = &dev->layers[layer];
    if (weight_is_vector(which)) {
        enum weight matrix = biased(which);
        return matrix < WEIGHT_COUNT ? bias_target(dev, l, matrix) : vector_target(dev, l, which);
    }
    return matrix_target(dev, l, which);
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* Rows row0 .. row0 + n - 1 of a weight to where they belong; octets: row0 is a multiple of 8. */
static cudaError_t copy_rows(struct device *dev, const struct target *t, void *whole,
                             size_t row_bytes, const void *from, uint32_t row0, uint32_t n) {
    cudaStream_t stream = dev->runtime->cu_stream;
    char *to = (char *)whole + t->first * row_bytes;
    if (!t->octets)
        return cudaMemcpyAsync(to + row0 * row_bytes, from, n * row_bytes, cudaMemcpyHostToDevice,
                               stream);
    const size_t octet = OCTET * row_bytes;
    const uint32_t n_octets = n / OCTET;
    cudaError_t error = cudaSuccess;
    to += row0 / OCTET * 2 * octet;
    if (n_octets)
        error = cudaMemcpy2DAsync(to, 2 * octet, from, octet, octet, n_octets,
                                  cudaMemcpyHostToDevice, stream);
    if (!error && n % OCTET)
        error = cudaMemcpyAsync(to + n_octets * 2 * octet, (const char *)from + n_octets * octet,
                                n % OCTET * row_bytes, cudaMemcpyHostToDevice, stream);
    return error;
}

/* Bytes of a row of a matrix on the device, and of its scales. */
static size_t data_bytes(const struct matrix *m) {
    return m->dtype == DTYPE_Q8_0 ? m->ld : dtype_row_bytes(m->dtype, m->ld);
}
static size_t scales_bytes(const struct matrix *m) {
    return m->dtype == DTYPE_Q8_0 ? m->ld / GPU_GROUP * sizeof(float) : 0;
}

/* n numbers to another type that has no blocks. */
static void convert_numbers(enum dtype from_dtype, const char *from, enum dtype to_dtype, char *to,
                            uint32_t n) {
    float numbers[PIECE];
    for (uint32_t at = 0, now; at < n; at += now) {
        now = n - at < PIECE ? n - at : PIECE;
        dtype_to_f32(from_dtype, from + dtype_row_bytes(from_dtype, at), now, numbers);
        dtype_from_f32(to_dtype, numbers, now, to + dtype_row_bytes(to_dtype, at));
    }
}

/* One source row as the matrix keeps it; src->cols numbers, then zeros. */
static void convert_row(const struct matrix *m, const struct tensor *src, uint32_t row, char *data,
                        float *scales) {
    const char *from =
        (const char *)src->data + (size_t)row * dtype_row_bytes(src->dtype, src->cols);
    if (m->dtype == DTYPE_Q8_0) {
        const size_t block_bytes = dtype_row_bytes(DTYPE_Q8_0, GPU_GROUP);
        for (uint32_t b = 0; b < src->cols / GPU_GROUP; b++, from += block_bytes) {
            uint16_t d;
            memcpy(&d, from, sizeof d);
            scales[b] = f16_to_f32(d);
            memcpy(data + b * GPU_GROUP, from + sizeof d, GPU_GROUP);
        }
        return;
    }
    size_t bytes = dtype_row_bytes(m->dtype, src->cols);
    if (src->dtype == m->dtype) {
        memcpy(data, from, bytes);
    } else if (m->dtype == DTYPE_F32) {
        dtype_to_f32(src->dtype, from, src->cols, (float *)(void *)data);
    } else {
        convert_numbers(src->dtype, from, m->dtype, data, src->cols);
    }
    memset(data + bytes, 0, data_bytes(m) - bytes);
}

/* Rows row0 .. row0 + n_rows - 1 of a tensor into staging, by tasks of task_rows; the last are short. */
struct conversion {
    const struct matrix *matrix;
    const struct tensor *src;
    uint32_t row0, n_rows, task_rows;
    char *data;
    char *scales;
};

static void convert_task(void *arg, uint32_t task, uint32_t thread) {
    const struct conversion *c = arg;
    size_t row_bytes = data_bytes(c->matrix), scale_bytes = scales_bytes(c->matrix);
    uint32_t first = task * c->task_rows, end = first + c->task_rows;
    (void)thread; /* scratch lies on the stack */
    for (uint32_t i = first; i < end && i < c->n_rows; i++)
        convert_row(c->matrix, c->src, c->row0 + i, c->data + i * row_bytes,
                    (float *)(void *)(c->scales + i * scale_bytes));
}

static int copy_matrix(struct device *dev, const struct target *t, const struct tensor *src,
                       struct err *err) {
    const struct matrix *m = t->matrix;
    size_t row_bytes = data_bytes(m), scale_bytes = scales_bytes(m);
    uint32_t most = (uint32_t)(dev->runtime->staging_bytes / (row_bytes + scale_bytes));
    most -= most % OCTET;
    ASSERT(most > 0);
    uint32_t n_tasks = SHARES * pool_threads(dev->runtime->loaders);
    int rc = OK;
    for (uint32_t row = 0, n; row < src->rows && rc == OK; row += n) {
        n = src->rows - row < most ? src->rows - row : most;
        char *data = gpu_staging(dev, err);
        if (!data) return ERR_DEVICE;
        char *scales = data + n * row_bytes;
        struct conversion c = {m, src, row, n, (uint32_t)div_ceil(n, n_tasks), data, scales};
        pool_run(dev->runtime->loaders, convert_task, &c, n_tasks);
        cudaError_t error = copy_rows(dev, t, m->data, row_bytes, data, row, n);
        if (!error && scale_bytes)
            error = copy_rows(dev, t, m->scales, scale_bytes, scales, row, n);
        rc = gpu_check_err(dev, error, "copying weights", err);
        if (rc == OK) rc = gpu_staged(dev, err);
    }
    return rc;
}

static int copy_vector(struct device *dev, const struct target *t, float *whole, const float *from,
                       uint32_t n_numbers, struct err *err) {
    uint32_t most = (uint32_t)(dev->runtime->staging_bytes / sizeof(float));
    most -= most % OCTET;
    int rc = OK;
    for (uint32_t at = 0, n; at < n_numbers && rc == OK; at += n) {
        n = n_numbers - at < most ? n_numbers - at : most;
        char *data = gpu_staging(dev, err);
        if (!data) return ERR_DEVICE;
        memcpy(data, from + at, n * sizeof *from);
        rc = gpu_check_err(dev, copy_rows(dev, t, whole, sizeof *from, data, at, n),
                           "copying weights", err);
        if (rc == OK) rc = gpu_staged(dev, err);
    }
    return rc;
}

/* ---- matrices --------------------------------------------------------------------------------- */

static int make_matrix(struct device *dev, struct matrix *m, enum dtype dtype, uint32_t rows,
                       uint32_t cols, struct err *err) {
    struct matrix made = {.dtype = dtype, .rows = rows, .cols = cols};
    made.ld = (uint32_t)align_up(cols, GPU_GROUP);
    size_t n = align_up(rows, WEIGHT_ROWS), scales = n * scales_bytes(&made);
    made.data = gpu_weight_memory(dev, n * data_bytes(&made), err);
    if (!made.data) return err->code;
    if (scales) made.scales = gpu_weight_memory(dev, scales, err);
    if (scales && !made.scales) return err->code;
    *m = made;
    return OK;
}

/* Some rows of a q8_0 matrix, fetched, as rows of bf16. data, scales: what was fetched. */
static void widen_rows(const struct matrix *old, uint32_t n, const int8_t *data,
                       const float *scales, uint16_t *out) {
    for (size_t i = 0; i < (size_t)n * old->ld; i++)
        out[i] = f32_to_bf16(scales[i / GPU_GROUP] * (float)data[i]);
}

/* A q8_0 matrix becomes bf16. Rare, so it waits for every copy. */
static int widen_matrix(struct device *dev, struct matrix *m, struct err *err) {
    struct runtime *rt = dev->runtime;
    const struct matrix old = *m;
    int rc = make_matrix(dev, m, DTYPE_BF16, old.rows, old.cols, err);
    size_t most = rt->staging_bytes / (2 * (size_t)old.ld),
           n_rows = align_up(old.rows, WEIGHT_ROWS);
    for (size_t row = 0, n; row < n_rows && rc == OK; row += n) {
        n = n_rows - row < most ? n_rows - row : most;
        char *fetched = gpu_staging(dev, err);
        if (!fetched) return ERR_DEVICE;
        size_t n_bytes = n * old.ld, scale = old.ld / GPU_GROUP;
        cudaError_t error = cudaMemcpyAsync(fetched, (char *)old.data + row * old.ld, n_bytes,
                                            cudaMemcpyDeviceToHost, rt->cu_stream);
        if (!error)
            error =
                cudaMemcpyAsync(fetched + n_bytes, old.scales + row * scale,
                                n * scale * sizeof(float), cudaMemcpyDeviceToHost, rt->cu_stream);
        rc = gpu_check_err(dev, error, "fetching weights", err);
        if (rc == OK) rc = gpu_staged(dev, err);
        char *wide = rc == OK ? gpu_staging(dev, err) : NULL; /* the other half */
        if (!wide) return ERR_DEVICE;
        rc = gpu_check_err(dev, cudaStreamSynchronize(rt->cu_stream), "fetching weights", err);
        if (rc != OK) return rc;
        widen_rows(&old, (uint32_t)n, (const int8_t *)fetched,
                   (const float *)(void *)(fetched + n_bytes), (uint16_t *)(void *)wide);
        error = cudaMemcpyAsync((uint16_t *)m->data + row * old.ld, wide, 2 * n_bytes,
                                cudaMemcpyHostToDevice, rt->cu_stream);
        rc = gpu_check_err(dev, error, "copying weights", err);
        if (rc == OK) rc = gpu_staged(dev, err);
    }
    return rc;
}

/* The matrix of a target is there, in a type that takes rows that come as `dtype`. */
static int open_matrix(struct device *dev, const struct target *t, enum dtype dtype, uint32_t cols,
                       struct err *err) {
    enum dtype wanted = dev->act == DTYPE_F32 ? DTYPE_F32
                        : dtype == DTYPE_Q8_0 ? DTYPE_Q8_0
                                              : DTYPE_BF16;
    struct matrix *m = t->matrix;
    if (!m->data) return make_matrix(dev, m, wanted, t->rows, cols, err);
    if (m->dtype == DTYPE_Q8_0 && wanted != DTYPE_Q8_0) return widen_matrix(dev, m, err);
    return OK;
}

static float *open_vector(struct device *dev, const struct target *t, struct err *err) {
    if (!*t->vector)
        *t->vector = gpu_weight_memory(dev, align_up(t->rows, GPU_GROUP) * sizeof(float), err);
    return (float *)(uintptr_t)*t->vector;
}

/* ---- MSAR ------------------------------------------------------------------------------------- */

/* Each run of d_model columns gets the padding of an activation row. */
static int load_msar(struct device *dev, enum weight which, uint32_t index,
                     const struct tensor *src, struct err *err) {
    bool wide = which != WEIGHT_MSAR_MIX_BIAS && which != WEIGHT_MSAR_MIX_SCALE;
    uint32_t run = wide ? dev->shape.d_model : src->cols;
    uint32_t n_runs = src->rows * (src->cols / run), ld = wide ? dev->ld_model : run;
    float *whole = gpu_weight_memory(dev, (size_t)n_runs * ld * sizeof(float), err);
    if (!whole) return err->code;
    int rc = OK;
    for (uint32_t i = 0; i < n_runs && rc == OK; i++) {
        struct target t = {.rows = run};
        rc = copy_vector(dev, &t, whole + (size_t)i * ld,
                         (const float *)src->data + (size_t)i * run, run, err);
    }
    dev->msar.weights[which - WEIGHT_MSAR_CONV][index] = whole;
    return rc;
}

/* ---- the table's rows ------------------------------------------------------------------------- */

static bool *loaded(const struct device *dev, enum weight which, uint32_t index) {
    return &dev->runtime->loaded[(size_t)which * dev->runtime->loaded_stride + index];
}

int gpu_load(struct device *dev, enum weight which, uint32_t layer, const struct tensor *src,
             struct err *err) {
    struct err unread;
    ASSERT(!dev->runtime->reserved);
    if (!err) err = &unread;
    int rc = weight_check(&dev->shape, which, layer, src, err);
    if (rc != OK) return rc;
    if (*loaded(dev, which, layer)) return weight_loaded_twice(which, layer, err);
    if (which >= WEIGHT_COUNT) {
        rc = load_msar(dev, which, layer, src, err);
    } else {
        struct target t = target_of(dev, which, layer);
        if (t.matrix) {
            rc = open_matrix(dev, &t, src->dtype, src->cols, err);
            if (rc == OK) rc = copy_matrix(dev, &t, src, err);
        } else {
            float *whole = open_vector(dev, &t, err);
            rc = whole ? copy_vector(dev, &t, whole, src->data, src->cols, err) : err->code;
        }
    }
    if (rc != OK) return rc;
    *loaded(dev, which, layer) = true;
    return OK;
}

/* Rows of gate and up are equally random, so whole octets are filled as they lie, by whichever of the
 * two comes first; the last octet may have padding and is filled row by row. */
static cudaError_t fill_octets(struct device *dev, const struct target *t, uint32_t n, bool first,
                               uint64_t seed, float mean, float spread) {
    cudaStream_t stream = dev->runtime->cu_stream;
    uint32_t whole = n / OCTET * 2 * OCTET, rest = n % OCTET;
    float *vector = t->vector ? (float *)(uintptr_t)*t->vector : NULL;
    cudaError_t error = cudaSuccess;
    if (first && whole)
        error = vector ? gpu_random_vector(vector, whole, seed, mean, spread, stream)
                       : gpu_random_matrix(t->matrix, 0, whole, seed, mean, spread, stream);
    if (error || rest == 0) return error;
    uint32_t at = whole + t->first;
    return vector ? gpu_random_vector(vector + at, rest, seed, mean, spread, stream)
                  : gpu_random_matrix(t->matrix, at, rest, seed, mean, spread, stream);
}

static int fill(struct device *dev, const struct target *t, bool first, uint32_t rows,
                uint32_t cols, uint64_t seed, float mean, float spread, struct err *err) {
    cudaStream_t stream = dev->runtime->cu_stream;
    cudaError_t error;
    if (t->octets)
        error = fill_octets(dev, t, t->vector ? cols : rows, first, seed, mean, spread);
    else if (t->vector)
        error = gpu_random_vector((float *)(uintptr_t)*t->vector + t->first, cols, seed, mean,
                                  spread, stream);
    else
        error = gpu_random_matrix(t->matrix, t->first, rows, seed, mean, spread, stream);
    return gpu_check_err(dev, error, "random weights", err);
}

/* MSAR: each run of columns by itself, so that padding stays zero. */
static int random_msar(struct device *dev, enum weight which, uint32_t index, uint32_t rows,
                       uint32_t cols, uint64_t seed, float mean, float spread, struct err *err) {
    bool wide = which != WEIGHT_MSAR_MIX_BIAS && which != WEIGHT_MSAR_MIX_SCALE;
    uint32_t run = wide ? dev->shape.d_model : cols, n_runs = rows * (cols / run);
    uint32_t ld = wide ? dev->ld_model : run;
    float *whole = gpu_weight_memory(dev, (size_t)n_runs * ld * sizeof(float), err);
    if (!whole) return err->code;
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < n_runs && !error; i++)
        error = gpu_random_vector(whole + (size_t)i * ld, run, seed + i, mean, spread,
                                  dev->runtime->cu_stream);
    dev->msar.weights[which - WEIGHT_MSAR_CONV][index] = whole;
    return gpu_check_err(dev, error, "random weights", err);
}

int gpu_load_random(struct device *dev, enum weight which, uint32_t layer, enum dtype dtype,
                    uint64_t seed, float mean, float spread, struct err *err) {
    struct err unread;
    uint32_t rows = 0, cols = 0;
    ASSERT(!dev->runtime->reserved);
    if (!err) err = &unread;
    if (layer < weight_count(&dev->shape, which))
        weight_size(&dev->shape, which, layer, &rows, &cols);
    struct tensor like = {weight_is_vector(which) ? DTYPE_F32 : dtype, rows, cols, NULL};
    int rc = weight_check(&dev->shape, which, layer, &like, err);
    if (rc != OK) return rc;
    if (*loaded(dev, which, layer)) return weight_loaded_twice(which, layer, err);
    if (which >= WEIGHT_COUNT) {
        rc = random_msar(dev, which, layer, rows, cols, seed, mean, spread, err);
    } else {
        struct target t = target_of(dev, which, layer);
        bool first = t.matrix ? !t.matrix->data : !*t.vector;
        if (t.matrix) rc = open_matrix(dev, &t, dtype, cols, err);
        if (t.vector && !open_vector(dev, &t, err)) rc = err->code;
        if (rc == OK) rc = fill(dev, &t, first, rows, cols, seed, mean, spread, err);
    }
    if (rc != OK) return rc;
    *loaded(dev, which, layer) = true;
    return OK;
}

static bool has(const void *arg, enum weight which, uint32_t index) {
    return *loaded(arg, which, index);
}

int gpu_check_weights(const struct device *dev, struct err *err) {
    return weights_check(&dev->shape, has, dev, err);
}

/* Bytes of all weights, were they all there, and of the rotations: sizes the first slab. */
size_t gpu_weights_estimate(const struct model_shape *shape, enum dtype act) {
    size_t number = act == DTYPE_F32 ? 4 : 2, bytes = 0;
    for (int which = 0; which < WEIGHT_END; which++) {
        uint32_t n = weight_count(shape, (enum weight)which), rows, cols;
        if (n == 0 || (which == WEIGHT_LM_HEAD && shape->tied_head)) continue;
        weight_size(shape, (enum weight)which, 0, &rows, &cols);
        bool vector = weight_is_vector((enum weight)which);
        size_t padded = align_up(rows, vector ? 1 : WEIGHT_ROWS) * align_up(cols, GPU_GROUP);
        bytes += n * (align_up(padded * (vector ? 4 : number), GPU_ALIGN) + GPU_ALIGN);
    }
    return bytes + (size_t)shape->max_position * shape->head_dim * sizeof(float);
}
