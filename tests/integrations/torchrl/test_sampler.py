"""per.integrations.torchrl.PrioritizedSampler in TorchRL's buffers, compared with TorchRL's own sampler."""

import copy
import io
import math
import pickle

import numpy as np
import per
import pytest
import torch
from per.integrations.torchrl import PrioritizedSampler
from tensordict import TensorDict
from torchrl import data as torchrl
from torchrl.data.replay_buffers.scheduler import LinearScheduler
from torchrl.data.replay_buffers.writers import TensorDictMaxValueWriter

STORAGES = (torchrl.LazyTensorStorage, torchrl.LazyMemmapStorage, torchrl.ListStorage)


def transitions(n, **entries):
    return TensorDict({"observation": torch.arange(n, dtype=torch.float32)[:, None], **entries}, [n])


def buffer_of(sampler, capacity=8, storage=torchrl.LazyTensorStorage, **options):
    return torchrl.TensorDictReplayBuffer(storage=storage(capacity), sampler=sampler, **options)


def filled(n=8, capacity=8, *, alpha=1.0, beta=1.0, eps=0.0, seed=1, priorities=None, **options):
    """A sampler with priorities of n indices, all 1 by default, and its storage."""
    sampler = PrioritizedSampler(capacity, alpha, beta, eps, seed=seed, **options)
    storage = torchrl.LazyTensorStorage(capacity)
    storage.set(range(n), transitions(n))
    sampler.update_priority(torch.arange(n), torch.ones(n) if priorities is None else torch.tensor(priorities))
    return sampler, storage


def priorities_of(sampler):
    given = sampler._buffer.priorities(np.arange(len(sampler._buffer)))
    return np.pad(given, (0, sampler.max_size - len(given)))


# ------------------------------------------------------------------------------------------------ draws and weights


def test_it_is_a_sampler_of_torchrl_that_its_buffers_update():
    sampler = PrioritizedSampler(8, 1.0, 1.0)
    assert isinstance(sampler, torchrl.PrioritizedSampler)
    buffer = buffer_of(sampler)
    buffer.extend(transitions(4))
    batch = buffer.sample(2)
    batch["td_error"] = torch.tensor([5.0, 5.0])
    buffer.update_tensordict_priority(batch)
    assert (priorities_of(sampler)[batch["index"]] == 5).all()


def test_an_exponent_that_is_refused_changes_nothing():
    sampler, _ = filled(alpha=0.6)
    with pytest.raises(per.InvalidArgument, match="alpha is nan"):
        sampler.alpha = math.nan
    assert sampler.alpha == sampler._buffer.alpha == pytest.approx(0.6)
    sampler.alpha = 0.7
    assert sampler.alpha == sampler._buffer.alpha == pytest.approx(0.7)


@pytest.mark.parametrize("alpha", [0.6, 1.3])
@pytest.mark.parametrize("scheme", ["independent", "stratified"])
def test_indices_are_drawn_in_proportion_to_p_to_the_alpha(alpha, scheme):
    # 200 batches of 500 draws with seed 1. Pearson's statistic with 31 degrees of freedom exceeds 61.1 with probability
    # 0.001 for independent draws, and less often for stratified draws.
    p = np.arange(1, 33, dtype=np.float32)
    sampler, storage = filled(32, 32, alpha=alpha, priorities=p.tolist(), scheme=scheme)
    counts = np.zeros(32)
    for _ in range(200):
        counts += np.bincount(sampler.sample(storage, 500)[0], minlength=32)
    expected = 100_000 * p**alpha / np.sum(p**alpha)
    assert np.sum((counts - expected) ** 2 / expected) < 61.1


def test_weights_are_those_of_the_paper_over_the_largest_of_the_buffer():
    # P = 1/7, 2/7, 4/7 with alpha 1: w = (P / min P)^-0.5 = 1, 2^-0.5, 0.5
    sampler, storage = filled(3, beta=0.5, priorities=[1.0, 2.0, 4.0])
    index, info = sampler.sample(storage, 64)
    assert set(index.tolist()) == {0, 1, 2}
    np.testing.assert_allclose(info["priority_weight"], torch.tensor([1, 2**-0.5, 0.5])[index], rtol=1e-6)


