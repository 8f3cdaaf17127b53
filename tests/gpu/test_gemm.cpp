/* test_gemm.cpp: products with matrices against plain C in double, and against themselves: a row has the
 * same bits whatever kernel and batch it is in. */
#include "tests/gpusim/gpusim_test.h"

#include <cublas_v2.h>
#include <map>
#include <math.h>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/products.h"

typedef std::vector<float> floats;

/* What a kernel has not written. */
static const float UNTOUCHED = -12345.0f;

static size_t up32(size_t n) {
    return align_up(n, GPU_GROUP);
}

/* A matrix on the device and its values; padding rows and columns are zero. */
struct weights {
    struct matrix m;
    floats value; /* [padded rows][ld] */
    float at(size_t row, size_t k) const {
        return value[row * m.ld + k];
    }
};
static struct weights make_weights(struct rng *rng, enum dtype type, uint32_t rows, uint32_t cols) {
    struct weights w;
    w.m = {};
    w.m.dtype = type;
    w.m.rows = rows;
    w.m.cols = cols;
    w.m.ld = (uint32_t)up32(cols);
    const size_t padded = align_up(rows, WEIGHT_ROWS), n = padded * w.m.ld, groups = w.m.ld / 32;
    w.value.assign(n, 0.0f);
    std::vector<int8_t> bytes(n);
    floats scales(padded * groups);
    std::vector<uint16_t> halves(n);
    for (size_t i = 0; i < rows * groups; i++)
        scales[i] = (0.5f + (float)rng_unit(rng)) / 64.0f / sqrtf((float)cols);
    for (size_t row = 0; row < rows; row++)
        for (size_t k = 0; k < cols; k++) {
            const size_t i = row * w.m.ld + k;
            const float f = rng_normal(rng) / sqrtf((float)cols);
            bytes[i] = (int8_t)((int)rng_below(rng, 256) - 128);
            halves[i] = f32_to_bf16(f);
            w.value[i] = type == DTYPE_F32    ? f
                         : type == DTYPE_BF16 ? bf16_to_f32(halves[i])
                                              : (float)bytes[i] * scales[i / 32];
        }
    if (type == DTYPE_F32)
        w.m.data = device_copy(w.value.data(), n);
    else if (type == DTYPE_BF16)
        w.m.data = device_copy(halves.data(), n);
    else {
        w.m.data = device_copy(bytes.data(), n);
        w.m.scales = device_copy(scales.data(), scales.size());
    }
    return w;
}
static void free_weights(struct weights *w) {
    cudaFree(w->m.data);
    cudaFree(w->m.scales);
}

/* Rows of activations: values as act has them, stride ld, padding zero. */
struct rows {
    enum dtype act;
    uint32_t n, cols, ld;
    floats value;
    void *data;
};
static struct rows make_rows(struct rng *rng, enum dtype act, uint32_t n, uint32_t cols,
                             uint32_t ld) {
    struct rows x = {act, n, cols, ld, floats((size_t)n * ld), NULL};
    std::vector<uint16_t> halves(x.value.size());
    for (uint32_t row = 0; row < n; row++)
        for (uint32_t k = 0; k < cols; k++) {
            const size_t i = (size_t)row * ld + k;
            const float f = rng_normal(rng);
            halves[i] = f32_to_bf16(f);
            x.value[i] = act == DTYPE_F32 ? f : bf16_to_f32(halves[i]);
        }
    x.data = act == DTYPE_F32 ? (void *)device_copy(x.value.data(), x.value.size())
                              : (void *)device_copy(halves.data(), halves.size());
    return x;
}

/* One call and what it is to be called with. */
struct job {
    const struct weights *w;
    const struct rows *x;
    uint32_t row0;             /* of x: its first row */
    uint32_t n_rows, max_rows; /* on the device; of the grid */
    enum gemm_out out;
    const floats *bias; /* or NULL */
    uint32_t n_out, ldy;
    bool has_tail;
    uint32_t tail, n_tail_rows;
    uint32_t n_sms; /* of the device that is claimed: chooses among tiles */
    int sm;         /* likewise; 0: has all the shared memory that a kernel wants */
    bool library;   /* offer cuBLAS */
    bool deterministic;
    floats before; /* ADD: what y holds, [max_rows][ldy] */
};

