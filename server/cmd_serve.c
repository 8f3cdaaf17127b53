#include "server/cmd.h"
#include "server/cors.h"
#include "server/keys.h"
#include "server/log.h"
#include "server/server.h"

/* What one row of the flag table cannot see. */
static int check(const struct options *options, struct err *err) {
    bool has_cert = options->tls_cert != NULL, has_key = options->tls_key != NULL;
    if (has_cert != has_key)
        return err_set(err, ERR_INVALID, "%s needs %s as well",
                       has_cert ? "--tls-cert" : "--tls-key",
                       has_cert ? "--tls-key" : "--tls-cert");
    int rc = cors_check(&options->cors_origins, err);
    return rc ? rc : keys_check_open_paths(&options->open_paths, err);
}

int cmd_serve(const struct options *options) {
    struct err err = {0};
    if (check(options, &err)) return cmd_usage(&err);
    log_init(options->log_level, options->log_format);
    return server_run(options);
}