def test_weights_do_not_depend_on_what_else_is_in_the_batch():
    sampler, storage = filled(3, priorities=[0.01, 1.0, 4.0])
    index, info = sampler.sample(storage, 1)
    assert info["priority_weight"].item() == pytest.approx({0: 1, 1: 0.01, 2: 0.0025}[index.item()])


def test_weights_equal_those_of_torchrls_sampler():
    p = torch.rand(8) + 0.1
    ours, storage = filled(8, alpha=0.7, beta=0.6, eps=1e-3, priorities=p.tolist())
    theirs = torchrl.PrioritizedSampler(8, 0.7, 0.6, 1e-3)
    theirs.update_priority(torch.arange(8), p)
    weights = []
    for sampler in (ours, theirs):
        index, info = sampler.sample(storage, 256)
        assert index.dtype == torch.int64
        weights.append(dict(zip(index.tolist(), info["priority_weight"].tolist(), strict=True)))
    assert len(weights[0]) == 8
    assert weights[0] == pytest.approx(weights[1], rel=1e-5)


def test_the_same_seed_gives_the_same_draws_and_torchs_seed_decides_it():
    def draws(**seed):
        sampler, storage = filled(**{"seed": None, "scheme": "independent", **seed})
        return sampler.sample(storage, 32)[0].tolist()

    assert draws(seed=5) == draws(seed=5)
    assert draws(seed=5) != draws(seed=6)
    torch.manual_seed(3)
    first = draws()
    assert draws() != first
    torch.manual_seed(3)
    assert draws() == first


# ------------------------------------------------------------------------------------------------------- priorities


@pytest.mark.parametrize("within", [False, True])
def test_priorities_after_random_calls_are_those_of_torchrls_sampler(within):
    capacity, alpha, eps = 16, 0.7, 1e-3
    generator = np.random.default_rng(2)
    samplers = [
        kind(capacity, alpha, 0.5, eps, max_priority_within_buffer=within)
        for kind in (PrioritizedSampler, torchrl.PrioritizedSampler)
    ]
    buffers = [buffer_of(sampler, capacity) for sampler in samplers]
    written = 0
    for _ in range(200):
        if generator.random() < 0.4 or written == 0:
            n = int(generator.integers(1, 4))
            if within:  # TorchRL forgets the maximum of the others when the largest is overwritten
                n = min(n, capacity - written)
                if n == 0:
                    continue
            for buffer in buffers:
                buffer.extend(transitions(n))
            written += n
        else:
            index = torch.from_numpy(generator.permutation(min(written, capacity))[:5])
            p = torch.from_numpy(generator.exponential(2, len(index)).astype(np.float32))
            for buffer in buffers:
                buffer.update_priority(index, p)
        ours, theirs = samplers
        np.testing.assert_allclose(priorities_of(ours) ** alpha, theirs._sum_tree.leaves, rtol=1e-5)
        assert float(ours.default_priority) == pytest.approx(float(theirs.default_priority), rel=1e-4)


def test_what_is_written_gets_the_default_priority_again():
    sampler = PrioritizedSampler(4, 1.0, 1.0, 0.0)
    buffer = buffer_of(sampler, 4)
    assert sampler.default_priority == 1.0
    buffer.extend(transitions(4))
    assert priorities_of(sampler).tolist() == [1, 1, 1, 1]
    buffer.update_priority(torch.tensor([0, 1, 2]), torch.tensor([3.0, 0.5, 0.25]))
    buffer.extend(transitions(2))  # on 0 and 1
    assert priorities_of(sampler).tolist() == [3, 3, 0.25, 1]
    buffer.add(transitions(1)[0])  # on 2
    assert priorities_of(sampler).tolist() == [3, 3, 3, 1]


def test_the_largest_priority_is_of_now_where_that_is_asked_for():
    now, _ = filled(4, priorities=[1.0, 7.0, 2.0, 3.0], max_priority_within_buffer=True)
    ever, _ = filled(4, priorities=[1.0, 7.0, 2.0, 3.0])
    for sampler, expected in ((now, 3.0), (ever, 7.0)):
        assert sampler.default_priority == 7.0
        sampler.update_priority(1, 0.5)
        assert sampler.default_priority == expected


