/* The processes of a job: they agree on every error, so that all end with one code and one line,
 * and none waits for a rank that does not come. */
#include "ranks.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "../value.h"

enum { TAG = 0, LEAST_START = 60 /* seconds */, TURN = 4 /* seconds */ };

static attn_comm comm; /* size 0: MPI did not start */
static double deadline = 600;
static bool agreed; /* all ranks have the error of this one */
static bool lost;   /* a rank is missing: nothing can be sent any more */
static bool (*stop_if)(void);

const attn_comm *ranks_comm(void) { return &comm; }
void ranks_set_deadline(double seconds) { deadline = seconds; }
double ranks_deadline(void) { return deadline; }
void ranks_stop_if(bool (*stop)(void)) { stop_if = stop; }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------------------ start and end
 *
 * MPI itself waits for ever for a rank that does not start or end. */

static const char *command;
static char late[128];
static unsigned late_length;

static void too_late(int signal)
{
    (void)signal;
    if (comm.size ? comm.rank > 0 : job_launched_rank() > 0)
        sleep(1); /* the first one that ends prints the line, and the launcher ends the others */
    (void)!write(STDERR_FILENO, late, late_length);
    _exit(KIT_LIMIT);
}

static void watch(const char *what)
{
    const unsigned seconds = (unsigned)ceil(fmin(fmax(deadline, LEAST_START), 1e6));
    late_length =
        (unsigned)snprintf(late, sizeof late, "attn %s: --mpi: a rank did not %s MPI within %u s\n",
                           command, what, seconds);
    signal(SIGALRM, too_late);
    alarm(seconds);
}

/* The value of --deadline, before the options are parsed; they refuse a bad one later. */
static void read_deadline(int argc, char **argv)
{
    for (int i = 2; i + 1 < argc; i++) {
        double seconds;
        if (strcmp(argv[i], "--deadline") == 0 && value_real(argv[i + 1], &seconds) && seconds > 0)
            deadline = seconds;
    }
}

int job_begin(int argc, char **argv, kit_error *err)
{
    command = argv[1]; /* "run" or "bench" */
    read_deadline(argc, argv);
    watch("start");
    const int code = comm_begin(&comm, err);
    alarm(0);
    return code;
}

static void wait_seconds(int seconds) { nanosleep(&(struct timespec){.tv_sec = seconds}, NULL); }

/* If a rank is missing, it may be rank 0. So rank r waits r times TURN seconds. The first one that
 * runs prints, and ends the whole job a second later; on a busy machine, the launcher may need
 * another second or two to end the others. */
int job_settle(int code, kit_error *err)
{
    if (code && comm.size > 0 && !agreed && !lost)
        code = ranks_agree(code, err);
    if (lost)
        wait_seconds(TURN * comm.rank);
    else if (comm.size > 0 ? comm.rank > 0 : job_launched_rank() > 0) {
        if (comm.size == 0)
            wait_seconds(1);
        err->message[0] = 0;
    }
    return code;
}

void job_end(int code)
{
    if (lost) {
        wait_seconds(1); /* MPICH's launcher drops a line that it has not read before MPI_Abort */
        comm_abort(code);
        _exit(code);
    }
    watch("end");
    comm_end(&comm);
    alarm(0);
}

/* ------------------------------------------------------------------------------------ exchange */

/* A message to and from each other rank. */
typedef struct exchange {
    void **receives, **sends; /* [size] */
    char *mine;
} exchange;

/* Allocates everything. The memory stays allocated after a failure, because MPI may still use it.
 */
static bool new_exchange(exchange *x, const void *mine, size_t n)
{
    x->receives = calloc(2 * (size_t)comm.size, sizeof *x->receives);
    x->mine = malloc(n);
    if (!x->receives || !x->mine)
        return false;
    x->sends = x->receives + comm.size;
    memcpy(x->mine, mine, n);
    return true;
}

static int lose(exchange *x, kit_error *err, const char *message)
{
    for (int r = 0; r < 2 * comm.size && x->receives; r++)
        if (x->receives[r])
            comm.cancel(comm.user, &x->receives[r]);
    lost = true;
    return kit_fail(err, KIT_LIMIT, "--mpi: %s", message);
}

