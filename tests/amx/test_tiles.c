/* The tile unit in software: against its definition in scalar code, against the processor's own unit and
 * conversions where it has them, and what it refuses. */
#include "tests/amx/tiles.h"

#include <math.h>
#include <string.h>

#include "tests/amx/emulated.h"
#include "tests/amx/trial.h"
#include "tests/harness.h"

enum { ROWS = 16, DWORDS = 16, TRIALS = 3000 };

/* Memory of a tile. */
struct words {
    uint32_t at[ROWS][TRIAL_STRIDE / 4];
};

/* C [m][n] += A [m][k] B [k][n], in dwords. */
struct problem {
    uint32_t m, n, k;
    struct words c, a, b;
    uint8_t config[64];
};

static void set_tile(uint8_t *config, uint32_t tile, uint32_t rows, uint32_t row_bytes) {
    config[16 + 2 * tile] = (uint8_t)row_bytes;
    config[17 + 2 * tile] = (uint8_t)(row_bytes >> 8);
    config[48 + tile] = (uint8_t)rows;
}

static void configure_for(struct problem *p) {
    memset(p->config, 0, sizeof p->config);
    p->config[0] = 1;
    set_tile(p->config, 0, p->m, 4 * p->n);
    set_tile(p->config, 1, p->m, 4 * p->k);
    set_tile(p->config, 2, p->k, 4 * p->n);
}

static struct trial trial_of(struct problem *p) {
    return (struct trial){p->config, &p->c, &p->a, &p->b};
}

/* Half of the time all of a tile. */
static uint32_t draw_count(struct rng *rng) {
    return rng_below(rng, 2) ? 16 : 1 + rng_below(rng, 16);
}

/* Small exponents meet in products that are subnormal or nearly so; now and then anything at all. */
static uint32_t draw_float(struct rng *rng, uint32_t kind) {
    uint32_t bits = (uint32_t)rng_u64(rng), sign = bits & 0x80000000u, rest = bits & 0x007fffffu;
    static const uint32_t ends[] = {0,          1,          0x00010000, 0x007f0000,
                                    0x00800000, 0x7f7f0000, 0x3f800000};
    switch (kind) {
    case 0: /* about 1 */
        return sign | (120 + rng_below(rng, 14)) << 23 | rest;
    case 1: /* about 2^-63, whose squares are about the smallest normal number */
        return sign | (60 + rng_below(rng, 8)) << 23 | rest;
    case 2: /* subnormal, or large */
        return sign | (rng_below(rng, 2) ? rest : (200 + rng_below(rng, 50)) << 23 | rest);
    case 3:
        return sign | ends[rng_below(rng, ARRAY_LEN(ends))];
    default: /* infinities and NaN as well */
        return rng_below(rng, 30) ? draw_float(rng, rng_below(rng, 4)) : sign | 0x7f800000u | rest;
    }
}

static struct problem draw_problem(struct rng *rng, bool int8) {
    struct problem p = {.m = draw_count(rng), .n = draw_count(rng), .k = draw_count(rng)};
    uint32_t kind = rng_below(rng, 5);
    configure_for(&p);
    for (uint32_t r = 0; r < ROWS; r++) /* beside the tiles too: not to be read */
        for (uint32_t i = 0; i < TRIAL_STRIDE / 4; i++) {
            p.c.at[r][i] = int8 ? (uint32_t)rng_u64(rng) : draw_float(rng, kind == 1 ? 3 : kind);
            p.a.at[r][i] = (uint32_t)rng_u64(rng), p.b.at[r][i] = (uint32_t)rng_u64(rng);
            if (int8) continue;
            p.a.at[r][i] = draw_float(rng, kind) >> 16 | (draw_float(rng, kind) & 0xffff0000u);
            p.b.at[r][i] = draw_float(rng, kind) >> 16 | (draw_float(rng, kind) & 0xffff0000u);
        }
    return p;
}

/* NaN as a class alone. */
static void assert_same_words(const struct problem *p, const struct words *want, bool floats) {
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < TRIAL_STRIDE / 4; i++) {
            uint32_t a = p->c.at[r][i], b = want->at[r][i];
            bool nan = (a & 0x7fffffff) > 0x7f800000 && (b & 0x7fffffff) > 0x7f800000;
            if (a == b || (floats && nan)) continue;
            fail_msg("m %u n %u k %u: [%u][%u] is %08x, expected %08x", p->m, p->n, p->k, r, i, a,
                     b);
        }
}

/* ---- the definition ----------------------------------------------------------------------------- */

static float flushed(float x) {
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
}

static float multiply_add(float a, float b, float sum) {
    return flushed(fmaf(a, b, sum));
}