@pytest.mark.parametrize("eps", [1e-8, 1e-3, 0.3])
def test_the_default_priority_does_not_creep_when_it_is_given_back(eps):
    sampler, _ = filled(4, eps=eps, priorities=[1.7, 0.1, 0.2, 0.3])
    first = sampler.default_priority
    for i in range(1000):
        sampler.mark_update(i % 4)
    assert sampler.default_priority == first


def test_index_minus_one_is_skipped():
    sampler, _ = filled(3)
    sampler.update_priority(torch.tensor([-1, 2, -1]), torch.tensor([9.0, 5.0, 9.0]))
    sampler.update_priority(-1, 9.0)
    sampler.update_priority(torch.tensor([], dtype=torch.long), torch.tensor([]))
    assert priorities_of(sampler)[:3].tolist() == [1, 1, 5]


def test_one_priority_serves_all_indices_and_shapes_that_do_not_fit_are_refused():
    sampler, _ = filled(4)
    sampler.update_priority([0, 3], 2)
    sampler.update_priority(np.array([1]), np.array([[4.0]]))
    assert priorities_of(sampler)[:4].tolist() == [2, 4, 1, 2]
    with pytest.raises(per.InvalidArgument, match="3"):
        sampler.update_priority(torch.tensor([0, 1]), torch.ones(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_priority_that_is_not_finite_is_refused_and_changes_nothing(bad):
    sampler, storage = filled(2)
    with pytest.raises(ValueError, match=r"(?i)nan|inf"):
        sampler.update_priority(torch.tensor([0, 1]), torch.tensor([2.0, bad]))
    assert priorities_of(sampler)[:2].tolist() == [1, 1]
    sampler.sample(storage, 4)


@pytest.mark.parametrize(
    ("index", "priority", "said"),
    [
        ([1.7], [5.0], "index is of dtype torch.float32; allowed: whole numbers"),
        ([True, False], [5.0, 5.0], "index is of dtype torch.bool; allowed: whole numbers"),
        ([0, 15], [5.0, math.nan], "priority has NaN"),
        ([0, 15], math.inf, "priority has NaN or infinite"),
        ([0, 15], [5.0] * 3, r"priority has shape \[3\]; allowed: a number, or 2"),
        ([0, 1], [[5.0] * 2] * 2, r"priority has shape \[2, 2\]; allowed: a number, or 2"),
        ([0, 25], 5.0, "index is from 0 to 25; allowed: -1 to 19"),
        ([-2, 15], 5.0, "index is from -2 to 15; allowed: -1 to 19"),
        ([-2, 1], 5.0, "-2"),
    ],
)
def test_an_update_that_is_refused_changes_nothing_and_adds_no_index(index, priority, said):
    sampler, _ = filled(10, 20)
    with pytest.raises(per.InvalidArgument, match=said):
        sampler.update_priority(index, priority)
    assert len(sampler._buffer) == sampler._n_indices == 10
    assert priorities_of(sampler).tolist() == [1] * 10 + [0] * 10
    sampler.update_priority([-1, 15], 5.0)
    assert priorities_of(sampler).tolist() == [1] * 10 + [0] * 5 + [5] + [0] * 4


def test_priorities_of_any_sign_and_with_a_gradient_count_by_their_size():
    sampler, _ = filled(2)
    sampler.update_priority(torch.tensor([0, 1]), torch.tensor([-3.0, 2.0], requires_grad=True))
    assert priorities_of(sampler)[:2].tolist() == [3, 2]


def test_alpha_changes_exactly_also_away_from_0():
    p = [1.0, 4.0]
    sampler, storage = filled(2, alpha=0.0, priorities=p)
    assert sampler.sample(storage, 8)[1]["priority_weight"].tolist() == [1.0] * 8
    sampler.alpha = 0.5  # P in proportion to 1, 2
    index, info = sampler.sample(storage, 64)
    np.testing.assert_allclose(info["priority_weight"], torch.tensor([1.0, 0.5])[index], rtol=1e-6)
    assert priorities_of(sampler)[:2].tolist() == p


def test_a_scheduler_of_torchrl_moves_alpha_and_beta():
    buffer = buffer_of(PrioritizedSampler(8, 0.5, 0.25))
    schedulers = [LinearScheduler(buffer, name, final_value=1.0, num_steps=2) for name in ("alpha", "beta")]
    for scheduler in schedulers * 2:
        scheduler.step()
    assert (buffer.sampler.alpha, buffer.sampler.beta) == (1.0, 1.0)


@pytest.mark.parametrize(
    "option",
    [
        {"n_step": 3},
        {"n_envs": 2},
        {"frame_stack": 2},
        {"sequence_length": 2},
        {"max_age": 5},
        {"half_life": 3.0},
        {"max_times_sampled": 2},
        {"samples_per_insert": 1.0},
        {"uniform_fraction": 0.5},
        {"prioritization": "uniform"},
        {"normalize_weights": "batch_max"},
        {"fields": {}},
        {"epsilon": 0.1},
        {"max_priority": "now"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_that_would_give_other_probabilities_are_refused(option):
    with pytest.raises(per.InvalidArgument, match=f"^{next(iter(option))} is .*; allowed: "):
        PrioritizedSampler(8, 0.6, 0.4, **option)


def test_a_state_with_refused_options_is_refused():
    sampler, _ = filled(4)
    other = per.ReplayBuffer(**{**sampler._buffer.options, "uniform_fraction": 0.5})
    with pytest.raises(per.InvalidArgument, match=r"uniform_fraction is 0\.5; allowed: 0"):
        sampler.load_state_dict(other.state_dict())
    assert priorities_of(sampler)[:4].tolist() == [1] * 4


def test_arguments_that_are_not_allowed_are_refused():
    for arguments in ((8, -0.1, 0.4), (8, 0.6, -0.4), (0, 0.6, 0.4), (8, 0.6, 0.4, -1.0)):
        with pytest.raises(ValueError, match=r"allowed|must|rows"):
            PrioritizedSampler(*arguments)


# --------------------------------------------------------------------------------------------------------- storages


@pytest.mark.parametrize("storage", STORAGES)
def test_each_storage_is_sampled_by_priority_and_round_the_ring(storage):
    buffer = buffer_of(PrioritizedSampler(8, 1.0, 1.0, 0.0, seed=2), 8, storage, batch_size=16)
    buffer.extend(transitions(6))
    buffer.update_priority(torch.arange(6), torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0, 0.0]))
    batch = buffer.sample()
    assert set(batch["index"].tolist()) == {1, 3}
    assert (batch["observation"][:, 0] == batch["index"]).all()
    buffer.extend(transitions(5))  # indices 6, 7, 0, 1, 2
    batch = buffer.sample(256)
    assert set(batch["index"].tolist()) == {0, 1, 2, 3, 6, 7}


def test_a_storage_that_was_filled_before_is_drawn_from():
    storage = torchrl.LazyTensorStorage(8)
    storage.set(range(5), transitions(5))
    buffer = torchrl.TensorDictReplayBuffer(storage=storage, sampler=PrioritizedSampler(8, 0.6, 0.4))
    assert set(buffer.sample(256)["index"].tolist()) == set(range(5))


@pytest.mark.parametrize("full", [False, True])
def test_storages_of_two_dimensions(full):
    # 4 x 3 entries by time and environment, priority 10 t + n
    n_envs, steps = 3, 4 if full else 2
    storage = torchrl.LazyTensorStorage(12, ndim=2)
    sampler = PrioritizedSampler(12, 1.0, 1.0, 0.0, seed=3)
    buffer = torchrl.TensorDictReplayBuffer(storage=storage, sampler=sampler, dim_extend=0)
    place = torch.stack(torch.meshgrid(torch.arange(steps), torch.arange(n_envs), indexing="ij"), -1)
    buffer.extend(TensorDict({"place": place}, [steps, n_envs]))
    assert (priorities_of(sampler) > 0).sum() == steps * n_envs
    priority = (10 * place[..., 0] + place[..., 1]).float()
    buffer.update_priority(place.flatten(0, 1), priority.flatten())
    np.testing.assert_array_equal(priorities_of(sampler)[: steps * n_envs], priority.flatten())
    batch = buffer.sample(64)
    assert (batch["index"] == batch["place"]).all()
    assert (batch["index"] != 0).any(-1).all()  # (0, 0) has priority 0
    batch["td_error"] = torch.full((64,), 2.5)
    buffer.update_tensordict_priority(batch)
    found = priorities_of(sampler)[: steps * n_envs].reshape(steps, n_envs)
    assert (found[tuple(batch["index"].unbind(-1))] == 2.5).all()
    sampler.update_priority(torch.tensor([[-1, -1], [1, 1]]), torch.tensor([9.0, 8.0]), storage=storage)
    found = priorities_of(sampler)[: steps * n_envs].reshape(steps, n_envs)
    assert found[1, 1] == 8 and not (found == 9).any()


@pytest.mark.parametrize(
    "index", [[[0, 7]], [[1, -1]], [[-1, 1]], [[5, 0]], [[0, 0], [-2, -2]], [[1]], [[0, 0, 0]], 3, [[0.0, 1.0]]]
)
def test_an_index_outside_a_storage_of_two_dimensions_is_refused_and_changes_nothing(index):
    storage = torchrl.LazyTensorStorage(20, ndim=2)
    sampler = PrioritizedSampler(20, 1.0, 1.0, 0.0)
    buffer = torchrl.TensorDictReplayBuffer(storage=storage, sampler=sampler, dim_extend=0)
    buffer.extend(TensorDict({"observation": torch.zeros(5, 4)}, [5, 4]))
    assert storage.shape == (5, 4)
    with pytest.raises(per.InvalidArgument, match=r"^index .*; allowed: "):
        sampler.update_priority(index, 9.0, storage=storage)
    assert priorities_of(sampler).tolist() == [1] * 20


def test_a_writer_that_drops_entries_gives_index_minus_one_for_them():
    storage = torchrl.LazyTensorStorage(2)
    buffer = torchrl.TensorDictReplayBuffer(
        storage=storage,
        sampler=PrioritizedSampler(2, 1.0, 1.0, 0.0),
        writer=TensorDictMaxValueWriter(rank_key="td_error"),
    )
    buffer.extend(transitions(3, td_error=torch.tensor([[3.0], [5.0], [1.0]])))
    assert sorted(storage[:]["td_error"].flatten().tolist()) == [3, 5]
    assert set(buffer.sample(64)["index"].tolist()) == {0, 1}


@pytest.mark.parametrize(("reduction", "expected"), [("max", 6.0), ("min", 2.0), ("mean", 4.0), ("median", 4.0)])
def test_priorities_of_several_numbers_are_reduced(reduction, expected):
    sampler = PrioritizedSampler(8, 1.0, 1.0, 0.0, reduction=reduction)
    buffer = buffer_of(sampler)
    buffer.extend(transitions(2))
    batch = TensorDict({"index": torch.tensor([1]), "td_error": torch.tensor([[2.0, 4.0, 6.0]])}, [1])
    buffer.update_tensordict_priority(batch)
    assert priorities_of(sampler)[1] == expected


def test_batches_drawn_ahead_by_torchrls_threads():
    buffer = buffer_of(PrioritizedSampler(8, 1.0, 1.0), prefetch=2, batch_size=4)
    buffer.extend(transitions(8))
    for batch, _ in zip(buffer, range(5), strict=False):
        assert (batch["observation"][:, 0] == batch["index"]).all()
    buffer.shutdown()


# ------------------------------------------------------------------------------------------------------------ state


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 0.6, "scheme": "independent"}])
def test_what_was_not_written_is_not_drawn_where_priorities_do_not_count(options):
    sampler = PrioritizedSampler(100, beta=1.0, seed=1, **options)
    storage = torchrl.LazyTensorStorage(100)
    buffer = torchrl.TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=64)
    for _ in range(2):
        buffer.extend(transitions(10))
        assert sorted(set(sampler.sample(storage, 1000)[0].tolist())) == list(range(10))
        buffer.empty()
        with pytest.raises(RuntimeError, match="empty"):
            sampler.sample(storage, 4)


