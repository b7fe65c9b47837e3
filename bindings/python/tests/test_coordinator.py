"""Shards and their coordinator: the concatenation of shards is one buffer, bit for bit; laws, scales and units."""

import dataclasses
from fractions import Fraction

import cuda_switch
import numpy as np
import per
import pytest
from per.coordinator import agree_on_scale

FIELDS = {"observation": per.Field((), "float32"), "action": per.Field((), "int64")}
ENVS = 8
ROWS = 40


class Shards:
    """Shards in this process that draw as one buffer."""

    def __init__(self, n_shards, **options):
        summary = {name: value for name, value in options.items() if name not in ("device", "arrays")}
        self.coordinator = per.Coordinator(ENVS * ROWS, n_shards, n_envs=ENVS, **summary)
        self.places = [self.coordinator.shard(s) for s in range(n_shards)]
        shapes = [{"capacity": place.capacity, "n_envs": place.n_envs} for place in self.places]
        self.buffers = [per.ReplayBuffer(fields=FIELDS, **{**options, **shape, "seed": 99}) for shape in shapes]
        self.settle()

    def settle(self, chooses_anew=False):
        agree_on_scale(self.coordinator, self.buffers, chooses_anew)

    def add(self, env_ids=None, **steps):
        largest = self.coordinator.state().max_priority
        env_ids = np.arange(ENVS) if env_ids is None else env_ids
        ids = np.empty(env_ids.size, np.int64)
        for s, (buffer, place) in enumerate(zip(self.buffers, self.places, strict=True)):
            buffer.raise_max_priority(largest)
            lanes = env_ids - place.first_env
            here = np.flatnonzero((lanes >= 0) & (lanes < place.n_envs))
            if here.size > 0:
                part = {name: array[here] for name, array in steps.items()}
                ids[here] = self.coordinator.ids(s, buffer.add(env_ids=lanes[here], **part))
        self.settle()
        return ids

    def sample(self, batch_size, **choices):
        round = self.coordinator.draw(batch_size, **choices)
        rows = [None] * batch_size
        while round is not None:
            found = np.empty((3, round.units.size), np.int64)
            for s, buffer in enumerate(self.buffers):
                here = np.flatnonzero(round.shards == s)
                batch, masses, first_units = buffer.get_units(round.units[here])
                found[:, here] = batch.ids, masses, first_units
                rows[: len(rows)] = placed(rows, here, batch)
            round = self.coordinator.submit(*found)
        drawn = self.coordinator.finish()
        if choices.get("scheme") == "without_replacement":
            shards, ids = self.coordinator.locate(drawn.ids)
            for s, buffer in enumerate(self.buffers):
                here = np.flatnonzero(shards == s)
                rows = placed(rows, here, buffer.get_windows(ids[here]))
        return drawn, rows

    def update(self, ids, **values):
        shards, local = self.coordinator.locate(ids)
        for s, buffer in enumerate(self.buffers):
            here = shards == s
            buffer.update_priorities(local[here], **{name: array[here] for name, array in values.items()})
        self.settle()


COLUMNS = ("observation", "next_observation", "action", "reward", "discount", "n_steps", "terminated", "priorities")


def placed(rows, places, batch):
    for j, i in enumerate(places):
        if i < len(rows):
            rows[i] = tuple(getattr(batch, name)[j] for name in COLUMNS)
    return rows


def steps_of(random):
    ends = random.random(ENVS) < 0.1
    return {
        "observation": np.zeros(ENVS, np.float32),
        "action": random.integers(9, size=ENVS),
        "reward": random.standard_normal(ENVS),
        "terminated": ends,
        "truncated": ends & False,
        "next_observation": np.where(ends, random.standard_normal(ENVS), 0).astype(np.float32),
    }


def assert_same(whole, drawn, rows):
    assert np.array_equal(whole.ids, drawn.ids)
    assert np.array_equal(whole.weights, drawn.weights)
    assert np.array_equal(whole.probabilities, drawn.probabilities)
    assert [tuple(getattr(whole, name)[i] for name in COLUMNS) for i in range(len(rows))] == rows


LAWS = [
    {},
    {"scheme": "independent"},
    {"scheme": "systematic", "normalize_weights": "buffer_max"},
    {"scheme": "without_replacement"},
    {"scheme": "without_replacement", "prioritization": "uniform"},
    {"uniform_fraction": 0.3, "normalize_weights": "none"},
    {"prioritization": "uniform", "n_step": 3},
    {"scheme": "independent", "uniform_fraction": 0.01, "normalize_weights": "buffer_max"},
]


@pytest.mark.parametrize("n_shards", [2] if cuda_switch.IS_CUDA else [1, 2, 3, 8])
@pytest.mark.parametrize("summary", LAWS, ids=lambda summary: "-".join(map(str, summary.values())) or "defaults")
def test_shards_draw_what_one_buffer_draws(summary, n_shards):
    random = np.random.default_rng(5)
    choices = {name: value for name, value in summary.items() if name != "n_step"}
    whole = per.ReplayBuffer(ENVS * ROWS, FIELDS, n_envs=ENVS, seed=7, beta_steps=100, **summary)
    shards = Shards(n_shards, seed=7, beta_steps=100, **summary)
    size = 1.0
    n_drawn = 0
    scales = set()
    n_steps = 25 if cuda_switch.IS_CUDA else 150  # of which the simulated GPU takes its time
    for step in range(n_steps):
        steps = steps_of(random)
        assert np.array_equal(whole.add(**steps), shards.add(**steps))
        if step == n_steps * 3 // 5:
            whole.alpha = 0.9
            for buffer in shards.buffers:
                buffer.alpha = 0.9
            shards.settle(chooses_anew=True)
        if step == n_steps * 4 // 5:
            for buffer in [whole, *shards.buffers]:
                buffer.clear()
            shards.settle()
        if len(whole) < 24:
            continue
        batch = whole.sample(16)
        drawn, rows = shards.sample(16, **choices)
        assert_same(batch, drawn, rows)
        n_drawn += 1
        size *= 10.0 ** random.integers(-3, 4)  # orders of magnitude, so the scale has to change
        size = min(max(size, 1e-12), 1e12)
        errors = random.standard_normal(16).astype(np.float32) ** 3 * np.float32(size)
        errors[random.random(16) < 0.1] = 0.0
        whole.update_priorities(batch.ids, errors)
        shards.update(drawn.ids, td_errors=errors)
        state = shards.coordinator.state()
        assert state.total_mass * 2.0**-state.scale == whole.stats().total
        assert state.max_priority == whole.stats().max_priority
        scales.add(state.scale)
    assert n_drawn > n_steps // 2
    assert len(scales) > 1


