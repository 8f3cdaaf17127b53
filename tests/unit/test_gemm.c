/* One matrix against rows of activations: the packed layouts, the order of the sum, any row count. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/cpu/cpu.h"
#include "tests/amx/emulated.h"
#include "tests/harness.h"
#include "tests/unit/narrow.h"
#include "tests/unit/pack.h"

/* Tables of this machine: ref first, then the fast ones. */
static struct {
    const char *name;
    const struct cpu_ops *ops;
} tables[5];
static uint32_t n_tables;
static char what_text[64];

static void add_table(const char *name, const struct cpu_ops *ops) {
    tables[n_tables].name = name;
    tables[n_tables++].ops = ops;
}

/* For messages: "avx2 q4_1". */
static uint32_t current;
static const char *what(enum dtype dtype) {
    snprintf(what_text, sizeof what_text, "%s %s", tables[current].name, dtype_name(dtype));
    return what_text;
}

/* The test NAME: NAME_on each fast table. */
#define ON_FAST_TABLES(NAME)                             \
    static void NAME(void **state) {                     \
        (void)state;                                     \
        if (n_tables < 2) skip();                        \
        for (current = 1; current < n_tables; current++) \
            NAME##_on(tables[current].ops);              \
    }

/* A random matrix, its source, and padded random rows. */
struct problem {
    struct tensor src;
    float *wide; /* [rows][cols] */
    struct matrix m;
    float *x, *sums;
    struct int8_step *int8;
    uint16_t *bf16;
    size_t ldx, ldsums;
};

/* What loading does for tables that do not round weights as they use them. */
static void round_source(struct problem *p) {
    size_t n = (size_t)p->m.rows * p->m.cols;
    uint16_t *rounded = malloc(n * sizeof *rounded);
    dtype_from_f32(DTYPE_BF16, p->wide, n, rounded);
    free((void *)(uintptr_t)p->src.data);
    p->src.data = rounded;
    p->src.dtype = p->m.dtype = DTYPE_BF16;
}

static struct problem make_problem_for(const struct cpu_ops *ops, enum activations activations,
                                       enum dtype dtype, uint32_t rows, uint32_t cols,
                                       uint32_t n_x) {
    struct problem p = {.src = {.dtype = dtype, .rows = rows, .cols = cols}};
    struct rng rng;
    rng_seed(&rng, rows * 1000 + cols + dtype);
    size_t n = (size_t)rows * cols;
    p.wide = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        p.wide[i] = 0.1f * rng_normal(&rng);
    void *stored = malloc(dtype_row_bytes(dtype, n));
    narrow(dtype, p.wide, n, stored);
    dtype_to_f32(dtype, stored, n, p.wide);
    p.src.data = stored;
    p.m = (struct matrix){.dtype = dtype, .rows = rows, .cols = cols};
    bool int8 = p.m.int8 = activations == ACTIVATIONS_INT8;
    p.m.bf16 = activations == ACTIVATIONS_BF16;
    if (p.m.bf16 && !ops->tiles) round_source(&p);
    size_t bytes = ops->matrix_bytes(&p.m);
    p.m.data = aligned_alloc(64, align_up(bytes, 64));
    memset(p.m.data, 0, bytes);
    pack_matrix(ops, &p.m, p.src.data);
    p.ldx = align_up(cols, GROUP);
    p.ldsums = p.ldx / GROUP;
    p.x = calloc(n_x * p.ldx, sizeof(float));
    p.sums = calloc(n_x * p.ldsums, sizeof(float));
    size_t tile_rows = align_up(n_x, ROW_TILE),
           int8_bytes = tile_rows / ROW_TILE * p.ldsums * sizeof *p.int8;
    p.int8 = aligned_alloc(64, int8_bytes);
    memset(p.int8, 0xff, int8_bytes);
    p.bf16 = aligned_alloc(64, tile_rows * p.ldx * sizeof *p.bf16);
    memset(p.bf16, 0xff, tile_rows * p.ldx * sizeof *p.bf16); /* NaN: rows that nobody made */
    for (uint32_t i = 0; i < n_x; i++) {
        for (uint32_t k = 0; k < cols; k++)
            p.x[i * p.ldx + k] = rng_normal(&rng);
        if (p.m.bf16)
            ops->narrow(p.x + i * p.ldx, 0, (uint32_t)p.ldsums, (uint32_t)p.ldsums, p.bf16, i);
        else if (int8)
            ops->quantise(p.x + i * p.ldx, 0, (uint32_t)p.ldsums, (uint32_t)p.ldsums, p.int8, i);
        else
            ops->step_sums(p.x + i * p.ldx, (uint32_t)p.ldsums, p.sums + i * p.ldsums);
    }
    return p;
}

