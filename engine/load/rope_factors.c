/* rope_factors.c: the llama3 rule back from the factors that a GGUF file keeps in its place
 * (rope_freqs.weight: by what each frequency is divided, in float32).
 *
 *   factor of pair m:  1 / ((1 - g) / s + g),  g = (O / W - lo) / (hi - lo) cut to 0 .. 1,  W = 2 pi / f
 *
 * O, lo and hi count only by their ratios, so lo = 1 (as in every published model). s is the largest
 * factor; pairs on the ramp give a line g = a / W + b, hence hi and O. Few pairs leave a choice: then
 * hi = 4, also as published. What comes out is held against every factor. */
#include <math.h>
#include <stdlib.h>

#include "engine/load/rope.h"

#define TWO_PI 6.28318530717958647692

enum { TOLERANCE_E7 = 20 }; /* relative, of float32 factors: 2e-6 */

static bool close_to(double a, double b) {
    return fabs(a - b) <= TOLERANCE_E7 * 1e-7 * fabs(b);
}

/* What the factors say before any guess. */
struct ramp {
    double theta, s;
    uint32_t head_dim;
    uint32_t n;                        /* pairs on the ramp */
    double x[2], g[2];                 /* 1 / W and g of the first and the last of them */
    double longest_kept, shortest_cut; /* wavelengths; 0: none */
};

static void read_ramp(struct ramp *r, const float *factors) {
    for (uint32_t m = 0; m < r->head_dim / 2; m++)
        if (factors[m] > r->s) r->s = factors[m];
    for (uint32_t m = 0; m < r->head_dim / 2; m++) {
        double x = pow(r->theta, -2.0 * m / r->head_dim) / TWO_PI, f = factors[m];
        if (close_to(f, 1)) {
            r->longest_kept = 1 / x;
        } else if (close_to(f, r->s)) {
            if (r->shortest_cut == 0) r->shortest_cut = 1 / x;
        } else {
            uint32_t at = r->n++ ? 1 : 0;
            r->x[at] = x;
            r->g[at] = (1 / f - 1 / r->s) / (1 - 1 / r->s);
        }
    }
}

static bool rule_holds(const struct rope *rope, uint32_t head_dim, const float *factors) {
    double *freq = calloc(head_dim / 2 + 1, sizeof *freq), scale;
    struct err ignored;
    bool holds = freq && rope_frequencies(rope, head_dim, 1, freq, &scale, &ignored) == OK;
    for (uint32_t m = 0; holds && m < head_dim / 2; m++)
        holds = close_to(pow(rope->theta, -2.0 * m / head_dim) / freq[m], factors[m]);
    free(freq);
    return holds;
}

/* The rule with these numbers, rounded to whole ones where that fits as well. */
static bool try_rule(struct rope *rope, const struct ramp *r, double hi, double original,
                     const float *factors) {
    const double tries[3][2] = {
        {round(hi), round(original)}, {hi, round(original)}, {hi, original}};
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        struct rope candidate = *rope;
        candidate.type = ROPE_LLAMA3;
        candidate.factor = r->s;
        candidate.low_freq_factor = 1;
        candidate.high_freq_factor = tries[i][0];
        candidate.original_max = tries[i][1];
        if (!rule_holds(&candidate, r->head_dim, factors)) continue;
        *rope = candidate;
        return true;
    }
    return false;
}

int rope_from_factors(struct rope *rope, uint32_t head_dim, const float *factors, struct err *err) {
    struct ramp r = {.theta = rope->theta, .head_dim = head_dim};
    read_ramp(&r, factors);
    if (close_to(r.s, 1) && r.n == 0) return OK; /* nothing is scaled */
    bool found = false;
    if (r.n >= 2) {
        double a = (r.g[0] - r.g[1]) / (r.x[0] - r.x[1]), b = r.g[0] - a * r.x[0];
        double hi = 1 - 1 / b;
        found = b < 0 && try_rule(rope, &r, hi, a * (hi - 1), factors);
    } else if (r.n == 1) {
        found = try_rule(rope, &r, 4, (3 * r.g[0] + 1) / r.x[0], factors);
    } else {
        double from = 4 * r.longest_kept, to = r.shortest_cut, usual = 8192;
        double original = usual > from && usual < to ? usual : from > 0 ? sqrt(from * to) : to / 2;
        found = try_rule(rope, &r, 4, original, factors);
    }
    if (found) return OK;
    return err_set(err, ERR_INVALID,
                   "rope_freqs.weight: no llama3 rule gives these factors, so config.json cannot "
                   "hold them");
}
