/* Simulates the schedule of an attention call: workers take items in order, and each takes the next
 * one as soon as it is free, as run_worker() of src/sdpa/sdpa.c does. All times are in seconds. */
#ifndef BENCH_SCHEDULE_H
#define BENCH_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_WORKERS = 64 };

typedef struct schedule {
    int64_t items, parts; /* `parts` items that follow each other are one task */
    const double *item;   /* [items] time of each item */
    const double *fold;   /* [items / parts] time of the fold of each task, or NULL */
    int workers;
    const double *start; /* [workers] when each starts */
    double take;         /* time to take an item */
} schedule;

static inline bool schedule_at_work(const schedule *s, const int64_t *running, int64_t task)
{
    for (int w = 0; w < s->workers; w++)
        if (running[w] >= 0 && running[w] / s->parts == task)
            return true;
    return false;
}

/* Sets end[workers], the time at which each worker finds no item left, and by[items], the worker of
 * each item. The worker that finishes the last part of a task folds it. If two workers are free at
 * the same time, the one with the smaller number is first. */
static inline void schedule_play(const schedule *s, double *end, int *by)
{
    int64_t running[MOST_WORKERS], next = 0;
    bool gone[MOST_WORKERS] = {false};
    for (int w = 0; w < s->workers; w++) {
        end[w] = s->start[w];
        running[w] = -1;
    }
    for (int there = s->workers; there > 0;) {
        int w = -1;
        for (int i = 0; i < s->workers; i++)
            if (!gone[i] && (w < 0 || end[i] < end[w]))
                w = i;
        const int64_t task = running[w] < 0 ? -1 : running[w] / s->parts;
        running[w] = -1;
        if (s->fold && task >= 0 && next >= (task + 1) * s->parts &&
            !schedule_at_work(s, running, task)) {
            end[w] += s->fold[task];
        } else if (next == s->items) {
            gone[w] = true;
            there--;
        } else {
            by[next] = w;
            end[w] += s->take + s->item[next];
            running[w] = next++;
        }
    }
}

#endif
