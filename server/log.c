#include "server/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096, VALUE_MAX_BYTES = 1024 };

static enum log_level max_level = LOG_INFO;
static bool as_json;

static const char *const LEVELS[] = {"error", "warn", "info", "debug"};

void log_init(const char *level, const char *format) {
    for (unsigned i = 0; i < sizeof LEVELS / sizeof LEVELS[0]; i++)
        if (!strcmp(level, LEVELS[i])) max_level = (enum log_level)i;
    as_json = !strcmp(format, "json");
}

bool log_enabled(enum log_level level) {
    return level <= max_level;
}

bool log_limit_pass(struct log_limit *limit, uint32_t burst, uint64_t now_us, uint32_t *dropped) {
    uint64_t second = now_us / 1000000;
    *dropped = 0;
    if (limit->second != second) {
        limit->second = second;
        limit->count = 0;
    }
    if (limit->count >= burst) {
        limit->dropped++;
        return false;
    }
    limit->count++;
    *dropped = limit->dropped;
    limit->dropped = 0;
    return true;
}

/* A line being written. A field that does not fit is left out as a whole, so that a line stays
 * parseable; room for the end is kept. */
struct line {
    char text[LINE_MAX_BYTES];
    size_t len;
    bool overrun;
};

static void put(struct line *line, const char *text, size_t len) {
    size_t room = sizeof line->text - 8 - line->len;
    if (len > room) {
        line->overrun = true;
        return;
    }
    memcpy(line->text + line->len, text, len);
    line->len += len;
}

static void put_str(struct line *line, const char *text) {
    put(line, text, strlen(text));
}

/* Bytes of the UTF-8 character at c, 0 when it is none (RFC 3629). NUL ends the text. */
static size_t utf8_len(const unsigned char *c) {
    size_t n = c[0] < 0x80                   ? 1
               : c[0] >= 0xc2 && c[0] < 0xe0 ? 2
               : c[0] >= 0xe0 && c[0] < 0xf0 ? 3
               : c[0] >= 0xf0 && c[0] < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] >= 0xa0) ||
        (c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] >= 0x90))
        return 0;
    return n;
}

/* A JSON string; long values are cut. */
static void put_quoted(struct line *line, const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    put_str(line, "\"");
    while (*c && (size_t)(c - (const unsigned char *)text) < VALUE_MAX_BYTES) {
        char escaped[8];
        size_t n = utf8_len(c);
        if (*c == '"' || *c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", *c);
        else if (*c < 0x20 || *c == 0x7f)
            snprintf(escaped, sizeof escaped, "\\u%04x", *c);
        else
            snprintf(escaped, sizeof escaped, "%.*s", n ? (int)n : 1, n ? (const char *)c : "?");
        put_str(line, escaped);
        c += n ? n : 1;
    }
    put_str(line, "\"");
}

/* A bare word in text format: no blank, quote, equals sign or control byte. */
static bool is_plain(const char *text) {
    if (!*text) return false;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c <= ' ' || *c == '"' || *c == '=' || *c == '\\' || *c == 0x7f) return false;
    return true;
}

static void put_field(struct line *line, const struct log_field *field, bool first) {
    char number[64];
    size_t before = line->len;
    if (field->kind == LOG_FIELD_TEXT && !field->text) return;
    if (as_json) {
        if (!first) put_str(line, ",");
        put_quoted(line, field->key);
        put_str(line, ":");
    } else {
        if (!first) put_str(line, " ");
        put_str(line, field->key);
        put_str(line, "=");
    }
    switch (field->kind) {
    case LOG_FIELD_TEXT:
        if (as_json || !is_plain(field->text))
            put_quoted(line, field->text);
        else
            put_str(line, field->text);
        break;
    case LOG_FIELD_INT:
        snprintf(number, sizeof number, "%" PRId64, field->integer);
        put_str(line, number);
        break;
    case LOG_FIELD_REAL:
        snprintf(number, sizeof number, "%.3f", field->real);
        put_str(line, number);
        break;
    }
    if (line->overrun) line->len = before;
    line->overrun = false;
}

void log_write(enum log_level level, const char *event, const struct log_field *fields, size_t n) {
    if (level > max_level) return;
    struct line line;
    line.len = 0;
    line.overrun = false;
    struct timespec ts;
    struct tm tm;
    char stamp[40];
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t at = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(stamp + at, sizeof stamp - at, ".%03ldZ", ts.tv_nsec / 1000000);
    const struct log_field head[] = {log_str("time", stamp), log_str("level", LEVELS[level]),
                                     log_str("event", event)};
    if (as_json) put_str(&line, "{");
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++)
        put_field(&line, &head[i], i == 0);
    for (size_t i = 0; i < n; i++)
        put_field(&line, &fields[i], false);
    /* put() keeps these bytes free */
    if (as_json) line.text[line.len++] = '}';
    line.text[line.len++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line.text, line.len);
    (void)ignored;
}
