/* The stream holds a window of decoded text and a queue of the tokens that are not released.
 *
 *   window:  |<- released -|<--- final --->|<--- withheld --->|
 *            0           taken           safe                len     (+ base = offset in all text)
 *
 * Each stop string is followed by its own Knuth-Morris-Pratt state: how long a prefix of it the
 * text ends with. The longest of these prefixes is withheld, no more; a full one is a match.
 *
 * A queue entry is a token with text, with the number of tokens without text just before it, so the
 * queue is bounded by the text it can wait for:
 *
 *   {silent 2, start 7, end 9}   two tokens without text, then one that decoded to text [7, 9)
 *
 * start is where the character that holds its first byte begins, end where the one that holds its
 * last byte ends; END_OPEN while that character is not complete. */
#include "engine/text.h"

#include <stdalign.h>
#include <string.h>

#include "engine/tokenizer/utf8.h"

#define END_OPEN UINT64_MAX

struct stop_state {
    uint16_t len, matched;
    char text[STOP_STRING_BYTES_MAX];
    /* fallback[n]: longest proper prefix that is also a suffix of the first n bytes */
    uint8_t fallback[STOP_STRING_BYTES_MAX + 1];
};

struct entry {
    uint32_t n_silent;
    uint64_t start, end;
};

struct text_stream {
    const struct tokenizer *tokenizer;
    struct utf8_decoder decoder;
    bool skip_special, include_stop, stopped, finished;
    uint32_t min_tokens;
    uint32_t n_stops;
    struct stop_state stops[STOP_STRINGS_MAX];
    uint32_t n_pushed, n_released;
    uint32_t n_silent; /* tokens without text since the last one with text */
    uint64_t base;     /* offset in the whole text of window[0] */
    uint32_t len, safe, taken, window_cap;
    uint32_t n_entries, entries_cap;
    struct entry *entries;
    char *window;
};

/* Bytes that may wait in the window when a step begins: less than a stop string. */
enum { WITHHELD_MAX = STOP_STRING_BYTES_MAX - 1 };

static uint32_t entries_needed(uint32_t step_tokens) {
    /* A token with text waits for a byte that is withheld, or for an incomplete character. */
    return WITHHELD_MAX + (uint32_t)sizeof(((struct utf8_decoder *)0)->pending) + step_tokens;
}

size_t text_chunk_max(const struct tokenizer *tokenizer, uint32_t step_tokens) {
    /* Every byte of a piece may turn out to be invalid, and so may the 3 that were pending. */
    return WITHHELD_MAX +
           UTF8_REPLACEMENT_BYTES * (step_tokens * tokenizer_max_piece(tokenizer) + 4);
}

size_t text_bytes_needed(const struct tokenizer *tokenizer, uint32_t step_tokens) {
    size_t bytes = align_up(sizeof(struct text_stream), alignof(max_align_t));
    bytes += entries_needed(step_tokens) * sizeof(struct entry);
    return align_up(bytes + text_chunk_max(tokenizer, step_tokens), alignof(max_align_t));
}

static void init_stop(struct stop_state *s, const char *text, uint16_t len) {
    ASSERT(len > 0 && len <= STOP_STRING_BYTES_MAX);
    /* Text that is no UTF-8 cannot occur; length 0 marks it. */
    s->len = utf8_valid_len(text, len) == len ? len : 0;
    s->matched = 0;
    memcpy(s->text, text, len);
    s->fallback[0] = s->fallback[1] = 0;
    for (uint32_t n = 2; n <= len; n++) {
        uint32_t k = s->fallback[n - 1];
        while (k > 0 && s->text[k] != s->text[n - 1])
            k = s->fallback[k];
        s->fallback[n] = (uint8_t)(s->text[k] == s->text[n - 1] ? k + 1 : 0);
    }
}

