/* nodes.h: which memory nodes (NUMA) this process computes on, and spreading memory over them. Tasks
 * are dealt out to whoever is free, so no page has a thread of its own: interleaved, every core has
 * the same way to all of it and the nodes' bandwidth adds up. Where the system refuses, a page lies on
 * the node of the thread that touched it first; the pool's threads pack weights, so these are spread
 * nearly as well. */
#ifndef GERYON_KERNELS_CPU_NODES_H
#define GERYON_KERNELS_CPU_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NODES_MAX = 1024 }; /* as many as Linux can have */

/* A set of numbers below NODES_MAX, as the system takes it. */
struct nodes {
    unsigned long bits[NODES_MAX / (8 * sizeof(unsigned long))];
};

/* The numbers of a list as Linux writes it ("0-3,8"; an end of line or nothing is the empty set) that
 * are below NODES_MAX. False, and the set empty, for any other text. */
bool nodes_parse(const char *text, struct nodes *out);
uint32_t nodes_count(const struct nodes *nodes);

/* The nodes that are online, that this process may use memory of (Mems_allowed) and that have a
 * processor it may run on (Cpus_allowed): one without, such as slow memory behind a bus, is left out.
 * `root` stands in front of /sys and /proc. Empty where the system does not say. */
void nodes_find(const char *root, struct nodes *out);

/* Spread pages of this range, none of which was touched yet, over the nodes. False, with nothing
 * changed: the system refused (containers often do), or was told otherwise for the whole process, as
 * numactl does. That costs speed only. */
bool nodes_interleave(const struct nodes *nodes, void *at, size_t bytes);

#endif
