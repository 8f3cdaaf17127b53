/* cmd.h: the commands of the binary. Each returns the process's exit code and says on stderr why
 * it is not 0. */
#ifndef GERYON_CMD_H
#define GERYON_CMD_H

#include "engine/engine.h"
#include "server/options.h"

int cmd_serve(const struct options *options);
int cmd_generate(const struct options *options);
int cmd_logits(const struct options *options);
int cmd_tokenize(const struct options *options);
int cmd_inspect(const struct options *options);
int cmd_health(const struct options *options);
int cmd_bench(const struct options *options);
int cmd_convert(const struct options *options);

/* What the flags mean to the engine. */
struct model_options cmd_model_options(const struct options *options);
struct engine_config cmd_engine_config(const struct options *options);

/* Print "geryon: message" on stderr and return 1: could not do it. */
int cmd_fail(const struct err *err);
/* The same for flags that make no sense, and return 2. */
int cmd_usage(const struct err *err);

/* Model and engine of an offline command. */
struct offline {
    struct model *model;
    struct engine *engine;
    FILE *trace;
};
int cmd_open(const struct options *options, bool keep_cycles, struct offline *out, struct err *err);
/* Say on stderr what was not done as asked; cmd_open has done it. */
void cmd_notices(const struct offline *offline);
void cmd_close(struct offline *offline);

/* "1,2,3", or a JSON array of ids, each below vocab_size (0: not known yet, any 31-bit number);
 * appended to out. what names the source in messages. */
int cmd_parse_ids(const char *text, size_t len, const char *what, uint32_t vocab_size,
                  struct tokens *out, struct err *err);

/* All of a stream, malloc'd, NUL-terminated; ERR_TOO_LONG over 256 MiB. */
int cmd_read_all(FILE *in, const char *what, char **out, size_t *len, struct err *err);

#endif
