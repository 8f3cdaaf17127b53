/* options_config.c: --config FILE.
 *
 *   # a comment, also behind a value
 *   max-num-seqs = 8              the flag's name without its dashes
 *   strict-params = true          switches want a value here
 *   api-key = "with # inside"     quotes keep blanks and #; \" and \\ stand for themselves
 *   api-key = another             a repeatable flag may have several lines
 */
#include "server/options_table.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 20, KEY_BYTES_MAX = 60 };

struct config {
    const char *path;
    char *at; /* the rest of the text */
    uint32_t line;
    uint32_t first_line[OPTION_ROWS_MAX]; /* where a key stood first, 0 = nowhere */
};

/* The end of a long path says more than its beginning. */
static const char *tail(const char *path) {
    enum { SHOWN = 80 };
    size_t n = strlen(path);
    if (n <= SHOWN) return path;
    path += n - SHOWN;
    while (((unsigned char)*path & 0xC0) == 0x80) /* not within a character */
        path++;
    return path;
}

static int read_file(const char *path, char **out, struct err *err) {
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, ERR_IO, "--config %s: %s", tail(path), strerror(errno));
    char *text = malloc(FILE_BYTES_MAX + 1);
    size_t n = text ? fread(text, 1, FILE_BYTES_MAX, f) : 0;
    bool whole = text && !ferror(f) && fgetc(f) == EOF;
    int saved = errno;
    fclose(f);
    if (whole && !memchr(text, 0, n)) {
        text[n] = 0;
        *out = text;
        return OK;
    }
    free(text);
    if (!text) return err_set(err, ERR_NOMEM, "--config %s: no memory", tail(path));
    if (n == FILE_BYTES_MAX)
        return err_set(err, ERR_INVALID, "--config %s: more than %d bytes", tail(path),
                       FILE_BYTES_MAX);
    return err_set(err, whole ? ERR_INVALID : ERR_IO, "--config %s: %s", tail(path),
                   whole ? "holds a NUL byte" : strerror(saved));
}

static int bad_line(const struct config *config, struct err *err, const char *what) {
    return err_set(err, ERR_INVALID, "%s:%u: %s", tail(config->path), config->line, what);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* The value in quotes at *at, unescaped in place; *at moves behind it. NULL: it does not end. */
static char *take_quoted(char **at) {
    char *from = *at + 1, *to = from, *value = from;
    while (*from && *from != '"') {
        if (*from == '\\' && (from[1] == '"' || from[1] == '\\')) from++;
        *to++ = *from++;
    }
    if (*from != '"') return NULL;
    *at = from + 1;
    *to = 0;
    return value;
}

/* Bare text up to a comment or the end, blanks around it cut off. */
static char *take_bare(char **at) {
    char *value = *at, *end = value;
    while (*end && !(*end == '#' && (end == value || is_blank(end[-1]))))
        end++;
    *at = end + strlen(end);
    while (end > value && is_blank(end[-1]))
        end--;
    *end = 0;
    return value;
}

/* key and value of one line; *key NULL when it holds none. Cuts the line up. */
static int split_line(struct config *config, char *line, char **key, char **value,
                      struct err *err) {
    *key = NULL;
    while (is_blank(*line))
        line++;
    if (!*line || *line == '#') return OK;
    char *name = line;
    size_t len = strcspn(name, " \t\r=#\"");
    line += len;
    while (is_blank(*line))
        line++;
    if (!len || *line != '=') return bad_line(config, err, "expected `key = value`");
    line++;
    while (is_blank(*line))
        line++;
    name[len] = 0;
    *value = *line == '"' ? take_quoted(&line) : take_bare(&line);
    if (!*value) return bad_line(config, err, "the quoted value does not end on its line");
    while (is_blank(*line))
        line++;
    if (*line && *line != '#') return bad_line(config, err, "text behind the quoted value");
    *key = name;
    return OK;
}

static const struct option *find(const char *key, unsigned command) {
    char flag[KEY_BYTES_MAX + 3];
    if (*key == '-' || strlen(key) > KEY_BYTES_MAX) return NULL;
    snprintf(flag, sizeof flag, "--%s", key);
    return options_find(flag, strlen(flag), command);
}

static int take_line(struct config *config, char *line, struct options *options,
                     struct options *scratch, bool *given, struct err *err) {
    char *key, *value, message[160];
    int rc = split_line(config, line, &key, &value, err);
    if (rc || !key) return rc;
    const struct option *opt = find(key, options->command);
    if (!opt || opt->offset == offsetof(struct options, config)) {
        snprintf(message, sizeof message, "unknown key \"%.60s\"; `geryon help serve` lists flags",
                 key);
        return bad_line(config, err, message);
    }
    size_t row = (size_t)(opt - options_table);
    if (config->first_line[row] && opt->kind != KIND_LIST) {
        snprintf(message, sizeof message, "%.60s is set already in line %u", key,
                 config->first_line[row]);
        return bad_line(config, err, message);
    }
    if (!config->first_line[row]) config->first_line[row] = config->line;
    snprintf(message, sizeof message, "%s:%u: %.50s", tail(config->path), config->line, key);
    return options_set(given[row] ? scratch : options, opt, message, value, err);
}

int options_read_config(struct options *options, bool *given, struct err *err) {
    if (!options->config) return OK;
    struct config config = {.path = options->config};
    struct options scratch = {0}; /* takes values that a flag or variable overrides */
    if (options->n_owned == OPTION_LIST_MAX)
        return err_set(err, ERR_INVALID, "--config: too many lists in the environment");
    int rc = read_file(options->config, &config.at, err);
    if (rc) return rc;
    options->owned[options->n_owned++] = config.at;
    while (!rc && *config.at) {
        char *line = config.at;
        size_t len = strcspn(line, "\n");
        config.at += len + (line[len] == '\n');
        line[len] = 0;
        config.line++;
        rc = take_line(&config, line, options, &scratch, given, err);
    }
    for (size_t i = 0; i < options_table_rows; i++)
        given[i] = given[i] || config.first_line[i];
    return rc;
}