FRESH = [
    {"half_life": 1.0},
    {"half_life": 0.3, "scheme": "without_replacement"},
    {"half_life": 0.9, "scheme": "systematic", "normalize_weights": "buffer_max", "uniform_fraction": 0.2},
    {"half_life": 0.8, "max_age": 12, "n_step": 3, "scheme": "independent"},
    {"half_life": 1.0, "age": "versions", "max_age": 9},
    {"half_life": 0.1, "age": "versions", "normalize_weights": "buffer_max", "scheme": "without_replacement"},
    {"max_age": 5, "age": "versions", "normalize_weights": "none"},
]


class Pace:
    """The lanes that advance at a step: each stands still for some time now and then, up to all of a shard."""

    def __init__(self, random):
        self.random, self.left = random, np.zeros(ENVS, int)

    def lanes(self):
        self.left = np.maximum(self.left - 1, 0)
        if self.random.random() < 0.1:
            first, size = self.random.integers(ENVS), self.random.integers(1, 5)
            self.left[first : first + size] = self.random.integers(1, 40)
        return np.flatnonzero(self.left == 0) if np.any(self.left == 0) else np.arange(ENVS)


@pytest.mark.parametrize("n_shards", [2] if cuda_switch.IS_CUDA else [1, 2, 3, 8])
@pytest.mark.parametrize("law", FRESH, ids=lambda law: "-".join(map(str, law.values())))
def test_shards_with_a_half_life_draw_what_one_buffer_draws(law, n_shards, tmp_path):
    random = np.random.default_rng(11)
    options = {"seed": 7, "beta_steps": 100, **law}
    whole = per.ReplayBuffer(ENVS * ROWS, FIELDS, n_envs=ENVS, **options)
    shards = Shards(n_shards, **options)
    pace, size, version, references, n_drawn = Pace(random), 1.0, 0, set(), 0
    n_steps = 60 if cuda_switch.IS_CUDA else 250
    for step in range(n_steps):
        if "age" in law and random.random() < 0.5:
            version += 100 if random.random() < 0.05 else int(random.integers(1, 4))
            for buffer in [whole, *shards.buffers]:
                buffer.set_version(version)
            shards.settle()
        lanes = pace.lanes()
        steps = {name: array[lanes] for name, array in steps_of(random).items()}
        size = min(max(size * 10.0 ** random.integers(-3, 4), 1e-20), 1e12)
        if random.random() < 0.5:
            steps["priorities"] = (random.random(lanes.size) * size).astype(np.float32)
        assert np.array_equal(whole.add(env_ids=lanes, **steps), shards.add(lanes, **steps))
        if step == n_steps // 2:
            whole.alpha = 0.9
            for buffer in shards.buffers:
                buffer.alpha = 0.9
            shards.settle(chooses_anew=True)
        if step == n_steps * 2 // 3:
            shards.buffers[-1].save(tmp_path / "shard.per")
            shards.buffers[-1] = per.ReplayBuffer.load(tmp_path / "shard.per")
            shards.settle()
        if step == n_steps * 4 // 5:
            for buffer in [whole, *shards.buffers]:
                buffer.clear()
            shards.settle()
        state, summary = shards.coordinator.state(), whole.summarize()
        assert (state.live, state.total_mass, state.reference) == (summary.live, summary.total_mass, summary.reference)
        assert state.scale == summary.scale or state.total_mass == 0
        references.add(state.reference)
        if len(whole) < 24:
            continue
        batch = whole.sample(8)
        assert_same(batch, *shards.sample(8, **{name: law[name] for name in ("scheme",) if name in law}))
        n_drawn += 1
        errors = (random.standard_normal(8) * size).astype(np.float32)
        errors[random.random(8) < 0.1] = 0.0
        whole.update_priorities(batch.ids, errors)
        shards.update(batch.ids, td_errors=errors)
    assert n_drawn > n_steps // 4
    assert len(references) > (2 if "half_life" in law else 0)


def test_without_replacement_takes_out_what_holds_most_of_the_mass():
    """A few transitions hold nearly all: rounds repeat them, they are removed, and later rounds find the others."""
    most_rounds = 0
    random = np.random.default_rng(1)
    whole = per.ReplayBuffer(ENVS * ROWS, FIELDS, n_envs=ENVS, seed=2, scheme="without_replacement", alpha=1.0)
    shards = Shards(4, seed=2, scheme="without_replacement", alpha=1.0)
    for _ in range(30):
        steps = steps_of(random)
        whole.add(**steps)
        shards.add(**steps)
    live = whole.live_ids()
    for _ in range(20):
        priorities = (10.0 ** random.uniform(-14, 0, live.size)).astype(np.float32)
        whole.update_priorities(live, priorities=priorities)
        shards.update(live, priorities=priorities)
        rounds = 0
        round = shards.coordinator.draw(100)
        while round is not None:
            rounds += 1
            found = np.empty((3, round.units.size), np.int64)
            for s, buffer in enumerate(shards.buffers):
                here = round.shards == s
                batch, masses, first_units = buffer.get_units(round.units[here])
                found[:, here] = batch.ids, masses, first_units
            round = shards.coordinator.submit(*found)
        batch, drawn = whole.sample(100), shards.coordinator.finish()
        most_rounds = max(most_rounds, rounds)
        assert np.array_equal(batch.ids, drawn.ids)
        assert np.array_equal(batch.weights, drawn.weights)
    assert most_rounds > 3


def filled(priorities=(1.0, 2.0, 0.5, 0.25), **options):
    """One lane with alpha 1 and one live transition per priority."""
    options = {"alpha": 1.0, **options}
    buffer = per.ReplayBuffer(20, FIELDS, **options)
    n = len(priorities) + 1
    zeros = np.zeros(n)
    buffer.extend(observation=np.arange(n), action=[0] * n, reward=zeros, terminated=zeros, truncated=zeros)
    buffer.update_priorities(np.arange(n - 1), priorities=np.array(priorities, np.float32))
    return buffer


