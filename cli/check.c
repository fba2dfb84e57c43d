/* attn check: runs the checks of check/ on this machine; prints and compares hashes of
 * results. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../check/check.h"
#include "../check/check_bits.h"
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

/* Runs attn check --bits [--record FILE]. */
static int bits(const options *o, kit_error *err)
{
    const char *file = option_text(o, OPT_check_record);
    check_bits_options check = {.isa = option_text(o, OPT_check_isa), .out = stdout};
    char message[200];
    if (option_given(o, OPT_check_op) || option_given(o, OPT_check_seed) ||
        option_given(o, OPT_check_seconds) || option_given(o, OPT_check_cases))
        return kit_fail(err, KIT_USAGE,
                        "--bits runs fixed problems; leave out --op, --seed, --cases and "
                        "--seconds");
    if (file && !(check.record = fopen(file, "r")))
        return kit_fail(err, KIT_BAD_FILE, "%s: %s", file, strerror(errno));
    const int differ = check_bits(&check, message, sizeof message);
    if (check.record)
        fclose(check.record);
    if (differ < 0)
        return kit_fail(err, file ? KIT_BAD_FILE : KIT_LIMIT, "%s%s%s", file ? file : "",
                        file ? ": " : "", message);
    if (differ && !file)
        return kit_fail(err, KIT_CHECK_FAILED, "--bits: %s", message);
    return differ ? KIT_CHECK_FAILED : KIT_OK;
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
        return kit_fail(err, KIT_USAGE,
                        "unexpected argument '%s'; an operation is given as --op NAME",
                        o->operand[0]);
    if ((code = engine_check_isa(check.isa, err)) || (code = check_op(check.op, err)))
        return code;
    if (option_given(o, OPT_check_bits))
        return bits(o, err);
    if (option_given(o, OPT_check_record))
        return kit_fail(err, KIT_USAGE, "--record has no effect without --bits; add --bits");
    if (option_given(o, OPT_check_cases)) {
        if (option_given(o, OPT_check_seconds))
            return kit_fail(err, KIT_USAGE,
                            "--cases and --seconds exclude each other; leave one out");
        check.cases = (uint64_t)option_integer(o, OPT_check_cases);
    }
    int failed = check_run(&check);
    if (failed < 0)
        return KIT_USAGE;
    return failed ? KIT_CHECK_FAILED : KIT_OK;
}
