/* gemm_amx.c: products of rows in bf16 with weights in bf16, float32 sums, on the tile unit.
 *
 *   acc[i][j] = sum_k w[j][k] x[i][k]       both rounded to bf16 (ties to even), whatever w's type is
 *   for each step of 32 k:  acc += even + odd        amx.h; the same at any row count
 *
 *   32 columns:  up to 32 rows  each step is expanded into one of eight slots, four steps before its
 *                               product, since a tile just written is slow to load: bound by the
 *                               stream (bf16), else by expanding
 *                more rows      32 x 32 outputs at a time, 4 loads for 4 products, over a chunk of
 *                               steps that stays in the first-level cache; what the next chunk needs
 *                               is expanded in halves of steps between the products
 *
 * bf16 weights are used as they lie. A tile of w is [k pair 16][16 columns] dwords, two of them side
 * by side; q4_0 and q4_1 are packed for it (pack_avx2.c): 16 dwords are 8 columns x 2 k, so that two
 * registers of floats narrow into a row of a tile without a shuffle. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/pack_avx2.h"

enum {
    TILE = ROW_TILE,
    STEP_NUMBERS = GROUP * GROUP, /* of w, and of 16 rows of x twice */
    ROW_STEP = TILE * GROUP,      /* numbers of x between the steps of a row tile */
    STRIDE = 2 * 64,              /* bytes between the rows of a tile of w */
    CHUNK = 9, /* steps: 18 KB of w and 18 of x, 4 of sums and what is expanded meanwhile share the
                  first-level cache of 48 KB */
    HALVES = 2,
    SLOTS = 8,
    AHEAD = 4,
};

/* ---- the tile unit's settings ------------------------------------------------------------------- */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as LDTILECFG reads it");

static _Thread_local uint32_t configured; /* shape, first, second in a byte each */

static void set_tile(struct tile_config *c, int tile, uint32_t rows, uint32_t row_bytes) {
    c->rows[tile] = (uint8_t)rows;
    c->row_bytes[tile] = (uint16_t)row_bytes;
}

void amx_configure(enum amx_shape shape, uint32_t first, uint32_t second) {
    uint32_t wanted = (uint32_t)shape << 16 | first << 8 | second;
    if (wanted == configured) return;
    struct tile_config c = {.palette = 1};
    bool attend = shape == AMX_ATTEND, int8 = shape == AMX_INT8;
    for (int tile = 0; tile < 4; tile++)
        set_tile(&c, tile, tile < 2 || attend ? first : second, 64);
    set_tile(&c, 4, first, int8 ? 32 : 64);
    set_tile(&c, 5, attend ? first : second, int8 || attend ? 32 : 64);
    set_tile(&c, 6, int8 ? 8 : 16, 64);
    set_tile(&c, 7, int8 || attend ? 8 : 16, 64);
    TILE_CONFIGURE(&c);
    configured = wanted;
}

void amx_release(void) {
    if (!configured) return;
    TILE_RELEASE();
    configured = 0;
}

/* ---- rows -------------------------------------------------------------------------------------- */

