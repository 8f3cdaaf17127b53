/* bench_perplexity.c: how well a model foretells a given text. */
#include <math.h>
#include <string.h>

#include "server/bench.h"

struct scoring {
    const int32_t *ids; /* of the window */
    uint32_t n_ids, vocab_size, n_scored;
    double nll;
};

/* A row is walked in vectors of four: one exp after the other would take as long as a small model's
 * forward. */
typedef float floats __attribute__((vector_size(16)));
typedef int32_t ints __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(32)));
enum { LANES = 4 };

/* x[i ..], n - i of them at most, `rest` behind. */
static inline floats load(const float *x, uint32_t i, uint32_t n, float rest) {
    floats v = rest - (floats){0};
    if (n - i >= LANES)
        memcpy(&v, x + i, sizeof v);
    else
        memcpy(&v, x + i, (n - i) * sizeof *x);
    return v;
}

/* b where one is NaN. */
static inline floats larger(floats a, floats b) {
    ints mask = a > b;
    return (floats)((mask & (ints)a) | (~mask & (ints)b));
}

/* e^x for x <= 0, within 3e-7 of it; 2^-126 where it is less. x = k ln 2 + r with |r| <= ln 2 / 2:
 * e^r by its series, 2^k by the exponent's bits. Adding 3 * 2^22 rounds to an integer, which then
 * stands in the lowest bits. */
static inline floats exp_of(floats x) {
    x = larger(-87.3365f - (floats){0}, x); /* NaN stays */
    floats shifted = x * 0x1.715476p+0f + 0x1.8p23f, k = shifted - 0x1.8p23f;
    floats r = (x - k * 0x1.63p-1f) + k * 0x1.bd0106p-13f; /* ln 2; k times the first is exact */
    floats p = r * (1 / 720.0f) + 1 / 120.0f;
    p = p * r + 1 / 24.0f;
    p = p * r + 1 / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (floats)((words)p + ((words)shifted << 23));
}

/* log of the sum of e^x over the row; sums in double. */
static double log_sum_exp(const float *x, uint32_t n) {
    floats largest = x[0] - (floats){0};
    for (uint32_t i = 0; i < n; i += LANES)
        largest = larger(load(x, i, n, x[0]), largest);
    float most = largest[0];
    for (uint32_t j = 1; j < LANES; j++)
        if (largest[j] > most) most = largest[j];
    doubles sum = {0};
    for (uint32_t i = 0; i < n; i += LANES)
        sum += __builtin_convertvector(exp_of(load(x, i, n, -INFINITY) - most), doubles);
    return log((sum[0] + sum[1]) + (sum[2] + sum[3])) + (double)most;
}

static void score_row(void *arg, uint32_t position, const float *logits) {
    struct scoring *s = arg;
    if (position + 1 >= s->n_ids) return;
    s->nll += log_sum_exp(logits, s->vocab_size) - (double)logits[s->ids[position + 1]];
    s->n_scored++;
}

int bench_perplexity(struct engine *engine, uint32_t vocab_size, const struct tokens *ids,
                     uint32_t window, struct bench_perplexity *out, struct err *err) {
    struct scoring scoring = {.vocab_size = vocab_size};
    if (window > engine_info(engine)->max_model_len) window = engine_info(engine)->max_model_len;
    for (uint32_t at = 0; at < ids->n; at += window) {
        scoring.ids = ids->ids + at;
        scoring.n_ids = ids->n - at < window ? ids->n - at : window;
        struct logits_job job = {.tokens = scoring.ids, .n_tokens = scoring.n_ids, .all = true};
        int rc = engine_logits(engine, &job, score_row, &scoring, err);
        if (rc) return rc;
    }
    if (!scoring.n_scored)
        return err_set(err, ERR_INVALID, "--perplexity: %u tokens, at least 2 are needed", ids->n);
    out->n_tokens = ids->n;
    out->n_scored = scoring.n_scored;
    out->window = window;
    out->mean_nll = scoring.nll / scoring.n_scored;
    out->perplexity = exp(out->mean_nll);
    return OK;
}
