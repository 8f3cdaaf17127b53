/* rope.c: see rope.h. f_m = theta^(-2m/e), then the scaling rule:
 *
 *   linear   f / s
 *   llama3   by wavelength W = 2 pi / f: short ones stay, long ones are divided by s, a ramp between
 *   yarn     by dimension: fast pairs stay, slow ones are divided by s, a ramp between; cos and sin
 *            times attention_factor (Peng et al. 2023) */
#include "engine/load/rope.h"

#include <math.h>

#define PI 3.14159265358979323846

const char *rope_type_name(enum rope_type type) {
    static const char *const names[] = {"default", "linear", "llama3", "yarn"};
    return names[type];
}

void rope_init(struct rope *rope) {
    *rope = (struct rope){
        .type = ROPE_DEFAULT,
        .theta = 10000,
        .factor = 1,
        .beta_fast = 32,
        .beta_slow = 1,
        .truncate = true,
    };
}

static int check_range(const char *key, double value, double lo, double hi, struct err *err) {
    if (value >= lo && value <= hi) return OK; /* false for NaN too */
    return err_set(err, ERR_INVALID, "%s: %g, allowed are %g to %g", key, value, lo, hi);
}

static int scale_llama3(const struct rope *r, double original, uint32_t half, double *freq,
                        struct err *err) {
    int rc = check_range("low_freq_factor", r->low_freq_factor, 1e-6, 1e6, err);
    if (!rc) rc = check_range("high_freq_factor", r->high_freq_factor, 1e-6, 1e6, err);
    if (rc) return rc;
    double lo = r->low_freq_factor, hi = r->high_freq_factor;
    if (hi <= lo)
        return err_set(err, ERR_INVALID,
                       "high_freq_factor: %g, more than low_freq_factor %g wanted", hi, lo);
    for (uint32_t m = 0; m < half; m++) {
        double wavelength = 2 * PI / freq[m];
        if (wavelength < original / hi) continue;
        if (wavelength > original / lo) {
            freq[m] /= r->factor;
            continue;
        }
        double g = (original / wavelength - lo) / (hi - lo);
        freq[m] = (1 - g) * freq[m] / r->factor + g * freq[m];
    }
    return OK;
}

/* The (real) pair index whose wavelength turns n times within the original context. */
static double yarn_dimension(const struct rope *r, double original, uint32_t head_dim, double n) {
    return head_dim * log(original / (2 * PI * n)) / (2 * log(r->theta));
}

static double yarn_mscale(double factor, double c) {
    return factor <= 1 ? 1 : 0.1 * c * log(factor) + 1;
}

static int scale_yarn(const struct rope *r, double original, uint32_t head_dim, double *freq,
                      double *scale, struct err *err) {
    int rc = check_range("beta_fast", r->beta_fast, 1e-6, 1e9, err);
    if (!rc) rc = check_range("beta_slow", r->beta_slow, 1e-6, 1e9, err);
    if (!rc) rc = check_range("attention_factor", r->attention_factor, 0, 1e6, err);
    if (!rc) rc = check_range("mscale", r->mscale, 0, 1e6, err);
    if (!rc) rc = check_range("mscale_all_dim", r->mscale_all_dim, 0, 1e6, err);
    if (rc) return rc;
    double low = yarn_dimension(r, original, head_dim, r->beta_fast);
    double high = yarn_dimension(r, original, head_dim, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)head_dim - 1);
    if (low == high) high += 0.001;
    for (uint32_t m = 0; m < head_dim / 2; m++) {
        double ramp = fmin(fmax((m - low) / (high - low), 0), 1);
        freq[m] = freq[m] * (1 - ramp) + freq[m] / r->factor * ramp;
    }
    if (r->attention_factor > 0)
        *scale = r->attention_factor;
    else if (r->mscale > 0 && r->mscale_all_dim > 0)
        *scale = yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    else
        *scale = yarn_mscale(r->factor, 1);
    return OK;
}

int rope_frequencies(const struct rope *r, uint32_t head_dim, uint32_t max_position, double *freq,
                     double *scale, struct err *err) {
    int rc = check_range("rope_theta", r->theta, 1.0001, 1e15, err);
    if (!rc) rc = check_range("rope factor", r->factor, 1e-3, 1e6, err);
    double original = r->original_max > 0 ? r->original_max : max_position;
    if (!rc) rc = check_range("original_max_position_embeddings", original, 1, 2147483647, err);
    if (rc) return rc;
    *scale = 1;
    for (uint32_t m = 0; m < head_dim / 2; m++)
        freq[m] = pow(r->theta, -2.0 * m / head_dim);
    switch (r->type) {
    case ROPE_DEFAULT:
        return OK;
    case ROPE_LINEAR:
        for (uint32_t m = 0; m < head_dim / 2; m++)
            freq[m] /= r->factor;
        return OK;
    case ROPE_LLAMA3:
        return scale_llama3(r, original, head_dim / 2, freq, err);
    case ROPE_YARN:
        return scale_yarn(r, original, head_dim, freq, scale, err);
    }
    return err_set(err, ERR_INVALID, "rope_type: unknown");
}
