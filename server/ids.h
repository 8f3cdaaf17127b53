/* ids.h: random names, from the system's generator. */
#ifndef GERYON_IDS_H
#define GERYON_IDS_H

#include <stddef.h>
#include <stdint.h>

/* "req_" and 32 hex digits. */
enum { IDS_REQUEST_BYTES = 37 };
void ids_request(char out[IDS_REQUEST_BYTES]);

/* prefix and 29 of [A-Za-z0-9], NUL-terminated; cap >= strlen(prefix) + 30. */
void ids_completion(const char *prefix, char *out, size_t cap);

uint64_t ids_seed(void);

#endif
