#include "server/cmd.h"
#include "server/log.h"
#include "server/server.h"

int cmd_serve(const struct options *options) {
    log_init(options->log_level, options->log_format);
    return server_run(options);
}