struct text_stream *text_init(void *storage, const struct tokenizer *tokenizer,
                              const struct sampling *sampling, uint32_t step_tokens) {
    ASSERT((uintptr_t)storage % alignof(max_align_t) == 0);
    ASSERT(sampling->n_stop <= STOP_STRINGS_MAX);
    size_t chunk_max = text_chunk_max(tokenizer, step_tokens);
    ASSERT(chunk_max <= UINT32_MAX);
    struct text_stream *t = storage;
    char *rest = (char *)storage + align_up(sizeof *t, alignof(max_align_t));
    memset(t, 0, offsetof(struct text_stream, stops));
    t->tokenizer = tokenizer;
    t->skip_special = sampling->skip_special_tokens;
    t->include_stop = sampling->include_stop_str_in_output;
    t->min_tokens = sampling->min_tokens;
    t->n_stops = sampling->n_stop;
    for (uint32_t i = 0; i < t->n_stops; i++)
        init_stop(&t->stops[i], sampling->stop[i].text, sampling->stop[i].len);
    t->n_pushed = t->n_released = t->n_silent = 0;
    t->base = 0;
    t->len = t->safe = t->taken = t->n_entries = 0;
    t->entries = (struct entry *)(void *)rest;
    t->entries_cap = entries_needed(step_tokens);
    t->window = rest + t->entries_cap * sizeof *t->entries;
    t->window_cap = (uint32_t)chunk_max;
    return t;
}

uint32_t text_n_pushed(const struct text_stream *t) {
    return t->n_pushed;
}

/* Drop the text that the last text_take handed out. */
static void compact(struct text_stream *t) {
    if (t->taken == 0) return;
    memmove(t->window, t->window + t->taken, t->len - t->taken);
    t->base += t->taken;
    t->len -= t->taken;
    t->safe -= t->taken;
    t->taken = 0;
}

/* The text grew by one byte: the stop string that it completes with the earliest start, or -1. */
static int32_t advance_stops(struct text_stream *t, char byte) {
    int32_t best = -1;
    for (uint32_t i = 0; i < t->n_stops; i++) {
        struct stop_state *s = &t->stops[i];
        if (s->len == 0) continue;
        uint32_t k = s->matched;
        if (k == s->len) k = s->fallback[k]; /* a match that did not count */
        while (k > 0 && s->text[k] != byte)
            k = s->fallback[k];
        if (s->text[k] == byte) k++;
        s->matched = (uint16_t)k;
        if (k == s->len && (best < 0 || k > t->stops[best].len)) best = (int32_t)i;
    }
    return best;
}

/* The longest tail that could still grow into a stop string. Whole characters, since stop strings
 * and text are valid UTF-8. */
static uint32_t withheld(const struct text_stream *t) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < t->n_stops; i++) {
        const struct stop_state *s = &t->stops[i];
        uint32_t k = s->matched == s->len ? s->fallback[s->len] : s->matched;
        if (k > longest) longest = k;
    }
    return longest;
}

/* Append whole decoded characters; a counted match ends the text at its end. */
static int32_t append(struct text_stream *t, const char *text, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(t->len < t->window_cap);
        t->window[t->len++] = text[i];
        int32_t stop = advance_stops(t, text[i]);
        if (stop >= 0 && t->n_pushed > t->min_tokens) return stop;
    }
    return -1;
}

/* The incomplete character is complete: it ends the first n tokens that wait for it. */
static void close_entries(struct text_stream *t, uint32_t n) {
    for (uint32_t i = n; i > 0 && t->entries[i - 1].end == END_OPEN; i--)
        t->entries[i - 1].end = t->base + t->len;
}

/* Cut the text at a match and forget the tokens behind the cut. */
static void stop_at(struct text_stream *t, const struct stop_state *stop) {
    if (!t->include_stop) t->len -= stop->len;
    t->safe = t->len;
    t->stopped = true;
    uint64_t cut = t->base + t->len;
    for (uint32_t i = 0; i < t->n_entries; i++) {
        struct entry *e = &t->entries[i];
        if (e->start >= cut) { /* what stands before it without text stays */
            t->n_silent = e->n_silent;
            t->n_entries = i;
            return;
        }
        if (e->end > cut) e->end = cut;
    }
}

