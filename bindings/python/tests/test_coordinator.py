"""Shards and their coordinator: the concatenation of shards is one buffer, bit for bit; laws, scales and units."""

import cuda_switch
import numpy as np
import per
import pytest
from per.coordinator import settle

FIELDS = {"observation": per.Field((), "float32"), "action": per.Field((), "int64")}
ENVS = 8
ROWS = 40


class Shards:
    """Buffers that draw as one, in this process."""

    def __init__(self, n_shards, **options):
        law = {name: value for name, value in options.items() if name not in ("device", "arrays")}
        self.coordinator = per.Coordinator(ENVS * ROWS, n_shards, n_envs=ENVS, **law)
        self.places = [self.coordinator.shard(s) for s in range(n_shards)]
        shapes = [{"capacity": place.capacity, "n_envs": place.n_envs} for place in self.places]
        self.buffers = [per.ReplayBuffer(fields=FIELDS, **{**options, **shape, "seed": 99}) for shape in shapes]
        self.settle()

    def settle(self, chooses_anew=False):
        settle(self.coordinator, self.buffers, chooses_anew)

    def add(self, **steps):
        largest = self.coordinator.state().max_priority
        ids = np.empty(ENVS, np.int64)
        for s, (buffer, place) in enumerate(zip(self.buffers, self.places, strict=True)):
            lanes = slice(place.first_env, place.first_env + place.n_envs)
            buffer.raise_max_priority(largest)
            ids[lanes] = self.coordinator.ids(s, buffer.add(**{name: array[lanes] for name, array in steps.items()}))
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
            round = self.coordinator.found(*found)
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
@pytest.mark.parametrize("law", LAWS, ids=lambda law: "-".join(map(str, law.values())) or "defaults")
def test_shards_draw_what_one_buffer_draws(law, n_shards):
    random = np.random.default_rng(5)
    choices = {name: value for name, value in law.items() if name != "n_step"}
    whole = per.ReplayBuffer(ENVS * ROWS, FIELDS, n_envs=ENVS, seed=7, beta_steps=100, **law)
    shards = Shards(n_shards, seed=7, beta_steps=100, **law)
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
        size *= 10.0 ** random.integers(-3, 4)  # orders of magnitude, so that the scale has to follow
        size = min(max(size, 1e-12), 1e12)
        errors = random.standard_normal(16).astype(np.float32) ** 3 * np.float32(size)
        errors[random.random(16) < 0.1] = 0.0
        whole.update_priorities(batch.ids, errors)
        shards.update(drawn.ids, td_errors=errors)
        state = shards.coordinator.state()
        assert state.total_mass * 2.0**-state.scale == whole.stats().total
        assert state.max_priority == whole.stats().max_priority
        scales.add(state.scale)
    assert n_drawn > n_steps * 2 // 3
    assert len(scales) > 1


def test_without_replacement_takes_out_what_holds_most_of_the_mass():
    """A few transitions hold nearly all: rounds repeat them, they are left out, and later rounds find the others."""
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
            round = shards.coordinator.found(*found)
        batch, drawn = whole.sample(100), shards.coordinator.finish()
        most_rounds = max(most_rounds, rounds)
        assert np.array_equal(batch.ids, drawn.ids)
        assert np.array_equal(batch.weights, drawn.weights)
    assert most_rounds > 3


def filled(priorities=(1.0, 2.0, 0.5, 0.25), **options):
    """One lane, alpha 1, of as many live transitions."""
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
    law = buffer.law()
    assert (law.total_mass, law.smallest_mass, law.live, law.scale) == (4 + 8 + 2 + 1, 1, 4, 2)
    assert law.is_scale_fixed
    assert law.max_priority == 2.0
    assert (law.measured_scale, law.measured_mass, law.largest_leaf) == (None, 0, 0.0)
    changes = law.changes
    buffer.update_priorities([0], priorities=[3.0])
    law = buffer.law(-1)
    assert law.changes > changes
    # ceil(1.5) + 1 + ceil(0.25) + ceil(0.125), and the largest leaf below 2^2: 2^(45 - 1).
    assert (law.measured_scale, law.measured_mass, law.largest_leaf, law.scale_needed) == (-1, 5, 3.0, 44)
    assert filled().law().smallest_mass == 0


