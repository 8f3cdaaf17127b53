/* scripted.h: a model whose every answer is written in a script, for tests of everything above the
 * arithmetic. build/geryon-scripted links this folder in place of engine/load/model.c, so that
 * `model_load` reads a script; tests make models from JSON in memory.
 *
 *   {
 *     "vocab": ["a", "b", " c", {"hex": "F09F"}, {"special": "<eos>"}],    token id = index
 *     "eos": [4],            ids that end a text                              (default: none)
 *     "context": 64,         context length                                   (default 4096)
 *     "block_size": 8,       rows of a draft block, 0 = no drafts             (default 0)
 *     "sequence": [0, 1, 4], output position i: logit 10 at this id, -10 elsewhere; after its end
 *                            the first eos (a script without eos starts over)
 *     "draft_sequence": [..]                     the same for proposals (default: as the target)
 *     "target": {"": {"0": 3.0}, "0,1": {"4": 10}},     in place of a sequence: the longest key
 *                            that is a suffix of the history (ids, prompt included) wins
 *     "draft": {..},         the same for proposals                    (default: as the target)
 *     "default": -20,        logit of ids that an entry does not name; a number or "-inf"
 *     "prefill_ms_per_token": 0, "step_ms": 0, "row_ms": 0, "load_ms": 0,     simulated cost: of a
 *                            prompt token, a main forward, a row of any forward, and model_load
 *     "state": true,         keep the last tokens of a sequence beyond its KV, and check that every
 *                            row finds them (state.h)                         (default: false)
 *     "fail": {"at_output": 2, "kind": "request"}       the step that would yield this output
 *                            position fails: this request alone, or ("device") the device
 *   }
 *
 * In a draft block the history of row i is the known history and then the draft model's own greedy
 * choices of the rows before it: what a row proposes never depends on what was drawn.
 *
 * The device is strict where a real one would compute nonsense: a KV page holds the token of each
 * position, cleared pages hold poison, and every row with logits walks its whole history through the
 * block table and asserts that it is what this sequence wrote. */
#ifndef GERYON_SCRIPTED_H
#define GERYON_SCRIPTED_H

#include "engine/model.h"

/* A model from a script in memory; frees with model_destroy. Borrows json until return.
 * ERR_INVALID names the key and what was expected. */
int scripted_model_from_json(const char *json, size_t len, struct model **out, struct err *err);

/* The same with options that matter here: name, window (Orthros streams), progress. Path is only
 * shown. */
int scripted_model_create(const char *json, size_t len, const struct model_options *options,
                          struct model **out, struct err *err);

/* What the model would say after a history whose first prompt_len tokens are the prompt: logits
 * [vocab_size] of the token that follows. For texts decoded without an engine. */
void scripted_logits(const struct model *model, const int32_t *history, uint32_t n_history,
                     uint32_t prompt_len, float *logits);
/* The draft model's logits at the same place. */
void scripted_draft_logits(const struct model *model, const int32_t *history, uint32_t n_history,
                           uint32_t prompt_len, float *logits);

/* Simulated time: forwards move now_us on by their cost instead of sleeping, and an engine that
 * reads it (engine_config.clock) chooses by that. The model keeps the pointer. */
struct scripted_time {
    uint64_t now_us;
    double (*cost_us)(void *arg, bool draft, uint32_t n_rows);
    void *arg;
};
void scripted_set_time(struct model *model, struct scripted_time *time);
uint64_t scripted_clock(void *time); /* of a struct scripted_time */

/* The table. Its devices can be opened by this folder's model alone. */
const struct kernels *kernels_scripted(void);

#endif
