#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text.h"
#include "tests/harness.h"

/* ---- a script of pieces, as in the scripted model ---------------------------------------------- */

enum { PIECES_MAX = 64, TAKES_MAX = 64 };

struct script {
    struct tokenizer *tokenizer;
    uint32_t n;
    struct sampling sampling;
    /* what came out */
    char text[4096];
    size_t len;
    uint32_t n_takes, n_ids;
    char takes[TAKES_MAX][256];
    uint32_t take_ids[TAKES_MAX];
    int32_t stop;
    uint32_t n_pushed;
};

/* Pieces of "a|b|<eos>", bytes as \x..; names in <> are control tokens. Token i is piece i. */
static struct script script_of(const char *const *pieces, uint32_t n, const char *const *stops,
                               uint32_t n_stops) {
    struct script s = {.n = n};
    size_t lens[PIECES_MAX];
    bool special[PIECES_MAX];
    char unique[PIECES_MAX][64];
    const char *texts[PIECES_MAX];
    for (uint32_t i = 0; i < n; i++) {
        lens[i] = strlen(pieces[i]);
        special[i] = pieces[i][0] == '<' && lens[i] > 2;
        strcpy(unique[i], pieces[i]);
        texts[i] = unique[i];
    }
    struct err err = {0};
    if (tokenizer_from_pieces(texts, lens, special, n, &s.tokenizer, &err)) fail_msg("%s", err.msg);
    s.sampling.skip_special_tokens = true;
    s.sampling.n_stop = n_stops;
    for (uint32_t i = 0; i < n_stops; i++) {
        s.sampling.stop[i].len = (uint16_t)strlen(stops[i]);
        memcpy(s.sampling.stop[i].text, stops[i], s.sampling.stop[i].len);
    }
    return s;
}

static void take(struct script *s, struct text_stream *stream) {
    struct text_chunk chunk = text_take(stream);
    text_check(stream);
    assert_int_equal(chunk.first_token, s->n_ids);
    s->n_ids += chunk.n_tokens;
    memcpy(s->text + s->len, chunk.text, chunk.text_len);
    s->len += chunk.text_len;
    s->text[s->len] = '\0';
    assert_true(s->n_takes < TAKES_MAX && chunk.text_len < 256);
    s->take_ids[s->n_takes] = chunk.n_tokens;
    memcpy(s->takes[s->n_takes], chunk.text, chunk.text_len);
    s->takes[s->n_takes++][chunk.text_len] = '\0';
}

/* Push all pieces, `step` a turn, until a stop. */
static void run(struct script *s, uint32_t step) {
    void *storage = aligned_alloc(64, align_up(text_bytes_needed(s->tokenizer, step), 64));
    struct text_stream *stream = text_init(storage, s->tokenizer, &s->sampling, step);
    s->len = s->n_takes = s->n_ids = 0;
    s->stop = -1;
    for (uint32_t i = 0; i < s->n && s->stop < 0;) {
        for (uint32_t k = 0; k < step && i < s->n && s->stop < 0; k++, i++)
            s->stop = text_push(stream, (int32_t)i);
        take(s, stream);
    }
    text_finish(stream);
    take(s, stream);
    s->n_pushed = text_n_pushed(stream);
    free(storage);
}

