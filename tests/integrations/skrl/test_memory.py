"""per.integrations.skrl keeps the promises of skrl's memories, and draws by priority within episodes."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import per
import pytest
import torch
from per.integrations.skrl import PrioritizedMemory
from skrl.memories.torch import Memory, RandomMemory


def memory_of(size, n_envs=1, kind=PrioritizedMemory, **options):
    memory = kind(memory_size=size, num_envs=n_envs, device="cpu", **options)
    memory.create_tensor("observations", size=2, dtype=torch.float32)
    memory.create_tensor("rewards", size=1, dtype=torch.float32)
    memory.create_tensor("terminated", size=1, dtype=torch.bool)
    memory.create_tensor("truncated", size=1, dtype=torch.bool)
    return memory


class Model:
    """A naive model: for each environment a list of (row of the tensors, time, True if the episode ends)."""

    def __init__(self, size, n_envs):
        self.size, self.n_envs = size, n_envs
        self.lanes = [[] for _ in range(n_envs)]
        self.counts = [0] * n_envs

    def add(self, lane, end):
        row = self.counts[lane] % self.size * self.n_envs + lane
        self.lanes[lane] = [*self.lanes[lane], (row, self.counts[lane], end)][-self.size :]
        self.counts[lane] += 1

    def sequences(self, length):
        """The rows of each whole sequence, by its first row."""
        found = {}
        for lane in self.lanes:
            for begin in range(len(lane) - length + 1):
                part = lane[begin : begin + length]
                if not any(end for _, _, end in part[:-1]):
                    found[part[0][0]] = [row for row, _, _ in part]
        return found


def add(memory, model, random, how):
    """Calls add_samples in one of the ways that skrl allows, and does the same in the model."""
    n_envs = model.n_envs
    if how == "all":
        lanes = list(range(n_envs))
    elif how == "some":  # skrl may fill the environments of a step in several calls, in their order
        lanes = list(range(memory.env_index, random.integers(memory.env_index, n_envs) + 1))
    elif how == "one":
        lanes = [memory.env_index]
    else:
        lanes = [0] * int(random.integers(2, 6))
    terminated, truncated = random.random(len(lanes)) < 0.1, random.random(len(lanes)) < 0.1
    samples = {}
    rows = []
    for lane, ended in zip(lanes, terminated | truncated, strict=True):
        rows.append([model.counts[lane], lane])
        model.add(lane, bool(ended))
    samples["observations"] = torch.tensor(rows, dtype=torch.float32)
    samples["rewards"] = samples["observations"][:, :1]
    samples["terminated"] = torch.from_numpy(terminated)[:, None]
    samples["truncated"] = torch.from_numpy(truncated)[:, None]
    if how == "one":
        samples = {name: tensor[0] for name, tensor in samples.items()}
    memory.add_samples(**samples)


WAYS = [(1, "all"), (1, "one"), (1, "many"), (3, "all"), (3, "some"), (3, "one")]


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(("n_envs", "how"), WAYS)
def test_exactly_the_whole_sequences_of_one_episode_are_drawn(n_envs, how, length):
    """After each of 60 calls, 600 stratified draws give all sequences of the model. Priorities are equal."""
    random = np.random.default_rng([n_envs, length])
    memory, model = memory_of(12, n_envs, alpha=1.0), Model(12, n_envs)
    for _ in range(60):
        add(memory, model, random, how)
        expected = model.sequences(length)
        if not expected:
            with pytest.raises(per.Empty):
                memory.sample(["rewards"], batch_size=4, sequence_length=length)
            continue
        times, flags = memory.sample(["observations", "terminated"], batch_size=600, sequence_length=length)[0]
        rows = memory.get_sampling_indexes().reshape(600, length)
        assert {int(row[0]): row.tolist() for row in rows} == expected
        assert times.shape == (600 * length, 2)
        times = times.reshape(600, length, 2)
        assert (times[:, 1:, 0] == times[:, :-1, 0] + 1).all()
        assert (times[..., 1] == times[:, :1, 1]).all()
        assert not flags.reshape(600, length)[:, :-1].any()


@pytest.mark.parametrize(("n_envs", "how"), [way for way in WAYS if way[1] != "many"])
def test_the_tensors_are_those_of_skrls_memory(n_envs, how):
    ours, theirs = memory_of(12, n_envs), memory_of(12, n_envs, RandomMemory)
    for memory in (ours, theirs):
        random = np.random.default_rng(5)
        model = Model(12, n_envs)
        for _ in range(20):
            add(memory, model, random, how)
    assert isinstance(ours, Memory)
    assert (len(ours), ours.memory_index, ours.env_index) == (len(theirs), theirs.memory_index, theirs.env_index)
    for name in ours.get_tensor_names():
        torch.testing.assert_close(ours.get_tensor_by_name(name), theirs.get_tensor_by_name(name), equal_nan=True)
    names = ["rewards", "missing", "observations"]
    indexes = torch.tensor([3, 0, 3, 1])
    for mine, other in zip(
        ours.sample_by_index(names, indexes=indexes)[0], theirs.sample_by_index(names, indexes=indexes)[0], strict=True
    ):
        assert (mine is None and other is None) or torch.equal(mine, other)
    assert len(ours.sample_all(names, mini_batches=3)) == 3


def test_samples_given_together_are_stored_as_one_after_the_other():
    """skrl's memories store the second tensor of such a call behind the rows of the first one."""
    together, apart = memory_of(12), memory_of(12)
    steps = torch.arange(17.0)[:, None]
    together.add_samples(observations=steps.expand(-1, 2), rewards=steps)
    for step in steps:
        apart.add_samples(observations=step.expand(1, 2), rewards=step[None])
    assert torch.equal(together.get_tensor_by_name("observations"), apart.get_tensor_by_name("observations"))
    assert torch.equal(together.get_tensor_by_name("rewards"), apart.get_tensor_by_name("rewards"))
    assert (together.filled, together.memory_index) == (True, 5)


