/* Text that remembers where it came from. A string is bytes plus runs:
 *
 *   text   <|im_start|>user\nhello <|im_end|>       runs   {end 16, trusted} {end 32, untrusted}
 *          '--- template --''-- message ---'
 *
 * Slices share bytes; buffers append pieces with their runs, so every operation that copies text
 * keeps its origin. Nothing here looks at origin to decide anything. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/chat/chat_internal.h"

/* ---- buffers ----------------------------------------------------------------------------------- */

void chat_buf_init(struct interp *in, struct buf *buf) {
    *buf = (struct buf){.in = in};
}

void chat_buf_drop(struct buf *buf) {
    buf->in->live -= buf->cap + buf->cap_runs * sizeof *buf->runs;
    free(buf->text);
    free(buf->runs);
    *buf = (struct buf){.in = buf->in, .failed = buf->failed};
}

static bool reserve(struct buf *buf, size_t more) {
    if (buf->failed) return false;
    if (more > CHAT_OUTPUT_MAX || buf->len + more > CHAT_OUTPUT_MAX) {
        buf->failed = true;
        return chat_fail(buf->in, "a text of the template is longer than %d bytes",
                         CHAT_OUTPUT_MAX);
    }
    size_t need = buf->len + more;
    if (need <= buf->cap) return true;
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < need)
        cap *= 2;
    if (cap > CHAT_OUTPUT_MAX) cap = CHAT_OUTPUT_MAX;
    bool fits = buf->in->live + (cap - buf->cap) <= CHAT_MEMORY_MAX;
    char *grown = fits ? realloc(buf->text, cap) : NULL;
    if (!grown) {
        buf->failed = true;
        return chat_fail_memory(buf->in);
    }
    buf->in->live += cap - buf->cap;
    buf->text = grown;
    buf->cap = (uint32_t)cap;
    return true;
}

static bool add_run(struct buf *buf, uint32_t end, bool trusted) {
    if (buf->n_runs && buf->runs[buf->n_runs - 1].trusted == trusted) {
        buf->runs[buf->n_runs - 1].end = end;
        return true;
    }
    if (buf->n_runs == buf->cap_runs) {
        uint32_t cap = buf->cap_runs ? buf->cap_runs * 2 : 8;
        size_t more = (cap - buf->cap_runs) * sizeof *buf->runs;
        bool fits = buf->in->live + more <= CHAT_MEMORY_MAX;
        struct run *grown = fits ? realloc(buf->runs, cap * sizeof *grown) : NULL;
        if (!grown) {
            buf->failed = true;
            return chat_fail_memory(buf->in);
        }
        buf->in->live += more;
        buf->runs = grown;
        buf->cap_runs = cap;
    }
    buf->runs[buf->n_runs++] = (struct run){.end = end, .trusted = trusted};
    return true;
}

bool chat_buf_add(struct buf *buf, const char *text, size_t len, bool trusted) {
    if (buf->failed) return false;
    if (!len) return true;
    if (!reserve(buf, len)) return false;
    if (!chat_charge_bytes(buf->in, len)) {
        buf->failed = true;
        return false;
    }
    memcpy(buf->text + buf->len, text, len);
    if (!add_run(buf, buf->len + (uint32_t)len, trusted)) return false;
    buf->len += (uint32_t)len;
    return true;
}

bool chat_buf_fill(struct buf *buf, char c, size_t n, bool trusted) {
    char block[256];
    memset(block, c, sizeof block);
    while (n) {
        size_t part = n < sizeof block ? n : sizeof block;
        if (!chat_buf_add(buf, block, part, trusted)) return false;
        n -= part;
    }
    return !buf->failed;
}

