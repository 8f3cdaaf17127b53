/* engine.h: the engine's public face: models, their tokenizer and chat template, and the engine
 * that runs sequences. What other rooms may call; everything else in engine/ is for engine/. */
#ifndef GERYON_ENGINE_H
#define GERYON_ENGINE_H

#include <stdatomic.h>
#include <stdio.h>

#include "engine/request.h"

/* ---- models ------------------------------------------------------------------------------------ */

enum load_phase { LOAD_OPEN, LOAD_WEIGHTS, LOAD_CACHE, LOAD_WARMUP, LOAD_DONE };

/* Written by the loading thread, read by any. */
struct load_progress {
    _Atomic int phase;         /* enum load_phase */
    _Atomic uint32_t permille; /* over all phases */
    _Atomic bool cancel;       /* set by a reader: loading stops with ERR_CANCELLED */
};

struct model_options {
    const char *path;  /* checkpoint directory, .gguf file (scripted binary: script.json) */
    const char *name;  /* served name; NULL: directory's or file's base name */
    const char *dtype; /* "auto", "f32", "bf16", "f16", "q8_0", "q4_0" */
    /* "cpu", "cuda", or "auto" (or NULL): cuda where a device answers and no CPU table was named. */
    const char *backend;
    const char *cpu_table;   /* of the CPU backend: "auto", "ref", "avx2", "avx512"; or NULL */
    const char *activations; /* "auto", "f32", "bf16", "int8" (cpu, quantised weights) */
    bool deterministic;      /* cuda: the same bits whatever the batch; the CPU's always are */
    bool pin_threads;        /* cpu: each worker, and the engine's thread, to one processor */
    uint32_t n_threads;      /* 0: cores this process may use (affinity, cpu.max) */
    uint32_t window;         /* 0, or give a model without Orthros streams this window */
    bool force_window;       /* bench: `window` replaces the model's own; 0 = all positions */
    const char *synthetic; /* instead of path: a shape with random weights (synthetic.h), or NULL */
    bool progress_bar;     /* draw on stderr when it is a terminal */
    struct load_progress *progress; /* may be NULL */
};

/* A loaded model: weights on the device, tokenizer, template. Immutable after model_load, so any
 * thread may read it; only the engine made from it may use its device. */
struct model;
struct meter;

/* What a checkpoint's generation_config.json says of requests that leave it open, as found there. */
struct sampling_hints {
    struct sampling_hint {
        bool given;
        double value;
    } temperature, top_p, top_k, min_p, repetition_penalty;
};

struct model_info {
    const char *name;
    const char *path;
    const char *architecture; /* "llama", "qwen2", "qwen3", "scripted" */
    const char *weight_dtype; /* of the matrices, "mixed" where several */
    const char *backend;      /* "cpu" or "cuda" */
    const char *kernel_table;
    const char *hardware;    /* what computes, as its maker calls it; NULL on the CPU */
    const char *notice;      /* what of the options was not followed and why, or NULL; a log line */
    const char *activations; /* "int8" where 8- or 4-bit weights meet them so, "bf16" or "f32" */
    uint32_t vocab_size;     /* a token id is valid iff < vocab_size */
    uint32_t context_length; /* the model's own maximum */
    uint32_t block_size;     /* Orthrus rows per block, 0 = none */
    uint32_t window;         /* Orthros window, 0 = single stream */
    const int32_t *eos_ids;
    uint32_t n_eos_ids;
    struct sampling_hints hints;
    bool has_chat_template;
    const char *chat_template;       /* its source, or NULL */
    const char *chat_template_error; /* why the template in the file cannot be used, or NULL */
    bool adds_bos;                   /* the tokenizer adds a start token by itself */
    uint64_t weight_bytes;           /* as the device keeps them */
    uint32_t n_threads;              /* of the CPU backend */
    uint64_t
        fingerprint; /* weights (headers, sizes, samples), dtypes, window, table, activations */
};

/* Load a checkpoint. Implemented by engine/load/model.c; the scripted test binary links its own. */
int model_load(const struct model_options *options, struct model **out, struct err *err);
void model_destroy(struct model *model); /* NULL is fine */
const struct model_info *model_info(const struct model *model);

/* What the arithmetic of a loaded model costs; a multiply-add counts two operations. Rows of the
 * three views, logits not counted; a plain model has base rows only. */
struct model_costs {
    uint64_t main_bytes, draft_bytes; /* weights that one forward reads, whatever its rows */
    uint64_t base_flops, output_flops, draft_flops; /* of one row */
    uint64_t head_flops;                            /* of one row's logits */
    uint64_t attend_flops; /* of one row for each position it attends, all layers */
};
void model_costs(const struct model *model, struct model_costs *out);