/* A device copy of exactly n elements that stays: runs of one size share it. The simulator gives every
 * allocation a place of its own for ever, and a thousand runs would fill it with red zones. */
static std::map<size_t, void *> kept[4];
enum { KEPT_Y, KEPT_BIAS, KEPT_COUNTS, KEPT_WIDE };
template <class T> static T *keep(int use, const T *from, size_t n) {
    void *&p = kept[use][n * sizeof(T)];
    if (!p) p = device_copy((char *)NULL, n * sizeof(T));
    if (from) check_cuda(cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyHostToDevice));
    return (T *)p;
}

/* Whether the last run that offered the library found work in dev->wide. */
static bool wide_used;

static floats run(const struct job *job) {
    struct device dev = {};
    dev.act = job->x->act;
    dev.n_sms = job->n_sms;
    dev.sm = job->sm;
    dev.shape.deterministic = job->deterministic;
    const size_t n_y = (size_t)job->max_rows * job->ldy, width = dev.act == DTYPE_F32 ? 4 : 2;
    const bool narrow = job->out == GEMM_SILU && dev.act == DTYPE_BF16;
    floats y(n_y, UNTOUCHED);
    std::vector<uint16_t> halves(n_y, f32_to_bf16(UNTOUCHED));
    if (job->out == GEMM_ADD) y = job->before;
    float *bias = job->bias ? keep(KEPT_BIAS, job->bias->data(), job->bias->size()) : NULL;
    void *dy =
        narrow ? (void *)keep(KEPT_Y, halves.data(), n_y) : (void *)keep(KEPT_Y, y.data(), n_y);
    const uint32_t counts[2] = {job->n_rows, job->n_tail_rows};
    uint32_t *dcounts = keep(KEPT_COUNTS, counts, 2);
    struct gemm_call call = {};
    call.w = &job->w->m;
    call.bias = bias;
    call.x = (const char *)job->x->data + (size_t)job->row0 * job->x->ld * width;
    call.ldx = job->x->ld;
    call.y = dy;
    call.ldy = job->ldy;
    call.out = job->out;
    call.n_out = job->n_out;
    call.max_rows = job->max_rows;
    call.n_rows = dcounts;
    call.tail = job->tail;
    call.n_tail_rows = job->has_tail ? dcounts + 1 : NULL;
    if (job->library) {
        cublasHandle_t handle;
        assert_int_equal(cublasCreate(&handle), 0);
        const size_t n_wide = (size_t)PRODUCTS_WIDE_ROWS * job->w->m.rows;
        float first;
        dev.wide = keep(KEPT_WIDE, (const float *)NULL, n_wide);
        check_cuda(cudaMemset(dev.wide, 0, n_wide * sizeof(float)));
        check_cuda(gpu_product(&dev, &call, job->n_rows, job->n_tail_rows, handle, NULL));
        check_cuda(cudaDeviceSynchronize());
        assert_int_equal(cublasDestroy(handle), 0);
        host_copy(&first, dev.wide, 1);
        wide_used = first != 0;
    } else {
        check_cuda(gpu_gemm(&dev, &call, NULL));
    }
    if (narrow) {
        host_copy(halves.data(), (const uint16_t *)dy, n_y);
        for (size_t i = 0; i < n_y; i++)
            y[i] = bf16_to_f32(halves[i]);
        for (float &f : y)
            if (f == bf16_to_f32(f32_to_bf16(UNTOUCHED))) f = UNTOUCHED;
    } else {
        host_copy(y.data(), (const float *)dy, n_y);
    }
    return y;
}

