/* The packed layouts, byte for byte: against the pictures in pack_avx2.c and gemm_amx.c taken number by
 * number, and by any number of threads. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/cpu/cpu.h"
#include "kernels/weights.h"
#include "tests/harness.h"
#include "tests/unit/pack.h"
#include "tests/unit/tiny_model.h"

/* ---- number by number --------------------------------------------------------------------------- */

/* The n bits of a value into a packed group, bit `at` on. */
static void put_bits(uint8_t *group, size_t at, uint32_t n, uint32_t value) {
    for (uint32_t i = 0; i < n; i++)
        if (value >> i & 1) group[(at + i) / 8] |= (uint8_t)(1u << (at + i) % 8);
}

/* Of a step: bytes of its numbers, and of all of it. A K type has a head every eight steps. */
struct layout {
    uint32_t numbers, step, head;
};

static const struct layout layouts[DTYPE_COUNT] = {
    [DTYPE_F32] = {4096, 4096, 0},  [DTYPE_F16] = {2048, 2048, 0}, [DTYPE_BF16] = {2048, 2048, 0},
    [DTYPE_Q8_0] = {1024, 1088, 0}, [DTYPE_Q4_0] = {512, 576, 0},  [DTYPE_Q4_1] = {512, 640, 0},
    [DTYPE_Q5_0] = {640, 704, 0},   [DTYPE_Q5_1] = {640, 768, 0},  [DTYPE_Q4_K] = {512, 576, 128},
    [DTYPE_Q5_K] = {640, 704, 128}, [DTYPE_Q6_K] = {768, 832, 64},
};

/* Bit of a step at which number k of column c has its lowest four bits (or all that it has). */
static size_t number_at(enum dtype dtype, bool tiles, uint32_t k, uint32_t c) {
    if (dtype == DTYPE_F32) return (k * 32 + c) * 32;
    if (dtype == DTYPE_F16) return (k * 32 + c) * 16;
    if (dtype == DTYPE_BF16) return (k / 2 * 32 + c) * 32 + k % 2 * 16;
    if (dtype == DTYPE_Q8_0) return (k / 4 * 32 + c) * 32 + k % 4 * 8;
    if (tiles) return ((c / 8 * 2 + k / 16) * 16 + c % 8 * 2 + k % 2) * 32 + k % 16 / 2 * 4;
    return (k / 8 * 32 + c) * 32 + k % 4 * 8 + k % 8 / 4 * 4;
}

/* Bits five and up of number k, behind the nibbles. */
static void put_high(enum dtype dtype, uint8_t *step, uint32_t k, uint32_t c, uint32_t bits) {
    uint32_t r = k / 4;
    if (dtype == DTYPE_Q6_K)
        put_bits(step + 512, (r / 4 * 32 + c) * 32 + k % 4 * 8 + r % 4 * 2, 2, bits);
    else
        put_bits(step + 512, c * 32 + k % 4 * 8 + r, 1, bits);
}

/* A block of 32 numbers, or a step of one of 256, taken apart; of q4_0 as it is stored here: q - 8. */
static void take_apart(enum dtype dtype, const uint8_t *block, uint32_t step,
                       struct block_step *out) {
    if (block_is_read_only(dtype)) {
        block_step(dtype, block, step, out);
        return;
    }
    memcpy(&out->f16_d, block, 2);
    if (dtype == DTYPE_Q4_1) memcpy(&out->f16_m, block + 2, 2);
    const uint8_t *q = block + (dtype == DTYPE_Q4_1 ? 4 : 2);
    for (uint32_t k = 0; k < 32; k++) {
        out->q[k] = dtype == DTYPE_Q8_0 ? q[k] : q[k % 16] >> k / 16 * 4 & 15;
        if (dtype == DTYPE_Q4_0) out->q[k] ^= 8;
    }
}