def test_a_law_has_the_whole_numbers_of_draws():
    buffer = filled(normalize_weights="buffer_max")
    buffer.set_scale(2)
    summary = buffer.summarize()
    assert (summary.total_mass, summary.smallest_mass, summary.live, summary.scale) == (4 + 8 + 2 + 1, 1, 4, 2)
    assert summary.is_scale_fixed
    assert summary.max_priority == 2.0
    assert (summary.measured_scale, summary.measured_mass, summary.largest_leaf) == (None, 0, 0.0)
    changes = summary.changes
    buffer.update_priorities([0], priorities=[3.0])
    summary = buffer.summarize(-1)
    assert summary.changes > changes
    # ceil(1.5) + 1 + ceil(0.25) + ceil(0.125), and the largest leaf below 2^2: 2^(45 - 1).
    assert (summary.measured_scale, summary.measured_mass, summary.largest_leaf, summary.scale_needed) == (
        -1,
        5,
        3.0,
        44,
    )
    assert filled().summarize().smallest_mass == 0


def test_a_scale_that_does_not_fit_is_refused_with_those_that_do():
    buffer = filled()
    # 2^52 - 1 is the largest mass: 2 * 2^50 is not below it.
    with pytest.raises(per.InvalidArgument, match=r"scale is 51: allowed are -120 \.\. 50"):
        buffer.set_scale(51)
    with pytest.raises(per.InvalidArgument, match=r"scale is -121: allowed are -120 \.\. 50"):
        buffer.set_scale(-121)
    for call in (buffer.set_scale, buffer.summarize):
        with pytest.raises(per.InvalidArgument, match=r"scale is 2147483648; allowed: -2147483648 to 2147483647"):
            call(2**31)
    assert not buffer.summarize().is_scale_fixed
    buffer.set_scale(50)
    assert buffer.summarize().total_mass == 2**50 + 2**51 + 2**49 + 2**48
    with pytest.raises(per.InvalidArgument):
        buffer.set_scale(51)
    assert buffer.summarize().scale == 50
    assert filled(()).summarize().scale == 0


def test_a_fixed_scale_stays_until_leaves_are_too_large_for_it():
    buffer = filled()
    automatic = buffer.summarize(0).scale_needed
    buffer.set_scale(20)
    buffer.update_priorities(np.arange(4), priorities=np.full(4, 1e-20, np.float32))
    assert (buffer.summarize().total_mass, buffer.summarize().scale) == (4, 20)
    buffer.clear()
    assert (buffer.summarize().scale, buffer.summarize().is_scale_fixed) == (20, True)
    buffer = filled()
    buffer.set_scale(20)
    buffer.update_priorities([0], priorities=[2.0**33])
    summary = buffer.summarize(0)
    assert not summary.is_scale_fixed
    assert summary.scale == summary.scale_needed < 20
    buffer = filled()
    buffer.set_scale(20)
    buffer.alpha = 1.0
    assert (buffer.summarize().scale, buffer.summarize().is_scale_fixed) == (automatic, False)
    buffer.set_scale(20)
    buffer.set_scale(None)
    assert (buffer.summarize().scale, buffer.summarize().is_scale_fixed) == (automatic, False)


def test_a_checkpoint_has_the_scale_but_not_that_it_was_set(tmp_path):
    buffer = filled()
    buffer.set_scale(20)
    buffer.save(tmp_path / "buffer.per")
    summary = per.ReplayBuffer.load(tmp_path / "buffer.per").summarize()
    assert (summary.scale, summary.is_scale_fixed, summary.total_mass) == (20, False, buffer.summarize().total_mass)


def test_each_unit_belongs_to_one_transition():
    buffer = filled()
    buffer.set_scale(2)
    batch, masses, first_units = buffer.get_units(np.arange(15))
    assert batch.ids.tolist() == [0] * 4 + [1] * 8 + [2] * 2 + [3]
    assert masses.tolist() == [4] * 4 + [8] * 8 + [2] * 2 + [1]
    assert first_units.tolist() == [0] * 4 + [4] * 8 + [12] * 2 + [14]
    assert batch.observation.tolist() == batch.ids.tolist()
    assert batch.priorities.tolist() == [1.0] * 4 + [2.0] * 8 + [0.5] * 2 + [0.25]
    buffer.update_priorities([1], priorities=[0.0])
    batch, masses, first_units = buffer.get_units([-1, -2, -3, -4, 4])
    assert batch.ids.tolist() == [0, 1, 2, 3, 2]
    assert masses.tolist() == [4, 0, 2, 1, 2]
    assert first_units.tolist() == [0, 4, 4, 6, 4]
    assert buffer.get_units([]).masses.tolist() == []


@pytest.mark.skipif(cuda_switch.IS_CUDA, reason="on CUDA they are skipped and reported")
def test_units_that_there_are_not_are_refused():
    buffer = filled()
    buffer.set_scale(2)
    with pytest.raises(per.InvalidArgument, match=r"units\[2\] is 15: allowed are -4 \.\. 14"):
        buffer.get_units([0, -4, 15, 99])
    with pytest.raises(per.InvalidArgument, match=r"units\[0\] is -5: allowed are -4 \.\. 14"):
        buffer.get_units([-5])


@pytest.mark.skipif(not cuda_switch.IS_CUDA, reason="in host memory they are refused")
def test_units_that_there_are_not_are_skipped_on_a_device():
    buffer = filled()
    buffer.set_scale(2)
    batch, masses, _ = buffer.get_units([0, -5, 14, 15])
    assert batch.ids.tolist() == [0, -1, 3, -1]
    assert masses.tolist() == [4, 0, 1, 0]
    assert batch.weights[[1, 3]].tolist() == [0, 0]
    with pytest.raises(per.InvalidArgument, match="2"):
        buffer.synchronize()


def test_the_largest_priority_can_be_raised_and_not_lowered():
    buffer = filled()
    buffer.raise_max_priority(9.0)
    buffer.raise_max_priority(4.0)
    assert buffer.stats().max_priority == 9.0
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(per.InvalidArgument):
            buffer.raise_max_priority(wrong)


