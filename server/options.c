/* options.c: what is made from the table of flags.
 *
 *   argv ──▶ option_find ──▶ set_value ──▶ struct options        (by offset and kind)
 *   environment twin of every flag that argv did not give    ──▶ set_value
 *   --config's lines for flags that neither gave             ──▶ set_value    (options_config.c)
 *   default text of every flag that nobody gave              ──▶ set_value
 */
#include "server/options_table.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct options, field)

static const struct {
    const char *name;
    enum command command;
    const char *meaning;
} COMMANDS[] = {
    {"serve", COMMAND_SERVE, "serve a model over HTTP"},
    {"generate", COMMAND_GENERATE, "generate one text without a server"},
    {"logits", COMMAND_LOGITS, "print logits of a token sequence"},
    {"tokenize", COMMAND_TOKENIZE, "stdin to a JSON array of token ids, or back"},
    {"inspect", COMMAND_INSPECT, "describe a checkpoint without loading its weights"},
    {"bench", COMMAND_BENCH, "measure prefill and decode speed without a server"},
    {"convert", COMMAND_CONVERT, "rewrite a checkpoint as a directory of safetensors"},
    {"health", COMMAND_HEALTH, "ask a running server whether it is healthy (exit 0 or 1)"},
    {"version", COMMAND_VERSION, "print the version"},
    {"help", COMMAND_HELP, "help COMMAND: flags, defaults, ranges"},
};

static const char *command_name(enum command command) {
    for (size_t i = 0; i < ARRAY_LEN(COMMANDS); i++)
        if (COMMANDS[i].command == command) return COMMANDS[i].name;
    return "?";
}

/* ---- values ---------------------------------------------------------------------------------- */

int options_parse_size(const char *text, uint64_t *out) {
    if (!isdigit((unsigned char)*text)) return ERR_INVALID;
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno) return ERR_INVALID;
    static const char UNITS[] = "KMGT";
    uint64_t scale = 1;
    const char *unit = *end ? strchr(UNITS, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        scale = (uint64_t)1 << (10 * (unit - UNITS + 1));
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'B') end++;
    if (*end) return ERR_INVALID;
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)n, scale, &bytes)) return ERR_INVALID;
    *out = bytes;
    return OK;
}

static bool parse_whole(const char *text, int64_t *out) {
    const char *digits = *text == '-' ? text + 1 : text;
    if (!isdigit((unsigned char)*digits)) return false;
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || *end) return false;
    *out = n;
    return true;
}

static bool parse_real(const char *text, double *out) {
    char *end;
    if (!isdigit((unsigned char)*text) && *text != '-' && *text != '.') return false;
    double r = strtod(text, &end);
    if (*end || !isfinite(r)) return false;
    *out = r;
    return true;
}

static bool one_of(const char *choices, const char *text, const char **out) {
    size_t len = strlen(text);
    for (const char *at = choices; len;) {
        const char *end = strchrnul(at, '|');
        if ((size_t)(end - at) == len && !memcmp(at, text, len)) {
            *out = text;
            return true;
        }
        if (!*end) return false;
        at = end + 1;
    }
    return false;
}

static void format_size(double bytes, char *out, size_t cap) {
    static const char *UNITS[] = {"", "K", "M", "G"};
    size_t u = 0;
    while (u < 3 && bytes >= 1024 && fmod(bytes, 1024) == 0) {
        bytes /= 1024;
        u++;
    }
    snprintf(out, cap, "%.0f%s", bytes, UNITS[u]);
}

/* What the flag accepts, for errors and help. */
static void describe_range(const struct option *opt, char *out, size_t cap) {
    char lo[32], hi[32];
    switch (opt->kind) {
    case KIND_TEXT:
    case KIND_LIST:
        snprintf(out, cap, "a text that is not empty");
        break;
    case KIND_CHOICE:
        snprintf(out, cap, "one of %s", opt->choices);
        break;
    case KIND_COUNT:
        snprintf(out, cap, "a whole number from %.0f to %.0f", opt->lo, opt->hi);
        break;
    case KIND_SIZE:
        format_size(opt->lo, lo, sizeof lo);
        format_size(opt->hi, hi, sizeof hi);
        snprintf(out, cap, "a size from %s to %s, such as 512M or 4G", lo, hi);
        break;
    case KIND_REAL:
        snprintf(out, cap, "a number from %g to %g", opt->lo, opt->hi);
        break;
    case KIND_INT:
        if (opt->lo == opt->hi)
            snprintf(out, cap, "a signed 64-bit whole number");
        else
            snprintf(out, cap, "a whole number from %.0f to %.0f", opt->lo, opt->hi);
        break;
    case KIND_COUNTS:
        snprintf(out, cap, "1 to %d whole numbers from %.0f to %.0f between commas",
                 OPTION_COUNTS_MAX, opt->lo, opt->hi);
        break;
    case KIND_SWITCH:
        snprintf(out, cap, "true or false");
        break;
    case KIND_DRAFTS:
        snprintf(out, cap, "auto, off, ngram, or a whole number from %.0f to %.0f", opt->lo,
                 opt->hi);
        break;
    }
}

