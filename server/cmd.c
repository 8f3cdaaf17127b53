#include "server/cmd.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES_MAX = 256 << 20 };

struct model_options cmd_model_options(const struct options *options) {
    return (struct model_options){
        .path = options->model,
        .name = options->served_model_names.n ? options->served_model_names.items[0] : NULL,
        .dtype = options->dtype,
        .backend = options->backend ? options->backend : "cpu", /* tokenize: nothing is computed */
        .cpu_table = options->cpu_table ? options->cpu_table : "auto",
        .activations = options->activations,
        .deterministic = options->deterministic,
        .pin_threads = options->pin_threads,
        .n_threads = options->threads,
        .window = options->command == COMMAND_BENCH ? (uint32_t)options->forced_window.value
                                                    : options->window,
        .force_window = options->forced_window.set,
        .synthetic = options->synthetic,
        .progress_bar = isatty(STDERR_FILENO) == 1,
    };
}

struct engine_config cmd_engine_config(const struct options *options) {
    struct engine_config config;
    engine_config_defaults(&config);
    config.kv_dtype = options->kv_dtype;
    config.kv_bytes = options->kv_memory;
    config.max_model_len = options->max_model_len;
    config.max_num_seqs = options->max_num_seqs;
    config.max_batched_rows = options->max_num_batched_tokens;
    config.prefill_chunk = options->prefill_chunk;
    config.drafts = options->drafts;
    config.prefix_cache = !options->prefix_cache || !strcmp(options->prefix_cache, "on");
    return config;
}

int cmd_fail(const struct err *err) {
    fprintf(stderr, "geryon: %s\n", err->msg);
    return 1;
}

int cmd_usage(const struct err *err) {
    cmd_fail(err);
    return 2;
}

void cmd_notices(const struct offline *offline) {
    const char *notices[] = {model_info(offline->model)->notice,
                             engine_info(offline->engine)->notice};
    for (size_t i = 0; i < ARRAY_LEN(notices); i++)
        if (notices[i]) fprintf(stderr, "geryon: %s\n", notices[i]);
}

int cmd_open(const struct options *options, bool keep_cycles, struct offline *out,
             struct err *err) {
    struct model_options model_options = cmd_model_options(options);
    struct engine_config config = cmd_engine_config(options);
    config.max_queued = 0;
    config.keep_cycles = keep_cycles;
    *out = (struct offline){0};
    if (options->trace && !(out->trace = fopen(options->trace, "we")))
        return err_set(err, ERR_IO, "--trace %s: %s", options->trace, strerror(errno));
    config.trace = out->trace;
    int rc = model_load(&model_options, &out->model, err);
    if (!rc) rc = engine_create(out->model, &config, &out->engine, err);
    if (rc) {
        cmd_close(out);
        return rc;
    }
    cmd_notices(out);
    return OK;
}

void cmd_close(struct offline *offline) {
    engine_destroy(offline->engine);
    model_destroy(offline->model);
    if (offline->trace) fclose(offline->trace);
    *offline = (struct offline){0};
}

int cmd_parse_ids(const char *text, size_t len, const char *what, uint32_t vocab_size,
                  struct tokens *out, struct err *err) {
    const char *at = text, *end = text + len;
    if (!vocab_size) vocab_size = (uint32_t)INT32_MAX + 1;
    while (at < end && isspace((unsigned char)*at))
        at++;
    bool array = at < end && *at == '[';
    if (array) at++;
    bool want_id = true;
    for (; at < end; at++) {
        if (isspace((unsigned char)*at)) continue;
        if (!want_id && *at == ',') {
            want_id = true;
            continue;
        }
        if (!want_id || !isdigit((unsigned char)*at)) break;
        uint64_t id = 0;
        while (at < end && isdigit((unsigned char)*at) && id < UINT32_MAX)
            id = id * 10 + (uint64_t)(*at++ - '0');
        if (id >= vocab_size)
            return err_set(err, ERR_INVALID, "%s: id %llu at place %u, the vocabulary has %u", what,
                           (unsigned long long)id, out->n, vocab_size);
        if (tokens_push(out, (int32_t)id)) return err_set(err, ERR_NOMEM, "%s: no memory", what);
        want_id = false;
        at--;
    }
    bool closed = !array;
    if (array && at < end && *at == ']' && (!want_id || !out->n)) {
        closed = true;
        at++;
    }
    while (at < end && isspace((unsigned char)*at))
        at++;
    if (!closed || at < end || (want_id && out->n))
        return err_set(err, ERR_INVALID, "%s: not a list of token ids at byte %zu", what,
                       (size_t)(at - text));
    return OK;
}

int cmd_read_all(FILE *in, const char *what, char **out, size_t *len, struct err *err) {
    size_t cap = 1 << 16, n = 0;
    char *data = malloc(cap);
    while (data) {
        n += fread(data + n, 1, cap - n - 1, in);
        if (ferror(in)) {
            free(data);
            return err_set(err, ERR_IO, "%s: cannot be read", what);
        }
        if (feof(in)) {
            data[n] = 0;
            *out = data;
            *len = n;
            return OK;
        }
        if (n + 1 < cap) continue;
        if (cap >= READ_BYTES_MAX) {
            free(data);
            return err_set(err, ERR_TOO_LONG, "%s: more than %d MiB", what, READ_BYTES_MAX >> 20);
        }
        char *grown = realloc(data, cap *= 2);
        if (!grown) free(data);
        data = grown;
    }
    return err_set(err, ERR_NOMEM, "%s: no memory", what);
}
