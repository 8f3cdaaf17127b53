/* text.h: the text of one sequence while it is generated: bytes of tokens become whole UTF-8
 * characters, stop strings are found across token borders, and only what is final is released.
 *
 *   tokens:   |"ok\n"|"Hum"|"an:"|              stop "\nHuman:"
 *   decoded:   o k \n H u m
 *   released:  o k|<- withheld: the longest tail that is a prefix of a stop string
 *
 * Decoding is that of Hugging Face's ByteLevel decoder over the whole id list: every maximal
 * invalid part of the bytes becomes one U+FFFD; a character that is not complete yet waits. Stop
 * strings are matched on this decoded text (so after U+FFFD replaced what was invalid), byte by
 * byte in order, which makes the match independent of token, step and draft borders.
 *
 * Engine thread only. Lives in the caller's storage and never allocates. Per sequence:
 *   text_init, then each step: text_push for every emitted token until one returns a stop,
 *   text_take once; at the end of the sequence text_finish and a last text_take. */
#ifndef GERYON_TEXT_H
#define GERYON_TEXT_H

#include "engine/request.h"
#include "engine/tokenizer/tokenizer.h"

struct text_stream; /* opaque; must not be moved */

/* What one text_take releases. */
struct text_chunk {
    const char *text; /* whole UTF-8 characters; valid until the next call on this stream */
    uint32_t text_len;
    /* Released tokens are output tokens [first_token, first_token + n_tokens) of the sequence, 0
     * being the first one pushed: those whose last byte of text is released with this chunk, and
     * tokens without text before them. Tokens wholly dropped by a stop never appear; one cut in
     * part does. n_tokens is not bounded by the step: tokens without text pile up before a byte
     * that releases them (or text_finish). */
    uint32_t first_token, n_tokens;
};

/* Bytes of storage (aligned for max_align_t) that any sequence of this tokenizer needs when at most
 * step_tokens tokens are pushed between two text_take. */
size_t text_bytes_needed(const struct tokenizer *tokenizer, uint32_t step_tokens);

/* The most bytes one text_take can release under the same conditions. */
size_t text_chunk_max(const struct tokenizer *tokenizer, uint32_t step_tokens);

/* Begin a sequence in storage of text_bytes_needed(tokenizer, step_tokens) bytes. Reads stop,
 * min_tokens, skip_special_tokens and include_stop_str_in_output of sampling and copies what it
 * needs of them; the tokenizer must outlive the stream. Nothing to undo. */
struct text_stream *text_init(void *storage, const struct tokenizer *tokenizer,
                              const struct sampling *sampling, uint32_t step_tokens);

/* Append an emitted token. Returns the index of the stop string whose match completes first
 * (smallest end, of those the earliest start) within this token, or -1. A match counts only when
 * more than min_tokens tokens were pushed, this one included. After a stop: no more pushes. An id
 * without a piece, or a control token while skip_special_tokens, leaves no text. */
int32_t text_push(struct text_stream *stream, int32_t id);

/* Append a token that leaves no text whatever its piece is (the end-of-sequence token that ended
 * the choice, or any under ignore_eos). */
void text_push_silent(struct text_stream *stream);

/* The sequence is over for any reason, a stop included: everything still withheld (after a stop:
 * nothing) goes out with the next text_take, an incomplete character as one U+FFFD, which no longer
 * completes a stop string. */
void text_finish(struct text_stream *stream);

/* Release what became final since the last call. */
struct text_chunk text_take(struct text_stream *stream);

/* Tokens pushed so far. */
uint32_t text_n_pushed(const struct text_stream *stream);

/* ASSERTs every invariant (tests). */
void text_check(const struct text_stream *stream);

#endif
