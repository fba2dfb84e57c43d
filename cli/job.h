/* --mpi of attn run and attn bench: one call, computed by all processes that mpirun has started.
 * The code is in mpi/, which is compiled with -DATTN_MPI=ON; without_mpi.c takes its place
 * otherwise. main.c calls job_begin before, and job_settle and job_end after the command. */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include <stdlib.h>
#include <string.h>

#include "options.h"

/* Do the arguments ask for a job? They are not parsed yet. */
static inline bool job_wanted(int argc, char **argv)
{
    bool wanted = false;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0 || strncmp(argv[i], "--h", 3) == 0)
            return false; /* --help */
        wanted = wanted || strcmp(argv[i], "--mpi") == 0 || strcmp(argv[i], "--mp") == 0;
    }
    return wanted && (strcmp(argv[1], "run") == 0 || strcmp(argv[1], "bench") == 0);
}

/* The rank that the launcher has given to this process; 0: the first one, or no launcher that is
 * known. It serves where MPI itself cannot tell the rank. */
static inline int job_launched_rank(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value)
            return atoi(value);
    }
    return 0;
}

int job_begin(int argc, char **argv, kit_error *err);
/* All ranks end with the code that this returns. One of them keeps its message, for the user. */
int job_settle(int code, kit_error *err);
void job_end(int code); /* may end the process */

/* The command attn run, with --mpi. */
int run_over_ranks(const options *o, kit_error *err);

#endif
