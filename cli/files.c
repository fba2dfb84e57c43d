/* The files of one command. From the opening of the first file to the renaming of the last one,
 * signals that would end the program are held back, so that no unfinished file is left. */
#include "files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "signals.h"

/* Returns the file's path: "a.npz" for "a.npz:name". */
static char *file_of(const char *spec) { return strndup(spec, kit_spec_path_length(spec)); }

/* Gets the status of the folder that holds `path`. */
static bool stat_folder(const char *path, struct stat *out)
{
    char *folder = strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash)
        slash[slash == folder] = 0;
    bool ok = folder && stat(slash ? folder : ".", out) == 0;
    free(folder);
    return ok;
}

static const char *name_in_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool files_is_stdout(const char *path) { return kit_output_descriptor(path) == STDOUT_FILENO; }

/* Whether two outputs are one descriptor, into which both would be written: - and /dev/stdout. */
static bool same_descriptor(const char *a, const char *b)
{
    return kit_output_descriptor(a) >= 0 && kit_output_descriptor(a) == kit_output_descriptor(b);
}

/* Whether two names are one regular file, or would create one file. Devices may be shared. */
static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    bool have_x = stat(a, &x) == 0, have_y = stat(b, &y) == 0;
    if (have_x && have_y)
        return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    return !have_x && !have_y && strcmp(name_in_folder(a), name_in_folder(b)) == 0 &&
           stat_folder(a, &x) && stat_folder(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Whether opening it may block until another process acts. */
static bool is_stream(const char *path)
{
    struct stat s;
    return strcmp(path, "-") == 0 ||
           (stat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode));
}

int files_add_input(files *f, const char *spec, kit_error *err)
{
    for (size_t i = 0; i < f->input_count && strcmp(spec, "-") == 0; i++)
        if (strcmp(f->input[i], "-") == 0)
            return kit_fail(err, KIT_USAGE,
                            "'-' is named for two inputs; standard input can hold one array only");
    const char **grown = realloc(f->input, (f->input_count + 1) * sizeof *grown);
    if (!grown)
        return kit_fail(err, KIT_LIMIT, "out of memory");
    f->input = grown;
    f->input[f->input_count++] = spec;
    return KIT_OK;
}

int files_add_output(files *f, const char *path, kit_error *err)
{
    bool standard = strcmp(path, "-") == 0;
    for (size_t i = 0; i < f->input_count && !standard; i++) {
        char *input = file_of(f->input[i]);
        bool same = !input || same_file(input, path);
        free(input);
        if (same)
            return kit_fail(err, KIT_USAGE,
                            "%s: is an input file; choose another name for the output", path);
    }
    for (size_t i = 0; i < f->output_count; i++)
        if (same_descriptor(f->output[i].path, path) ||
            (!standard && same_file(f->output[i].path, path)))
            return kit_fail(err, KIT_USAGE, "%s: is named for two outputs; choose two names", path);
    struct files_output *grown = realloc(f->output, (f->output_count + 1) * sizeof *grown);
    if (!grown)
        return kit_fail(err, KIT_LIMIT, "out of memory");
    f->output = grown;
    f->output[f->output_count++] = (struct files_output){path, NULL};
    return KIT_OK;
}

bool files_to_stdout(const files *f)
{
    for (size_t i = 0; i < f->output_count; i++)
        if (files_is_stdout(f->output[i].path))
            return true;
    return false;
}

enum { SIGNALS = 3 };
static const int held[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

static void hold_signals(bool hold)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < SIGNALS; i++)
        sigaddset(&set, held[i]);
    sigprocmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

/* Whether the program ends when this signal is delivered. It does not if the signal is ignored, as
 * under nohup, or if a command catches it to stop later. */
static bool ends_program(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 &&
           (now.sa_handler == SIG_DFL || now.sa_handler == signals_interrupted);
}

/* Returns the number of a signal that is held back and will end the program; 0: there is none. */
static int signal_waits(void)
{
    sigset_t set;
    if (sigpending(&set) != 0)
        return 0;
    for (int i = 0; i < SIGNALS; i++)
        if (sigismember(&set, held[i]) == 1 && ends_program(held[i]))
            return held[i];
    return 0;
}

int files_probe(const files *f, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < f->output_count && !code; i++) {
        kit_output *probe = NULL;
        if (is_stream(f->output[i].path))
            continue; /* opening and closing it would signal its end to the reader */
        hold_signals(true);
        code = kit_output_open(&probe, f->output[i].path, err);
        if (!code)
            kit_output_abort(probe);
        hold_signals(false);
    }
    return code;
}

int files_open(files *f, kit_error *err)
{
    int code = KIT_OK;
    f->holding = true; /* but not while an open may block, so that Ctrl-C works */
    for (size_t i = 0; i < f->output_count; i++)
        f->holding = f->holding && !is_stream(f->output[i].path);
    if (f->holding)
        hold_signals(true);
    for (size_t i = 0; i < f->output_count && !code; i++)
        code = kit_output_open(&f->output[i].file, f->output[i].path, err);
    return code;
}

int files_commit(files *f, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < f->output_count && !code; i++) {
        const int number = signal_waits();
        /* files_free delivers it; the code is for the case that the program survives that. */
        if (number)
            return kit_fail(err, 128 + number, "%s: not written, because of signal %d",
                            f->output[i].path, number);
        code = kit_output_commit(f->output[i].file, err);
        f->output[i].file = NULL;
    }
    return code;
}

void files_free(files *f)
{
    for (size_t i = 0; i < f->output_count; i++)
        kit_output_abort(f->output[i].file);
    if (f->holding)
        hold_signals(false); /* a signal that was held back ends the program here */
    free(f->input);
    free(f->output);
    memset(f, 0, sizeof *f);
}
