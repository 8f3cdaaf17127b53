/* passes.h: what the sampler does to a whole vocabulary, in the widest vectors of the machine: sample.c
 * decides, these loop. Private to kernels/cpu, and no part of a kernel table: the sampler serves every
 * table, and all widths give the same bits. One text (passes_body.h) is compiled for each width.
 *
 * z, scores: [n] float32 without NaN or +inf, -inf: masked or dropped. Scores are <= 0.
 *
 * The weight of a score s stands for exp(s): in float64 within 1e-8 of it, by multiplications and
 * additions in one order; 0 below -700. Sums of weights run in eight lanes, id mod 8, ids ascending,
 * and end as ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). */
#ifndef GERYON_KERNELS_CPU_PASSES_H
#define GERYON_KERNELS_CPU_PASSES_H

#include <stdint.h>

enum { WEIGHT_LANES = 8, SCORE_BINS = 1024 };

/* Where noise words come from: counter words 0 to 2, and the key, of Philox4x32-10. Token t owns word
 * t % 4 of block t / 4. */
struct noise_place {
    uint32_t counter[3];
    uint64_t key;
};

struct passes {
    const char *name; /* "plain", "avx2", "avx512" */
    /* z = logits; NaN as -inf, +inf as FLT_MAX. */
    void (*clean)(const float *logits, uint32_t n, float *z);
    /* The largest, ties to the smallest id; NaN (allowed here) never wins. -1: nothing above -inf. */
    int32_t (*argmax)(const float *z, uint32_t n);
    /* z = (z - max) / temperature. */
    void (*scores)(float *z, uint32_t n, float max, float temperature);
    /* z cut into 16 * ceil(n / (16 * len)) sets of at most len numbers; the largest of each. */
    uint32_t (*maxima)(const float *z, uint32_t n, uint32_t len, float *out);
    /* Scores below `least` become -inf; the ids of those above -inf into ids [n], ascending; returns
     * how many. */
    uint32_t (*list)(float *scores, uint32_t n, float least, uint32_t *ids);
    /* The ids of scores lo <= s < hi, ascending, into ids; returns how many. */
    uint32_t (*between)(const float *scores, uint32_t n, float lo, float hi, uint32_t *ids);
    /* Sum of the weights of scores >= least. */
    double (*total)(const float *scores, uint32_t n, float least);
    /* sum [SCORE_BINS]: the weights of scores >= least by score_bin, each bin's added in order of id. */
    void (*bins)(const float *scores, uint32_t n, float least, float scale, double *sum);
    /* out = log(max(p - q, 0)), in float32, where p and q are weights times p_share, q_share; q NULL:
     * all 0. Differences below 1e-37 count as 0, whose logarithm is -inf. out may be q. */
    void (*residual)(const float *p, double p_share, const float *q, double q_share, uint32_t n,
                     float *out);
    /* Of tokens lo .. hi - 1 (lo a multiple of 64), those whose score with its noise may reach `floor`:
     * none that does is left out. Their ids and noise words; returns how many. */
    uint32_t (*noisy)(const float *scores, uint32_t lo, uint32_t hi,
                      const struct noise_place *place, float floor, uint32_t *ids, uint32_t *words);
};

extern const struct passes passes_plain;
#if defined(__x86_64__)
extern const struct passes passes_avx2, passes_avx512;
#endif

/* The widest that this machine runs. */
const struct passes *passes_find(void);

/* The weight of one score. */
double score_weight(float score);

/* Bins of one width, 1 / scale, from the last (score 0) down; the first takes all that is lower. */
static inline uint32_t score_bin(float score, float scale) {
    float down = score * -scale;
    return SCORE_BINS - 1 - (down < SCORE_BINS - 1 ? (uint32_t)down : SCORE_BINS - 1);
}

#endif
