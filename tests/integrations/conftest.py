from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"


@pytest.fixture
def output_of_example(tmp_path):
    """Runs examples/integrations/NAME.py with arguments, in a folder of its own, and gives what it printed."""

    def run(name: str, *arguments: str) -> str:
        program = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
