/* Ranks that are threads of one process. A message has no buffer of its own. When both send and
 * receive have started, the later of the two copies the bytes from the sender's memory to the
 * receiver's, as a rendezvous of MPI does. So a call that relies on
 * buffers, or uses memory too early, fails here too. */
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct message {
    struct message *next; /* in the list of sends and receives without a counterpart */
    bool sends, met, failed;
    int from, to, tag;
    const void *source;
    void *target;
    size_t n;
    double ready; /* the time at which it arrives */
} message;

typedef struct place {
    attn_ranks *ranks;
    int rank;
    int64_t sent;
} place;

struct attn_ranks {
    pthread_mutex_t lock;
    message *waiting, **end; /* in the order of their start */
    int size, delay_us;
    uint64_t random;
    place places[];
};

/* Seconds. */
static double draw_delay(attn_ranks *ranks)
{
    if (ranks->delay_us == 0)
        return 0;
    ranks->random = ranks->random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return 1e-9 * (double)((ranks->random >> 33) % (1000 * (uint64_t)ranks->delay_us + 1));
}

static void unlink_message(attn_ranks *ranks, message **at)
{
    message *m = *at;
    *at = m->next;
    if (!m->next)
        ranks->end = at;
}

/* The other half of m, if it waits. */
static message *take_other(attn_ranks *ranks, const message *m)
{
    for (message **at = &ranks->waiting; *at; at = &(*at)->next) {
        message *other = *at;
        if (other->sends != m->sends && other->from == m->from && other->to == m->to &&
            other->tag == m->tag) {
            unlink_message(ranks, at);
            return other;
        }
    }
    return NULL;
}

static void meet(attn_ranks *ranks, message *sent, message *received)
{
    sent->met = received->met = true;
    sent->failed = received->failed = sent->n != received->n;
    if (sent->failed)
        return;
    memcpy(received->target, sent->source, sent->n);
    sent->ready = received->ready = attni_mpi_now() + draw_delay(ranks);
    ranks->places[sent->from].sent += (int64_t)sent->n;
}

static int start(place *p, const message *like, void **request)
{
    attn_ranks *ranks = p->ranks;
    message *m = malloc(sizeof *m);
    if (!m)
        return 1;
    *m = *like;
    pthread_mutex_lock(&ranks->lock);
    message *other = take_other(ranks, m);
    if (other) {
        meet(ranks, m->sends ? m : other, m->sends ? other : m);
    } else {
        *ranks->end = m;
        ranks->end = &m->next;
    }
    pthread_mutex_unlock(&ranks->lock);
    *request = m;
    return 0;
}

static int start_send(void *user, int to, int tag, const void *bytes, size_t n, void **request)
{
    place *p = user;
    return start(
        p,
        &(message){.sends = true, .from = p->rank, .to = to, .tag = tag, .source = bytes, .n = n},
        request);
}

static int start_receive(void *user, int from, int tag, void *bytes, size_t n, void **request)
{
    place *p = user;
    return start(p, &(message){.from = from, .to = p->rank, .tag = tag, .target = bytes, .n = n},
                 request);
}

static int test_message(void *user, void **request)
{
    place *p = user;
    message *m = *request;
    pthread_mutex_lock(&p->ranks->lock);
    const bool failed = m->failed, done = m->met && (failed || m->ready <= attni_mpi_now());
    pthread_mutex_unlock(&p->ranks->lock);
    if (!done)
        return 0;
    free(m);
    *request = NULL;
    return failed ? -1 : 1;
}

static int cancel_message(void *user, void **request)
{
    place *p = user;
    message *m = *request;
    pthread_mutex_lock(&p->ranks->lock);
    for (message **at = &p->ranks->waiting; *at; at = &(*at)->next)
        if (*at == m) {
            unlink_message(p->ranks, at);
            break;
        }
    pthread_mutex_unlock(&p->ranks->lock);
    free(m);
    *request = NULL;
    return 1;
}

attn_status attn_ranks_create(int size, int delay_us, uint64_t seed, attn_ranks **out,
                              attn_error *err)
{
    if (!out)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "out",
                              "out is NULL; it must point to where the ranks' address is stored");
    *out = NULL;
    if (size < 1 || delay_us < 0)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, size < 1 ? "size" : "delay_us",
                              "%s is %d; it must be %d or more", size < 1 ? "size" : "delay_us",
                              size < 1 ? size : delay_us, size < 1);
    attn_ranks *ranks = calloc(1, sizeof *ranks + (size_t)size * sizeof *ranks->places);
    if (!ranks || pthread_mutex_init(&ranks->lock, NULL)) {
        free(ranks);
        return attni_mpi_fail(err, ATTN_ERR_MEMORY, "", "no memory for %d ranks", size);
    }
    ranks->end = &ranks->waiting;
    ranks->size = size;
    ranks->delay_us = delay_us;
    ranks->random = seed;
    for (int r = 0; r < size; r++)
        ranks->places[r] = (place){.ranks = ranks, .rank = r};
    *out = ranks;
    return ATTN_OK;
}

void attn_ranks_destroy(attn_ranks *ranks)
{
    if (!ranks)
        return;
    for (message *m = ranks->waiting, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    pthread_mutex_destroy(&ranks->lock);
    free(ranks);
}

void attn_ranks_comm(attn_ranks *ranks, int rank, attn_comm *comm)
{
    *comm = (attn_comm){.struct_size = sizeof *comm,
                        .user = &ranks->places[rank],
                        .rank = rank,
                        .size = ranks->size,
                        .send = start_send,
                        .receive = start_receive,
                        .test = test_message,
                        .cancel = cancel_message};
}

int64_t attn_ranks_sent(const attn_ranks *ranks, int rank)
{
    attn_ranks *all = (attn_ranks *)(uintptr_t)ranks;
    pthread_mutex_lock(&all->lock);
    const int64_t sent = ranks->places[rank].sent;
    pthread_mutex_unlock(&all->lock);
    return sent;
}
