/* main.c: choose the command; exit 0 = done, 1 = could not do it, 2 = a bad flag or value. */
#include <stdlib.h>
#include <string.h>

#include "server/cmd.h"

static const char *env(const char *name) {
    return getenv(name);
}

static int usage_error(const struct err *err) {
    fprintf(stderr, "geryon: %s\n", err->msg);
    return 2;
}

static int run(const struct options *options, struct err *err) {
    switch (options->command) {
    case COMMAND_SERVE:
        return cmd_serve(options);
    case COMMAND_GENERATE:
        return cmd_generate(options);
    case COMMAND_LOGITS:
        return cmd_logits(options);
    case COMMAND_TOKENIZE:
        return cmd_tokenize(options);
    case COMMAND_INSPECT:
        return cmd_inspect(options);
    case COMMAND_BENCH:
        return cmd_bench(options);
    case COMMAND_CONVERT:
        return cmd_convert(options);
    case COMMAND_HEALTH:
        return cmd_health(options);
    case COMMAND_VERSION:
        printf("geryon %s (%s)\n", GERYON_VERSION, GERYON_COMMIT);
        return 0;
    case COMMAND_HELP:
        return options_help(stdout, options->help_topic, err) ? usage_error(err) : 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    struct options options;
    struct err err = {0};
    int rc = options_parse(&options, argc, argv, env, &err);
    int exit_code = rc ? usage_error(&err) : run(&options, &err);
    options_fini(&options);
    return exit_code;
}
