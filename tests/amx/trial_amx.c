#include "tests/amx/trial.h"

#include "kernels/cpu/amx.h"

struct bytes {
    uint8_t at[64];
};

static void begin(const struct trial *t) {
    TILE_CONFIGURE((const struct bytes *)t->config);
    TILE_LOAD(0, t->c, TRIAL_STRIDE);
}

static void end(const struct trial *t) {
    TILE_STORE(0, t->c, TRIAL_STRIDE);
    TILE_RELEASE();
}

static void bf16(const struct trial *t) {
    begin(t);
    TILE_LOAD(1, t->a, TRIAL_STRIDE);
    TILE_LOAD(2, t->b, TRIAL_STRIDE);
    TILE_BF16(0, 1, 2);
    end(t);
}

static void int8(const struct trial *t) {
    begin(t);
    TILE_LOAD(1, t->a, TRIAL_STRIDE);
    TILE_LOAD(2, t->b, TRIAL_STRIDE);
    TILE_INT8(0, 1, 2);
    end(t);
}

static void zero(const struct trial *t) {
    begin(t);
    TILE_ZERO(0);
    end(t);
}

static void again(const struct trial *t) {
    begin(t);
    TILE_CONFIGURE((const struct bytes *)t->config);
    end(t);
}

static void narrow_16(const float *x, uint16_t *out) {
    _mm256_storeu_si256((__m256i *)(void *)out, amx_narrow_16(_mm512_loadu_ps(x)));
}

static void narrow_32(const float *x, uint16_t *out) {
    _mm512_storeu_si512(out, amx_narrow_32(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
}

#ifdef GERYON_AMX_EMULATED
#define TRIAL_OPS trial_emulated
#else
#define TRIAL_OPS trial_processor
#endif
const struct trial_ops TRIAL_OPS = {bf16, int8, zero, again, narrow_16, narrow_32};