static struct problem make_problem(const struct cpu_ops *ops, enum dtype dtype, uint32_t rows,
                                   uint32_t cols, uint32_t n_x) {
    return make_problem_for(ops, ACTIVATIONS_F32, dtype, rows, cols, n_x);
}

static void free_problem(struct problem *p) {
    free((void *)(uintptr_t)p->src.data);
    free(p->wide);
    free(p->m.data);
    free(p->x);
    free(p->sums);
    free(p->int8);
    free(p->bf16);
}

static struct int8_step *int8_at(const struct problem *p, uint32_t row, uint32_t step) {
    return p->int8 + row / ROW_TILE * p->ldsums + step;
}

/* Rows row0 .. row0 + n - 1 as the first ones of others; to be freed. */
static struct int8_step *int8_from(const struct problem *p, uint32_t row0, uint32_t n) {
    struct problem to = {.ldsums = p->ldsums};
    to.int8 = aligned_alloc(64, align_up(n, ROW_TILE) / ROW_TILE * p->ldsums * sizeof *to.int8);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t s = 0; s < p->ldsums; s++) {
            const struct int8_step *from = int8_at(p, row0 + i, s);
            struct int8_step *at = int8_at(&to, i, s);
            memcpy(at->q[i % ROW_TILE], from->q[(row0 + i) % ROW_TILE], GROUP);
            at->rows[i % ROW_TILE] = from->rows[(row0 + i) % ROW_TILE];
        }
    return to.int8;
}

/* y [n_x][rows rounded up to GROUP], rows `row0 .. row0 + n - 1` of x in one call. */
static void multiply(const struct cpu_ops *ops, const struct problem *p, uint32_t row0, uint32_t n,
                     float *y) {
    static float acc[ROW_BLOCK_MAX][GROUP] __attribute__((aligned(64)));
    size_t ldy = align_up(p->m.rows, GROUP);
    struct gemm_rows in = {.x = p->x + row0 * p->ldx,
                           .ldx = p->ldx,
                           .sums = p->sums + row0 * p->ldsums,
                           .ldsums = p->ldsums,
                           .int8 = p->m.int8 ? int8_from(p, row0, n) : NULL,
                           .bf16 = p->bf16 + row0 * p->ldx,
                           .n_rows = n};
    for (uint32_t g = 0; g < ldy / GROUP; g++) {
        memset(acc, 0xff, sizeof acc); /* whatever was there before must not matter */
        (p->m.bf16   ? ops->gemm_bf16
         : p->m.int8 ? ops->gemm_int8
                     : ops->gemm_group)(&p->m, g, &in, acc);
        if (ops->task_end) ops->task_end();
        for (uint32_t i = 0; i < n; i++)
            memcpy(y + (row0 + i) * ldy + g * GROUP, acc[i], sizeof acc[i]);
    }
    free((void *)(uintptr_t)in.int8);
}

static const uint32_t shapes[][2] = {{320, 64}, {33, 96}, {1, 32}, {64, 576}, {40, 1536},
                                     {96, 48},  {31, 1},  {5, 33}, {33, 256}, {70, 2816}};

#define FOR_EACH_PROBLEM(d, s)                         \
    for (enum dtype d = 0; d < DTYPE_COUNT; d++)       \
        for (size_t s = 0; s < ARRAY_LEN(shapes); s++) \
            if (shapes[s][1] % dtype_block(d) == 0)

/* Rounding of a sum of K products in float32 is below K 2^-24 sum |w x|; the chains of 16 make it
 * far less. Types with minima add q d and m apart, which lose a few bits against each other. */
