/* options.h: every flag of every command, from one table: parsing, environment twins, help texts
 * and error messages all read it (options.c). */
#ifndef GERYON_OPTIONS_H
#define GERYON_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base.h"

enum command {
    COMMAND_SERVE = 1,
    COMMAND_GENERATE = 2,
    COMMAND_LOGITS = 4,
    COMMAND_TOKENIZE = 8,
    COMMAND_INSPECT = 16,
    COMMAND_HEALTH = 32,
    COMMAND_VERSION = 64,
    COMMAND_HELP = 128,
    COMMAND_BENCH = 256,
    COMMAND_CONVERT = 512,
};

enum { OPTION_LIST_MAX = 64, OPTION_COUNTS_MAX = 16, OPTION_ARGUMENTS_MAX = 2 };

/* Values of a repeatable flag. */
struct option_list {
    uint32_t n;
    const char *items[OPTION_LIST_MAX];
};

/* A whole number that may be absent. */
struct option_int {
    bool set;
    int64_t value;
};

/* Whole numbers between commas. */
struct option_counts {
    uint32_t n;
    uint32_t items[OPTION_COUNTS_MAX];
};

struct options {
    enum command command;
    const char *help_topic; /* `geryon help TOPIC`, or NULL */
    const char
        *arguments[OPTION_ARGUMENTS_MAX]; /* words that are no flags, all of those it takes */

    /* model */
    const char *model, *backend, *dtype, *cpu_table, *activations;
    bool deterministic, pin_threads;
    uint32_t threads, window;
    /* engine */
    const char *kv_dtype;
    uint32_t max_model_len, max_num_seqs, max_num_batched_tokens, prefill_chunk;
    uint64_t kv_memory;
    int32_t drafts; /* DRAFTS_AUTO, DRAFTS_OFF, DRAFTS_NGRAM, or rows per block */
    const char *prefix_cache;
    const char *trace;
    /* serve */
    const char *host;
    uint32_t port;
    struct option_list served_model_names;
    uint32_t max_queued_requests, max_n, max_choices;
    const char *scheduling, *sampling_defaults;
    uint64_t max_body_bytes;
    uint32_t max_connections;
    bool max_connections_set; /* the user asked: refuse to start rather than lower it */
    double shutdown_timeout, sse_keepalive, queue_timeout, request_timeout, watchdog; /* seconds */
    double header_timeout, body_timeout, idle_timeout, reader_timeout;                /* seconds */
    struct option_list api_keys, open_paths, cors_origins;
    const char *api_key_file;
    const char *tls_cert, *tls_key;
    bool parse_specials, strict_params, slots, seeded_by_default;
    const char *log_level, *log_format, *config;
    /* generate, logits, tokenize */
    const char *prompt, *chat, *tokens, *tokens_file;
    uint32_t max_tokens;
    double temperature, top_p, min_p;
    uint32_t top_k;
    struct option_int seed, next;
    bool ignore_eos, json, decode, no_special;
    const char *positions, *view;
    uint32_t block, chunk;
    /* bench */
    const char *synthetic, *report, *perplexity;
    struct option_counts prompt_tokens, batch;
    uint32_t gen_tokens, reps;
    struct option_int forced_window, forced_accept;
    bool paired;
    /* convert */
    struct option_int orthros, orthrus, mask_token;
    uint64_t max_shard_size;

    /* Copies of environment lists, and the text of --config; options_fini frees them. */
    char *owned[OPTION_LIST_MAX];
    uint32_t n_owned;
};

/* Looks a variable up, as getenv does. */
typedef const char *options_getenv_fn(const char *name);

/* Fill options from the command line; for flags not given there, from their environment twins; for
 * those given by neither, from the file of --config. A missing command with flags present means
 * `serve`. Strings are borrowed from argv and the environment, or owned. ERR_INVALID (a file that
 * cannot be read: ERR_IO) with one line that names the flag, variable, or file and line, and what is
 * accepted. */
int options_parse(struct options *options, int argc, char **argv, options_getenv_fn *env,
                  struct err *err);
void options_fini(struct options *options);

/* `geryon help [COMMAND]`: ERR_INVALID when there is no such command. */
int options_help(FILE *out, const char *command, struct err *err);

/* "512M", "4G", "1048576", with K, M, G, T as powers of 1024 (an i, a B or both may follow).
 * ERR_INVALID on anything else, overflow included. */
int options_parse_size(const char *text, uint64_t *out);

#endif
