/* chat.h: chat templates: a sandboxed interpreter of the jinja2 subset that published templates
 * use. A template is immutable after creation: any thread may render. Sources and inputs are
 * hostile: every bound has a name and ends in an error value. */
#ifndef GERYON_CHAT_H
#define GERYON_CHAT_H

#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"

struct chat_template;

/* Parse. The error names line and construct. Copies the source. */
int chat_template_create(const char *source, size_t len, struct chat_template **out,
                         struct err *err);
void chat_template_destroy(struct chat_template *tmpl); /* NULL is fine */

/* Rendered text as runs: text of the template and of special-token variables is trusted, text that
 * came from messages, tools and kwargs is not. */
struct rendered {
    char *text; /* malloc'd, NUL-terminated */
    size_t len;
    struct text_run *runs; /* malloc'd, into text; adjacent runs differ in `trusted` */
    size_t n_runs;
};
void rendered_free(struct rendered *rendered);

/* A variable of the context besides messages, tools, add_generation_prompt and kwargs. */
struct chat_variable {
    const char *name;
    const char *text;
};

/* Render with the variables (special tokens: trusted). raise_exception gives ERR_INVALID with
 * exactly its message; any other failure ERR_INVALID with line and expression. */
int chat_template_render(const struct chat_template *tmpl, const struct chat *chat,
                         const struct chat_variable *variables, size_t n_variables,
                         struct rendered *out, struct err *err);

/* Generic form for tests: every variable from one object, all of it untrusted. */
int chat_template_render_context(const struct chat_template *tmpl, const struct value *context,
                                 int64_t now, struct rendered *out, struct err *err);

#endif
