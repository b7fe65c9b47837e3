"""The same seed and the same calls give the same indices from every language: tests/golden/draws.csv."""

import pathlib

import numpy as np
import per
from per import _library

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "draws.csv"


def test_draws_are_those_of_the_golden_table():
    schemes = {number: name for name, number in _library.choices("per_scheme").items()}
    tree = None
    calls = 0
    for line in GOLDEN.read_text().splitlines():
        call, *words = line.split(",")
        given, expected = words, []
        if "->" in words:
            given, expected = words[: words.index("->")], [int(word) for word in words[words.index("->") + 1 :]]
        if call == "create":
            tree = per.SumTree(int(given[0]), seed=int(given[1]))
        elif call == "update":
            tree.update(np.array(given[::2], np.int64), np.array(given[1::2], np.float32))
        elif call == "sample":
            drawn = tree.sample(len(expected), scheme=schemes[int(given[0])]).indices
            np.testing.assert_array_equal(drawn, expected)
        elif call == "mass":
            assert list(tree.mass) == expected
        elif call == "reset":
            tree.reset()
        else:
            raise AssertionError(f"unknown call {call}")
        calls += 1
    assert calls > 100
