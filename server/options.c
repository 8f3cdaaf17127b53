/* options.c: the table of flags and what is made from it.
 *
 *   argv ──▶ option_find ──▶ set_value ──▶ struct options        (by offset and kind)
 *   environment twin of every flag that argv did not give ──▶ set_value
 *   default text of every flag that neither gave          ──▶ set_value
 */
#include "server/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    KIND_TEXT,   /* const char * */
    KIND_CHOICE, /* const char *, one of `choices` */
    KIND_COUNT,  /* uint32_t in lo .. hi */
    KIND_SIZE,   /* uint64_t bytes in lo .. hi */
    KIND_REAL,   /* double in lo .. hi */
    KIND_INT,    /* struct option_int in lo .. hi, or any 64-bit number where lo == hi */
    KIND_SWITCH, /* bool; takes no value */
    KIND_LIST,   /* struct option_list; repeatable */
    KIND_DRAFTS, /* int32_t: auto, off or lo .. hi */
};

enum {
    FLAG_REQUIRED = 1,
    LOADS = COMMAND_SERVE | COMMAND_GENERATE | COMMAND_LOGITS, /* commands that run an engine */
    OFFLINE = COMMAND_GENERATE | COMMAND_LOGITS,
    MODEL = LOADS | COMMAND_TOKENIZE | COMMAND_INSPECT,
};

struct option {
    const char *name;       /* "--max-num-seqs" */
    const char *aliases[2]; /* or NULL */
    unsigned commands;
    enum kind kind;
    size_t offset;
    const char *fallback; /* default as text, or NULL: left at zero */
    double lo, hi;
    const char *choices; /* "a|b|c", or what to call the value in help */
    const char *meaning;
    unsigned flags;
};

#define AT(field) offsetof(struct options, field)
#define KIB       1024.0
#define MIB       (1024.0 * 1024.0)
#define GIB       (1024.0 * MIB)

