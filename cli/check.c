/* attn check: the parity harness of check/ on this machine. */
#include <stdio.h>

#include "../check/check.h"
#include "command.h"
#include "value.h"

static int check_op(const char *op, kit_error *err)
{
    enum { LIMIT = 64 };
    const char *names[LIMIT];
    char hint[64];
    size_t count = 0;
    if (!op)
        return KIT_OK;
    for (; count < LIMIT && check_op_name((int)count); count++) {
        names[count] = check_op_name((int)count);
        if (value_find(names[count], op) == 0)
            return KIT_OK;
    }
    kit_fail(err, KIT_USAGE, "--op: no operation '%s'%s (", op,
             value_hint(hint, sizeof hint, op, names, count));
    for (size_t i = 0, used; i < count; i++) {
        for (used = 0; err->message[used];)
            used++;
        snprintf(err->message + used, sizeof err->message - used, "%s%s", names[i],
                 i + 1 < count ? " " : ")");
    }
    return KIT_USAGE;
}

int command_check(const options *o, kit_error *err)
{
    check_options check = {.seconds = option_real(o, OPT_check_seconds),
                           .isa = option_text(o, OPT_check_isa),
                           .op = option_text(o, OPT_check_op),
                           .seed = option_seed(o, OPT_check_seed),
                           .out = stdout};
    int code = KIT_OK;
    if (o->operand_count)
        return kit_fail(err, KIT_USAGE, "'%s' is no option; one operation is --op NAME",
                        o->operand[0]);
    if ((code = engine_check_isa(check.isa, err)) || (code = check_op(check.op, err)))
        return code;
    int failed = check_run(&check);
    if (failed < 0)
        return KIT_USAGE;
    return failed ? KIT_CHECK_FAILED : KIT_OK;
}