static void define_bf16(const struct problem *p, struct words *c) {
    *c = p->c;
    for (uint32_t r = 0; r < p->m; r++)
        for (uint32_t j = 0; j < p->n; j++) {
            float even = 0, odd = 0;
            for (uint32_t k = 0; k < p->k; k++) {
                uint32_t a = p->a.at[r][k], b = p->b.at[k][j];
                even = multiply_add(float_of(a << 16), float_of(b << 16), even);
                odd = multiply_add(float_of(a & 0xffff0000u), float_of(b & 0xffff0000u), odd);
            }
            float sum = flushed(float_of(p->c.at[r][j]) + flushed(even + odd));
            memcpy(&c->at[r][j], &sum, sizeof sum);
        }
}

static void define_int8(const struct problem *p, struct words *c) {
    *c = p->c;
    for (uint32_t r = 0; r < p->m; r++)
        for (uint32_t j = 0; j < p->n; j++)
            for (uint32_t k = 0; k < 4 * p->k; k++) {
                int8_t a = (int8_t)(p->a.at[r][k / 4] >> 8 * (k % 4));
                int8_t b = (int8_t)(p->b.at[k / 4][j] >> 8 * (k % 4));
                c->at[r][j] += (uint32_t)(a * b);
            }
}

static void bf16_products_are_as_defined(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (uint32_t i = 0; i < TRIALS; i++) {
        struct problem p = draw_problem(&rng, false);
        struct trial t = trial_of(&p);
        struct words want;
        define_bf16(&p, &want);
        trial_emulated.bf16(&t);
        assert_same_words(&p, &want, true);
    }
}

static void int8_products_are_as_defined(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (uint32_t i = 0; i < TRIALS; i++) {
        struct problem p = draw_problem(&rng, true);
        struct trial t = trial_of(&p);
        struct words want;
        define_int8(&p, &want);
        trial_emulated.int8(&t);
        assert_same_words(&p, &want, false);
    }
}

/* By TILEZERO, and by a configuration. */
static void tiles_become_zeros(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (uint32_t i = 0; i < 100; i++) {
        struct problem p = draw_problem(&rng, true);
        struct trial t = trial_of(&p);
        struct words want = p.c;
        for (uint32_t r = 0; r < p.m; r++)
            memset(want.at[r], 0, 4 * p.n);
        (i % 2 ? trial_emulated.zero : trial_emulated.again)(&t);
        assert_same_words(&p, &want, false);
    }
}

/* A product leaves the settings of the thread's own arithmetic. */
static void subnormal_numbers_remain_outside(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct problem p = draw_problem(&rng, false);
    struct trial t = trial_of(&p);
    trial_emulated.bf16(&t);
    volatile float tiny = 0x1p-126f;
    assert_true(tiny / 4 > 0);
}

/* ---- the processor ------------------------------------------------------------------------------ */

typedef void (*trial_fn)(const struct trial *t);

static void compare(trial_fn processor, trial_fn emulated, bool int8) {
    if (!kernels_amx()) skip(); /* which also asks the system for tiles */
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (uint32_t i = 0; i < TRIALS; i++) {
        struct problem p = draw_problem(&rng, int8), want = p;
        struct trial t = trial_of(&p), real = trial_of(&want);
        processor(&real);
        emulated(&t);
        assert_same_words(&p, &want.c, !int8);
    }
}

static void bf16_products_have_the_bits_of_a_real_tile_unit(void **state) {
    (void)state;
    compare(trial_processor.bf16, trial_emulated.bf16, false);
}

static void int8_products_have_the_bits_of_a_real_tile_unit(void **state) {
    (void)state;
    compare(trial_processor.int8, trial_emulated.int8, true);
}

static void tiles_become_zeros_as_in_a_real_tile_unit(void **state) {
    (void)state;
    compare(trial_processor.zero, trial_emulated.zero, true);
    compare(trial_processor.again, trial_emulated.again, true);
}

/* Every sign, exponent and upper half, with lower halves at and about the tie. */
static void narrowed_floats_have_the_bits_of_the_real_instruction(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx512bf16")) skip();
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xfedc};
    for (uint32_t high = 0; high < 0x10000; high += 4) {
        uint32_t bits[32];
        float x[32];
        uint16_t got[32], want[32];
        for (uint32_t i = 0; i < 32; i++)
            bits[i] = (high + i / 8) << 16 | low[i % 8];
        memcpy(x, bits, sizeof x);
        trial_processor.narrow_32(x, want);
        trial_emulated.narrow_32(x, got);
        assert_memory_equal(got, want, sizeof want);
        trial_processor.narrow_16(x + 16, want);
        trial_emulated.narrow_16(x + 16, got);
        assert_memory_equal(got, want, 16 * sizeof *want);
    }
}

/* The same where the processor has no such instruction. */
static void floats_are_narrowed_as_defined(void **state) {
    (void)state;
    static const uint32_t table[][2] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
        {0xbf807fff, 0xbf80}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
        {0x7f800001, 0x7fc0}, {0xffbfffff, 0xffff}, {0x7fc12345, 0x7fc1}, {0x00000000, 0x0000},
        {0x80000000, 0x8000}, {0x007fffff, 0x0000}, {0x807fffff, 0x8000}, {0x00800000, 0x0080}};
    float x[16];
    uint16_t got[16];
    for (uint32_t i = 0; i < 16; i++)
        memcpy(&x[i], &table[i][0], sizeof x[i]);
    tiles_narrow(x, got);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(got[i], table[i][1]);
}

