/* cmd_bench.c: speed without a server: open a model, measure every case, tell. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/bench.h"
#include "server/cmd.h"

enum {
    PERPLEXITY_WINDOW = 2048,
    SPARE_TOKENS = 64, /* room for a last draft block, so that it is as long as the others */
    WARM_PROMPT = 16,
    WARM_TOKENS = 4,
};

static uint32_t largest(const struct option_counts *counts) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < counts->n; i++)
        if (counts->items[i] > most) most = counts->items[i];
    return most;
}

static int check_flags(const struct options *options, struct err *err) {
    if (!options->model == !options->synthetic)
        return err_set(err, ERR_INVALID, "give one of --model and --synthetic");
    if (options->perplexity && options->synthetic)
        return err_set(err, ERR_INVALID, "--perplexity: random weights have none to measure");
    if (options->paired && options->gen_tokens < 2)
        return err_set(err, ERR_INVALID, "--paired: needs --gen-tokens of at least 2");
    return OK;
}

/* Longest text of all cases, with some room to spare where the model has it. */
static int text_room(const struct options *options, const struct model_info *model, uint32_t *out,
                     struct err *err) {
    uint32_t prompt = largest(&options->prompt_tokens), gen = options->gen_tokens;
    uint64_t need = (uint64_t)prompt + gen;
    uint32_t limit = options->max_model_len ? options->max_model_len : model->context_length;
    if (need > limit)
        return err_set(err, ERR_TOO_LONG,
                       "--prompt-tokens %u with --gen-tokens %u: together at most %u here", prompt,
                       gen, limit);
    if (options->perplexity && need < PERPLEXITY_WINDOW) need = PERPLEXITY_WINDOW;
    need += SPARE_TOKENS;
    *out = need < limit ? (uint32_t)need : limit;
    return OK;
}

static int open_engine(const struct options *options, struct offline *out, struct err *err) {
    struct model_options model_options = cmd_model_options(options);
    struct engine_config config = cmd_engine_config(options);
    config.max_queued = 0;
    config.max_num_seqs = largest(&options->batch);
    config.prefill_first = true;
    if (options->forced_accept.set) config.forced_accept = (int32_t)options->forced_accept.value;
    if (options->trace && !(out->trace = fopen(options->trace, "we")))
        return err_set(err, ERR_IO, "--trace %s: %s", options->trace, strerror(errno));
    config.trace = out->trace;
    int rc = model_load(&model_options, &out->model, err);
    if (!rc) rc = text_room(options, model_info(out->model), &config.max_model_len, err);
    if (!rc) rc = engine_create(out->model, &config, &out->engine, err);
    if (!rc && options->forced_accept.set && !engine_info(out->engine)->draft_block)
        rc = err_set(err, ERR_INVALID, "--accept: nothing is drafted here, so none can be kept");
    if (!rc && options->paired && !engine_info(out->engine)->draft_block)
        rc = err_set(err, ERR_INVALID, "--paired: nothing is drafted here, so nothing compares");
    return rc;
}

static void find_cpu_name(char *out, size_t cap) {
    snprintf(out, cap, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " ");
        snprintf(out, cap, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f) fclose(f);
}