def test_a_scale_that_does_not_fit_is_refused_with_those_that_do():
    buffer = filled()
    # 2^52 - 1 is the largest mass: 2 * 2^50 is not below it.
    with pytest.raises(per.InvalidArgument, match=r"scale is 51: allowed are -120 \.\. 50"):
        buffer.set_scale(51)
    with pytest.raises(per.InvalidArgument, match=r"scale is -121: allowed are -120 \.\. 50"):
        buffer.set_scale(-121)
    assert not buffer.law().is_scale_fixed
    buffer.set_scale(50)
    assert buffer.law().total_mass == 2**50 + 2**51 + 2**49 + 2**48
    with pytest.raises(per.InvalidArgument):
        buffer.set_scale(51)
    assert buffer.law().scale == 50
    assert filled(()).law().scale == 0


def test_a_fixed_scale_stays_until_leaves_are_too_large_for_it():
    buffer = filled()
    automatic = buffer.law(0).scale_needed
    buffer.set_scale(20)
    buffer.update_priorities(np.arange(4), priorities=np.full(4, 1e-20, np.float32))
    assert (buffer.law().total_mass, buffer.law().scale) == (4, 20)
    buffer.clear()
    assert (buffer.law().scale, buffer.law().is_scale_fixed) == (20, True)
    buffer = filled()
    buffer.set_scale(20)
    buffer.update_priorities([0], priorities=[2.0**33])
    law = buffer.law(0)
    assert not law.is_scale_fixed
    assert law.scale == law.scale_needed < 20
    buffer = filled()
    buffer.set_scale(20)
    buffer.alpha = 1.0
    assert (buffer.law().scale, buffer.law().is_scale_fixed) == (automatic, False)
    buffer.set_scale(20)
    buffer.set_scale(None)
    assert (buffer.law().scale, buffer.law().is_scale_fixed) == (automatic, False)


def test_a_checkpoint_has_the_scale_but_not_that_it_was_set(tmp_path):
    buffer = filled()
    buffer.set_scale(20)
    buffer.save(tmp_path / "buffer.per")
    law = per.ReplayBuffer.load(tmp_path / "buffer.per").law()
    assert (law.scale, law.is_scale_fixed, law.total_mass) == (20, False, buffer.law().total_mass)


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
    with pytest.raises(per.InvalidArgument, match="shard 0 has not told of itself"):
        coordinator.settle()
    for s, buffer in enumerate(buffers):
        coordinator.tell(s, buffer.law())
    with pytest.raises(per.InvalidArgument, match="per_coordinator_settle"):
        coordinator.draw(4)
    assert coordinator.settle() == ("set", 0)
    with pytest.raises(per.InvalidArgument, match="shard 0 was to get the scale 0, and has not told so"):
        coordinator.settle()
    settle(coordinator, buffers)
    with pytest.raises(per.InvalidArgument, match="no round is under way"):
        coordinator.found([], [])
    with pytest.raises(per.InvalidArgument, match="no batch has been found"):
        coordinator.finish()


def test_a_shard_that_is_gone_takes_its_mass_with_it():
    shards = Shards(4)
    random = np.random.default_rng(0)
    for _ in range(5):
        shards.add(**steps_of(random))
    all_live = shards.coordinator.state().live
    lost = len(shards.buffers[2])
    shards.coordinator.tell(2, None)
    while (asked := shards.coordinator.settle()) is not None:
        for s in (0, 1, 3):
            if asked.todo == "set":
                shards.buffers[s].set_scale(asked.scale)
            shards.coordinator.tell(s, shards.buffers[s].law(asked.scale if asked.todo == "measure" else None))
    assert (shards.coordinator.state().shards, shards.coordinator.state().live) == (3, all_live - lost)
    round = shards.coordinator.draw(500)
    assert set(round.shards) == {0, 1, 3}
    shards.settle()
    assert set(shards.coordinator.draw(500).shards) == {0, 1, 2, 3}


def test_a_restored_coordinator_goes_on_bit_for_bit(tmp_path):
    random = np.random.default_rng(3)
    shards, again = Shards(2, beta_steps=50), Shards(2, beta_steps=50)
    again.coordinator = per.Coordinator(ENVS * ROWS, 2, n_envs=ENVS, beta_steps=50)
    for _ in range(20):
        shards.add(**steps_of(random))
        drawn, _ = shards.sample(8)
        shards.update(drawn.ids, td_errors=random.standard_normal(8).astype(np.float32) * 1e6)
    for s, buffer in enumerate(shards.buffers):
        buffer.save(tmp_path / f"{s}.per")
        again.buffers[s] = per.ReplayBuffer.load(tmp_path / f"{s}.per")
    again.coordinator.restore(shards.coordinator.state())
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
    with pytest.raises(per.InvalidArgument, match=r"ids\[1\] is -2"):
        coordinator.locate([0, -2])
