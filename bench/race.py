"""The loop that times libattn and its peers in alternating runs.

A player has a `call`. In each round every player has one turn, and the order rotates by one. A turn
has two calls, of which the first wakes threads and fills caches, or as many calls as fit into TURN
seconds; a long call is made only once. The minimum of each player is kept, because noise can only
make a call slower. Between rounds the machine's own limit is measured, in at most a quarter of the
time. This module does not depend on what is called.
"""

import time
from dataclasses import dataclass, field
from typing import Callable, Optional

LEAST_ROUNDS = 3
# Seconds of a turn of short calls. On a virtual machine whose two CPUs may wake on the same core, 6
# of 40 cells were no faster on two threads than on one with turns of 5 ms, and none with this.
TURN = 20e-3
LONG = 0.1  # a call of so many seconds is the only one of its turn
BATCH = 40e-6  # calls shorter than this are timed in groups
PROBE_SHARE = 0.25
QUIET = 50e-3  # longest wait for other players' threads to sleep
FAR_BEHIND = 2.0  # a variant is dropped if it takes so many times as long as another of its peer


@dataclass
class Player:
    """One way to compute the cell. `call` may time itself: if it returns a number, this counts."""

    who: str  # libattn, torch, ort, openvino
    variant: str  # "" if a peer has only one
    call: Callable[[], Optional[float]]
    result: Optional[Callable] = None  # returns the output of the last call, for checking
    calls: int = 1  # calls in one timing
    best: float = field(default=float("inf"))


def time_once(player, clock):
    start = clock()
    own = player.call()
    for _ in range(player.calls - 1):
        player.call()
    return (clock() - start) / player.calls if own is None else own


def warm_up(players, clock=time.perf_counter):
    """Makes two calls of each player. Then sets the number of calls in one timing, and drops
    variants that are much too slow."""
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
    """Waits until no thread of this process spins; OpenMP's threads spin for milliseconds after a
    call."""
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
    """Sets `best` of each player. Returns the best result of `probe`, or 0. `quiet` is called
    before each turn and waits until no thread spins.
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