/* The same in double, rounded to float once. */
static double product(const struct job *job, uint32_t row, uint32_t out) {
    const struct weights *w = job->w;
    const float *x = &job->x->value[(size_t)(job->row0 + row) * job->x->ld];
    double sum = job->bias ? (double)(*job->bias)[out] : 0;
    for (uint32_t k = 0; k < w->m.cols; k++)
        sum += (double)x[k] * (double)w->at(out, k);
    return sum;
}
static floats reference(const struct job *job) {
    floats y((size_t)job->max_rows * job->ldy, UNTOUCHED);
    if (job->out == GEMM_ADD) y = job->before;
    for (uint32_t row = 0; row < job->n_rows; row++) {
        float *to = &y[(size_t)row * job->ldy];
        if (job->out == GEMM_SILU)
            for (uint32_t j = 0; j < up32(job->n_out); j++) {
                const uint32_t gate = j / 8 * 16 + j % 8;
                to[j] = 0;
                if (j >= job->n_out) continue;
                const double z = product(job, row, gate);
                to[j] = (float)(z / (1 + exp(-z)) * product(job, row, gate + 8));
            }
        else
            for (uint32_t n = 0; n < job->n_out; n++) {
                if (job->has_tail && n >= job->tail && row >= job->n_tail_rows) continue;
                to[n] = (float)((job->out == GEMM_ADD ? (double)to[n] : 0) + product(job, row, n));
            }
    }
    return y;
}
/* Sums of float32: their errors are some 2^-24 of the largest partial sum, about 1; a tensor core cuts
 * where the simulator rounds. bf16 outputs are rounded once more. */
static void check(const struct job *job, const char *what) {
    char name[200];
    snprintf(name, sizeof name, "%s: %s [%u, %u] rows %u of %u out %d n_out %u sms %u", what,
             dtype_name(job->w->m.dtype), job->w->m.rows, job->w->m.cols, job->n_rows,
             job->max_rows, (int)job->out, job->n_out, job->n_sms);
    const bool narrow = job->out == GEMM_SILU && job->x->act == DTYPE_BF16;
    const floats got = run(job), want = reference(job);
    assert_close(got.data(), want.data(), got.size(), 1e-4, narrow ? 1.0 / 256 : 1e-5, name);
}

static floats random_floats(struct rng *rng, size_t n) {
    floats v(n);
    for (float &f : v)
        f = rng_normal(rng);
    return v;
}
static struct job plain_job(const struct weights *w, const struct rows *x, uint32_t n_rows) {
    struct job job = {};
    job.w = w;
    job.x = x;
    job.n_rows = job.max_rows = n_rows;
    job.out = GEMM_STORE;
    job.n_out = w->m.rows;
    job.ldy = w->m.rows + 3;
    job.n_sms = 132;
    return job;
}

enum { FEW_SMS = 1, MANY_SMS = 1000 }; /* the larger tile, the smaller one */

/* Row counts on both sides of every choice; of many rows both tiles. */
static const struct {
    uint32_t rows, n_sms;
} BATCHES[] = {{1, 132},      {7, 132},        {8, 132},      {9, 132},  {16, 132},
               {17, 132},     {32, 132},       {33, 132},     {64, 132}, {65, MANY_SMS},
               {65, FEW_SMS}, {130, MANY_SMS}, {130, FEW_SMS}};
static const uint32_t COLS[] = {32, 64, 96, 160, 70, 576};

static void every_kernel_agrees_with_double(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    const enum dtype types[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_F32};
    uint32_t round = 0;
    for (enum dtype type : types)
        for (uint32_t cols : COLS) {
            const enum dtype act = type == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
            const uint32_t n_out = cols == 160 ? 136 : 16 + rng_below(&rng, 24);
            struct weights w = make_weights(&rng, type, n_out, cols);
            struct rows x = make_rows(&rng, act, 130, cols, w.m.ld + cols / 70 * 32);
            const floats bias = random_floats(&rng, n_out);
            for (size_t i = 0; i < ARRAY_LEN(BATCHES); i++) {
                use_order((int)(round++ % N_ORDERS), rng_u64(&rng));
                struct job job = plain_job(&w, &x, BATCHES[i].rows);
                job.n_sms = BATCHES[i].n_sms;
                job.out = round % 2 ? GEMM_ADD : GEMM_STORE;
                if (round % 3) job.bias = &bias;
                if (job.out == GEMM_ADD)
                    job.before = random_floats(&rng, (size_t)job.max_rows * job.ldy);
                check(&job, "product");
            }
            free_weights(&w);
            cudaFree(x.data);
        }
}

