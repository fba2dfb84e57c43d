/* The job's adapter to MPI: start, end, abort. Everything else uses the table of attn_mpi.h. */
#include "attn_mpi_comm.h"

#include "ranks.h"

static bool begun;

int comm_begin(attn_comm *comm, kit_error *err)
{
    attn_error engine = {0};
    int provided;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return kit_fail(err, KIT_LIMIT, "--mpi: MPI cannot start");
    begun = true;
    if (provided < MPI_THREAD_FUNNELED)
        return kit_fail(err, KIT_LIMIT, "--mpi: this MPI was built for programs without threads");
    const attn_status status = attn_comm_open(MPI_COMM_WORLD, comm, &engine);
    if (status == ATTN_ERR_COMM)
        return kit_fail(err, KIT_USAGE, "--mpi: %s", engine.message);
    return kit_engine(status, &engine, err);
}

void comm_end(attn_comm *comm)
{
    if (!begun)
        return;
    MPI_Barrier(MPI_COMM_WORLD);
    attn_comm_close(comm);
    MPI_Finalize();
}

void comm_abort(int code)
{
    if (begun)
        MPI_Abort(MPI_COMM_WORLD, code);
}