/* Index of the run that holds byte off. */
static uint32_t run_at(const struct str *s, size_t off) {
    uint32_t lo = 0, hi = s->n_runs - 1;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (s->runs[mid].end > off)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

bool chat_str_trusted_at(const struct str *s, size_t off) {
    return s->n_runs ? s->runs[run_at(s, off)].trusted : s->trusted;
}

bool chat_buf_slice(struct buf *buf, const struct str *s, size_t lo, size_t hi) {
    if (lo >= hi) return !buf->failed;
    if (!s->n_runs) return chat_buf_add(buf, s->text + lo, hi - lo, s->trusted);
    for (uint32_t i = run_at(s, lo); lo < hi; i++) {
        size_t end = s->runs[i].end < hi ? s->runs[i].end : hi;
        if (!chat_buf_add(buf, s->text + lo, end - lo, s->runs[i].trusted)) return false;
        lo = end;
    }
    return true;
}

bool chat_buf_str(struct buf *buf, const struct str *s) {
    return chat_buf_slice(buf, s, 0, s->len);
}

bool chat_buf_finish(struct buf *buf, struct val *out) {
    struct interp *in = buf->in;
    struct str *s = buf->failed || in->failed ? NULL : chat_alloc(in, sizeof *s);
    char *text = s ? chat_alloc(in, buf->len) : NULL;
    struct run *runs = NULL;
    if (text && buf->n_runs > 1) {
        runs = chat_alloc_array(in, buf->n_runs, sizeof *runs);
        if (runs) memcpy(runs, buf->runs, buf->n_runs * sizeof *runs);
    }
    bool ok = text && (buf->n_runs <= 1 || runs);
    if (ok) {
        if (buf->len) memcpy(text, buf->text, buf->len);
        *s = (struct str){.text = text,
                          .len = buf->len,
                          .n_chars = CHAT_CHARS_UNKNOWN,
                          .n_runs = runs ? buf->n_runs : 0,
                          .trusted = buf->n_runs ? buf->runs[0].trusted : true,
                          .runs = runs};
        *out = val_str(s);
    }
    chat_buf_drop(buf);
    return ok;
}

/* ---- strings ----------------------------------------------------------------------------------- */

const struct str *chat_str_new(struct interp *in, const char *text, size_t len, bool trusted) {
    struct str *s = chat_alloc(in, sizeof *s);
    if (!s) return NULL;
    *s = (struct str){
        .text = text, .len = (uint32_t)len, .n_chars = CHAT_CHARS_UNKNOWN, .trusted = trusted};
    return s;
}

const struct str *chat_str_slice(struct interp *in, const struct str *s, size_t lo, size_t hi) {
    if (lo == 0 && hi == s->len) return s;
    struct str *part = chat_alloc(in, sizeof *part);
    if (!part) return NULL;
    *part = (struct str){.text = s->text + lo,
                         .len = (uint32_t)(hi - lo),
                         .n_chars = s->n_chars == s->len ? (uint32_t)(hi - lo) : CHAT_CHARS_UNKNOWN,
                         .trusted = true};
    if (lo == hi) return part;
    part->trusted = chat_str_trusted_at(s, lo);
    if (!s->n_runs) return part;
    uint32_t first = run_at(s, lo), last = run_at(s, hi - 1);
    if (first == last) return part;
    part->n_runs = last - first + 1;
    struct run *runs = chat_alloc_array(in, part->n_runs, sizeof *runs);
    if (!runs) return NULL;
    for (uint32_t i = 0; i < part->n_runs; i++) {
        runs[i] = s->runs[first + i];
        runs[i].end -= (uint32_t)lo;
    }
    runs[part->n_runs - 1].end = part->len;
    part->runs = runs;
    return part;
}

bool chat_str_chars(struct interp *in, const struct str *s, uint32_t *out) {
    if (s->n_chars != CHAT_CHARS_UNKNOWN) {
        *out = s->n_chars;
        return true;
    }
    if (!chat_charge_bytes(in, s->len)) return false;
    uint32_t n = 0, cp;
    for (size_t at = 0; at < s->len; n++)
        at += chat_utf8_next(s->text, s->len, at, &cp);
    *out = n;
    /* Strings of the tree, which threads share, are counted when made; this one is ours alone. */
    ((struct str *)(uintptr_t)s)->n_chars = n;
    return true;
}

size_t chat_str_offset(const struct str *s, uint32_t index) {
    if (s->n_chars == s->len) return index;
    size_t at = 0;
    uint32_t cp;
    while (index-- && at < s->len)
        at += chat_utf8_next(s->text, s->len, at, &cp);
    return at;
}

bool chat_str_equal(const struct str *a, const struct str *b) {
    return a == b || (a->len == b->len && memcmp(a->text, b->text, a->len) == 0);
}

bool chat_str_is(const struct str *s, const char *text) {
    size_t len = strlen(text);
    return s->len == len && memcmp(s->text, text, len) == 0;
}

size_t chat_str_find(const struct str *s, size_t lo, size_t hi, const struct str *what) {
    if (lo > hi || what->len > hi - lo) return SIZE_MAX;
    if (!what->len) return lo;
    const char *p = memmem(s->text + lo, hi - lo, what->text, what->len);
    return p ? (size_t)(p - s->text) : SIZE_MAX;
}

size_t chat_str_rfind(const struct str *s, size_t lo, size_t hi, const struct str *what) {
    if (lo > hi || what->len > hi - lo) return SIZE_MAX;
    for (size_t at = hi - what->len + 1; at-- > lo;)
        if (memcmp(s->text + at, what->text, what->len) == 0) return at;
    return SIZE_MAX;
}

bool chat_charge_find(struct interp *in, const struct str *s, const struct str *what) {
    return chat_charge_bytes(in, (size_t)s->len * (1 + what->len / 16));
}

/* ---- characters -------------------------------------------------------------------------------- */

size_t chat_utf8_next(const char *text, size_t len, size_t pos, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)text + pos;
    size_t left = len - pos;
    *cp = s[0];
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    uint32_t v = s[0] & (0x7Fu >> n);
    *cp = 0xFFFD;
    if (s[0] < 0xC2 || s[0] > 0xF4 || n > left) return 1;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 1;
        v = v << 6 | (s[i] & 0x3Fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (v < least[n] || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) return 1;
    *cp = v;
    return n;
}

bool chat_utf8_valid(const char *text, size_t len) {
    for (size_t at = 0; at < len;) {
        uint32_t cp;
        size_t n = chat_utf8_next(text, len, at, &cp);
        if (n == 1 && (unsigned char)text[at] >= 0x80) return false;
        at += n;
    }
    return true;
}

size_t chat_utf8_put(char out[4], uint32_t cp) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(lead[n] | cp);
    return n;
}

