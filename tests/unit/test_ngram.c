/* test_ngram: the look-up of a text in itself, against a search through all of it. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ngram.h"

enum { CAP = 600 };

static struct ngram *make(uint32_t cap) {
    void *memory = malloc(ngram_bytes(cap));
    assert_non_null(memory);
    memset(memory, 0xAB, ngram_bytes(cap)); /* links are not read before they are written */
    return ngram_init(memory, cap);
}

/* Longest match, then latest, by looking at every place. */
static uint32_t naive(const int32_t *tokens, uint32_t n, uint32_t *place) {
    uint32_t best = 0;
    for (uint32_t p = 1; p + 1 < n; p++) {
        uint32_t len = 0;
        while (len < NGRAM_MAX && len <= p && tokens[p - len] == tokens[n - 1 - len])
            len++;
        if (len < NGRAM_MIN || len < best) continue;
        best = len;
        *place = p;
    }
    return best;
}

static void looks_up_the_longest_then_latest_match(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int round = 0; round < 200; round++) {
        struct ngram *g = make(CAP);
        int32_t tokens[CAP], out[NGRAM_ROWS];
        uint32_t vocab = 8 + rng_below(&rng, 40), n = 0, n_found = 0;
        while (n < CAP) {
            uint32_t add = 1 + rng_below(&rng, 12); /* as much as a cycle may add */
            uint32_t from = rng_below(&rng, n + 1); /* half of it copied from before */
            for (uint32_t i = 0; i < add && n < CAP; i++, n++)
                tokens[n] =
                    round % 2 && from + i < n ? tokens[from + i] : (int32_t)rng_below(&rng, vocab);
            ngram_extend(g, tokens, n);
            uint32_t place = 0, want = naive(tokens, n, &place), got;
            uint32_t n_out = ngram_propose(g, tokens, n, 5, out, &got);
            assert_int_equal(n_out, got ? 5 : 0);
            if (n <= NGRAM_TRIES) assert_int_equal(got, want); /* all places are in reach */
            assert_true(got <= want);
            n_found += got > 0;
            if (!got || n > NGRAM_TRIES) continue;
            for (uint32_t i = 0; i < 5 && place + 1 + i < n; i++)
                assert_int_equal(out[i], tokens[place + 1 + i]);
        }
        assert_true(n_found > 0);
        free(g);
    }
}

static void loop_is_proposed_beyond_the_end_of_the_text(void **state) {
    (void)state;
    for (uint32_t period = 1; period <= 7; period++) {
        struct ngram *g = make(64);
        int32_t tokens[64], out[15];
        uint32_t n = 2 * period + 1, matched;
        for (uint32_t i = 0; i < 64; i++)
            tokens[i] = (int32_t)(i % period);
        if (n < 4) n = 4;
        ngram_extend(g, tokens, n);
        assert_int_equal(ngram_propose(g, tokens, n, 15, out, &matched), 15);
        for (uint32_t i = 0; i < 15; i++)
            assert_int_equal(out[i], tokens[n + i]);
        free(g);
    }
}

static void nothing_is_proposed_without_a_match(void **state) {
    (void)state;
    struct ngram *g = make(64);
    int32_t tokens[64], out[15];
    uint32_t matched;
    for (int i = 0; i < 64; i++)
        tokens[i] = i;
    for (uint32_t n = 1; n <= 64; n++) {
        ngram_extend(g, tokens, n);
        assert_int_equal(ngram_propose(g, tokens, n, 15, out, &matched), 0);
        assert_int_equal(matched, 0);
    }
    free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looks_up_the_longest_then_latest_match),
        cmocka_unit_test(loop_is_proposed_beyond_the_end_of_the_text),
        cmocka_unit_test(nothing_is_proposed_without_a_match),
    };
    return cmocka_run_group_tests_name("test_ngram", tests, NULL, NULL);
}
