"""The agent of the docs, one jitted program."""

from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize("buffer", ["per.jax", "flashbax"])
def test_the_agent_takes_either_buffer(output_of_example, buffer):
    assert "300 steps in one program" in output_of_example("jax_dqn", "--short", "--buffer", buffer)


def test_the_agent_learns(output_of_example):
    printed = output_of_example("jax_dqn", "--steps", "4000", "--seed", "1")
    returns = [float(number) for number in re.findall(r"mean return ([0-9.]+)", printed)]
    # Seed 1. A random policy has a mean return of 22.
    assert len(returns) == 10 and max(returns) > 60
