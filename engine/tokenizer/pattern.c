#include "engine/tokenizer/pattern.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/tokenizer/pattern_translate.h"
#include "engine/tokenizer/utf8.h"

enum {
    STEPS_BASE = 10 * 1000 * 1000, /* steps of one search, and more for each byte of text, since */
    STEPS_PER_BYTE = 64,           /* \s*[\r\n]+ alone backtracks once over a long run of blanks */
    HEAP_KIB = 64 * 1024,
    PARENS_MAX = 100,
};

struct pattern {
    enum { PATTERN_REGEX, PATTERN_LITERAL, PATTERN_CLASS } kind;
    pcre2_code *code;
    char *literal;
    size_t literal_len;
    bool (*is)(uint32_t c);
};

static int pattern_new(int kind, struct pattern **out, struct err *err) {
    struct pattern *p = calloc(1, sizeof *p);
    if (!p) return err_set(err, ERR_NOMEM, "no memory for a pattern");
    p->kind = kind;
    *out = p;
    return OK;
}

static pcre2_code *compile(const char *regex, size_t len, int *error, size_t *offset) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return NULL;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, PARENS_MAX);
    /* Ruby's ^ and $ match at every line. The text was checked for UTF-8 once, as a whole. */
    uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)regex, len, options, error, offset, context);
    pcre2_compile_context_free(context);
    if (code) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it: slower, same matches */
    return code;
}

int pattern_regex(const char *source, size_t len, const char *where, struct pattern **out,
                  struct err *err) {
    char *regex = NULL;
    size_t regex_len;
    int rc = pattern_translate(source, len, where, &regex, &regex_len, err);
    if (rc) return rc;
    struct pattern *p = NULL;
    rc = pattern_new(PATTERN_REGEX, &p, err);
    if (rc) goto done;
    int error = PCRE2_ERROR_NOMEMORY;
    size_t offset = 0;
    p->code = compile(regex, regex_len, &error, &offset);
    if (!p->code) {
        char reason[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
        rc = err_set(err, error == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_INVALID,
                     "%s: regular expression \"%.100s\": %s", where, source, reason);
        goto done;
    }
    *out = p;
    p = NULL;
done:
    pattern_destroy(p);
    free(regex);
    return rc;
}

int pattern_literal(const char *text, size_t len, const char *where, struct pattern **out,
                    struct err *err) {
    if (len == 0) return err_set(err, ERR_INVALID, "%s: the pattern is empty", where);
    struct pattern *p = NULL;
    int rc = pattern_new(PATTERN_LITERAL, &p, err);
    if (rc) return rc;
    p->literal = malloc(len);
    if (!p->literal) {
        pattern_destroy(p);
        return err_set(err, ERR_NOMEM, "%s: no memory for the pattern", where);
    }
    memcpy(p->literal, text, len);
    p->literal_len = len;
    *out = p;
    return OK;
}

int pattern_class(bool (*is)(uint32_t c), struct pattern **out, struct err *err) {
    int rc = pattern_new(PATTERN_CLASS, out, err);
    if (rc == OK) (*out)->is = is;
    return rc;
}

void pattern_destroy(struct pattern *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    free(p->literal);
    free(p);
}

void matcher_free(struct matcher *m) {
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    *m = (struct matcher){0};
}

static int matcher_ready(struct matcher *m, size_t len) {
    if (!m->data) m->data = pcre2_match_data_create(1, NULL);
    if (!m->context) m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context) return ERR_NOMEM;
    uint64_t steps = STEPS_BASE + (uint64_t)len * STEPS_PER_BYTE;
    pcre2_set_match_limit(m->context, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    pcre2_set_heap_limit(m->context, HEAP_KIB);
    return OK;
}

static int search_regex(const struct pattern *p, struct matcher *m, const char *text, size_t len,
                        size_t from, size_t *start, size_t *end, struct err *err) {
    if (matcher_ready(m, len)) return err_set(err, ERR_NOMEM, "no memory to search a text");
    int rc =
        pcre2_match(p->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's stack is on the heap */
        rc = pcre2_match(p->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         m->data, m->context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc == PCRE2_ERROR_NOMEMORY) return err_set(err, ERR_NOMEM, "no memory to search a text");
    if (rc < 0) {
        char reason[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
        return err_set(err, ERR_TOO_LONG, "the tokenizer's regular expression gave up: %s", reason);
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    *start = at[0];
    *end = at[1];
    return 1;
}

static int search_class(const struct pattern *p, const char *text, size_t len, size_t from,
                        size_t *start, size_t *end) {
    for (size_t i = from, size; i < len; i += size) {
        if (!p->is(utf8_char(text + i, &size))) continue;
        *start = i;
        *end = i + size;
        return 1;
    }
    return 0;
}

static int search(const struct pattern *p, struct matcher *m, const char *text, size_t len,
                  size_t from, size_t *start, size_t *end, struct err *err) {
    if (p->kind == PATTERN_REGEX) return search_regex(p, m, text, len, from, start, end, err);
    if (p->kind == PATTERN_CLASS) return search_class(p, text, len, from, start, end);
    const char *at = memmem(text + from, len - from, p->literal, p->literal_len);
    if (!at) return 0;
    *start = (size_t)(at - text);
    *end = *start + p->literal_len;
    return 1;
}

int pattern_next(const struct pattern *p, struct matcher *m, const char *text, size_t len,
                 struct pattern_walk *walk, size_t *start, size_t *end, struct err *err) {
    while (walk->from <= len) {
        size_t lo = 0, hi = 0;
        int rc = search(p, m, text, len, walk->from, &lo, &hi, err);
        if (rc <= 0) {
            walk->from = len + 1;
            return rc;
        }
        if (lo == hi && walk->had_match && walk->last_end == hi) {
            size_t size = 1;
            if (walk->from < len) utf8_char(text + walk->from, &size);
            walk->from += size;
            continue;
        }
        ASSERT(lo >= walk->from && hi >= lo && hi <= len);
        *walk = (struct pattern_walk){hi, true, hi};
        *start = lo;
        *end = hi;
        return 1;
    }
    return 0;
}
