/* sink.h: sockets that got their last answer while the client was still writing. Closing them at
 * once would reset the connection and the answer could be lost, so what comes in is read and
 * dropped until the client closes, 2 seconds pass, or a byte cap is reached. Loop thread. */
#ifndef GERYON_SINK_H
#define GERYON_SINK_H

#include <stdint.h>
#include <uv.h>

struct sink; /* opaque: sink.c */

struct sink *sink_create(uv_loop_t *loop); /* NULL: no memory */
/* Takes fd. Over the bound on lingering sockets it is closed at once. */
void sink_add(struct sink *sink, int fd, uint64_t now_us);
/* Close those whose time is up; call about every 200 ms. */
void sink_tick(struct sink *sink, uint64_t now_us);
/* Close all. The memory goes when libuv has closed their handles: run the loop once more, then
 * sink_destroy. */
void sink_close_all(struct sink *sink);
void sink_destroy(struct sink *sink); /* NULL is fine */

#endif
