/* Checkpoints of ranks that are threads, in memory: what attn_mpi_checkpoint asks of a program. */
#ifndef RANK_STORE_H
#define RANK_STORE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "attn_mpi.h"

typedef struct rank_store {
    pthread_mutex_t lock;
    int ranks;                     /* that share it */
    int opened, synced, closed;    /* ranks, of the checkpoint that is being written */
    unsigned char *bytes, *counts; /* it, and how often each byte was written */
    uint64_t size;
    int commits, aborts;
    int keep; /* keeps the checkpoint of this number, or an earlier one if it is the last */
    unsigned char *kept;
    uint64_t kept_size;
    bool wrong; /* the library has broken a rule of attn_mpi_checkpoint */
} rank_store;

/* What one rank passes. Fails at the n-th call of the function whose letter is `fails`. */
typedef struct rank_access {
    rank_store *store;
    char fails; /* o, w, s, c, r; 0: none */
    int at;
} rank_access;

static inline bool rank_access_fails(rank_access *a, char function)
{
    return a->fails == function && --a->at < 0;
}

static inline int rank_store_open(void *user, uint64_t size)
{
    rank_access *a = user;
    rank_store *s = a->store;
    pthread_mutex_lock(&s->lock);
    if (s->opened++ == 0) {
        s->size = size;
        s->bytes = calloc(size, 1);
        s->counts = calloc(size, 1);
    }
    s->wrong |= s->size != size || s->closed > 0 || s->opened > s->ranks;
    pthread_mutex_unlock(&s->lock);
    return rank_access_fails(a, 'o');
}

static inline int rank_store_write(void *user, uint64_t at, const void *bytes, size_t n)
{
    rank_access *a = user;
    rank_store *s = a->store;
    pthread_mutex_lock(&s->lock);
    const bool inside = at <= s->size && n <= s->size - at && s->opened == s->ranks;
    s->wrong |= !inside || s->closed > 0 || s->synced == s->ranks;
    for (size_t i = 0; i < n && inside; i++) {
        s->bytes[at + i] = ((const unsigned char *)bytes)[i];
        s->counts[at + i]++;
    }
    pthread_mutex_unlock(&s->lock);
    return rank_access_fails(a, 'w');
}

static inline int rank_store_sync(void *user)
{
    rank_access *a = user;
    pthread_mutex_lock(&a->store->lock);
    a->store->synced++;
    pthread_mutex_unlock(&a->store->lock);
    return rank_access_fails(a, 's');
}

static inline int rank_store_close(void *user, int complete)
{
    rank_access *a = user;
    rank_store *s = a->store;
    pthread_mutex_lock(&s->lock);
    s->wrong |= complete && s->synced != s->ranks;
    if (++s->closed == s->ranks) {
        for (uint64_t i = 0; i < s->size && complete; i++)
            s->wrong |= s->counts[i] != 1;
        if (complete && s->commits++ <= s->keep) {
            free(s->kept);
            s->kept = s->bytes, s->kept_size = s->size;
            s->bytes = NULL;
        }
        s->aborts += !complete;
        free(s->bytes), free(s->counts);
        s->bytes = s->counts = NULL;
        s->opened = s->synced = s->closed = 0;
    }
    pthread_mutex_unlock(&s->lock);
    return rank_access_fails(a, 'c');
}

static inline int rank_store_read(void *user, uint64_t at, void *bytes, size_t n)
{
    rank_access *a = user;
    const rank_store *s = a->store;
    if (rank_access_fails(a, 'r') || at > s->kept_size || n > s->kept_size - at)
        return 1;
    memcpy(bytes, s->kept + at, n);
    return 0;
}

/* What a rank passes: it saves after each segment, and resumes from what was kept. */
static inline attn_mpi_checkpoint rank_store_checkpoint(rank_access *a, bool saves, bool resumes)
{
    attn_mpi_checkpoint c = ATTN_MPI_CHECKPOINT_INIT;
    c.user = a;
    if (saves)
        c.open = rank_store_open, c.write = rank_store_write, c.sync = rank_store_sync,
        c.close = rank_store_close;
    if (resumes)
        c.read = rank_store_read, c.size = a->store->kept_size;
    return c;
}

static inline void rank_store_init(rank_store *s, int sharing, int keep)
{
    *s = (rank_store){.ranks = sharing, .keep = keep};
    pthread_mutex_init(&s->lock, NULL);
}

static inline void rank_store_free(rank_store *s)
{
    free(s->kept), free(s->bytes), free(s->counts);
    pthread_mutex_destroy(&s->lock);
}

#endif
