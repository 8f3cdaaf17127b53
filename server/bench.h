/* bench.h: what `geryon bench` measures (bench_run.c, bench_perplexity.c) and how it is told
 * (bench_report.c). */
#ifndef GERYON_BENCH_H
#define GERYON_BENCH_H

#include "engine/engine.h"
#include "proto/proto.h"

struct spread {
    double median, min, max;
};

/* The price of one token, from the model's shape and the forwards that ran; what share of the memory's
 * rate (as metered around the repetitions, else its best) and of the peak of products the measured time
 * makes of it. */
struct bench_price {
    double bytes, flops;
    double bandwidth_share, flop_share;
};

struct bench_phase {
    struct spread tokens_per_s;
    struct bench_price whole;
    /* Where the device tells (has_work), the time of the steps by what they did, and two of its parts
     * with their own price: weights and rows; KV. */
    bool has_work;
    double work_share[ENGINE_WORKS],
        rest_share; /* of the time; rest: between stages, on the host */
    double seconds; /* all that time, over all tokens */
    double tokens;
    struct bench_price products, attention;
};

/* The decode speed of every repetition over that of the same texts without drafts. */
struct bench_paired {
    struct spread plain_tokens_per_s;
    double q1, median, q3; /* of the ratios */
    double *ratios;        /* [reps], malloc'd; NULL: not asked for */
};

/* `batch` sequences of one length, submitted at once. All prompts are computed before any text
 * goes on, so that the two phases have speeds of their own. */
struct bench_case {
    uint32_t prompt_tokens, gen_tokens, batch, reps;
    char skipped[200];                         /* why it could not run, or "" */
    uint64_t prompt_total, output_total;       /* tokens that went through, all repetitions */
    struct bench_phase prefill, decode;        /* decode: no figures where gen_tokens is 1 */
    struct spread first_token_ms;              /* median over sequences */
    uint64_t n_gaps;                           /* between tokens of a sequence, all repetitions; */
    double gap_ms_p50, gap_ms_p95, gap_ms_p99; /* k tokens at once: k times the gap divided by k */
    double tokens_per_forward, accepted_length;
    double forward_ms[FORWARD_KINDS]; /* of one forward, the mean; 0 where there was none */
    double
        read_bytes_per_s; /* of memory, the mean of just before and after each repetition; 0: no meter */
    struct bench_paired paired;
};

struct bench_perplexity {
    const char *file; /* NULL: not asked for */
    uint32_t n_tokens, n_scored, window;
    double mean_nll, perplexity;
};

struct bench {
    const struct model_info *model;
    const struct engine_info *engine;
    struct model_costs costs;
    bool synthetic, forced_window, forced_accept; /* forced: the text is not the model's */
    bool paired;        /* every repetition without drafts too, just before or after */
    char hardware[128]; /* the device's name, or the processor's */
    double peak_bytes_per_s, peak_flops_per_s;
    uint64_t resident_bytes; /* in RAM when the cases were done */
    struct bench_case *cases;
    uint32_t n_cases;
    struct bench_perplexity perplexity;
};

/* Measures cases on an engine of this model that was made with prefill_first and is otherwise idle. */
struct bench_runner;
struct bench_runner *bench_runner_create(const struct model *model, struct engine *engine,
                                         const struct bench *bench, uint32_t max_batch,
                                         uint32_t max_prompt); /* or NULL */
/* The meter of model_meter_open that cases use from here on; NULL: none. */
void bench_runner_meter(struct bench_runner *runner, struct meter *meter);
/* After the engine's end: it may hold requests of a case that failed. NULL is fine. */
void bench_runner_destroy(struct bench_runner *runner);
/* prompt_tokens, gen_tokens, batch and reps are given; the rest is filled in. A case that does not
 * fit is OK with `skipped` set. */
int bench_run(struct bench_runner *runner, struct bench_case *c, struct err *err);
void bench_case_fini(struct bench_case *c);

/* Mean negative log-likelihood of the ids, in windows of at most `window` tokens; the first token
 * of a window is not scored. */
int bench_perplexity(struct engine *engine, uint32_t vocab_size, const struct tokens *ids,
                     uint32_t window, struct bench_perplexity *out, struct err *err);

/* Shares of the peaks, once both are known. */
void bench_shares(struct bench *bench);
void bench_json(const struct bench *bench, struct buf *out);
void bench_markdown(const struct bench *bench, struct buf *out);

#endif