static int lose_late(exchange *x, kit_error *err)
{
    char names[200] = "", text[320];
    size_t used = 0;
    int count = 0;
    void **missing = x->sends;
    for (int r = 0; r < comm.size; r++)
        missing = x->receives[r] ? x->receives : missing;
    for (int r = 0; r < comm.size; r++)
        if (missing[r] && ++count && used < sizeof names - 32)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%d",
                                     count > 1 ? ", " : "", r);
        else if (missing[r])
            strcpy(names + used, ", ...");
    snprintf(text, sizeof text, "rank%s %s %s nothing within %g s (--deadline)",
             count > 1 ? "s" : "", names, missing == x->receives ? "sent" : "took", deadline);
    return lose(x, err, text);
}

static int start(exchange *x, size_t n, char *all, kit_error *err)
{
    for (int r = 0; r < comm.size; r++)
        if (r != comm.rank &&
            comm.receive(comm.user, r, TAG, all + (size_t)r * n, n, &x->receives[r]))
            return lose(x, err, "MPI cannot receive a message");
    for (int r = 0; r < comm.size; r++)
        if (r != comm.rank && comm.send(comm.user, r, TAG, x->mine, n, &x->sends[r]))
            return lose(x, err, "MPI cannot send a message");
    return KIT_OK;
}

/* Tests all messages; returns how many are under way, or -1 if one failed. */
static int poll_all(exchange *x)
{
    int left = 0;
    for (int r = 0; r < 2 * comm.size; r++) {
        const int done = x->receives[r] ? comm.test(comm.user, &x->receives[r]) : 1;
        if (done < 0)
            return -1;
        left += done == 0;
    }
    return left;
}

static int wait_all(exchange *x, kit_error *err)
{
    double until = now() + deadline;
    int left, before = -1;
    for (long round = 0; (left = poll_all(x)) != 0; round++) {
        if (left < 0)
            return lose(x, err, "MPI reports that a message failed");
        if (stop_if && stop_if())
            return lose(x, err, "interrupted");
        if (left != before)
            until = now() + deadline;
        before = left;
        if (now() > until)
            return lose_late(x, err);
        if (round < 1000)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return KIT_OK;
}

int ranks_exchange(const void *mine, size_t n, void *all, kit_error *err)
{
    exchange x = {NULL, NULL, NULL};
    if (!new_exchange(&x, mine, n))
        return lose(&x, err, "not enough memory for a message");
    memcpy((char *)all + (size_t)comm.rank * n, mine, n);
    int code = start(&x, n, all, err);
    if (!code)
        code = wait_all(&x, err);
    if (code)
        return code;
    free(x.receives);
    free(x.mine);
    return KIT_OK;
}

/* ----------------------------------------------------------------------------------- agreement */

static int first_error(const kit_error *all, kit_error *err)
{
    int first = 0;
    bool same = true;
    while (first < comm.size && all[first].code == KIT_OK)
        first++;
    if (first == comm.size)
        return KIT_OK;
    for (int r = 0; r < comm.size; r++)
        same = same && memcmp(&all[r], &all[first], sizeof all[r]) == 0;
    agreed = true;
    if (same)
        return kit_fail(err, all[first].code, "%s", all[first].message);
    return kit_fail(err, all[first].code, "rank %d: %s", first, all[first].message);
}

int ranks_agree(int code, kit_error *err)
{
    if (lost)
        return code;
    kit_error mine = {0}, *all = malloc((size_t)comm.size * sizeof *all);
    if (!all) {
        lost = true;
        return kit_fail(err, KIT_LIMIT, "--mpi: not enough memory for a message");
    }
    if (code)
        kit_fail(&mine, code, "%s", err->message); /* the rest stays 0, so that memcmp works */
    code = ranks_exchange(&mine, sizeof mine, all, err);
    if (code) /* `all` may still be written */
        return code;
    code = first_error(all, err);
    free(all);
    return code;
}

int ranks_engine(attn_status status, const attn_error *engine, kit_error *err)
{
    agreed = status != ATTN_OK;
    lost = status == ATTN_ERR_COMM;
    if (lost) {
        const char *message = engine->message, *name = "comm: "; /* a word of the library */
        const bool named = strncmp(message, name, strlen(name)) == 0;
        return kit_fail(err, KIT_LIMIT, "--mpi: %s", named ? message + strlen(name) : message);
    }
    return kit_engine(status, engine, err);
}