static const struct option TABLE[] = {
    {"--model",
     {0},
     MODEL,
     KIND_TEXT,
     AT(model),
     NULL,
     0,
     0,
     "PATH",
     "checkpoint directory, or .gguf file",
     FLAG_REQUIRED},
    {"--backend",
     {0},
     LOADS,
     KIND_CHOICE,
     AT(backend),
     "auto",
     0,
     0,
     "auto|cpu|cuda",
     "where to compute; cuda needs a build that has it",
     0},
    {"--threads",
     {0},
     MODEL,
     KIND_COUNT,
     AT(threads),
     "0",
     0,
     1024,
     NULL,
     "worker threads of the CPU backend; 0 = cores this process may use",
     0},
    {"--dtype",
     {0},
     MODEL,
     KIND_CHOICE,
     AT(dtype),
     "auto",
     0,
     0,
     "auto|f32|bf16|f16|q8_0|q4_0",
     "number format of the weights; auto = as in the file, else converted at load",
     0},
    {"--cpu-table",
     {0},
     LOADS,
     KIND_CHOICE,
     AT(cpu_table),
     "auto",
     0,
     0,
     "auto|ref|avx2",
     "kernels of the CPU backend; auto = the fastest this machine has",
     0},
    {"--window",
     {0},
     LOADS | COMMAND_INSPECT,
     KIND_COUNT,
     AT(window),
     "0",
     0,
     1 << 24,
     NULL,
     "run a plain model with Orthros streams of this window; 0 = as the model says",
     0},
    {"--kv-dtype",
     {0},
     LOADS,
     KIND_CHOICE,
     AT(kv_dtype),
     "auto",
     0,
     0,
     "auto|f32|bf16",
     "number format of stored keys and values; auto = f32 for f32 weights, else bf16",
     0},
    {"--max-model-len",
     {"-c", "--ctx-size"},
     LOADS,
     KIND_COUNT,
     AT(max_model_len),
     "0",
     0,
     1 << 24,
     NULL,
     "longest prompt and answer together, in tokens; 0 = the model's own",
     0},
    {"--max-num-seqs",
     {"-np", "--parallel"},
     COMMAND_SERVE,
     KIND_COUNT,
     AT(max_num_seqs),
     "64",
     1,
     4096,
     NULL,
     "sequences that run at once",
     0},
    {"--max-num-seqs",
     {"-np", "--parallel"},
     OFFLINE,
     KIND_COUNT,
     AT(max_num_seqs),
     "1",
     1,
     4096,
     NULL,
     "sequences that memory is set aside for",
     0},
    {"--max-num-batched-tokens",
     {0},
     LOADS,
     KIND_COUNT,
     AT(max_num_batched_tokens),
     "512",
     1,
     65536,
     NULL,
     "rows of one forward; an Orthros verification counts two a token",
     0},
    {"--prefill-chunk",
     {0},
     LOADS,
     KIND_COUNT,
     AT(prefill_chunk),
     "0",
     0,
     65536,
     NULL,
     "largest prefill chunk in tokens; 0 = as the row budget allows",
     0},
    {"--kv-memory",
     {0},
     LOADS,
     KIND_SIZE,
     AT(kv_memory),
     "0",
     0,
     1024 * GIB,
     NULL,
     "memory for KV pages; 0 = a quarter of the free memory, or what the sequences can need",
     0},
    {"--drafts",
     {0},
     LOADS,
     KIND_DRAFTS,
     AT(drafts),
     "auto",
     1,
     64,
     "auto|off|N",
     "rows of a draft block; auto = the model's block size, off = no drafting",
     0},
    {"--trace",
     {0},
     LOADS,
     KIND_TEXT,
     AT(trace),
     NULL,
     0,
     0,
     "FILE",
     "write one JSON line a step: rows by view, tokens, times",
     0},

    {"--host",
     {0},
     COMMAND_SERVE | COMMAND_HEALTH,
     KIND_TEXT,
     AT(host),
     "127.0.0.1",
     0,
     0,
     "ADDRESS",
     "address to listen on",
     0},
    {"--port",
     {0},
     COMMAND_SERVE | COMMAND_HEALTH,
     KIND_COUNT,
     AT(port),
     "8080",
     0,
     65535,
     NULL,
     "TCP port; 0 = any free one, printed at start",
     0},
    {"--served-model-name",
     {0},
     COMMAND_SERVE,
     KIND_LIST,
     AT(served_model_names),
     NULL,
     0,
     0,
     "NAME",
     "name clients use for the model; the first is the default",
     0},
    {"--max-queued-requests",
     {0},
     COMMAND_SERVE,
     KIND_COUNT,
     AT(max_queued_requests),
     "1024",
     0,
     1 << 20,
     NULL,
     "sequences that may wait; 0 = none",
     0},
    {"--max-body-bytes",
     {0},
     COMMAND_SERVE,
     KIND_SIZE,
     AT(max_body_bytes),
     "32M",
     KIB,
     GIB,
     NULL,
     "largest request body",
     0},
    {"--max-connections",
     {0},
     COMMAND_SERVE,
     KIND_COUNT,
     AT(max_connections),
     "4096",
     1,
     65536,
     NULL,
     "open client connections",
     0},
    {"--shutdown-timeout",
     {0},
     COMMAND_SERVE,
     KIND_REAL,
     AT(shutdown_timeout),
     "30",
     0,
     3600,
     "SECONDS",
     "how long running requests may go on after SIGTERM",
     0},
    {"--sse-keepalive",
     {0},
     COMMAND_SERVE,
     KIND_REAL,
     AT(sse_keepalive),
     "15",
     0,
     3600,
     "SECONDS",
     "silence after which a stream gets a comment line; 0 = never",
     0},
    {"--queue-timeout",
     {0},
     COMMAND_SERVE,
     KIND_REAL,
     AT(queue_timeout),
     "0",
     0,
     86400,
     "SECONDS",
     "how long a request may wait for its turn; 0 = for ever",
     0},
    {"--request-timeout",
     {0},
     COMMAND_SERVE,
     KIND_REAL,
     AT(request_timeout),
     "0",
     0,
     86400,
     "SECONDS",
     "how long a request may take in all; 0 = for ever",
     0},
    {"--watchdog",
     {0},
     COMMAND_SERVE,
     KIND_REAL,
     AT(watchdog),
     "30",
     1,
     3600,
     "SECONDS",
     "/health turns 503 when the engine makes no step for this long",
     0},
    {"--api-key",
     {0},
     COMMAND_SERVE,
     KIND_LIST,
     AT(api_keys),
     NULL,
     0,
     0,
     "KEY",
     "a key that clients must send; the variable API_KEY is a second twin",
     0},
    {"--api-key-file",
     {0},
     COMMAND_SERVE,
     KIND_TEXT,
     AT(api_key_file),
     NULL,
     0,
     0,
     "FILE",
     "keys, one a line; # starts a comment",
     0},
    {"--parse-specials",
     {0},
     COMMAND_SERVE | COMMAND_GENERATE,
     KIND_SWITCH,
     AT(parse_specials),
     NULL,
     0,
     0,
     NULL,
     "control tokens in chat messages are tokens, not text",
     0},
    {"--strict-params",
     {0},
     COMMAND_SERVE,
     KIND_SWITCH,
     AT(strict_params),
     NULL,
     0,
     0,
     NULL,
     "refuse requests that hold unknown fields",
     0},
    {"--log-level",
     {0},
     LOADS,
     KIND_CHOICE,
     AT(log_level),
     "info",
     0,
     0,
     "error|warn|info|debug",
     "what goes to the log on stderr",
     0},
    {"--log-format",
     {0},
     LOADS,
     KIND_CHOICE,
     AT(log_format),
     "text",
     0,
     0,
     "text|json",
     "key=value lines, or JSON lines",
     0},

    {"--prompt",
     {0},
     COMMAND_GENERATE,
     KIND_TEXT,
     AT(prompt),
     NULL,
     0,
     0,
     "TEXT",
     "text to continue",
     0},
    {"--chat",
     {0},
     COMMAND_GENERATE,
     KIND_TEXT,
     AT(chat),
     NULL,
     0,
     0,
     "TEXT",
     "one user message, through the chat template",
     0},
    {"--tokens",
     {0},
     OFFLINE,
     KIND_TEXT,
     AT(tokens),
     NULL,
     0,
     0,
     "1,2,3",
     "prompt as token ids",
     0},
    {"--tokens-file",
     {0},
     COMMAND_LOGITS,
     KIND_TEXT,
     AT(tokens_file),
     NULL,
     0,
     0,
     "FILE",
     "prompt as a JSON array of token ids",
     0},
    {"--max-tokens",
     {0},
     COMMAND_GENERATE,
     KIND_COUNT,
     AT(max_tokens),
     "256",
     1,
     1 << 24,
     NULL,
     "tokens to generate at most",
     0},
    {"--temperature",
     {0},
     COMMAND_GENERATE,
     KIND_REAL,
     AT(temperature),
     "0",
     0,
     2,
     NULL,
     "0 = greedy",
     0},
    {"--top-k",
     {0},
     COMMAND_GENERATE,
     KIND_COUNT,
     AT(top_k),
     "0",
     0,
     1 << 30,
     NULL,
     "keep the k likeliest tokens; 0 = all",
     0},
    {"--top-p",
     {0},
     COMMAND_GENERATE,
     KIND_REAL,
     AT(top_p),
     "1",
     0,
     1,
     NULL,
     "keep the likeliest tokens that together reach p",
     0},
    {"--min-p",
     {0},
     COMMAND_GENERATE,
     KIND_REAL,
     AT(min_p),
     "0",
     0,
     1,
     NULL,
     "drop tokens below this share of the likeliest one",
     0},
    {"--seed",
     {0},
     COMMAND_GENERATE,
     KIND_INT,
     AT(seed),
     NULL,
     0,
     0,
     "N",
     "same seed, same text; drawn from the system when absent",
     0},
    {"--ignore-eos",
     {0},
     COMMAND_GENERATE,
     KIND_SWITCH,
     AT(ignore_eos),
     NULL,
     0,
     0,
     NULL,
     "go on after end-of-sequence",
     0},
    {"--json",
     {0},
     COMMAND_GENERATE,
     KIND_SWITCH,
     AT(json),
     NULL,
     0,
     0,
     NULL,
     "print one JSON object: tokens, text, drafts of every cycle, times",
     0},
    {"--positions",
     {0},
     COMMAND_LOGITS,
     KIND_CHOICE,
     AT(positions),
     "last",
     0,
     0,
     "last|all",
     "rows to print",
     0},
    {"--view",
     {0},
     COMMAND_LOGITS,
     KIND_CHOICE,
     AT(view),
     "output",
     0,
     0,
     "output|draft",
     "draft = after the tokens, the rows of one draft block",
     0},
    {"--next",
     {0},
     COMMAND_LOGITS,
     KIND_INT,
     AT(next),
     NULL,
     0,
     2147483647,
     NULL,
     "first token of that draft block",
     0},
    {"--block",
     {0},
     COMMAND_LOGITS,
     KIND_COUNT,
     AT(block),
     "0",
     0,
     64,
     NULL,
     "rows of that draft block; 0 = the model's block size",
     0},
    {"--chunk",
     {0},
     COMMAND_LOGITS,
     KIND_COUNT,
     AT(chunk),
     "0",
     0,
     65536,
     NULL,
     "prefill in chunks of this many tokens; 0 = as the row budget allows",
     0},
    {"--decode",
     {0},
     COMMAND_LOGITS,
     KIND_SWITCH,
     AT(decode),
     NULL,
     0,
     0,
     NULL,
     "one token at a time",
     0},
    {"--decode",
     {0},
     COMMAND_TOKENIZE,
     KIND_SWITCH,
     AT(decode),
     NULL,
     0,
     0,
     NULL,
     "ids to text instead of text to ids",
     0},
    {"--no-special",
     {0},
     COMMAND_TOKENIZE,
     KIND_SWITCH,
     AT(no_special),
     NULL,
     0,
     0,
     NULL,
     "add no start token; with --decode: control tokens leave no text",
     0},
};

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
    {"health", COMMAND_HEALTH, "ask a running server whether it is healthy (exit 0 or 1)"},
    {"version", COMMAND_VERSION, "print the version"},
    {"help", COMMAND_HELP, "help COMMAND: flags, defaults, ranges"},
};

