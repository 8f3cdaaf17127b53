/* rope.h: rotary frequencies of every scaling rule we know, in double. */
#ifndef GERYON_ROPE_H
#define GERYON_ROPE_H

#include <stdbool.h>

#include "kernels/base.h"

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };
const char *rope_type_name(enum rope_type type);

/* Parameters by their names in config.json; rope_init gives the defaults. */
struct rope {
    enum rope_type type;
    double theta;
    double factor;       /* s */
    double original_max; /* O: positions before scaling; 0: the model's max_position_embeddings */
    double low_freq_factor, high_freq_factor;        /* llama3; 0 = not given */
    double beta_fast, beta_slow;                     /* yarn */
    double attention_factor, mscale, mscale_all_dim; /* yarn; 0 = not given */
    bool truncate;                                   /* yarn */
};
void rope_init(struct rope *rope);

/* freq[0 .. head_dim/2): angle per position of pair (m, m + head_dim/2). *scale multiplies cos and
 * sin. Parameters outside their range are ERR_INVALID naming the key. */
int rope_frequencies(const struct rope *rope, uint32_t head_dim, uint32_t max_position,
                     double *freq, double *scale, struct err *err);

/* The llama3 rule (over rope->theta) that divides the frequencies by these head_dim / 2 factors, to
 * float32, into *rope. Factors that are all 1 leave it as it is. ERR_INVALID when there is none. */
int rope_from_factors(struct rope *rope, uint32_t head_dim, const float *factors, struct err *err);

#endif
