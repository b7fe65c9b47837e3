"""per.integrations.tianshou keeps the promises of tianshou's prioritized buffers and of libper's tree."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import per
import pytest
import torch
from per.integrations.tianshou import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, SegmentTree
from tianshou import data
from tianshou.data import Batch

SINGLE = (PrioritizedReplayBuffer, data.PrioritizedReplayBuffer)
VECTOR = (PrioritizedVectorReplayBuffer, data.PrioritizedVectorReplayBuffer)


def steps(t: int, n_envs: int, done: bool = False) -> Batch:
    """The step of each environment at time t. An observation is the time and the environment."""
    return Batch(
        obs=np.array([[t, env] for env in range(n_envs)], np.float32),
        act=np.full(n_envs, t % 3),
        rew=np.full(n_envs, float(t)),
        terminated=np.full(n_envs, done),
        truncated=np.zeros(n_envs, bool),
        done=np.full(n_envs, done),
        obs_next=np.array([[t + 1, env] for env in range(n_envs)], np.float32),
    )


def new(kind: type, size: int, n_envs: int, **options: object) -> data.PrioritizedReplayBuffer:
    options = {"alpha": 0.6, "beta": 0.4, **options}
    return kind(size, **options) if n_envs == 1 else kind(size, n_envs, **options)


def filled(kind: type, size: int, n_envs: int, n_steps: int, **options: object) -> data.PrioritizedReplayBuffer:
    buffer = new(kind, size, n_envs, **options)
    for t in range(n_steps):
        buffer.add(steps(t, n_envs, done=t % 7 == 6), buffer_ids=list(range(n_envs)))
    return buffer


@pytest.fixture(params=[1, 3], ids=["one environment", "three environments"])
def n_envs(request):
    return request.param


@pytest.fixture
def kinds(n_envs):
    """The class of libper and that of tianshou."""
    return SINGLE if n_envs == 1 else VECTOR


def test_a_buffer_is_one_of_tianshous(kinds, n_envs):
    ours, theirs = kinds
    buffer = new(ours, 12, n_envs)
    assert isinstance(buffer, theirs)
    assert isinstance(buffer, data.PrioritizedReplayBuffer)
    assert isinstance(buffer, data.ReplayBufferManager) == (n_envs > 1)
    assert isinstance(buffer.weight, data.SegmentTree)


def test_rows_priorities_and_weights_are_those_of_tianshous_buffer(kinds, n_envs):
    """The buffers of both libraries get the same calls and return the same rows, before and after they wrap around."""
    random = np.random.default_rng(1)
    ours, theirs = (new(kind, 30, n_envs) for kind in kinds)
    for t in range(60):
        for buffer in (ours, theirs):
            buffer.add(steps(t, n_envs, done=t % 7 == 6), buffer_ids=list(range(n_envs)))
        indices = random.choice(ours.sample_indices(0), 8)
        assert (ours.sample_indices(0) == theirs.sample_indices(0)).all()
        mine, other = ours[indices], theirs[indices]
        assert sorted(mine.get_keys()) == sorted(other.get_keys())
        for key in ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "weight"):
            np.testing.assert_array_equal(mine[key], other[key], err_msg=key)
        assert mine.weight.dtype == other.weight.dtype
        errors = random.normal(size=8).astype(np.float32)
        ours.update_weight(indices, torch.from_numpy(errors))
        theirs.update_weight(indices, torch.from_numpy(errors))
        ours.set_beta(t / 60)
        theirs.set_beta(t / 60)
        assert ours.weight.reduce() == pytest.approx(theirs.weight.reduce(), rel=1e-6)
        assert ours.weight.reduce(3, -2) == pytest.approx(sum(theirs.weight[i] for i in range(3, 28)))


def test_each_row_is_drawn_in_proportion_to_its_priority(kinds, n_envs):
    """In n stratified draws a row of probability P always gets between n P - 2 and n P + 2."""
    buffer = filled(kinds[0], 30, n_envs, 40)
    priorities = np.random.default_rng(2).exponential(size=30)
    priorities[4] = 0.0
    buffer.weight[np.arange(30)] = priorities
    drawn = np.bincount(buffer.sample_indices(3000), minlength=30)
    assert (np.abs(drawn - 3000 * priorities / priorities.sum()) < 2 + 1e-2).all()
    assert drawn[4] == 0


def test_every_row_of_the_batch_is_live_and_weighs_what_the_paper_says(kinds, n_envs):
    """w_i = (P(i) / min_j P(j))^-beta, normalised by the batch's largest."""
    buffer = filled(kinds[0], 30, n_envs, 6, beta=0.7)
    buffer.update_weight(buffer.sample_indices(0)[:5], np.array([4.0, 1.0, 0.5, 9.0, 2.0]))
    batch, indices = buffer.sample(64)
    assert set(indices) <= set(buffer.sample_indices(0))
    expected = buffer.weight[indices] ** -0.7
    np.testing.assert_allclose(batch.weight, expected / expected.max(), rtol=1e-12)