/* The rows of a batch one by one, in each place of every other batch. */
static void a_row_has_the_same_bits_in_any_batch(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    const enum dtype types[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_F32};
    for (enum dtype type : types)
        for (uint32_t cols : COLS) {
            const enum dtype act = type == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
            struct weights w = make_weights(&rng, type, 40, cols);
            struct rows x = make_rows(&rng, act, 130, cols, w.m.ld);
            const floats bias = random_floats(&rng, 40);
            struct job job = plain_job(&w, &x, 130);
            job.bias = &bias;
            const floats all = run(&job);
            for (size_t i = 0; i < ARRAY_LEN(BATCHES); i++) {
                job.n_rows = job.max_rows = BATCHES[i].rows;
                job.n_sms = BATCHES[i].n_sms;
                job.row0 = rng_below(&rng, 131 - job.n_rows);
                use_order((int)(i % N_ORDERS), rng_u64(&rng));
                const floats some = run(&job);
                for (uint32_t row = 0; row < job.n_rows; row++)
                    assert_same_bits(&some[(size_t)row * job.ldy],
                                     &all[(size_t)(job.row0 + row) * job.ldy], job.n_out,
                                     dtype_name(type));
            }
            free_weights(&w);
            cudaFree(x.data);
        }
}

/* Shared memory of a block ends at 99 KB on some devices that run sm_80's code. */
static void small_devices_take_smaller_tiles(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (enum dtype type : {DTYPE_BF16, DTYPE_Q8_0}) {
        struct weights w = make_weights(&rng, type, 40, 96);
        struct rows x = make_rows(&rng, DTYPE_BF16, 130, 96, w.m.ld);
        struct job job = plain_job(&w, &x, 130);
        job.n_sms = FEW_SMS;
        const floats want = run(&job);
#ifdef GERYON_GPUSIM
        gpusim_set_device(86, (size_t)8 << 30);
#endif
        job.sm = 86;
        const floats got = run(&job);
        assert_same_bits(got.data(), want.data(), got.size(), "on a small device");
#ifdef GERYON_GPUSIM
        gpusim_set_device(80, (size_t)8 << 30);
#endif
        free_weights(&w);
        cudaFree(x.data);
    }
}

/* d_ff 4, 20, 67: gate and up in turns of 8 rows, the last turn half empty. */
static void silu_joins_gate_and_up_and_clears_the_padding(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    const enum dtype types[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_F32};
    const uint32_t lengths[] = {4, 20, 67};
    uint32_t round = 0;
    for (enum dtype type : types)
        for (uint32_t d_ff : lengths) {
            const enum dtype act = type == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
            struct weights w = make_weights(&rng, type, 2 * (uint32_t)align_up(d_ff, 8), 96);
            struct rows x = make_rows(&rng, act, 130, 96, w.m.ld);
            const floats bias = random_floats(&rng, w.m.rows);
            for (size_t i = 0; i < ARRAY_LEN(BATCHES); i++) {
                use_order((int)(round++ % N_ORDERS), rng_u64(&rng));
                struct job job = plain_job(&w, &x, BATCHES[i].rows);
                job.n_sms = BATCHES[i].n_sms;
                job.out = GEMM_SILU;
                job.n_out = d_ff;
                job.ldy = (uint32_t)up32(d_ff) + round % 2 * 32;
                if (round % 2) job.bias = &bias;
                check(&job, "silu");
            }
            free_weights(&w);
            cudaFree(x.data);
        }
}

