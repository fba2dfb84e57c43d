"""Turn and turn about: the loop that times libattn and its peers in the same seconds.

A player has a `call`. In each round every player has a turn, and the order moves on by one. A turn
is two calls, the first of which wakes threads and fills caches, or as many as fit into TURN
seconds; of a long call it is one. What is kept is the minimum of each, since noise can only make a
call slower. Between rounds the machine's own limit is measured, in at most a quarter of the time.
Nothing here knows what is called.
"""

import time
from dataclasses import dataclass, field
from typing import Callable, Optional

LEAST_ROUNDS = 3
# Seconds that a turn of short calls lasts. On a guest whose two CPUs may wake on one core, 6 of 40
# cells on two threads were no faster than on one with turns of 5 ms, none of 40 with this.
TURN = 20e-3
LONG = 0.1  # seconds of a call that stands alone in its turn
BATCH = 40e-6  # calls shorter than this are timed several at once
PROBE_SHARE = 0.25
QUIET = 50e-3  # at most so long one waits for other players' threads to go to sleep
FAR_BEHIND = 2.0  # a variant that takes this many times as long as another of its peer is out


@dataclass
class Player:
    """One way to compute the cell. `call` may time itself: what it returns, if not None, counts."""

    who: str  # libattn, torch, ort, openvino
    variant: str  # "" where a peer has only one
    call: Callable[[], Optional[float]]
    result: Optional[Callable] = None  # the output of the last call, to be checked
    calls: int = 1  # in one timing
    best: float = field(default=float("inf"))


def time_once(player, clock):
    start = clock()
    own = player.call()
    for _ in range(player.calls - 1):
        player.call()
    return (clock() - start) / player.calls if own is None else own


def warm_up(players, clock=time.perf_counter):
    """Two calls each; then how many go into one timing, and which variants are hopeless."""
    rough = {}
    for p in players:
        p.calls = 1
        rough[id(p)] = min(time_once(p, clock), time_once(p, clock))
        p.calls = max(1, min(100, int(BATCH / max(rough[id(p)], 1e-9))))
    fastest = {}
    for p in players:
        fastest[p.who] = min(fastest.get(p.who, float("inf")), rough[id(p)])
    return [p for p in players if rough[id(p)] <= FAR_BEHIND * fastest[p.who]]


def settle(longest=QUIET):
    """Waits until no thread of this process spins: those of OpenMP do so for milliseconds."""
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(1e-3)
        if time.process_time() - before < 2e-4:
            return


def take_turn(player, clock):
    start, timings = clock(), 0
    while timings < 2 or clock() - start < TURN:
        took = time_once(player, clock)
        player.best = min(player.best, took)
        timings += 1
        if took > LONG:
            break


def race(players, seconds, probe=None, quiet=None, clock=time.perf_counter):
    """Fills in `best` of each player; returns the best that `probe` gave, or 0.

    quiet: called before each turn, to wait for silence.
    """
    limit = probe() if probe else 0.0
    start, probing, turn = clock(), 0.0, 0
    while turn < LEAST_ROUNDS or clock() - start < seconds:
        for i in range(len(players)):
            player = players[(turn + i) % len(players)]
            if quiet:
                quiet()
            take_turn(player, clock)
        turn += 1
        before = clock()
        if probe and probing <= PROBE_SHARE * (before - start):
            limit = max(limit, probe())
            probing += clock() - before
    return limit