def filled(n_rows, **options):
    memory = memory_of(n_rows, **options)
    steps = torch.arange(n_rows, dtype=torch.float32)[:, None]
    memory.add_samples(observations=steps.expand(-1, 2), rewards=steps, terminated=torch.zeros(n_rows, 1, dtype=bool))
    return memory


def test_rows_are_drawn_in_proportion_to_their_errors():
    """In 1000 stratified draws a row of probability P always gets between 1000 P - 2 and 1000 P + 2."""
    memory = filled(10, alpha=0.5)
    memory.sample(["rewards"], batch_size=100)
    memory.update_priorities(memory.get_sampling_indexes().float().square() + 1)
    rewards = memory.sample(["rewards"], batch_size=1000)[0][0]
    drawn = np.bincount(rewards[:, 0].long(), minlength=10)
    probabilities = (np.arange(10.0) ** 2 + 1) ** 0.5
    assert (np.abs(drawn - 1000 * probabilities / probabilities.sum()) < 2.1).all()


def test_weights_are_those_of_the_paper():
    """w_i = (P(i) / min_j P(j))^-beta over the batch."""
    memory = filled(10, alpha=1.0, beta=0.5)
    memory.sample(["rewards"], batch_size=100)
    memory.update_priorities((memory.get_sampling_indexes().float() + 1)[:, None])
    rewards = memory.sample(["rewards"], batch_size=64)[0][0]
    assert memory.sampling_weights.shape == (64, 1)
    expected = (rewards + 1) ** -0.5
    torch.testing.assert_close(memory.sampling_weights, expected / expected.max(), rtol=1e-5, atol=0)


def test_the_errors_of_a_sequence_and_of_critics_make_one_priority():
    memory = filled(10, alpha=1.0, epsilon=0.0)
    memory.sample(["rewards"], batch_size=3, sequence_length=4)
    errors = torch.tensor([[1.0, -2.0, 3.0, 4.0], [5.0, 2.0, 8.0, -3.0]]).repeat(1, 3)
    memory.update_priorities(errors[..., None])
    starts = memory.get_sampling_indexes()[::4]
    assert memory.tree.priorities(starts).tolist() == [3.5] * 3


