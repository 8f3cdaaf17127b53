/* out_dir.c: see out_dir.h. Files go by the directory's descriptor, so that a directory renamed
 * under way is still the one that is filled, and cleaned up. */
#include "engine/load/out_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct out_dir {
    char *path;
    int fd;
    bool made, committed;
    char **names; /* of the files so far */
    size_t n_names, names_cap;
};

/* No entry but . and .. */
static int check_empty(const char *path, struct err *err) {
    DIR *d = opendir(path);
    if (!d) return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    const struct dirent *entry;
    int rc = OK;
    while (!rc && (entry = readdir(d)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = err_set(err, ERR_IO, "%s: this directory is not empty", path);
    closedir(d);
    return rc;
}

static int make_or_take(const char *path, bool *made, struct err *err) {
    *made = mkdir(path, 0777) == 0;
    if (*made) return OK;
    if (errno != EEXIST) return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return err_set(err, ERR_IO, "%s: exists and is no directory", path);
    return check_empty(path, err);
}

int out_dir_create(const char *path, struct out_dir **out, struct err *err) {
    struct out_dir *dir = calloc(1, sizeof *dir);
    if (!dir) return err_set(err, ERR_NOMEM, "%s: no memory", path);
    dir->fd = -1;
    dir->path = strdup(path);
    int rc = dir->path ? make_or_take(path, &dir->made, err)
                       : err_set(err, ERR_NOMEM, "%s: no memory", path);
    if (!rc && (dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        rc = err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    if (rc) {
        out_dir_destroy(dir);
        return rc;
    }
    *out = dir;
    return OK;
}

void out_dir_destroy(struct out_dir *dir) {
    if (!dir) return;
    for (size_t i = 0; i < dir->n_names; i++) {
        if (!dir->committed) unlinkat(dir->fd, dir->names[i], 0);
        free(dir->names[i]);
    }
    if (dir->fd >= 0) close(dir->fd);
    if (dir->made && !dir->committed) rmdir(dir->path);
    free(dir->names);
    free(dir->path);
    free(dir);
}

static int remember(struct out_dir *dir, const char *name, struct err *err) {
    if (dir->n_names == dir->names_cap) {
        size_t cap = dir->names_cap ? dir->names_cap * 2 : 16;
        char **names = realloc(dir->names, cap * sizeof *names);
        if (!names) return err_set(err, ERR_NOMEM, "%s: no memory", name);
        dir->names = names;
        dir->names_cap = cap;
    }
    char *copy = strdup(name);
    if (!copy) return err_set(err, ERR_NOMEM, "%s: no memory", name);
    dir->names[dir->n_names++] = copy;
    return OK;
}

int out_dir_open(struct out_dir *dir, const char *name, int *fd, struct err *err) {
    int f = openat(dir->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f < 0) return err_set(err, ERR_IO, "%s/%s: %s", dir->path, name, strerror(errno));
    int rc = remember(dir, name, err);
    if (rc) {
        unlinkat(dir->fd, name, 0);
        close(f);
        return rc;
    }
    *fd = f;
    return OK;
}

int out_dir_pwrite(int fd, const void *data, size_t n, uint64_t offset, const char *name,
                   struct err *err) {
    const char *from = data;
    while (n > 0) {
        ssize_t put = pwrite(fd, from, n < (1u << 30) ? n : (1u << 30), (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
        from += put;
        offset += (uint64_t)put;
        n -= (size_t)put;
    }
    return OK;
}

int out_dir_sync(int fd, const char *name, struct err *err) {
    /* Some file systems cannot sync a directory; that is theirs to know. */
    if (fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP) return OK;
    return err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
}

int out_dir_write(struct out_dir *dir, const char *name, const void *data, size_t n,
                  struct err *err) {
    int fd;
    int rc = out_dir_open(dir, name, &fd, err);
    if (rc) return rc;
    rc = out_dir_pwrite(fd, data, n, 0, name, err);
    if (!rc) rc = out_dir_sync(fd, name, err);
    if (close(fd) != 0 && !rc) rc = err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
    return rc;
}

/* The entry of a directory that we made lies in its parent. */
static void sync_parent(const struct out_dir *dir) {
    int parent = openat(dir->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) return;
    (void)fsync(parent);
    close(parent);
}

int out_dir_commit(struct out_dir *dir, const char *name, const void *data, size_t n,
                   struct err *err) {
    char part[256];
    snprintf(part, sizeof part, "%.200s.part", name);
    int rc = out_dir_write(dir, part, data, n, err);
    if (!rc) rc = out_dir_sync(dir->fd, dir->path, err);
    if (rc) return rc;
    if (renameat(dir->fd, part, dir->fd, name) != 0)
        return err_set(err, ERR_IO, "%s/%s: %s", dir->path, name, strerror(errno));
    dir->committed = true;
    (void)fsync(dir->fd);
    if (dir->made) sync_parent(dir);
    return OK;
}
