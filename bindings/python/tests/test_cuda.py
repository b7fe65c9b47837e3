"""The package with CUDA: on the simulated GPU, which is a library of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

SIMULATED = pathlib.Path(__file__).resolve().parents[3] / "build" / "libper_simulated.so"


@pytest.mark.skipif(not SIMULATED.exists(), reason="no build/libper_simulated.so: it needs Boost.Context")
def test_arrays_on_the_simulated_gpu() -> None:
    # 0: each call does its work at once, as arrays of numpy know nothing of streams.
    environment = os.environ | {"LIBPER_PATH": str(SIMULATED), "PER_SIMULATOR_SEED": "0"}
    cases = pathlib.Path(__file__).with_name("cuda_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