static bool in_range(const struct option *opt, double v) {
    return v >= opt->lo && v <= opt->hi;
}

static bool parse_counts(const struct option *opt, const char *text, struct option_counts *out) {
    struct option_counts counts = {0};
    for (const char *at = text;; at++) {
        uint64_t n = 0;
        const char *digits = at;
        for (; isdigit((unsigned char)*at) && n <= UINT32_MAX; at++)
            n = n * 10 + (uint64_t)(*at - '0');
        if (at == digits || !in_range(opt, (double)n) || counts.n == OPTION_COUNTS_MAX)
            return false;
        counts.items[counts.n++] = (uint32_t)n;
        if (!*at) break;
        if (*at != ',') return false;
    }
    *out = counts;
    return true;
}

/* Store text in the option's field; false when it is not acceptable. */
static bool set_value(struct options *options, const struct option *opt, const char *text) {
    void *field = (char *)options + opt->offset;
    int64_t n;
    double r;
    switch (opt->kind) {
    case KIND_TEXT:
        /* An empty prompt is a prompt; an empty path or address is a slip. */
        if (!*text && opt->offset != AT(prompt) && opt->offset != AT(chat)) return false;
        *(const char **)field = text;
        return true;
    case KIND_CHOICE:
        return one_of(opt->choices, text, (const char **)field);
    case KIND_COUNT:
        if (!parse_whole(text, &n) || !in_range(opt, (double)n)) return false;
        *(uint32_t *)field = (uint32_t)n;
        return true;
    case KIND_SIZE: {
        uint64_t bytes;
        if (options_parse_size(text, &bytes) || !in_range(opt, (double)bytes)) return false;
        *(uint64_t *)field = bytes;
        return true;
    }
    case KIND_REAL:
        if (!parse_real(text, &r) || !in_range(opt, r)) return false;
        *(double *)field = r;
        return true;
    case KIND_INT:
        if (!parse_whole(text, &n)) return false;
        if (opt->lo != opt->hi && !in_range(opt, (double)n)) return false;
        *(struct option_int *)field = (struct option_int){true, n};
        return true;
    case KIND_COUNTS:
        return parse_counts(opt, text, field);
    case KIND_SWITCH: {
        const char *ignored;
        if (one_of("true|1|yes|on", text, &ignored))
            *(bool *)field = true;
        else if (one_of("false|0|no|off", text, &ignored))
            *(bool *)field = false;
        else
            return false;
        return true;
    }
    case KIND_LIST: {
        struct option_list *list = field;
        if (!*text || list->n == OPTION_LIST_MAX) return false;
        list->items[list->n++] = text;
        return true;
    }
    case KIND_DRAFTS:
        if (!strcmp(text, "auto"))
            *(int32_t *)field = -1;
        else if (!strcmp(text, "off"))
            *(int32_t *)field = 0;
        else if (!strcmp(text, "ngram"))
            *(int32_t *)field = -2;
        else if (parse_whole(text, &n) && in_range(opt, (double)n))
            *(int32_t *)field = (int32_t)n;
        else
            return false;
        return true;
    }
    return false;
}

/* name: the flag, variable or place as the user wrote it. */
static int bad_value(struct err *err, const struct option *opt, const char *name,
                     const char *text) {
    char range[160];
    describe_range(opt, range, sizeof range);
    return err_set(err, ERR_INVALID, "%s: \"%.60s\" is not %s%s", name, text, range,
                   opt->kind == KIND_LIST ? ", at most 64 times" : "");
}

int options_set(struct options *options, const struct option *opt, const char *name,
                const char *text, struct err *err) {
    return set_value(options, opt, text) ? OK : bad_value(err, opt, name, text);
}

/* ---- command line ---------------------------------------------------------------------------- */

const struct option *options_find(const char *name, size_t len, unsigned command) {
    for (size_t i = 0; i < options_table_rows; i++) {
        const struct option *opt = &options_table[i];
        if (!(opt->commands & command)) continue;
        const char *names[] = {opt->name, opt->aliases[0], opt->aliases[1]};
        for (size_t k = 0; k < ARRAY_LEN(names); k++)
            if (names[k] && strlen(names[k]) == len && !memcmp(names[k], name, len)) return opt;
    }
    return NULL;
}

