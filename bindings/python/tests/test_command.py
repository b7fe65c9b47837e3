"""python -m per: its output and its exit status, as a separate program."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import per
import pytest

NAIVE = pathlib.Path(__file__).resolve().parents[3] / "bench" / "referee" / "naive.py"
FIELDS = {"observation": per.Field(2, "float32"), "action": per.Field((), "int64")}
HIDES_MODULES = (
    "import runpy, sys; sys.modules |= dict.fromkeys(['matplotlib', 'tqdm']); "
    "runpy.run_module('per', run_name='__main__', alter_sys=True)"
)


def run(*arguments, program=("-m", "per"), folder=None):
    search = [str(pathlib.Path(per.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, search)), "COLUMNS": "80"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def checkpoint(tmp_path):
    """Two episodes of 5 steps in each of 2 environments; priorities alternate between 0, 1, 10 and 100."""
    buffer = per.ReplayBuffer(100, FIELDS, n_envs=2, gamma=0.5, seed=3)
    for step in range(10):
        place = step + 0.25 if step < 5 else step + 20.25
        buffer.add(
            observation=np.full((2, 2), place), action=[71717171, step], reward=[step, 2468.5],
            terminated=step == 4, truncated=step == 9, next_observation=np.full((2, 2), place + 1),
            priorities=[0.0, 10.0 ** (step % 3)],
        )  # fmt: skip
    path = tmp_path / "replay.per"
    buffer.save(path)
    return path


def test_info_says_what_a_checkpoint_holds(checkpoint):
    done = run("info", checkpoint)
    assert done.returncode == 0 and done.stderr == ""
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0] == f"{checkpoint}: {checkpoint.stat().st_size:,} bytes"
    assert "observation: float32[2], observation" in lines and "action: int64[], plain" in lines
    assert "rows: 100 in the rings of 2 environments" in lines
    assert "live: 20 transitions can be drawn" in lines
    assert "added: 20 transitions; 0 steps of environments that reset were left out" in lines
    assert "episodes: 4 ended, 0 of them cut; suspected resets 0" in lines
    options = lines[lines.index("options that are not the defaults") + 1 :]
    assert options[: options.index("")] == ["gamma=0.5", "seed=3"]


def test_info_tells_the_largest_length_of_rows(tmp_path):
    fields = {"observation": per.Field(), "tokens": per.Field((None, 3), "int32", max_length=4096)}
    per.ReplayBuffer(10, fields).save(tmp_path / "replay.per")
    assert "  tokens: int32[None, 3], plain, up to 4,096 values a row\n" in run("info", tmp_path / "replay.per").stdout


def test_info_draws_a_histogram_of_live_priorities(checkpoint):
    lines = run("info", checkpoint).stdout.splitlines()
    bars = [
        line.split() for line in lines[lines.index("priorities of live transitions, before the exponent alpha") + 1 :]
    ]
    assert bars[0] == ["0", "10", "#" * 36]  # of 80 columns
    # Ten ranges of equal ratio from 1 to 100: 1 in the first, 10 on the edge of the sixth, 100 in the last.
    counts = [int(bar[3]) for bar in bars[1:]]
    assert counts[0] == 4 and counts[-1] == 3 and sum(counts[4:6]) == 3 and sum(counts) == 10
    assert [bar[0] for bar in bars[1:3]] == ["1", "1.58"] and bars[-1][:3] == ["63.1", "..", "100"]
    assert bars[1][4] == "#" * 15  # 4 of 10 of 36, rounded up


def test_info_of_an_empty_buffer_and_of_equal_priorities(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS)
    buffer.save(tmp_path / "empty.per")
    done = run("info", tmp_path / "empty.per")
    assert done.returncode == 0 and done.stdout.endswith("alpha\n  none\n")
    buffer.add(observation=[0, 0], action=0, reward=0.0, terminated=True, truncated=False, next_observation=[0, 0])
    buffer.save(tmp_path / "one.per")
    assert run("info", tmp_path / "one.per").stdout.splitlines()[-1].split() == ["1", "1", "#" * 36]


def test_info_merges_ranges_that_would_print_the_same(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS)
    flags = np.zeros(20, bool)
    buffer.extend(
        observation=np.zeros((20, 2)), action=flags, reward=np.zeros(20), terminated=flags, truncated=flags,
        priorities=[1.0] * 10 + [1.01] * 10,
    )  # fmt: skip
    buffer.save(tmp_path / "replay.per")
    done = run("info", tmp_path / "replay.per")
    lines = [line.split() for line in done.stdout.splitlines()]
    # The last step has no next observation, so that nine of the higher priorities are live.
    assert lines[-1] == ["1", "..", "1.01", "19", "#" * 36]
    assert lines[lines.index(["options", "that", "are", "not", "the", "defaults"]) + 1] == ["none"]


def test_info_may_be_cut_short_by_its_reader(checkpoint):
    command = ["bash", "-c", 'set -o pipefail; "$0" -m per info "$1" | head -c 1', sys.executable, str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["info", "verify"])
def test_output_that_cannot_be_written_is_an_error_of_one_line(command, checkpoint):
    with open("/dev/full", "w") as full:
        arguments = [sys.executable, "-m", "per", command, str(checkpoint)]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"python -m per {command}: [Errno 28] No space left on device\n"


def test_verify_of_a_whole_file_succeeds(checkpoint):
    done = run("verify", checkpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{checkpoint}: whole\n", "")


def test_file_names_may_be_no_utf8(tmp_path):
    path = tmp_path / "replay\udcff.per"
    per.ReplayBuffer(100, FIELDS).save(path)
    assert run("verify", path).stdout == f"{tmp_path}/replay\\udcff.per: whole\n"


@pytest.mark.parametrize(
    "content, section",
    [
        (b"observation" + np.int32(1).tobytes(), "options"),
        (np.float32(2468.5).tobytes(), "rewards"),
        (np.float32(100).tobytes(), "priorities"),
        (np.float32(27.25).tobytes(), "field observation"),
        (np.int64(71717171).tobytes(), "field action"),
    ],
)
def test_verify_names_the_damaged_section(checkpoint, content, section):
    data = bytearray(checkpoint.read_bytes())
    data[data.rindex(content)] ^= 1
    checkpoint.write_bytes(data)
    done = run("verify", checkpoint)
    assert (done.returncode, done.stdout) == (1, "")
    words = f"is damaged in the section '{section}': the checksum is wrong"
    assert done.stderr == f"python -m per verify: path {checkpoint} {words}\n"


@pytest.mark.parametrize("command", ["info", "verify"])
def test_file_that_is_none_is_an_error_of_one_line(command, tmp_path):
    (tmp_path / "text").write_text("no checkpoint")
    for path, reason in ((tmp_path / "text", "it is not a file of libper"), (tmp_path / "none", "No such file")):
        done = run(command, path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"python -m per {command}: path {path} ") and reason in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["inform"], ["info"], ["verify", "a", "b"], ["info", "--all", "a"]])
def test_wrong_arguments_are_told_with_the_usage(arguments):
    done = run(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("usage: python -m per") and "Traceback" not in done.stderr
    assert ("what a checkpoint holds" in done.stderr) == (not arguments)  # without arguments: all commands


@pytest.mark.parametrize("command", ["info", "verify", "bench", "referee", "demo"])
def test_help_of_each_command_needs_neither_matplotlib_nor_tqdm(command):
    done = run(command, "--help", program=("-c", HIDES_MODULES))
    assert done.returncode == 0 and done.stdout.startswith("usage: ") and done.stderr.count("\n") <= 1
    assert f"    {command} " in run("--help").stdout


def test_version_names_the_library():
    assert run("--version").stdout == f"libper {per.__version__} ({per.library_path})\n"


def test_bench_prints_a_table_and_draws_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    few = ["--library", "libper", "numpy cumsum", "--capacity", "1000", "--batch", "32", "--seconds", "0.1"]
    done = run("bench", *few, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "vector rows, N = 1,000, B = 32: microseconds a call, median" in done.stdout
    assert {"libper", "numpy"} <= {line.split()[0] for line in done.stdout.splitlines() if line}
    from matplotlib import image

    picture = image.imread(tmp_path / "peers.png")
    # With one batch size there is one row of panels: 4 panels of 3.3 inches each at 110 dots an inch.
    assert picture.shape[:2] == (363, 1452)


def test_referee_prints_outcomes_and_writes_them(tmp_path):
    done = run(
        "referee", "--library", NAIVE, "--check", "draws_follow_equation_1", "--json", "out.json", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["law", "naive"] in lines and ["draws_follow_equation_1", "holds"] in lines
    assert "naive: 1 hold" in done.stdout
    (entry,) = json.loads((tmp_path / "out.json").read_text()).values()
    assert entry["results"] == {"draws_follow_equation_1": {"outcome": "holds", "shown": ""}}


def test_demo_runs_where_it_is_called(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    done = run("demo", "--short", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # The short form, too, trains until both have found the way.
    assert done.stdout.count("faster in 2 of 2 pairs") == 2 and "more than" not in done.stdout
    assert (tmp_path / "rare_reward.png").read_bytes().startswith(b"\x89PNG")


def test_demo_names_what_is_missing():
    done = run("demo", program=("-c", HIDES_MODULES))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "python -m per demo: demo needs matplotlib and tqdm: pip install 'libper[demo]'\n"
