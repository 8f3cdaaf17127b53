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
 * get lost. */
#ifndef GERYON_KERNELS_CPU_AMX_H
#define GERYON_KERNELS_CPU_AMX_H

#include "kernels/cpu/avx512.h"

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