static void products_match_double_sums_on(const struct cpu_ops *ops) {
    FOR_EACH_PROBLEM(d, s) {
        enum { N = 3 };
        struct problem p = make_problem(ops, d, shapes[s][0], shapes[s][1], N);
        size_t ldy = align_up(p.m.rows, GROUP);
        float *y = malloc(N * ldy * sizeof *y);
        multiply(ops, &p, 0, N, y);
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t j = 0; j < ldy; j++) {
                double sum = 0, size = 0;
                for (uint32_t k = 0; j < p.m.rows && k < p.m.cols; k++) {
                    double t =
                        (double)p.wide[(size_t)j * p.m.cols + k] * (double)p.x[i * p.ldx + k];
                    sum += t, size += fabs(t);
                }
                double error = fabs((double)y[i * ldy + j] - sum);
                if (!(error <= 2e-6 * size)) /* padding: exactly 0 */
                    fail_msg("%s [%u,%u] row %u column %u: error %.3g of %.3g", what(d), p.m.rows,
                             p.m.cols, i, j, error, size);
            }
        free(y);
        free_problem(&p);
    }
}
ON_FAST_TABLES(products_match_double_sums)

static void rows_have_the_same_bits_in_any_company_on(const struct cpu_ops *ops) {
    FOR_EACH_PROBLEM(d, s) {
        enum { N = ROW_BLOCK };
        struct problem p = make_problem(ops, d, shapes[s][0], shapes[s][1], N);
        size_t n = N * align_up(p.m.rows, GROUP);
        float *alone = malloc(n * sizeof *alone), *together = malloc(n * sizeof *together);
        for (uint32_t i = 0; i < N; i++)
            multiply(ops, &p, i, 1, alone);
        multiply(ops, &p, 0, N, together);
        assert_same_bits(together, alone, n, what(d));
        for (uint32_t i = 0, count = 2; i < N; i += count, count = count % 13 + 1)
            multiply(ops, &p, i, count < N - i ? count : N - i, together);
        assert_same_bits(together, alone, n, what(d));
        free(alone);
        free(together);
        free_problem(&p);
    }
}
ON_FAST_TABLES(rows_have_the_same_bits_in_any_company)

/* The definition, in scalar code: gemm_avx2.c's head comment. */
static float defined_sum(const struct problem *p, uint32_t row, const float *x, const float *sums) {
    float acc = 0;
    for (uint32_t k0 = 0; k0 < p->ldx; k0 += GROUP) {
        float e = 0, o = 0, d = 1, m = 0;
        enum dtype type = p->src.dtype;
        uint32_t n = p->m.cols - k0 < GROUP ? p->m.cols - k0 : GROUP;
        float w[GROUP] = {0};
        const float *wide = p->wide + (size_t)row * p->m.cols + k0;
        memcpy(w, wide, n * sizeof *w);
        if (block_is_read_only(type)) {
            const uint8_t *blocks =
                (const uint8_t *)p->src.data + dtype_row_bytes(type, (size_t)row * p->m.cols);
            uint32_t n_steps = dtype_block(type) / GROUP, at = k0 / GROUP;
            struct block_step step;
            block_step(type, blocks + at / n_steps * dtype_row_bytes(type, dtype_block(type)),
                       at % n_steps, &step);
            d = step.d, m = step.m;
            for (uint32_t k = 0; k < GROUP; k++)
                w[k] = step.n[k];
        } else if (dtype_block(type) > 1) {
            const uint8_t *block =
                (const uint8_t *)p->src.data + dtype_row_bytes(type, (size_t)row * p->m.cols + k0);
            d = f16_to_f32((uint16_t)(block[0] | block[1] << 8));
            if (type == DTYPE_Q4_1) m = f16_to_f32((uint16_t)(block[2] | block[3] << 8));
            for (uint32_t k = 0; k < GROUP; k++)
                w[k] = d != 0 ? nearbyintf((w[k] - m) / d) : 0;
        }
        for (uint32_t k = 0; k < n; k += 2) {
            e = fmaf(w[k], x[k0 + k], e);
            if (k + 1 < n) o = fmaf(w[k + 1], x[k0 + k + 1], o);
        }
        acc = fmaf(e + o, d, acc);
        if (block_has_minima(type)) acc = fmaf(m, sums[k0 / GROUP], acc);
    }
    return acc;
}