static const char *command_name(enum command command) {
    for (size_t i = 0; i < ARRAY_LEN(COMMANDS); i++)
        if (COMMANDS[i].command == command) return COMMANDS[i].name;
    return "?";
}

/* ---- values ------------------------------------------------------------------------------------ */

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
    case KIND_SWITCH:
        snprintf(out, cap, "true or false");
        break;
    case KIND_DRAFTS:
        snprintf(out, cap, "auto, off, or a whole number from %.0f to %.0f", opt->lo, opt->hi);
        break;
    }
}

static bool in_range(const struct option *opt, double v) {
    return v >= opt->lo && v <= opt->hi;
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
        else if (parse_whole(text, &n) && in_range(opt, (double)n))
            *(int32_t *)field = (int32_t)n;
        else
            return false;
        return true;
    }
    return false;
}

/* name: the flag or variable as the user wrote it. */
static int bad_value(struct err *err, const struct option *opt, const char *name,
                     const char *text) {
    char range[160];
    describe_range(opt, range, sizeof range);
    return err_set(err, ERR_INVALID, "%s: \"%.60s\" is not %s%s", name, text, range,
                   opt->kind == KIND_LIST ? ", at most 64 times" : "");
}

/* ---- command line ------------------------------------------------------------------------------ */

/* The table row of a flag of len bytes for this command, or NULL. */
static const struct option *option_find(const char *name, size_t len, unsigned command) {
    for (size_t i = 0; i < ARRAY_LEN(TABLE); i++) {
        const struct option *opt = &TABLE[i];
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

/* The words after the command. given[i]: row i of the table was set. */
static int parse_words(struct options *options, int argc, char **argv, bool *given,
                       struct err *err) {
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (options->command == COMMAND_HELP && word[0] != '-' && !options->help_topic) {
            options->help_topic = word;
            continue;
        }
        if (word[0] != '-') return err_set(err, ERR_INVALID, "unexpected argument \"%.60s\"", word);
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            options->help_topic = command_name(options->command);
            options->command = COMMAND_HELP;
            return OK;
        }
        size_t len = strcspn(word, "=");
        const struct option *opt = option_find(word, len, options->command);
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
        if (!set_value(options, opt, value)) return bad_value(err, opt, opt->name, value);
        given[opt - TABLE] = true;
    }
    return OK;
}