def test_added_rows_get_the_largest_priority_seen(kinds, n_envs):
    buffer = filled(kinds[0], 30, n_envs, 2, alpha=0.5)
    assert buffer.weight[0] == 1.0
    buffer.update_weight(np.array([0]), np.array([-9.0]))
    index, *_ = buffer.add(steps(2, n_envs), buffer_ids=list(range(n_envs)))
    np.testing.assert_allclose(buffer.weight[index], 3.0, rtol=1e-6)


def test_of_equal_indices_the_last_priority_counts(kinds, n_envs):
    buffer = filled(kinds[0], 30, n_envs, 5, alpha=1.0)
    buffer.update_weight(np.array([1, 0, 1]), np.array([3.0, 5.0, 2.0]))
    np.testing.assert_allclose(buffer.weight[np.array([0, 1])], [5.0, 2.0], rtol=1e-6)
    assert buffer.weight.reduce() == pytest.approx(buffer.weight.reduce(0, 30), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_priority_that_is_no_number_is_an_error_and_changes_nothing(kinds, n_envs, bad):
    buffer = filled(kinds[0], 30, n_envs, 5)
    before, largest = buffer.weight[np.arange(30)].copy(), buffer._max_prio
    with pytest.raises(per.InvalidArgument, match="priorities"):
        buffer.update_weight(np.array([0, 1]), np.array([2.0, bad]))
    assert (buffer.weight[np.arange(30)] == before).all()
    assert buffer._max_prio == largest
    assert len(buffer.sample(8)[1]) == 8


def test_rows_whose_leaves_float32_cannot_hold_are_drawn_as_in_tianshou(kinds, n_envs):
    """Tianshou's leaf for a TD error of 0 is (2^-23)^7."""
    buffer = filled(kinds[0], 30, n_envs, 5, alpha=7.0)
    rows = buffer.sample_indices(0)
    buffer.update_weight(rows, np.zeros(len(rows)))
    assert buffer.weight[rows[0]] == 2.0**-161
    assert set(buffer.sample(len(rows))[1]) == set(rows)
    buffer.weight[rows] = 0.0
    assert buffer.weight.reduce() == 0.0


def test_random_seed_decides_the_draws_and_nothing_else_does(kinds, n_envs):
    buffers = [filled(kinds[0], 30, n_envs, 20, random_seed=seed) for seed in (5, 5, 6)]
    np.random.seed(0)
    state = np.random.get_state()[1].copy()
    first, second, third = (buffer.sample_indices(64) for buffer in buffers)
    assert (first == second).all()
    assert (first != third).any()
    assert (np.random.get_state()[1] == state).all()


@pytest.mark.parametrize("way", ["pickle", "copy", "hdf5"])
def test_a_loaded_buffer_goes_on_with_the_same_draws(kinds, n_envs, way, tmp_path):
    buffer = filled(kinds[0], 30, n_envs, 40)
    batch, indices = buffer.sample(16)
    buffer.update_weight(indices, batch.obs[:, 0] / 10)
    if way == "hdf5":
        buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))
        loaded = type(buffer).load_hdf5(str(tmp_path / "buffer.hdf5"))
    else:
        loaded = copy.deepcopy(buffer) if way == "copy" else pickle.loads(pickle.dumps(buffer))
    for t in range(40, 60):
        mine, mine_indices = buffer.sample(16)
        other, other_indices = loaded.sample(16)
        assert (mine_indices == other_indices).all()
        assert (mine.obs == other.obs).all()
        # tianshou's HDF5 files turn alpha into a number of numpy; powers of float32 are float64 from then on.
        np.testing.assert_allclose(mine.weight, other.weight, rtol=1e-6 if way == "hdf5" else 0)
        for one in (buffer, loaded):
            one.update_weight(mine_indices, mine.obs[:, 0] / 10)
            one.add(steps(t, n_envs), buffer_ids=list(range(n_envs)))