static void put_block_step(enum dtype dtype, bool tiles, const struct block_step *s, uint8_t *head,
                           uint8_t *step, uint32_t c) {
    const struct layout *l = &layouts[dtype];
    for (uint32_t k = 0; k < 32; k++) {
        uint32_t width = dtype == DTYPE_Q8_0 ? 8 : 4;
        put_bits(step, number_at(dtype, tiles, k, c), width, s->q[k] & ((1u << width) - 1));
        if (l->numbers > 512 && width == 4) put_high(dtype, step, k, c, s->q[k] >> 4);
    }
    uint8_t *f16 = l->head ? head : step + l->numbers;
    memcpy(f16 + 2 * c, &s->f16_d, 2);
    if (block_has_minima(dtype)) memcpy(f16 + 64 + 2 * c, &s->f16_m, 2);
    if (!l->head) return;
    step[l->numbers + c] = s->scale[0];
    step[l->numbers + 32 + c] = dtype == DTYPE_Q6_K ? s->scale[1] : s->min;
}

static void put_plain(enum dtype dtype, const uint8_t *row, uint32_t n, uint8_t *step, uint32_t c) {
    uint32_t size = dtype == DTYPE_F32 ? 4 : 2, bits;
    for (uint32_t k = 0; k < n; k++) {
        bits = 0;
        memcpy(&bits, row + (size_t)k * size, size);
        put_bits(step, number_at(dtype, false, k, c), 8 * size, bits);
    }
}

static void pack_slowly(const struct matrix *m, const uint8_t *src, uint8_t *out) {
    const struct layout *l = &layouts[m->dtype];
    uint32_t n_steps = (m->cols + 31) / 32, block_steps = dtype_block(m->dtype) == 256 ? 8 : 1;
    size_t row_bytes = dtype_row_bytes(m->dtype, m->cols);
    for (uint32_t row = 0; row < m->rows; row++, src += row_bytes)
        for (uint32_t i = 0; i < n_steps; i++) {
            size_t head_at = (size_t)i / 8 * (8 * l->step + l->head);
            uint8_t *head = out + row / 32 * m->group_bytes + head_at;
            uint8_t *step = head + l->head + (size_t)(i % 8) * l->step;
            uint32_t k = i * 32, n = m->cols - k < 32 ? m->cols - k : 32;
            if (dtype_block(m->dtype) == 1) {
                put_plain(m->dtype, src + dtype_row_bytes(m->dtype, k), n, step, row % 32);
                continue;
            }
            struct block_step s = {0};
            take_apart(m->dtype,
                       src + i / block_steps * dtype_row_bytes(m->dtype, block_steps * 32),
                       i % block_steps, &s);
            put_block_step(m->dtype, m->bf16, &s, head, step, row % 32);
        }
}

/* Any bytes are a matrix. The source ends with its memory, so that reading beyond it is seen under
 * ASan. */
static void check_pack(const struct cpu_ops *ops, enum dtype dtype, bool bf16, uint32_t rows,
                       uint32_t cols, struct rng *rng) {
    struct matrix m = {.dtype = dtype, .bf16 = bf16, .rows = rows, .cols = cols};
    size_t n = dtype_row_bytes(dtype, (size_t)rows * cols), bytes = ops->matrix_bytes(&m);
    uint8_t *src = malloc(n), *expected = calloc(1, bytes);
    m.data = calloc(1, bytes);
    for (size_t i = 0; i < n; i++)
        src[i] = (uint8_t)rng_u64(rng);
    pack_slowly(&m, src, expected);
    pack_matrix(ops, &m, src);
    const uint8_t *packed = m.data;
    for (size_t i = 0; i < bytes; i++)
        if (packed[i] != expected[i])
            fail_msg("%s%s %ux%u: byte %zu is %02x, not %02x", dtype_name(dtype),
                     bf16 ? " for bf16" : "", rows, cols, i, packed[i], expected[i]);
    free(m.data);
    free(expected);
    free(src);
}

