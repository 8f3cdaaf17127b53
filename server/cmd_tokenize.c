/* cmd_tokenize.c: stdin to a JSON array of ids, or back. */
#include <stdlib.h>
#include <string.h>

#include "server/cmd.h"

static int encode(const struct options *options, const struct model *model, const char *text,
                  size_t len, struct err *err) {
    struct tokens tokens = {0};
    unsigned flags = TOKENIZE_PARSE_SPECIAL;
    if (!options->no_special) flags |= TOKENIZE_ADD_SPECIAL;
    int rc = model_tokenize(model, text, len, flags, &tokens, err);
    if (!rc) {
        putchar('[');
        for (uint32_t i = 0; i < tokens.n; i++)
            printf(i ? ",%d" : "%d", tokens.ids[i]);
        fputs("]\n", stdout);
    }
    tokens_free(&tokens);
    return rc;
}

static int decode(const struct options *options, const struct model *model, const char *json,
                  size_t len, struct err *err) {
    struct tokens tokens = {0};
    char *text = NULL;
    size_t text_len = 0;
    int rc = cmd_parse_ids(json, len, "stdin", model_info(model)->vocab_size, &tokens, err);
    if (!rc)
        rc = model_detokenize(model, tokens.ids, tokens.n, options->no_special, &text, &text_len,
                              err);
    if (!rc) fwrite(text, 1, text_len, stdout);
    free(text);
    tokens_free(&tokens);
    return rc;
}

int cmd_tokenize(const struct options *options) {
    struct err err = {0};
    struct model *model = NULL;
    char *text = NULL;
    size_t len = 0;
    struct model_options model_options = cmd_model_options(options);
    int rc = cmd_read_all(stdin, "stdin", &text, &len, &err);
    if (!rc) rc = model_load(&model_options, &model, &err);
    if (!rc) rc = (options->decode ? decode : encode)(options, model, text, len, &err);
    if (!rc && (fflush(stdout) || ferror(stdout)))
        rc = err_set(&err, ERR_IO, "cannot write to stdout");
    free(text);
    model_destroy(model);
    return rc ? cmd_fail(&err) : 0;
}
