/* pack_avx2.c: how the avx2, avx512 and amx tables keep a matrix, and reading one row of it back.
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
 *   q5_0   nibbles of q4_1 (512); fifth bits [column 32] dword; f16 d[32]     704
 *   q5_1   the same, then f16 m[32]                                           768
 *   q4_k   nibbles; scale[32], min[32], bytes                                 576, and a head
 *   q5_k   nibbles; fifth bits; scale[32], min[32]                            704, and a head
 *   q6_k   nibbles; bits five and six [k half 2][column 32] dword;
 *          int8 scale[k half 2][32]                                           832, and a head
 *
 * Every eight steps of a K type follow a head: f16 d[32], q4_k and q5_k also f16 m[32]. Higher bits
 * lie so that four numbers of a column take theirs by one shift and one mask, each into its byte:
 *
 *   fifth bits   k = 4 r + j: bit r of byte j              a pair: bits 2 (r % 4) and up of byte j
 *
 * For rows in bf16 (the amx table) q4_0 and q4_1 have the nibbles of a step by 8 columns and 16 k, in
 * the order in which gemm_amx.c fills the rows of a tile:
 *
 *   [columns 8 v .. 4][k half 2][column 8][k odd 2] dword: nibble j = k 2 j, from bit 4 j on
 *
 * Q4_0's nibbles are stored as signed numbers (q - 8). Columns and K beyond the matrix are zeros, in
 * the types below q4_1 for d and m at least: fma(0, x, e) = e for finite x, so padding changes no
 * sum. */
#include <string.h>

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/pack_avx2.h"

