#include "server/tls.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <stdlib.h>
#include <string.h>

enum { PEM_BYTES_MAX = 1 << 20 };

struct tls {
    char *cert, *key;
    size_t cert_len, key_len;
};

static int read_pem(const char *flag, const char *path, char **out, size_t *len, struct err *err) {
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, ERR_IO, "%s %s: %s", flag, path, strerror(errno));
    char *text = malloc(PEM_BYTES_MAX + 1);
    int rc = text ? OK : err_set(err, ERR_NOMEM, "%s: out of memory", flag);
    size_t n = text ? fread(text, 1, PEM_BYTES_MAX + 1, f) : 0;
    if (!rc && ferror(f)) rc = err_set(err, ERR_IO, "%s %s: cannot be read", flag, path);
    if (!rc && n > PEM_BYTES_MAX)
        rc = err_set(err, ERR_INVALID, "%s %s: larger than %d bytes", flag, path, PEM_BYTES_MAX);
    fclose(f);
    if (!rc) {
        text[n] = 0;
        *out = text;
        *len = n;
    } else {
        free(text);
    }
    return rc;
}

/* The library would only say that it cannot start. */
static int check_pair(const struct tls *tls, const struct options *options, struct err *err) {
    gnutls_certificate_credentials_t credentials;
    gnutls_datum_t cert = {(unsigned char *)tls->cert, (unsigned)tls->cert_len};
    gnutls_datum_t key = {(unsigned char *)tls->key, (unsigned)tls->key_len};
    if (gnutls_certificate_allocate_credentials(&credentials))
        return err_set(err, ERR_NOMEM, "--tls-cert: out of memory");
    int rc = gnutls_certificate_set_x509_key_mem(credentials, &cert, &key, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(credentials);
    if (rc < 0)
        return err_set(err, ERR_INVALID, "--tls-cert %s with --tls-key %s: %s", options->tls_cert,
                       options->tls_key, gnutls_strerror(rc));
    return OK;
}

int tls_load(const struct options *options, struct tls **out, struct err *err) {
    *out = NULL;
    if (!options->tls_cert) return OK;
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls) return err_set(err, ERR_NOMEM, "TLS: out of memory");
    int rc = read_pem("--tls-cert", options->tls_cert, &tls->cert, &tls->cert_len, err);
    if (!rc) rc = read_pem("--tls-key", options->tls_key, &tls->key, &tls->key_len, err);
    if (!rc) rc = check_pair(tls, options, err);
    if (rc)
        tls_destroy(tls);
    else
        *out = tls;
    return rc;
}

void tls_destroy(struct tls *tls) {
    if (!tls) return;
    if (tls->key) explicit_bzero(tls->key, tls->key_len);
    free(tls->key);
    free(tls->cert);
    free(tls);
}

const char *tls_cert(const struct tls *tls) {
    return tls->cert;
}

const char *tls_key(const struct tls *tls) {
    return tls->key;
}

static gnutls_session_t session_of(struct MHD_Connection *mhd) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    return info ? info->tls_session : NULL;
}

void tls_send(struct MHD_Connection *mhd, const char *data, size_t len) {
    gnutls_session_t session = session_of(mhd);
    while (session && len) {
        ssize_t n = gnutls_record_send(session, data, len);
        if (n == GNUTLS_E_INTERRUPTED) continue;
        if (n <= 0) return;
        data += n;
        len -= (size_t)n;
    }
}

size_t tls_unread(struct MHD_Connection *mhd) {
    gnutls_session_t session = session_of(mhd);
    return session ? gnutls_record_check_pending(session) : 0;
}
