/* out_dir.h: a directory that is being filled, whole or not at all. Nothing that exists is ever
 * overwritten; until out_dir_commit everything written is removed again by out_dir_destroy. One thread. */
#ifndef GERYON_OUT_DIR_H
#define GERYON_OUT_DIR_H

#include "kernels/base.h"

struct out_dir; /* opaque */

/* Make the directory, or take one that is there and empty. Its parent must exist. */
int out_dir_create(const char *path, struct out_dir **out, struct err *err);
/* Removes what was written (and the directory, where we made it) unless committed. NULL is fine. */
void out_dir_destroy(struct out_dir *dir);

/* A new file for writing; the caller closes it, after out_dir_sync. */
int out_dir_open(struct out_dir *dir, const char *name, int *fd, struct err *err);
/* n bytes at an offset of such a file. name: for messages. */
int out_dir_pwrite(int fd, const void *data, size_t n, uint64_t offset, const char *name,
                   struct err *err);
/* Everything of the file is on the disk: errors that the system held back come out here. */
int out_dir_sync(int fd, const char *name, struct err *err);
/* A whole file: opened, written, synced, closed. */
int out_dir_write(struct out_dir *dir, const char *name, const void *data, size_t n,
                  struct err *err);

/* The last file, without which the rest is no checkpoint: it gets its name when everything else is
 * on the disk, and then nothing is removed any more. */
int out_dir_commit(struct out_dir *dir, const char *name, const void *data, size_t n,
                   struct err *err);

#endif
