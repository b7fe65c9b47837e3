"""Windows by id: equal to a sample of the same ids, in every kind of array, without a draw."""

import numpy as np
import per
import pytest
from cuda_switch import IS_CUDA, reported

STEPS = 40
KINDS = {
    "n_step": {"n_step": 3},
    "stacks": {"frame_stack": 3, "n_step": 2},
    "next in arrays": {"store_next_observation": True, "n_step": 2},
    "sequences": {"sequence_length": 4, "burn_in": 1, "sequence_stride": 2, "n_step": 2},
}


def seen_at(places):
    """The environments' observations at these places."""
    places = np.asarray(places)
    image = np.add.outer(places, np.arange(6).reshape(2, 3)).astype(np.uint8)
    return {"image": image, "place": places.astype(np.float32)}


def filled(**options):
    """Two environments; a nested observation. Priorities 1, 2, .. by id."""
    fields = {"observation.image": per.Field((2, 3), "uint8"), "observation.place": per.Field((), "float32")}
    fields["action"] = per.Field((), "int32")
    buffer = per.ReplayBuffer(200, fields, n_envs=2, seed=4, beta=0.7, **options)
    for t in range(STEPS):
        terminated, truncated = np.array([t % 9 == 8, False]), np.array([False, t % 7 == 6])
        buffer.add(
            observation=seen_at([t, 100 + t]),
            next_observation=seen_at(np.array([t + 1, 101 + t]) + 50 * (terminated | truncated)),
            action=[t, -t],
            reward=[t, 2 * t],
            terminated=terminated,
            truncated=truncated,
        )
    ids = buffer.live_ids()
    buffer.update_priorities(ids, priorities=np.arange(1, len(ids) + 1, dtype=np.float32))
    return buffer


def arrays_of(batch):
    """Numpy arrays by name, nested ones too."""
    arrays = {name: batch[name] for name in batch if name != "observation" and name != "next_observation"}
    for name in ("observation", "next_observation"):
        arrays |= {f"{name}.{part}": array for part, array in batch.get(name, {}).items()}
    return {name: np.asarray(array) for name, array in arrays.items()}


def assert_same(batch, expected):
    batch, expected = arrays_of(batch), arrays_of(expected)
    assert batch.keys() == expected.keys()
    for name, array in expected.items():
        assert batch[name].dtype == array.dtype
        np.testing.assert_array_equal(batch[name], array, err_msg=name)


@pytest.mark.parametrize("arrays", [None] if IS_CUDA else ["numpy", "torch", "jax"])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_those_of_a_sample_of_the_same_ids(kind, arrays):
    if arrays is not None:
        pytest.importorskip(arrays)
    buffer = filled(**KINDS[kind], **({"arrays": arrays} if arrays else {}))
    for options in (
        {},
        {"prioritization": "rank", "normalize_weights": "none"},
        {"uniform_fraction": 0.5, "n_step": 1},
    ):
        batch = buffer.sample(24, **options)
        before = buffer.stats()
        windows = buffer.get_windows(batch.ids, **options)
        assert type(windows) is type(batch)
        assert_same(windows, batch)
        assert buffer.stats() == before
    twin = filled(**KINDS[kind])
    for options in (
        {},
        {"prioritization": "rank", "normalize_weights": "none"},
        {"uniform_fraction": 0.5, "n_step": 1},
    ):
        twin.sample(24, **options)
    np.testing.assert_array_equal(np.asarray(buffer.sample(9).reward), np.asarray(twin.sample(9).reward))


@pytest.mark.parametrize("kind", KINDS)
def test_out_is_written_and_returned(kind):
    buffer = filled(**KINDS[kind])
    batch = buffer.sample(5)
    expected = buffer.get_windows(batch.ids[::-1].copy())
    out = buffer.sample(5)
    assert buffer.get_windows(batch.ids[::-1].copy(), out=out) is out
    assert_same(out, expected)
    with pytest.raises(per.InvalidArgument, match=r"out\..* is .*\[5.*\]; allowed: .*\[3"):
        buffer.get_windows(batch.ids[:3], out=out)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_are_not_live_are_refused_or_leave_zeros(kind):
    buffer = filled(**KINDS[kind])
    good = int(buffer.live_ids()[3])
    batch = reported(buffer, lambda: buffer.get_windows([-1, good, 10**9], on_invalid="skip"))
    np.testing.assert_array_equal(np.asarray(batch.ids), [-1, good, -1])
    for name, array in arrays_of(batch).items():
        assert name == "ids" or not array[[0, 2]].any(), name
    single = buffer.get_windows([good])
    for name, array in arrays_of(single).items():
        np.testing.assert_array_equal(arrays_of(batch)[name][1], array[0], err_msg=name)
    before = buffer.stats()
    with pytest.raises(per.InvalidArgument, match="2 ids" if IS_CUDA else r"ids\[1\] is -1: no live"):
        reported(buffer, lambda: buffer.get_windows([good, -1, 10**9]))
    with pytest.raises(per.InvalidArgument, match="on_invalid is 'ignore'; allowed: 'error', 'skip'"):
        buffer.get_windows([good], on_invalid="ignore")
    with pytest.raises(per.InvalidArgument, match="n_step is 9"):
        buffer.get_windows([good], n_step=9)
    assert buffer.stats() == before
    empty = buffer.get_windows(np.zeros(0, np.int64))
    assert all(len(array) == 0 for array in arrays_of(empty).values())


def test_a_closed_buffer_is_an_error():
    buffer = filled()
    buffer.close()
    with pytest.raises(per.InvalidArgument, match="closed"):
        buffer.get_windows([1])


def goal_buffer():
    fields = {"observation": per.Field((), "int64"), "goal": per.Field((), "int64")}
    buffer = per.ReplayBuffer(100, fields, n_step=2, seed=6)
    steps = np.arange(30)
    buffer.extend(observation=steps, next_observation=steps + 1, goal=np.full(30, -1), reward=steps,
                  terminated=np.zeros(30), truncated=steps % 10 == 9)  # fmt: skip
    return buffer


def test_hindsight_gives_the_goals_of_a_draw_of_the_same_ids():
    her = per.Hindsight("observation", "goal", lambda achieved, goal: achieved == goal)
    drawn = goal_buffer().sample(32, hindsight=her, beta=0.5)
    buffer = goal_buffer()
    windows = buffer.get_windows(drawn.ids, hindsight=her, beta=0.5)
    for name in drawn:
        np.testing.assert_array_equal(np.asarray(windows[name]), np.asarray(drawn[name]), err_msg=name)
    assert buffer.stats().samples == 1

    def failing(achieved, goal):
        raise ZeroDivisionError("no goal")

    with pytest.raises(ZeroDivisionError, match="no goal"):
        buffer.get_windows(drawn.ids, hindsight=per.Hindsight("observation", "goal", failing))
    assert buffer.stats().samples == 1


def test_large_batches_are_selected_from():
    """LaBER (arXiv:2110.01528): from a uniform draw, selects the transitions with the largest errors by id."""
    buffer = filled(n_step=3)
    large = buffer.sample(64, prioritization="uniform")
    scores = np.asarray(large.reward)
    chosen = np.asarray(large.ids)[np.argsort(scores)[-16:]]
    batch = buffer.get_windows(chosen)
    np.testing.assert_array_equal(np.asarray(batch.ids), chosen)
    np.testing.assert_array_equal(np.asarray(batch.reward), np.sort(scores)[-16:])
