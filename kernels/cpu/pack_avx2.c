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

/* ---- packing ----------------------------------------------------------------------------------
 *
 * A step of a group at a time, eight columns at a time: their 32 bytes of numbers, those of blocks one
 * a byte, become eight vectors, vector r with dword r of each column. */

/* The dtype is a constant wherever these are inlined. */
#define INLINED static inline __attribute__((always_inline))

/* How far ahead blocks are fetched: 32 rows at once are more than the hardware follows, and without it
 * q4_k is packed at two thirds of the speed. */
enum { READ_AHEAD = 256 };

/* What columns beyond the matrix are packed from: numbers that are stored as zeros. */
static const uint8_t nothing[256],
    nothing_q4_0[18] = {0,    0,    0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
                        0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88};

INLINED void transpose(__m256i v[8]) {
    __m256i a0 = _mm256_unpacklo_epi32(v[0], v[1]), a1 = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i a2 = _mm256_unpacklo_epi32(v[2], v[3]), a3 = _mm256_unpackhi_epi32(v[2], v[3]);
    __m256i a4 = _mm256_unpacklo_epi32(v[4], v[5]), a5 = _mm256_unpackhi_epi32(v[4], v[5]);
    __m256i a6 = _mm256_unpacklo_epi32(v[6], v[7]), a7 = _mm256_unpackhi_epi32(v[6], v[7]);
    __m256i b0 = _mm256_unpacklo_epi64(a0, a2), b1 = _mm256_unpackhi_epi64(a0, a2);
    __m256i b2 = _mm256_unpacklo_epi64(a1, a3), b3 = _mm256_unpackhi_epi64(a1, a3);
    __m256i b4 = _mm256_unpacklo_epi64(a4, a6), b5 = _mm256_unpackhi_epi64(a4, a6);
    __m256i b6 = _mm256_unpacklo_epi64(a5, a7), b7 = _mm256_unpackhi_epi64(a5, a7);
    v[0] = _mm256_permute2x128_si256(b0, b4, 0x20), v[4] = _mm256_permute2x128_si256(b0, b4, 0x31);
    v[1] = _mm256_permute2x128_si256(b1, b5, 0x20), v[5] = _mm256_permute2x128_si256(b1, b5, 0x31);
    v[2] = _mm256_permute2x128_si256(b2, b6, 0x20), v[6] = _mm256_permute2x128_si256(b2, b6, 0x31);
    v[3] = _mm256_permute2x128_si256(b3, b7, 0x20), v[7] = _mm256_permute2x128_si256(b3, b7, 0x31);
}

/* Bits shift .. of every byte, as many as `mask` has. */
INLINED __m256i bits_of(const uint8_t *bytes, uint32_t shift, uint8_t mask) {
    __m256i shifted = _mm256_srl_epi16(avx2_load(bytes), _mm_cvtsi32_si128((int)shift));
    return _mm256_and_si256(shifted, _mm256_set1_epi8((char)mask));
}