static void sums_follow_the_defined_order_on(const struct cpu_ops *ops) {
    FOR_EACH_PROBLEM(d, s) {
        enum { N = 5 };
        struct problem p = make_problem(ops, d, shapes[s][0], shapes[s][1], N);
        size_t ldy = align_up(p.m.rows, GROUP);
        float *y = malloc(N * ldy * sizeof *y);
        multiply(ops, &p, 0, N, y);
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t j = 0; j < p.m.rows; j++) {
                float expected = defined_sum(&p, j, p.x + i * p.ldx, p.sums + i * p.ldsums);
                assert_same_bits(y + i * ldy + j, &expected, 1, what(d));
            }
        free(y);
        free_problem(&p);
    }
}
ON_FAST_TABLES(sums_follow_the_defined_order)

static void packed_rows_read_back_exactly(void **state) {
    (void)state;
    for (current = 0; current < n_tables; current++) {
        FOR_EACH_PROBLEM(d, s) {
            const struct cpu_ops *ops = tables[current].ops;
            struct problem p = make_problem(ops, d, shapes[s][0], shapes[s][1], 1);
            float *row = malloc(p.m.cols * sizeof *row);
            for (uint32_t j = 0; j < p.m.rows; j++) {
                ops->matrix_row(&p.m, j, row);
                assert_same_bits(row, p.wide + (size_t)j * p.m.cols, p.m.cols, what(d));
            }
            free(row);
            free_problem(&p);
        }
    }
}

/* ---- activations in int8 ----------------------------------------------------------------------- */

static const uint32_t int8_shapes[][2] = {{320, 64},  {33, 96},  {1, 32},   {64, 576},
                                          {40, 1536}, {33, 256}, {70, 2816}};

#define FOR_EACH_INT8_PROBLEM(d, s)                         \
    for (enum dtype d = DTYPE_Q8_0; d < DTYPE_COUNT; d++)   \
        for (size_t s = 0; s < ARRAY_LEN(int8_shapes); s++) \
            if (int8_shapes[s][1] % dtype_block(d) == 0)

/* ref is the definition: every table, alone and in company, has its bits. */
static void int8_products_have_the_bits_of_ref(void **state) {
    (void)state;
    enum { N = ROW_BLOCK };
    FOR_EACH_INT8_PROBLEM(d, s) {
        const uint32_t *shape = int8_shapes[s];
        struct problem ref =
            make_problem_for(&cpu_ops_ref, ACTIVATIONS_INT8, d, shape[0], shape[1], N);
        size_t n = N * align_up(shape[0], GROUP);
        float *expected = malloc(n * sizeof *expected), *y = malloc(n * sizeof *y);
        multiply(&cpu_ops_ref, &ref, 0, N, expected);
        for (current = 1; current < n_tables; current++) {
            const struct cpu_ops *ops = tables[current].ops;
            struct problem p = make_problem_for(ops, ACTIVATIONS_INT8, d, shape[0], shape[1], N);
            multiply(ops, &p, 0, N, y);
            assert_same_bits(y, expected, n, what(d));
            for (uint32_t i = 0, count = 1; i < N; i += count, count = count % 13 + 1)
                multiply(ops, &p, i, count < N - i ? count : N - i, y);
            assert_same_bits(y, expected, n, what(d));
            free_problem(&p);
        }
        free(expected);
        free(y);
        free_problem(&ref);
    }
}

/* ---- activations in bf16 ----------------------------------------------------------------------- */

/* Every fast table has the same bits, in any company, and they are near the sums of the rounded
 * numbers. Calls begin at multiples of 16 rows. */