def test_weights_of_a_sequence_are_those_of_its_rows():
    memory = filled(10, alpha=1.0, beta=1.0)
    memory.sample(["rewards"], batch_size=200, sequence_length=2)
    memory.update_priorities(memory.get_sampling_indexes() + 1.0)
    memory.sample(["rewards"], batch_size=8, sequence_length=2)
    weights = memory.sampling_weights.reshape(8, 2)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert len(weights[:, 0].unique()) > 1


def test_rows_added_later_get_the_largest_priority_seen():
    memory = filled(10, alpha=1.0, epsilon=0.0)
    memory.sample(["rewards"], batch_size=5)
    memory.update_priorities(torch.full((5,), 7.0))
    memory.add_samples(observations=torch.zeros(1, 2), rewards=torch.full((1, 1), 50.0))
    assert memory.tree.priorities([0]).tolist() == [7.0]


def test_mini_batches_are_parts_of_what_was_drawn():
    memory = filled(10)
    batches = memory.sample(["rewards", "observations"], batch_size=10, mini_batches=3)
    assert [len(rewards) for rewards, _ in batches] == [4, 3, 3]
    together = torch.cat([rewards for rewards, _ in batches])
    assert torch.equal(together, memory.sample_by_index(["rewards"], indexes=memory.get_sampling_indexes())[0][0])


def test_after_reset_only_rows_added_since_are_drawn():
    memory = filled(10)
    memory.reset()
    with pytest.raises(per.Empty, match="priorities"):
        memory.sample(["rewards"], batch_size=2)
    memory.add_samples(observations=torch.zeros(1, 2), rewards=torch.full((1, 1), 50.0))
    assert memory.sample(["rewards"], batch_size=3)[0][0].tolist() == [[50.0]] * 3


def test_the_seed_decides_the_draws():
    torch.manual_seed(0)
    same = [filled(10, seed=3).sample(["rewards"], batch_size=32)[0][0] for _ in range(2)]
    assert torch.equal(*same)
    torch.manual_seed(0)
    first = filled(10).sample(["rewards"], batch_size=32)[0][0]
    torch.manual_seed(0)
    assert torch.equal(first, filled(10).sample(["rewards"], batch_size=32)[0][0])


@pytest.mark.parametrize("shape", [(6, 2), (3, 4), (4, 3, 2), (3, 12, 2), (3, 24), (6,), (1, 2, 12)])
def test_errors_of_another_shape_are_refused_and_change_nothing(shape):
    memory = filled(10)
    memory.sample(["rewards"], batch_size=4, sequence_length=3)
    before = memory.tree.priorities()
    with pytest.raises(per.InvalidArgument, match=r"td_errors has shape \[.*; allowed: \[12\]"):
        memory.update_priorities(torch.ones(shape))
    assert (memory.tree.priorities() == before).all()


def test_a_nan_error_changes_nothing():
    memory = filled(10)
    memory.sample(["rewards"], batch_size=2)
    before = memory.tree.priorities()
    with pytest.raises(per.InvalidArgument, match="priorities"):
        memory.update_priorities(torch.tensor([1.0, float("nan")]))
    assert (memory.tree.priorities() == before).all()


