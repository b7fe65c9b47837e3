"""Writes hindsight.csv: the goals of relabelled transitions, which are the same in every language and on every device.

    python3 tests/golden/make_hindsight.py > tests/golden/hindsight.csv

Each line is a batch of 16: <seed>,<strategy>,<n>,<step>,<draws>,<k>,->,<goal>,...

One environment made one episode of n steps; after step t it is at t + 1, and step n - 1 is truncated. Only the
transition `step` has a priority above 0, so all 16 draws return it; `draws` batches were drawn before. A goal is the
position after a step of the episode, or -1 if the transition keeps its own goal. Random number 2^62 + 2i of the draw
decides whether place i gets a goal, number 2^62 + 2i + 1 chooses the goal.
"""

from make_draws import random64

FIRST_NUMBER = 2**62


def goal(i, seed, strategy, n, step, draws, k):
    if random64(seed, draws, FIRST_NUMBER + 2 * i) >> 11 >= k / (k + 1) * 2**53:
        return -1
    if strategy == "final":
        return n
    first = step if strategy == "future" else 0
    return first + 1 + (random64(seed, draws, FIRST_NUMBER + 2 * i + 1) * (n - first) >> 64)


def main():
    for batch in (
        (0, "future", 1, 0, 0, 4),
        (0, "future", 40, 0, 0, 4),
        (7, "future", 40, 31, 3, 4),
        (7, "final", 40, 5, 1, 4),
        (7, "episode", 40, 5, 2, 1),
        (2**64 - 1, "episode", 50, 49, 0, 8),
    ):
        print(*batch, "->", *(goal(i, *batch) for i in range(16)), sep=",")


if __name__ == "__main__":
    main()