/* Row tiles: [row / 16][step][16][32]. */
void amx_narrow(float *x, uint32_t first, uint32_t n, uint32_t n_steps, uint16_t *rows,
                uint32_t row) {
    uint16_t *to = rows + ((size_t)(row / TILE) * n_steps + first) * ROW_STEP + row % TILE * GROUP;
    for (uint32_t s = 0; s < n; s++, x += GROUP, to += ROW_STEP)
        _mm512_store_si512(to, amx_narrow_32(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
}

/* ---- weights as bf16 ---------------------------------------------------------------------------- */

static inline __m512 f32_at(const uint8_t *p) {
    return _mm512_loadu_ps((const float *)(const void *)p);
}
static inline __m512 f16_at(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Row r of a tile from k = 2 r (even) and 2 r + 1 of 16 columns. */
static inline void put_pair(uint16_t *to, __m512 even, __m512 odd) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i both = amx_narrow_32(odd, even);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(order, both));
}

/* Each of these fills half v of a step: 16 columns. */
static void expand_f32(const uint8_t *p, uint32_t v, uint16_t *to) {
    p += 64 * v, to += v * GROUP;
    for (uint32_t r = 0; r < 16; r++, p += 256, to += 2 * GROUP)
        put_pair(to, f32_at(p), f32_at(p + 128));
}

static void expand_f16(const uint8_t *p, uint32_t v, uint16_t *to) {
    p += 32 * v, to += v * GROUP;
    for (uint32_t r = 0; r < 16; r++, p += 128, to += 2 * GROUP)
        put_pair(to, f16_at(p), f16_at(p + 64));
}

#define BYTE(z, j) _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(z, 24 - 8 * (j)), 24))
static void expand_q8_0(const uint8_t *p, uint32_t v, uint16_t *to) {
    __m512 d = f16_at(p + 1024 + 32 * v);
    for (uint32_t c = 0; c < 8; c++) {
        __m512i z = _mm512_loadu_si512(p + 128 * c + 64 * v);
        uint16_t *row = to + 4 * c * GROUP + v * GROUP;
        put_pair(row, _mm512_mul_ps(BYTE(z, 0), d), _mm512_mul_ps(BYTE(z, 1), d));
        put_pair(row + 2 * GROUP, _mm512_mul_ps(BYTE(z, 2), d), _mm512_mul_ps(BYTE(z, 3), d));
    }
}

/* 16 f16 as two registers of floats, each number twice. */
static inline void twice(const uint8_t *p, __m512 out[2]) {
    const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512 x = f16_at(p);
    out[0] = _mm512_permutexvar_ps(first, x);
    out[1] = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(8)), x);
}

#define NIBBLE(z, j) _mm512_permutexvar_ps(_mm512_srli_epi32(z, 4 * (j)), table)
#define DEFINE_EXPAND_NIBBLES(NAME, TABLE, WIDEN)                                         \
    static void NAME(const uint8_t *p, uint32_t v, uint16_t *to) {                        \
        const __m512 table = TABLE;                                                       \
        __m512 d[2], m[2];                                                                \
        twice(p + PACK_NIBBLES_BYTES + 32 * v, d);                                        \
        WIDEN##_MINIMA(m, p + PACK_NIBBLES_BYTES + 64 + 32 * v);                          \
        for (uint32_t h = 0; h < 2; h++) { /* 16 k */                                     \
            __m512i z0 = _mm512_loadu_si512(p + 256 * v + 64 * h);                        \
            __m512i z1 = _mm512_loadu_si512(p + 256 * v + 128 + 64 * h);                  \
            uint16_t *row = to + 8 * h * 2 * GROUP + v * GROUP;                           \
            _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++, row += 2 * GROUP)         \
                _mm512_store_si512(row, amx_narrow_32(WIDEN(NIBBLE(z1, j), d[1], m[1]),   \
                                                      WIDEN(NIBBLE(z0, j), d[0], m[0]))); \
        }                                                                                 \
    }
#define SCALE(q, d, m)         _mm512_mul_ps(q, d)
#define SCALE_MINIMA(m, p)     (void)m
#define SCALE_ADD(q, d, m)     _mm512_fmadd_ps(q, d, m)
#define SCALE_ADD_MINIMA(m, p) twice(p, m)
DEFINE_EXPAND_NIBBLES(expand_q4_0,
                      _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1), SCALE)
DEFINE_EXPAND_NIBBLES(expand_q4_1,
                      _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                      SCALE_ADD)

/* By way of float32, in half the width. */
static void expand_read_only(enum dtype dtype, const uint8_t *head, const uint8_t *step,
                             uint16_t *to) {
    float w[GROUP][GROUP], d[GROUP], m[GROUP] = {0};
    avx2_expand_rows(dtype, head, step, w, d, m);
    for (uint32_t v = 0; v < GROUP; v += 16) {
        __m512 dv = _mm512_loadu_ps(d + v), mv = _mm512_loadu_ps(m + v);
        for (uint32_t k = 0; k < GROUP; k += 2)
            put_pair(to + k * GROUP + 2 * v, _mm512_fmadd_ps(_mm512_loadu_ps(w[k] + v), dv, mv),
                     _mm512_fmadd_ps(_mm512_loadu_ps(w[k + 1] + v), dv, mv));
    }
}