static int parse_command(struct options *options, const char *word, struct err *err) {
    for (size_t i = 0; i < ARRAY_LEN(COMMANDS); i++) {
        if (strcmp(COMMANDS[i].name, word)) continue;
        options->command = COMMANDS[i].command;
        return OK;
    }
    return err_set(err, ERR_INVALID, "unknown command \"%.60s\"; `geryon help` lists them", word);
}

/* What the command's n-th word is called that is no flag, or NULL. */
static const char *argument_name(enum command command, size_t n) {
    static const char *const convert[OPTION_ARGUMENTS_MAX] = {"IN", "OUT"};
    return command == COMMAND_CONVERT && n < OPTION_ARGUMENTS_MAX ? convert[n] : NULL;
}

static int check_arguments(const struct options *options, struct err *err) {
    for (size_t i = 0; i < OPTION_ARGUMENTS_MAX; i++) {
        const char *name = argument_name(options->command, i);
        if (name && !options->arguments[i])
            return err_set(err, ERR_INVALID, "%s is missing; `geryon help %s` shows the usage",
                           name, command_name(options->command));
    }
    return OK;
}

/* The words after the command. given[i]: row i of the table was set. */
static int parse_words(struct options *options, int argc, char **argv, bool *given,
                       struct err *err) {
    size_t n_arguments = 0;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (options->command == COMMAND_HELP && word[0] != '-' && !options->help_topic) {
            options->help_topic = word;
            continue;
        }
        if (word[0] != '-' && *word && argument_name(options->command, n_arguments)) {
            options->arguments[n_arguments++] = word;
            continue;
        }
        if (word[0] != '-') return err_set(err, ERR_INVALID, "unexpected argument \"%.60s\"", word);
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            options->help_topic = command_name(options->command);
            options->command = COMMAND_HELP;
            return OK;
        }
        size_t len = strcspn(word, "=");
        const struct option *opt = options_find(word, len, options->command);
        if (!opt)
            return err_set(err, ERR_INVALID,
                           "unknown flag %.*s; `geryon help %s` lists those of %s",
                           (int)(len < 60 ? len : 60), word, command_name(options->command),
                           command_name(options->command));
        const char *value = word[len] == '=' ? word + len + 1 : NULL;
        if (!value && opt->kind == KIND_SWITCH) value = "true";
        if (!value && i + 1 < argc) value = argv[++i];
        if (!value) {
            char range[160];
            describe_range(opt, range, sizeof range);
            return err_set(err, ERR_INVALID, "%s: value missing, expected %s", opt->name, range);
        }
        int rc = options_set(options, opt, opt->name, value, err);
        if (rc) return rc;
        given[opt - options_table] = true;
    }
    return OK;
}

/* ---- environment and defaults ---------------------------------------------------------------- */