/* What this machine reaches at best on n_threads threads (0: all it may use) in the instructions of
 * the model's kernels: bytes a second read from memory, operations a second in the products that
 * model_info's `activations` stand for. Takes some tenths of a second. */
int model_peaks(const struct model *model, uint32_t n_threads, double *bytes_per_s,
                double *flops_per_s, struct err *err);
/* What n_threads threads read a second at the moment: see `meter_open` of struct kernels. *out is NULL,
 * and its rate 0, where the model's kernels have none. Closed before the model. */
int model_meter_open(const struct model *model, uint32_t n_threads, struct meter **out,
                     struct err *err);
double model_meter_rate(const struct model *model, struct meter *meter);
void model_meter_close(const struct model *model, struct meter *meter);

/* Print what `geryon inspect` shows: architecture, composition, tensors, dtypes, memory, and what
 * would be refused and why. Reads headers only, loads no weights. */
int model_inspect(const struct model_options *options, FILE *out, struct err *err);

/* ---- checkpoints rewritten ---------------------------------------------------------------------- */

struct convert_options {
    const char *in;       /* checkpoint directory, .safetensors or .gguf file */
    const char *out;      /* directory to make; one that exists must be empty */
    const char *dtype;    /* of matrices: "auto", "f32", "bf16", "f16", "q8_0", "q4_0", "q4_1" */
    uint32_t window;      /* > 0: give a plain model Orthros streams (identity affines) */
    uint32_t block;       /* > 0: give a model a draft view with blocks of so many rows (copies) */
    int32_t mask_token;   /* of that view; -1: chosen */
    uint64_t shard_bytes; /* weights beyond this go to another file; 0: 4 GiB */
    /* Called after every few MiB; false: stop. May be NULL. */
    bool (*progress)(void *arg, uint64_t done, uint64_t total);
    void *progress_arg;
};

struct convert_report {
    size_t n_tensors;   /* as written: a quantised matrix counts its scales */
    uint32_t n_files;   /* of weights */
    uint64_t bytes;     /* of their data */
    int32_t mask_token; /* of a new draft view, else -1 */
};

/* Rewrite a checkpoint as a directory of safetensors with everything that belongs to it: all of it or,
 * on failure, nothing. Memory stays near a few rows, however large a tensor is. */
int model_convert(const struct convert_options *options, struct convert_report *report,
                  struct err *err);

/* ---- tokens ------------------------------------------------------------------------------------ */

struct tokens {
    int32_t *ids; /* malloc'd; tokens_free */
    uint32_t n, cap;
};
int tokens_push(struct tokens *tokens, int32_t id); /* ERR_NOMEM */
void tokens_free(struct tokens *tokens);

enum tokenize_flags {
    TOKENIZE_ADD_SPECIAL = 1,   /* run the post-processor: start token and the like */
    TOKENIZE_PARSE_SPECIAL = 2, /* control tokens in the text become their ids */
};

/* Text to ids, appended to out. Bytes that are no valid UTF-8: ERR_INVALID. Any thread. */
int model_tokenize(const struct model *model, const char *text, size_t len, unsigned flags,
                   struct tokens *out, struct err *err);

/* Ids to UTF-8 text (invalid parts become U+FFFD), malloc'd, NUL-terminated, *out_len without the
 * NUL. An id >= vocab_size or negative is ERR_INVALID; one without a piece leaves no text. */
int model_detokenize(const struct model *model, const int32_t *ids, uint32_t n, bool skip_special,
                     char **out, size_t *out_len, struct err *err);

/* What a chat route gives to the template. Values are borrowed until return. */
struct chat {
    const struct value *messages;  /* array of objects, validated by proto */
    const struct value *arguments; /* array: for each tool call of the messages, in order, the text
                                      of its arguments as sent (the messages hold them as objects);
                                      NULL: not known */
    const struct value *tools;     /* array or NULL */
    const struct value *kwargs;    /* object: chat_template_kwargs, or NULL */
    bool add_generation_prompt;
    bool parse_specials; /* control tokens in message contents are parsed, as Hugging Face does */
    int64_t now;         /* Unix seconds, for strftime_now */
};

/* Give the messages the form that the template reads, render them and tokenise the text. Control tokens count only in text that comes from the
 * template itself, unless parse_specials. text_out (may be NULL) receives the malloc'd rendered
 * text. A template that refuses gives ERR_INVALID with its own message. Any thread. */
int model_render_chat(const struct model *model, const struct chat *chat, struct tokens *out,
                      char **text_out, size_t *text_len, struct err *err);

/* ---- the engine -------------------------------------------------------------------------------- */

/* engine_config.drafts; > 0: rows per block, fixed. AUTO adapts; NGRAM looks the text up in itself. */
enum { DRAFTS_NGRAM = -2, DRAFTS_AUTO = -1, DRAFTS_OFF = 0 };

