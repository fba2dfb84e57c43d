/* Task numbers: which queries of which head and sequence a number stands for.
 *
 *   number -> head (a group of heads that share a tile, or one head) and `later`, the number of
 *             tasks of the head that have later queries: 0 for its last task
 *   head   -> batch b, first query head h
 *   later  -> sequence n and first query i0
 *
 * attni_find_task() is called for each task that a worker takes.
 */
#include "plan.h"

char *attni_first_row(const attni_task *task, const attn_tensor *t, int64_t *rows)
{
    const attni_span span = attni_mask_span(&task->sequence, task->i0, task->i0 + task->rows);
    if (rows)
        *rows = span.any1 - span.any0;
    return span.any0 < span.any1 ? attni_stored_row(&task->sequence, t, span.any0) : NULL;
}

/* -------------------------------------------------------------------------------------- tasks */

/* How many tasks the queries of sequence (or run) n make, for one head. */
static int64_t tasks_of(const attni_plan *p, int64_t n)
{
    const int64_t T = p->runs ? p->runs[n].rows : attni_queries_of(p, n);
    return T <= p->task_rows ? T > 0 : attni_div_up(T, p->task_rows);
}

int64_t attni_tasks_of_head(const attni_plan *p)
{
    int64_t tasks = 0;
    for (int64_t n = 0; n < p->sequences; n++)
        tasks += tasks_of(p, n);
    return tasks;
}

attni_cursor attni_last_sequence(const attni_plan *p)
{
    const int64_t n = p->sequences - 1;
    return (attni_cursor){n, p->tasks_per_head - (n > 0 ? tasks_of(p, n) : p->tasks_per_head)};
}

/* Moves the cursor to the sequence that holds task `earlier` of a head. The tasks of a head are
 * numbered from 0, in the order of their queries. */
static void move(const attni_plan *p, attni_cursor *cursor, int64_t earlier)
{
    if (earlier >= cursor->tasks_before + tasks_of(p, cursor->n))
        *cursor = attni_last_sequence(p);
    while (earlier < cursor->tasks_before)
        cursor->tasks_before -= tasks_of(p, --cursor->n);
}

void attni_find_task(const attni_plan *p, int64_t number, attni_cursor *cursor, attni_task *task)
{
    const int64_t groups = attni_groups_of_heads(p);
    int64_t head, later; /* tasks of the head with later queries */
    if (p->longest_first) {
        later = number / (p->B * groups);
        head = number - later * p->B * groups;
    } else {
        head = number ? number / p->tasks_per_head : 0;
        later = number - head * p->tasks_per_head;
    }
    const int64_t b = head ? head / groups : 0;
    const int64_t h = attni_first_head(p, head - b * groups);
    const int64_t earlier = p->tasks_per_head - 1 - later;
    if (p->sequences > 1)
        move(p, cursor, earlier);
    task->head = head;
    task->earlier = earlier;
    attni_sequence *sequence = &task->sequence;
    attni_find_sequence(p, b, h, cursor->n, sequence);
    task->i0 = (earlier - cursor->tasks_before) * p->task_rows;
    task->rows = sequence->T - task->i0 < p->task_rows ? sequence->T - task->i0 : p->task_rows;
}
