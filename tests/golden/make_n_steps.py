"""Writes n_steps.csv: the n that transitions of a batch with n_step_min get, from every language and device.

    python3 tests/golden/make_n_steps.py > tests/golden/n_steps.csv

Each line is a batch of 16: <seed>,<n_step_min>,<n_step>,<draws>,->,<n>,...

No episode ends, so that windows are as long as their n, and `draws` batches were drawn before. Of the random numbers of
the draw, number 2^61 + i decides which of n_step_min .. n_step place i gets.
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
