/* loader.h: what the readers of model files share: guarded JSON, files read by offset, names made
 * fit for a message, a running hash. Everything here takes its input as hostile. */
#ifndef GERYON_LOADER_H
#define GERYON_LOADER_H

#include <jansson.h>
#include <stdbool.h>

#include "kernels/base.h"

/* Parse len bytes as one JSON text, duplicate keys refused. Nesting and the number of values are
 * counted before jansson sees the text, so that neither its stack nor its memory depends on a
 * hostile file. what: the file's name for messages. The caller owns *out (json_decref). */
int loader_json(const char *text, size_t len, unsigned max_depth, size_t max_values,
                const char *what, json_t **out, struct err *err);

enum { LOADER_NAME_CAP = 112 };
/* A name from a file as message text: control bytes become '?', long names are cut with "...".
 * Returns out. */
const char *loader_printable(const char *name, size_t len, char out[LOADER_NAME_CAP]);

/* Open a regular file for reading; anything else (a directory, a pipe) is ERR_IO. Does not block. */
int loader_open(const char *path, int *fd, uint64_t *size, struct err *err);
/* Exactly n bytes at offset, or ERR_IO: the file was cut or replaced while it is read. */
int loader_pread(int fd, void *dst, size_t n, uint64_t offset, const char *what, struct err *err);
/* The whole file, malloc'd and NUL-terminated. ERR_TOO_LONG beyond limit bytes. A file that does
 * not exist gives *out = NULL and OK when `optional`. */
int loader_read_file(const char *path, size_t limit, bool optional, char **out, size_t *len,
                     struct err *err);
/* dir + "/" + name, malloc'd; NULL without memory. */
char *loader_join(const char *dir, const char *name);

/* FNV-1a, 64 bit. */
#define LOADER_HASH_START 0xcbf29ce484222325ull
uint64_t loader_hash(uint64_t hash, const void *data, size_t n);

#endif