static void bf16_products_have_the_same_bits_everywhere(void **state) {
    (void)state;
    if (n_tables < 2) skip();
    enum { N = 150 };
    static const uint32_t counts[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 49, 64, 86};
    FOR_EACH_PROBLEM(d, s) {
        uint32_t rows = shapes[s][0], cols = shapes[s][1];
        size_t ldy = align_up(rows, GROUP), n = N * ldy;
        float *exact = malloc(n * sizeof *exact), *first = malloc(n * sizeof *first),
              *y = malloc(n * sizeof *y);
        for (current = 0; current < n_tables; current++) {
            const struct cpu_ops *ops = tables[current].ops;
            struct problem p = make_problem_for(ops, ACTIVATIONS_BF16, d, rows, cols, N);
            float *all = current == 0 ? exact : current == 1 ? first : y;
            if (ops->tiles) multiply(ops, &p, 0, N, all);
            for (uint32_t i = 0; !ops->tiles && i < N; i += 32)
                multiply(ops, &p, i, N - i < 32 ? N - i : 32, all);
            if (current == 1)
                for (size_t i = 0; i < n; i++)
                    assert_true(fabsf(first[i] - exact[i]) <= 1e-4f);
            if (current > 1) assert_same_bits(y, first, n, what(d));
            for (size_t c = 0; current > 0 && c < ARRAY_LEN(counts); c++) {
                multiply(ops, &p, 64, counts[c], y);
                assert_same_bits(y + 64 * ldy, first + 64 * ldy, counts[c] * ldy, what(d));
            }
            free_problem(&p);
        }
        free(exact);
        free(first);
        free(y);
    }
}

/* A quantised number is off by at most half a step of its block: max |x| / 254. */
static void int8_products_are_near_the_exact_ones(void **state) {
    (void)state;
    current = 0;
    FOR_EACH_INT8_PROBLEM(d, s) {
        enum { N = 3 };
        struct problem p = make_problem_for(&cpu_ops_ref, ACTIVATIONS_INT8, d, int8_shapes[s][0],
                                            int8_shapes[s][1], N);
        size_t ldy = align_up(p.m.rows, GROUP);
        float *y = malloc(N * ldy * sizeof *y);
        multiply(&cpu_ops_ref, &p, 0, N, y);
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t j = 0; j < p.m.rows; j++) {
                double sum = 0, bound = 0;
                for (uint32_t k = 0; k < p.m.cols; k++) {
                    double w = (double)p.wide[(size_t)j * p.m.cols + k];
                    sum += w * (double)p.x[i * p.ldx + k];
                    bound +=
                        fabs(w) * (double)int8_at(&p, i, k / GROUP)->rows[i % ROW_TILE].scale / 2;
                }
                double error = fabs((double)y[i * ldy + j] - sum);
                if (!(error <= bound * 1.001 + 1e-6))
                    fail_msg("%s row %u column %u: error %.3g of %.3g", what(d), i, j, error,
                             bound);
            }
        free(y);
        free_problem(&p);
    }
}

/* The largest weights and rows there can be: no sum of 16 bits may saturate. A row alone, and as
 * many as the tile unit is asked for. */
static void int8_extremes_do_not_saturate(void **state) {
    (void)state;
    enum { N = 8, COLS = 64, STEPS = COLS / GROUP };
    for (enum dtype d = DTYPE_Q8_0; d <= DTYPE_Q4_1; d++)
        for (int sign = -1; sign <= 1; sign += 2)
            for (current = 0; current < n_tables; current++) {
                const struct cpu_ops *ops = tables[current].ops;
                struct problem p = make_problem_for(ops, ACTIVATIONS_INT8, d, 32, COLS, N);
                uint8_t *stored = (uint8_t *)(uintptr_t)p.src.data;
                size_t block = dtype_row_bytes(d, GROUP), head = d == DTYPE_Q4_1 ? 4 : 2;
                uint8_t worst = d == DTYPE_Q8_0 ? 0x80 : d == DTYPE_Q4_0 ? 0x00 : 0xff;
                for (size_t i = 0; i < 64; i++) {
                    memset(stored + i * block + head, worst, block - head);
                    memcpy(stored + i * block, (const uint16_t[]){0x3c00, 0}, head); /* d 1, m 0 */
                }
                pack_matrix(ops, &p.m, p.src.data);
                for (uint32_t k = 0; k < N * COLS; k++)
                    p.x[k] = (float)sign;
                for (uint32_t i = 0; i < N; i++)
                    ops->quantise(p.x + i * p.ldx, 0, STEPS, STEPS, p.int8, i);
                float y[N * 32], w = d == DTYPE_Q8_0 ? -128 : d == DTYPE_Q4_0 ? -8 : 15;
                float expected = 0;
                for (int s = 0; s < STEPS; s++)
                    expected = fmaf(w * 32 * 127 * (float)sign * (1.0f / 127.0f), 1, expected);
                for (uint32_t n = 1; n <= N; n += N - 1) {
                    multiply(ops, &p, 0, n, y);
                    for (uint32_t j = 0; j < n * 32; j++)
                        if (y[j] != expected)
                            fail_msg("%s: %.9g, not %.9g", what(d), y[j], expected);
                }
                free_problem(&p);
            }
}

