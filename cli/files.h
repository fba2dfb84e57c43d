/* The files of one command. An output is never also an input, and either all outputs appear or
 * none. */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include "../kit/kit.h"

typedef struct files {
    const char **input;
    size_t input_count;
    struct files_output {
        const char *path;
        kit_output *file;
    } * output;
    size_t output_count;
    bool holding; /* signals are held back while unfinished files exist */
} files;

/* Each refuses conflicts: reading standard input twice, an output that is also an input, two
 * outputs in one file. */
int files_add_input(files *f, const char *spec, kit_error *err);
int files_add_output(files *f, const char *path, kit_error *err);
bool files_is_stdout(const char *path); /* "-" or another name of it, such as /dev/stdout */
bool files_to_stdout(const files *f);   /* one of the outputs is it */

int files_probe(const files *f, kit_error *err); /* before the work: can each output be created? */
int files_open(files *f, kit_error *err);        /* afterwards write to f->output[i].file */
/* Renames them, one after the other. 128 + the number of a signal that is about to end the program:
 * the rest is not there. */
int files_commit(files *f, kit_error *err);
void files_free(files *f); /* removes outputs that are not committed */

#endif
