/* In a build without MPI: --mpi is an error. */
#include <unistd.h>

#include "bench.h"
#include "job.h"

int job_begin(int argc, char **argv, kit_error *err)
{
    (void)argc, (void)argv;
    return kit_fail(err, KIT_USAGE,
                    "--mpi: attn was built without MPI; build it with -DATTN_MPI=ON "
                    "(docs/SCALE.md)");
}

/* All processes of a job have the same error. The first one prints it; the others wait a moment,
 * because the launcher may end the job as soon as one has ended. */
int job_settle(int code, kit_error *err)
{
    if (job_launched_rank() > 0) {
        sleep(1);
        err->message[0] = 0;
    }
    return code;
}

void job_end(int code) { (void)code; }

int bench_over_ranks(const bench *b, const options *o, kit_error *err)
{
    (void)b, (void)o;
    return job_begin(0, NULL, err);
}

int run_over_ranks(const options *o, kit_error *err)
{
    (void)o;
    return job_begin(0, NULL, err);
}