/* What Python's str.isspace() says. */
bool chat_is_space(uint32_t cp) {
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Whether repr() shows the character itself. */
bool chat_is_printable(uint32_t cp) {
    if (cp < 0x80) return cp >= 0x20 && cp != 0x7F;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS;
}

bool chat_is_cased(uint32_t cp, bool *upper) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    *upper = c == UTF8PROC_CATEGORY_LU;
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static bool in_set(const struct str *set, const char *ch, size_t n) {
    return memmem(set->text, set->len, ch, n) != NULL; /* whole characters: UTF-8 synchronises */
}

static bool strips(const struct str *s, const struct str *set, size_t at, size_t n, uint32_t cp) {
    return set ? in_set(set, s->text + at, n) : chat_is_space(cp);
}

void chat_str_strip(const struct str *s, const struct str *set, int sides, size_t *lo, size_t *hi) {
    *lo = 0;
    *hi = s->len;
    while ((sides & STRIP_LEFT) && *lo < *hi) {
        uint32_t cp;
        size_t n = chat_utf8_next(s->text, s->len, *lo, &cp);
        if (!strips(s, set, *lo, n, cp)) break;
        *lo += n;
    }
    while ((sides & STRIP_RIGHT) && *hi > *lo) {
        size_t at = *hi - 1; /* start of the last character */
        while (at > *lo && *hi - at < 4 && ((unsigned char)s->text[at] & 0xC0) == 0x80)
            at--;
        uint32_t cp;
        size_t n = chat_utf8_next(s->text, *hi, at, &cp);
        if (at + n != *hi) { /* broken UTF-8: its last byte counts alone */
            at = *hi - 1;
            n = 1;
            cp = 0xFFFD;
        }
        if (!strips(s, set, at, n, cp)) break;
        *hi = at;
    }
}

/* ---- case -------------------------------------------------------------------------------------- */

/* Characters that become several: the rest maps one to one. */
static const struct {
    uint32_t cp;
    const char *upper, *title;
} expansions[] = {
    {0xDF, "SS", "Ss"},
    {0x149, "\u02BCN", "\u02BCN"},
    {0x1F0, "J\u030C", "J\u030C"},
    {0x587, "\u0535\u0552", "\u0535\u0582"},
    {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
};

enum target_case { TO_UPPER, TO_LOWER, TO_TITLE };

static bool put_cased(struct buf *buf, uint32_t cp, enum target_case to, bool trusted) {
    if (cp < 0x80) {
        char c = (char)cp;
        if (to != TO_LOWER && c >= 'a' && c <= 'z') c = (char)(c - 32);
        if (to == TO_LOWER && c >= 'A' && c <= 'Z') c = (char)(c + 32);
        return chat_buf_add(buf, &c, 1, trusted);
    }
    if (to == TO_LOWER && cp == 0x130) return chat_buf_add(buf, "i\u0307", 3, trusted);
    for (size_t i = 0; to != TO_LOWER && i < ARRAY_LEN(expansions); i++)
        if (expansions[i].cp == cp) {
            const char *s = to == TO_UPPER ? expansions[i].upper : expansions[i].title;
            return chat_buf_add(buf, s, strlen(s), trusted);
        }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    c = to == TO_UPPER   ? utf8proc_toupper(c)
        : to == TO_LOWER ? utf8proc_tolower(c)
                         : utf8proc_totitle(c);
    char bytes[4];
    return chat_buf_add(buf, bytes, chat_utf8_put(bytes, (uint32_t)c), trusted);
}

/* A capital sigma at the end of a word becomes the final one. */
static bool final_sigma(const struct str *s, size_t at, size_t after, bool prev_cased) {
    bool upper;
    uint32_t cp;
    if (!prev_cased || at + 1 >= s->len) return prev_cased;
    if (after >= s->len) return true;
    chat_utf8_next(s->text, s->len, after, &cp);
    return !chat_is_cased(cp, &upper);
}

static bool breaks_word(uint32_t cp) { /* the separators of the filter `title` */
    return chat_is_space(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<';
}

bool chat_str_case(struct interp *in, const struct str *s, enum case_op op, struct val *out) {
    struct buf buf;
    if (!chat_charge_bytes(in, s->len * 16u)) return false;
    chat_buf_init(in, &buf);
    bool prev_cased = false, word_start = true;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp;
        size_t n = chat_utf8_next(s->text, s->len, at, &cp);
        bool trusted = chat_str_trusted_at(s, at), upper;
        bool cased = chat_is_cased(cp, &upper);
        enum target_case to = TO_LOWER;
        if (op == CASE_UPPER) to = TO_UPPER;
        if (op == CASE_CAPITALIZE && at == 0) to = TO_TITLE;
        if (op == CASE_TITLE && !prev_cased) to = TO_TITLE;
        if (op == CASE_TITLE_WORDS && word_start) to = TO_UPPER;
        if (op == CASE_SWAP && cased && !upper) to = TO_UPPER;
        bool ok;
        if (n == 1 && cp == 0xFFFD) /* a broken byte stays as it is */
            ok = chat_buf_add(&buf, s->text + at, 1, trusted);
        else if (to == TO_LOWER && cp == 0x3A3 && final_sigma(s, at, at + n, prev_cased))
            ok = chat_buf_add(&buf, "\u03C2", 2, trusted);
        else
            ok = put_cased(&buf, cp, to, trusted);
        if (!ok) break;
        prev_cased = cased;
        word_start = breaks_word(cp);
        at += n;
    }
    return chat_buf_finish(&buf, out);
}

bool chat_str_escape_html(struct interp *in, const struct str *s, struct val *out) {
    struct buf buf;
    chat_buf_init(in, &buf);
    size_t from = 0;
    for (size_t at = 0; at < s->len; at++) {
        const char *to = NULL;
        switch (s->text[at]) {
        case '&':
            to = "&amp;";
            break;
        case '<':
            to = "&lt;";
            break;
        case '>':
            to = "&gt;";
            break;
        case '\'':
            to = "&#39;";
            break;
        case '"':
            to = "&#34;";
            break;
        default:
            continue;
        }
        if (!chat_buf_slice(&buf, s, from, at)) break;
        if (!chat_buf_add(&buf, to, strlen(to), chat_str_trusted_at(s, at))) break;
        from = at + 1;
    }
    if (!buf.failed) chat_buf_slice(&buf, s, from, s->len);
    if (!chat_buf_finish(&buf, out)) return false;
    out->marked = true;
    return true;
}
