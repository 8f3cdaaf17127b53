/* peaks_amx.c: the loops of peaks.h on the tile unit. Reads are avx512's. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/peaks.h"

/* Four independent sums, as the products of gemm_amx.c have them; tiles full of zeros take as long as
 * others. */
#define DEFINE_MULTIPLY_ADD(NAME, PRODUCT)      \
    static float NAME(uint32_t rounds) {        \
        float c[16 * 16];                       \
        amx_configure(AMX_BF16, 16, 16);        \
        TILE_ZERO(0);                           \
        TILE_ZERO(1);                           \
        TILE_ZERO(2);                           \
        TILE_ZERO(3);                           \
        TILE_ZERO(4);                           \
        TILE_ZERO(5);                           \
        TILE_ZERO(6);                           \
        TILE_ZERO(7);                           \
        for (uint32_t r = 0; r < rounds; r++) { \
            PRODUCT(0, 4, 6);                   \
            PRODUCT(1, 4, 7);                   \
            PRODUCT(2, 5, 6);                   \
            PRODUCT(3, 5, 7);                   \
        }                                       \
        TILE_STORE(0, c, 64);                   \
        amx_release();                          \
        return c[0];                            \
    }
DEFINE_MULTIPLY_ADD(multiply_add_bf16, TILE_BF16)
DEFINE_MULTIPLY_ADD(multiply_add_int8, TILE_INT8)

const struct peaks_ops peaks_ops_amx_bf16 = {.multiply_add = multiply_add_bf16,
                                             .round_flops = 4 * 16 * 16 * 32 * 2};
const struct peaks_ops peaks_ops_amx_int8 = {.multiply_add = multiply_add_int8,
                                             .round_flops = 4 * 16 * 16 * 64 * 2};
