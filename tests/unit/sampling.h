/* sampling.h: what the tests of the sampler share: scratch, laws by chi-square, and a slow reading of
 * the rules to compare with. */
#ifndef GERYON_TESTS_SAMPLING_H
#define GERYON_TESTS_SAMPLING_H

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/harness.h"

/* A row that decides output position pos, for rules that count nothing. */
#define AT(pos) (&(struct history){.n_tokens = (pos)})

enum { VOCAB_MAX = 4096 };

static float probs_buf[VOCAB_MAX], draft_buf[VOCAB_MAX];
static uint32_t ids_buf[VOCAB_MAX], counts_buf[VOCAB_MAX], counted_buf[VOCAB_MAX];

static inline struct sample_scratch *scratch_for(uint32_t vocab) {
    static struct sample_scratch scratch = {.probs = probs_buf,
                                            .draft = draft_buf,
                                            .ids = ids_buf,
                                            .counts = counts_buf,
                                            .counted = counted_buf};
    scratch.vocab = vocab;
    return &scratch;
}

/* Every call leaves its counts as it found them. */
static inline void assert_counts_are_clear(void) {
    assert_int_equal(scratch_for(1)->n_counted, 0);
    for (uint32_t i = 0; i < VOCAB_MAX; i++)
        assert_int_equal(counts_buf[i], 0);
}

static inline struct rules plain_rules(float temperature) {
    return (struct rules){.temperature = temperature, .top_p = 1};
}

enum { POOL_BELOW = 5 }; /* cells expected to hold fewer are one cell together */

/* Fail unless the counts fit the law: chi-square below the normal quantile `limit` (Wilson and
 * Hilferty's approximation). Cells of probability 0 must be empty. */
static inline void assert_law_within(const uint32_t *counts, const double *law, size_t n,
                                     double limit, const char *what) {
    double total = 0, chi2 = 0, df = -1, pooled = 0, pooled_law = 0;
    for (size_t i = 0; i < n; i++)
        total += counts[i];
    for (size_t i = 0; i <= n; i++) {
        double expected = i < n ? total * law[i] : pooled_law;
        double count = i < n ? (double)counts[i] : pooled;
        if (expected <= 0 && count > 0) fail_msg("%s: cell %zu has probability 0", what, i);
        if (expected <= 0) continue;
        if (i < n && expected < POOL_BELOW) {
            pooled += count, pooled_law += expected;
            continue;
        }
        chi2 += (count - expected) * (count - expected) / expected;
        df++;
    }
    double k = 2 / (9 * df), border = df * pow(1 - k + limit * sqrt(k), 3);
    if (df > 0 && chi2 > border)
        fail_msg("%s: chi-square %.1f of %.0f degrees, at most %.1f", what, chi2, df, border);
}

/* At p > 0.001. */
static inline void assert_law(const uint32_t *counts, const double *law, size_t n,
                              const char *what) {
    assert_law_within(counts, law, n, 3.0902, what);
}

/* Times that an id occurs among n tokens. */
static inline uint32_t slow_count(const int32_t *tokens, uint32_t n, int32_t id) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += tokens[i] == id;
    return count;
}

/* Mask, bias, penalties for one id, by the words; number is float or double, so that one text is the
 * definition in the product's own precision and its check in a better one. */
#define SLOW_ADJUST(number)                                                                       \
    static inline number slow_adjust_##number(const struct rules *rules, const struct history *h, \
                                              int32_t id, number z) {                             \
        const int32_t *output = h->tokens + h->n_prompt;                                          \
        uint32_t n_output = h->n_tokens - h->n_prompt;                                            \
        uint32_t in_prompt = slow_count(h->tokens, h->n_prompt, id);                              \
        uint32_t in_output =                                                                      \
            slow_count(output, n_output, id) + slow_count(h->drafted, h->n_drafted, id);          \
        for (uint32_t i = 0; i < rules->n_end_ids; i++)                                           \
            if (rules->end_ids[i] == id && n_output + h->n_drafted < rules->min_tokens)           \
                return -INFINITY;                                                                 \
        for (uint32_t i = 0; i < rules->n_bias; i++)                                              \
            if (rules->bias[i].id == id) z += (number)rules->bias[i].value;                       \
        if (rules->repetition > 0 && in_prompt + in_output > 0)                                   \
            z = z > 0 ? z / (number)rules->repetition : z * (number)rules->repetition;            \
        if (in_output > 0) {                                                                      \
            number frequency = (number)rules->frequency * (number)in_output;                      \
            z -= frequency + (number)rules->presence;                                             \
        }                                                                                         \
        return z;                                                                                 \
    }
SLOW_ADJUST(float)
SLOW_ADJUST(double)

struct place {
    double score; /* (z - max) / T */
    uint32_t id;
};

static inline int falling(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* The steps after mask, bias and penalties: sort everything, then cut. False when a border is too near to call. */
static inline bool slow_rules(const struct rules *rules, const float *z, uint32_t vocab,
                              struct place *places, uint32_t *n_kept) {
    double max = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++)
        max = z[i] > max ? z[i] : max;
    for (uint32_t i = 0; i < vocab; i++) /* the float steps of the rules: ties must stay ties */
        places[i] = (struct place){(double)((z[i] - (float)max) / rules->temperature), i};
    qsort(places, vocab, sizeof *places, falling);
    uint32_t n = vocab;
    while (n > 0 && places[n - 1].score == -INFINITY)
        n--;
    if (rules->min_p > 0)
        for (uint32_t i = n; i-- > 0;) {
            double ratio = exp(places[i].score);
            if (fabs(ratio - (double)rules->min_p) < 1e-5 * ratio) return false;
            if (ratio < (double)rules->min_p) n = i;
        }
    if (rules->top_k > 0 && rules->top_k < n) n = rules->top_k;
    if (rules->top_p < 1) {
        double total = 0, sum = 0;
        uint32_t i = 0;
        for (uint32_t j = 0; j < n; j++)
            total += exp(places[j].score);
        do {
            sum += exp(places[i++].score);
            if (fabs(sum / total - (double)rules->top_p) < 1e-5) return false;
        } while (i < n && sum / total < (double)rules->top_p);
        n = i;
    }
    *n_kept = n;
    return true;
}

/* argmax(score + g); false when the two best are too near to call. */
static inline bool slow_draw(const struct rules *rules, const struct place *places, uint32_t n,
                             uint32_t out_pos, uint32_t purpose, int32_t *token) {
    double best = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t counter[4] = {out_pos, rules->choice, purpose, places[i].id / 4}, words[4];
        philox4x32(counter, rules->seed, words);
        double total = places[i].score + (double)gumbel_noise(words[places[i].id % 4]);
        if (total > best)
            second = best, best = total, *token = (int32_t)places[i].id;
        else if (total > second)
            second = total;
    }
    return best - second > 1e-4;
}

static inline void random_rules(struct rng *rng, struct rules *rules, uint32_t vocab) {
    static const float temperatures[] = {0.01f, 0.5f, 0.8f, 1, 2};
    *rules = plain_rules(temperatures[rng_below(rng, 5)]);
    if (rng_below(rng, 2)) rules->top_k = 1 + rng_below(rng, vocab + 3);
    if (rng_below(rng, 2)) rules->top_p = (float)rng_unit(rng);
    if (rng_below(rng, 3) == 0) rules->min_p = (float)(rng_unit(rng) * rng_unit(rng));
    rules->seeded = rng_below(rng, 2);
    rules->seed = rng_u64(rng);
    rules->choice = rng_below(rng, 3);
}

#endif
