/* pack_avx2.c: how the avx2 and avx512 tables keep a matrix, and reading one row of it back.
 *
 * Output columns (rows of W) in groups of 32; inside a group K ascends in steps of 32, and all that
 * one step needs lies together, so that a task reads one stream:
 *
 *   f32    [k 32][column 32] f32                                             4096 bytes a step
 *   f16    [k 32][column 32] f16                                             2048
 *   bf16   [k pair 16][column 32] dword: k even low, k odd high              2048
 *   q8_0   [k quad 8][column 32] dword: byte j = k 4c + j; f16 d[32]         1088
 *   q4_0   [k octet 4][column 32] dword: nibble j = k 8c + j; f16 d[32]       576
 *   q4_1   the same, then f16 m[32]                                           640
 *
 * Q4_0's nibbles are stored as signed numbers (q - 8). Columns and K beyond the matrix are zeros:
 * fma(0, x, e) = e for finite x, so padding changes no sum. */
#include <string.h>

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/pack_avx2.h"

static const uint32_t step_bytes[DTYPE_COUNT] = {
    [DTYPE_F32] = 4096,  [DTYPE_F16] = 2048, [DTYPE_BF16] = 2048,
    [DTYPE_Q8_0] = 1088, [DTYPE_Q4_0] = 576, [DTYPE_Q4_1] = 640,
};

uint32_t pack_step_bytes(enum dtype dtype) {
    return step_bytes[dtype];
}

size_t avx2_matrix_bytes(struct matrix *m) {
    m->group_bytes = div_ceil(m->cols, GROUP) * step_bytes[m->dtype];
    return div_ceil(m->rows, GROUP) * m->group_bytes;
}

static void put_dword(uint8_t *step, uint32_t index, uint32_t column, uint32_t value) {
    memcpy(step + ((size_t)index * GROUP + column) * 4, &value, 4);
}

static uint32_t get_dword(const uint8_t *step, uint32_t index, uint32_t column) {
    uint32_t value;
    memcpy(&value, step + ((size_t)index * GROUP + column) * 4, 4);
    return value;
}

static uint32_t nibble(const uint8_t *block, uint32_t k) {
    return k < 16 ? block[k] & 15u : block[k - 16] >> 4;
}

/* One GGUF block of 32 into column `column` of a step. */
static void pack_block(enum dtype dtype, const uint8_t *block, uint8_t *step, uint32_t column) {
    uint32_t head = dtype == DTYPE_Q4_1 ? 4 : 2, per_dword = dtype == DTYPE_Q8_0 ? 4 : 8;
    uint32_t n = GROUP / per_dword;
    for (uint32_t c = 0; c < n; c++) {
        uint32_t value = 0;
        for (uint32_t j = 0; j < per_dword; j++) {
            uint32_t k = c * per_dword + j;
            uint32_t q = dtype == DTYPE_Q8_0 ? block[head + k] : nibble(block + head, k);
            if (dtype == DTYPE_Q4_0) q ^= 8; /* q - 8 in two's complement */
            value |= q << (dtype == DTYPE_Q8_0 ? 8 * j : PACK_NIBBLE(j));
        }
        put_dword(step, c, column, value);
    }
    uint8_t *scales = step + (size_t)n * GROUP * 4;
    memcpy(scales + 2 * column, block, 2);
    if (dtype == DTYPE_Q4_1) memcpy(scales + 2 * GROUP + 2 * column, block + 2, 2);
}

/* Up to 32 plain numbers of a row into column `column` of a step. */
static void pack_plain(enum dtype dtype, const uint8_t *src, uint32_t n, uint8_t *step,
                       uint32_t column) {
    for (uint32_t k = 0; k < n; k++) {
        uint32_t at = k * GROUP + column; /* f32, f16 */
        if (dtype == DTYPE_BF16) at = (k / 2 * GROUP + column) * 2 + k % 2;
        uint32_t size = dtype == DTYPE_F32 ? 4 : 2;
        memcpy(step + (size_t)at * size, src + (size_t)k * size, size);
    }
}

void avx2_matrix_pack(const struct matrix *m, const struct tensor *src) {
    bool blocks = dtype_block(m->dtype) > 1;
    size_t row_bytes = dtype_row_bytes(m->dtype, m->cols);
    size_t block_bytes = dtype_row_bytes(m->dtype, GROUP);
    for (uint32_t row = 0; row < m->rows; row++) {
        const uint8_t *from = (const uint8_t *)src->data + row * row_bytes;
        uint8_t *step = (uint8_t *)m->data + row / GROUP * m->group_bytes;
        for (uint32_t k = 0; k < m->cols; k += GROUP) {
            uint32_t n = m->cols - k < GROUP ? m->cols - k : GROUP;
            if (blocks)
                pack_block(m->dtype, from, step, row % GROUP);
            else
                pack_plain(m->dtype, from, n, step, row % GROUP);
            from += block_bytes;
            step += step_bytes[m->dtype];
        }
    }
}

/* Column `column` of a step back into a GGUF block, or into plain numbers. */
static void unpack_block(enum dtype dtype, const uint8_t *step, uint32_t column, uint8_t *block) {
    uint32_t head = dtype == DTYPE_Q4_1 ? 4 : 2, per_dword = dtype == DTYPE_Q8_0 ? 4 : 8;
    uint32_t n = GROUP / per_dword;
    const uint8_t *scales = step + (size_t)n * GROUP * 4;
    memset(block, 0, dtype_row_bytes(dtype, GROUP));
    memcpy(block, scales + 2 * column, 2);
    if (dtype == DTYPE_Q4_1) memcpy(block + 2, scales + 2 * GROUP + 2 * column, 2);
    for (uint32_t k = 0; k < GROUP; k++) {
        uint32_t j = k % per_dword;
        uint32_t q = get_dword(step, k / per_dword, column) >>
                     (dtype == DTYPE_Q8_0 ? 8 * j : PACK_NIBBLE(j));
        if (dtype == DTYPE_Q8_0) {
            block[head + k] = (uint8_t)q;
            continue;
        }
        if (dtype == DTYPE_Q4_0) q ^= 8;
        block[head + k % 16] |= (uint8_t)((q & 15) << (k < 16 ? 0 : 4));
    }
}

static void unpack_plain(enum dtype dtype, const uint8_t *step, uint32_t column, uint8_t *out) {
    for (uint32_t k = 0; k < GROUP; k++) {
        uint32_t at = k * GROUP + column;
        if (dtype == DTYPE_BF16) at = (k / 2 * GROUP + column) * 2 + k % 2;
        uint32_t size = dtype == DTYPE_F32 ? 4 : 2;
        memcpy(out + (size_t)k * size, step + (size_t)at * size, size);
    }
}

void avx2_matrix_row(const struct matrix *m, uint32_t row, float *out) {
    uint8_t stored[GROUP * sizeof(float)];
    float wide[GROUP];
    const uint8_t *step = (const uint8_t *)m->data + row / GROUP * m->group_bytes;
    for (uint32_t k = 0; k < m->cols; k += GROUP, step += step_bytes[m->dtype]) {
        uint32_t n = m->cols - k < GROUP ? m->cols - k : GROUP;
        if (dtype_block(m->dtype) > 1)
            unpack_block(m->dtype, step, row % GROUP, stored);
        else
            unpack_plain(m->dtype, step, row % GROUP, stored);
        dtype_to_f32(m->dtype, stored, GROUP, wide);
        memcpy(out + k, wide, n * sizeof *out);
    }
}