@pytest.mark.parametrize(
    "draw",
    [
        {"batch_size": 4, "sequence_length": 11},
        {"batch_size": 0, "sequence_length": 2},
        {"batch_size": 0},
        {"batch_size": 4, "names": 3},
        {"batch_size": 4, "names": "rewards", "sequence_length": 2},
        {"batch_size": 4, "names": None, "sequence_length": 2},
        {"batch_size": 4, "names": [["rewards"]], "sequence_length": 2},
        {"batch_size": 4, "sequence_length": 0},
        {"batch_size": 4, "sequence_length": -1},
        {"batch_size": 4, "sequence_length": 2.0},
        {"batch_size": 4, "sequence_length": 2, "mini_batches": "x"},
        {"batch_size": 4, "sequence_length": 2, "mini_batches": 2.5},
    ],
)
def test_a_draw_that_fails_changes_nothing(draw):
    memory = memory_of(10, alpha=1.0, epsilon=0.0, seed=3)
    add_rows(memory, *range(6))
    memory.sample(["rewards"], batch_size=6)
    memory.update_priorities(torch.arange(6.0))
    memory.sample(["rewards"], batch_size=2)
    drawn, before = memory.get_sampling_indexes(), memory.tree.priorities()
    with pytest.raises(per.Error):
        memory.sample(**{"names": ["rewards"], **draw})
    assert memory._sequence_length == 1
    assert (memory.tree.priorities() == before).all()
    assert torch.equal(memory.get_sampling_indexes(), drawn)
    memory.update_priorities(torch.full((2,), 70.0))
    assert {row for row, priority in enumerate(memory.tree.priorities()) if priority == 70} == set(drawn.tolist())


def add_rows(memory, *rewards, **flags):
    """Adds rows of one environment with these rewards."""
    for reward in rewards:
        value = torch.full((1, 1), float(reward))
        memory.add_samples(observations=value.expand(1, 2), rewards=value, **flags)


def rewards_drawn(memory, **options):
    """The rewards of all rows or sequences that can be drawn: the batch is large enough to have each of them."""
    return set(map(tuple, memory.sample(["rewards"], batch_size=600, **options)[0][0].reshape(600, -1).tolist()))


def test_an_error_of_a_row_that_was_written_over_touches_nothing():
    memory = memory_of(6, alpha=1.0, epsilon=0.0)
    add_rows(memory, *range(6))
    memory.sample(["rewards"], batch_size=60)
    drawn = memory.get_sampling_indexes()
    assert set(drawn.tolist()) == set(range(6))
    add_rows(memory, 6, 7)  # in the rows 0 and 1
    memory.update_priorities(torch.where(drawn < 2, 100.0, drawn + 3.0))
    assert memory.tree.priorities().tolist() == [1, 1, 5, 6, 7, 8]
    add_rows(memory, 8)  # the largest priority is 8, as no row has 100
    assert memory.tree.priorities([2]).tolist() == [8]
    memory.sample(["rewards"], batch_size=60)
    memory.reset()
    add_rows(memory, 9)
    memory.update_priorities(torch.full((60,), 50.0))
    assert memory.tree.priorities().tolist() == [8, 0, 0, 0, 0, 0]


def test_errors_of_another_number_than_was_drawn_are_refused():
    memory = filled(10)
    with pytest.raises(per.InvalidArgument, match=r"td_errors has shape \[2\]; allowed: \[0\]"):
        memory.update_priorities(torch.ones(2))
    memory.sample(["rewards"], batch_size=3, sequence_length=2)
    with pytest.raises(per.InvalidArgument, match=r"td_errors has shape \[4\]; allowed: \[6\]"):
        memory.update_priorities(torch.ones(4))


def saved(memory, folder, **options):
    """The file of a saved memory."""
    memory.save(str(folder), **options)
    (file,) = (folder / "memories").iterdir()
    return str(file)


def loaded(memory, folder, format):
    other = memory_of(10, alpha=1.0)
    other.load(saved(memory, folder, format=format))
    return other


WAYS_TO_COPY = {
    "deepcopy": lambda memory, _folder: copy.deepcopy(memory),
    "pickle": lambda memory, _folder: pickle.loads(pickle.dumps(memory)),
    "pt": lambda memory, folder: loaded(memory, folder, "pt"),
    "npz": lambda memory, folder: loaded(memory, folder, "npz"),
}