/* The same of the types that are only read: every byte of the numbers, and of their scales, at an
 * end. ref sums in 32 bits, which cannot overflow. */
static void int8_extremes_of_read_only_types_do_not_saturate(void **state) {
    (void)state;
    enum { COLS = 512 };
    static const uint8_t ends[] = {0x00, 0xff, 0x80, 0x7f};
    for (enum dtype d = DTYPE_Q5_0; d < DTYPE_COUNT; d++)
        for (size_t end = 0; end < 2 * ARRAY_LEN(ends); end++) {
            float expected[32], y[32];
            for (current = 0; current < n_tables; current++) {
                const struct cpu_ops *ops = tables[current].ops;
                struct problem p = make_problem_for(ops, ACTIVATIONS_INT8, d, 32, COLS, 1);
                uint8_t *stored = (uint8_t *)(uintptr_t)p.src.data;
                size_t n = dtype_row_bytes(d, 32 * COLS),
                       block = dtype_row_bytes(d, dtype_block(d));
                memset(stored, ends[end % ARRAY_LEN(ends)], n);
                for (uint8_t *b = stored; b < stored + n; b += block) {
                    memcpy(b + (d == DTYPE_Q6_K ? 208 : 0), (const uint8_t[]){0, 0x3c}, 2);
                    if (block_has_minima(d)) memcpy(b + 2, (const uint8_t[]){0, 0x3c}, 2);
                    if (d == DTYPE_Q6_K) memset(b + 192, end & 1 ? 0x80 : 0x7f, 16);
                }
                pack_matrix(ops, &p.m, p.src.data);
                for (uint32_t k = 0; k < COLS; k++)
                    p.x[k] = end < ARRAY_LEN(ends) ? 1 : -1;
                ops->quantise(p.x, 0, COLS / GROUP, COLS / GROUP, p.int8, 0);
                multiply(ops, &p, 0, 1, current == 0 ? expected : y);
                if (current > 0) assert_same_bits(y, expected, 32, what(d));
                free_problem(&p);
            }
        }
}

