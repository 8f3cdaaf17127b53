/* What makes the prefill of an Orthros model linear: base rows read the pages of their window and no
 * others, however long the text is. Counted are reads of (page, layer, kv head), one for all query
 * rows of a tile. The time that follows is measured by `make bench`. */
#include "tests/unit/tiny_model.h"

enum { POSITIONS = 16384, CHUNK = 512, WINDOW = 512, SAMPLES = 4 };

static const uint32_t lengths[SAMPLES] = {2048, 4096, 8192, 16384};

struct long_text {
    int32_t tokens[POSITIONS];
    uint32_t pages[POSITIONS / PAGE_TOKENS];
};

static struct long_text *make_text(void) {
    struct long_text *text = malloc(sizeof *text);
    struct rng rng;
    rng_seed(&rng, 5);
    for (uint32_t i = 0; i < POSITIONS; i++)
        text->tokens[i] = (int32_t)rng_below(&rng, 256);
    for (uint32_t i = 0; i < ARRAY_LEN(text->pages); i++) /* scattered: 37 has no common factor */
        text->pages[i] = i * 37 % ARRAY_LEN(text->pages);
    return text;
}

/* Pages read in all after each of the first n lengths of one prefill in chunks. */
static void count_pages(const struct kernels *k, const struct tiny_options *options, uint32_t n,
                        uint64_t *counts) {
    struct tiny_options o = *options;
    o.positions = POSITIONS;
    o.rows = CHUNK;
    struct tiny t = tiny_open(k, &o);
    struct long_text *text = make_text();
    for (uint32_t pos = 0, i = 0; i < n; pos += CHUNK) {
        struct segment rows = {.view = VIEW_BASE,
                               .pos = pos,
                               .n_rows = CHUNK,
                               .tokens = text->tokens + pos,
                               .pages = text->pages};
        tiny_forward(&t, &rows, 1);
        tiny_end(&t);
        if (pos + CHUNK == lengths[i]) counts[i++] = t.dev->kv_pages_read;
    }
    free(text);
    tiny_close(&t);
}

/* Reads of a prefill by the definition: tiles of tile_rows rows, cut anew in each chunk; a tile
 * reads all pages from its first row's first position to its last row's own. */
static uint64_t expected_pages(uint32_t n_tokens, uint32_t window, uint32_t tile_rows) {
    uint64_t n = 0;
    for (uint32_t chunk = 0; chunk < n_tokens; chunk += CHUNK)
        for (uint32_t at = 0; at < CHUNK; at += tile_rows) {
            uint32_t first = chunk + at, last = chunk + at + tile_rows - 1;
            if (last >= chunk + CHUNK) last = chunk + CHUNK - 1;
            uint32_t lo = window && first + 1 > window ? first + 1 - window : 0;
            n += last / PAGE_TOKENS - lo / PAGE_TOKENS + 1;
        }
    return n;
}

static struct tiny_options orthros(enum dtype kv) {
    struct tiny_options o = tiny_defaults();
    tiny_on_tiles(&o);
    o.orthros = true;
    o.window = WINDOW;
    o.kv = kv;
    return o;
}

enum { LAYERS = 2, KV_HEADS = 2, TILE_ROWS = QUERY_TILE / 3 }; /* of tiny_model.h */

static void windowed_prefill_reads_the_pages_of_its_windows(void **state) {
    (void)state;
    if (n_tables < 2) skip(); /* ref does not count */
    const enum dtype kinds[] = {DTYPE_BF16, DTYPE_Q8_0};
    for (uint32_t i = 1; i < n_tables; i++)
        for (size_t kv = 0; kv < ARRAY_LEN(kinds); kv++) {
            struct tiny_options o = orthros(kinds[kv]);
            uint64_t counts[SAMPLES];
            count_pages(tables[i], &o, SAMPLES, counts);
            for (uint32_t n = 0; n < SAMPLES; n++)
                assert_int_equal(counts[n],
                                 LAYERS * KV_HEADS * expected_pages(lengths[n], WINDOW, TILE_ROWS));
        }
}

/* Reads for a token between lengths[n - 1] and lengths[n]. */
static double rate(const uint64_t *counts, uint32_t n) {
    return (double)(counts[n] - counts[n - 1]) / (lengths[n] - lengths[n - 1]);
}

static void windowed_prefill_reads_as_much_for_every_token(void **state) {
    (void)state;
    if (n_tables < 2) skip(); /* ref does not count */
    for (uint32_t i = 1; i < n_tables; i++) {
        struct tiny_options o = orthros(DTYPE_BF16);
        uint64_t counts[SAMPLES];
        count_pages(tables[i], &o, SAMPLES, counts);
        double first = rate(counts, 1);
        for (uint32_t n = 2; n < SAMPLES; n++)
            if (!(fabs(rate(counts, n) / first - 1) < 0.01))
                fail_msg("%u .. %u tokens: %.3f pages a token, %.3f before", lengths[n - 1],
                         lengths[n], rate(counts, n), first);
        /* A window of positions in tiles of ten rows, and the pages that both ends cut. */
        assert_true(first > LAYERS * KV_HEADS * (WINDOW / 16.0) / TILE_ROWS);
        assert_true(first < LAYERS * KV_HEADS * (WINDOW / 16.0 + 3) / TILE_ROWS);
    }
}

static void full_attention_reads_ever_more_for_a_token(void **state) {
    (void)state;
    if (n_tables < 2) skip(); /* ref does not count */
    for (uint32_t i = 1; i < n_tables; i++) {
        struct tiny_options o = tiny_defaults();
        tiny_on_tiles(&o);
        uint64_t counts[3];
        count_pages(tables[i], &o, 3, counts);
        for (uint32_t n = 0; n < 3; n++)
            assert_int_equal(counts[n],
                             LAYERS * KV_HEADS * expected_pages(lengths[n], 0, TILE_ROWS));
        if (!(fabs(rate(counts, 2) / rate(counts, 1) - 2) < 0.02))
            fail_msg("%.3f pages a token, then %.3f", rate(counts, 1), rate(counts, 2));
    }
}

int main(void) {
    tables_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windowed_prefill_reads_the_pages_of_its_windows),
        cmocka_unit_test(windowed_prefill_reads_as_much_for_every_token),
        cmocka_unit_test(full_attention_reads_ever_more_for_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