@pytest.mark.parametrize("way", ["pickle", "hdf5"])
def test_what_tianshous_buffer_saved_is_loaded(kinds, n_envs, way, tmp_path):
    ours, theirs = kinds
    buffer = filled(theirs, 30, n_envs, 40)
    buffer.update_weight(np.arange(30), np.arange(30.0))
    if way == "hdf5":
        buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))
        loaded = ours.load_hdf5(str(tmp_path / "buffer.hdf5"))
    else:
        loaded = ours.__new__(ours)
        loaded.__setstate__(pickle.loads(pickle.dumps(buffer.__dict__)))
    assert isinstance(loaded.weight, SegmentTree)
    assert (loaded.weight[np.arange(30)] == buffer.weight[np.arange(30)]).all()
    assert loaded.weight.reduce() == pytest.approx(buffer.weight.reduce(), rel=1e-6)
    assert (loaded[np.arange(30)].weight == buffer[np.arange(30)].weight).all()


def test_after_reset_only_rows_added_since_are_drawn(kinds, n_envs):
    buffer = filled(kinds[0], 30, n_envs, 40)
    buffer.reset()
    assert len(buffer) == 0
    assert buffer.weight.reduce() == 0.0
    buffer.add(steps(100, n_envs), buffer_ids=list(range(n_envs)))
    batch, _ = buffer.sample(32)
    assert (batch.rew == 100.0).all()


def test_rows_moved_from_another_buffer_can_be_drawn():
    source = filled(PrioritizedReplayBuffer, 30, 1, 9)
    buffer = PrioritizedReplayBuffer(40, alpha=0.6, beta=0.4)
    assert (buffer.update(source) == np.arange(9)).all()
    assert set(buffer.sample_indices(90)) == set(range(9))


@pytest.mark.parametrize("index", [3, -2, slice(None), slice(2, 6), [1, 4], np.array([5, 0])], ids=str)
def test_rows_are_indexed_as_in_tianshou(index):
    ours, theirs = (filled(kind, 8, 1, 11) for kind in SINGLE)
    if isinstance(index, list):
        assert (ours[index].weight == ours[np.array(index)].weight).all()
    else:
        np.testing.assert_array_equal(ours[index].weight, theirs[index].weight)
        np.testing.assert_array_equal(ours[index].obs, theirs[index].obs)


def test_an_empty_sample_is_as_in_tianshou(kinds, n_envs):
    ours, theirs = (filled(kind, 30, n_envs, 4) for kind in kinds)
    assert (ours.sample_indices(0) == theirs.sample_indices(0)).all()
    assert ours.sample_indices(-1).shape == (0,)
    assert len(ours.sample(None)[1]) == len(ours)


def test_the_tree_finds_what_tianshous_tree_finds():
    """At a border between leaves tianshou finds the leaf before it and libper the one after it, so borders are left
    out."""
    random = np.random.default_rng(3)
    values = random.random(100)
    ours, theirs = SegmentTree(100), data.SegmentTree(100)
    ours[np.arange(100)] = values
    theirs[np.arange(100)] = values
    prefix_sums = random.random(1000) * values.sum() * (1 - 1e-6)
    borders = np.cumsum(values)
    prefix_sums = prefix_sums[np.abs(prefix_sums[:, None] - borders).min(axis=1) > 1e-4]
    assert (ours.get_prefix_sum_idx(prefix_sums) == theirs.get_prefix_sum_idx(prefix_sums.copy())).all()
    assert ours.get_prefix_sum_idx(float(prefix_sums[0])) == theirs.get_prefix_sum_idx(float(prefix_sums[0]))
    assert len(ours) == 100


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        ([0, 1], [1.0, 1e39], r"priorities\[1\] is 1e\+39; allowed: up to 3.4028.*e\+38"),
        ([1.7], 5.0, "index has dtype float64; allowed: integers"),
        (1.7, 5.0, "index has dtype float64; allowed: integers"),
        ([True, False], 5.0, "index has dtype bool; allowed: integers"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_leaves_that_cannot_be_set_are_errors_and_change_nothing(index, value, message):
    tree = SegmentTree(4)
    tree[np.arange(4)] = 1.0
    with pytest.raises(per.InvalidArgument, match=message):
        tree[np.array(index)] = np.array(value)
    assert tree[np.arange(4)].tolist() == [1.0] * 4
    assert tree.reduce() == 4.0


def test_no_leaf_of_priority_0_is_found():
    tree = SegmentTree(4)
    tree[np.array([1, 3])] = 2.0
    assert tree.get_prefix_sum_idx(np.array([0.0, 1.9, 2.0, 3.9])).tolist() == [1, 1, 3, 3]


def test_the_example_trains(output_of_example):
    output = output_of_example("tianshou_cartpole", "--short")
    assert re.search(r"best mean return with libper: [0-9.]+", output)