@pytest.mark.parametrize("way", WAYS_TO_COPY)
def test_a_copied_or_loaded_memory_goes_on_apart_with_the_same_rows_and_priorities(way, tmp_path):
    memory = memory_of(10, alpha=1.0)
    add_rows(memory, *range(13))
    memory.sample(["rewards"], batch_size=40, sequence_length=2)
    memory.update_priorities(memory.get_sampling_indexes() + 1.0)
    other = WAYS_TO_COPY[way](memory, tmp_path)
    assert torch.equal(torch.as_tensor(other.tree.priorities()), torch.as_tensor(memory.tree.priorities()))
    assert (len(other), other.memory_index) == (10, 3)
    for each in (memory, other):
        assert rewards_drawn(each, sequence_length=2) == {(float(t), t + 1.0) for t in range(3, 12)}
        add_rows(each, 13)
        assert rewards_drawn(each, sequence_length=2) == {(float(t), t + 1.0) for t in range(4, 13)}
    add_rows(other, 14)
    assert rewards_drawn(other) == {(float(t),) for t in range(5, 15)}
    assert rewards_drawn(memory) == {(float(t),) for t in range(4, 14)}


@pytest.mark.parametrize("format", ["pt", "npz"])
def test_a_file_of_skrls_memory_gives_its_rows_equal_priorities(format, tmp_path):
    theirs, memory = memory_of(10, kind=RandomMemory), memory_of(10, alpha=1.0)
    add_rows(theirs, 0, 1, 2, terminated=torch.zeros(1, 1), truncated=torch.zeros(1, 1))
    add_rows(theirs, 3, terminated=torch.ones(1, 1), truncated=torch.zeros(1, 1))
    add_rows(theirs, 4, 5, terminated=torch.zeros(1, 1), truncated=torch.zeros(1, 1))
    add_rows(memory, 50)
    memory.load(saved(theirs, tmp_path, format=format))
    assert memory.tree.priorities().tolist() == [1] * 6 + [0] * 4
    add_rows(memory, 6)
    assert rewards_drawn(memory, sequence_length=2) == {(0, 1), (1, 2), (2, 3), (4, 5), (5, 6)}


def test_a_file_of_another_memory_is_refused_and_changes_nothing(tmp_path):
    file, memory = saved(memory_of(12), tmp_path), filled(10)
    with pytest.raises(
        per.InvalidArgument, match=r"observations of .* is \[12, 1, 2\] of float32; allowed: \[10, 1, 2\] of"
    ):
        memory.load(file)
    with pytest.raises(per.InvalidArgument, match=r"alpha 0\.6; allowed: the memory's, 0\.9"):
        memory_of(12, alpha=0.9).load(file)
    with pytest.raises(per.InvalidArgument, match="the memory has no tensors yet"):
        PrioritizedMemory(memory_size=12, device="cpu").load(file)
    assert len(rewards_drawn(memory)) == 10


def without(name):
    return lambda data: data.pop(name)


def with_value(name, index, value):
    def change(data):
        data[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("libper.now"), "libper.now of .* is missing; allowed"),
        (without("rewards"), "rewards of .* is missing; allowed"),
        (lambda data: data.update(more=torch.zeros(3)), r"more of .* is \[3\] of float32; allowed: missing"),
        (lambda data: data.update({"libper.masses": torch.zeros(5)}), r"masses of .* is \[5\] of float32; allowed"),
        (
            lambda data: data.update(rewards=data["rewards"].double()),
            r"rewards of .* of float64; allowed: .* of float32",
        ),
        (lambda data: data.update({5: None}), "5 of .* is None; allowed: missing"),
        (lambda data: data.update(rewards=[1.0]), "rewards of .* is a list; allowed"),
        (with_value("libper.masses", 2, math.nan), "priorities that no memory has"),
        (with_value("libper.masses", 2, -1.0), "priorities that no memory has"),
        (with_value("libper.numbers", 1, math.inf), "priorities that no memory has"),
        (with_value("libper.counts", 0, 10), "places or priorities that no memory has"),
        (with_value("libper.counts", 3, 0), "places or priorities that no memory has"),
    ],
)
def test_a_damaged_file_is_refused_and_changes_nothing(change, said, tmp_path):
    file, memory = saved(filled(10, alpha=1.0), tmp_path), memory_of(10, alpha=1.0)
    add_rows(memory, 50, 51)
    data = torch.load(file)
    change(data)
    torch.save(data, file)
    with pytest.raises(per.InvalidArgument, match=said):
        memory.load(file)
    assert (memory.memory_index, memory.tree.priorities().tolist()) == (2, [1] * 2 + [0] * 8)
    assert rewards_drawn(memory) == {(50,), (51,)}


