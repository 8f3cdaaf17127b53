/* cmd_generate.c: one text without a server, stepping the engine by hand. */
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"
#include "server/clock.h"
#include "server/cmd.h"
#include "server/ids.h"

struct result {
    struct buf text;
    struct tokens tokens;
    struct seq_stats stats;
    enum finish_reason finish;
};

static int render(const struct options *options, const struct model *model, struct tokens *out,
                  struct err *err) {
    struct value text = {.kind = VALUE_STRING}, role = {.kind = VALUE_STRING};
    text.text = options->chat;
    text.len = strlen(options->chat);
    role.text = "user";
    role.len = 4;
    struct value members[] = {role, text};
    struct value_key keys[] = {{"role", 4}, {"content", 7}};
    struct value message = {.kind = VALUE_OBJECT};
    message.items = members;
    message.keys = keys;
    message.n_items = 2;
    struct value messages = {.kind = VALUE_ARRAY};
    messages.items = &message;
    messages.n_items = 1;
    struct chat chat = {.messages = &messages,
                        .add_generation_prompt = true,
                        .parse_specials = options->parse_specials,
                        .now = clock_unix()};
    return model_render_chat(model, &chat, out, NULL, NULL, err);
}

/* What can be said of the flags before the model is loaded. */
static int check_flags(const struct options *options, struct err *err) {
    int given = (options->prompt != NULL) + (options->tokens != NULL) + (options->chat != NULL);
    if (given != 1) return err_set(err, ERR_INVALID, "give one of --prompt, --tokens and --chat");
    if (!options->tokens) return OK;
    struct tokens ignored = {0};
    int rc = cmd_parse_ids(options->tokens, strlen(options->tokens), "--tokens", 0, &ignored, err);
    tokens_free(&ignored);
    return rc;
}

static int read_prompt(const struct options *options, const struct model *model, struct tokens *out,
                       struct err *err) {
    if (options->tokens)
        return cmd_parse_ids(options->tokens, strlen(options->tokens), "--tokens",
                             model_info(model)->vocab_size, out, err);
    if (options->chat) return render(options, model, out, err);
    return model_tokenize(model, options->prompt, strlen(options->prompt),
                          TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, out, err);
}

static struct request *make_request(const struct options *options, const struct tokens *prompt) {
    struct request *request = calloc(1, sizeof *request);
    if (!request) return NULL;
    request->id = 1;
    request->max_tokens = options->max_tokens;
    request->n_prompt = prompt->n;
    request->prompt = prompt->ids;
    sampling_defaults(&request->sampling);
    request->sampling.temperature = options->temperature;
    request->sampling.top_p = options->top_p;
    request->sampling.min_p = options->min_p;
    request->sampling.top_k = (int32_t)options->top_k;
    request->sampling.ignore_eos = options->ignore_eos;
    request->sampling.has_seed = options->seed.set;
    request->sampling.seed = options->seed.set ? (uint64_t)options->seed.value : ids_seed();
    return request;
}

/* Take in what the step emitted; true at the end. */
static bool take_events(struct engine *engine, bool stream, struct result *out, int *error) {
    struct event event;
    bool ended = false;
    while (engine_next_event(engine, &event)) {
        buf_add(&out->text, event.text, event.text_len);
        for (uint32_t i = 0; i < event.n_tokens; i++)
            if (tokens_push(&out->tokens, event.tokens[i])) *error = ERR_NOMEM;
        if (stream) {
            fwrite(event.text, 1, event.text_len, stdout);
            fflush(stdout);
        }
        out->stats = event.stats;
        out->finish = event.finish;
        if (event.kind == EVENT_FAILED) *error = event.error;
        if (event.kind != EVENT_TOKENS) ended = true;
    }
    return ended;
}

static int run(const struct options *options, struct engine *engine, struct request *request,
               struct result *out, struct err *err) {
    int rc = engine_submit(engine, request, err);
    if (rc) return rc;
    int error = OK;
    for (bool ended = false; !ended && !error;) {
        int more = engine_step(engine, clock_us());
        ended = take_events(engine, !options->json, out, &error);
        if (!ended && more < 0) error = more;
        if (!ended && more == 0) error = ERR_DEVICE; /* idle without an ending: cannot go on */
    }
    if (engine_fault(engine))
        return err_set(err, ERR_DEVICE, "the compute device failed: %s", engine_fault(engine));
    if (error || out->text.failed)
        return err_set(err, error ? error : ERR_NOMEM, "the engine could not finish the text");
    return OK;
}

