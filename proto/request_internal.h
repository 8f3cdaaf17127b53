/* request_internal.h: the parts of a body that need code of their own. Each comes in the two passes of
 * validation: types first, then values; the second also stores what it checked. */
#ifndef GERYON_PROTO_REQUEST_INTERNAL_H
#define GERYON_PROTO_REQUEST_INTERNAL_H

#include "proto/fields.h"

/* request.c: the first steps, which all bodies share. request->arena is there; arena_limit: what it
 * may hold for a body of len bytes. */
size_t request_arena_limit(size_t len);
int request_no_memory(struct api_error *err);
int request_parse_body(const char *body, size_t len, size_t *values_left, struct arena *arena,
                       struct value *out, struct api_error *err);
int request_check_model(const struct fields *fields, const struct proto_limits *limits,
                        struct api_request *request, struct api_error *err);

/* prompt.c: a string, strings, token ids, or arrays of ids. */
int prompt_store_ids(const struct value *ids, const char *path, const struct proto_limits *limits,
                     struct arena *arena, struct prompt *out, struct api_error *err);
int prompt_check_types(const struct value *prompt, struct api_error *err);
int prompt_store(const struct value *prompt, const struct proto_limits *limits,
                 struct api_request *request, struct api_error *err);

/* bias.c: logit_bias into request->sampling. */
int bias_check_types(const struct value *bias, struct api_error *err);
int bias_store(const struct value *bias, const struct proto_limits *limits,
               struct api_request *request, struct api_error *err);

/* messages.c: the conversation, checked and freed of double forms in place. values_left bounds the values
 * of tool-call arguments, which are JSON inside strings. */
int messages_check_types(struct value *messages, struct api_error *err);
int messages_store(struct value *messages, const struct proto_limits *limits, size_t *values_left,
                   struct api_request *request, struct api_error *err);

/* messages.c: chat_template_kwargs and reasoning_effort into request->template_kwargs; either may be
 * NULL. */
int messages_store_kwargs(struct value *kwargs, const struct value *effort,
                          struct api_request *request, struct api_error *err);

#endif