def test_nothing_written_or_all_emptied_is_an_error():
    buffer = buffer_of(PrioritizedSampler(8, 1.0, 1.0))
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample(4)
    buffer.extend(transitions(4))
    buffer.sample(4)
    buffer.empty()
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample(4)
    buffer.extend(transitions(2))
    assert set(buffer.sample(64)["index"].tolist()) == {0, 1}


def dumped(first, second, path):
    first.dumps(path / "buffer")
    second.loads(path / "buffer")


def by_state_dict(first, second, path):
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=False))


@pytest.mark.parametrize("move", [dumped, by_state_dict])
def test_a_loaded_buffer_goes_on_with_the_same_draws(move, tmp_path):
    first = buffer_of(PrioritizedSampler(8, 0.6, 0.4, 1e-3, seed=4), batch_size=16)
    first.extend(transitions(6))
    first.update_priority(torch.arange(6), torch.rand(6))
    first.sampler.beta = 0.7
    first.sample()
    second = buffer_of(PrioritizedSampler(8, 0.1, 0.1, seed=9), batch_size=16)
    second.extend(transitions(6))
    move(first, second, tmp_path)
    assert (second.sampler.alpha, second.sampler.beta) == (pytest.approx(0.6), pytest.approx(0.7))
    for _ in range(3):
        batches = [buffer.sample() for buffer in (first, second)]
        assert (batches[0] == batches[1]).all()
        for buffer, batch in zip((first, second), batches, strict=True):
            buffer.update_priority(batch["index"], batch["observation"][:, 0] + 0.5)
    assert first.sampler.default_priority == second.sampler.default_priority
    assert "eps=0.001" in repr(second.sampler)


