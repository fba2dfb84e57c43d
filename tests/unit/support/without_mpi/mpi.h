/* What attn_mpi_comm.h uses of MPI, declared for a test that defines it without an MPI. */
#ifndef WITHOUT_MPI_MPI_H
#define WITHOUT_MPI_MPI_H

typedef int MPI_Comm, MPI_Request, MPI_Datatype, MPI_Errhandler;

enum { MPI_SUCCESS = 0, MPI_BYTE = 1, MPI_COMM_WORLD = 2, MPI_ERRORS_RETURN = 3 };
#define MPI_STATUS_IGNORE NULL
typedef struct MPI_Status {
    int bytes;
} MPI_Status;

int MPI_Isend(const void *bytes, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request);
int MPI_Irecv(void *bytes, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request);
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status);
int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count);
int MPI_Cancel(MPI_Request *request);
int MPI_Request_free(MPI_Request *request);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy);
int MPI_Comm_free(MPI_Comm *comm);
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler);

#endif