@pytest.mark.parametrize("name", ["alpha", "beta", "epsilon", "scheme"])
@pytest.mark.parametrize("value", ["x", None, math.nan, math.inf, -1.0])
def test_options_that_are_not_allowed_are_refused(name, value):
    with pytest.raises(per.InvalidArgument, match=f"^{name} is .*; allowed: "):
        memory_of(10, **{name: value})


def test_a_row_whose_power_is_too_small_for_float32_can_still_be_drawn():
    memory = filled(10, alpha=8.0)
    memory.sample(["rewards"], batch_size=10)
    memory.update_priorities(torch.zeros(10))
    assert (memory.tree.priorities() > 0).all()
    without_epsilon = filled(10, alpha=8.0, epsilon=0.0)
    without_epsilon.sample(["rewards"], batch_size=10)
    without_epsilon.update_priorities(torch.zeros(10))
    assert (without_epsilon.tree.priorities() == 0).all()


def test_an_export_has_the_row_that_filled_the_memory(tmp_path):
    memory = memory_of(4, alpha=1.0, export=True, export_directory=str(tmp_path))
    add_rows(memory, *range(4))
    (file,) = (tmp_path / "memories").iterdir()
    other = memory_of(4, alpha=1.0)
    other.load(str(file))
    assert rewards_drawn(other, sequence_length=2) == {(0, 1), (1, 2), (2, 3)}


def test_the_step_of_a_reset_is_not_drawn():
    memory = memory_of(20, autoreset="next_step")
    no, yes = torch.zeros(1, 1), torch.ones(1, 1)
    for first, ends in ((0, {"terminated": yes}), (10, {"truncated": yes}), (20, None)):
        add_rows(memory, first, first + 1, first + 2, terminated=no)
        if ends is None:
            memory.cut(yes)
        else:
            add_rows(memory, first + 3, **ends)
        add_rows(memory, 100 + first, terminated=no)
    assert rewards_drawn(memory) == {(0,), (1,), (2,), (3,), (10,), (11,), (12,), (13,), (20,), (21,), (22,)}
    sequences = {(0, 1, 2), (1, 2, 3), (10, 11, 12), (11, 12, 13), (20, 21, 22)}
    assert rewards_drawn(memory, sequence_length=3) == sequences


def test_a_truncated_step_whose_next_observation_is_not_its_own_is_not_drawn():
    memory = memory_of(20, autoreset="same_step")
    no, yes = torch.zeros(1, 1), torch.ones(1, 1)
    add_rows(memory, 0, 1)
    add_rows(memory, 2, truncated=yes, terminated=no)
    add_rows(memory, 3, 4)
    add_rows(memory, 5, terminated=yes, truncated=no)
    add_rows(memory, 6, 7)
    memory.cut(yes)
    add_rows(memory, 8)
    memory.cut(yes, is_known=yes)
    assert rewards_drawn(memory) == {(0,), (1,), (3,), (4,), (5,), (6,), (8,)}
    assert rewards_drawn(memory, sequence_length=2) == {(0, 1), (3, 4), (4, 5)}


def test_a_way_to_reset_that_does_not_exist_is_refused():
    with pytest.raises(per.InvalidArgument, match="autoreset is 'NEXT_STEP'; allowed: 'disabled'"):
        memory_of(10, autoreset="NEXT_STEP")
