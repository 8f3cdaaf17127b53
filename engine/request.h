/* request.h: plain types that cross between proto, server and engine: JSON-like values, a
 * generation request, its events. No function here needs an engine; no thread owns a type. */
#ifndef GERYON_REQUEST_H
#define GERYON_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base.h"

/* ---- values: what JSON from outside becomes ---------------------------------------------------- */

enum value_kind {
    VALUE_NULL,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_REAL,
    VALUE_STRING,
    VALUE_ARRAY,
    VALUE_OBJECT, /* members in the client's order, keys distinct */
};

struct value {
    enum value_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct {
            const char *text; /* UTF-8, may hold NUL bytes, NUL-terminated besides */
            size_t len;
        };
        struct {
            struct value *items;    /* array elements, or an object's member values */
            struct value_key *keys; /* objects: [n_items]; arrays: NULL */
            size_t n_items;
        };
    };
};

struct value_key {
    const char *text;
    size_t len;
};

/* The member called key (NUL-terminated) of an object, or NULL; also NULL when v is no object. */
const struct value *value_get(const struct value *v, const char *key);

/* A bump allocator for things that die together (a parsed request, a rendered template). Not for
 * the step loop. `limit` bytes in all; beyond it, or without memory, alloc returns NULL. */
struct arena;
struct arena *arena_create(size_t limit);
void arena_destroy(struct arena *arena);              /* NULL is fine */
void *arena_alloc(struct arena *arena, size_t bytes); /* 16-byte aligned, zeroed */
char *arena_strndup(struct arena *arena, const char *text, size_t len);
size_t arena_used(const struct arena *arena);

/* ---- a generation request ---------------------------------------------------------------------- */

enum {
    STOP_STRINGS_MAX = 16,
    STOP_STRING_BYTES_MAX = 256,
    STOP_IDS_MAX = 64,
    LOGIT_BIAS_MAX = 1024,
    CACHE_SALT_BYTES_MAX = 128,
};

/* Fields of both generation routes that the engine obeys. */
struct sampling {
    double temperature;                         /* 1 */
    double top_p;                               /* 1 */
    double min_p;                               /* 0 */
    int32_t top_k;                              /* 0 = off */
    double frequency_penalty, presence_penalty; /* 0 */
    double repetition_penalty;                  /* 1 */
    uint32_t n_bias;                            /* logit_bias */
    struct token_bias {
        int32_t id;   /* distinct */
        double value; /* -100 forbids the token, others are added */
    } * bias;         /* [n_bias]; who owns it is said where a struct sampling is kept */
    bool has_seed;    /* the client gave the seed: drafter-invariant draws */
    uint64_t seed;    /* always set on submission; drawn from the system if not given */
    uint32_t min_tokens;
    bool ignore_eos;
    bool skip_special_tokens;        /* true: control tokens leave no text */
    bool include_stop_str_in_output; /* false */
    uint32_t n_stop;
    struct {
        uint16_t len;
        char text[STOP_STRING_BYTES_MAX];
    } stop[STOP_STRINGS_MAX];
    uint32_t n_stop_ids;
    int32_t stop_ids[STOP_IDS_MAX];
};

/* The values of the API's table of defaults. */
void sampling_defaults(struct sampling *sampling);

/* One sequence to generate: one choice of one prompt. Allocated by the loop thread; belongs to the
 * engine from engine_submit until the event that ends it hands it back. */
struct request {
    uint64_t id;      /* unique among live requests; chosen by the submitter */
    uint32_t choice;  /* choice number within its prompt */
    uint64_t group;   /* choices of one prompt share this number and its pages; 0 = alone */
    int32_t priority; /* lower is served sooner */
    uint8_t salt_len; /* cache_salt: prefix pages are shared between equal salts only */
    char salt[CACHE_SALT_BYTES_MAX];
    uint32_t max_tokens;      /* >= 1; lowered to the room left in the context by engine_submit */
    uint32_t n_prompt;        /* >= 1, < max_model_len */
    int32_t *prompt;          /* token ids; freed with the request by its allocator */
    struct sampling sampling; /* its bias: like prompt */
    void *user;               /* the submitter's own */
};

/* ---- events ------------------------------------------------------------------------------------ */

enum event_kind {
    EVENT_TOKENS,   /* text became final; all text of one step arrives in one event */
    EVENT_FINISHED, /* the last event of a request that ended by itself, or was cancelled */
    EVENT_FAILED,   /* the last event of a request that the engine could not finish */
};

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED };

/* Counts of one sequence so far. */
struct seq_stats {
    uint32_t n_prompt;
    uint32_t n_cached;   /* prompt tokens found in stored pages */
    uint32_t n_output;   /* tokens that became part of the text, the ending one included */
    uint32_t n_accepted; /* proposals kept (and not cut by an ending) */
    uint32_t n_rejected; /* proposals checked and refused */
    uint32_t prefill_passes, draft_passes, verify_passes; /* forwards that held rows of it; a plain
                                                             decode is a verify pass of 0 drafts */
    uint32_t preemptions;
    uint64_t submitted_us, started_us, first_token_us, last_token_us; /* engine time */
};

struct event {
    enum event_kind kind;
    uint64_t id;
    /* EVENT_TOKENS, and what was withheld until the end on EVENT_FINISHED: */
    const char *text; /* whole UTF-8 characters; valid until the next engine_next_event */
    uint32_t text_len;
    const int32_t *tokens; /* ids whose last byte of text is released by this event */
    uint32_t n_tokens;
    /* at the end: */
    enum finish_reason finish;
    int32_t stop_index; /* index into sampling.stop that matched, or -1 */
    int32_t stop_id;    /* the stop token (stop_ids) that ended it, or -1 */
    int error;          /* EVENT_FAILED: enum status */
    struct seq_stats stats;
    struct request *request; /* handed back with the last event, else NULL */
};

#endif
