"""A trainer over TransferQueue and a ledger is killed, and a restored one uses every group exactly once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def started(folder):
    program = [sys.executable, str(Path(__file__).with_name("learner.py")), str(folder)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=(folder / "errors").open("a"), text=True)


@pytest.mark.long
def test_groups_are_used_once_when_the_trainer_is_killed_and_restored(tmp_path):
    with started(tmp_path) as learner:
        for line in learner.stdout:
            if line == "version 8\n":
                learner.kill()
    with started(tmp_path) as learner:
        lines = learner.stdout.read().splitlines()
    assert learner.returncode == 0, (tmp_path / "errors").read_text()
    assert lines[0] == "version 6"  # the learner saved at version 5, before it learned from its lease
    # Groups are drawn by id, two in each version: 24 in 12 versions. Two more wait for the next one.
    assert lines[-2] == " ".join(["learned", *map(str, range(24))])
    assert "issued=26, open=0, sealed=2, leased=0, consumed=24, retired=0" in lines[-1]