def test_what_shards_cannot_have_is_refused_by_name():
    with pytest.raises(per.Unsupported, match="prioritization is 'rank'"):
        per.Coordinator(100, 2, n_envs=2, prioritization="rank")
    with pytest.raises(per.Unsupported, match="max_priority is 'now'"):
        per.Coordinator(100, 2, n_envs=2, max_priority="now")
    with pytest.raises(per.Unsupported, match="min_size_to_sample 7: a coordinator has no rate limiter"):
        per.Coordinator(100, 2, n_envs=2, min_size_to_sample=7)
    for name, value in (("device", "cpu"), ("storage", "folder"), ("storage_preallocated", True), ("arrays", "torch")):
        with pytest.raises(per.InvalidArgument, match=f"^{name} is no option of a coordinator"):
            per.Coordinator(100, 2, n_envs=2, **{name: value})
    with pytest.raises(per.InvalidArgument, match=r"n_shards is 3: allowed are 1 \.\. 2"):
        per.Coordinator(100, 3, n_envs=2)
    shards = Shards(2)
    with pytest.raises(per.Empty):
        shards.coordinator.draw(4)
    shards.add(**steps_of(np.random.default_rng(0)))
    with pytest.raises(per.Unsupported, match="prioritization is 'rank'"):
        shards.coordinator.draw(4, prioritization="rank")
    with pytest.raises(per.Unsupported, match=r"uniform_fraction is 0\.5"):
        shards.coordinator.draw(4, scheme="without_replacement", uniform_fraction=0.5)
    with pytest.raises(per.Unsupported, match="normalize_weights is 'buffer_max'"):
        shards.coordinator.draw(4, normalize_weights="buffer_max")
    with pytest.raises(per.InvalidArgument, match="batch_size is 99: only 8 transitions"):
        shards.coordinator.draw(99, scheme="without_replacement")


def test_a_coordinator_wants_to_be_told_and_settled_first():
    coordinator = per.Coordinator(100, 2, n_envs=2)
    buffers = [per.ReplayBuffer(50, FIELDS) for _ in range(2)]
    with pytest.raises(per.InvalidArgument, match="shard 0 has not reported"):
        coordinator.agree_on_scale()
    for s, buffer in enumerate(buffers):
        coordinator.report(s, buffer.summarize())
    with pytest.raises(per.InvalidArgument, match="per_coordinator_agree_on_scale"):
        coordinator.draw(4)
    assert coordinator.agree_on_scale() == ("set", 0, 0)
    with pytest.raises(per.InvalidArgument, match="shard 0 was to get the scale 0, and has not told so"):
        coordinator.agree_on_scale()
    agree_on_scale(coordinator, buffers)
    with pytest.raises(per.InvalidArgument, match="no round is under way"):
        coordinator.submit([], [])
    with pytest.raises(per.InvalidArgument, match="no batch has been found"):
        coordinator.finish()


def test_a_shard_that_is_gone_takes_its_mass_with_it():
    shards = Shards(4)
    random = np.random.default_rng(0)
    for _ in range(5):
        shards.add(**steps_of(random))
    all_live = shards.coordinator.state().live
    lost = len(shards.buffers[2])
    agree_on_scale(shards.coordinator, [None if s == 2 else buffer for s, buffer in enumerate(shards.buffers)])
    assert (shards.coordinator.state().shards, shards.coordinator.state().live) == (3, all_live - lost)
    round = shards.coordinator.draw(500)
    assert set(round.shards) == {0, 1, 3}
    shards.settle()
    assert set(shards.coordinator.draw(500).shards) == {0, 1, 2, 3}


@pytest.mark.parametrize("is_still", [True, False], ids=["stands still", "goes on"])
def test_a_shard_that_comes_back_is_brought_to_the_reference_of_all(is_still):
    """Meanwhile the reference of the others was raised, or its own, or both."""
    random = np.random.default_rng(6)
    whole, shards = per.ReplayBuffer(ENVS * ROWS, FIELDS, n_envs=ENVS, seed=3, half_life=0.5), Shards(4, half_life=0.5)
    shards.coordinator = per.Coordinator(ENVS * ROWS, 4, n_envs=ENVS, seed=3, half_life=0.5)
    there = np.array([env for env in range(ENVS) if shards.coordinator.locate([env])[0][0] != 2])
    shards.settle()
    for gone in (0, 17, 40, 90):
        for _ in range(gone):
            lanes = there if is_still else np.arange(ENVS)
            steps = {name: array[lanes] for name, array in steps_of(random).items()}
            whole.add(env_ids=lanes, **steps)
            for buffer, place in zip(shards.buffers, shards.places, strict=True):
                here = np.flatnonzero((lanes >= place.first_env) & (lanes < place.first_env + place.n_envs))
                if here.size > 0:
                    buffer.add(**{name: array[here] for name, array in steps.items()})
            agree_on_scale(shards.coordinator, [None if s == 2 else buffer for s, buffer in enumerate(shards.buffers)])
        shards.settle()
        state = shards.coordinator.state()
        assert state.reference == whole.summarize().reference
        assert all(buffer.summarize().reference == state.reference for buffer in shards.buffers)
        whole.set_scale(state.scale, state.reference)  # it may have been chosen without the shard
        assert (state.live, state.total_mass) == (len(whole), whole.summarize().total_mass)
        if len(whole) > 0:
            assert_same(whole.sample(16), *shards.sample(16))


def test_shards_of_different_versions_do_not_agree():
    shards = Shards(2, half_life=3.0, age="versions")
    shards.buffers[1].set_version(4)
    with pytest.raises(per.InvalidArgument, match="shard 1 has version 4, and shard 0 0: all need the same version"):
        shards.settle()
    with pytest.raises(per.InvalidArgument, match="per_coordinator_agree_on_scale"):
        shards.coordinator.draw(4)
    agree_on_scale(shards.coordinator, [None, shards.buffers[1]])
    shards.buffers[0].set_version(4)
    shards.settle()


def test_references_are_those_of_the_half_life():
    with pytest.raises(per.InvalidArgument, match="reference is 36: must be 0 without half_life"):
        filled().set_scale(3, 36)
    with pytest.raises(per.InvalidArgument, match="measured_reference is 36: must be 0 without half_life"):
        filled().summarize(3, 36)
    fresh = filled(half_life=10.0)
    assert fresh.summarize().reference == 36
    with pytest.raises(
        per.InvalidArgument, match=r"reference is 40: allowed are 36 \.\. 1125899906842660, in steps of 32"
    ):
        fresh.set_scale(3, 40)
    plain, decaying = per.Coordinator(100, 1), per.Coordinator(100, 1, half_life=10.0)
    with pytest.raises(per.InvalidArgument, match="reference is 36: must be 0 without half_life"):
        plain.report(0, fresh.summarize())
    with pytest.raises(per.InvalidArgument, match=r"reference is 0: allowed are 36 \.\. "):
        decaying.report(0, filled().summarize())
    with pytest.raises(per.InvalidArgument, match="reference is 36: must be 0 without half_life"):
        per.Coordinator(100, 1, state=decaying.state())
    assert (plain.state().reference, decaying.state().reference) == (0, 36)


