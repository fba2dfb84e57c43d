/* attn_mpi_comm.h over functions of MPI that this test defines: no memory, and calls that fail. */
#include "support/test.h"

static bool no_memory;

static void *scarce(size_t n) { return no_memory ? NULL : malloc(n); }

#define malloc scarce
#include "attn_mpi_comm.h"
#undef malloc

static int started; /* messages under way */
static bool refuses;

static int start(MPI_Request *request)
{
    if (refuses)
        return MPI_SUCCESS + 1;
    started++;
    *request = 1;
    return MPI_SUCCESS;
}

int MPI_Isend(const void *bytes, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    (void)bytes, (void)n, (void)type, (void)to, (void)tag, (void)comm;
    return start(request);
}

int MPI_Irecv(void *bytes, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    (void)bytes, (void)n, (void)type, (void)from, (void)tag, (void)comm;
    return start(request);
}

static int arrived; /* bytes of the message that is received */

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    (void)request;
    *done = 1;
    if (status)
        status->bytes = arrived;
    started--;
    return MPI_SUCCESS;
}

int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count)
{
    (void)type;
    *count = status->bytes;
    return MPI_SUCCESS;
}

int MPI_Cancel(MPI_Request *request) { return *request ? MPI_SUCCESS : MPI_SUCCESS + 1; }
int MPI_Request_free(MPI_Request *request) { return MPI_Cancel(request); }
int MPI_Comm_rank(MPI_Comm comm, int *rank) { return *rank = 0, (void)comm, MPI_SUCCESS; }
int MPI_Comm_size(MPI_Comm comm, int *size) { return *size = 1, (void)comm, MPI_SUCCESS; }
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy) { return *copy = comm, MPI_SUCCESS; }
int MPI_Comm_free(MPI_Comm *comm) { return *comm = 0, MPI_SUCCESS; }

int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler)
{
    (void)comm;
    return handler == MPI_ERRORS_RETURN ? MPI_SUCCESS : MPI_SUCCESS + 1;
}

/* A message that cannot be kept must not start, because nobody would wait for it. */
static void test_no_message_is_forgotten(void **state)
{
    (void)state;
    attn_comm comm;
    char bytes[8] = {0};
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("PMI_SIZE");
    assert_int_equal(attn_comm_open(MPI_COMM_WORLD, &comm, NULL), ATTN_OK);
    arrived = 8;
    for (int which = 0; which < 6; which++) { /* in good order, no memory, refused by MPI */
        void *request = &comm;
        no_memory = which / 2 == 1;
        refuses = which / 2 == 2;
        describe_case("%s, %s", which % 2 ? "receive" : "send",
                      no_memory ? "no memory"
                      : refuses ? "refused"
                                : "in good order");
        const int failed = which % 2 ? comm.receive(comm.user, 0, 0, bytes, 8, &request)
                                     : comm.send(comm.user, 0, 0, bytes, 8, &request);
        assert_int_equal(failed != 0, which >= 2);
        assert_int_equal(started, which < 2);
        if (which < 2)
            assert_int_equal(comm.test(comm.user, &request), 1);
        assert_null(request);
        assert_int_equal(started, 0);
    }
    no_memory = refuses = false;
    attn_comm_close(&comm);
}

/* MPI completes a message that is shorter than the receiver expects. */
static void test_short_messages_fail(void **state)
{
    (void)state;
    attn_comm comm;
    char bytes[8] = {0};
    void *request = NULL;
    assert_int_equal(attn_comm_open(MPI_COMM_WORLD, &comm, NULL), ATTN_OK);
    for (arrived = 0; arrived <= 8; arrived++) {
        assert_int_equal(comm.receive(comm.user, 0, 0, bytes, 8, &request), 0);
        assert_int_equal(comm.test(comm.user, &request), arrived == 8 ? 1 : -1);
        assert_null(request);
    }
    attn_comm_close(&comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_message_is_forgotten),
                                       cmocka_unit_test(test_short_messages_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
