/* checkpoint_internal.h: the struct behind checkpoint.h, shared by checkpoint.c (the view) and
 * checkpoint_open.c (which fills it from files). */
#ifndef GERYON_CHECKPOINT_INTERNAL_H
#define GERYON_CHECKPOINT_INTERNAL_H

#include "engine/load/checkpoint.h"
#include "engine/load/gguf.h"
#include "engine/load/safetensors.h"

enum { CHECKPOINT_SHARDS_MAX = 1000 };

/* How the numbers of an entry lie in its file. */
enum storage {
    STORAGE_PLAIN,
    STORAGE_I8, /* int8 [out, in] and f16 scales [out, in/32] elsewhere: read as Q8_0 */
    STORAGE_U4, /* nibbles [out, in/2], element 2i low, f16 scales and minima: read as Q4_1 */
};

struct place {
    uint32_t file;   /* index into files */
    uint64_t offset; /* from the start of the file */
};

struct entry {
    struct checkpoint_tensor pub; /* name and source are owned */
    enum storage storage;
    struct place data, scale, min;
    uint32_t permuted_rows; /* rows of a head whose order the GGUF converter changed; 0: none */
};

struct source_file {
    char *path;       /* owned */
    const char *name; /* its last part */
    int fd;
    uint64_t size;
};

struct checkpoint {
    char *dir; /* directory of config.json and its neighbours; NULL for GGUF */
    struct source_file *files;
    size_t n_files, files_cap;
    struct entry *entries; /* ascending by name once open */
    size_t n_entries, entries_cap;
    uint8_t *gguf_bytes; /* the header; gguf points into it */
    struct gguf *gguf;   /* NULL for safetensors */
};

/* Take a file into the list; its index into *out. */
int checkpoint_add_file(struct checkpoint *ck, const char *path, uint32_t *out, struct err *err);
/* A zeroed entry with copies of both names. */
int checkpoint_add_entry(struct checkpoint *ck, const char *name, const char *source,
                         size_t source_len, struct entry **out, struct err *err);

#endif
