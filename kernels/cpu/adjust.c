#include "kernels/cpu/adjust.h"

#include <float.h>
#include <math.h>

static bool repeats(const struct rules *rules) {
    return rules->repetition > 0 && rules->repetition != 1;
}

static bool counts_output(const struct rules *rules) {
    return rules->frequency != 0 || rules->presence != 0;
}

/* ---- counts ------------------------------------------------------------------------------------ */

static void see(int32_t token, uint32_t n_output, struct sample_scratch *scratch) {
    ASSERT_SLOW(token >= 0);
    ASSERT_SLOW((uint32_t)token < scratch->vocab);
    uint32_t *count = &scratch->counts[token];
    if (*count == 0) {
        scratch->counted[scratch->n_counted++] = (uint32_t)token;
        *count = 1;
    }
    *count += n_output;
}

void adjust_begin(const struct rules *rules, const struct history *history,
                  struct sample_scratch *scratch) {
    ASSERT(scratch->n_counted == 0);
    if (!repeats(rules) && !counts_output(rules)) return;
    ASSERT(history->n_prompt <= history->n_tokens);
    if (repeats(rules))
        for (uint32_t i = 0; i < history->n_prompt; i++)
            see(history->tokens[i], 0, scratch);
    for (uint32_t i = history->n_prompt; i < history->n_tokens; i++)
        see(history->tokens[i], 1, scratch);
    for (uint32_t i = 0; i < history->n_drafted; i++)
        see(history->drafted[i], 1, scratch);
}

void adjust_count(const struct rules *rules, int32_t token, struct sample_scratch *scratch) {
    if (repeats(rules) || counts_output(rules)) see(token, 1, scratch);
}

void adjust_end(struct sample_scratch *scratch) {
    for (uint32_t i = 0; i < scratch->n_counted; i++)
        scratch->counts[scratch->counted[i]] = 0;
    scratch->n_counted = 0;
}

/* ---- the steps --------------------------------------------------------------------------------- */

static float held(float z) {
    return z > FLT_MAX ? FLT_MAX : z < -FLT_MAX ? -FLT_MAX : z;
}

static bool masks_ends(const struct rules *rules, uint32_t out_pos) {
    return out_pos < rules->min_tokens && rules->n_end_ids > 0;
}

static void mask_ends(const struct rules *rules, uint32_t vocab, float *z) {
    ASSERT(rules->n_end_ids <= MAX_END_IDS);
    for (uint32_t i = 0; i < rules->n_end_ids; i++)
        if ((uint32_t)rules->end_ids[i] < vocab) z[rules->end_ids[i]] = -INFINITY;
}

static void add_bias(const struct rules *rules, float *z) {
    for (uint32_t i = 0; i < rules->n_bias; i++) {
        const struct bias *bias = &rules->bias[i];
        float *at = &z[bias->id];
        if (*at > -INFINITY) *at = bias->value > -INFINITY ? held(*at + bias->value) : -INFINITY;
    }
}

static void penalise(const struct rules *rules, const struct sample_scratch *scratch, float *z) {
    bool repetition = repeats(rules), output = counts_output(rules);
    for (uint32_t i = 0; i < scratch->n_counted; i++) {
        uint32_t id = scratch->counted[i], n_output = scratch->counts[id] - 1;
        float *at = &z[id];
        if (*at == -INFINITY) continue;
        if (repetition) *at = held(*at > 0 ? *at / rules->repetition : *at * rules->repetition);
        if (output && n_output > 0)
            *at = held(*at - (rules->frequency * (float)n_output + rules->presence));
    }
}

bool adjust_wanted(const struct rules *rules, uint32_t out_pos,
                   const struct sample_scratch *scratch) {
    return masks_ends(rules, out_pos) || rules->n_bias > 0 || scratch->n_counted > 0;
}

bool adjust_never(const struct rules *rules, uint32_t out_pos) {
    return !masks_ends(rules, out_pos) && rules->n_bias == 0 && !repeats(rules) &&
           !counts_output(rules);
}

void adjust_logits(const struct rules *rules, uint32_t out_pos,
                   const struct sample_scratch *scratch, float *z) {
    if (masks_ends(rules, out_pos)) mask_ends(rules, scratch->vocab, z);
    add_bias(rules, z);
    penalise(rules, scratch, z);
}
