/* A page has one thread, so nobody else can hold a lock: what src/context/context.c needs of
 * pthreads. src/context/pool.c is not compiled here (no_system.c). */
#ifndef ATTN_WASM_PTHREAD_H
#define ATTN_WASM_PTHREAD_H

typedef int pthread_mutex_t;

static inline int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes)
{
    (void)attributes;
    *mutex = 0;
    return 0;
}
static inline int pthread_mutex_destroy(pthread_mutex_t *mutex) { return *mutex; }
static inline int pthread_mutex_lock(pthread_mutex_t *mutex) { return *mutex; }
static inline int pthread_mutex_unlock(pthread_mutex_t *mutex) { return *mutex; }

#endif
