/* proto.h: the wire: OpenAI-style JSON in and out, SSE framing, error objects. Pure functions over
 * memory: no I/O, no threads, no clock. jansson parses; output is written by proto's own writer
 * into a growing buffer, so that a token costs no allocation once the buffer has its size. */
#ifndef GERYON_PROTO_H
#define GERYON_PROTO_H

#include "engine/request.h"

/* ---- output buffer ----------------------------------------------------------------------------- */

/* Bytes to send. On failed growth `failed` is set and later writes do nothing: check it once. */
struct buf {
    char *data;
    size_t len, cap;
    bool failed;
};
void buf_free(struct buf *buf);
void buf_add(struct buf *buf, const char *data, size_t len);
void buf_str(struct buf *buf, const char *text);
void buf_fmt(struct buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string literal with its quotes; text is UTF-8 (invalid bytes become U+FFFD). */
void buf_json(struct buf *buf, const char *text, size_t len);
/* A JSON array of token ids. */
void buf_ids(struct buf *buf, const int32_t *ids, uint32_t n);

/* ---- errors ------------------------------------------------------------------------------------ */

/* One error answer. type and code are the API's stable strings. */
struct api_error {
    int status;        /* HTTP */
    const char *type;  /* static */
    const char *code;  /* static */
    char param[128];   /* "" = null */
    char message[512]; /* never prompt text; offending values cut at 200 bytes */
};

enum api_code {
    API_INVALID_JSON,
    API_MISSING_REQUIRED_PARAMETER,
    API_INVALID_TYPE,
    API_INVALID_VALUE,
    API_UNSUPPORTED_PARAMETER,
    API_MALFORMED_REQUEST,
    API_HTTP_VERSION_NOT_SUPPORTED,
    API_UNKNOWN_PARAMETER,
    API_CONTEXT_LENGTH_EXCEEDED,
    API_INVALID_SCHEMA,
    API_INVALID_API_KEY,
    API_MODEL_NOT_FOUND,
    API_UNKNOWN_URL,
    API_METHOD_NOT_ALLOWED,
    API_REQUEST_TIMEOUT, /* 408, reading the request */
    API_REQUEST_TOO_LARGE,
    API_URI_TOO_LONG,
    API_UNSUPPORTED_MEDIA_TYPE,
    API_HEADERS_TOO_LARGE,
    API_QUEUE_FULL,
    API_INTERNAL_ERROR,
    API_MODEL_LOADING,
    API_SHUTTING_DOWN,
    API_ENGINE_FAILED,
    API_TOO_MANY_CONNECTIONS,
    API_QUEUE_TIMEOUT, /* 504 */
    API_DEADLINE,      /* 504, code "request_timeout" */
    API_CODE_COUNT
};

/* Fill err from the one table of codes; param may be NULL. Returns ERR_INVALID. */
int api_error_set(struct api_error *err, enum api_code code, const char *param, const char *fmt,
                  ...) __attribute__((format(printf, 4, 5)));
/* The error body {"error":{...}}. */
void proto_error_body(struct buf *out, const struct api_error *err);

/* ---- requests ---------------------------------------------------------------------------------- */

enum route_kind { ROUTE_COMPLETION, ROUTE_CHAT, ROUTE_TOKENIZE, ROUTE_DETOKENIZE };

enum { IGNORED_FIELDS_MAX = 8 };

/* repetition_penalty is above 0; still smaller ones would turn logits into infinities. */
#define REPETITION_LEAST 1e-30

/* What validation needs to know of the server. */
struct proto_limits {
    uint32_t vocab_size;
    uint32_t max_n;          /* choices per prompt */
    uint32_t max_choices;    /* prompts x n */
    bool tokenizer_adds_bos; /* "" is a valid prompt only then */
    bool strict_params;      /* unknown fields: 400 instead of ignored */
    bool has_priorities;     /* else priority must be 0 */
    bool has_chat_template;
    const char *chat_template_error; /* why the one there cannot be used, or NULL */
    const char *const *model_names;  /* served names; the first is the default */
    size_t n_model_names;
    const struct sampling *defaults; /* where a request says nothing; NULL: sampling_defaults */
};

struct prompt {
    const char *text; /* string prompt, or NULL: */
    size_t text_len;
    const int32_t *ids;
    uint32_t n_ids;
};

/* A parsed and validated generation request; everything lives in its arena. */
struct api_request {
    struct arena *arena;
    enum route_kind kind;
    const char *model; /* the name asked for, or the default */
    bool stream, include_usage, continuous_usage_stats;
    bool return_token_ids;
    bool return_timings;
    int64_t max_tokens; /* -1: the room left (chat) */
    uint32_t n;         /* choices per prompt */
    int32_t priority;
    const char *cache_salt; /* may hold NUL bytes */
    uint32_t cache_salt_len;
    struct sampling sampling; /* its bias, ids ascending, lies in the arena too */
    /* completions */
    struct prompt *prompts;
    uint32_t n_prompts;
    bool add_special_tokens;
    /* chat: messages checked; arguments of calls are objects, content is a string or text parts, and
     * nothing is null or an empty tool_calls */
    const struct value *messages;
    const struct value *call_arguments; /* array: the arguments' texts as sent, over all messages */
    const struct value *template_kwargs; /* object or NULL */
    /* names of unknown fields, for a log line: the first few, and how many there were; may be cut */
    const char *ignored[IGNORED_FIELDS_MAX];
    uint32_t n_ignored;
    bool add_generation_prompt;
    bool return_token_strs; /* tokenize */
};

/* Validation order: JSON, model, field types, ranges, contradictions. On success fills out
 * (api_request_free); on failure err, and out is untouched. Any thread. */
int proto_parse_request(enum route_kind kind, const char *body, size_t len,
                        const struct proto_limits *limits, struct api_request *out,
                        struct api_error *err);
void api_request_free(struct api_request *request);

/* POST /tokenize and /detokenize, in the same order. Fills messages and what belongs to them, or one
 * prompt: a text, which may be empty, or the ids to turn back. */
int proto_parse_tokens(enum route_kind kind, const char *body, size_t len,
                       const struct proto_limits *limits, struct api_request *out,
                       struct api_error *err);

/* JSON bytes to a value tree in arena, with the bounds of the API (duplicate keys, trailing bytes,
 * UTF-8, depth 64, 1,000,000 values, 64-bit integers): ERR_INVALID with line and column in err. Used
 * for bodies; exposed for tests and fuzzing. */
int proto_parse_json(const char *text, size_t len, struct arena *arena, struct value *out,
                     struct api_error *err);

/* ---- answers ----------------------------------------------------------------------------------- */

/* What every chunk and answer of a request repeats. Strings are borrowed for each call. */
struct answer_head {
    enum route_kind kind;
    const char *id; /* "cmpl-..." / "chatcmpl-..." */
    int64_t created;
    const char *model;
    const char *fingerprint; /* "fp_..." */
    bool include_usage;      /* chunks before the usage chunk then carry "usage":null */
    bool return_token_ids;
};

struct usage {
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
    uint64_t reasoning_tokens, accepted_tokens, rejected_tokens;
};

struct timings {
    double queue_ms, prefill_ms, ttft_ms, decode_ms, tokens_per_second;
    uint64_t cached_tokens, prefill_passes, draft_passes, verify_passes;
    double mean_accepted_length;
    uint64_t preemptions;
};

/* One choice of a whole answer. */
struct answer_choice {
    uint32_t index;
    const char *text;
    size_t text_len;
    const int32_t *token_ids; /* with return_token_ids */
    uint32_t n_token_ids;
    const int32_t *prompt_ids; /* with return_token_ids */
    uint32_t n_prompt_ids;
    const char *finish_reason; /* "stop", "length" */
    const char *stop_text;     /* matched stop string, or NULL */
    size_t stop_len;
    int32_t stop_id; /* matched stop token when stop_text is NULL, or -1 */
};

/* The whole JSON answer; timings may be NULL. */
void proto_answer(struct buf *out, const struct answer_head *head,
                  const struct answer_choice *choices, uint32_t n_choices,
                  const struct usage *usage, const struct timings *timings);

/* SSE events, each "data: " + one line + blank line. `usage` non-NULL: continuous_usage_stats. */
void proto_chunk_role(struct buf *out, const struct answer_head *head, uint32_t index,
                      const int32_t *prompt_ids, uint32_t n_prompt_ids, const struct usage *usage);
void proto_chunk_text(struct buf *out, const struct answer_head *head, uint32_t index,
                      const char *text, size_t len, const int32_t *ids, uint32_t n_ids,
                      const int32_t *prompt_ids, uint32_t n_prompt_ids, const struct usage *usage);
/* token ids of withheld tokens without text may come with the finish chunk. timings: on the last
 * JSON chunk of the stream, wherever that is; NULL otherwise. */
void proto_chunk_finish(struct buf *out, const struct answer_head *head,
                        const struct answer_choice *choice, const struct usage *usage,
                        const struct timings *timings);
void proto_chunk_usage(struct buf *out, const struct answer_head *head, const struct usage *usage,
                       const struct timings *timings);
void proto_sse_done(struct buf *out);      /* data: [DONE] */
void proto_sse_keepalive(struct buf *out); /* : keep-alive */
void proto_sse_error(struct buf *out, const struct api_error *err);

/* Answers of /tokenize (strs: each token's own text, malloc'd elsewhere, or NULL), /detokenize and of
 * the render routes: {"request_id":..,"token_ids":[..]}. */
struct token_str {
    const char *text;
    size_t len;
};
void proto_tokenized(struct buf *out, const int32_t *ids, uint32_t n, uint32_t max_model_len,
                     const struct token_str *strs);
void proto_detokenized(struct buf *out, const char *text, size_t len);
void proto_rendered(struct buf *out, const char *request_id, const int32_t *ids, uint32_t n);

/* GET /v1/models: one object, or the list. */
struct model_card {
    const char *id, *root;
    int64_t created;
    uint32_t max_model_len;
};
void proto_model(struct buf *out, const struct model_card *card);
void proto_models(struct buf *out, const struct model_card *cards, size_t n);
/* GET /props: what is served, and within which limits. */
struct props {
    const char *const *names;
    size_t n_names;
    const char *path, *architecture, *fingerprint;
    uint32_t max_model_len, vocab_size, page_size, n_pages, draft_block, window;
    const char *weight_dtype, *kv_dtype, *kernels, *activations;
    struct sampling defaults;
    uint32_t max_n, max_choices, max_num_seqs, max_queued;
    uint64_t max_body_bytes;
    const char *scheduling;    /* "fcfs", "priority" */
    const char *chat_template; /* NULL: none */
};
void proto_props(struct buf *out, const struct props *props);

/* GET /slots: one sequence, without any text of it. */
struct slot_card {
    uint32_t id;
    const char *request_id; /* NULL: its client is gone */
    const char *state;      /* static */
    uint32_t prompt_tokens, cached_tokens, output_tokens, pages;
    uint64_t age_ms;
    double mean_accepted_length;
};
void proto_slots(struct buf *out, const struct slot_card *cards, size_t n);

/* Probes: {"status":...}; phase NULL, progress < 0 and reason NULL are left out. */
void proto_status(struct buf *out, const char *status, const char *phase, double progress,
                  const char *reason);
void proto_version(struct buf *out, const char *version, const char *commit, const char *backend);

#endif
