#include "server/cmd.h"

int cmd_inspect(const struct options *options) {
    struct err err = {0};
    struct model_options model_options = cmd_model_options(options);
    int rc = model_inspect(&model_options, stdout, &err);
    if (!rc && (fflush(stdout) || ferror(stdout)))
        rc = err_set(&err, ERR_IO, "cannot write to stdout");
    return rc ? cmd_fail(&err) : 0;
}