static void env_name(const struct option *opt, char *out, size_t cap) {
    size_t n = (size_t)snprintf(out, cap, "GERYON_");
    for (const char *c = opt->name + 2; *c && n + 1 < cap; c++)
        out[n++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    out[n] = 0;
}

/* A repeatable flag's twin: items between commas, at least one: a key that came out empty must not
 * start a server without keys. */
static int set_list(struct options *options, const struct option *opt, const char *name,
                    const char *text, struct err *err) {
    if (options->n_owned == OPTION_LIST_MAX) return bad_value(err, opt, name, text);
    char *copy = strdup(text);
    if (!copy) return err_set(err, ERR_NOMEM, "%s: out of memory", name);
    options->owned[options->n_owned++] = copy;
    char *save = NULL, *item = strtok_r(copy, ",", &save);
    if (!item) return bad_value(err, opt, name, text);
    for (; item; item = strtok_r(NULL, ",", &save))
        if (options_set(options, opt, name, item, err)) return err ? err->code : ERR_INVALID;
    return OK;
}

static int set_from_env(struct options *options, const struct option *opt, options_getenv_fn *env,
                        bool *given, struct err *err) {
    char name[64];
    env_name(opt, name, sizeof name);
    const char *text = env(name);
    if (!text && opt->offset == AT(api_keys)) {
        snprintf(name, sizeof name, "API_KEY");
        text = env(name);
    }
    if (!text) return OK;
    *given = true;
    if (opt->kind == KIND_LIST) return set_list(options, opt, name, text, err);
    return options_set(options, opt, name, text, err);
}

static int read_environment(struct options *options, options_getenv_fn *env, bool *given,
                            struct err *err) {
    for (size_t i = 0; i < options_table_rows; i++) {
        const struct option *opt = &options_table[i];
        if (!(opt->commands & options->command) || given[i]) continue;
        if (opt->offset == AT(model) && options->synthetic) continue; /* the flag takes its place */
        int rc = set_from_env(options, opt, env, &given[i], err);
        if (rc) return rc;
    }
    return OK;
}

int options_parse(struct options *options, int argc, char **argv, options_getenv_fn *env,
                  struct err *err) {
    *options = (struct options){.command = COMMAND_HELP};
    if (argc < 2) return OK;
    int skip = 1;
    if (!strcmp(argv[1], "--version"))
        options->command = COMMAND_VERSION, skip = 2;
    else if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        skip = 2;
    else if (argv[1][0] == '-')
        options->command = COMMAND_SERVE;
    else if (parse_command(options, argv[1], err))
        return err ? err->code : ERR_INVALID;
    else
        skip = 2;

    bool given[OPTION_ROWS_MAX] = {false};
    int rc = parse_words(options, argc - skip, argv + skip, given, err);
    if (!rc) rc = check_arguments(options, err);
    if (!rc) rc = read_environment(options, env, given, err);
    if (!rc) rc = options_read_config(options, given, err);
    if (rc) return rc;
    for (size_t i = 0; i < options_table_rows; i++) {
        const struct option *opt = &options_table[i];
        if (!(opt->commands & options->command)) continue;
        if (!given[i] && opt->fallback) {
            bool fits = set_value(options, opt, opt->fallback);
            ASSERT(fits); /* the table's own defaults lie in its own ranges */
        }
        if (!given[i] && (opt->flags & OPTION_REQUIRED))
            return err_set(err, ERR_INVALID, "%s is required: %s", opt->name, opt->meaning);
        if (opt->offset == AT(max_connections)) options->max_connections_set = given[i];
    }
    return OK;
}

void options_fini(struct options *options) {
    for (uint32_t i = 0; i < options->n_owned; i++)
        free(options->owned[i]);
    options->n_owned = 0;
}

/* ---- help ------------------------------------------------------------------------------------ */

static void help_option(FILE *out, const struct option *opt) {
    char range[160], env[64];
    describe_range(opt, range, sizeof range);
    env_name(opt, env, sizeof env);
    fprintf(out, "  %s", opt->name);
    for (size_t k = 0; k < ARRAY_LEN(opt->aliases) && opt->aliases[k]; k++)
        fprintf(out, ", %s", opt->aliases[k]);
    if (opt->kind == KIND_COUNT || opt->kind == KIND_INT)
        fprintf(out, " N");
    else if (opt->kind == KIND_SIZE)
        fprintf(out, " SIZE");
    else if (opt->kind == KIND_REAL)
        fprintf(out, " %s", opt->choices ? opt->choices : "X");
    else if (opt->choices)
        fprintf(out, " %s", opt->choices);
    if (opt->kind == KIND_LIST) fprintf(out, " (repeatable)");
    fprintf(out, "\n      %s\n      ", opt->meaning);
    if (opt->flags & OPTION_REQUIRED)
        fprintf(out, "required; ");
    else if (opt->fallback)
        fprintf(out, "default %s; ", opt->fallback);
    if (opt->kind != KIND_TEXT && opt->kind != KIND_LIST && opt->kind != KIND_SWITCH)
        fprintf(out, "%s; ", range);
    fprintf(out, "%s\n", env);
}

int options_help(FILE *out, const char *command, struct err *err) {
    if (!command) {
        fprintf(out, "geryon %s: an LLM inference HTTP server\n\nusage: geryon COMMAND [flags]\n\n",
                GERYON_VERSION);
        for (size_t i = 0; i < ARRAY_LEN(COMMANDS); i++)
            fprintf(out, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].meaning);
        fprintf(out, "\n`geryon help COMMAND` shows its flags. Every flag has an environment twin "
                     "(the flag wins);\n`serve` also reads a file of flags (--config).\n");
        return OK;
    }
    struct options parsed = {0};
    int rc = parse_command(&parsed, command, err);
    if (rc) return rc;
    fprintf(out, "geryon %s", command);
    for (size_t i = 0; argument_name(parsed.command, i); i++)
        fprintf(out, " %s", argument_name(parsed.command, i));
    for (size_t i = 0; i < ARRAY_LEN(COMMANDS); i++)
        if (COMMANDS[i].command == parsed.command) fprintf(out, ": %s\n\n", COMMANDS[i].meaning);
    for (size_t i = 0; i < options_table_rows; i++)
        if (options_table[i].commands & parsed.command) help_option(out, &options_table[i]);
    return OK;
}
