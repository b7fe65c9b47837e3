"""The example program runs and learns."""

from __future__ import annotations

import concurrent.futures
import re

import pytest


@pytest.mark.parametrize("options", [[], pytest.param(["--uniform"], marks=pytest.mark.long)])
def test_example_runs(output_of_example, options):
    assert output_of_example("sb3", "--short", *options).startswith("2048 steps: return ")


@pytest.mark.long
def test_dqn_reaches_a_return_of_300_on_cartpole_for_two_of_three_seeds(output_of_example):
    def train(seed):
        steps, reached = re.match(r"(\d+) steps: return (\d+)", output_of_example("sb3", "--seed", str(seed))).groups()
        assert int(steps) <= 50_000 + 256
        return int(reached) >= 300

    with concurrent.futures.ThreadPoolExecutor(2) as both:
        assert sum(both.map(train, (1, 2, 3))) >= 2
