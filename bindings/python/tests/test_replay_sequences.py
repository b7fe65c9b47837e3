"""Sequences in Python: shapes in each kind of arrays, `out`, n_step, critics. test_replay_model.py compares their
contents with the naive model."""

import numpy as np
import per
import pytest

pytestmark = pytest.mark.usefixtures("each_way")

FIELDS = {
    "observation": per.Field(2, "float32"),
    "action": per.Field((), "int64"),
    "state": per.Field(3, "float32", role="recurrent_state"),
}


def filled(steps=6, fields=FIELDS, **options):
    """One episode of steps 0 .. steps - 1, the last one terminated: observation [t, -t], state 10 t, reward 1."""
    buffer = per.ReplayBuffer(100, fields, **{"sequence_length": 3, "burn_in": 1, "epsilon": 0.0} | options)
    t = np.arange(steps)
    buffer.extend(
        observation=np.stack([t, -t], 1),
        next_observation=np.stack([t + 1, -t - 1], 1),
        action=t,
        state=np.repeat(10.0 * t[:, None], 3, axis=1),
        reward=np.ones(steps),
        terminated=t == steps - 1,
        truncated=np.zeros(steps, bool),
    )
    return buffer


@pytest.mark.parametrize("arrays", ["numpy", "torch", "jax"])
def test_batch_has_a_value_for_each_step(arrays):
    if arrays != "numpy":
        pytest.importorskip(arrays)
    fields = FIELDS | {"action": per.Field((), "int32")} if arrays == "jax" else FIELDS
    buffer = filled(n_step=2, gamma=0.5, arrays=arrays, fields=fields)
    assert len(buffer) == 2
    batch = buffer.sample(16)
    shapes = {name: tuple(array.shape) for name, array in batch.items() if name != "ids"}
    steps = ("action", "reward", "discount", "gamma_m", "n_steps", "terminated", "truncated", "mask")
    assert shapes == {
        "observation": (16, 6, 2),
        "state": (16, 3),
        **dict.fromkeys(steps, (16, 4)),
        **dict.fromkeys(("weights", "priorities", "probabilities"), (16,)),
    }
    assert type(batch.mask).__module__.partition(".")[0] in (arrays, "jaxlib") and "bool" in str(batch.mask.dtype)
    assert "next_observation" not in batch
    starts = [int(state[0]) for state in np.asarray(batch.state)]
    assert set(starts) == {0, 30}
    row = starts.index(30)
    np.testing.assert_array_equal(np.asarray(batch.observation)[row, :, 0], [3, 4, 5, 6, 0, 0])
    expected = {
        "action": [3, 4, 5, 0],
        "reward": [1.5, 1.5, 1, 0],
        "discount": [0.25, 0, 0, 0],
        "gamma_m": [0.25, 0.25, 0.5, 0],
        "n_steps": [2, 2, 1, 0],
        "terminated": [0, 1, 1, 0],
        "truncated": [0, 0, 0, 0],
        "mask": [1, 1, 1, 0],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(np.asarray(batch[name])[row], values, err_msg=name)
    buffer.update_priorities(batch.ids, batch.reward)
    buffer.update_priorities(batch.ids, np.stack([batch.reward, batch.reward]))


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_out_is_written_again_for_the_same_n_step_only(arrays):
    if arrays == "torch":
        pytest.importorskip("torch")
    buffer = filled(n_step=2, arrays=arrays, seed=4)
    batch = buffer.sample(8)
    observation = batch.observation
    assert buffer.sample(8, out=batch) is batch and batch.observation is observation
    again = filled(n_step=2, arrays=arrays, seed=4)
    again.sample(8)
    np.testing.assert_array_equal(again.sample(8).ids, batch.ids)
    with pytest.raises(
        per.InvalidArgument, match=r"out.observation is float32\[8, 6, 2\]; allowed: float32\[8, 5, 2\]"
    ):
        buffer.sample(8, out=batch, n_step=1)


def test_n_step_decides_the_number_of_observations():
    buffer = filled(n_step=2)
    assert buffer.sample(4, n_step=1).observation.shape == (4, 5, 2)
    for n_step in (0, -1, 3, 70):
        with pytest.raises(per.InvalidArgument, match=f"n_step is {n_step}"):
            buffer.sample(4, n_step=n_step)
    buffer.n_step = 3
    assert buffer.sample(4).observation.shape == (4, 7, 2)
    buffer.n_step = 1
    assert buffer.sample(4).observation.shape == (4, 5, 2)
    walk = buffer.epochs(2, batch_size=1)
    assert next(walk).observation.shape == (1, 5, 2)
    buffer.n_step = 2
    with pytest.raises(per.InvalidArgument, match="n_step is 2: it was 1"):
        next(walk)
    buffer.n_step = 1
    assert sum(len(batch.ids) for batch in walk) == 3


def test_stacks_have_an_axis_after_time():
    buffer = filled(frame_stack=2)
    batch = buffer.sample(16)
    assert batch.observation.shape == (16, 5, 2, 2)
    row = [int(state) for state in batch.state[:, 0]].index(30)
    assert batch.observation[row, :, :, 0].tolist() == [[2, 3], [3, 4], [4, 5], [5, 6], [0, 0]]


def test_priorities_are_those_of_r2d2():
    buffer = filled(sequence_eta=0.75)
    errors = np.array([[9, 1, -4, 2.5], [9, -3, 1, np.nan]], np.float32)
    buffer.update_priorities([0, 3], errors)
    assert buffer.priorities([0, 3]).tolist() == [0.75 * 4 + 0.25 * 2.5, 0.75 * 3 + 0.25 * 2]
    buffer.update_priorities([3], [[[9, 1, 3, 9]], [[9, -3, 1, 9]]])
    assert buffer.priorities([3]).tolist() == [2]
    largest = filled(sequence_eta=0.75, critics="max")
    largest.update_priorities([3], [[[9, 1, 3, 9]], [[9, -3, 1, 9]]])
    assert largest.priorities([3]).tolist() == [3]


@pytest.mark.parametrize("arrays", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("burn_in", [0, 1, 2])
def test_td_errors_may_leave_the_burn_in_out(arrays, burn_in):
    make = pytest.importorskip("jax.numpy" if arrays == "jax" else arrays).asarray
    whole, short = filled(8, burn_in=burn_in, sequence_eta=0.75), filled(8, burn_in=burn_in, sequence_eta=0.75)
    ids = whole.live_ids()
    random = np.random.default_rng(3)
    for shape in ((), (2,)):
        errors = random.normal(size=(*shape, len(ids), burn_in + 3)).astype(np.float32)
        whole.update_priorities(ids, errors)
        for left_out in (make(errors[..., burn_in:].copy()), errors[..., burn_in:], errors[..., burn_in:].tolist()):
            short.update_priorities(ids, np.zeros((len(ids), 3), np.float32))
            short.update_priorities(ids, left_out)
            np.testing.assert_array_equal(short.priorities(ids), whole.priorities(ids))
    assert (short.priorities(ids) > 0).all()


@pytest.mark.parametrize("shape", [(2,), (2, 2), (2, 5), (3, 4), (4, 2), (2, 3, 4), (2, 2, 5), (1, 1, 2, 3)])
def test_td_errors_of_other_shapes_are_refused(shape):
    buffer = filled()
    allowed = r"\[2, 3\] or \[2, 4\] or \[n_critics, 2, 3\] or \[n_critics, 2, 4\], as ids has 2"
    with pytest.raises(per.InvalidArgument, match=r"td_errors has shape .*; allowed: " + allowed):
        buffer.update_priorities([0, 3], np.ones(shape, np.float32))
    assert buffer.priorities([0, 3]).tolist() == [1, 1]


def test_rows_by_id_are_single_steps():
    buffer = filled()
    rows = buffer.get([1, 2])
    assert rows.next_observation[:, 0].tolist() == [2, 3] and rows.state.shape == (2, 3)
    buffer.set([1], action=[77])
    batch = buffer.sample(16)
    assert batch.action[batch.ids == 0, 1].tolist() == [77] * int((batch.ids == 0).sum())


def test_nested_observations_of_sequences():
    fields = {"observation.x": per.Field(2), "observation.y": per.Field((), "int32")}
    buffer = per.ReplayBuffer(50, fields, sequence_length=3)
    for t in range(6):
        buffer.add(observation={"x": [t, t], "y": t}, reward=0.0, terminated=False, truncated=False)
    batch = buffer.sample(5)
    assert batch.observation["x"].shape == (5, 4, 2) and batch.observation["y"].shape == (5, 4)
    assert buffer.get([0]).next_observation["y"].tolist() == [1]


@pytest.mark.parametrize("n_step", [None, 1])
def test_loader_gives_what_sample_gives(n_step):
    buffer, twin = (filled(n_step=2, steps=9, seed=3) for _ in range(2))
    with buffer.loader(8, n_step=n_step) as batches:
        for _, batch in zip(range(5), batches, strict=False):
            expected = twin.sample(8, n_step=n_step)
            assert list(batch) == list(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(batch[name], array, err_msg=name)


def test_saved_sequences_go_on(tmp_path):
    buffer = filled(n_step=2, steps=9, seed=3)
    buffer.n_step = 1
    buffer.save(tmp_path / "replay.per")
    loaded = per.ReplayBuffer.load(tmp_path / "replay.per")
    batch, expected = loaded.sample(8), buffer.sample(8)
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array, err_msg=name)


def test_walks_over_sequences_with_advantages_of_each_step():
    fields = {"observation": per.Field(1, "int32"), "value": per.Field(), "advantage": per.Field()}
    buffer = per.ReplayBuffer(40, fields, gamma=0.5, sequence_length=2, overwrite=False)
    for t in range(5):
        buffer.add(
            observation=[t],
            value=1.0,
            advantage=0.0,
            reward=1.0,
            terminated=False,
            truncated=t == 4,
            next_observation=[t + 1],
        )
    buffer.advantages(gae_lambda=1.0, bootstrap=lambda rows: 2.0 * rows.next_observation[:, 0])
    np.testing.assert_allclose(buffer.get(range(5)).advantage, [1.25, 1.5, 2, 3, 5])
    seen = np.concatenate([batch.advantage[batch.mask] for batch in buffer.epochs(1, batch_size=2)])
    assert sorted(seen.tolist()) == [1.25, 1.5, 2, 3, 5]