#define SCRIPT(s, stops_list, ...)                                            \
    static const char *const s##_pieces[] = {__VA_ARGS__};                    \
    static const char *const s##_stops[] = stops_list;                        \
    struct script s = script_of(s##_pieces, ARRAY_LEN(s##_pieces), s##_stops, \
                                s##_stops[0][0] ? (uint32_t)ARRAY_LEN(s##_stops) : 0)
#define STOPS(...) \
    { __VA_ARGS__ }
#define NO_STOPS \
    { "" }

static void assert_text(struct script *s, const char *want, int32_t stop) {
    for (uint32_t step = 1; step <= s->n; step++) { /* no step border changes anything */
        run(s, step);
        assert_string_equal(s->text, want);
        assert_int_equal(s->stop, stop);
    }
    run(s, 1);
}

/* ---- cases ------------------------------------------------------------------------------------- */

static void S2_01_characters_over_several_tokens_come_whole(void **state) {
    (void)state;
    SCRIPT(s, NO_STOPS, "\xF0", "\x9F\x98", "\x80", "!");
    assert_text(&s, "\xF0\x9F\x98\x80!", -1);
    assert_string_equal(s.takes[0], "");
    assert_string_equal(s.takes[1], "");
    assert_string_equal(s.takes[2], "\xF0\x9F\x98\x80");
    assert_int_equal(s.take_ids[0] + s.take_ids[1], 0);
    assert_int_equal(s.take_ids[2], 3);
    tokenizer_destroy(s.tokenizer);
    SCRIPT(e, NO_STOPS, "a", "\xE2", "\x82\xAC", "<eos>");
    assert_text(&e, "a\xE2\x82\xAC", -1);
    assert_int_equal(e.n_ids, 4);
    tokenizer_destroy(e.tokenizer);
    SCRIPT(cut, NO_STOPS, "a", "\xE2\x82");
    assert_text(&cut, "a\xEF\xBF\xBD", -1);
    assert_int_equal(cut.n_ids, 2);
    tokenizer_destroy(cut.tokenizer);
    SCRIPT(bad, NO_STOPS, "\xE2", "\xE2\x82", "x\x80", "\xF0\x80");
    assert_text(&bad, "\xEF\xBF\xBD\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", -1);
    tokenizer_destroy(bad.tokenizer);
}

static void S2_05_control_tokens_leave_no_text(void **state) {
    (void)state;
    SCRIPT(s, NO_STOPS, "yes", "<eos>");
    assert_text(&s, "yes", -1);
    assert_int_equal(s.n_ids, 2); /* the id goes with the end */
    s.sampling.skip_special_tokens = false;
    assert_text(&s, "yes<eos>", -1);
    tokenizer_destroy(s.tokenizer);
}

static void S3_01_stop_over_token_borders(void **state) {
    (void)state;
    SCRIPT(s, STOPS(" green"), "red", " gre", "en", " blue");
    assert_text(&s, "red", 0);
    assert_int_equal(s.n_pushed, 3);
    assert_int_equal(s.n_ids, 1); /* the ids of dropped text are dropped */
    tokenizer_destroy(s.tokenizer);
}

static void S3_02_first_part_of_a_stop_is_never_sent(void **state) {
    (void)state;
    SCRIPT(s, STOPS("\nHuman:"), "ok\n", "Hum", "an:", "x");
    assert_text(&s, "ok", 0);
    for (uint32_t i = 0; i < s.n_takes; i++)
        assert_null(strchr(s.takes[i], '\n'));
    assert_int_equal(s.n_ids, 1); /* cut in part, so kept */
    tokenizer_destroy(s.tokenizer);
}

static void S3_03_held_text_is_released_at_the_end(void **state) {
    (void)state;
    SCRIPT(s, STOPS("\n\n"), "ok", "\n", "<eos>");
    assert_text(&s, "ok\n", -1);
    assert_string_equal(s.takes[1], "");
    assert_int_equal(s.n_ids, 3);
    s.n = 2; /* max_tokens instead */
    assert_text(&s, "ok\n", -1);
    tokenizer_destroy(s.tokenizer);
}

static void S3_04_only_a_prefix_of_a_stop_is_held(void **state) {
    (void)state;
    SCRIPT(s, STOPS("##note"), "foot", "no", "<eos>");
    assert_text(&s, "footno", -1);
    assert_string_equal(s.takes[0], "foot");
    assert_string_equal(s.takes[1], "no");
    tokenizer_destroy(s.tokenizer);
}

static void S3_05_text_behind_a_stop_is_gone(void **state) {
    (void)state;
    SCRIPT(s, STOPS("green"), "red, ", "green, ", "bl", "ue, ", "grey");
    assert_text(&s, "red, ", 0);
    tokenizer_destroy(s.tokenizer);
}

static void S3_06_text_that_cannot_become_a_stop_goes_at_once(void **state) {
    (void)state;
    SCRIPT(s, STOPS("ENDMARKER#"), "hello", " there", " you", " E", "ND", "x");
    assert_text(&s, "hello there you ENDx", -1);
    static const char *const want[] = {"hello", " there", " you", " ", "", "ENDx"};
    for (uint32_t i = 0; i < ARRAY_LEN(want); i++)
        assert_string_equal(s.takes[i], want[i]);
    tokenizer_destroy(s.tokenizer);
}

static void S9_03_stop_early_in_a_long_block(void **state) {
    (void)state;
    SCRIPT(s, STOPS("bc"), "a", "b", "c", "d", "e", "f", "g", "h");
    assert_text(&s, "a", 0);
    tokenizer_destroy(s.tokenizer);
}

static void the_match_that_completes_first_wins_then_the_earliest_start(void **state) {
    (void)state;
    SCRIPT(s, STOPS("cde", "bcd", "d", "abcdef"), "abcdef");
    assert_text(&s, "a", 1); /* bcd and d end together; bcd starts before */
    tokenizer_destroy(s.tokenizer);
    SCRIPT(overlap, STOPS("aab"), "a", "aa", "ab");
    assert_text(&overlap, "aa", 0);
    tokenizer_destroy(overlap.tokenizer);
}

static void include_stop_keeps_it_to_its_end(void **state) {
    (void)state;
    SCRIPT(s, STOPS("\nHuman:"), "ok\n", "Hum", "an:x", "y");
    s.sampling.include_stop_str_in_output = true;
    assert_text(&s, "ok\nHuman:", 0);
    assert_int_equal(s.n_ids, 3);
    tokenizer_destroy(s.tokenizer);
}

static void matches_within_min_tokens_do_not_count(void **state) {
    (void)state;
    SCRIPT(s, STOPS("aa"), "a", "<x>", "ab", "c", "aa");
    assert_text(&s, "", 0);
    assert_int_equal(s.n_pushed, 3);
    assert_int_equal(s.n_ids, 0);
    s.sampling.min_tokens = 3;
    assert_text(&s, "aabc", 0);
    s.sampling.min_tokens = 5;
    assert_text(&s, "aabcaa", -1);
    tokenizer_destroy(s.tokenizer);
    SCRIPT(grown, STOPS("aa"), "aa", "\x61");
    grown.sampling.min_tokens = 1; /* the second match shares a letter with the one ignored */
    assert_text(&grown, "a", 0);
    tokenizer_destroy(grown.tokenizer);
}

static void tokens_without_text_wait_for_the_next_byte(void **state) {
    (void)state;
    SCRIPT(s, STOPS("b!"), "<x>", "<y>", "a", "<z>", "b", "<u>", "c");
    run(&s, 1);
    static const uint32_t ids[] = {0, 0, 3, 0, 0, 0, 4, 0};
    for (uint32_t i = 0; i < ARRAY_LEN(ids); i++)
        assert_int_equal(s.take_ids[i], ids[i]);
    tokenizer_destroy(s.tokenizer);
    SCRIPT(cut, STOPS("b!"), "a", "<x>", "b", "<y>", "!");
    run(&cut, 1);
    assert_string_equal(cut.text, "a");
    assert_int_equal(cut.n_ids, 2); /* <x> stands before the cut */
    tokenizer_destroy(cut.tokenizer);
}

static void silent_tokens_and_ids_without_piece_leave_no_text(void **state) {
    (void)state;
    SCRIPT(s, NO_STOPS, "a", "b");
    void *storage = aligned_alloc(64, align_up(text_bytes_needed(s.tokenizer, 4), 64));
    struct text_stream *stream = text_init(storage, s.tokenizer, &s.sampling, 4);
    assert_int_equal(text_push(stream, 0), -1);
    assert_int_equal(text_push(stream, 5000), -1);
    text_push_silent(stream);
    struct text_chunk chunk = text_take(stream);
    assert_int_equal(chunk.n_tokens, 1);
    text_finish(stream);
    chunk = text_take(stream);
    assert_int_equal(chunk.text_len, 0);
    assert_int_equal(chunk.first_token, 1);
    assert_int_equal(chunk.n_tokens, 2);
    assert_trips(text_push(stream, 0));
    free(storage);
    tokenizer_destroy(s.tokenizer);
}

/* ---- random streams against a naive reading of the rules --------------------------------------- */

enum { RANDOM_PIECES = 24, RANDOM_TOKENS = 40, RANDOM_TEXT = 2048 };

/* True when the bytes could begin a character: some ending makes them one. */
static bool begins_char(const uint8_t *b, size_t n) {
    static const uint8_t fill[] = {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF};
    size_t want = b[0] < 0x80 ? 1 : b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : 4;
    if (n > want) return false;
    for (size_t f = 0; f < ARRAY_LEN(fill); f++) {
        uint8_t c[4];
        memcpy(c, b, n);
        for (size_t i = n; i < want; i++)
            c[i] = i == n ? fill[f] : 0x80;
        uint32_t v = 0;
        bool ok = want == 1 || (b[0] >= 0xC0 && b[0] < 0xF8);
        for (size_t i = 1; i < want; i++)
            ok = ok && (c[i] & 0xC0) == 0x80;
        v = want == 1 ? c[0] : c[0] & (0xFFu >> (want + 1));
        for (size_t i = 1; i < want; i++)
            v = v << 6 | (c[i] & 0x3F);
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        if (ok && v >= least[want] && v <= 0x10FFFF && !(v >= 0xD800 && v <= 0xDFFF)) return true;
    }
    return false;
}

struct decoded {
    char text[RANDOM_TEXT];
    size_t len;
    size_t start[RANDOM_TEXT], end[RANDOM_TEXT]; /* of the character that byte i is in; SIZE_MAX
                                                    while it is not complete */
};

static void decode_naively(const uint8_t *b, size_t n, bool at_end, struct decoded *d) {
    d->len = 0;
    for (size_t i = 0, k; i < n; i += k) {
        for (k = 1; i + k < n && begins_char(b + i, k + 1); k++)
            ;
        size_t want = b[i] < 0x80 ? 1 : b[i] < 0xE0 ? 2 : b[i] < 0xF0 ? 3 : 4;
        bool valid = begins_char(b + i, k), whole = valid && k == want;
        bool waits = valid && !whole && i + k == n && !at_end;
        size_t start = d->len;
        if (whole)
            memcpy(d->text + d->len, b + i, k);
        else if (!waits)
            memcpy(d->text + d->len, "\xEF\xBF\xBD", 3);
        d->len += whole ? k : waits ? 0 : 3;
        for (size_t j = i; j < i + k; j++)
            d->start[j] = start, d->end[j] = waits ? SIZE_MAX : d->len;
    }
}

struct oracle {
    struct script script;
    int32_t ids[RANDOM_TOKENS];
    uint32_t n;
    uint8_t bytes[RANDOM_TEXT];
    size_t at[RANDOM_TOKENS + 1]; /* bytes of token i: [at[i], at[i + 1]) */
};

static bool ends_with(const char *text, size_t len, const struct sampling *s, uint32_t stop,
                      size_t n) {
    return n <= len && memcmp(text + len - n, s->stop[stop].text, n) == 0;
}

/* The stop that completes within the text's part (from, len], and where; -1 for none. */
static int32_t find_stop(const struct decoded *d, size_t from, const struct sampling *s,
                         size_t *end) {
    for (*end = from + 1; *end <= d->len; ++*end) {
        int32_t best = -1;
        for (uint32_t i = 0; i < s->n_stop; i++)
            if (ends_with(d->text, *end, s, i, s->stop[i].len) &&
                (best < 0 || s->stop[i].len > s->stop[best].len))
                best = (int32_t)i;
        if (best >= 0) return best;
    }
    return -1;
}

static size_t naively_withheld(const struct decoded *d, const struct sampling *s) {
    size_t longest = 0;
    for (uint32_t i = 0; i < s->n_stop; i++)
        for (size_t k = 1; k < s->stop[i].len; k++)
            if (k > longest && ends_with(d->text, d->len, s, i, k)) longest = k;
    return longest;
}

/* Tokens released when `n` were pushed and text up to `released` went out. */
static uint32_t naively_released(const struct oracle *o, const struct decoded *d, uint32_t n,
                                 size_t released) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t next = i; /* the token with text at or after i */
        while (next < n && o->at[next] == o->at[next + 1])
            next++;
        if (next == n) break;
        if (next > i && !(d->start[o->at[next]] < released)) break;
        if (next == i && d->end[o->at[i + 1] - 1] > released) break;
        count = i + 1;
    }
    return count;
}

