/* cgroup.h: the control groups of this process, version 1 or 2, the own one and all above it: a limit
 * of any of them holds. */
#ifndef GERYON_CGROUP_H
#define GERYON_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* What to do with one group: dir is its directory, without a slash at the end. */
typedef void cgroup_visit_fn(void *arg, const char *dir, bool is_v2);

/* Visit the groups of a controller ("cpu", "memory"), the innermost first. root: "" for this
 * machine; tests put a tree of their own there, read as ROOT/proc and ROOT/sys. Directories need
 * not exist: inside a container the named path often does not, but the topmost group does. */
void cgroup_walk(const char *root, const char *controller, cgroup_visit_fn *visit, void *arg);

/* The whole number that file `name` in dir begins with. False for "max", a negative one, or when
 * there is no such file. */
bool cgroup_read(const char *dir, const char *name, uint64_t *out);

#endif
