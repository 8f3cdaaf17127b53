/* chat_probe.h: how a chat template wants its messages. Published templates agree on little: some
 * read a call's arguments as an object, some as text; some refuse a system message, some drop it in
 * silence. So at load small conversations are rendered, and what shows in the text is the answer.
 * The answers belong to the model; chat_adapt.h uses them on every request. */
#ifndef GERYON_CHAT_PROBE_H
#define GERYON_CHAT_PROBE_H

#include "engine/chat/chat.h"

/* Roles whose texts may have forms of their own. */
enum chat_role {
    CHAT_ROLE_SYSTEM, /* developer too */
    CHAT_ROLE_USER,
    CHAT_ROLE_ASSISTANT,
    CHAT_ROLE_TOOL,
    CHAT_ROLE_COUNT,
};

/* Content of an assistant message that holds nothing but calls. */
enum chat_empty { CHAT_EMPTY_TEXT, CHAT_EMPTY_NULL, CHAT_EMPTY_ABSENT };

enum chat_ids {
    CHAT_IDS_AS_SENT,
    CHAT_IDS_SHORT,   /* 9 letters and digits (Mistral) */
    CHAT_IDS_INDEXED, /* functions.NAME:INDEX, counted over the conversation (Kimi) */
};

enum chat_reasoning {
    CHAT_REASONING_UNSEEN,    /* none of them shows; passed on as reasoning_content */
    CHAT_REASONING_CONTENT,   /* field reasoning_content */
    CHAT_REASONING_THINKING,  /* field thinking */
    CHAT_REASONING_REASONING, /* field reasoning */
    CHAT_REASONING_PART,      /* part {"type":"thinking","thinking":...} before the content */
};

/* How calls of the history are written into the content of a template that leaves them out. */
enum chat_call_syntax {
    CHAT_SYNTAX_NONE,
    CHAT_SYNTAX_TAGGED,   /* <tool_call>{"name": N, "arguments": J}</tool_call> (SmolLM3) */
    CHAT_SYNTAX_PYTHONIC, /* <|tool_call_start|>[N(k="v")]<|tool_call_end|> (LFM2) */
};

struct chat_traits {
    bool system;             /* a first system message shows; else it goes into the user's text */
    bool several_systems;    /* two at the start both show; else they are joined */
    bool drops_late_systems; /* one that comes later vanishes without a word */
    bool developer;          /* the template knows the role by name; else it becomes system */
    bool parts[CHAT_ROLE_COUNT]; /* text is read only as a list of parts, not as a string */
    bool tools;                  /* declared tools show */
    bool calls;                  /* calls of the history show */
    bool several_calls;          /* two of one message both show */
    bool arguments_text;         /* arguments are read as JSON text, not as an object */
    enum chat_empty empty;
    enum chat_ids ids;
    enum chat_reasoning reasoning;
    enum chat_call_syntax written_calls; /* only where calls is false */
};

/* What a template gets that was not probed: everything as the API's table of defaults has it. */
void chat_traits_defaults(struct chat_traits *traits);

/* Probe with the variables a request would have (special tokens). Never fails: where a conversation
 * cannot be rendered the default stands. All renderings together take a fifth of the steps
 * that one rendering may. */
void chat_probe(const struct chat_template *tmpl, const struct chat_variable *variables,
                size_t n_variables, struct chat_traits *traits);

/* One line of text for people: what differs from the defaults, "" where nothing does. */
void chat_traits_describe(const struct chat_traits *traits, char *out, size_t cap);

#endif
