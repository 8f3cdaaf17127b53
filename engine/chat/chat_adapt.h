/* chat_adapt.h: a conversation in the form that a template reads. */
#ifndef GERYON_CHAT_ADAPT_H
#define GERYON_CHAT_ADAPT_H

#include "engine/chat/chat_probe.h"

struct chat_span;

struct adapted {
    struct arena *arena; /* what is new; the rest is shared with the input */
    struct value messages;
    /* Reasoning and call markers in texts of the assistant: a model that wrote them as control
     * tokens reads them as such again. Sorted by address. */
    struct chat_span *spans;
    size_t n_spans;
};

/* chat's messages for a template of these traits. The input is not changed and must outlive the
 * result. Key order stays; new keys go to the end. ERR_INVALID: tools that the template does not
 * show, or messages that need more memory than allowed; ERR_NOMEM. adapted_free on success. */
int chat_adapt(const struct chat *chat, const struct chat_traits *traits, struct adapted *out,
               struct err *err);
void adapted_free(struct adapted *adapted);

/* Render what chat_adapt gave. As chat_template_render. */
int chat_adapt_render(const struct chat_template *tmpl, const struct chat_traits *traits,
                      const struct chat *chat, const struct chat_variable *variables,
                      size_t n_variables, struct rendered *out, struct err *err);

#endif
