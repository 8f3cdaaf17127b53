/* synthetic.h: models made in memory: a well-known shape with random weights, for benchmarks of
 * models that are not at hand. They load, run and cost like the real ones; what they say is noise.
 *
 *   SPEC = NAME[,window=N][,drafts=B][,msar]    NAME: tiny smollm2-135m qwen3-1.7b qwen3-8b
 *                                            llama3.1-8b
 *
 * window=N: Orthros streams (identity affines); drafts=B: an Orthrus view with blocks of B rows;
 * msar: MSAR residual path with kernels 1 4 8 12 and 4 branches a block. */
#ifndef GERYON_SYNTHETIC_H
#define GERYON_SYNTHETIC_H

#include "engine/load/config.h"
#include "engine/model.h"

/* The configuration that spec names. ERR_INVALID naming the part that is wrong; *out then needs no
 * fini. */
int synthetic_config(const char *spec, struct config *out, struct err *err);

/* model_load for options->synthetic on a given table. dtype auto = bf16, as such checkpoints have.
 * The tokenizer has a made-up word for every id. */
int synthetic_load(const struct model_options *options, const struct kernels *kernels,
                   struct model **out, struct err *err);

#endif
