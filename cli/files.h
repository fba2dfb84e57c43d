/* The files of one command: what it reads is never what it writes, and all of its outputs appear,
 * or none does. */
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
    bool holding; /* signals, while unfinished files lie about */
} files;

/* Each refuses what cannot be: standard input read twice, an output that is an input, two outputs
 * in one file. */
int files_add_input(files *f, const char *spec, kit_error *err);
int files_add_output(files *f, const char *path, kit_error *err);
bool files_to_stdout(const files *f); /* one of the outputs is "-" */

int files_probe(const files *f, kit_error *err); /* can each output be made? Before the work. */
int files_open(files *f, kit_error *err);        /* then write to f->output[i].file */
int files_commit(files *f, kit_error *err);
void files_free(files *f); /* removes what is not committed */

#endif