/* 16 bytes of nibbles: the low halves, then the high ones. */
INLINED __m256i halves_of(const uint8_t *bytes) {
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_srli_epi16(low, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* 16 in every byte whose bit is set. */
INLINED __m256i fifths_of(const uint8_t bits[4]) {
    int32_t word;
    memcpy(&word, bits, sizeof word);
    const __m256i byte_of =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(word), byte_of);
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

/* The 32 numbers of a step of a block, one a byte, as stored: blocks.c has the layouts. */
INLINED __m256i numbers_of(enum dtype dtype, const uint8_t *block, uint32_t step) {
    const uint8_t *low, *high;
    switch ((int)dtype) {
    case DTYPE_Q8_0:
        return avx2_load(block + 2);
    case DTYPE_Q4_0: /* q - 8 in two's complement */
        return _mm256_xor_si256(halves_of(block + 2), _mm256_set1_epi8(8));
    case DTYPE_Q4_1:
        return halves_of(block + 4);
    case DTYPE_Q5_0:
        return _mm256_or_si256(halves_of(block + 6), fifths_of(block + 2));
    case DTYPE_Q5_1:
        return _mm256_or_si256(halves_of(block + 8), fifths_of(block + 4));
    case DTYPE_Q4_K:
        return bits_of(block + 16 + step / 2 * GROUP, step % 2 * 4, 15);
    case DTYPE_Q5_K:
        low = block + 48 + step / 2 * GROUP;
        return _mm256_or_si256(bits_of(low, step % 2 * 4, 15),
                               _mm256_slli_epi16(bits_of(block + 16, step, 1), 4));
    default: /* q6_k */
        low = block + step / 4 * 64 + step % 2 * GROUP;
        high = block + 128 + step / 4 * GROUP;
        return _mm256_or_si256(bits_of(low, step % 4 / 2 * 4, 15),
                               _mm256_slli_epi16(bits_of(high, step % 4 * 2, 3), 4));
    }
}

INLINED void put(uint8_t *to, __m256i v) {
    _mm256_storeu_si256((__m256i *)(void *)to, v);
}

/* Bits of quads r (a number's, four and up) in place, shifted left by r times their width. */
INLINED __m256i high_bits(__m256i quad, uint32_t r, uint32_t width) {
    __m256i bits =
        _mm256_and_si256(_mm256_srli_epi32(quad, 4), _mm256_set1_epi8(width == 2 ? 3 : 1));
    return _mm256_sll_epi32(bits, _mm_cvtsi32_si128((int)(r * width)));
}

/* Blocks of up to six bits: eight columns from `to`, their first nibbles, on. */
INLINED void pack_nibbles(enum dtype dtype, __m256i v[8], uint8_t *to) {
    const __m256i low = _mm256_set1_epi8(15);
    transpose(v);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) { /* as PACK_NIBBLE has it */
        __m256i odd = _mm256_slli_epi32(_mm256_and_si256(v[2 * i + 1], low), 4);
        put(to + i * 4 * GROUP, _mm256_or_si256(_mm256_and_si256(v[2 * i], low), odd));
    }
    uint32_t n_high = (pack_scales_at(dtype) - PACK_NIBBLES_BYTES) / (4 * GROUP); /* dwords */
    for (uint32_t i = 0; i < n_high; i++) {
        uint32_t n = GROUP / 4 / n_high;
        __m256i bits = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (uint32_t r = 0; r < n; r++)
            bits = _mm256_or_si256(bits, high_bits(v[i * n + r], r, n_high));
        put(to + PACK_NIBBLES_BYTES + i * 4 * GROUP, bits);
    }
}

/* The order of tiles: the numbers of one column, nibbles, to its pair of dwords in either half of K. */
INLINED void pack_tile_nibbles(__m256i q, uint8_t *to) {
    const __m256i weights = _mm256_set1_epi32(16 << 16 | 1); /* two nibbles to a byte */
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(q, _mm256_set1_epi16(255)), weights);
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(q, 8), weights);
    __m256i bytes = _mm256_packus_epi32(even, odd);
    bytes = _mm256_packus_epi16(bytes, bytes);
    _mm_storel_epi64((__m128i *)(void *)to, _mm256_castsi256_si128(bytes));
    _mm_storel_epi64((__m128i *)(void *)(to + 64), _mm256_extracti128_si256(bytes, 1));
}

/* Step `step` of the blocks `at` of eight columns from `column` on. */
INLINED void pack_columns(enum dtype dtype, bool tiles, const uint8_t *const *at, uint32_t step,
                          uint8_t *to, uint32_t column) {
    __m256i v[8];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; i++)
        v[i] = numbers_of(dtype, at[i], step);
    if (tiles) {
        for (uint32_t i = 0; i < 8; i++)
            pack_tile_nibbles(v[i], to + column * 16 + i * 8);
        return;
    }
    if (dtype != DTYPE_Q8_0) {
        pack_nibbles(dtype, v, to + 4 * column);
        return;
    }
    transpose(v);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; i++)
        put(to + i * 4 * GROUP + 4 * column, v[i]);
}