static void quantising_has_the_bits_of_ref(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    enum { STEPS = 12, N = STEPS * GROUP, ROW = ROW_TILE + 3, TILES = 2 };
    static struct int8_step rows[2][TILES * STEPS];
    float x[N];
    for (int round = 0; round < 200; round++) {
        for (uint32_t k = 0; k < N; k++)
            x[k] = rng_normal(&rng) * ldexpf(1, (int)rng_below(&rng, 40) - 20);
        memset(x, 0, GROUP * sizeof *x); /* zeros */
        x[GROUP] = 1e-36f, memset(x + GROUP + 1, 0, 31 * sizeof *x);
        x[2 * GROUP + rng_below(&rng, GROUP)] = INFINITY;
        x[3 * GROUP + rng_below(&rng, GROUP)] = NAN;
        x[4 * GROUP + rng_below(&rng, GROUP)] = -3e38f;
        for (uint32_t k = 0; k < GROUP; k++) /* ties, which go to even */
            x[5 * GROUP + k] = k ? (float)k + 0.5f : 127;
        memset(rows, 0, sizeof rows);
        cpu_ops_ref.quantise(x, 0, STEPS, STEPS, rows[0], ROW);
        const struct int8_step *at = rows[0] + STEPS;
#define ROW_OF(s) at[s].rows[ROW % ROW_TILE]
        assert_true(ROW_OF(0).scale == 0 && ROW_OF(1).scale == 0 && ROW_OF(1).qsum == 0);
        assert_true(isinf(ROW_OF(2).scale) && isnan(ROW_OF(2).sum) && isnan(ROW_OF(3).scale));
        assert_true(at[5].q[ROW % ROW_TILE][1] == 2 && at[5].q[ROW % ROW_TILE][2] == 2);
        for (current = 1; current < n_tables; current++) {
            const struct cpu_ops *ops = tables[current].ops;
            memset(rows[1], 0, sizeof rows[1]);
            uint32_t cut = rng_below(&rng, STEPS + 1); /* in two calls: the same */
            ops->quantise(x, 0, cut, STEPS, rows[1], ROW);
            ops->quantise(x + cut * GROUP, cut, STEPS - cut, STEPS, rows[1], ROW);
            for (uint32_t s = 2; s < 4; s++) /* any NaN */
                rows[1][STEPS + s].rows[ROW % ROW_TILE].sum = ROW_OF(s).sum;
            assert_memory_equal(rows[1], rows[0], sizeof rows[0]); /* and no other row */
        }
#undef ROW_OF
    }
}

/* ---- the operations on one row ---------------------------------------------------------------- */

static void row_operations_match_ref_on(const struct cpu_ops *ops) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    enum { N = 160 };
    float a[N], b[N], c[N], x[N], y[N];
    for (uint32_t n = 2; n <= N; n += 2) {
        for (uint32_t i = 0; i < N; i++) {
            x[i] = 3 * rng_normal(&rng);
            y[i] = rng_normal(&rng);
        }
        ops->rmsnorm(x, y, n, 1e-5f, a);
        cpu_ops_ref.rmsnorm(x, y, n, 1e-5f, b);
        assert_close(a, b, n, 0, 1e-6, "rmsnorm"); /* a few roundings */
        for (uint32_t i = 0; i < n / 2; i++)
            sincosf(x[i], &c[i], &c[N / 2 + i]);
        memcpy(a, y, sizeof y);
        memcpy(b, y, sizeof y);
        ops->rope(a, c, c + N / 2, n / 2);
        cpu_ops_ref.rope(b, c, c + N / 2, n / 2);
        assert_close(a, b, n, 1e-6, 0, "rope");
        memcpy(a, x, sizeof x);
        memcpy(b, x, sizeof x);
        ops->silu_mul(a, y, n / 8 * 8);
        cpu_ops_ref.silu_mul(b, y, n / 8 * 8);
        assert_close(a, b, n / 8 * 8, 1e-30, 1e-6, "silu"); /* exp within 2 ulp */
    }
}
ON_FAST_TABLES(row_operations_match_ref)

