/* cmd_logits.c: logits of given tokens, for checking this engine against another one. */
#include <stdlib.h>
#include <string.h>

#include "server/cmd.h"

struct printer {
    uint32_t vocab_size;
};

static void print_row(void *arg, uint32_t position, const float *logits) {
    const struct printer *printer = arg;
    printf("{\"position\":%u,\"logits\":[", position);
    for (uint32_t i = 0; i < printer->vocab_size; i++)
        printf(i ? ",%.9g" : "%.9g", (double)logits[i]);
    fputs("]}\n", stdout);
}

/* What can be said of the flags before the model is loaded. */
static int check_flags(const struct options *options, struct err *err) {
    if (!options->tokens == !options->tokens_file)
        return err_set(err, ERR_INVALID, "give one of --tokens and --tokens-file");
    if (!strcmp(options->view, "draft") && !options->next.set)
        return err_set(err, ERR_INVALID, "--view draft needs --next ID");
    if (!options->tokens) return OK;
    struct tokens ignored = {0};
    int rc = cmd_parse_ids(options->tokens, strlen(options->tokens), "--tokens", 0, &ignored, err);
    tokens_free(&ignored);
    return rc;
}

static int read_tokens(const struct options *options, uint32_t vocab_size, struct tokens *out,
                       struct err *err) {
    if (options->tokens)
        return cmd_parse_ids(options->tokens, strlen(options->tokens), "--tokens", vocab_size, out,
                             err);
    FILE *f = fopen(options->tokens_file, "re");
    if (!f) return err_set(err, ERR_IO, "--tokens-file %s: cannot be opened", options->tokens_file);
    char *text = NULL;
    size_t len = 0;
    int rc = cmd_read_all(f, options->tokens_file, &text, &len, err);
    if (!rc) rc = cmd_parse_ids(text, len, options->tokens_file, vocab_size, out, err);
    free(text);
    fclose(f);
    return rc;
}

static int make_job(const struct options *options, const struct model_info *info,
                    const struct tokens *tokens, struct logits_job *job, struct err *err) {
    *job = (struct logits_job){
        .tokens = tokens->ids,
        .n_tokens = tokens->n,
        .chunk = options->decode ? 1 : options->chunk,
        .all = !strcmp(options->positions, "all"),
        .draft = !strcmp(options->view, "draft"),
        .next = (int32_t)options->next.value,
        .block = options->block ? options->block : info->block_size,
    };
    if (!tokens->n) return err_set(err, ERR_INVALID, "no tokens were given");
    if (!job->draft) return OK;
    if (!info->block_size)
        return err_set(err, ERR_INVALID, "--view draft: this model has no draft view");
    if ((uint64_t)options->next.value >= info->vocab_size)
        return err_set(err, ERR_INVALID, "--next: id %lld, the vocabulary has %u",
                       (long long)options->next.value, info->vocab_size);
    return OK;
}

int cmd_logits(const struct options *options) {
    struct err err = {0};
    struct offline offline;
    struct tokens tokens = {0};
    struct logits_job job;
    if (check_flags(options, &err)) return cmd_usage(&err);
    if (cmd_open(options, false, &offline, &err)) return cmd_fail(&err);
    const struct model_info *info = model_info(offline.model);
    struct printer printer = {info->vocab_size};
    int rc = read_tokens(options, info->vocab_size, &tokens, &err);
    if (!rc) rc = make_job(options, info, &tokens, &job, &err);
    if (!rc) rc = engine_logits(offline.engine, &job, print_row, &printer, &err);
    if (!rc && (fflush(stdout) || ferror(stdout)))
        rc = err_set(&err, ERR_IO, "cannot write to stdout");
    int exit_code = rc ? cmd_fail(&err) : 0;
    cmd_close(&offline);
    tokens_free(&tokens);
    return exit_code;
}
