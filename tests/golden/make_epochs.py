"""Writes epochs.csv: the orders of transitions in epochs, which are the same in every language and on every device.

    python3 tests/golden/make_epochs.py > tests/golden/epochs.csv

Each line is an epoch: <seed>,<n>,<draws>,<epoch>,->,<id>,...

One environment has n live transitions, ids 0 to n - 1, and `draws` batches were drawn before the first epoch. Epochs
count from 0. Each epoch shuffles the order of the one before, the first one the ascending ids, by Fisher-Yates from the
last place to the second (Knuth, The Art of Computer Programming, volume 2, algorithm 3.4.2 P).
"""

from make_draws import random64


def shuffled(order, seed, batch_number):
    order = list(order)
    for i in range(len(order) - 1, 0, -1):
        j = random64(seed, batch_number, i) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def main():
    for seed, n, draws in ((0, 1, 0), (0, 2, 3), (7, 10, 1), (2**64 - 1, 33, 0)):
        order = range(n)
        for epoch in range(3):
            order = shuffled(order, seed, draws + epoch)
            print(seed, n, draws, epoch, "->", *order, sep=",")


if __name__ == "__main__":
    main()