/* The bytes of a piece, whose token is the last entry. */
static int32_t push_bytes(struct text_stream *t, const char *piece, size_t len) {
    struct entry *own = &t->entries[t->n_entries - 1];
    for (size_t i = 0; i < len; i++) {
        char chars[UTF8_OUT_MAX];
        uint8_t sizes[UTF8_UNITS_MAX];
        bool pending = t->decoder.n > 0;
        int units = utf8_decode(&t->decoder, (uint8_t)piece[i], chars, sizes);
        /* A byte that does not continue what was pending: the first unit is without it. */
        bool rejected = pending && (units == 2 || (units == 1 && t->decoder.n > 0));
        uint32_t at = 0;
        for (int u = 0; u < units; at += sizes[u++]) {
            int32_t stop = append(t, chars + at, sizes[u]);
            if (u == 0) close_entries(t, t->n_entries - 1);
            if (u == 0 && rejected && i == 0) own->start = t->base + t->len;
            if (stop >= 0) return stop;
        }
    }
    return -1;
}

int32_t text_push(struct text_stream *t, int32_t id) {
    ASSERT(!t->stopped && !t->finished);
    compact(t);
    t->n_pushed++;
    size_t len;
    const char *piece = tokenizer_piece(t->tokenizer, id, t->skip_special, &len);
    if (len == 0) {
        t->n_silent++;
        return -1;
    }
    ASSERT(t->n_entries < t->entries_cap);
    struct entry *own = &t->entries[t->n_entries++];
    *own = (struct entry){t->n_silent, t->base + t->len, END_OPEN};
    t->n_silent = 0;
    int32_t stop = push_bytes(t, piece, len);
    if (stop >= 0) {
        own->end = t->base + t->len;
        stop_at(t, &t->stops[stop]);
        return stop;
    }
    if (t->decoder.n == 0) own->end = t->base + t->len;
    t->safe = t->len - withheld(t);
    return -1;
}

void text_push_silent(struct text_stream *t) {
    ASSERT(!t->stopped && !t->finished);
    t->n_pushed++;
    t->n_silent++;
}

void text_finish(struct text_stream *t) {
    ASSERT(!t->finished);
    compact(t);
    t->finished = true;
    if (t->stopped) return;
    char chars[UTF8_REPLACEMENT_BYTES];
    if (utf8_decode_end(&t->decoder, chars)) {
        ASSERT(t->len + UTF8_REPLACEMENT_BYTES <= t->window_cap);
        memcpy(t->window + t->len, chars, UTF8_REPLACEMENT_BYTES);
        t->len += UTF8_REPLACEMENT_BYTES;
    }
    close_entries(t, t->n_entries);
    t->safe = t->len;
}

/* Tokens whose text lies before `until`; removes them from the queue. */
static uint32_t release_tokens(struct text_stream *t, uint64_t until) {
    uint32_t n = 0, i = 0;
    for (; i < t->n_entries && t->entries[i].end <= until; i++)
        n += t->entries[i].n_silent + 1;
    t->n_entries -= i;
    memmove(t->entries, t->entries + i, t->n_entries * sizeof *t->entries);
    if (t->n_entries > 0 && t->entries[0].start < until) {
        n += t->entries[0].n_silent;
        t->entries[0].n_silent = 0;
    }
    if (t->n_entries == 0 && (t->finished || t->stopped)) {
        n += t->n_silent;
        t->n_silent = 0;
    }
    return n;
}

struct text_chunk text_take(struct text_stream *t) {
    compact(t);
    uint32_t n = release_tokens(t, t->base + t->safe);
    struct text_chunk chunk = {t->window, t->safe, t->n_released, n};
    t->taken = t->safe;
    t->n_released += n;
    return chunk;
}

void text_check(const struct text_stream *t) {
    ASSERT(t->taken <= t->safe && t->safe <= t->len && t->len <= t->window_cap);
    ASSERT(t->n_entries <= t->entries_cap && t->n_released <= t->n_pushed);
    ASSERT(utf8_valid_len(t->window, t->safe) == t->safe);
    ASSERT(t->stopped || t->finished || t->len - t->safe <= WITHHELD_MAX);
    uint32_t n = t->n_silent;
    uint64_t before = 0;
    for (uint32_t i = 0; i < t->n_entries; i++) {
        const struct entry *e = &t->entries[i];
        ASSERT(e->start >= before && e->end >= e->start);
        before = e->start;
        n += e->n_silent + 1;
    }
    ASSERT(t->stopped ? t->n_released + n <= t->n_pushed : t->n_released + n == t->n_pushed);
}
