/* gguf_model.h: what a GGUF file says about a model of ours: configuration, tensor names,
 * vocabulary. Tensors of the usual set carry llama.cpp's names; extension tensors keep their
 * safetensors names and are stored as in safetensors (their rows are not permuted). */
#ifndef GERYON_GGUF_MODEL_H
#define GERYON_GGUF_MODEL_H

#include "engine/load/config.h"
#include "engine/load/gguf.h"
#include "engine/tokenizer/tokenizer.h"

enum { GGUF_MODEL_NAME_CAP = 160 };

/* Configuration from the metadata; embed_rows, tied and the biases come from the tensor table.
 * rope_freqs.weight is not seen here: gguf_model_rope_factors applies it. */
int gguf_model_config(const struct gguf *gguf, struct config *out, struct err *err);

/* Divide the rope table by the n_factors = head_dim / 2 factors of rope_freqs.weight. */
int gguf_model_rope_factors(struct config *config, const float *factors, uint64_t n_factors,
                            struct err *err);

/* The safetensors name of a tensor into out; a name we do not translate is kept as it is.
 * ERR_INVALID when it does not fit. *permuted: 0, or 1 for q and 2 for k of a llama file, whose
 * rows the converter has reordered within each head: row 2m + s of the file is row m + s * e/2. */
int gguf_model_tensor_name(const struct gguf_tensor *tensor, bool llama,
                           char out[GGUF_MODEL_NAME_CAP], int *permuted, struct err *err);

/* Vocabulary for tokenizer_from_gguf; gguf_model_vocab_free frees what it points to. */
int gguf_model_vocab(const struct gguf *gguf, struct gguf_vocab *out, struct err *err);
void gguf_model_vocab_free(struct gguf_vocab *vocab);

#endif
