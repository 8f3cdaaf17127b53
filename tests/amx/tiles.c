#include "tests/amx/tiles.h"

#include <immintrin.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/base.h"

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

/* Where LDTILECFG's bytes lie; those between are reserved. By number and not by the kernels' struct,
 * which is under test. */
enum { PALETTE = 0, START_ROW = 1, ROW_BYTES_AT = 16, ROWS_AT = 48, CONFIG_BYTES = 64 };

struct tile {
    uint8_t row[ROWS][ROW_BYTES] __attribute__((aligned(64)));
    uint32_t rows, row_bytes; /* 0: not configured */
};

static _Thread_local struct {
    struct tile tiles[TILES];
    bool configured;
} unit;

static _Atomic uint32_t n_in_use;
static _Atomic uint64_t n_products;

uint32_t tiles_in_use(void) {
    return atomic_load(&n_in_use);
}

uint64_t tiles_products(void) {
    return atomic_load(&n_products);
}

/* ---- configuration ------------------------------------------------------------------------------ */

static void check_reserved(const uint8_t *config, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++)
        ASSERT(config[i] == 0);
}

void tiles_configure(const void *config) {
    const uint8_t *bytes = config;
    struct tile tiles[TILES];
    memset(tiles, 0, sizeof tiles);
    ASSERT(bytes[PALETTE] == 1);
    ASSERT(bytes[START_ROW] == 0);
    check_reserved(bytes, START_ROW + 1, ROW_BYTES_AT);
    check_reserved(bytes, ROW_BYTES_AT + 2 * TILES, ROWS_AT);
    check_reserved(bytes, ROWS_AT + TILES, CONFIG_BYTES);
    for (uint32_t t = 0; t < TILES; t++) {
        const uint8_t *at = bytes + ROW_BYTES_AT + 2 * t;
        tiles[t].row_bytes = at[0] | (uint32_t)at[1] << 8;
        tiles[t].rows = bytes[ROWS_AT + t];
        ASSERT(tiles[t].row_bytes <= ROW_BYTES);
        ASSERT(tiles[t].row_bytes % 4 == 0);
        ASSERT(tiles[t].rows <= ROWS);
        ASSERT((tiles[t].rows == 0) == (tiles[t].row_bytes == 0));
    }
    if (!unit.configured) atomic_fetch_add(&n_in_use, 1);
    unit.configured = true;
    memcpy(unit.tiles, tiles, sizeof tiles);
}

void tiles_release(void) {
    if (unit.configured) atomic_fetch_sub(&n_in_use, 1);
    memset(&unit, 0, sizeof unit);
}

static struct tile *tile_at(uint32_t t) {
    ASSERT(unit.configured);
    ASSERT(t < TILES);
    ASSERT(unit.tiles[t].rows > 0);
    return &unit.tiles[t];
}

/* ---- memory ------------------------------------------------------------------------------------- */

/* By calls of memcpy, so that sanitizers see what is read and written (Makefile). */

void tiles_load(uint32_t tile, const void *p, size_t stride) {
    struct tile *t = tile_at(tile);
    for (uint32_t r = 0; r < t->rows; r++)
        memcpy(t->row[r], (const char *)p + r * stride, t->row_bytes);
}

void tiles_store(uint32_t tile, void *p, size_t stride) {
    const struct tile *t = tile_at(tile);
    for (uint32_t r = 0; r < t->rows; r++)
        memcpy((char *)p + r * stride, t->row[r], t->row_bytes);
}

void tiles_zero(uint32_t tile) {
    struct tile *t = tile_at(tile);
    memset(t->row, 0, sizeof t->row);
}

/* ---- products ----------------------------------------------------------------------------------- */

struct operands {
    struct tile *c;
    const struct tile *a, *b;
};

static struct operands operands(uint32_t c, uint32_t a, uint32_t b) {
    struct operands o = {tile_at(c), tile_at(a), tile_at(b)};
    ASSERT(c != a && a != b && b != c);
    ASSERT(o.c->rows == o.a->rows);
    ASSERT(o.a->row_bytes == 4 * o.b->rows);
    ASSERT(o.c->row_bytes == o.b->row_bytes);
    atomic_fetch_add_explicit(&n_products, 1, memory_order_relaxed);
    return o;
}

/* Dword k of a row of A, sixteen times. */
static __m512i repeated(const uint8_t *row, uint32_t k) {
    int32_t x;
    memcpy(&x, row + 4 * k, sizeof x);
    return _mm512_set1_epi32(x);
}

/* Columns that C does not have stay zero, whatever an infinity of A makes of the zeros of B. */
static void store_columns(struct tile *c, uint32_t row, __m512i x) {
    __mmask16 columns = (__mmask16)((1u << c->row_bytes / 4) - 1);
    _mm512_store_si512(c->row[row], _mm512_maskz_mov_epi32(columns, x));
}

static __m512 even_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

static __m512 odd_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

static void multiply_bf16(const struct operands *o) {
    for (uint32_t r = 0; r < o->c->rows; r++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (uint32_t k = 0; k < o->b->rows; k++) {
            __m512i x = repeated(o->a->row[r], k), w = _mm512_load_si512(o->b->row[k]);
            even = _mm512_fmadd_ps(even_of(x), even_of(w), even);
            odd = _mm512_fmadd_ps(odd_of(x), odd_of(w), odd);
        }
        __m512 sum = _mm512_castsi512_ps(_mm512_load_si512(o->c->row[r]));
        sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
        store_columns(o->c, r, _mm512_castps_si512(sum));
    }
}

void tiles_bf16(uint32_t c, uint32_t a, uint32_t b) {
    enum { MASKED = 0x1f80, FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 }; /* to nearest */
    /* By an address read at run time: so no compiler moves arithmetic across the settings. */
    static void (*volatile multiply)(const struct operands *) = multiply_bf16;
    struct operands o = operands(c, a, b);
    unsigned before = _mm_getcsr();
    _mm_setcsr(MASKED | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
    multiply(&o);
    _mm_setcsr(before);
}

static __m512i byte_of(__m512i x, uint32_t i) {
    return _mm512_srai_epi32(_mm512_sll_epi32(x, _mm_cvtsi32_si128((int)(24 - 8 * i))), 24);
}

void tiles_int8(uint32_t c, uint32_t a, uint32_t b) {
    struct operands o = operands(c, a, b);
    for (uint32_t r = 0; r < o.c->rows; r++) {
        __m512i sum = _mm512_load_si512(o.c->row[r]);
        for (uint32_t k = 0; k < o.b->rows; k++) {
            __m512i x = repeated(o.a->row[r], k), w = _mm512_load_si512(o.b->row[k]);
            for (uint32_t i = 0; i < 4; i++)
                sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(byte_of(x, i), byte_of(w, i)));
        }
        store_columns(o.c, r, sum);
    }
}

/* ---- bf16 --------------------------------------------------------------------------------------- */

void tiles_narrow(const float *x, uint16_t *out) {
    __m512 floats = _mm512_loadu_ps(x);
    __m512i bits = _mm512_castps_si512(floats), top = _mm512_srli_epi32(bits, 16);
    __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __m512i bias =
        _mm512_add_epi32(_mm512_and_si512(top, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    __m512i narrow = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x00800000));
    narrow = _mm512_mask_or_epi32(narrow, nan, top, _mm512_set1_epi32(0x0040));
    narrow = _mm512_mask_and_epi32(narrow, small, top, _mm512_set1_epi32(0x8000));
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi32_epi16(narrow));
}