def at_reference(**state):
    """A coordinator with a half-life whose state was this one, and the summary of its only shard then."""
    begun = {"samples": 0, "beta_step": 0, "live": 0, "shards": 0, "beta": 0.4, "max_priority": 1.0}
    known = per.coordinator.CoordinatorState(**begun, rescales_below=0, total_mass=8, **state)
    summary = dataclasses.replace(LAW, live=8, total_mass=8, is_scale_fixed=True, **state)
    return per.Coordinator(2000, 1, half_life=2.0, state=known), summary


@pytest.mark.parametrize("raised", [32, 64])
def test_a_rebase_that_cannot_keep_masses_asks_for_another_scale(raised):
    """A leaf of 2^-126 has one unit at the scale 126. The shard may have chosen the scale that it had before."""
    coordinator, summary = at_reference(scale=126 - raised, reference=36)
    coordinator.report(0, dataclasses.replace(summary, scale=126, reference=36 + raised))
    assert coordinator.agree_on_scale() is None
    assert (coordinator.state().scale, coordinator.state().reference) == (126, 36 + raised)
    coordinator, summary = at_reference(scale=127 - raised, reference=36)
    coordinator.report(0, dataclasses.replace(summary, reference=36 + raised))
    assert coordinator.agree_on_scale() == ("measure", 127 - raised, 36 + raised)


def test_a_shard_has_to_be_at_the_reference_that_was_asked_for():
    coordinator, summary = at_reference(scale=20, reference=68)
    coordinator.report(0, dataclasses.replace(summary, scale=-12, reference=36))
    assert coordinator.agree_on_scale() == ("set", 20, 68)
    coordinator.report(0, dataclasses.replace(summary, scale=20, reference=36))
    with pytest.raises(per.InvalidArgument, match="shard 0 was to get the scale 20 at the reference 68, and has not"):
        coordinator.agree_on_scale()
    coordinator.report(0, summary)
    assert coordinator.agree_on_scale() is None
    assert coordinator.agree_on_scale(chooses_anew=True) == ("measure", 20, 68)
    coordinator.report(0, dataclasses.replace(summary, measured_scale=20, measured_reference=100, largest_leaf=1.0))
    with pytest.raises(per.InvalidArgument, match="shard 0 was to measure the scale 20 at the reference 68, and has"):
        coordinator.agree_on_scale()


def test_masses_that_a_raised_reference_would_change_are_chosen_anew():
    """The shard comes back at a lower reference, from which leaves of 2^-126 at the scale 130 would get 16 units."""
    coordinator, summary = at_reference(scale=130, reference=68)
    coordinator.report(0, dataclasses.replace(summary, scale=98, reference=36))
    assert coordinator.agree_on_scale() == ("measure", 130, 68)


@pytest.mark.parametrize("half_life", [None, 0.5])
def test_a_restored_coordinator_goes_on_bit_for_bit(half_life, tmp_path):
    random = np.random.default_rng(3)
    law = {"beta_steps": 50, "half_life": half_life}
    shards, again = Shards(2, **law), Shards(2, **law)
    for _ in range(20):
        shards.add(**steps_of(random))
        drawn, _ = shards.sample(8)
        shards.update(drawn.ids, td_errors=random.standard_normal(8).astype(np.float32) * 1e6)
    for s, buffer in enumerate(shards.buffers):
        buffer.save(tmp_path / f"{s}.per")
        again.buffers[s] = per.ReplayBuffer.load(tmp_path / f"{s}.per")
    state = shards.coordinator.state()
    again.coordinator = per.Coordinator(ENVS * ROWS, 2, n_envs=ENVS, state=state, **law)
    again.settle()
    for _ in range(20):
        steps = steps_of(random)
        assert np.array_equal(shards.add(**steps), again.add(**steps))
        (drawn, rows), (others, other_rows) = shards.sample(8), again.sample(8)
        assert np.array_equal(drawn.ids, others.ids)
        assert np.array_equal(drawn.weights, others.weights)
        assert rows == other_rows
        errors = random.standard_normal(8).astype(np.float32)
        shards.update(drawn.ids, td_errors=errors)
        again.update(drawn.ids, td_errors=errors)


def test_ids_carry_their_shard():
    coordinator = per.Coordinator(100, 3, n_envs=7)
    ids = np.arange(-1, 70)
    shards, local = coordinator.locate(ids)
    assert [coordinator.shard(s).n_envs for s in range(3)] == [2, 2, 3]
    assert shards[1:8].tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert local[1:15].tolist() == [0, 1, 0, 1, 0, 1, 2, 2, 3, 2, 3, 3, 4, 5]
    for s in range(3):
        assert np.array_equal(coordinator.ids(s, local[shards == s]), ids[shards == s])
    with pytest.raises(per.InvalidArgument, match=r"ids\[1\] is -2: allowed are -1 \.\. 9223372036854775807"):
        coordinator.locate([0, -2])


LAW = per.ShardSummary(
    total_mass=0, smallest_mass=0, live=0, changes=0, max_priority=1.0, scale=0, is_scale_fixed=False
)
LEAVES = 10


