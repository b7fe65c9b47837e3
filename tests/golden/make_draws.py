"""Writes draws.csv: calls on a tree and their results, which are the same in every language and on every device.

    python3 tests/golden/make_draws.py > tests/golden/draws.csv

The results come from a model in integers and fractions that shares no code with the library: masses, the rules of the
scale, Philox and the targets of draws. It finds a leaf by counting from the first one.

Each line is a call, its arguments and, after "->", its result:

    create,<capacity>,<seed>
    update,<index>,<priority>,<index>,<priority>,...
    sample,<scheme>,->,<index>,...              the batch size is the number of indices
    mass,->,<total mass>,<scale>
    reset

Priorities are decimal numbers, each of which identifies a float32. Schemes are values of per_scheme.
"""

import random
import struct
from fractions import Fraction

MASK32, MASK64 = 2**32 - 1, 2**64 - 1
STRATIFIED, INDEPENDENT, SYSTEMATIC, WITHOUT_REPLACEMENT = 0, 1, 2, 3


def philox4x32_10(key, counter):
    """Salmon et al. 2011, table 2 and section 3.3. `key` has 2 words; `counter` and the result have 4."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


# Known answers published with the authors' library (Random123, kat_vectors).
assert philox4x32_10((0, 0), (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
assert philox4x32_10((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)) == (
    0xD16CFE09,
    0x94FDCCEB,
    0x5001E420,
    0x24126EA1,
)


def random64(seed, batch_number, i):
    words = philox4x32_10(
        (seed & MASK32, seed >> 32), (i // 2 & MASK32, i // 2 >> 32, batch_number & MASK32, batch_number >> 32)
    )
    low, high = words[2:] if i % 2 else words[:2]
    return high << 32 | low


def to_float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bit_length_of(x):
    """Returns k with 2^(k-1) <= x < 2^k, for a fraction x > 0."""
    k = x.numerator.bit_length() - x.denominator.bit_length()
    return k + 1 if x >= Fraction(2) ** k else k


def mass(priority, scale):
    scaled = Fraction(priority) * Fraction(2) ** scale
    return -(-scaled.numerator // scaled.denominator)


class Tree:
    def __init__(self, capacity, seed):
        self.leaves = [0.0] * capacity
        self.seed, self.batches, self.scale, self.low_water = seed, 0, 0, 0

    def masses(self):
        return [mass(p, self.scale) for p in self.leaves]

    def total(self):
        return sum(self.masses())

    def rescale(self):
        """Chooses the scale: the largest leaf is below 2^46, and the total at most 2^56 with any rounding of masses."""
        self.scale = 46 - bit_length_of(Fraction(max(self.leaves)))
        total, reduction = self.total(), 0
        while (total >> reduction) + len(self.leaves) > 2**56:
            reduction += 1
        self.scale -= reduction
        self.low_water = min(self.total() // 16, len(self.leaves) << 20)

    def update(self, pairs):
        was_empty = not any(self.leaves)
        for index, priority in pairs:
            self.leaves[index] = priority
        if not any(self.leaves):
            return
        total = self.total()
        is_too_large = max(self.masses()) >= 2**52 or total >= 2**62
        if was_empty or is_too_large or total < self.low_water:
            self.rescale()

    def target(self, scheme, i, batch_size):
        total = self.total()
        number = random64(self.seed, self.batches, 0 if scheme == SYSTEMATIC else i)
        if scheme == INDEPENDENT:
            return number * total >> 64
        width = MASK64 // batch_size
        return (i * width + (number * width >> 64)) * total >> 64

    def find(self, unit):
        for index, leaf in enumerate(self.masses()):
            if unit < leaf:
                return index
            unit -= leaf
        raise AssertionError("the unit lies beyond the total")

    def sample(self, scheme, batch_size):
        if scheme == WITHOUT_REPLACEMENT:
            indices = self.distinct(batch_size)
        else:
            indices = [self.find(self.target(scheme, i, batch_size)) for i in range(batch_size)]
        self.batches += 1
        return indices

    def distinct(self, batch_size):
        """Draws in rounds, and leaves out repeats, until one leaf more than wanted is found or none is left.

        After a round in which more than half of the draws are repeats, the leaves found so far are removed.
        """
        leaves, found, first = list(self.leaves), [], 0
        while len(found) <= batch_size and self.total() > 0:
            n_wanted = batch_size + 1 - len(found)
            round_size = n_wanted + n_wanted // 4 + 16
            round_size += round_size % 2
            repeats = 0
            for i in range(first, first + round_size):
                if len(found) > batch_size:
                    break
                index = self.find(self.target(INDEPENDENT, i, round_size))
                if index in found:
                    repeats += 1
                else:
                    found.append(index)
            if 2 * repeats > round_size:
                for index in found:
                    self.leaves[index] = 0.0
            first += round_size
        self.leaves = leaves
        return found[:batch_size]


class Script:
    """Makes calls on a tree and prints them."""

    def __init__(self, capacity, seed):
        self.tree = Tree(capacity, seed)
        print(f"create,{capacity},{seed}")

    def update(self, pairs):
        # Nine digits identify a float32. The model uses the printed number, as readers do.
        pairs = [(index, to_float32(float(f"{priority:.9g}"))) for index, priority in pairs]
        self.tree.update(pairs)
        print("update," + ",".join(f"{index},{priority:.9g}" for index, priority in pairs))
        print(f"mass,->,{self.tree.total()},{self.tree.scale}")

    def sample(self, scheme, batch_size):
        print(f"sample,{scheme},->," + ",".join(map(str, self.tree.sample(scheme, batch_size))))

    def reset(self):
        self.tree.leaves = [0.0] * len(self.tree.leaves)
        print("reset")


def main():
    numbers = random.Random(20)

    script = Script(4, 7)
    script.update([(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)])
    for scheme in (STRATIFIED, INDEPENDENT, SYSTEMATIC):
        script.sample(scheme, 10)

    script = Script(1, 2**64 - 1)
    script.update([(0, 1e-45)])
    script.sample(STRATIFIED, 3)

    for capacity, seed in ((31, 0), (33, 1), (1000, 2**40 + 12345), (150, 2**63)):
        script = Script(capacity, seed)
        for _ in range(12):
            exponent = numbers.choice((0, 0, 0, 30, -30, -44))
            count = numbers.choice((1, 5, 40))
            pairs = [(numbers.randrange(capacity), numbers.random() * 10.0**exponent) for _ in range(count)]
            pairs[numbers.randrange(count)] = (numbers.randrange(capacity), 0.0)
            script.update(pairs)
            if script.tree.total() == 0:
                continue
            for scheme in (STRATIFIED, INDEPENDENT, SYSTEMATIC):
                script.sample(scheme, numbers.choice((1, 2, 7, 16, 33)))
            n_positive = sum(p > 0 for p in script.tree.leaves)
            script.sample(WITHOUT_REPLACEMENT, numbers.choice((1, n_positive, min(n_positive, 20))))
        script.reset()
        script.update([(capacity - 1, 3.5)])
        script.sample(INDEPENDENT, 2)

    # A leaf beyond the limit changes the scale, unless a later entry of the same call overwrites it.
    script = Script(5, 3)
    script.update([(0, 1.0), (1, 2.0), (4, 0.5)])
    script.update([(2, 1e30), (3, 1.5), (2, 0.25)])
    script.sample(INDEPENDENT, 10)
    script.update([(2, 1e30), (3, 1.5)])
    script.sample(INDEPENDENT, 10)

    # There are so many leaves that the scale depends on the total, not on the largest leaf.
    script = Script(3000, 99)
    script.update([(index, float(1 + index * index % 7)) for index in range(3000)])
    for scheme in (STRATIFIED, INDEPENDENT, SYSTEMATIC, WITHOUT_REPLACEMENT):
        script.sample(scheme, 20)


if __name__ == "__main__":
    main()
