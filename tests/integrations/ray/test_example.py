from __future__ import annotations

import re

import pytest


@pytest.mark.long
def test_ape_x_learns(output_of_example):
    """Values start near 0. Values above 3, the rewards of a window, are only learned by bootstrapping."""
    output = output_of_example("ray_apex", "--short", "--seed", "1")
    assert re.search(r"greedy return \d+ after 250 updates; [23],\d+ steps of 2 actors", output)
    assert float(re.search(r"mean value of the last batch (\d+\.\d)", output)[1]) > 3
