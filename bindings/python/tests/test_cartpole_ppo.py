"""examples/python/cartpole_ppo.py runs: a few iterations, a progress bar, a picture."""

import os
import pathlib
import subprocess
import sys

import per
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[3]


def test_short_mode_learns_for_a_few_iterations_and_draws_a_picture(tmp_path):
    for module in ("torch", "gymnasium", "matplotlib", "tqdm"):
        pytest.importorskip(module)
    picture = tmp_path / "ppo.png"
    program = SOURCE / "examples" / "python" / "cartpole_ppo.py"
    search = [str(pathlib.Path(per.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, program, "--short", "--seed", "1", "--picture", picture],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, search))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "greedy return" in result.stdout and "3/3" in result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