/* Half v of step s of a group as [k pair][32 columns] dwords. Types that are only read come whole, with
 * the first; bf16 only into the second-level cache. */
static void expand_half(enum dtype dtype, const uint8_t *group, uint32_t s, uint32_t v,
                        uint16_t *to) {
    const uint8_t *step = group + pack_step_at(dtype, s);
    uint32_t bytes = pack_step_bytes(dtype);
    for (uint32_t b = bytes * v / HALVES / 64 * 64; b < bytes * (v + 1) / HALVES; b += 64)
        if (dtype == DTYPE_BF16)
            _mm_prefetch((const char *)step + b, _MM_HINT_T1);
        else
            _mm_prefetch((const char *)step + TILE_AHEAD_BYTES + b, _MM_HINT_T0);
    switch ((int)dtype) {
    case DTYPE_F32:
        expand_f32(step, v, to);
        break;
    case DTYPE_F16:
        expand_f16(step, v, to);
        break;
    case DTYPE_BF16:
        break;
    case DTYPE_Q8_0:
        expand_q8_0(step, v, to);
        break;
    case DTYPE_Q4_0:
        expand_q4_0(step, v, to);
        break;
    case DTYPE_Q4_1:
        expand_q4_1(step, v, to);
        break;
    default:
        if (v == 0) expand_read_only(dtype, group + pack_head_at(dtype, s), step, to);
    }
}

static void expand(enum dtype dtype, const uint8_t *group, uint32_t s, uint16_t *to) {
    for (uint32_t v = 0; v < HALVES; v++)
        expand_half(dtype, group, s, v, to);
}

/* ---- products ----------------------------------------------------------------------------------- */

/* One step: rows of tile 4 (and 5, `row_tile` numbers on) times 32 columns. */
static inline void step_one(const uint16_t *x, const void *w) {
    TILE_LOAD(4, x, 64);
    TILE_LOAD(6, w, STRIDE);
    TILE_BF16(0, 4, 6);
    TILE_LOAD(7, (const char *)w + 64, STRIDE);
    TILE_BF16(1, 4, 7);
}

static inline void step_two(const uint16_t *x, size_t row_tile, const void *w) {
    step_one(x, w);
    TILE_LOAD(5, x + row_tile, 64);
    TILE_BF16(2, 5, 6);
    TILE_BF16(3, 5, 7);
}

static inline void sums_zero(void) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

static inline void sums_load(float (*acc)[GROUP], bool two) {
    TILE_LOAD(0, acc, sizeof *acc);
    TILE_LOAD(1, acc[0] + 16, sizeof *acc);
    if (!two) return;
    TILE_LOAD(2, acc[TILE], sizeof *acc);
    TILE_LOAD(3, acc[TILE] + 16, sizeof *acc);
}

static inline void sums_store(float (*acc)[GROUP], bool two) {
    TILE_STORE(0, acc, sizeof *acc);
    TILE_STORE(1, acc[0] + 16, sizeof *acc);
    if (!two) return;
    TILE_STORE(2, acc[TILE], sizeof *acc);
    TILE_STORE(3, acc[TILE] + 16, sizeof *acc);
}

