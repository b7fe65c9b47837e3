"""Wrong arguments are errors that name the argument, and change nothing."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import per
import per.ray
import pytest
from common import ENVS, FIELDS, LIMITS, ROWS, assert_same, both, one_buffer, sharded_buffer, step_of, steps_of


@pytest.fixture
def buffer(in_process):
    return sharded_buffer()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shards": 9}, r"^shards is 9: allowed are 1 \.\. 8$"),
        ({"shards": 0}, r"^shards is 0: allowed are 1 \.\. 8$"),
        ({"shards": "2"}, "^shards is '2', a str; allowed: an int$"),
        ({"n_envs": 0}, "^n_envs is 0"),
        ({"least_shards": 5}, "^least_shards is 5; allowed: 0 to 4$"),
        ({"device": "cuda"}, "^device is 'cuda'; allowed: 'cpu', as shards are in host memory"),
        ({"arrays": "torch"}, "^arrays is 'torch'; allowed: 'numpy'"),
        ({"keep_times_sampled": True}, "^keep_times_sampled is True; allowed: False, as shards do not count"),
        ({"keep_times_sampled": np.ones(2)}, "^keep_times_sampled is array"),
        ({"keep_times_sampled": 0}, "^keep_times_sampled is 0; allowed: True or False$"),
        ({"max_times_sampled": 2}, "^max_times_sampled is 2; allowed: 0"),
        ({"alhpa": 0.5}, "^alhpa is no option of a buffer; allowed: "),
        ({"scheme": "best"}, "^scheme is 'best'"),
        ({"prioritization": "rank"}, "^prioritization is 'rank'"),
        ({"max_priority": "now"}, "^max_priority is 'now'"),
        ({"timeout": "soon"}, "^timeout is 'soon'; allowed: a number$"),
        ({"timeout": 0}, "^timeout is 0; allowed: more than 0, and finite$"),
        ({"timeout": -1.5}, "^timeout is -1.5;"),
        ({"timeout": float("nan")}, "^timeout is nan;"),
        ({"timeout": float("inf")}, "^timeout is inf;"),
        ({"capacity": 2.5}, "^capacity is 2.5, a float; allowed: an int$"),
        ({"overwrite": 1}, "^overwrite is 1; allowed: True or False$"),
        ({"actor_options": {"max_concurrency": 2}}, "^actor_options has max_concurrency: shards choose it themselves$"),
        ({"actor_options": {"lifetime": "detached"}}, "^actor_options has lifetime:"),
        ({"actor_options": 3}, "^actor_options is 3; allowed: a dict$"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options(in_process, given, message):
    with pytest.raises(per.Error, match=message):
        per.ray.ReplayBuffer(fields=FIELDS, **{"capacity": ENVS * ROWS, "n_envs": ENVS, "shards": 4, **given})


def test_what_shards_have_anyway_may_be_said(in_process):
    same = {"device": "cpu", "arrays": None, "keep_times_sampled": False, "max_times_sampled": 0}
    for options in (same, same | {"arrays": "numpy", "keep_times_sampled": np.bool_(False)}):
        buffer = sharded_buffer(**options)
        assert buffer.add(**step_of(0)).tolist() == list(range(ENVS))


def test_steps_are_refused_as_one_buffer_refuses_them(buffer):
    whole = one_buffer()
    steps = step_of(0)
    for wrong in (
        {"reward": np.zeros(7)},
        {"observation": np.zeros((ENVS, 3))},
        {"action": np.zeros(ENVS)},
        {"priorities": np.full(ENVS, np.nan)},
        {"speed": 3},
        {"env_ids": [8]},
    ):
        with pytest.raises(per.InvalidArgument) as expected:
            whole.add(**{**steps, **wrong})
        with pytest.raises(per.InvalidArgument) as given:
            buffer.add(**{**steps, **wrong})
        assert str(given.value) == str(expected.value)
    assert len(buffer) == 0
    with pytest.raises(per.InvalidArgument, match="env_ids is given"):
        buffer.writer([0]).add(**steps, env_ids=[0])
    with pytest.raises(per.InvalidArgument, match=r"env_ids are of shards \[0, 3\]"):
        buffer.writer([0, 7])


def test_draws_and_updates_are_refused_as_one_buffer_refuses_them(buffer):
    with pytest.raises(per.Empty):
        buffer.sample(16)
    steps = step_of(0)
    ids = buffer.add(**steps)
    for wrong, message in (
        ({"batch_size": 0}, "^batch_size is 0"),
        ({"batch_size": 4, "scheme": "best"}, "^scheme is 'best'"),
        ({"batch_size": 4, "beta": -1.0}, "^beta is -1"),
        ({"batch_size": 4, "n_step": 2}, "^n_step is 2"),
        ({"batch_size": 4, "n_step": (1, 2)}, r"^n_step is \(1, 2\)"),
        ({"batch_size": 4, "n_step": [1, 2]}, r"^n_step is \[1, 2\]: shards draw no lengths"),
        ({"batch_size": 99, "scheme": "without_replacement"}, "^batch_size is 99: only 8"),
    ):
        with pytest.raises(per.Error, match=message):
            buffer.sample(**wrong)
    with pytest.raises(per.InvalidArgument, match=r"^td_errors\[1\] gives the priority nan"):
        buffer.update_priorities(ids[:2], [1.0, np.nan])
    with pytest.raises(per.InvalidArgument, match="one of the two"):
        buffer.update_priorities(ids[:2])
    with pytest.raises(per.InvalidArgument, match=r"^ids\[0\] is -2"):
        buffer.update_priorities([-2], [1.0])
    with pytest.raises(per.InvalidArgument, match=r"^shard 0: ids\[0\] is 198: never issued"):
        buffer.update_priorities([8 * 99], [1.0])
    assert buffer.stats().updates == 0
    buffer.update_priorities([-1, ids[0]], [1.0, 1.0])
    assert buffer.stats().updates == 1


def test_a_directory_without_a_checkpoint_is_an_error(in_process, tmp_path):
    with pytest.raises(per.IoError, match="No such file") as raised:
        per.ray.ReplayBuffer.load(tmp_path)
    assert isinstance(raised.value, FileNotFoundError) and raised.value.filename == str(tmp_path)


def test_steps_may_be_of_some_environments_only(buffer):
    whole = one_buffer()
    random = np.random.default_rng(0)
    for envs in ([5, 0, 3], [6], [7, 1, 2, 4]):
        steps = steps_of(random, len(envs))
        assert np.array_equal(whole.add(**steps, env_ids=envs), buffer.add(**steps, env_ids=envs))
        steps = steps_of(random, len(envs), 3)
        steps["priorities"] = random.random((3, len(envs)))
        expected = np.stack([whole.add(**{n: a[k] for n, a in steps.items()}, env_ids=envs) for k in range(3)])
        assert np.array_equal(expected, buffer.extend(**steps, env_ids=envs))
    assert_same(whole.sample(32), buffer.sample(32))


def test_nested_observations_come_back_as_they_were_declared(in_process):
    fields = {"observation.image": per.Field((2, 2), "uint8"), "observation.speed": per.Field(), "action": per.Field()}
    buffer = per.ray.ReplayBuffer(80, fields, n_envs=2, shards=2)
    image = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    step = {"image": image, "speed": [1.0, 2.0]}
    buffer.add(observation=step, action=[0, 1], reward=0, terminated=True, truncated=False, next_observation=step)
    batch = buffer.sample(8)
    assert (batch.observation["image"] == image[batch.ids % 2]).all()
    assert (batch.next_observation["speed"] == 1.0 + batch.ids % 2).all()


def test_a_handle_can_be_pickled(buffer):
    assert "shards=4" in repr(buffer)
    options, shards, coordinator = buffer.__reduce__()[1]
    assert pickle.loads(pickle.dumps(options)) == options
    assert len(shards) == 4
    assert coordinator is buffer._coordinator


def test_environments_are_refused_that_are_none_or_given_twice(buffer):
    for wrong, message in (
        ([8], r"^env_ids\[0\] is 8: allowed are 0 \.\. 7$"),
        ([0, -1], r"^env_ids\[1\] is -1: allowed are 0 \.\. 7$"),
        ([0, 0], r"^env_ids\[1\] is 0: given twice$"),
    ):
        with pytest.raises(per.InvalidArgument, match=message):
            buffer.writer(wrong)
    for wrong in (99, -1):
        with pytest.raises(per.InvalidArgument, match=rf"^env_ids\[1\] is {wrong}: allowed are 0 \.\. 7$"):
            buffer.shard_of([0, wrong])
    assert buffer.shard_of([7, 0, 7]).tolist() == [3, 0, 3]


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_wrong_with_a_loader_is_an_error_when_it_is_made(buffer, exact):
    for wrong, message in (
        ({"batch_size": 0}, "^batch_size is 0: allowed are 1"),
        ({"slots": 0}, r"^slots is 0: allowed are 1 \.\. 1024$"),
        ({"slots": 1025}, r"^slots is 1025: allowed are 1 \.\. 1024$"),
        ({"beta": -1.0}, "^beta is -1"),
        ({"n_step": 2}, "^n_step is 2"),
        ({"n_step": [1, 2]}, r"^n_step is \[1, 2\]: shards draw no lengths"),
        ({"exact": "no"}, "^exact is 'no'; allowed: True or False$"),
        ({"prioritization": "rank"}, "^prioritization is 'rank'"),
    ):
        with pytest.raises(per.Error, match=message):
            buffer.loader(**{"batch_size": 8, "exact": exact, **wrong})


def test_a_draw_that_is_refused_does_not_count(buffer):
    whole = one_buffer()
    for seed in range(5):
        steps = step_of(seed)
        whole.add(**steps)
        buffer.add(**steps)
    for scheme in ("stratified", "without_replacement"):
        for each in (whole, buffer):
            with pytest.raises(per.InvalidArgument, match=r"^n_step is 9"):
                each.sample(4, scheme=scheme, n_step=9)
    assert_same(whole.sample(16), buffer.sample(16))


def test_one_environment_needs_no_axis_of_environments(in_process):
    """Arrays without an axis of environments are not split along their first axis."""
    given = {"observation": [1.0, 2.0], "action": 0, "reward": [0.5], "terminated": [True], "truncated": False}
    whole = per.ReplayBuffer(40, FIELDS)
    buffer = per.ray.ReplayBuffer(40, FIELDS)
    for step in (given, {**given, "reward": 0.5}, {**given, "observation": [[3.0, 4.0]]}):
        step = {**step, "next_observation": step["observation"]}
        assert np.array_equal(whole.add(**step), buffer.add(**step))
    assert_same(whole.sample(8), buffer.sample(8))


@pytest.mark.parametrize("whole_step", [True, False])
def test_one_step_may_have_an_axis_of_steps(in_process, whole_step):
    fields = {**FIELDS, "tokens": per.Field(None, "int32", max_length=9)}
    whole = per.ReplayBuffer(ROWS * ENVS, fields, n_envs=ENVS, seed=7)
    buffer = per.ray.ReplayBuffer(ROWS * ENVS, fields, n_envs=ENVS, seed=7, shards=4)
    envs = [5, 0, 3, 2, 7, 1]
    for seed, env_ids in ((0, None), (1, envs)):
        n = ENVS if env_ids is None else len(envs)
        steps = {name: array[None] for name, array in step_of(seed, n).items()}
        if not whole_step:
            steps["terminated"], steps["reward"] = steps["terminated"][0], 0.5
        steps |= {"tokens": [[seed] * e for e in range(n)], "mask": np.arange(n)[None] != 1, "env_ids": env_ids}
        steps["priorities"] = np.arange(n)[None] + 1.0
        ids = buffer.add(**steps)
        assert ids.shape == ((1, n) if whole_step else (n,)) and np.array_equal(whole.add(**steps), ids)
    assert_same(whole.sample(32), buffer.sample(32))


TD_ERRORS = np.array([1.0, -2.0, 3.0, 4.0], np.float32)


@pytest.mark.parametrize(
    ("ids", "td_errors"),
    [
        ([0, 1, 2, 3], TD_ERRORS[:, None]),
        ([[0, 1], [2, 3]], TD_ERRORS.reshape(2, 2)),
        ([[0, 1], [-1, 3]], TD_ERRORS),
        ([3, 1, 0, 2], np.stack([TD_ERRORS, TD_ERRORS - 1])),
        ([3, 1, 0, 2], np.stack([TD_ERRORS, TD_ERRORS - 1])[:, :, None]),
        ([2], 7.0),
    ],
    ids=["column", "square", "ids of two axes", "critics", "critics in columns", "number"],
)
def test_values_may_have_the_shapes_that_one_buffer_takes(in_process, ids, td_errors):
    whole, buffer = both()
    for each in (whole, buffer):
        each.update_priorities(ids, td_errors)
    assert_same(whole.sample(32), buffer.sample(32))


def test_runs_may_be_longer_than_those_of_the_buffer_that_checks_them(buffer):
    with warnings.catch_warnings():
        warnings.simplefilter("error", per.PerWarning)
        steps = steps_of(np.random.default_rng(1), ENVS, ROWS - 2)
        buffer.extend(**steps)
    nothing = {name: array[:0] for name, array in steps.items()}
    assert buffer.extend(priorities=np.zeros((0, ENVS)), **nothing).shape == (0, ENVS)


def test_final_observations_may_have_rows_of_any_length(in_process):
    fields = {"observation": per.Field(None, max_length=5)}
    info = {"final_obs": [np.array([2.5, 2, 7]), None], "_final_obs": [True, False]}
    step = {"observation": [[1.0], [2.0, 3]], "next_observation": [[5.0, 5], []], "reward": [1, 1]}
    step |= {"terminated": [True, False], "truncated": [False, False], "info": info}
    options = {"n_envs": 2, "autoreset": "same_step"}
    whole, buffer = per.ReplayBuffer(40, fields, **options), per.ray.ReplayBuffer(40, fields, shards=2, **options)
    for each in (whole, buffer):
        each.add(**step)
    assert_same(whole.sample(8), buffer.sample(8))


def test_an_update_of_nothing_is_one(buffer):
    buffer.update_priorities([], priorities=[])
    buffer.update_priorities([], [])
    assert buffer.stats().updates == 0


def test_numbers_of_numpy_are_options_that_can_be_saved(in_process, tmp_path):
    options = {"n_envs": np.int32(4), "shards": np.int64(2), "overwrite": np.bool_(False), "alpha": np.float32(0.5)}
    buffer = per.ray.ReplayBuffer(np.int64(160), FIELDS, seed=np.uint64(3), **options)
    buffer.save(tmp_path)
    assert per.ray.ReplayBuffer.load(tmp_path).n_envs == 4


def test_a_handle_keeps_no_steps(buffer):
    for seed in range(5):
        buffer.add(**step_of(seed))
    assert len(buffer._steps._buffer) == 0


def test_a_mask_of_one_environment_may_have_an_axis(in_process):
    buffer = per.ray.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=1, shards=1)
    step = {"observation": np.zeros((1, 2)), "next_observation": np.ones((1, 2)), "reward": 1.0}
    for is_there in (True, False):
        ids = buffer.add(**step, terminated=False, truncated=False, mask=[is_there])
        assert np.ravel(ids).tolist() == [0 if is_there else -1]


@pytest.mark.parametrize("draw", ["sample", "loader", "ahead"])
@pytest.mark.parametrize("limits", [{}, LIMITS | {"samples_per_insert": 50.0, "samples_tolerance": 1000}])
def test_numbers_of_numpy_draw_as_those_of_python_do(in_process, tmp_path, draw, limits):
    given = {"n_step": np.int8(1), "beta": np.float32(0.5)}
    buffer = sharded_buffer(**limits)
    buffer.extend(**steps_of(np.random.default_rng(1), ENVS, 5))
    if draw == "sample":
        for _ in range(5):
            buffer.sample(np.uint8(200), uniform_fraction=np.float32(0.25), **given)
    else:
        with buffer.loader(np.uint8(200), slots=np.uint8(2), exact=np.bool_(draw == "loader"), **given) as batches:
            for _ in range(5):
                next(batches)
    buffer.save(tmp_path)
    assert json.loads((tmp_path / "coordinator.json").read_text())["limits"]["drawn"] % 200 == 0


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        (5, "^directory is 5; allowed: str, bytes, os.PathLike$"),
        (None, "^directory is None; allowed: str"),
        ("a\0b", r"^directory is 'a\\x00b'; allowed: paths without a NUL$"),
        ("", "^directory is ''; allowed: the path of a directory$"),
        (b"", "^directory is b''; allowed: the path of a directory$"),
    ],
)
def test_what_is_no_directory_is_refused(buffer, tmp_path, monkeypatch, directory, message):
    monkeypatch.chdir(tmp_path)
    for call in (buffer.save, per.ray.ReplayBuffer.load):
        with pytest.raises(per.InvalidArgument, match=message):
            call(directory)
    assert list(tmp_path.iterdir()) == []


def test_more_steps_than_a_call_may_have_are_not_waited_for(buffer):
    for count in (-1, (1 << 40) + 1):
        with pytest.raises(per.InvalidArgument, match=rf"^count is {count}: allowed are 0 \.\. {1 << 40}$"):
            buffer.wait_to_add(count)
    buffer.wait_to_add(1 << 40)


def test_a_limit_on_memory_is_divided_and_outlives_a_shard(in_process, tmp_path):
    fields = {"observation": per.Field(), "tokens": per.Field(None, "int32", max_length=2000)}
    buffer = per.ray.ReplayBuffer(600, fields, n_envs=3, shards=2, max_heap_bytes=900_001)

    def limits(of):
        return [shard.object._buffer.options["max_heap_bytes"] for shard in of._shards]

    def fill(of):
        zeros = np.zeros(3)
        step = {"observation": zeros, "tokens": [[1] * 2000] * 3, "reward": 0, "next_observation": zeros}
        for _ in range(60):
            of.add(**step, terminated=zeros == 0, truncated=False)

    expected = limits(buffer)
    assert sorted(expected) == [300_000, 600_000]
    with pytest.raises(per.Full, match="max_heap_bytes"):
        fill(buffer)
    buffer.save(tmp_path)
    for shard in buffer._shards:
        shard.die()
    for _ in range(3):  # finds them dead, and then back
        buffer.stats()
    for each in (buffer, per.ray.ReplayBuffer.load(tmp_path)):
        assert limits(each) == expected
        with pytest.raises(per.Full, match="max_heap_bytes"):
            fill(each)
