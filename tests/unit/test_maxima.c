/* What the lm_head notes of its logits, and greedy draws by it: the tokens and the failures of a walk
 * over the whole vocabulary. */
#include "tests/unit/pack.h"
#include "tests/unit/tiny_model.h"

enum { LONGEST = 100, SEQUENCE = 8, PERIOD = 150 };

/* Those of the tables that this machine has. */
static const struct cpu_ops *ops[3];
static uint32_t n_ops;

static void find_ops(void) {
    ops[n_ops++] = &cpu_ops_ref;
#if defined(__x86_64__)
    if (kernels_avx2()) ops[n_ops++] = &cpu_ops_avx2;
    if (kernels_avx512()) ops[n_ops++] = &cpu_ops_avx512;
#endif
}

/* ---- the operation ---------------------------------------------------------------------------- */

static void check_maximum(const struct cpu_ops *table, const float *z, uint32_t n) {
    bool finite = true;
    uint32_t want = 0;
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && isfinite(z[i]);
        if (z[i] > z[want]) want = i;
    }
    float most = -1;
    uint32_t at = table->maximum(z, n, &most);
    assert_true(finite == !isnan(most));
    if (!finite) return;
    assert_true(most == z[want]);
    assert_int_equal(at, want);
}

/* z lies flush against what must not be read as part of it. */
static void maximum_is_the_lowest_of_the_largest(void **state) {
    (void)state;
    const float values[] = {-3.4e38f, -1, -0.0f, 0, 1e-45f, 2, 3.4e38f};
    for (uint32_t o = 0; o < n_ops; o++) {
        struct rng rng;
        rng_seed(&rng, 9);
        for (uint32_t n = 1; n <= LONGEST; n++)
            for (uint32_t round = 0; round < 60; round++) {
                float z[LONGEST + 16];
                uint32_t kinds = 1 + rng_below(&rng, 7); /* few: ties */
                for (uint32_t i = 0; i < n; i++)
                    z[i] = values[rng_below(&rng, kinds)];
                for (uint32_t i = n; i < n + 16; i++)
                    z[i] = round % 2 ? INFINITY : NAN;
                check_maximum(ops[o], z, n);
            }
    }
}

static void maximum_tells_what_is_not_finite(void **state) {
    (void)state;
    const float broken[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (uint32_t o = 0; o < n_ops; o++)
        for (uint32_t n = 1; n <= LONGEST; n++)
            for (uint32_t at = 0; at < n; at++)
                for (size_t b = 0; b < ARRAY_LEN(broken); b++) {
                    float z[LONGEST];
                    for (uint32_t i = 0; i < n; i++)
                        z[i] = (float)i;
                    z[at] = broken[b];
                    check_maximum(ops[o], z, n);
                }
}

/* ---- in a forward ----------------------------------------------------------------------------- */

/* Every number of a logit row comes `period` tokens later again, so that maxima tie across groups. */
static struct tiny open_tied(const struct kernels *k, uint32_t vocab, uint32_t period,
                             uint32_t n_threads, uint32_t broken_id, float broken) {
    struct tiny_options o = tiny_defaults();
    tiny_on_tiles(&o);
    o.vocab = vocab;
    o.untied = true;
    o.n_threads = n_threads;
    struct tiny t = tiny_open(k, &o);
    uint32_t d = t.shape.d_model;
    float *w = tiny_numbers(WEIGHT_LM_HEAD, 0, (size_t)vocab * d, 0, 0.2f);
    for (size_t i = (size_t)period * d; i < (size_t)vocab * d; i++)
        w[i] = w[i - (size_t)period * d];
    if (broken_id < vocab) w[(size_t)broken_id * d + 5] = broken;
    const struct matrix *head = cpu_weight(t.dev, WEIGHT_LM_HEAD, 0);
    void *stored = malloc(dtype_row_bytes(head->dtype, (size_t)vocab * d));
    narrow(head->dtype, w, (size_t)vocab * d, stored);
    pack_matrix(t.dev->ops, head, stored); /* over what it was */
    free(stored);
    free(w);
    return t;
}

static uint32_t slow_argmax(const float *z, uint32_t n) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (z[i] > z[at]) at = i;
    return at;
}

