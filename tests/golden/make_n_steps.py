"""Writes n_steps.csv: the n of transitions drawn with n_step_min, the same in every language and on every device.

    python3 tests/golden/make_n_steps.py > tests/golden/n_steps.csv

Each line is a batch of 16: <seed>,<n_step_min>,<n_step>,<draws>,->,<n>,...

No episode ends, so each window has n steps; `draws` batches were drawn before. Random number 2^61 + i of the draw
chooses the n of place i from n_step_min .. n_step.
"""

from make_draws import random64

FIRST_NUMBER = 2**61


def n_step(i, seed, least, most, draws):
    return least + (random64(seed, draws, FIRST_NUMBER + i) * (most - least + 1) >> 64)


def main():
    for batch in ((0, 1, 5, 0), (7, 1, 2, 0), (7, 1, 2, 3), (7, 3, 3, 1), (2**64 - 1, 2, 64, 2), (2**40, 1, 64, 0)):
        print(*batch, "->", *(n_step(i, *batch) for i in range(16)), sep=",")


if __name__ == "__main__":
    main()
