/* cuda_peek.h: the memory of a CUDA device, for tests that a table alone would not serve: what
 * stale pages hold, what a draft left alone, logits that are broken by hand. Of the tests' own thread;
 * work that was queued is waited for, but stages that the device has put off are not run: read a
 * logit row first. Absent (NULL) in programs without the CUDA backend. */
#ifndef GERYON_CUDA_PEEK_H
#define GERYON_CUDA_PEEK_H

#include <stddef.h>
#include <stdint.h>

struct device;

enum cuda_region {
    CUDA_KV,     /* all pages: page p at p * page_bytes */
    CUDA_LOGITS, /* float [max_logit_rows][vocab], the last forward's */
    CUDA_VIEWS,  /* MSAR: scratch, then the rings of all slots, then snapshots */
    CUDA_Z,
    CUDA_RINGS,
    CUDA_SNAPSHOTS,
    CUDA_REGIONS
};

/* Bytes of a region; 0: the model has none. */
__attribute__((weak)) size_t cuda_peek_bytes(const struct device *dev, enum cuda_region region);
/* Bytes at .. at + n - 1 of a region set to 0xff (NaN in every float type), to host memory, or from it. */
__attribute__((weak)) void cuda_peek_poison(struct device *dev, enum cuda_region region, size_t at,
                                            size_t n);
__attribute__((weak)) void cuda_peek_read(const struct device *dev, enum cuda_region region,
                                          size_t at, size_t n, void *out);
__attribute__((weak)) void cuda_peek_write(struct device *dev, enum cuda_region region, size_t at,
                                           size_t n, const void *bytes);
/* How many things of the device's are held: allocations, pinned buffers, streams, events, graphs. */
__attribute__((weak)) size_t cuda_peek_in_use(void);

#endif