/* ---- what is refused ---------------------------------------------------------------------------- */

static uint8_t config[64];
static uint8_t memory[ROWS][64];

/* Tiles 0, 1, 2 for a product of 4 rows, 5 columns and 3 dwords; 3, 4 of other shapes, 5 without one. */
static void begin_refusals(void) {
    memset(config, 0, sizeof config);
    config[0] = 1;
    set_tile(config, 0, 4, 20);
    set_tile(config, 1, 4, 12);
    set_tile(config, 2, 3, 20);
    set_tile(config, 3, 5, 12); /* a row more than A */
    set_tile(config, 4, 3, 24); /* a column more than B */
    tiles_configure(config);
}

static void configuring_trips(void) {
    assert_trips(tiles_configure(config));
}

static void moves_trip(uint32_t tile) {
    assert_trips(tiles_load(tile, memory, 64));
    assert_trips(tiles_store(tile, memory, 64));
    assert_trips(tiles_zero(tile));
}

static void products_trip(uint32_t c, uint32_t a, uint32_t b) {
    assert_trips(tiles_bf16(c, a, b));
    assert_trips(tiles_int8(c, a, b));
}

static void bad_configurations_assert(void **state) {
    (void)state;
    static const struct {
        uint32_t at, value;
    } bad[] = {
        {0, 0},   {0, 2},                     /* palette */
        {1, 1},   {2, 1},  {15, 1},           /* a row to start from, reserved bytes */
        {32, 64}, {47, 1}, {56, 16}, {63, 1}, /* tiles that palette 1 lacks */
        {16, 68}, {17, 1}, {16, 62},          /* bytes of a row: too many, no whole dwords */
        {48, 17}, {48, 0}, {16, 0},           /* rows: too many, none with bytes, bytes without */
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        begin_refusals();
        config[bad[i].at] = (uint8_t)bad[i].value;
        configuring_trips();
    }
    tiles_release();
}

static void tiles_not_configured_assert(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 2; round++) { /* before any configuration, and after release */
        moves_trip(0);
        products_trip(0, 1, 2);
        begin_refusals();
        tiles_load(0, memory, 64);
        assert_int_equal(tiles_in_use(), 1);
        for (uint32_t tile = 5; tile <= 8; tile += 3) {
            moves_trip(tile);
            products_trip(tile, 1, 2);
            products_trip(0, tile, 2);
            products_trip(0, 1, tile);
        }
        tiles_release();
        assert_int_equal(tiles_in_use(), 0);
    }
}

static void products_of_shapes_that_do_not_fit_assert(void **state) {
    (void)state;
    begin_refusals();
    tiles_bf16(0, 1, 2);
    tiles_int8(0, 1, 2);
    static const uint32_t bad[][3] = {
        {0, 3, 2}, {0, 1, 4}, {0, 2, 1}, {1, 0, 2}, /* rows, columns, depth */
        {0, 0, 2}, {0, 1, 1}, {2, 1, 2},            /* a tile twice */
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        products_trip(bad[i][0], bad[i][1], bad[i][2]);
    tiles_release();
}

/* A square tile has the shape of every operand, so that only its being named twice is wrong. */
static void one_tile_in_two_places_asserts(void **state) {
    (void)state;
    memset(config, 0, sizeof config);
    config[0] = 1;
    for (uint32_t t = 0; t < 3; t++)
        set_tile(config, t, 16, 64);
    tiles_configure(config);
    tiles_bf16(0, 1, 2);
    products_trip(0, 0, 2);
    products_trip(0, 1, 0);
    products_trip(0, 1, 1);
    tiles_release();
}

int main(void) {
    tiles_or_skip(kernels_avx512());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_products_are_as_defined),
        cmocka_unit_test(int8_products_are_as_defined),
        cmocka_unit_test(tiles_become_zeros),
        cmocka_unit_test(subnormal_numbers_remain_outside),
        cmocka_unit_test(bf16_products_have_the_bits_of_a_real_tile_unit),
        cmocka_unit_test(int8_products_have_the_bits_of_a_real_tile_unit),
        cmocka_unit_test(tiles_become_zeros_as_in_a_real_tile_unit),
        cmocka_unit_test(narrowed_floats_have_the_bits_of_the_real_instruction),
        cmocka_unit_test(floats_are_narrowed_as_defined),
        cmocka_unit_test(bad_configurations_assert),
        cmocka_unit_test(tiles_not_configured_assert),
        cmocka_unit_test(products_of_shapes_that_do_not_fit_assert),
        cmocka_unit_test(one_tile_in_two_places_asserts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
