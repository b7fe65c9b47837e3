"""The package with CUDA, on the simulated GPU, which is a separate library."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import cuda_switch
import pytest

TESTS = pathlib.Path(__file__).resolve().parent
SIMULATED = TESTS.parents[2] / "build" / "libper_simulated.so"

# Every file with tests of more than sources, except those excluded by cuda_switch.REASONS. The second group are mostly
# tests of the host's work, or also exist in C and C++ for the simulated GPU.
SUITE = (
    "test_tree.py",
    "test_golden_draws.py",
    "test_arrays.py",
    "test_batch.py",
    "test_checkpoint.py",
    "test_hindsight.py",
    "test_loader.py",
    "test_on_policy.py",
    "test_replay.py",
    "test_replay_lanes.py",
    "test_replay_priorities.py",
    "test_replay_sequences.py",
    "test_replay_windows.py",
    "test_sources.py::test_examples_in_docstrings_work",
    "test_times_sampled.py",
    "test_torch.py",
)

LONG_SUITE = (
    "test_channel.py",
    "test_checkpoint_folder.py",
    "test_coordinator.py",
    "test_errors.py",
    "test_for_env.py",
    "test_get_windows.py",
    "test_hindsight_model.py",
    "test_mixture.py",
    "test_n_step_ranges.py",
    "test_on_policy_model.py",
    "test_paper_equations.py",
    "test_plot.py",
    "test_rate_limiter.py",
    "test_replay_model.py",
    "test_threads.py",
)

pytestmark = pytest.mark.skipif(not SIMULATED.exists(), reason="no build/libper_simulated.so: it needs Boost.Context")


def run(files: tuple[str, ...], device: str) -> None:
    # 0: each call does its work immediately, since numpy arrays know nothing of streams.
    environment = os.environ | {"LIBPER_PATH": str(SIMULATED), "PER_SIMULATOR_SEED": "0", "PER_TEST_DEVICE": device}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(TESTS / file) for file in files)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_arrays_on_the_simulated_gpu() -> None:
    run(("cuda_cases.py",), device="cpu")


def test_what_holds_on_the_cpu_holds_on_the_simulated_gpu() -> None:
    run(SUITE, device="cuda")


@pytest.mark.long
def test_what_else_holds_on_the_cpu_holds_on_the_simulated_gpu() -> None:
    run(LONG_SUITE, device="cuda")


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_the_check_of_a_real_device_passes_on_the_simulated_one(kind: str) -> None:
    environment = os.environ | {"LIBPER_PATH": str(SIMULATED), "PER_SIMULATOR_SEED": "0"}
    command = [sys.executable, str(TESTS.parents[2] / "tests/gpu/python_on_device.py"), kind, "--stand-ins"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_file_runs_there_or_has_a_reason() -> None:
    left_out = {name for name in cuda_switch.REASONS if "::" not in name}
    run_there = {file.partition("::")[0] for file in SUITE + LONG_SUITE}
    assert run_there | left_out == {path.name for path in TESTS.glob("test_*.py")}


def test_each_reason_to_skip_names_a_test_that_is_there() -> None:
    for name in cuda_switch.REASONS:
        file, _, test = name.partition("[")[0].partition("::")
        assert f"def {test}" in (TESTS / file).read_text(), name
