#include "kernels/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void (*assert_fail_hook)(const char *expr, const char *file, int line);

int err_set(struct err *err, int code, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof err->msg) { /* never leave half a UTF-8 character at the cut */
        size_t end = sizeof err->msg - 1;
        size_t lead = end;
        while (lead > 0 && ((unsigned char)err->msg[lead - 1] & 0xC0) == 0x80)
            lead--;
        if (lead > 0) {
            unsigned char c = (unsigned char)err->msg[lead - 1];
            size_t want = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
            if (end - (lead - 1) < want) err->msg[lead - 1] = '\0';
        }
    }
    err->code = code;
    return code;
}

_Noreturn void assert_fail(const char *expr, const char *file, int line) {
    if (assert_fail_hook) assert_fail_hook(expr, file, line);
    fprintf(stderr, "level=error event=assertion_failed expr=\"%s\" at=%s:%d\n", expr, file, line);
    abort();
}