struct engine_config {
    const char *kv_dtype;      /* "auto" (f32 for f32 weights, else bf16), "f32", "bf16", "q8_0" */
    uint64_t kv_bytes;         /* memory for KV pages; 0: the default of the README */
    uint32_t max_model_len;    /* 0: the model's; lowered to what the pool holds */
    uint32_t max_num_seqs;     /* sequences that run at once; 64 */
    uint32_t max_batched_rows; /* rows of one forward; an Orthros position counts two; 512 */
    uint32_t prefill_chunk;    /* largest prefill chunk in tokens; 0: as the budget allows */
    uint32_t max_queued;       /* sequences that may wait beyond max_num_seqs; 1024 */
    int32_t drafts;            /* DRAFTS_AUTO, DRAFTS_NGRAM, DRAFTS_OFF or rows per block */
    bool prefix_cache;         /* keep pages of ended texts and share them (true) */
    bool prefill_first;        /* no text goes on while a prompt is computed: bench, two phases */
    int32_t forced_accept;     /* bench: proposals that are kept whatever the model says; -1: off */
    bool keep_cycles;          /* remember every cycle's drafts (generate --json); allocates */
    FILE *trace;               /* one JSON line a step, or NULL */
    /* Microseconds, never going back; NULL: CLOCK_MONOTONIC. What steps cost is measured by it. */
    uint64_t (*clock)(void *arg);
    void *clock_arg;
};
void engine_config_defaults(struct engine_config *config);

struct engine;

struct engine_info {
    uint32_t max_model_len;
    uint32_t max_num_seqs;
    uint32_t page_tokens;
    uint32_t n_pages;
    uint32_t draft_block; /* rows a drafting sequence gets (at most), 0 = drafts off */
    const char *kv_dtype;
    uint64_t kv_bytes, workspace_bytes;
    uint64_t
        device_free_bytes; /* memory of the device that is left at the start; 0: it is the host's */
    const char *notice;    /* what was lowered at start and why, or NULL; for one log line */
};

/* Takes the device of the model; the model must outlive the engine. */
int engine_create(struct model *model, const struct engine_config *config, struct engine **out,
                  struct err *err);
/* The thread must be stopped. Live requests are handed back through no event: drain first. */
void engine_destroy(struct engine *engine); /* NULL is fine */
const struct engine_info *engine_info(const struct engine *engine);

/* Loop thread (one producer). Takes the request on success. ERR_FULL: max_num_seqs + max_queued
 * sequences are live (their last event not yet popped). ERR_TOO_LONG: the prompt can never fit.
 * ERR_DEVICE: the engine has failed. */
int engine_submit(struct engine *engine, struct request *request, struct err *err);
/* Loop thread. The request ends at the next step with FINISH_CANCELLED (or as it ended before).
 * An unknown id is ignored. */
void engine_cancel(struct engine *engine, uint64_t id);
/* Loop thread. The same, but only if the sequence has not started yet (limits on waiting time); one
 * that has goes on. */
void engine_cancel_waiting(struct engine *engine, uint64_t id);
/* Loop thread: the next event, or false when there is none. */
bool engine_next_event(struct engine *engine, struct event *out);

/* Run one step by hand (tests, generate, simulation): drains commands, plans, computes, emits.
 * Returns 1 when there is more to do, 0 when idle, ERR_DEVICE after a fatal failure. now_us: a
 * clock that never goes back; results never depend on it. Not while the thread runs. */
int engine_step(struct engine *engine, uint64_t now_us);

/* For measuring what drafts are worth: texts go on as with DRAFTS_OFF, and nothing is learned from
 * them, until told otherwise. By the thread that steps, while no request is live. */
void engine_pause_drafts(struct engine *engine, bool paused);

/* Run steps on a thread of the engine's own; notify(arg) is called from that thread after a step
 * that made events (it must only wake the loop). Sleeps while there is nothing to do. */
int engine_start(struct engine *engine, void (*notify)(void *arg), void *arg, struct err *err);
/* Ends the thread after its current step; live sequences stay where they are. */
void engine_stop(struct engine *engine);

/* What a forward is counted as. A main forward that holds several kinds of rows counts once: as
 * verify when any proposal is verified, else as decode when any text goes on, else as prefill. */
enum forward_kind { FORWARD_PREFILL, FORWARD_DRAFT, FORWARD_VERIFY, FORWARD_DECODE, FORWARD_KINDS };

/* Observations sorted into buckets: counts[i] of them are <= bounds[i] and above the bound before;
 * counts[n_bounds] are above all. */
enum { HISTOGRAM_BOUNDS_MAX = 24, DRAFT_POSITIONS_MAX = 64 };
struct histogram {
    const double *bounds; /* ascending, static */
    uint32_t n_bounds;
    uint64_t counts[HISTOGRAM_BOUNDS_MAX + 1];
    double sum;
};
void histogram_observe(struct histogram *histogram, double value, uint64_t times);