/* Tokens that stay when the text is cut: up to the first whose text begins at or behind the cut. */
static uint32_t naively_kept(const struct oracle *o, const struct decoded *d, uint32_t n,
                             size_t cut) {
    for (uint32_t i = 0; i < n; i++)
        if (o->at[i] < o->at[i + 1] && d->start[o->at[i]] >= cut) return i;
    return n;
}

static void random_oracle(struct rng *rng, struct oracle *o) {
    static const char *const chars[] = {
        "a", "b", "ab", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xEF\xBF\xBD"};
    char pieces[RANDOM_PIECES][16];
    const char *texts[RANDOM_PIECES];
    size_t lens[RANDOM_PIECES];
    bool special[RANDOM_PIECES];
    for (uint32_t i = 0; i < RANDOM_PIECES; i++) {
        char joined[32] = "";
        for (uint32_t k = 0; k < 3; k++)
            strcat(joined, chars[rng_below(rng, 3 + rng_below(rng, ARRAY_LEN(chars) - 2))]);
        size_t n = strlen(joined), lo = rng_below(rng, (uint32_t)n);
        lens[i] = rng_below(rng, 8) == 0 ? 0 : 1 + rng_below(rng, (uint32_t)(n - lo));
        if (lens[i] > 6) lens[i] = 6;
        memcpy(pieces[i], joined + lo, lens[i]);
        if (rng_below(rng, 12) == 0 && lens[i]) pieces[i][0] = (char)rng_below(rng, 256);
        for (uint32_t k = 0; k < i; k++) /* texts are distinct */
            if (lens[k] == lens[i] && memcmp(pieces[k], pieces[i], lens[i]) == 0) lens[i] = 0;
        special[i] = rng_below(rng, 8) == 0;
        texts[i] = pieces[i];
    }
    struct err err = {0};
    memset(o, 0, sizeof *o);
    struct sampling *s = &o->script.sampling;
    if (tokenizer_from_pieces(texts, lens, special, RANDOM_PIECES, &o->script.tokenizer, &err))
        fail_msg("%s", err.msg);
    s->skip_special_tokens = rng_below(rng, 2);
    s->include_stop_str_in_output = rng_below(rng, 2);
    s->min_tokens = rng_below(rng, 3) ? 0 : rng_below(rng, RANDOM_TOKENS);
    o->n = 1 + rng_below(rng, RANDOM_TOKENS);
    for (uint32_t i = 0; i < o->n; i++) {
        o->ids[i] = (int32_t)rng_below(rng, RANDOM_PIECES + 1);
        size_t len;
        const char *piece =
            tokenizer_piece(o->script.tokenizer, o->ids[i], s->skip_special_tokens, &len);
        memcpy(o->bytes + o->at[i], piece, len);
        o->at[i + 1] = o->at[i] + len;
    }
    s->n_stop = rng_below(rng, 5);
    for (uint32_t i = 0; i < s->n_stop; i++) {
        s->stop[i].len = 0;
        for (uint32_t k = 1 + rng_below(rng, 4 + 12 * (i == 0)); k > 0; k--) {
            const char *c = chars[rng_below(rng, ARRAY_LEN(chars))];
            memcpy(s->stop[i].text + s->stop[i].len, c, strlen(c));
            s->stop[i].len = (uint16_t)(s->stop[i].len + strlen(c));
        }
    }
}

static void check_against_oracle(struct rng *rng, const struct oracle *o) {
    const struct sampling *s = &o->script.sampling;
    uint32_t step = 1 + rng_below(rng, 9), released_ids = 0;
    void *storage = aligned_alloc(64, align_up(text_bytes_needed(o->script.tokenizer, step), 64));
    struct text_stream *stream = text_init(storage, o->script.tokenizer, s, step);
    static struct decoded d;
    static char text[RANDOM_TEXT];
    size_t len = 0, before = 0, cut = 0;
    int32_t stop = -1;
    uint32_t i = 0;
    while (i < o->n && stop < 0) {
        uint32_t turn = 1 + rng_below(rng, step);
        for (uint32_t k = 0; k < turn && i < o->n && stop < 0; k++) {
            i++;
            decode_naively(o->bytes, o->at[i], false, &d);
            size_t end = 0;
            int32_t want = i > s->min_tokens ? find_stop(&d, before, s, &end) : -1;
            stop = text_push(stream, o->ids[i - 1]);
            text_check(stream);
            assert_int_equal(stop, want);
            before = d.len;
            if (stop >= 0) cut = s->include_stop_str_in_output ? end : end - s->stop[stop].len;
        }
        struct text_chunk chunk = text_take(stream);
        text_check(stream);
        assert_true(chunk.text_len <= text_chunk_max(o->script.tokenizer, step));
        memcpy(text + len, chunk.text, chunk.text_len);
        len += chunk.text_len;
        assert_int_equal(chunk.first_token, released_ids);
        released_ids += chunk.n_tokens;
        if (stop >= 0) break;
        assert_int_equal(len, d.len - naively_withheld(&d, s));
        assert_int_equal(released_ids, naively_released(o, &d, i, len));
    }
    text_finish(stream);
    struct text_chunk chunk = text_take(stream);
    memcpy(text + len, chunk.text, chunk.text_len);
    len += chunk.text_len;
    released_ids += chunk.n_tokens;
    if (stop < 0) decode_naively(o->bytes, o->at[i], true, &d);
    assert_int_equal(len, stop < 0 ? d.len : cut);
    assert_memory_equal(text, d.text, len);
    assert_int_equal(released_ids, stop < 0 ? i : naively_kept(o, &d, i, cut));
    free(storage);
}

static void random_streams_obey_the_rules_read_naively(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    static struct oracle o;
    for (int round = 0; round < 3000; round++) {
        random_oracle(&rng, &o);
        for (int k = 0; k < 3; k++) /* other step borders, same text */
            check_against_oracle(&rng, &o);
        tokenizer_destroy(o.script.tokenizer);
    }
}

static void longest_stops_and_many_tokens_fit_the_storage(void **state) {
    (void)state;
    SCRIPT(s, NO_STOPS, "a", "<x>", "b", "\xF0", "\x9F");
    s.sampling.n_stop = STOP_STRINGS_MAX;
    for (uint32_t i = 0; i < STOP_STRINGS_MAX; i++) {
        s.sampling.stop[i].len = STOP_STRING_BYTES_MAX;
        memset(s.sampling.stop[i].text, 'a', STOP_STRING_BYTES_MAX);
        s.sampling.stop[i].text[STOP_STRING_BYTES_MAX - 1] = (char)('b' + i);
    }
    size_t bytes = text_bytes_needed(s.tokenizer, 1);
    void *storage = aligned_alloc(16, align_up(bytes, 16));
    struct text_stream *stream = text_init(storage, s.tokenizer, &s.sampling, 1);
    uint32_t released = 0;
    for (uint32_t i = 0; i < 2000; i++) { /* 255 letters stay withheld, silent tokens pile up */
        assert_int_equal(text_push(stream, i % 3 == 0 ? 0 : 1), -1);
        text_check(stream);
        released += text_take(stream).text_len;
    }
    assert_int_equal(released, 667 - 255);
    assert_int_equal(text_push(stream, 2), 0);
    text_finish(stream);
    struct text_chunk chunk = text_take(stream);
    assert_int_equal(chunk.text_len, 0);
    free(storage);
    tokenizer_destroy(s.tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S2_01_characters_over_several_tokens_come_whole),
        cmocka_unit_test(S2_05_control_tokens_leave_no_text),
        cmocka_unit_test(S3_01_stop_over_token_borders),
        cmocka_unit_test(S3_02_first_part_of_a_stop_is_never_sent),
        cmocka_unit_test(S3_03_held_text_is_released_at_the_end),
        cmocka_unit_test(S3_04_only_a_prefix_of_a_stop_is_held),
        cmocka_unit_test(S3_05_text_behind_a_stop_is_gone),
        cmocka_unit_test(S3_06_text_that_cannot_become_a_stop_goes_at_once),
        cmocka_unit_test(S9_03_stop_early_in_a_long_block),
        cmocka_unit_test(the_match_that_completes_first_wins_then_the_earliest_start),
        cmocka_unit_test(include_stop_keeps_it_to_its_end),
        cmocka_unit_test(matches_within_min_tokens_do_not_count),
        cmocka_unit_test(tokens_without_text_wait_for_the_next_byte),
        cmocka_unit_test(silent_tokens_and_ids_without_piece_leave_no_text),
        cmocka_unit_test(random_streams_obey_the_rules_read_naively),
        cmocka_unit_test(longest_stops_and_many_tokens_fit_the_storage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