static void silu_is_sound_at_the_ends_on(const struct cpu_ops *ops) {
    float z[8] = {-3e38f, -200, -88, 88, 200, 1e30f, 0, NAN}, up[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    ops->silu_mul(z, up, 8);
    for (int i = 0; i < 3; i++)
        assert_true(fabsf(z[i]) < 1e-35f);
    assert_true(z[3] == 88 && z[4] == 200 && z[5] == 1e30f && z[6] == 0);
    assert_true(isnan(z[7]));
}
ON_FAST_TABLES(silu_is_sound_at_the_ends)

/* All fast tables share one definition of every sum and function. */
static void fast_tables_agree_bit_for_bit_on_rows(void **state) {
    (void)state;
    if (n_tables < 3) skip();
    struct rng rng;
    rng_seed(&rng, test_seed());
    enum { N = 200 };
    float x[N], y[N], c[N], out[2][4][N];
    for (uint32_t n = 2; n <= N; n += 2)
        for (current = 1; current < n_tables; current++) {
            const struct cpu_ops *ops = tables[current].ops;
            float(*to)[N] = out[current > 1];
            if (current == 1)
                for (uint32_t i = 0; i < N; i++) {
                    x[i] = 3 * rng_normal(&rng);
                    y[i] = rng_normal(&rng);
                    c[i] = rng_normal(&rng);
                }
            memset(to, 0, sizeof out[0]);
            ops->rmsnorm(x, y, n, 1e-5f, to[0]);
            memcpy(to[1], y, sizeof y);
            ops->rope(to[1], c, c + N / 2, n / 2);
            memcpy(to[2], x, sizeof x);
            ops->silu_mul(to[2], y, n / 8 * 8);
            ops->step_sums(x, n / GROUP, to[3]);
            if (current > 1)
                assert_same_bits(to[0], out[0][0], (size_t)4 * N, tables[current].name);
        }
}

/* The same of what MSAR sums: any number of vectors, whose padding is part of the sum. */
static void fast_tables_agree_bit_for_bit_on_sums_of_vectors(void **state) {
    (void)state;
    if (n_tables < 3) skip();
    struct rng rng;
    rng_seed(&rng, test_seed());
    enum { N = 5 * GROUP, MOST = 13 };
    float numbers[MOST][N], columns[MOST][N];
    const float *v[MOST];
    for (uint32_t k = 0; k < MOST; k++) {
        v[k] = numbers[k];
        for (uint32_t i = 0; i < N; i++) {
            numbers[k][i] = 3 * rng_normal(&rng);
            columns[k][i] = rng_normal(&rng);
        }
    }
    for (uint32_t n_v = 1; n_v <= MOST; n_v++)
        for (uint32_t n = GROUP; n <= N; n += GROUP) {
            float out[2][3][N] = {0};
            for (current = 1; current < n_tables; current++) {
                const struct cpu_ops *ops = tables[current].ops;
                float(*to)[N] = out[current > 1];
                ops->dots(v, columns[0], n_v, n, to[0]);
                ops->weighted_sum(v, columns[1], n_v, n, to[1]);
                ops->expand(v, columns[0], n_v, n, to[2]);
                if (current > 1)
                    assert_same_bits(to[0], out[0][0], (size_t)3 * N, tables[current].name);
            }
        }
}

/* Under tests/amx (tables.h): amx, ref, and the table whose bits it must have. */
static void find_tables(void) {
    tiles_or_skip(kernels_amx());
    add_table("ref", &cpu_ops_ref);
#if defined(__x86_64__)
    bool all = !tiles_are_emulated();
    if (all && kernels_avx2()) add_table("avx2", &cpu_ops_avx2);
    if (all && kernels_avx512()) add_table("avx512", &cpu_ops_avx512);
    if (kernels_avx512() && __builtin_cpu_supports("avx512vnni"))
        add_table("avx512 vnni", &cpu_ops_avx512_vnni);
    if (kernels_amx()) add_table("amx", &cpu_ops_amx);
#endif
}

int main(void) {
    find_tables();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_double_sums),
        cmocka_unit_test(rows_have_the_same_bits_in_any_company),
        cmocka_unit_test(sums_follow_the_defined_order),
        cmocka_unit_test(packed_rows_read_back_exactly),
        cmocka_unit_test(bf16_products_have_the_same_bits_everywhere),
        cmocka_unit_test(int8_products_have_the_bits_of_ref),
        cmocka_unit_test(int8_products_are_near_the_exact_ones),
        cmocka_unit_test(int8_extremes_do_not_saturate),
        cmocka_unit_test(int8_extremes_of_read_only_types_do_not_saturate),
        cmocka_unit_test(quantising_has_the_bits_of_ref),
        cmocka_unit_test(row_operations_match_ref),
        cmocka_unit_test(silu_is_sound_at_the_ends),
        cmocka_unit_test(fast_tables_agree_bit_for_bit_on_rows),
        cmocka_unit_test(fast_tables_agree_bit_for_bit_on_sums_of_vectors),
    };
    const struct CMUnitTest on_tiles[] = {
        cmocka_unit_test(bf16_products_have_the_same_bits_everywhere),
        cmocka_unit_test(int8_products_have_the_bits_of_ref),
        cmocka_unit_test(int8_extremes_do_not_saturate),
    };
    if (tiles_are_emulated()) return cmocka_run_group_tests(on_tiles, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