static void add_ids(struct buf *out, const int32_t *ids, uint32_t n) {
    buf_str(out, "[");
    for (uint32_t i = 0; i < n; i++)
        buf_fmt(out, i ? ",%d" : "%d", ids[i]);
    buf_str(out, "]");
}

static double mean_accepted(const struct seq_stats *s) {
    return s->verify_passes ? (double)(s->n_accepted + s->verify_passes) / s->verify_passes : 0;
}

static double tokens_per_second(const struct seq_stats *s) {
    double ms = clock_ms(s->first_token_us, s->last_token_us);
    return ms > 0 && s->n_output > 1 ? (s->n_output - 1) * 1000.0 / ms : 0;
}

static int print_json(const struct tokens *prompt, const struct result *result,
                      struct engine *engine, struct err *err) {
    const struct seq_stats *s = &result->stats;
    const struct cycle *cycles;
    uint32_t n_cycles = engine_cycles(engine, &cycles);
    struct buf out = {0};
    buf_str(&out, "{\"prompt_tokens\":");
    add_ids(&out, prompt->ids, prompt->n);
    buf_str(&out, ",\"tokens\":");
    add_ids(&out, result->tokens.ids, result->tokens.n);
    buf_str(&out, ",\"text\":");
    buf_json(&out, result->text.data ? result->text.data : "", result->text.len);
    buf_fmt(&out, ",\"finish_reason\":\"%s\",\"cycles\":[",
            result->finish == FINISH_LENGTH ? "length" : "stop");
    for (uint32_t i = 0; i < n_cycles; i++) {
        buf_str(&out, i ? ",{\"drafted\":" : "{\"drafted\":");
        add_ids(&out, cycles[i].drafted, cycles[i].n_drafted);
        buf_fmt(&out, ",\"accepted\":%u}", cycles[i].n_accepted);
    }
    buf_fmt(&out,
            "],\"timings\":{\"prefill_ms\":%.3f,\"decode_ms\":%.3f,\"tokens_per_second\":%.3f,"
            "\"prefill_passes\":%u,\"draft_passes\":%u,\"verify_passes\":%u,"
            "\"mean_accepted_length\":%.4f,\"preemptions\":%u}}\n",
            clock_ms(s->started_us, s->first_token_us),
            clock_ms(s->first_token_us, s->last_token_us), tokens_per_second(s), s->prefill_passes,
            s->draft_passes, s->verify_passes, mean_accepted(s), s->preemptions);
    bool failed = out.failed;
    if (!failed) fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
    return failed ? err_set(err, ERR_NOMEM, "no memory for the answer") : OK;
}

static void print_summary(const struct result *result) {
    const struct seq_stats *s = &result->stats;
    uint32_t forwards = s->prefill_passes + s->draft_passes + s->verify_passes;
    fprintf(stderr,
            "prompt_tokens=%u tokens=%u finish=%s tokens_per_second=%.2f tokens_per_forward=%.3f "
            "accepted_length=%.3f\n",
            s->n_prompt, s->n_output, result->finish == FINISH_LENGTH ? "length" : "stop",
            tokens_per_second(s), forwards ? (double)s->n_output / forwards : 0.0,
            mean_accepted(s));
}

int cmd_generate(const struct options *options) {
    struct err err = {0};
    struct offline offline;
    struct tokens prompt = {0};
    struct result result = {0};
    struct request *request = NULL;
    if (check_flags(options, &err)) return cmd_usage(&err);
    int rc = cmd_open(options, options->json, &offline, &err);
    if (rc) return cmd_fail(&err);
    rc = read_prompt(options, offline.model, &prompt, &err);
    uint32_t room = engine_info(offline.engine)->max_model_len;
    if (!rc && (!prompt.n || prompt.n >= room))
        rc = err_set(&err, ERR_TOO_LONG, "the prompt has %u tokens, this needs 1 to %u", prompt.n,
                     room - 1);
    if (!rc && !(request = make_request(options, &prompt)))
        rc = err_set(&err, ERR_NOMEM, "no memory for the request");
    if (!rc) rc = run(options, offline.engine, request, &result, &err);
    if (!rc && options->json) rc = print_json(&prompt, &result, offline.engine, &err);
    if (!rc && !options->json) fputc('\n', stdout);
    if (!rc) print_summary(&result);
    if (!rc && (fflush(stdout) || ferror(stdout)))
        rc = err_set(&err, ERR_IO, "cannot write to stdout");
    int exit_code = rc ? cmd_fail(&err) : 0;
    cmd_close(&offline);
    free(request);
    tokens_free(&prompt);
    tokens_free(&result.tokens);
    buf_free(&result.text);
    return exit_code;
}
