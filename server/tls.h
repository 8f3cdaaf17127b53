/* tls.h: certificate and key of the HTTPS port, and the few things done on the library's TLS
 * sessions past the library: answers by hand, and looking for bytes that it has not taken. */
#ifndef GERYON_TLS_H
#define GERYON_TLS_H

#include <microhttpd.h>

#include "server/options.h"

struct tls; /* opaque: tls.c */

/* Read and check --tls-cert and --tls-key: PEM, at most 1 MiB each, belonging together. *out is
 * NULL where neither is given (one alone was refused before). ERR_INVALID where they do not fit,
 * ERR_IO where a file cannot be read. */
int tls_load(const struct options *options, struct tls **out, struct err *err);
void tls_destroy(struct tls *tls); /* NULL is fine; wipes the key */

/* PEM texts, alive as long as tls. */
const char *tls_cert(const struct tls *tls);
const char *tls_key(const struct tls *tls);

/* Encrypt and send on a connection's session, without waiting; what does not fit is lost. */
void tls_send(struct MHD_Connection *mhd, const char *data, size_t len);
/* Decrypted bytes that wait in the session. */
size_t tls_unread(struct MHD_Connection *mhd);

#endif
