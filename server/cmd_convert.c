/* cmd_convert.c: `geryon convert IN OUT`. A signal stops it between two pieces of a tensor, so that
 * what was written is removed. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "server/cmd.h"

static volatile sig_atomic_t stopped;

static void stop(int signal_number) {
    (void)signal_number;
    stopped = 1;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    /* Over a limit on file sizes write() then fails, which is an error like a full disk. */
    signal(SIGXFSZ, SIG_IGN);
}

static bool progress(void *arg, uint64_t done, uint64_t total) {
    int *shown = arg;
    int percent = total ? (int)(done * 100 / total) : 100;
    if (*shown >= 0 && percent != *shown) {
        *shown = percent;
        fprintf(stderr, "\rwriting weights %3d %%%s", percent, done == total ? "\n" : "");
    }
    return !stopped;
}

int cmd_convert(const struct options *options) {
    struct err err = {0};
    if (options->mask_token.set && !options->orthrus.set)
        return cmd_usage((err_set(&err, ERR_INVALID, "--mask-token: only with --orthrus"), &err));
    catch_signals();
    int shown = isatty(STDERR_FILENO) ? 0 : -1;
    struct convert_options convert = {
        .in = options->arguments[0],
        .out = options->arguments[1],
        .dtype = options->dtype,
        .window = (uint32_t)options->orthros.value,
        .block = (uint32_t)options->orthrus.value,
        .mask_token = options->mask_token.set ? (int32_t)options->mask_token.value : -1,
        .shard_bytes = options->max_shard_size,
        .progress = progress,
        .progress_arg = &shown,
    };
    struct convert_report report;
    if (model_convert(&convert, &report, &err)) {
        if (shown > 0 && shown < 100) fputc('\n', stderr);
        return cmd_fail(&err);
    }
    fprintf(stderr, "geryon: %s: %zu tensors, %llu bytes in %u file%s", convert.out,
            report.n_tensors, (unsigned long long)report.bytes, report.n_files,
            report.n_files == 1 ? "" : "s");
    if (report.mask_token >= 0) fprintf(stderr, ", mask token %d", report.mask_token);
    fputc('\n', stderr);
    return 0;
}