/* The rows of one verification of given proposals, the first `n_right` of which are right. */
static struct outcome verify(struct tiny *t, struct tiny_sequence *s, uint32_t n_right,
                             const struct rules *rules) {
    uint32_t vocab = t->shape.vocab_size, n = SEQUENCE;
    struct segment segment = tiny_segment(s, VIEW_BASE, 0, n, n);
    float *logits = malloc((size_t)n * vocab * sizeof *logits);
    t->k->slot_set(t->dev, s->slot, rules);
    for (uint32_t i = 1; i < n; i++) { /* proposals follow position 0, each the argmax before it */
        segment.n_rows = segment.n_logits = i;
        tiny_forward(t, &segment, 1);
        tiny_logits(t, i - 1, 1, logits);
        tiny_end(t);
        s->tokens[i] = (int32_t)slow_argmax(logits, vocab);
        if (i > n_right) s->tokens[i] = (s->tokens[i] + 1) % (int32_t)vocab;
    }
    segment.n_rows = segment.n_logits = n;
    segment.n_proposed = n - 1;
    segment.given = true;
    segment.pick = PICK_ACCEPT;
    segment.prompt_len = 1;
    segment.history = s->tokens;
    tiny_forward(t, &segment, 1);
    tiny_logits(t, 0, n, logits);
    assert_int_equal(t->k->accept(t->dev), OK);
    struct outcome out, want = {.slot = s->slot};
    assert_int_equal(t->k->end(t->dev, &out), OK);

    float *probs = malloc(2 * vocab * sizeof *probs);
    uint32_t *ids = calloc(3 * vocab, sizeof *ids);
    struct sample_scratch scratch = {vocab,           probs, probs + vocab, ids, ids + vocab,
                                     ids + 2 * vocab, 0};
    struct history history = segment_history(&segment);
    sample_accept(rules, s->tokens + 1, n - 1, logits, NULL, &history, &scratch, &want);
    if (out.status == OK) {
        assert_int_equal(out.n_tokens, want.n_tokens);
        assert_int_equal(out.n_accepted, want.n_accepted);
        assert_int_equal(out.n_proposed, want.n_proposed);
        assert_int_equal(out.exhausted, want.exhausted);
        assert_memory_equal(out.tokens, want.tokens, want.n_tokens * sizeof *want.tokens);
    }
    free(ids);
    free(probs);
    free(logits);
    return out;
}

static void greedy_tokens_are_those_of_the_whole_row(void **state) {
    (void)state;
    const uint32_t vocabs[] = {320, 333, 289}; /* the last group: whole, 13, 1 */
    const struct rules rules[] = {
        {.top_p = 1},
        {.top_p = 1, .n_end_ids = 1, .end_ids = {0}},
        {.top_p = 1, .n_end_ids = 2, .end_ids = {0, 7}, .min_tokens = 4}, /* reads the logits */
        {.top_p = 1, .repetition = 1.5f},
    };
    for (uint32_t i = 0; i < n_tables; i++)
        for (size_t v = 0; v < ARRAY_LEN(vocabs); v++)
            for (size_t r = 0; r < ARRAY_LEN(rules); r++)
                for (uint32_t n_right = 0; n_right < SEQUENCE; n_right += 3) {
                    struct tiny t =
                        open_tied(tables[i], vocabs[v], PERIOD, 1 + r % 3, UINT32_MAX, 0);
                    struct tiny_sequence s = tiny_sequence(2, SEQUENCE, 8, 0, 1);
                    struct outcome out = verify(&t, &s, n_right, &rules[r]);
                    assert_int_equal(out.status, OK);
                    for (uint32_t j = 0; r == 0 && j < out.n_tokens;
                         j++) /* the first of the ties */
                        assert_in_range(out.tokens[j], 0, PERIOD - 1);
                    if (r == 0) assert_int_equal(out.n_tokens, n_right + 1);
                    tiny_close(&t);
                }
}

/* Wherever it stands: in the first group, in the last, in the group of the largest. */
static void a_row_that_is_not_finite_fails(void **state) {
    (void)state;
    const uint32_t ids[] = {0, 31, 32, 200, 319, 320, 332};
    const float values[] = {NAN, INFINITY, -INFINITY};
    const struct rules rules = {.top_p = 1};
    for (uint32_t i = 0; i < n_tables; i++)
        for (size_t at = 0; at < ARRAY_LEN(ids); at++)
            for (size_t v = 0; v < ARRAY_LEN(values); v++) {
                struct tiny t = open_tied(tables[i], 333, PERIOD, 2, ids[at], values[v]);
                struct tiny_sequence s = tiny_sequence(1, SEQUENCE, 8, 0, 1);
                assert_int_equal(verify(&t, &s, 3, &rules).status, ERR_INVALID);
                tiny_close(&t);
            }
}

int main(void) {
    tables_find();
    find_ops();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maximum_is_the_lowest_of_the_largest),
        cmocka_unit_test(maximum_tells_what_is_not_finite),
        cmocka_unit_test(greedy_tokens_are_those_of_the_whole_row),
        cmocka_unit_test(a_row_that_is_not_finite_fails),
    };
    const struct CMUnitTest on_tiles[] = {
        cmocka_unit_test(greedy_tokens_are_those_of_the_whole_row),
        cmocka_unit_test(a_row_that_is_not_finite_fails),
    };
    if (tiles_are_emulated()) return cmocka_run_group_tests(on_tiles, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
