/* tiles.h: the tile unit (AMX) in software, so that the amx table's code runs on every processor
 * with AVX-512. Files compiled with GERYON_AMX_EMULATED call this in place of instructions (amx.h).
 *
 * Eight tiles a thread, up to 16 rows of 64 bytes; what a configured tile does not fill is zero. Each
 * function asserts what the processor would fault on (Intel SDM, volume 2: #GP of LDTILECFG, exception
 * classes AMX-E1 to AMX-E5), so that a test sees it by name. The sums are amx.h's, and those of the SDM.
 *
 * Stricter than the processor: a palette of 0 (to release is tiles_release's), a row to start from (for
 * an interrupted load alone), and rows that are no whole dwords are refused at once. */
#ifndef GERYON_TILES_H
#define GERYON_TILES_H

#include <stddef.h>
#include <stdint.h>

/* LDTILECFG of 64 bytes: all tiles become zeros. */
void tiles_configure(const void *config);
/* TILERELEASE. */
void tiles_release(void);

/* TILELOADD, TILESTORED, TILEZERO. */
void tiles_load(uint32_t tile, const void *p, size_t stride);
void tiles_store(uint32_t tile, void *p, size_t stride);
void tiles_zero(uint32_t tile);

/* TDPBF16PS: subnormal numbers are zeros, going in and coming out. TDPBSSD: modulo 2^32. */
void tiles_bf16(uint32_t c, uint32_t a, uint32_t b);
void tiles_int8(uint32_t c, uint32_t a, uint32_t b);

/* VCVTNEPS2BF16 of sixteen: ties to even, subnormal numbers to zero, NaN quiet. */
void tiles_narrow(const float *x, uint16_t *out);

/* Threads whose tiles are configured, and products so far, of all threads. Absent (NULL) in programs
 * whose tile unit is the processor's. */
__attribute__((weak)) uint32_t tiles_in_use(void);
__attribute__((weak)) uint64_t tiles_products(void);

#endif