/* Memory of this process that is in RAM now; 0 where the system does not say. */
static uint64_t resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long total, resident = 0;
    if (f && fscanf(f, "%llu %llu", &total, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Peaks are measured before and after the cases; the better ones count. */
static int measure_peaks(const struct model *model, struct bench *bench, struct err *err) {
    double bytes, flops;
    int rc = model_peaks(model, bench->model->n_threads, &bytes, &flops, err);
    if (rc) return rc;
    if (bytes > bench->peak_bytes_per_s) bench->peak_bytes_per_s = bytes;
    if (flops > bench->peak_flops_per_s) bench->peak_flops_per_s = flops;
    return OK;
}

static int run_cases(const struct options *options, struct bench_runner *runner,
                     struct bench *bench, struct err *err) {
    struct bench_case warm = {
        .prompt_tokens = WARM_PROMPT, .gen_tokens = WARM_TOKENS, .batch = 1, .reps = 1};
    bool talk = isatty(STDERR_FILENO) == 1;
    int rc = largest(&options->prompt_tokens) < WARM_PROMPT ? OK : bench_run(runner, &warm, err);
    bench_case_fini(&warm);
    for (uint32_t p = 0; p < options->prompt_tokens.n; p++)
        for (uint32_t b = 0; rc == OK && b < options->batch.n; b++) {
            struct bench_case *c = &bench->cases[bench->n_cases++];
            *c = (struct bench_case){.prompt_tokens = options->prompt_tokens.items[p],
                                     .gen_tokens = options->gen_tokens,
                                     .batch = options->batch.items[b],
                                     .reps = options->reps};
            if (talk) fprintf(stderr, "bench: prompt %u, batch %u\n", c->prompt_tokens, c->batch);
            rc = bench_run(runner, c, err);
        }
    return rc;
}

static int run_perplexity(const struct options *options, const struct offline *offline,
                          struct bench_perplexity *out, struct err *err) {
    char *text = NULL;
    size_t len = 0;
    struct tokens ids = {0};
    FILE *f = fopen(options->perplexity, "re");
    if (!f)
        return err_set(err, ERR_IO, "--perplexity %s: %s", options->perplexity, strerror(errno));
    int rc = cmd_read_all(f, options->perplexity, &text, &len, err);
    fclose(f);
    if (!rc) rc = model_tokenize(offline->model, text, len, TOKENIZE_ADD_SPECIAL, &ids, err);
    uint32_t vocab = model_info(offline->model)->vocab_size;
    out->file = options->perplexity;
    if (!rc) rc = bench_perplexity(offline->engine, vocab, &ids, PERPLEXITY_WINDOW, out, err);
    free(text);
    tokens_free(&ids);
    return rc;
}

static int write_file(const char *dir, const char *name, const struct buf *text, struct err *err) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return err_set(err, ERR_INVALID, "--report: a path of %d bytes is too long", n);
    FILE *f = fopen(path, "we");
    bool ok = f && fwrite(text->data, 1, text->len, f) == text->len;
    if (f && fclose(f) != 0) ok = false;
    return ok ? OK : err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
}

static int tell(const struct options *options, const struct bench *bench, struct err *err) {
    struct buf json = {0}, markdown = {0};
    bench_json(bench, &json);
    bench_markdown(bench, &markdown);
    int rc = OK;
    if (json.failed || markdown.failed) rc = err_set(err, ERR_NOMEM, "no memory for the report");
    if (!rc && options->report && mkdir(options->report, 0777) != 0 && errno != EEXIST)
        rc = err_set(err, ERR_IO, "--report %s: %s", options->report, strerror(errno));
    if (!rc && options->report) rc = write_file(options->report, "bench.json", &json, err);
    if (!rc && options->report) rc = write_file(options->report, "bench.md", &markdown, err);
    const struct buf *shown = options->json ? &json : &markdown;
    if (!rc) fwrite(shown->data, 1, shown->len, stdout);
    if (!rc && (fflush(stdout) || ferror(stdout)))
        rc = err_set(err, ERR_IO, "cannot write to stdout");
    buf_free(&json);
    buf_free(&markdown);
    return rc;
}

static int measure(const struct options *options, struct offline *offline, struct bench *bench,
                   struct bench_runner **runner, struct err *err) {
    bench->model = model_info(offline->model);
    bench->engine = engine_info(offline->engine);
    bench->synthetic = options->synthetic != NULL;
    bench->forced_window = options->forced_window.set;
    bench->forced_accept = options->forced_accept.set;
    bench->paired = options->paired;
    model_costs(offline->model, &bench->costs);
    if (bench->model->hardware)
        snprintf(bench->hardware, sizeof bench->hardware, "%s", bench->model->hardware);
    else
        find_cpu_name(bench->hardware, sizeof bench->hardware);
    cmd_notices(offline);
    bench->cases =
        calloc((size_t)options->prompt_tokens.n * options->batch.n, sizeof *bench->cases);
    *runner = bench_runner_create(offline->model, offline->engine, bench, largest(&options->batch),
                                  largest(&options->prompt_tokens));
    if (!bench->cases || !*runner) return err_set(err, ERR_NOMEM, "no memory for the bench");
    struct meter *meter = NULL;
    int rc = measure_peaks(offline->model, bench, err);
    if (!rc) rc = model_meter_open(offline->model, bench->model->n_threads, &meter, err);
    bench_runner_meter(*runner, meter);
    if (!rc) rc = run_cases(options, *runner, bench, err);
    bench_runner_meter(*runner, NULL);
    model_meter_close(offline->model, meter);
    if (!rc && options->perplexity) rc = run_perplexity(options, offline, &bench->perplexity, err);
    bench->resident_bytes = resident_bytes();
    if (!rc) rc = measure_peaks(offline->model, bench, err);
    bench_shares(bench);
    return rc;
}

int cmd_bench(const struct options *options) {
    struct err err = {0};
    struct offline offline = {0};
    struct bench bench = {0};
    struct bench_runner *runner = NULL;
    if (check_flags(options, &err)) return cmd_usage(&err);
    int rc = open_engine(options, &offline, &err);
    if (!rc) rc = measure(options, &offline, &bench, &runner, &err);
    if (!rc) rc = tell(options, &bench, &err);
    int exit_code = rc ? cmd_fail(&err) : 0;
    cmd_close(&offline);
    bench_runner_destroy(runner);
    for (uint32_t i = 0; i < bench.n_cases; i++)
        bench_case_fini(&bench.cases[i]);
    free(bench.cases);
    return exit_code;
}
