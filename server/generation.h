/* generation.h: a request's sequences in the engine: admission, events, answers. Loop thread. */
#ifndef GERYON_GENERATION_H
#define GERYON_GENERATION_H

#include "server/exchange.h"
#include "server/log.h"

/* Admit: n sequences per prompt, all or nothing. Takes request, also on failure, and of the ids in
 * prompts[0..n_prompts) what it keeps; where it fails, ex is answered with the refusal. */
void generation_begin(struct exchange *ex, struct api_request *request, struct tokens *prompts,
                      uint32_t n_prompts);
/* Pop the engine's events and hand them on, a bounded number of wake-ups a call; true when more may
 * be waiting. */
bool generation_deliver(struct server *server);
/* End with an error: an answer, or an event and a broken stream. What still runs is cancelled. */
void generation_fail(struct exchange *ex, const struct api_error *error);
/* More bytes of a stream (ex->n_handed now) went to the library, which writes them to the socket. */
void generation_handed_over(struct exchange *ex);
/* GET /slots: every sequence in the engine. */
void generation_write_slots(const struct server *server, struct buf *out);
/* Nobody waits any more: cancel what runs. */
void generation_abandon(struct exchange *ex);
/* Limits in time; may end the exchange with an error. */
void generation_tick(struct exchange *ex, uint64_t now_us);
void generation_free(struct exchange *ex);
/* Fields for the request's log line. */
size_t generation_log_fields(const struct exchange *ex, struct log_field *fields, size_t cap);

#endif