/* The scales of a column's block, whose steps begin at `to` and its head, if it has one, at `head`. */
INLINED void pack_scales(enum dtype dtype, const uint8_t *block, uint8_t *head, uint8_t *to,
                         uint32_t column) {
    bool k_type = pack_head_bytes(dtype) > 0;
    uint8_t *scales = to + pack_scales_at(dtype), *f16 = k_type ? head : scales;
    memcpy(f16 + 2 * column, block + (dtype == DTYPE_Q6_K ? 208 : 0), 2);
    if (block_has_minima(dtype)) memcpy(f16 + 2 * GROUP + 2 * column, block + 2, 2);
    if (!k_type) return;
    uint8_t of_steps[2][PACK_HEAD_STEPS]; /* scales and minima; of q6_k, scales of the halves */
    if (dtype == DTYPE_Q6_K) {
        for (uint32_t i = 0; i < PACK_HEAD_STEPS; i++)
            of_steps[0][i] = block[192 + 2 * i], of_steps[1][i] = block[193 + 2 * i];
    } else {
        uint32_t p[3]; /* blocks.c: four steps a word */
        memcpy(p, block + 4, sizeof p);
        const uint32_t words[4] = {
            p[0] & 0x3f3f3f3f, (p[2] & 0x0f0f0f0f) | (p[0] >> 2 & 0x30303030), p[1] & 0x3f3f3f3f,
            (p[2] >> 4 & 0x0f0f0f0f) | (p[1] >> 2 & 0x30303030)};
        memcpy(of_steps, words, sizeof words);
    }
    for (uint32_t i = 0; i < PACK_HEAD_STEPS; i++, scales += pack_step_bytes(dtype)) {
        scales[column] = of_steps[0][i];
        scales[GROUP + column] = of_steps[1][i];
    }
}

/* n rows of blocks, one behind another, to a group. */
INLINED void pack_blocks(enum dtype dtype, const struct matrix *m, const uint8_t *rows, uint32_t n,
                         uint8_t *group) {
    const uint32_t n_steps = pack_head_bytes(dtype) ? PACK_HEAD_STEPS : 1; /* of a block */
    size_t row_bytes = dtype_row_bytes(dtype, m->cols);
    size_t block_bytes = dtype_row_bytes(dtype, n_steps * GROUP);
    bool tiles = m->bf16 && (dtype == DTYPE_Q4_0 || dtype == DTYPE_Q4_1);
    const uint8_t *at[GROUP];
    for (uint32_t i = 0; i < m->cols / GROUP; i += n_steps) {
        uint8_t *to = group + pack_step_at(dtype, i), *head = group + pack_head_at(dtype, i);
        for (uint32_t c = 0; c < GROUP; c++) {
            at[c] = dtype == DTYPE_Q4_0 ? nothing_q4_0 : nothing;
            if (c < n) at[c] = rows + c * row_bytes + i / n_steps * block_bytes;
            for (uint32_t ahead = 0; ahead < block_bytes; ahead += 64)
                __builtin_prefetch(at[c] + READ_AHEAD + ahead);
            pack_scales(dtype, at[c], head, to, c);
        }
        for (uint32_t s = 0; s < n_steps; s++, to += pack_step_bytes(dtype))
            for (uint32_t c = 0; c < GROUP; c += 8)
                pack_columns(dtype, tiles, at + c, s, to, c);
    }
}

/* Part `part`, of 32 bytes, of a step of plain numbers of eight columns. */
INLINED void pack_plain(enum dtype dtype, const uint8_t *const *at, uint32_t part, uint8_t *to,
                        uint32_t column) {
    __m256i v[8];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; i++)
        v[i] = avx2_load(at[i] + part * 32);
    transpose(v);
    to += part * 8 * 4 * GROUP;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; i++, to += 4 * GROUP) {
        if (dtype != DTYPE_F16) {
            put(to + 4 * column, v[i]);
            continue;
        }
        __m256i low = _mm256_and_si256(v[i], _mm256_set1_epi32(0xffff));
        __m256i halves = _mm256_packus_epi32(low, _mm256_srli_epi32(v[i], 16));
        halves = _mm256_permute4x64_epi64(halves, 0xd8); /* k even, k odd, of eight columns */
        __m128i *even = (__m128i *)(void *)(to + 2 * column);
        _mm_storeu_si128(even, _mm256_castsi256_si128(halves));
        _mm_storeu_si128(even + 4, _mm256_extracti128_si256(halves, 1));
    }
}