/* Up to 32 rows: a read of the stream. */
static void few_rows(enum dtype dtype, const uint8_t *group, uint32_t n_steps, const uint16_t *x,
                     bool two, float (*acc)[GROUP]) {
    uint16_t slots[SLOTS][STEP_NUMBERS] __attribute__((aligned(MEMORY_ALIGN)));
    bool as_it_lies = dtype == DTYPE_BF16;
    size_t row_tile = (size_t)n_steps * ROW_STEP;
    uint32_t n_expanded = 0;
    sums_zero();
    for (uint32_t s = 0; s < n_steps; s++, x += ROW_STEP) {
        const void *w = slots[s % SLOTS];
        if (as_it_lies) {
            w = group + s * sizeof slots[0];
            for (uint32_t b = 0; b < sizeof slots[0]; b += 64)
                _mm_prefetch((const char *)w + TILE_AHEAD_BYTES + b, _MM_HINT_T0);
        }
        for (; !as_it_lies && n_expanded < n_steps && n_expanded <= s + AHEAD; n_expanded++)
            expand(dtype, group, n_expanded, slots[n_expanded % SLOTS]);
        if (two)
            step_two(x, row_tile, w);
        else
            step_one(x, w);
    }
    sums_store(acc, two);
}

/* Steps of a group on their way into a panel, half by half. */
struct expansion {
    enum dtype dtype;
    const uint8_t *group;
    uint16_t (*panel)[STEP_NUMBERS];
    uint32_t first, n; /* steps */
    uint32_t done;     /* halves */
};

static void expand_next(struct expansion *e) {
    uint32_t s = e->done / HALVES;
    expand_half(e->dtype, e->group, e->first + s, e->done % HALVES, e->panel[s]);
    e->done++;
}

/* Steps first .. first + n - 1 of all rows, w [n] steps, with the expansion spread evenly over them. */
static void many_rows(const uint8_t *w, uint32_t first, uint32_t n, size_t row_tile,
                      const struct gemm_rows *in, struct expansion *next, float (*acc)[GROUP]) {
    const uint16_t *rows = in->bf16 + (size_t)first * ROW_STEP;
    uint32_t n_products = (uint32_t)div_ceil(in->n_rows, 2 * TILE) * n;
    uint32_t n_halves = next->n * HALVES, due = 0;
    for (uint32_t row = 0; row < in->n_rows; row += 2 * TILE, rows += 2 * row_tile) {
        bool two = in->n_rows - row > TILE;
        if (first == 0)
            sums_zero();
        else
            sums_load(acc + row, two);
        const uint16_t *x = rows;
        const uint8_t *at = w;
        for (uint32_t s = 0; s < n; s++, x += ROW_STEP, at += STEP_NUMBERS * 2) {
            if (two)
                step_two(x, row_tile, at);
            else
                step_one(x, at);
            for (due += n_halves; due >= n_products; due -= n_products)
                expand_next(next);
        }
        sums_store(acc + row, two);
    }
    ASSERT_SLOW(next->done == n_halves);
}

void amx_gemm_bf16(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                   float (*acc)[GROUP]) {
    const uint8_t *at = (const uint8_t *)m->data + group * m->group_bytes;
    uint32_t n_steps = (uint32_t)div_ceil(m->cols, GROUP), n_rows = in->n_rows;
    if (n_rows <= 2 * TILE) {
        bool two = n_rows > TILE;
        amx_configure(AMX_BF16, two ? TILE : n_rows, two ? n_rows - TILE : n_rows);
        few_rows(m->dtype, at, n_steps, in->bf16, two, acc);
        return;
    }
    uint16_t panels[2][CHUNK][STEP_NUMBERS] __attribute__((aligned(MEMORY_ALIGN)));
    size_t row_tile = (size_t)n_steps * ROW_STEP;
    amx_configure(AMX_BF16, TILE, TILE);
    struct expansion next = {m->dtype, at, panels[0], 0, even_part(n_steps, CHUNK), 0};
    while (next.done < next.n * HALVES)
        expand_next(&next);
    while (next.n > 0) {
        uint32_t first = next.first, n = next.n, rest = n_steps - first - n;
        const uint8_t *w = m->dtype == DTYPE_BF16 ? at + (size_t)first * sizeof panels[0][0]
                                                  : (const uint8_t *)next.panel;
        next.panel = next.panel == panels[0] ? panels[1] : panels[0];
        next.first = first + n;
        next.n = rest ? even_part(rest, CHUNK) : 0;
        next.done = 0;
        many_rows(w, first, n, row_tile, in, &next, acc);
    }
}