size_t avx2_matrix_bytes(struct matrix *m) {
    m->group_bytes = pack_bytes(m->dtype, (uint32_t)div_ceil(m->cols, GROUP));
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

/* Where a step has number k of a column of q8_0, q4_0 or q4_1: a dword, and its lowest bit there. */
struct place {
    uint32_t dword, shift;
};

static struct place place_of(const struct matrix *m, uint32_t k, uint32_t column) {
    if (m->dtype == DTYPE_Q8_0) return (struct place){k / 4 * GROUP + column, k % 4 * 8};
    if (!m->bf16) return (struct place){k / 8 * GROUP + column, PACK_NIBBLE(k % 8)};
    uint32_t lanes = column / 8 * 2 + k / 16;
    return (struct place){lanes * 16 + column % 8 * 2 + k % 2, k % 16 / 2 * 4};
}

static uint32_t block_head(enum dtype dtype) {
    return dtype == DTYPE_Q4_1 ? 4 : 2;
}

/* One GGUF block of 32 into column `column` of a step. */
static void pack_block(const struct matrix *m, const uint8_t *block, uint8_t *step,
                       uint32_t column) {
    enum dtype dtype = m->dtype;
    uint32_t head = block_head(dtype);
    for (uint32_t k = 0; k < GROUP; k++) /* a dword has one column */
        put_dword(step, 0, place_of(m, k, column).dword, 0);
    for (uint32_t k = 0; k < GROUP; k++) {
        struct place at = place_of(m, k, column);
        uint32_t q = dtype == DTYPE_Q8_0 ? block[head + k] : nibble(block + head, k);
        if (dtype == DTYPE_Q4_0) q ^= 8; /* q - 8 in two's complement */
        put_dword(step, 0, at.dword, get_dword(step, 0, at.dword) | q << at.shift);
    }
    uint8_t *scales = step + pack_scales_at(dtype);
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

/* ---- types that are only read ----------------------------------------------------------------- */

/* The higher bits of quad r (numbers k = 4 r + j, one a byte): which dword of a column they are in,
 * how far they are shifted, and what they fill of each byte. */
static uint32_t high_shift(enum dtype dtype, uint32_t r, uint32_t *index, uint32_t *mask) {
    bool pairs = dtype == DTYPE_Q6_K;
    *index = pairs ? r / 4 : 0;
    *mask = pairs ? 0x03030303 : dtype == DTYPE_Q4_K ? 0 : 0x01010101;
    return pairs ? r % 4 * 2 : r;
}

static uint32_t high_dwords(enum dtype dtype) {
    return (pack_scales_at(dtype) - PACK_NIBBLES_BYTES) / (GROUP * 4);
}

static void pack_step(enum dtype dtype, const struct block_step *s, uint8_t *head, uint8_t *step,
                      uint32_t column) {
    uint8_t *high = step + PACK_NIBBLES_BYTES, *scales = step + pack_scales_at(dtype);
    uint32_t nibbles[4] = {0}, bits[2] = {0};
    for (uint32_t r = 0, quad, i, mask; r < GROUP / 4; r++) {
        memcpy(&quad, s->q + 4 * r, sizeof quad);
        nibbles[r / 2] |= (quad & 0x0f0f0f0f) << r % 2 * 4; /* as PACK_NIBBLE has it */
        uint32_t shift = high_shift(dtype, r, &i, &mask);
        bits[i] |= (quad >> 4 & mask) << shift;
    }
    for (uint32_t i = 0; i < 4; i++)
        put_dword(step, i, column, nibbles[i]);
    for (uint32_t i = 0; i < high_dwords(dtype); i++)
        put_dword(high, i, column, bits[i]);
    bool k_type = pack_head_bytes(dtype) > 0;
    uint8_t *f16 = k_type ? head : scales;
    memcpy(f16 + 2 * column, &s->f16_d, 2);
    if (block_has_minima(dtype)) memcpy(f16 + 2 * GROUP + 2 * column, &s->f16_m, 2);
    if (!k_type) return;
    scales[column] = s->scale[0];
    scales[GROUP + column] = dtype == DTYPE_Q6_K ? s->scale[1] : s->min;
}

static void unpack_step(enum dtype dtype, const uint8_t *head, const uint8_t *step, uint32_t column,
                        struct block_step *s) {
    const uint8_t *high = step + PACK_NIBBLES_BYTES, *scales = step + pack_scales_at(dtype);
    *s = (struct block_step){0};
    for (uint32_t r = 0, i, mask; r < GROUP / 4; r++) {
        uint32_t quad = get_dword(step, r / 2, column) >> r % 2 * 4 & 0x0f0f0f0f;
        uint32_t shift = high_shift(dtype, r, &i, &mask);
        if (mask) quad |= (get_dword(high, i, column) >> shift & mask) << 4;
        memcpy(s->q + 4 * r, &quad, sizeof quad);
    }
    bool k_type = pack_head_bytes(dtype) > 0;
    const uint8_t *f16 = k_type ? head : scales;
    memcpy(&s->f16_d, f16 + 2 * column, 2);
    if (block_has_minima(dtype)) memcpy(&s->f16_m, f16 + 2 * GROUP + 2 * column, 2);
    if (k_type) {
        s->scale[0] = scales[column];
        s->scale[1] = s->min = scales[GROUP + column];
    }
    block_step_finish(dtype, s);
}

/* A row of n_steps into column `column` of a group. */
static void pack_row(enum dtype dtype, const uint8_t *row, uint32_t n_steps, uint8_t *group,
                     uint32_t column) {
    uint32_t block_steps = dtype_block(dtype) / GROUP;
    size_t block_bytes = dtype_row_bytes(dtype, dtype_block(dtype));
    struct block_step s;
    for (uint32_t i = 0; i < n_steps; i++) {
        block_step_load(dtype, row + i / block_steps * block_bytes, i % block_steps, &s);
        uint8_t *head = group + pack_head_at(dtype, i);
        pack_step(dtype, &s, head, group + pack_step_at(dtype, i), column);
    }
}

static void unpack_row(const struct matrix *m, uint32_t row, float *out) {
    const uint8_t *group = (const uint8_t *)m->data + row / GROUP * m->group_bytes;
    struct block_step s;
    for (uint32_t i = 0; i < m->cols / GROUP; i++) {
        unpack_step(m->dtype, group + pack_head_at(m->dtype, i), group + pack_step_at(m->dtype, i),
                    row % GROUP, &s);
        block_step_widen(m->dtype, &s, out + i * GROUP);
    }
}

/* ---- all types -------------------------------------------------------------------------------- */

void avx2_matrix_pack(const struct matrix *m, const struct tensor *src) {
    bool blocks = dtype_block(m->dtype) > 1, read_only = block_is_read_only(m->dtype);
    size_t row_bytes = dtype_row_bytes(m->dtype, m->cols);
    size_t block_bytes = read_only ? 0 : dtype_row_bytes(m->dtype, GROUP);
    for (uint32_t row = 0; row < m->rows; row++) {
        const uint8_t *from = (const uint8_t *)src->data + row * row_bytes;
        uint8_t *step = (uint8_t *)m->data + row / GROUP * m->group_bytes;
        if (read_only) {
            pack_row(m->dtype, from, m->cols / GROUP, step, row % GROUP);
            continue;
        }
        for (uint32_t k = 0; k < m->cols; k += GROUP) {
            uint32_t n = m->cols - k < GROUP ? m->cols - k : GROUP;
            if (blocks)
                pack_block(m, from, step, row % GROUP);
            else
                pack_plain(m->dtype, from, n, step, row % GROUP);
            from += block_bytes;
            step += pack_step_bytes(m->dtype);
        }
    }
}

/* Column `column` of a step back into a GGUF block, or into plain numbers. */
static void unpack_block(const struct matrix *m, const uint8_t *step, uint32_t column,
                         uint8_t *block) {
    enum dtype dtype = m->dtype;
    uint32_t head = block_head(dtype);
    const uint8_t *scales = step + pack_scales_at(dtype);
    memset(block, 0, dtype_row_bytes(dtype, GROUP));
    memcpy(block, scales + 2 * column, 2);
    if (dtype == DTYPE_Q4_1) memcpy(block + 2, scales + 2 * GROUP + 2 * column, 2);
    for (uint32_t k = 0; k < GROUP; k++) {
        struct place at = place_of(m, k, column);
        uint32_t q = get_dword(step, 0, at.dword) >> at.shift;
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
    if (block_is_read_only(m->dtype)) {
        unpack_row(m, row, out);
        return;
    }
    uint8_t stored[GROUP * sizeof(float)];
    float wide[GROUP];
    const uint8_t *step = (const uint8_t *)m->data + row / GROUP * m->group_bytes;
    for (uint32_t k = 0; k < m->cols; k += GROUP, step += pack_step_bytes(m->dtype)) {
        uint32_t n = m->cols - k < GROUP ? m->cols - k : GROUP;
        if (dtype_block(m->dtype) > 1)
            unpack_block(m, step, row % GROUP, stored);
        else
            unpack_plain(m->dtype, step, row % GROUP, stored);
        dtype_to_f32(m->dtype, stored, GROUP, wide);
        memcpy(out + k, wide, n * sizeof *out);
    }
}
