/* amx.h: the tile unit (AMX), for the *_amx.c files. Tiles are 16 rows of 64 bytes; a product adds
 *
 *   bf16   C[16][16] f32 += A[16][32] B[32][16]     B: row r = numbers k = 2 r, 2 r + 1 of 16 columns
 *   int8   C[16][16] i32 += A[16][4 n] B[4 n][16]   B: row r = numbers k = 4 r .. 4 r + 3
 *
 * The bf16 product sums even and odd k in two chains of fused multiply-adds from zero, ascending, then
 * C += even + odd: the order of gemm_avx2.c, so a step has the bits of the other tables, subnormal
 * numbers apart, which the unit takes for zero.
 *
 * By inline assembly: gcc 12's intrinsics leave out that memory is read, so that stores before them
 * get lost. Tests on processors without the unit have it in software: the same files compiled with
 * GERYON_AMX_EMULATED, which then need AVX-512 F, BW, DQ, VL and VNNI alone. */
#ifndef GERYON_KERNELS_CPU_AMX_H
#define GERYON_KERNELS_CPU_AMX_H

#include "kernels/cpu/avx512.h"

#ifdef GERYON_AMX_EMULATED
#include <tiles.h> /* tests/amx */

#define TILE_LOAD(t, p, stride)  tiles_load(t, p, stride)
#define TILE_STORE(t, p, stride) tiles_store(t, p, stride)
#define TILE_ZERO(t)             tiles_zero(t)
#define TILE_BF16(c, a, b)       tiles_bf16(c, a, b)
#define TILE_INT8(c, a, b)       tiles_int8(c, a, b)
#define TILE_CONFIGURE(config)   tiles_configure(config)
#define TILE_RELEASE()           tiles_release()
#else
#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((size_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride)                         \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" \
                     :                                   \
                     : "r"(p), "r"((size_t)(stride))     \
                     : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define TILE_BF16(c, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
#define TILE_INT8(c, a, b) \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
/* 64 bytes, as LDTILECFG reads them. */
#define TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(config)) : "memory")
#define TILE_RELEASE()         __asm__ volatile("tilerelease" ::: "memory")
#endif

/* Sixteen floats in bf16: ties to even, subnormal ones to zero. */
static inline __m256i amx_narrow_16(__m512 x) {
#ifdef GERYON_AMX_EMULATED
    float from[16];
    uint16_t to[16];
    _mm512_storeu_ps(from, x);
    tiles_narrow(from, to);
    return _mm256_loadu_si256((const __m256i *)(const void *)to);
#else
    return (__m256i)_mm512_cvtneps_pbh(x);
#endif
}

/* The same of thirty-two, the low ones first. */
static inline __m512i amx_narrow_32(__m512 high, __m512 low) {
#ifdef GERYON_AMX_EMULATED
    return _mm512_inserti64x4(_mm512_castsi256_si512(amx_narrow_16(low)), amx_narrow_16(high), 1);
#else
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#endif
}

enum { TILE_AHEAD_BYTES = 4096 }; /* how far ahead a stream is fetched into the first-level cache */

/* What the tiles are for. Rows of tiles 0, 1 and 4 are `first`, of 2, 3 and 5 `second` (1 .. 16). */
enum amx_shape {
    AMX_NONE,
    AMX_BF16, /* products C 0 .. 3 += A 4, 5 times B 6, 7 */
    AMX_INT8, /* the same with 32 numbers of A: B has 8 rows */
    AMX_ATTEND, /* C 0 .. 3; A 4 with B 6 as for bf16, A 5 with B 7 of half the depth; all rows `first` */
};
/* Cheap where nothing changes. */
void amx_configure(enum amx_shape shape, uint32_t first, uint32_t second);
/* At a task's end: a thread that sleeps with tiles in use costs the system their saving. */
void amx_release(void);

/* gemm_amx.c */
void amx_narrow(float *x, uint32_t first, uint32_t n, uint32_t n_steps, uint16_t *rows,
                uint32_t row);
void amx_gemm_bf16(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                   float (*acc)[GROUP]);

/* int8_amx.c */
void amx_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                   float (*acc)[GROUP]);

/* attend_avx512.c, attend_amx.c */
bool amx_attend_tile(struct device *dev, uint32_t layer, const struct attend_task *task,
                     void *scratch);
struct tile_walk;
void amx_attend_block(const struct tile_walk *w, uint32_t first, uint32_t end);
void amx_attend_queries(const struct tile_walk *w);

#endif
