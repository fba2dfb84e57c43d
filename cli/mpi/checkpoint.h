/* attn run --mpi --checkpoint DIR --resume DIR: the files of a checkpoint. */
#ifndef CLI_MPI_CHECKPOINT_H
#define CLI_MPI_CHECKPOINT_H

#include "attn_mpi.h"

#include "../files.h"
#include "../options.h"

typedef struct checkpoint {
    attn_mpi_checkpoint functions; /* for attn_mpi_options */
    const char *folder, *resume;   /* NULL: not requested */
    char *path, *temporary;        /* the checkpoint in `folder`, and where it is written first */
    char *saved;                   /* the checkpoint in `resume` */
    int rank, fd, from;            /* fd: of the temporary file; from: of `saved`; -1: not open */
    kit_error err;                 /* of the first function that failed on this rank */
} checkpoint;

/* Checks the options, and that no file is named twice. Rank 0 checks that the checkpoint can be
 * written. Opens the checkpoint to resume. On failure, too, only checkpoint_free follows. */
int checkpoint_prepare(checkpoint *c, const options *o, const files *f, int rank, kit_error *err);
/* For attn_mpi_options; NULL: no checkpoints. */
const attn_mpi_checkpoint *checkpoint_functions(const checkpoint *c);
void checkpoint_free(checkpoint *c);

#endif