/* Snapshot, any thread, from atomics: fields are exact each, not as of one moment together. */
struct engine_gauges {
    uint32_t running, waiting; /* sequences; a preempted one waits, so does one just submitted */
    uint32_t pages_used, pages_total;       /* used: held by live sequences */
    uint32_t pages_cached;                  /* held by none, kept for reuse */
    uint32_t batch_sequences, batch_tokens; /* of the last step; 0 when idle */
    bool failed;                            /* a fatal device failure happened */
    uint64_t last_step_us;                  /* engine time of the last turn of the loop */
    uint64_t steps, draft_forwards, main_forwards;
    uint64_t forwards[FORWARD_KINDS];
    uint64_t prompt_tokens;    /* each prompt once: not for choices but the first, nor again after
                                  a preemption */
    uint64_t generated_tokens; /* that became part of a text */
    uint64_t proposed_tokens;  /* offered to a verifying pass */
    uint64_t accepted_tokens;  /* kept by it, and not cut by an ending */
    double draft_length;       /* proposals of a decoding sequence in the last step, the mean */
    double draft_acceptance;   /* estimate for the first place of a block, 0 where none is made */
    uint64_t preemptions;
    uint64_t page_evictions;                         /* cached pages given to others */
    uint64_t prefix_query_tokens;                    /* prompt tokens that were looked up */
    uint64_t prefix_hit_tokens;                      /* and found */
    uint32_t n_draft_positions;                      /* draft_block - 1, 0 without drafts */
    uint64_t accepted_position[DRAFT_POSITIONS_MAX]; /* how often that place was kept */
    struct histogram step_seconds[FORWARD_KINDS];    /* of one forward */
    struct histogram inter_token_seconds; /* k tokens at once: k times the gap divided by k */
    struct histogram accepted_length;     /* tokens a decoding pass gave, its own one included */
};
/* engine NULL: all zero, histograms with their bounds. */
void engine_gauges(const struct engine *engine, struct engine_gauges *out);

/* What forwards spend their time with: enum stage_work of kernels.h. */
enum engine_work { ENGINE_PRODUCTS, ENGINE_ATTENTION, ENGINE_ROWS, ENGINE_SAMPLING, ENGINE_WORKS };
/* Nanoseconds of it so far; false where the device does not tell. For the thread that steps the
 * engine. */
bool engine_work_ns(const struct engine *engine, uint64_t ns[ENGINE_WORKS]);

/* Sequences in the engine, by the loop thread; from atomics, so each is about as of the last step. */
enum slot_state { SLOT_WAITING, SLOT_PREFILL, SLOT_DECODE, SLOT_PREEMPTED };
struct engine_slot {
    uint64_t id; /* of the request */
    enum slot_state state;
    uint32_t n_prompt, n_cached, n_output, n_pages;
    uint32_t n_passes, n_accepted; /* over the decoding text, and the proposals kept by them */
    uint64_t submitted_us;
};
/* At most cap of them into out; returns how many. */
uint32_t engine_slots(const struct engine *engine, struct engine_slot *out, uint32_t cap);

/* Bytes that this machine and our control groups still allow, or that a device of its own memory had
 * left at the start; 0 = unknown. NULL: the machine's. Any thread; reads some small files of /proc and
 * /sys. */
uint64_t engine_memory_free(const struct engine *engine);

/* Once a step has returned ERR_DEVICE or the gauges say `failed`: what the device said, for a person;
 * until then NULL. Any thread; lives as long as the engine. */
const char *engine_fault(const struct engine *engine);

/* With keep_cycles and drafts on: every cycle after prefill so far, in order; valid until the next
 * step. Each: the proposals of its draft block (none where one token was left) and how many were
 * kept. */
struct cycle {
    uint32_t n_drafted, n_accepted;
    int32_t drafted[64];
};
uint32_t engine_cycles(const struct engine *engine, const struct cycle **out);

/* Logits without sampling (geryon logits). Runs on the calling thread, the engine's thread must
 * not run and no sequence may be live. */
struct logits_job {
    const int32_t *tokens;
    uint32_t n_tokens;
    uint32_t chunk; /* prefill chunk, 0 = as the row budget allows; 1 = one token at a time */
    bool all;       /* every position, else the last */
    bool draft;     /* after the tokens: logits of the draft block [next, mask, mask, ...] */
    int32_t next;
    uint32_t block; /* rows of that block */
};
/* row(arg, position, logits [vocab_size]) is called in order of position. */
int engine_logits(struct engine *engine, const struct logits_job *job,
                  void (*row)(void *arg, uint32_t position, const float *logits), void *arg,
                  struct err *err);

#endif