/* n rows of plain numbers; what the last step lacks of 32 is read as zeros. */
INLINED void pack_numbers(enum dtype dtype, const struct matrix *m, const uint8_t *rows, uint32_t n,
                          uint8_t *to) {
    size_t row_bytes = dtype_row_bytes(dtype, m->cols), step_bytes = dtype_row_bytes(dtype, GROUP);
    const uint8_t *at[GROUP];
    uint8_t last[GROUP][GROUP * sizeof(float)] = {0};
    for (size_t first = 0; first < row_bytes; first += step_bytes, to += pack_step_bytes(dtype)) {
        for (uint32_t c = 0; c < GROUP; c++) {
            at[c] = c < n ? rows + c * row_bytes + first : nothing;
            if (c >= n || row_bytes - first >= step_bytes) continue;
            at[c] = memcpy(last[c], at[c], row_bytes - first);
        }
        for (uint32_t part = 0; part < step_bytes / 32; part++)
            for (uint32_t c = 0; c < GROUP; c += 8)
                pack_plain(dtype, at + c, part, to, c);
    }
}

#define PACK(KIND, DTYPE)                   \
    case DTYPE:                             \
        pack_##KIND(DTYPE, m, rows, n, to); \
        break

void avx2_pack_group(const struct matrix *m, uint32_t group, const void *rows) {
    uint32_t left = m->rows - group * GROUP, n = left < GROUP ? left : GROUP;
    uint8_t *to = (uint8_t *)m->data + group * m->group_bytes;
    switch (m->dtype) {
        PACK(numbers, DTYPE_F32);
        PACK(numbers, DTYPE_BF16);
        PACK(numbers, DTYPE_F16);
        PACK(blocks, DTYPE_Q8_0);
        PACK(blocks, DTYPE_Q4_0);
        PACK(blocks, DTYPE_Q4_1);
        PACK(blocks, DTYPE_Q5_0);
        PACK(blocks, DTYPE_Q5_1);
        PACK(blocks, DTYPE_Q4_K);
        PACK(blocks, DTYPE_Q5_K);
        PACK(blocks, DTYPE_Q6_K);
    case DTYPE_COUNT:
        break;
    }
}

/* ---- reading one row back ---------------------------------------------------------------------- */

static uint32_t get_dword(const uint8_t *step, uint32_t index, uint32_t column) {
    uint32_t value;
    memcpy(&value, step + ((size_t)index * GROUP + column) * 4, 4);
    return value;
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

/* The higher bits of quad r (numbers k = 4 r + j, one a byte): which dword of a column they are in,
 * how far they are shifted, and what they fill of each byte. */
static uint32_t high_shift(enum dtype dtype, uint32_t r, uint32_t *index, uint32_t *mask) {
    bool pairs = dtype == DTYPE_Q6_K;
    *index = pairs ? r / 4 : 0;
    *mask = pairs ? 0x03030303 : dtype == DTYPE_Q4_K ? 0 : 0x01010101;
    return pairs ? r % 4 * 2 : r;
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

static void unpack_row(const struct matrix *m, uint32_t row, float *out) {
    const uint8_t *group = (const uint8_t *)m->data + row / GROUP * m->group_bytes;
    struct block_step s;
    for (uint32_t i = 0; i < m->cols / GROUP; i++) {
        unpack_step(m->dtype, group + pack_head_at(m->dtype, i), group + pack_step_at(m->dtype, i),
                    row % GROUP, &s);
        block_step_widen(m->dtype, &s, out + i * GROUP);
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
