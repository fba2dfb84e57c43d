/* Operations that are run once to count their calls to the system, or their allocations, and then
 * once for each of them and each way to fail. What can be got over (an interruption, a short count)
 * must be; everything else must be an error that leaves no descriptor, no memory and no half file
 * behind. For programs that are linked as test_faults.c says. */
#ifndef FAULT_OPERATION_H
#define FAULT_OPERATION_H

#include "support/io_testing.h"

#include "support/failing_system.h"

/* Runs once, under the fault that is set; returns the code, and what it made is as expected if it
 * says KIT_OK. `prepare` is not under the fault. */
typedef struct operation {
    const char *name;
    void (*prepare)(void);
    int (*run)(kit_error *err);
    void (*check)(int code); /* outside of the fault; may be NULL */
    bool makes_file;         /* that was not there before */
} operation;

/* Runs an operation with a fault, checks what holds always, and returns its code. */
static int run(const operation *o, int kind, long at, int times, bool memory, kit_error *err)
{
    o->prepare();
    const size_t files = count_here(), descriptors = count_descriptors();
    const long blocks = live;
    memset(&fault, 0, sizeof fault);
    fault.kind = kind;
    fault.at = at;
    fault.times = times;
    fault.memory = memory;
    memset(story, 0, sizeof story);
    *err = (kit_error){0};
    armed = true;
    const int code = o->run(err);
    armed = false;
    if (code < 0 || code != err->code || !err->message[0] != !code)
        fail_msg("%s: fault %d at call %ld: code %d, «%s»", o->name, kind, at, code, err->message);
    if (live != blocks || count_descriptors() != descriptors)
        fail_msg("%s: fault %d at call %ld: %ld blocks, %ld descriptors left", o->name, kind, at,
                 live - blocks, (long)(count_descriptors() - descriptors));
    const size_t now = count_here(); /* the old file, or a new one, but no stray */
    if (now != files && !(now == files + 1 && o->makes_file))
        fail_msg("%s: fault %d at call %ld: a stray file", o->name, kind, at);
    if (o->check)
        o->check(code);
    return code;
}

/* How many calls there are to fail, of the system or of the allocator: a run without a fault. */
static long count_calls(const operation *o, bool memory)
{
    kit_error err;
    assert_int_equal(run(o, 0, 0, 0, memory, &err), KIT_OK);
    assert_in_range(fault.calls, 2, 5000);
    return fault.calls;
}

static void fail_each_call_once(const operation *o)
{
    static const int kinds[] = {EIO, ENOSPC, EDQUOT, EINTR, SHORT};
    kit_error err;
    const long calls = count_calls(o, false);
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (long at = 1; at <= calls; at++) {
            const int code = run(o, kinds[k], at, 1, false, &err);
            const bool passes = kinds[k] == EINTR || kinds[k] == SHORT || !fault.hit;
            if (passes ? code != KIT_OK : code == KIT_OK && !fault.hit_close)
                fail_msg("%s: fault %d at call %ld: code %d, «%s»", o->name, kinds[k], at, code,
                         err.message);
        }
}

/* Interrupted again and again, and all transfers short from some call on. */
static void fail_each_call_for_good(const operation *o)
{
    kit_error err;
    const long calls = count_calls(o, false);
    for (long at = 1; at <= calls; at++) {
        assert_int_equal(run(o, EINTR, at, 20, false, &err), KIT_OK);
        assert_int_equal(run(o, SHORT, at, 200, false, &err), KIT_OK);
        run(o, EIO, at, 1 << 20, false, &err);
    }
}

/* Allocation `at` fails, and if `sticky` all that follow. The message is about memory, in the words
 * of the kit or of libzip. */
static void expect_no_memory(const operation *o, long at, bool sticky, kit_error *err)
{
    if (run(o, ENOMEM, at, sticky ? 1 << 20 : 1, true, err) != KIT_LIMIT ||
        (!strstr(err->message, "memory") && !strstr(err->message, "Malloc failure")))
        fail_msg("%s: allocation %ld%s: code %d, «%s»", o->name, at, sticky ? " and on" : "",
                 err->code, err->message);
}

/* Alone, and with all that follow. */
static void fail_each_allocation(const operation *o)
{
    kit_error err;
    const long calls = count_calls(o, true);
    for (long at = 1; at <= calls; at++)
        for (int sticky = 0; sticky < 2; sticky++)
            expect_no_memory(o, at, sticky == 1, &err);
}

/* One of these three, of each operation. */
static void for_each(const operation *o, size_t count, void (*each)(const operation *o))
{
    for (size_t i = 0; i < count; i++)
        each(&o[i]);
}

#endif
