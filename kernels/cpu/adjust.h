/* adjust.h: the sampling rules that change single logits, steps 2 to 5 of "From logits to text" in
 * the README, and the counts they need. Private to kernels/cpu.
 *
 * For each token t, in float32 and in this order:
 *
 *   mask         z = -inf for end ids while fewer than min_tokens exist
 *   bias         z = z + bias[t]; -inf forbids
 *   repetition   z = z > 0 ? z / r : z * r              t anywhere in prompt or output
 *   frequency,   z = z - (f * (float)c + p)             c > 0 times in the output
 *   presence
 *
 * A token that is -inf stays so. Only a mask or a bias of -inf forbids one: a finite logit that a
 * step would carry out of float32 is held at +-FLT_MAX.
 *
 * The text is walked once a segment, not once a row: `adjust_begin` counts it into the scratch,
 * `adjust_count` adds a row's token before the next row, `adjust_end` clears what was counted, so
 * that a call costs the text's length and never the vocabulary's. A row and its verification find
 * the same counts at the same place, and so the same bits. */
#ifndef GERYON_KERNELS_CPU_ADJUST_H
#define GERYON_KERNELS_CPU_ADJUST_H

#include "kernels/kernels.h"

/* Count the text before the first row. Does nothing where the rules count nothing. */
void adjust_begin(const struct rules *rules, const struct history *history,
                  struct sample_scratch *scratch);
/* One more token of output. */
void adjust_count(const struct rules *rules, int32_t token, struct sample_scratch *scratch);
/* Forget the text. */
void adjust_end(struct sample_scratch *scratch);

/* Whether adjust_logits would touch anything. */
bool adjust_wanted(const struct rules *rules, uint32_t out_pos,
                   const struct sample_scratch *scratch);
/* Whether it touches nothing from output position out_pos on, whatever the text. */
bool adjust_never(const struct rules *rules, uint32_t out_pos);
/* Steps 2 to 5 on z [vocab], which holds neither NaN nor +inf. */
void adjust_logits(const struct rules *rules, uint32_t out_pos,
                   const struct sample_scratch *scratch, float *z);

#endif