/* ---- environment and defaults ------------------------------------------------------------------ */

static void env_name(const struct option *opt, char *out, size_t cap) {
    size_t n = (size_t)snprintf(out, cap, "GERYON_");
    for (const char *c = opt->name + 2; *c && n + 1 < cap; c++)
        out[n++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    out[n] = 0;
}

/* A repeatable flag's twin: items between commas. */
static int set_list(struct options *options, const struct option *opt, const char *name,
                    const char *text, struct err *err) {
    if (options->n_owned == OPTION_LIST_MAX) return bad_value(err, opt, name, text);
    char *copy = strdup(text);
    if (!copy) return err_set(err, ERR_NOMEM, "%s: out of memory", name);
    options->owned[options->n_owned++] = copy;
    char *save = NULL;
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
        if (!set_value(options, opt, item)) return bad_value(err, opt, name, item);
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
    return set_value(options, opt, text) ? OK : bad_value(err, opt, name, text);
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

    bool given[ARRAY_LEN(TABLE)] = {false};
    int rc = parse_words(options, argc - skip, argv + skip, given, err);
    if (rc) return rc;
    for (size_t i = 0; i < ARRAY_LEN(TABLE); i++) {
        const struct option *opt = &TABLE[i];
        if (!(opt->commands & options->command)) continue;
        if (!given[i] && (rc = set_from_env(options, opt, env, &given[i], err))) return rc;
        if (!given[i] && opt->fallback) {
            bool fits = set_value(options, opt, opt->fallback);
            ASSERT(fits); /* the table's own defaults lie in its own ranges */
        }
        if (!given[i] && (opt->flags & FLAG_REQUIRED))
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

/* ---- help -------------------------------------------------------------------------------------- */

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
    if (opt->flags & FLAG_REQUIRED)
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
                     "(the flag wins).\n");
        return OK;
    }
    struct options parsed = {0};
    int rc = parse_command(&parsed, command, err);
    if (rc) return rc;
    for (size_t i = 0; i < ARRAY_LEN(COMMANDS); i++)
        if (COMMANDS[i].command == parsed.command)
            fprintf(out, "geryon %s: %s\n\n", command, COMMANDS[i].meaning);
    for (size_t i = 0; i < ARRAY_LEN(TABLE); i++)
        if (TABLE[i].commands & parsed.command) help_option(out, &TABLE[i]);
    return OK;
}