/* Grids are made for more rows than there are; some columns have fewer rows still. */
static void rows_beyond_the_counts_are_not_stored(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    const enum dtype types[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_F32};
    static const struct {
        uint32_t n_rows, max_rows, n_tail_rows, tail, n_sms;
    } cases[] = {
        {0, 8, 0, 150, 132},      {3, 8, 1, 16, 132},       {5, 16, 0, 32, 132},
        {16, 16, 9, 20, 132},     {30, 32, 31, 64, 132},    {9, 64, 8, 33, 132},
        {40, 64, 0, 128, 132},    {66, 130, 65, 77, 1},     {66, 130, 0, 128, 1},
        {130, 130, 1, 64, 1000},  {70, 130, 66, 100, 1000}, {0, 130, 0, 150, 1},
        {64, 130, 64, 128, 1000}, {2, 130, 0, 0, 1000},
    };
    for (enum dtype type : types) {
        const enum dtype act = type == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
        struct weights w = make_weights(&rng, type, 150, 64);
        struct rows x = make_rows(&rng, act, 130, 64, w.m.ld);
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            use_order((int)(i % N_ORDERS), rng_u64(&rng));
            struct job job = plain_job(&w, &x, cases[i].n_rows);
            job.max_rows = cases[i].max_rows;
            job.n_sms = cases[i].n_sms;
            job.has_tail = true;
            job.tail = cases[i].tail;
            job.n_tail_rows = cases[i].n_tail_rows;
            check(&job, "tail");
            job.has_tail = false;
            job.n_out = 149;
            check(&job, "no tail");
        }
        free_weights(&w);
        cudaFree(x.data);
    }
}

/* Unit rows pick single elements: every byte, in every place of a chunk, times its scale. */
static void bytes_are_widened_exactly(void **) {
    std::vector<int8_t> bytes(256 * 32);
    floats scales(256, 0.25f), unit(32 * 32);
    std::vector<uint16_t> halves(32 * 32);
    for (size_t i = 0; i < bytes.size(); i++)
        bytes[i] = (int8_t)(i / 32 + i % 32 * 7);
    for (size_t i = 0; i < 32; i++) {
        unit[i * 32 + i] = 1.0f;
        halves[i * 32 + i] = f32_to_bf16(1.0f);
    }
    struct weights w;
    w.m = {};
    w.m.dtype = DTYPE_Q8_0;
    w.m.rows = 256;
    w.m.cols = w.m.ld = 32;
    w.m.data = device_copy(bytes.data(), bytes.size());
    w.m.scales = device_copy(scales.data(), scales.size());
    struct rows x = {DTYPE_BF16, 32, 32, 32, unit, device_copy(halves.data(), halves.size())};
    struct job job = plain_job(&w, &x, 32);
    const floats y = run(&job);
    for (size_t k = 0; k < 32; k++)
        for (size_t n = 0; n < 256; n++)
            assert_true(y[k * job.ldy + n] == 0.25f * (float)bytes[n * 32 + k]);
    free_weights(&w);
    cudaFree(x.data);
}

static void the_library_agrees_where_it_may_serve(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    const uint32_t n_rows = 2 * PRODUCTS_WIDE_ROWS + 5, n_w = 48;
    struct weights w = make_weights(&rng, DTYPE_BF16, n_w, 64);
    struct weights bytes = make_weights(&rng, DTYPE_Q8_0, n_w, 64);
    struct rows x = make_rows(&rng, DTYPE_BF16, n_rows, 64, w.m.ld + 32);
    const floats bias = random_floats(&rng, n_w);
    for (int out = GEMM_STORE; out <= GEMM_SILU; out++)
        for (int tail = 0; tail < (out == GEMM_SILU ? 1 : 2); tail++) {
            struct job job = plain_job(&w, &x, n_rows);
            job.out = (enum gemm_out)out;
            job.bias = out == GEMM_STORE && !tail ? NULL : &bias;
            if (out == GEMM_SILU) {
                job.n_out = 20;
                job.ldy = 32;
            }
            job.has_tail = tail;
            job.tail = 19;
            job.n_tail_rows = 600;
            if (out == GEMM_ADD) job.before = random_floats(&rng, (size_t)n_rows * job.ldy);
            const floats own = run(&job);
            job.library = true;
            check(&job, "library");
            const floats theirs = run(&job);
            assert_true(wide_used == (out == GEMM_SILU));
            if (out != GEMM_SILU) /* whose rounding to bf16 may hide another order */
                assert_true(memcmp(own.data(), theirs.data(), own.size() * sizeof(float)) != 0);
            /* Neither where bits are promised, nor for bytes. */
            job.deterministic = true;
            const floats same = run(&job);
            assert_same_bits(same.data(), own.data(), own.size(), "deterministic");
            assert_false(wide_used);
            job.deterministic = false;
            job.w = &bytes;
            check(&job, "bytes");
            assert_false(wide_used);
        }
    free_weights(&w);
    free_weights(&bytes);
    cudaFree(x.data);
}