static void packed_bytes_are_those_of_the_picture(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (!kernels_avx2()) skip();
    static const uint32_t all_rows[] = {1, 7, 8, 31, 32, 33, 75, 96};
    static const uint32_t all_cols[] = {1, 8, 31, 32, 33, 64, 96, 250, 256, 288, 512, 768};
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (enum dtype d = 0; d < DTYPE_COUNT; d++)
        for (size_t r = 0; r < ARRAY_LEN(all_rows); r++)
            for (size_t c = 0; c < ARRAY_LEN(all_cols); c++)
                for (int bf16 = 0; bf16 < 2 && all_cols[c] % dtype_block(d) == 0; bf16++)
                    check_pack(&cpu_ops_avx2, d, bf16 && (d == DTYPE_Q4_0 || d == DTYPE_Q4_1),
                               all_rows[r], all_cols[c], &rng);
#else
    skip();
#endif
}

/* ---- by several threads ------------------------------------------------------------------------- */

static void check_same_weights(const struct tiny *a, const struct tiny *b) {
    for (uint32_t l = 0; l < a->shape.n_layers; l++)
        for (uint32_t w = 0; w < WEIGHT_COUNT; w++) {
            const struct matrix *x = cpu_weight(a->dev, w, l), *y = cpu_weight(b->dev, w, l);
            assert_int_equal(x->data != NULL, y->data != NULL);
            if (!x->data || weight_is_vector(w)) continue;
            size_t bytes = div_ceil(x->rows, GROUP) * x->group_bytes;
            if (strcmp(a->k->name, "ref") == 0) bytes = x->group_bytes / GROUP * x->rows;
            if (memcmp(x->data, y->data, bytes) != 0)
                fail_msg("%s: weight %u of layer %u differs", a->k->name, w, l);
        }
}

static void weights_are_the_same_by_any_number_of_threads(void **state) {
    (void)state;
    for (uint32_t i = 0; i < n_tables; i++)
        for (enum activations a = 0; a < ACTIVATIONS_COUNT; a++)
            for (enum dtype d = DTYPE_F32; d <= DTYPE_Q4_1; d++) {
                struct tiny_options o = tiny_defaults();
                o.weights = d;
                o.activations = a;
                o.vocab = 2000;
                struct tiny one = tiny_open(tables[i], &o);
                o.n_threads = 5;
                struct tiny five = tiny_open(tables[i], &o);
                check_same_weights(&one, &five);
                tiny_close(&one);
                tiny_close(&five);
            }
}

static void nothing_task(void *arg, uint32_t task, uint32_t thread) {
    (void)arg;
    (void)task;
    (void)thread;
}

/* In a thread of this test, since it stays where it is put: its processors behind the load, and behind
 * the first phase. */
static void *load_pinned(void *arg) {
    cpu_set_t *masks = arg;
    struct tiny_options o = tiny_defaults();
    tiny_on_tiles(&o);
    o.pin = true;
    o.n_threads = 3;
    struct tiny t = tiny_open(tables[n_tables - 1], &o);
    sched_getaffinity(0, sizeof masks[0], &masks[0]);
    pool_run(t.dev->pool, nothing_task, NULL, 8);
    sched_getaffinity(0, sizeof masks[1], &masks[1]);
    tiny_close(&t);
    return NULL;
}

static void threads_are_pinned_behind_the_load(void **state) {
    (void)state;
    pthread_t loader;
    cpu_set_t own, masks[2];
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    assert_int_equal(pthread_create(&loader, NULL, load_pinned, masks), 0);
    pthread_join(loader, NULL);
    assert_true(CPU_EQUAL(&masks[0], &own));
    assert_int_equal(CPU_COUNT(&masks[1]), 1);
}

int main(void) {
    tables_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_bytes_are_those_of_the_picture),
        cmocka_unit_test(weights_are_the_same_by_any_number_of_threads),
        cmocka_unit_test(threads_are_pinned_behind_the_load),
    };
    const struct CMUnitTest on_tiles[] = {
        cmocka_unit_test(weights_are_the_same_by_any_number_of_threads),
    };
    if (tiles_are_emulated()) return cmocka_run_group_tests(on_tiles, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
