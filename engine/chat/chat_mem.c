/* Memory, steps and failures of one rendering. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

enum { POOL_CHUNK_BYTES = 64 << 10, POOL_ALIGN = 16 };

/* Chunks form a stack: winding back frees those that came after the mark. */
struct pool_chunk {
    struct pool_chunk *below;
    size_t used, cap;
    size_t pad;
};

_Static_assert(sizeof(struct pool_chunk) % POOL_ALIGN == 0, "chunk data must stay aligned");

bool chat_fail(struct interp *in, const char *fmt, ...) {
    if (in->failed) return false;
    in->failed = true;
    in->err.code = ERR_INVALID;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(in->err.msg, sizeof in->err.msg, fmt, ap);
    va_end(ap);
    return false;
}

bool chat_fail_memory(struct interp *in) {
    return chat_fail(in, "the template needs more than %d MiB of memory", CHAT_MEMORY_MAX >> 20);
}

bool chat_charge(struct interp *in, uint64_t n) {
    in->steps += n;
    if (in->steps <= in->steps_max) return true;
    return chat_fail(in, "the template takes more than %llu steps",
                     (unsigned long long)in->steps_max);
}

bool chat_charge_bytes(struct interp *in, size_t bytes) {
    return chat_charge(in, bytes / CHAT_STEP_BYTES);
}

void *chat_alloc(struct interp *in, size_t bytes) {
    if (bytes > CHAT_MEMORY_MAX) {
        chat_fail_memory(in);
        return NULL;
    }
    size_t room = align_up(bytes ? bytes : 1, POOL_ALIGN);
    struct pool_chunk *top = in->chunks;
    if (in->live + room > CHAT_MEMORY_MAX) {
        chat_fail_memory(in);
        return NULL;
    }
    if (!top || top->cap - top->used < room) {
        size_t cap = room > POOL_CHUNK_BYTES ? room : POOL_CHUNK_BYTES;
        struct pool_chunk *chunk = malloc(sizeof *chunk + cap);
        if (!chunk) {
            chat_fail_memory(in);
            return NULL;
        }
        *chunk = (struct pool_chunk){.below = top, .cap = cap};
        in->chunks = top = chunk;
    }
    void *p = (char *)(top + 1) + top->used;
    top->used += room;
    in->live += room;
    return p;
}

void *chat_alloc_array(struct interp *in, size_t n, size_t size) {
    size_t bytes;
    if (mul_size(n, size, &bytes)) bytes = SIZE_MAX;
    return chat_alloc(in, bytes);
}

void chat_mark(struct interp *in, struct scope_mark *mark) {
    mark->pool.chunk = in->chunks;
    mark->pool.used = in->chunks ? in->chunks->used : 0;
    mark->serial = in->serial;
    mark->oldest_write = in->oldest_write;
    in->oldest_write = UINT64_MAX;
}

/* Bytes of growing buffers count in `live` too, so only what the pool gives back is taken off. */
void chat_release(struct interp *in, const struct scope_mark *mark) {
    if (in->oldest_write > mark->serial) {
        while (in->chunks != mark->pool.chunk) {
            struct pool_chunk *top = in->chunks;
            in->live -= top->used;
            in->chunks = top->below;
            free(top);
        }
        if (in->chunks) {
            struct pool_chunk *top = in->chunks;
#ifdef GERYON_SLOW_CHECKS /* make any use of released memory show */
            memset((char *)(top + 1) + mark->pool.used, 0xDD, top->used - mark->pool.used);
#endif
            in->live -= top->used - mark->pool.used;
            top->used = mark->pool.used;
        }
    }
    if (mark->oldest_write < in->oldest_write) in->oldest_write = mark->oldest_write;
}

void chat_note_write(struct interp *in, uint64_t serial) {
    if (serial < in->oldest_write) in->oldest_write = serial;
}

void chat_pool_free(struct interp *in) {
    while (in->chunks) {
        struct pool_chunk *below = in->chunks->below;
        free(in->chunks);
        in->chunks = below;
    }
}
