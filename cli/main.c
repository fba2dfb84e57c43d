/* attn: finds the command, parses its options, and turns its result into an exit code and at most
 * one line on stderr. Commands are listed in options.def; each has its own file. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "command.h"
#include "job.h"
#include "signals.h"
#include "terminal.h"
#include "value.h"

static int (*const run[COMMAND_COUNT])(const options *, kit_error *) = {
#define COMMAND(id, operands, summary, examples, notes) [COMMAND_##id] = command_##id,
#include "options.def"
};

static const char *const reserved[] = {
#define RESERVED(name) #name,
#include "options.def"
};

/* Prints the message. kit_fail has made it one line of printable text. */
static void complain(const char *command, const char *message)
{
    terminal_progress(NULL);
    fprintf(stderr, "attn%s%s: %s\n", command ? " " : "", command ? command : "", message);
}

/* If a standard descriptor is closed, the next file opened would get its number and receive the
 * program's messages. So a descriptor that fails on use is opened in its place. */
static void hold_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

/* Checks the stack limit, because a stack overflow ends the program without a message. The
 * program's own functions need 56 KiB; cairo needs 96 to draw. */
static int check_stack(kit_error *err)
{
    enum { LEAST = 128 /* KiB */ };
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur == RLIM_INFINITY ||
        stack.rlim_cur >= (rlim_t)LEAST << 10)
        return KIT_OK;
    return kit_fail(err, KIT_LIMIT,
                    "the stack is limited to %llu KiB; attn needs %d KiB: run `ulimit -s %d` first",
                    (unsigned long long)stack.rlim_cur >> 10, (int)LEAST, (int)LEAST);
}

/* Closes stdout, and reports if its buffered output cannot be written. */
static int finish_stdout(const char *command, int code, bool said)
{
    bool failed = ferror(stdout) != 0;
    errno = 0;
    if ((fclose(stdout) != 0 || failed) && !said) {
        char message[128];
        snprintf(message, sizeof message, "standard output: %s",
                 errno ? strerror(errno) : "could not be written");
        complain(command, message);
        return KIT_LIMIT;
    }
    return code;
}

static int unknown_command(const char *name, kit_error *err)
{
    const char *names[COMMAND_COUNT];
    char hint[64], list[128] = "";
    size_t count = 0;
    if (*name == '-')
        return kit_fail(err, KIT_USAGE,
                        "unknown option '%s'; options follow a command: attn COMMAND "
                        "[options]",
                        name);
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (strcmp(name, reserved[i]) == 0)
            return kit_fail(err, KIT_USAGE, "%s comes in a later release", name);
    for (command_id id = COMMAND_common + 1; id < COMMAND_COUNT; id++) {
        names[count++] = command_of(id)->name;
        strcat(strcat(list, count > 1 ? " " : ""), command_of(id)->name);
    }
    return kit_fail(err, KIT_USAGE, "no command '%s'%s (%s)", name,
                    value_hint(hint, sizeof hint, name, names, count), list);
}

static int dispatch(command_id command, int argc, char **argv, kit_error *err)
{
    options o;
    int code = options_parse(&o, command, argc, argv, err);
    if (!code && option_given(&o, OPT_common_help))
        help_command(command);
    else if (!code)
        code = run[command](&o, err);
    options_free(&o);
    return code;
}

/* *command: the command's name, once it is known to exist. */
static int answer(const char **command, int argc, char **argv, kit_error *err)
{
    const char *name = argc > 1 ? argv[1] : "--help";
    const int code = check_stack(err);
    if (code)
        return code;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        help_overview();
        return KIT_OK;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        printf("attn %s\n", attn_version());
        return KIT_OK;
    }
    if (command_find(name) == COMMAND_COUNT)
        return unknown_command(name, err);
    *command = name;
    return dispatch(command_find(name), argc - 1, argv + 1, err);
}

int main(int argc, char **argv)
{
    static const struct sigaction leave = {.sa_handler = signals_interrupted};
    kit_error err = {0};
    const char *command = NULL;
    hold_standard_files();
    setlocale(LC_CTYPE, ""); /* for UTF-8; the decimal point stays "." */
    sigaction(SIGINT, &leave, NULL);
    const bool job = job_wanted(argc, argv);
    int code = job ? job_begin(argc, argv, &err) : KIT_OK;
    if (code)
        command = argv[1];
    else
        code = answer(&command, argc, argv, &err);
    if (job)
        code = job_settle(code, &err);
    if (err.message[0])
        complain(command, err.message);
    code = finish_stdout(command, code, err.message[0] != 0);
    if (job)
        job_end(code);
    return code;
}
