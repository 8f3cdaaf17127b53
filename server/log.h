/* log.h: the log: one line an event on stderr, key=value or JSON. Never prompt text. Any thread;
 * a line is one write. */
#ifndef GERYON_LOG_H
#define GERYON_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

struct log_field {
    const char *key;
    enum { LOG_FIELD_TEXT, LOG_FIELD_INT, LOG_FIELD_REAL } kind;
    const char *text; /* NULL: the field is left out */
    int64_t integer;
    double real;
};

static inline struct log_field log_str(const char *key, const char *text) {
    return (struct log_field){.key = key, .kind = LOG_FIELD_TEXT, .text = text};
}
static inline struct log_field log_int(const char *key, int64_t n) {
    return (struct log_field){.key = key, .kind = LOG_FIELD_INT, .integer = n};
}
static inline struct log_field log_real(const char *key, double r) {
    return (struct log_field){.key = key, .kind = LOG_FIELD_REAL, .real = r};
}

/* level: "error", "warn", "info", "debug"; format: "text" or "json". Before the first call, info
 * and text. */
void log_init(const char *level, const char *format);
bool log_enabled(enum log_level level);
void log_write(enum log_level level, const char *event, const struct log_field *fields, size_t n);

/* log_event(LOG_INFO, "ready", log_str("model", name), log_int("port", port)); one field or more */
#define log_event(level, event, ...)                                                          \
    do {                                                                                      \
        if (log_enabled(level)) {                                                             \
            const struct log_field log_fields_[] = {__VA_ARGS__};                             \
            log_write(level, event, log_fields_, sizeof log_fields_ / sizeof log_fields_[0]); \
        }                                                                                     \
    } while (0)

/* For messages that outsiders can provoke: at most `burst` a second by this counter; what was
 * dropped is told with the next one. Returns true when the line may be written. */
struct log_limit {
    uint64_t second;
    uint32_t count, dropped;
};
bool log_limit_pass(struct log_limit *limit, uint32_t burst, uint64_t now_us, uint32_t *dropped);

#endif