@pytest.mark.parametrize("move", [dumped, by_state_dict])
def test_a_state_of_another_capacity_is_refused_and_changes_nothing(move, tmp_path):
    small = buffer_of(PrioritizedSampler(10, 0.7, 0.5), 10)
    large = buffer_of(PrioritizedSampler(100, 0.7, 0.5, 0.0, seed=3), 100)
    for buffer in (small, large):
        buffer.extend(transitions(10))
    large.update_priority(torch.arange(10), torch.arange(10.0))
    with pytest.raises(per.InvalidArgument, match="has max_capacity 10; allowed: the sampler's, 100"):
        move(small.sampler, large.sampler, tmp_path)
    assert priorities_of(large.sampler)[:10].tolist() == list(range(10))
    large.extend(transitions(50))
    assert set(large.sample(4000)["index"].tolist()) == set(range(1, 60))


def test_a_file_of_another_buffer_is_refused(tmp_path):
    (tmp_path / "buffer").mkdir()
    per.ReplayBuffer(10, {"observation": per.Field(3)}).save(tmp_path / "buffer" / "sampler.per")
    with pytest.raises(per.InvalidArgument, match="is a buffer with fields"):
        PrioritizedSampler(8, 0.6, 0.4).loads(tmp_path / "buffer")


@pytest.mark.parametrize("move", [dumped, by_state_dict])
def test_what_was_loaded_keeps_its_options_when_it_is_emptied(move, tmp_path):
    options = {"scheme": "independent", "keep_times_sampled": True, "max_priority_within_buffer": True}
    first, second = PrioritizedSampler(8, 0.6, 0.4, 1e-3, **options), PrioritizedSampler(8, 0.1, 0.1)
    move(first, second, tmp_path)
    expected = {name: value for name, value in first._buffer.options.items() if name != "seed"}
    for sampler in (second, copy.deepcopy(second)):
        sampler._empty()
        assert {name: value for name, value in sampler._buffer.options.items() if name != "seed"} == expected
        sampler.update_priority(torch.tensor([2]), torch.tensor([1.0]))
        assert set(sampler.sample(torchrl.ListStorage(8), 8)[0].tolist()) <= {0, 1, 2}


def test_a_sampler_is_copied_and_pickled_with_its_state():
    sampler, storage = filled(4, priorities=[1.0, 2.0, 3.0, 4.0])
    copies = [copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))]
    expected = sampler.sample(storage, 16)[0].tolist()
    for other in copies:
        assert other.sample(storage, 16)[0].tolist() == expected
