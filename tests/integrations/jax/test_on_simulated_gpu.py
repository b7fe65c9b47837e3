"""The custom calls for CUDA run on the simulated GPU. They have not been run on a real one."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SIMULATED = HERE.parents[2] / "build" / "libper_simulated.so"


def printed_for(device):
    environment = os.environ | {"LIBPER_PATH": str(SIMULATED), "PER_SIMULATOR_SEED": "0"}
    command = [sys.executable, str(HERE / "on_simulated_gpu.py"), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not SIMULATED.exists(), reason="no build/libper_simulated.so: it needs Boost.Context")
def test_programs_draw_the_same_from_a_gpu_as_from_the_cpu_and_refuse_the_other():
    *on_cpu, refused_on_cpu = printed_for("cpu")
    *on_gpu, refused_on_gpu = printed_for("cuda")
    assert on_cpu == on_gpu and len(on_cpu) == 2
    assert "the buffer is on a GPU, and this program runs on the CPU: give device='cpu'" in refused_on_cpu
    assert "the buffer is on the CPU, and this program runs on a GPU: give device='gpu'" in refused_on_gpu