class Shard:
    """A buffer's interface to the coordinator, with that many leaves, which may be of any size."""

    def __init__(self, leaf, *others):
        self.leaves = [leaf] * (LEAVES - len(others)) + [*others]
        self.scale, self.is_fixed = 0, False

    def masses(self, scale):
        return [-((-Fraction(leaf) * Fraction(2) ** scale) // 1) for leaf in self.leaves]

    def summarize(self, measured_scale=None, measured_reference=0):
        masses = self.masses(self.scale)
        summary = dataclasses.replace(
            LAW,
            total_mass=int(sum(masses)),
            smallest_mass=int(min((mass for mass in masses if mass), default=0)),
            live=len(masses),
            scale=self.scale,
            is_scale_fixed=self.is_fixed,
        )
        if measured_scale is None:
            return summary
        measured = int(sum(min(mass, 2**52) for mass in self.masses(measured_scale)))
        largest = max(self.leaves, default=0.0)
        return dataclasses.replace(summary, measured_scale=measured_scale, measured_mass=measured, largest_leaf=largest)

    def set_scale(self, scale, reference=0):
        assert reference == 0
        assert max(self.masses(scale), default=0) < 2**52, "a buffer refuses such a scale"
        self.scale, self.is_fixed = scale, True

    def get_units(self, units):
        """Rows of ids, masses and first units."""
        before = np.cumsum([0, *map(int, self.masses(self.scale))])
        ids = np.where(units < 0, -1 - units, np.searchsorted(before, units, side="right") - 1)
        return ids, np.diff(before)[ids], before[ids]


def settled(*leaves, **options):
    """A coordinator of such shards that have agreed on a scale."""
    coordinator = per.Coordinator(1000 * len(leaves), len(leaves), n_envs=len(leaves), **options)
    shards = [Shard(*leaf) if isinstance(leaf, tuple) else Shard(leaf) for leaf in leaves]
    agree_on_scale(coordinator, shards)
    return coordinator, shards


def found_for(shards, round):
    found = np.empty((3, round.units.size), np.int64)
    for s, shard in enumerate(shards):
        here = round.shards == s
        found[:, here] = shard.get_units(round.units[here])
    return found


def drawn(coordinator, shards, batch_size, **choices):
    round = coordinator.draw(batch_size, **choices)
    while round is not None:
        round = coordinator.submit(*found_for(shards, round))
    return coordinator.finish()


@pytest.mark.parametrize(
    "choices",
    [
        {"scheme": "stratified"},
        {"scheme": "independent"},
        {"scheme": "systematic"},
        {"prioritization": "uniform"},
        {"uniform_fraction": 0.3},
        {"scheme": "without_replacement"},
        {"scheme": "without_replacement", "prioritization": "uniform"},
    ],
    ids=lambda choices: "-".join(map(str, choices.values())),
)
def test_a_draw_without_replacement_leaves_nothing_out_of_the_next(choices):
    """The first draws take most of the mass. Both coordinators must then draw from the same whole, bit for bit."""
    batches = []
    for first in ("without_replacement", "stratified"):
        coordinator, shards = settled((1e-6, 1.0), 1e-6, seed=4)
        drawn(coordinator, shards, 15, scheme=first)
        batches.append(drawn(coordinator, shards, 15, **choices))
    assert np.array_equal(batches[0].ids, batches[1].ids)
    assert np.array_equal(batches[0].weights, batches[1].weights)


@pytest.mark.parametrize("prioritization", ["proportional", "uniform"])
def test_a_draw_without_replacement_of_all_finds_each_once(prioritization):
    """Soon most of a round are repeats, so transitions already found are excluded from the next round."""
    for seed in range(5):
        coordinator, shards = settled(1.0, 2.0, seed=seed)
        batch = drawn(coordinator, shards, 2 * LEAVES, scheme="without_replacement", prioritization=prioritization)
        assert np.unique(batch.ids).size == 2 * LEAVES


def test_a_shard_that_comes_back_is_brought_to_the_scale_of_all():
    """The scale of the others was chosen without it, and its leaves are too large for that scale."""
    coordinator, shards = settled(1e6, 1e-6)
    with_both = coordinator.state()
    agree_on_scale(coordinator, [None, shards[1]])
    assert coordinator.state().scale > with_both.scale + 30
    agree_on_scale(coordinator, shards)
    assert coordinator.state().scale == with_both.scale
    assert coordinator.state().total_mass == with_both.total_mass
    agree_on_scale(coordinator, [None, None])
    agree_on_scale(coordinator, [None, shards[1]])
    agree_on_scale(coordinator, shards)
    assert coordinator.state().scale == with_both.scale
    assert shards[0].scale == shards[1].scale == with_both.scale


def test_shards_that_grow_beyond_a_total_mass_while_they_are_settled_are_not_settled():
    coordinator = per.Coordinator(8 * 4096, 8, n_envs=8)
    for s in range(8):
        coordinator.report(s, LAW)
    assert coordinator.agree_on_scale() == ("set", 0, 0)
    # A buffer may have each of these summaries. Their sum is 2^65 - 8, which 64 bits truncate to 2^64 - 8.
    summary = dataclasses.replace(LAW, total_mass=2**62 - 1, live=2048, is_scale_fixed=True)
    for s in range(8):
        coordinator.report(s, summary)
    with pytest.raises(per.InvalidArgument, match=r"their total mass is 2\^62 or more"):
        coordinator.agree_on_scale()
    with pytest.raises(per.InvalidArgument, match="per_coordinator_agree_on_scale"):
        coordinator.draw(4)
    assert coordinator.state().total_mass == 0
    assert coordinator.agree_on_scale() == ("measure", 0, 0)


def test_shards_may_have_a_total_mass_of_one_unit_less_than_2_to_62():
    for mass, is_allowed in ((0, True), (1, False)):
        coordinator = per.Coordinator(2 * 4096, 2, n_envs=2)
        for s in range(2):
            coordinator.report(s, LAW)
        assert coordinator.agree_on_scale() == ("set", 0, 0)
        coordinator.report(0, dataclasses.replace(LAW, total_mass=2**62 - 1, live=2048, is_scale_fixed=True))
        coordinator.report(1, dataclasses.replace(LAW, total_mass=mass, live=1, is_scale_fixed=True))
        if is_allowed:
            assert coordinator.agree_on_scale() is None
            assert coordinator.state().total_mass == 2**62 - 1
        else:
            with pytest.raises(per.InvalidArgument, match=r"their total mass is 2\^62 or more"):
                coordinator.agree_on_scale()


def test_a_scale_has_room_for_2_to_56_units_less_one_for_each_place():
    """Rounding up may add as many. At the scale 45 a leaf of 1 has a mass of 2^45."""
    for beyond in (0, 1):
        coordinator = per.Coordinator(2 * 4096, 2, n_envs=2)
        summary = dataclasses.replace(LAW, live=2048, total_mass=2048)
        for s in range(2):
            coordinator.report(s, summary)
        assert coordinator.agree_on_scale() == ("measure", 0, 0)
        summary = dataclasses.replace(summary, largest_leaf=1.0, measured_scale=0)
        for s in range(2):
            coordinator.report(s, summary)
        assert coordinator.agree_on_scale() == ("measure", 45, 0)
        for s, mass in enumerate((2**55, 2**55 - 2 * 4096 + beyond)):
            coordinator.report(s, dataclasses.replace(summary, measured_scale=45, measured_mass=mass))
        assert coordinator.agree_on_scale() == ("set", 45 - beyond, 0)


@pytest.mark.parametrize("stop", ["measure", "set"])
def test_a_settling_that_was_given_up_leaves_no_trace(stop):
    """Once before anything is set, and once when one of the shards has the chosen scale."""
    whole, of_whole = settled(1e6, 1.0)
    coordinator, shards = settled(1e6, 1.0)
    before = coordinator.state()
    for s in range(2):
        of_whole[s].leaves = shards[s].leaves = [1e-3] * LEAVES
        coordinator.report(s, shards[s].summarize())
    while (asked := coordinator.agree_on_scale()).todo != stop:
        for s, shard in enumerate(shards):
            coordinator.report(s, shard.summarize(asked.scale))
    if stop == "set":
        shards[0].set_scale(asked.scale)
        coordinator.report(0, shards[0].summarize())
    assert (coordinator.state().scale, coordinator.state().total_mass) == (before.scale, before.total_mass)
    assert coordinator.state().rescales_below == before.rescales_below
    with pytest.raises(per.InvalidArgument, match="and has not told so"):
        coordinator.agree_on_scale()
    agree_on_scale(whole, of_whole)
    agree_on_scale(coordinator, shards)
    assert coordinator.state() == whole.state()
    assert coordinator.state().scale > before.scale


def test_a_settling_that_was_refused_still_chooses_anew():
    shards = Shards(2, half_life=3.0, age="versions")
    shards.add(**steps_of(np.random.default_rng(1)))

    def report():
        for s, buffer in enumerate(shards.buffers):
            shards.coordinator.report(s, buffer.summarize())

    shards.buffers[1].set_version(4)
    report()
    with pytest.raises(per.InvalidArgument, match="all need the same version"):
        shards.coordinator.agree_on_scale(chooses_anew=True)
    shards.buffers[0].set_version(4)
    report()
    assert shards.coordinator.agree_on_scale().todo == "measure"


def test_a_settling_that_was_given_up_still_chooses_anew():
    coordinator, shards = settled(1.0, 1.0)
    for s in range(2):
        shards[s].leaves = [0.5] * LEAVES  # not so little that another scale is due
        coordinator.report(s, shards[s].summarize())
    scale = coordinator.state().scale
    assert coordinator.agree_on_scale(chooses_anew=True).todo == "measure"
    with pytest.raises(per.InvalidArgument, match="and has not told so"):
        coordinator.agree_on_scale()
    agree_on_scale(coordinator, shards)
    assert coordinator.state().scale == scale + 1
    agree_on_scale(coordinator, shards)
    assert coordinator.state().scale == scale + 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"live": 1001}, "live is 1001"),
        ({"total_mass": 5}, r"total_mass is 5: allowed are 0 \.\. 0"),
        ({"live": 2, "total_mass": 2**53 - 1}, rf"total_mass is {2**53 - 1}: allowed are 0 \.\. {2**53 - 2}"),
        ({"live": 1000, "total_mass": 2**62}, "total_mass is"),
        ({"live": 5, "total_mass": 5, "smallest_mass": 6}, r"smallest_mass is 6: allowed are 0 \.\. 5"),
        ({"is_scale_fixed": 77}, r"is_scale_fixed is 77: allowed are 0 \.\. 1"),
        ({"changes": -5}, "changes is -5"),
        ({"scale": 201}, "scale is 201"),
        ({"measured_scale": 12345}, r"measured_scale is 12345: allowed are -120 \.\. 200"),
        ({"measured_mass": 1}, "measured_low 1"),
        ({"live": 3, "measured_scale": 0, "measured_mass": 3 * 2**52 + 1}, r"more than 2\^52 for each of 3 live"),
        ({"live": 3, "measured_scale": 0, "measured_mass": 2**127}, "measured_high is"),
        ({"max_priority": float("nan")}, "max_priority is nan"),
        ({"largest_leaf": float("inf")}, "largest_leaf is inf"),
        ({"live": 2**70}, rf"^summary.live is {2**70}; allowed: whole numbers from -2\^63 to 2\^63 - 1"),
        ({"measured_mass": -1}, "^summary.measured_mass is -1; allowed: whole numbers from 0"),
        ({"max_priority": "1"}, "^summary.max_priority is '1', a str; allowed: a number"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_summaries_that_no_buffer_has_are_refused(fields, message):
    coordinator, _ = settled(1.0, 1.0)
    with pytest.raises(per.InvalidArgument, match=message):
        coordinator.report(0, dataclasses.replace(LAW, **fields))
    coordinator.draw(4)  # its state is unchanged: the shards agree


def test_states_and_summaries_of_another_type_are_refused():
    coordinator, _ = settled(1.0, 1.0)
    with pytest.raises(per.InvalidArgument, match="summary is a str; allowed: None, or a ShardSummary"):
        coordinator.report(0, "gone")
    state = dataclasses.replace(coordinator.state(), total_mass=-1)
    for given, words in ((state, "state.total_mass is -1; allowed: whole numbers from 0"), ({}, "state is a dict")):
        with pytest.raises(per.InvalidArgument, match=words):
            per.Coordinator(2000, 2, n_envs=2, state=given)


def test_the_largest_summaries_are_settled():
    coordinator = per.Coordinator(2000, 2, n_envs=2)
    for s in range(2):
        coordinator.report(s, dataclasses.replace(LAW, live=2, total_mass=2**53 - 2, smallest_mass=2**52 - 1))
    assert coordinator.agree_on_scale() == ("measure", 0, 0)
    largest = float(np.finfo(np.float32).max)
    for s in range(2):
        coordinator.report(s, dataclasses.replace(LAW, live=2, total_mass=5, measured_scale=0, largest_leaf=largest))
    assert coordinator.agree_on_scale() == ("measure", 45 - 127, 0)
    measured = {"measured_scale": 45 - 127, "measured_mass": 1000 * 2**52, "live": 1000}
    for s in range(2):
        coordinator.report(s, dataclasses.replace(LAW, **measured))
    # 2000 2^52 is to become 2^56 - 2000 at most, and 2^11 2^52 / 2^7 is 2^56.
    assert coordinator.agree_on_scale() == ("set", 45 - 127 - 7, 0)


def spoiled(array, value):
    changed = array.copy()
    changed[1] = value
    return changed


def test_what_no_shard_finds_for_a_round_is_refused_by_name():
    coordinator, shards = settled(1.0, 2.0)
    round = coordinator.draw(8, scheme="without_replacement")
    ids, masses, firsts = found_for(shards, round)
    s, unit = round.shards[1], round.units[1]
    total = int(sum(shards[s].masses(shards[s].scale)))
    for bad in (0, total + 1, 2**63 - 1, -1):
        with pytest.raises(per.InvalidArgument, match=rf"masses\[1\] is \d+: allowed are 1 \.\. {total}"):
            coordinator.submit(ids, spoiled(masses, bad), firsts)
    allowed = rf"allowed are {max(unit - masses[1] + 1, 0)} \.\. {min(unit, total - masses[1])}"
    for bad in (unit + 1, unit - masses[1], -1):
        with pytest.raises(per.InvalidArgument, match=rf"first_units\[1\] is \d+: {allowed}"):
            coordinator.submit(ids, masses, spoiled(firsts, bad))
    # A row contains the drawn unit. If its mass equals that unit's number, it begins at 1 or later: from 0 it would end
    # one unit before the drawn one.
    with pytest.raises(per.InvalidArgument, match=r"first_units\[1\] is 0: allowed are 1 \.\. "):
        coordinator.submit(ids, spoiled(masses, unit), spoiled(firsts, 0))
    with pytest.raises(per.InvalidArgument, match=r"ids\[1\] is -1"):
        coordinator.submit(spoiled(ids, -1), masses, firsts)
    while round is not None:  # the round is still under way
        round = coordinator.submit(*found_for(shards, round))
    assert np.unique(coordinator.finish().ids).size == 8


def test_masses_of_a_uniform_draw_may_be_0_but_not_more_than_there_is():
    coordinator, shards = settled(1.0, prioritization="uniform")
    shards[0].leaves[:] = [0.0] * LEAVES
    agree_on_scale(coordinator, shards)
    round = coordinator.draw(4)
    with pytest.raises(per.InvalidArgument, match=r"masses\[2\] is 1: allowed are 0 \.\. 0"):
        coordinator.submit([0] * 4, [0, 0, 1, 0])
    assert coordinator.submit([0] * 4, [0] * 4) is None
    assert coordinator.finish().weights.tolist() == [1.0] * round.units.size


def test_shards_that_find_the_same_for_all_units_do_not_keep_a_draw_going():
    """A buffer could give each of the answers, but not all of them together."""
    coordinator, shards = settled(1.0, 1.0)
    round = coordinator.draw(8, scheme="without_replacement")
    with pytest.raises(per.InvalidArgument, match="ids are all of transitions that were taken out"):
        for _ in range(20):
            round = coordinator.submit(np.zeros_like(round.units), np.ones_like(round.units), round.units)
    with pytest.raises(per.InvalidArgument, match="no round is under way"):
        coordinator.submit([0], [1])
    assert np.unique(drawn(coordinator, shards, 8, scheme="without_replacement").ids).size == 8


def test_parts_that_overlap_are_left_out_once():
    """Every transition claims all units of its shard: nothing is left then, and never less than nothing."""
    coordinator, shards = settled(1.0, 1.0)
    total = shards[0].summarize().total_mass
    round = coordinator.draw(12, scheme="without_replacement")
    with pytest.raises(per.InvalidArgument, match=r"batch_size is 12: only [1-9] transitions"):
        for _ in range(20):
            n = round.units.size
            round = coordinator.submit(np.arange(n) % 3, np.full(n, total), np.zeros(n, np.int64))


def test_a_draw_that_fails_leaves_the_batch_under_way():
    coordinator, shards = settled(1.0, 1.0)
    first = coordinator.draw(8, scheme="independent")
    for error, choices in (
        (per.InvalidArgument, {"batch_size": 99, "scheme": "without_replacement"}),
        (per.Unsupported, {"batch_size": 4, "prioritization": "rank"}),
        (per.Unsupported, {"batch_size": 4, "scheme": "without_replacement", "uniform_fraction": 0.5}),
        (per.InvalidArgument, {"batch_size": 4, "beta": -1.0}),
    ):
        with pytest.raises(error):
            coordinator.draw(**choices)
    coordinator.report(0, shards[0].summarize())
    with pytest.raises(per.InvalidArgument, match="per_coordinator_agree_on_scale"):
        coordinator.draw(4)
    assert coordinator.submit(*found_for(shards, first)) is None
    assert coordinator.finish().ids.size == 8


def test_counts_that_are_not_those_of_the_batch_are_refused():
    coordinator, shards = settled(1.0, 1.0)
    found = found_for(shards, coordinator.draw(8))
    coordinator.draw(4)  # for example by another thread
    with pytest.raises(per.InvalidArgument, match="count is 8: allowed is 4"):
        coordinator.submit(*found)
    with pytest.raises(per.InvalidArgument, match="count is 8: allowed is 4"):
        coordinator._next_round(8)
    round = coordinator._next_round(4)
    coordinator.submit(*found_for(shards, round))
    coordinator._batch_size = 8
    with pytest.raises(per.InvalidArgument, match="batch_size is 8: allowed is 4"):
        coordinator.finish()
    coordinator._batch_size = 4
    assert coordinator.finish().ids.size == 4


def test_counters_of_a_restored_coordinator_have_room_to_count_on():
    coordinator, _ = settled(1.0, 1.0)
    state = coordinator.state()
    for name in ("samples", "beta_step"):
        with pytest.raises(per.InvalidArgument, match=rf"{name} is {2**62 + 1}: allowed are 0 \.\. {2**62}"):
            per.Coordinator(2000, 2, n_envs=2, state=dataclasses.replace(state, **{name: 2**62 + 1}))
    full = dataclasses.replace(state, samples=2**62, beta_step=2**62)
    other = per.Coordinator(2000, 2, n_envs=2, state=full)
    shards = [Shard(1.0), Shard(1.0)]
    agree_on_scale(other, shards)
    drawn(other, shards, 4)
    assert (other.state().samples, other.state().beta_step) == (2**62 + 1, 2**62 + 1)
