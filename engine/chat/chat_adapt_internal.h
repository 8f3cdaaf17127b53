/* chat_adapt_internal.h: what the chat_adapt*.c files share. */
#ifndef GERYON_CHAT_ADAPT_INTERNAL_H
#define GERYON_CHAT_ADAPT_INTERNAL_H

#include "engine/chat/chat_adapt.h"
#include "engine/chat/chat_internal.h"

/* A call of the history, in order of the conversation. */
struct past_call {
    const struct value *id;   /* as sent; NULL: none */
    const struct value *name; /* NULL: none */
    struct value new_id;      /* what the template gets; VALUE_NULL: as sent */
};

struct adapt {
    const struct chat *chat;
    const struct chat_traits *traits;
    struct arena *arena;
    struct err *err;
    int rc; /* the first failure */
    struct value *out;
    size_t n_out;
    struct past_call *calls;
    size_t n_calls;      /* met so far */
    struct value system; /* gathered texts that wait for the first user message; VALUE_NULL: none */
    struct chat_span *spans;
    size_t n_spans, cap_spans;
};

/* Zeroed memory of the result; NULL after a failure, which is recorded. */
void *chat_adapt_alloc(struct adapt *a, size_t n, size_t size);
int chat_adapt_fail(struct adapt *a, const char *why);

static inline struct value adapt_text(const char *text, size_t len) {
    return (struct value){.kind = VALUE_STRING, .text = text, .len = len};
}

/* ---- chat_adapt_calls.c ------------------------------------------------------------------------ */

/* The text of call `at` of the conversation: as sent where the chat has that, else written out. */
struct value chat_adapt_arguments_text(struct adapt *a, const struct value *arguments, size_t at);
/* content, then the calls in the family's syntax; first: number of the first one. */
struct value chat_adapt_write_calls(struct adapt *a, struct value content,
                                    const struct value *calls, size_t first);
/* The id that call `at` gets under the template's rule; VALUE_NULL: the one it has. */
struct value chat_adapt_id(struct adapt *a, const struct value *id, const struct value *name,
                           size_t at);

/* ---- chat_adapt_markers.c ---------------------------------------------------------------------- */

/* Mark reasoning and call markers in an assistant's text, or in the texts of its parts, as
 * trusted; *v then is a copy. */
void chat_adapt_trust(struct adapt *a, struct value *v);

#endif