/* The height of a grid ends at 65535, the rows of a forward do not. */
static void a_bias_reaches_any_number_of_rows(void **) {
    enum { ROWS = 65537, COLUMNS = 2 };
    const uint32_t n = ROWS;
    const float b[COLUMNS] = {0.5f, -2};
    struct matrix w = {};
    struct gemm_call call = {};
    floats y((size_t)ROWS * COLUMNS, 1.0f);
    w.rows = w.cols = w.ld = GPU_GROUP;
    call.w = &w;
    call.y = device_copy(y.data(), y.size());
    call.ldy = call.n_out = COLUMNS;
    float *bias = device_copy(b, COLUMNS);
    uint32_t *n_rows = device_copy(&n, 1);
    call.bias = bias;
    call.n_rows = n_rows;
    check_cuda(gpu_bias(&call, ROWS, NULL));
    host_copy(y.data(), (const float *)call.y, y.size());
    for (size_t i = 0; i < y.size(); i++)
        assert_true(y[i] == 1 + b[i % COLUMNS]);
    cudaFree(call.y);
    cudaFree(bias);
    cudaFree(n_rows);
}

static void calls_that_make_no_sense_are_refused(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct weights w = make_weights(&rng, DTYPE_BF16, 32, 32);
    struct device dev = {};
    uint32_t *n_rows = device_copy((uint32_t *)NULL, 1);
    struct gemm_call call = {};
    call.w = &w.m;
    call.ldx = 32;
    call.ldy = 32;
    call.n_out = 32;
    call.max_rows = 1;
    call.n_rows = n_rows;
    dev.act = DTYPE_F32; /* wants float32 weights */
    assert_int_equal(gpu_gemm(&dev, &call, NULL), cudaErrorInvalidValue);
    dev.act = DTYPE_BF16;
    w.m.dtype = DTYPE_F32;
    assert_int_equal(gpu_gemm(&dev, &call, NULL), cudaErrorInvalidValue);
    w.m.dtype = DTYPE_BF16;
    call.n_out = 33;
    assert_int_equal(gpu_gemm(&dev, &call, NULL), cudaErrorInvalidValue);
    call.n_out = 17;
    call.out = GEMM_SILU; /* has 16 columns */
    assert_int_equal(gpu_gemm(&dev, &call, NULL), cudaErrorInvalidValue);
    call.n_out = 16;
    call.n_tail_rows = n_rows;
    assert_int_equal(gpu_gemm(&dev, &call, NULL), cudaErrorInvalidValue);
    call.max_rows = 0;
    call.n_tail_rows = NULL;
    check_cuda(gpu_gemm(&dev, &call, NULL));
    free_weights(&w);
    cudaFree(n_rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_agrees_with_double),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_batch),
        cmocka_unit_test(small_devices_take_smaller_tiles),
        cmocka_unit_test(silu_joins_gate_and_up_and_clears_the_padding),
        cmocka_unit_test(rows_beyond_the_counts_are_not_stored),
        cmocka_unit_test(bytes_are_widened_exactly),
        cmocka_unit_test(the_library_agrees_where_it_may_serve),
        cmocka_unit_test(a_bias_reaches_any_number_of_rows),
        cmocka_unit_test(calls_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests_name("test_gemm", tests, NULL, NULL);
}
