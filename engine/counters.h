/* counters.h: what the engine counts about itself, for gauges, counters and histograms of others.
 * Written by the engine thread (submitted: by the loop thread) and read by any, so all of it is
 * atomic; nothing here waits or allocates. */
#ifndef GERYON_COUNTERS_H
#define GERYON_COUNTERS_H

#include "engine/engine.h"

/* A histogram being written: whole numbers only (microseconds, tokens), so that sums stay exact. */
struct live_histogram {
    _Atomic uint64_t counts[HISTOGRAM_BOUNDS_MAX + 1];
    _Atomic uint64_t sum;
};

struct counters {
    _Atomic uint32_t running, waiting, pages_used, batch_sequences, batch_tokens;
    _Atomic uint32_t pages_cached;
    _Atomic bool failed;
    _Atomic uint64_t submitted, taken; /* the difference is still in the command ring */
    _Atomic uint64_t last_step_us, steps, draft_forwards, main_forwards;
    _Atomic uint64_t prompt_tokens, generated_tokens, proposed_tokens, accepted_tokens, preemptions;
    _Atomic uint64_t page_evictions, prefix_query_tokens, prefix_hit_tokens;
    _Atomic uint64_t accepted_position[DRAFT_POSITIONS_MAX];
    _Atomic double draft_length, draft_acceptance;
    struct live_histogram step_us[FORWARD_KINDS];
    struct live_histogram inter_token_us;
    struct live_histogram accepted_length;
};

/* One forward that took this long. */
void counters_forward(struct counters *counters, enum forward_kind kind, uint64_t took_us);
/* k tokens of one text came gap_us after those before them. */
void counters_inter_token(struct counters *counters, uint64_t gap_us, uint32_t k);
/* A pass over a decoding text gave this many tokens. */
void counters_accepted_length(struct counters *counters, uint32_t n_tokens);

/* All but what only the engine knows (pages_total, n_draft_positions). counters NULL: zeros. */
void counters_read(const struct counters *counters, struct engine_gauges *out);

#endif
