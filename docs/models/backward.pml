/* The turns of the backward's tasks (src/grad/backward_task.c), for the model checker spin: every
 * order of the threads' steps is tried, for every way in which tiles of queries may see chunks of
 * keys. tools/check-models.sh runs the sizes that CI checks.
 *
 *   thread   takes units in order: the WHOLE first pairs whole, then single tasks
 *   task     one chunk of the keys of one sequence of one pair; visits the TILES tiles in order
 *   tile     joins its part to the total of (pair, sequence, tile), in the order of the chunks:
 *            the first chunk that the tile sees begins the total, the last one writes the result
 *
 * The rule: a chunk adds its part of a tile after the chunk before it has finished the same tile.
 * With -DDMASK heads add to one mask's gradient as well: a task visits a tile after the same task
 * of the pair before it has finished the tile.
 *
 * Checked: no two threads are in one total at once; each part is added once, to its own total, in
 * order; each tile is written once, when it is whole; no thread waits for ever (spin's own search
 * for deadlocks, since every thread must reach its end).
 *
 * -DSHARED_SLOTS=2 -DPAIRS=1 is version 0.1.0, whose totals were shared by the sequences of a pair.
 * It must fail; tools/check-models.sh makes sure of that.
 */
#ifndef PAIRS
#define PAIRS 2
#endif
#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef SEQUENCES
#define SEQUENCES 2
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef TILES
#define TILES 2
#endif
#ifndef THREADS
#define THREADS 2
#endif

#define PER_PAIR (SEQUENCES * CHUNKS)
#define TASKS (PAIRS * PER_PAIR)
#define UNITS (WHOLE + (PAIRS - WHOLE) * PER_PAIR)
#define DONE 100
#define NOBODY 255

/* Totals: of each thread, for the pairs that it does whole; then those that threads share. */
#ifdef SHARED_SLOTS
#define SHARED_TOTAL ((THREADS + pair % SHARED_SLOTS) * TILES + tile)
#define TOTALS ((THREADS + SHARED_SLOTS) * TILES)
#else
#define SHARED_TOTAL (THREADS * TILES + (pair * SEQUENCES + sequence) * TILES + tile)
#define TOTALS (THREADS * TILES + PAIRS * SEQUENCES * TILES)
#endif
#define TOTAL (pair < WHOLE -> (_pid - 1) * TILES + tile : SHARED_TOTAL)
#define ROW ((pair * SEQUENCES + sequence) * TILES + tile)
#define SEEN (sequence * TILES + tile)

byte next;                             /* unit to take */
byte progress[TASKS];                  /* tiles that the task has finished; at the end DONE */
byte first[SEQUENCES * TILES], last[SEQUENCES * TILES]; /* chunks that the tile sees */
byte owner[TOTALS];                    /* ROW whose total lies here */
byte chunks[TOTALS];                   /* the chunk that comes next in it */
bool busy[TOTALS];
byte written[PAIRS * SEQUENCES * TILES];
byte mask_turn[PER_PAIR * TILES];      /* DMASK: the pair that comes next */
byte ended;
bool chosen;

/* Any ranges of chunks: a tile may see one chunk or several. */
inline choose()
{
    byte n = 0;
    do
    :: n < SEQUENCES * TILES ->
        select (start : 0 .. CHUNKS - 1);
        select (end : start .. CHUNKS - 1);
        first[n] = start;
        last[n] = end;
        n++
    :: else -> break
    od
}

inline join()
{
    if
    :: first[SEEN] < last[SEEN] ->
        if
        :: chunk > first[SEEN] ->
            progress[task - 1] > tile; /* the rule */
            atomic {
                assert(!busy[TOTAL] && owner[TOTAL] == ROW && chunks[TOTAL] == chunk);
                busy[TOTAL] = true
            }
        :: else ->
            atomic {
                assert(!busy[TOTAL]);
                busy[TOTAL] = true;
                owner[TOTAL] = ROW
            }
        fi;
        atomic {
            assert(busy[TOTAL] && owner[TOTAL] == ROW);
            chunks[TOTAL] = chunk + 1;
            busy[TOTAL] = false
        };
        if
        :: chunk == last[SEEN] ->
            atomic {
                assert(!busy[TOTAL] && owner[TOTAL] == ROW && chunks[TOTAL] == chunk + 1);
                written[ROW]++
            }
        :: else
        fi
    :: else -> written[ROW]++
    fi
}

inline run_task()
{
    atomic {
        pair = task / PER_PAIR;
        sequence = (task % PER_PAIR) / CHUNKS;
        chunk = task % CHUNKS;
        tile = 0
    };
    do
    :: tile < TILES ->
#ifdef DMASK
        if
        :: pair > 0 -> progress[task - PER_PAIR] > tile
        :: else
        fi;
        assert(mask_turn[(task % PER_PAIR) * TILES + tile] == pair);
#endif
        if
        :: first[SEEN] <= chunk && chunk <= last[SEEN] -> join()
        :: else
        fi;
#ifdef DMASK
        mask_turn[(task % PER_PAIR) * TILES + tile] = pair + 1;
#endif
        atomic {
            progress[task] = tile + 1;
            tile++
        }
    :: else -> break
    od;
    progress[task] = DONE
}

proctype worker()
{
    byte unit, task, stop, pair, sequence, chunk, tile;
    do
    :: atomic {
           unit = next;
           next++;
           if
           :: unit >= UNITS -> break
           :: unit < WHOLE -> task = unit * PER_PAIR; stop = task + PER_PAIR
           :: else -> task = WHOLE * PER_PAIR + unit - WHOLE; stop = task + 1
           fi
       };
       do
       :: task < stop -> run_task(); task++
       :: else -> break
       od
    od;
    ended++
}

init {
    byte start, end, row;
    atomic {
        choose();
        row = 0;
        do
        :: row < TOTALS -> owner[row] = NOBODY; row++
        :: else -> break
        od;
        row = 0;
        do
        :: row < THREADS -> run worker(); row++
        :: else -> break
        od
    };
    ended == THREADS;
    row = 0;
    do
    :: row < PAIRS * SEQUENCES * TILES -> assert(written[row] == 1); row++
    :: else -> break
    od
}
