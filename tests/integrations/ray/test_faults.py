"""If shards die, hang, refuse or cannot read their file, the others continue and the buffer reports the problem."""

from __future__ import annotations

import json

import numpy as np
import per
import per.ray
import pytest
import ray
import stand_ins
from common import ENVS, SHARDS, assert_goes_on_as_one, one_buffer, sharded_buffer, step_of, writers_by_shard


def filled(buffer, n=10):
    for seed in range(n):
        buffer.add(**step_of(seed))
    return buffer


@pytest.fixture
def buffer(in_process):
    return filled(sharded_buffer())


def of_shard(s):
    """One step of the two environments of a shard."""
    return {name: array[2 * s : 2 * s + 2] for name, array in step_of(s).items()}


def asked_to_come_back(buffer):
    """The statistics after the buffer has retried an open that failed."""
    buffer.stats()
    return buffer.stats()


def there(batch):
    return set((batch.ids % ENVS // (ENVS // SHARDS)).tolist())


def test_a_shard_whose_file_is_gone_says_so_until_it_can_read_it(buffer, tmp_path):
    buffer.save(tmp_path / "a")
    n = len(buffer)
    writer = buffer.writer([4, 5])
    (tmp_path / "a").rename(tmp_path / "b")
    buffer._shards[2].die()
    assert there(buffer.sample(64)) == {0, 1, 3}
    stats = buffer.stats()
    assert list(stats.gone) == [2]
    assert "No such file" in stats.gone[2]
    with pytest.raises(per.Busy, match=r"^shard 2 is gone; .*No such file"):
        buffer.save(tmp_path / "c")

    for _ in range(100):
        writer.add(**of_shard(2))
    with pytest.raises(per.Busy, match=r"^64 calls wait at a shard that is gone"):
        writer.flush()
    assert (writer.lost, writer.refused, writer.refusal) == (0, 36, "64 calls wait at a shard that is gone")

    (tmp_path / "b").rename(tmp_path / "a")
    assert asked_to_come_back(buffer).gone == {}
    assert len(buffer) > n  # steps that waited are added
    writer.flush()
    assert (writer.lost, writer.refused, buffer.stats().refused_calls) == (0, 36, 36)


@pytest.mark.parametrize("least", [None, 0, 3])
def test_a_file_that_cannot_be_read_is_an_error_of_load(buffer, tmp_path, least):
    buffer.save(tmp_path)
    next(tmp_path.glob("shard-00003.*")).write_bytes(b"not a buffer, but of some length all the same" * 9)
    with pytest.raises(per.CorruptFile):
        per.ray.ReplayBuffer.load(tmp_path, least_shards=least)


def test_shards_of_a_checkpoint_come_in_as_they_are_placed(buffer, tmp_path, monkeypatch):
    whole = filled(one_buffer())
    buffer.save(tmp_path)
    monkeypatch.setattr(stand_ins.Actor, "hangs", True)
    make = stand_ins.Actor.__init__

    def coordinates_at_once(actor, kind):
        make(actor, kind)
        actor.hangs = not isinstance(actor.object, per.ray.coordination.Coordination)

    monkeypatch.setattr(stand_ins.Actor, "__init__", coordinates_at_once)
    loaded = per.ray.ReplayBuffer.load(tmp_path, least_shards=0)
    assert set(loaded.stats().gone.values()) == {"it has not been placed yet"}
    with pytest.raises(per.Empty):
        loaded.sample(16)
    for s in range(SHARDS):
        loaded._shards[s].hangs = False
        assert loaded.stats().shards == s + 1
    assert_goes_on_as_one(whole, loaded, np.random.default_rng(4), 10)


@pytest.mark.parametrize(
    "error",
    [
        ray.exceptions.NodeDiedError("the node died"),
        ray.exceptions.ActorUnschedulableError("no room"),
        ray.exceptions.RaySystemError("what else"),
        ray.exceptions.RuntimeEnvSetupError("no environment"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_ray_raises_takes_a_shard_out_until_it_answers(buffer, error):
    with buffer._shards[1].raising(error):
        assert there(buffer.sample(64)) == {0, 2, 3}
        stats = buffer.stats()
        assert (stats.shards, stats.losses) == (3, 1)
        assert str(error).split() == stats.gone[1].split()
    assert asked_to_come_back(buffer).shards == SHARDS
    assert there(buffer.sample(64)) == {0, 1, 2, 3}


def test_an_error_of_one_shard_leaves_what_the_others_say_known(buffer):
    """The first shard fails, so all others answer after it."""
    whole = filled(one_buffer())
    ids = np.array([8, 1, 2, 3, 4, 5, 6, 7])
    values = np.linspace(1, 9, ENVS, dtype=np.float32)
    fails = buffer._shards[0].raising(KeyError("a defect"))
    with fails, pytest.raises(KeyError, match="shard 0: 'a defect'"):
        buffer.update_priorities(ids, priorities=values)
    whole.update_priorities(ids[ids % ENVS > 1], priorities=values[ids % ENVS > 1])
    assert np.array_equal(whole.sample(64).weights, buffer.sample(64).weights)


def test_shards_that_hang_are_waited_for_once_and_come_back_with_their_rows(buffer):
    n = len(buffer)
    for s in (0, 2, 3):
        buffer._shards[s].hangs = True
    assert there(buffer.sample(64)) == {1}
    assert stand_ins.RAY.waited == 60.0  # once, not three times
    stats = buffer.stats()
    assert (stats.shards, stats.losses) == (1, 3)
    assert stats.gone[3] == "no answer within 60.0 s"
    assert buffer.add(**step_of(0)).tolist()[:2] == [-1, -1]
    for shard in buffer._shards:
        shard.hangs = False
    batch = buffer.sample(64)
    assert there(batch) == {0, 1, 2, 3}
    assert ((batch.ids >> 48 == 0) == (batch.ids % ENVS // 2 == 1)).all()
    assert len(buffer) >= n


def test_a_death_while_a_checkpoint_is_written_leaves_the_one_before(buffer, tmp_path):
    whole = filled(one_buffer())
    buffer.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    buffer.add(**step_of(3))
    buffer._shards[2].die_when_asked("save")
    with pytest.raises(per.Busy, match=r"^a shard died while it was saved; the checkpoint before this one stays$"):
        buffer.save(tmp_path)
    assert before.items() <= {path.name: path.read_bytes() for path in tmp_path.iterdir()}.items()
    loaded = per.ray.ReplayBuffer.load(tmp_path)
    assert_goes_on_as_one(whole, loaded, np.random.default_rng(4), 10)

    # The next save restores the dead shard from the first checkpoint, succeeds, and removes the incomplete files.
    buffer.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == SHARDS + 1
    assert len(per.ray.ReplayBuffer.load(tmp_path)) == len(buffer)


def test_a_checkpoint_that_is_damaged_is_named(buffer, tmp_path):
    buffer.save(tmp_path)
    file = tmp_path / "coordinator.json"
    good = file.read_text()

    def other(**values):
        return json.dumps(json.loads(good) | values)

    def other_options(**values):
        options = json.loads(good)["options"] | values
        return other(options={name: value for name, value in options.items() if value != "missing"})

    for wrong, message in (
        ("{", "coordinator.json is damaged"),
        ("[]", "coordinator.json is damaged"),
        ("{}", "coordinator.json is damaged: 'version'"),
        (good.replace('"beta_step"', '"beta"'), "coordinator.json is damaged"),
        (good.replace('"shards": 4', '"shards": 3'), "coordinator.json is damaged"),
        (other_options(overwrite="missing"), "coordinator.json is damaged: 'overwrite'"),
        (other_options(overwrite=2), "coordinator.json is damaged: overwrite is 2"),
        (other_options(capacity="missing"), "coordinator.json is damaged: .*capacity"),
        (other_options(min_size_to_sample="missing"), "coordinator.json is damaged: 'min_size_to_sample'"),
        (other_options(n_envs="x"), "coordinator.json is damaged: n_envs is 'x'"),
        (other(options=[]), "coordinator.json is damaged"),
        (other(lives=[0, 0, 0, "x"]), "coordinator.json is damaged"),
        (other(lives=[0, 0, 0, 2**70]), "coordinator.json is damaged"),
        (other(lives=3), "coordinator.json is damaged: lives or number"),
        (other(number="x"), "coordinator.json is damaged: number is 'x'"),
        (good.replace('"drawn": 0', '"drawn": "x"'), "coordinator.json is damaged: drawn is 'x'"),
        (good.replace('"beta_step": 0', '"beta_step": "x"'), "coordinator.json is damaged: .*beta_step"),
    ):
        file.write_text(wrong)
        with pytest.raises(per.CorruptFile, match=message):
            per.ray.ReplayBuffer.load(tmp_path)
    file.write_text(good.replace('"version": 1', '"version": 2'))
    with pytest.raises(per.Unsupported, match=r"version is 2; allowed: 1$"):
        per.ray.ReplayBuffer.load(tmp_path)
    buffer.save(tmp_path)
    assert len(per.ray.ReplayBuffer.load(tmp_path)) == len(buffer)


def test_a_directory_that_cannot_be_made_is_an_io_error(buffer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(per.IoError, match=r"file: File exists$") as raised:
        buffer.save(tmp_path / "file")
    assert isinstance(raised.value, FileExistsError) and raised.value.filename == str(tmp_path / "file")
    buffer.save(tmp_path / "directory")


def test_writers_count_what_waited_at_a_shard_that_died(buffer):
    writers = writers_by_shard(buffer)
    for _ in range(20):
        for s, writer in enumerate(writers):
            writer.add(**of_shard(s))
    buffer._shards[1].die()
    for s, writer in enumerate(writers):
        writer.add(**of_shard(s))
        writer.flush()
    assert [writer.lost for writer in writers] == [0, 20, 0, 0]
    for writer in writers:
        writer.flush()
    assert [(writer.lost, writer.refused) for writer in writers] == [(0, 0), (20, 0), (0, 0), (0, 0)]

    # The writer counts steps that Ray did not deliver as lost, but not those that were in the buffer of a dying shard.
    buffer._shards[1].die()
    with buffer._shards[2].raising(ray.exceptions.ActorUnavailableError("not now", None)):
        for s, writer in enumerate(writers):
            for _ in range(21 if s == 2 else 1):
                writer.add(**of_shard(s))
    buffer.sample(16)
    for writer in writers:
        writer.flush()
    assert [writer.lost for writer in writers] == [0, 20, 21, 0]


def test_why_a_shard_refuses_steps_of_a_writer_is_known(in_process):
    buffer = sharded_buffer(on_gap="error", store_next_observation=False)
    writer, other = buffer.writer([0, 1]), buffer.writer([2, 3])
    steps = {**of_shard(0), "terminated": [False] * 2, "truncated": [False] * 2}
    for value in (0.0, 1.0, 2.0):
        writer.add(**{**steps, "observation": np.full((2, 2), value), "next_observation": np.full((2, 2), 9.0)})
    other.add(**of_shard(1))
    other.flush()
    writer.flush()
    stats = buffer.stats()
    assert (writer.refused, other.refused, other.refusal, stats.refused_calls) == (2, 0, "", 2)
    assert writer.refusal == stats.refusal
    assert "observation" in writer.refusal


@pytest.mark.parametrize("dies", ["the shard", "the shard and then the coordinator"])
def test_a_shard_that_comes_back_has_the_version_of_the_others(in_process, tmp_path, dies):
    buffer = filled(sharded_buffer(half_life=2.0, age="versions", max_age=5))
    buffer.set_version(3)
    buffer.save(tmp_path)
    buffer._shards[2].die()
    with buffer._shards[2].raising(ray.exceptions.RayActorError()):
        buffer.set_version(8)
    assert buffer.stats().shards == 3
    if "coordinator" in dies:
        buffer._coordinator.die()
    assert asked_to_come_back(buffer).shards == 4
    buffer.add(**step_of(3))
    assert len(buffer) == ENVS  # of version 8: those of version 0 are too old
    assert there(buffer.sample(64)) == {0, 1, 2, 3}


def test_ids_say_the_life_in_which_they_were_given_though_their_shard_dies_in_the_same_call(buffer):
    """The priorities are so large that the coordinator asks for another scale; a shard dies in that request."""
    buffer._shards[2].die_when_asked("measure", "set_scale")
    steps = step_of(3)
    ids = buffer.add(**steps, priorities=np.full(ENVS, 1e12, np.float32))
    assert buffer.stats().losses == 1
    assert (ids >> 48 == 0).all()
    assert (buffer.add(**steps) >> 48).tolist() == [0] * 4 + [1] * 2 + [0] * 2


# ------------------------------------------------------------------------------------------- deaths of the coordinator


class Death(BaseException):
    """The death of the process that makes a call."""


@pytest.mark.parametrize("scheme", ["stratified", "without_replacement"])
def test_a_coordinator_that_dies_between_calls_goes_on_as_one_buffer(buffer, scheme):
    """The coordinator dies before every third call on average, changes of scale included; seed 1."""
    random = np.random.default_rng(1)
    deaths = []

    def dies(name, given):
        if random.random() < 0.3:
            buffer._coordinator.die()
            deaths.append(name)

    buffer._coordinator.before = dies
    assert_goes_on_as_one(filled(one_buffer()), buffer, np.random.default_rng(5), 40, scheme=scheme)
    assert {"add", "sample", "update"} <= set(deaths)


@pytest.mark.parametrize("scheme", ["stratified", "without_replacement"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_batch_that_was_being_drawn_is_left_out_once_shards_know_of_it(in_process, at, scheme):
    buffer, whole = filled(sharded_buffer(scheme=scheme)), filled(one_buffer(scheme=scheme))
    with buffer._shards[at].raising(Death()), pytest.raises(Death):
        buffer.sample(64)
    buffer._coordinator.die()
    if at > 0:
        whole.sample(64)
    assert_goes_on_as_one(whole, buffer, np.random.default_rng(5), 10, scheme=scheme)


def test_lives_and_counts_outlive_the_coordinator(buffer):
    buffer._shards[2].die()
    buffer.sample(16)
    buffer.update_priorities([4], priorities=[1.0])  # an id of the first life
    buffer.sample(16)
    buffer._coordinator.die()
    ids = buffer.add(**step_of(0))
    assert (ids >> 48).tolist() == [0] * 4 + [1] * 2 + [0] * 2
    assert (buffer.stats().losses, buffer.stats().outlived_updates) == (1, 1)

    buffer._coordinator.die()
    buffer._shards[1].die()
    assert there(buffer.sample(64)) <= {0, 1, 2, 3}
    ids = buffer.add(**step_of(0))
    assert (ids >> 48).tolist() == [0] * 2 + [1] * 4 + [0] * 2
    assert buffer.stats().losses == 2


def test_a_shard_that_is_back_before_others_hear_of_it_keeps_its_life(buffer):
    buffer._shards[2].die()
    buffer.update_priorities([4], priorities=[1.0])  # only asks that shard, which is lost and opened again
    buffer._coordinator.die()
    buffer.add(**step_of(0), priorities=np.full(ENVS, 1e6, np.float32))
    assert there(buffer.sample(64)) == {0, 1, 2, 3}
    assert buffer.stats().losses == 0  # the death was not reported


def test_a_shard_that_hangs_while_the_coordinator_dies_is_gone_until_it_answers(buffer):
    buffer._coordinator.die()
    buffer._shards[3].hangs = True
    assert there(buffer.sample(64)) == {0, 1, 2}
    buffer._shards[3].hangs = False
    assert there(buffer.sample(64)) == {0, 1, 2, 3}
    assert (buffer.add(**step_of(0)) >> 48).tolist() == [0] * 6 + [1] * 2


def test_a_coordinator_that_has_died_knows_the_last_checkpoint(buffer, tmp_path):
    n = len(buffer)
    buffer.save(tmp_path)
    buffer._coordinator.die()
    buffer._shards[1].die()
    assert len(buffer) <= n  # the shard came back from the checkpoint, where running episodes are cut
    assert len(buffer) > n // 2
    buffer.save(tmp_path)
    assert [path.suffixes[0] for path in sorted(tmp_path.glob("shard*"))] == [".000000002"] * SHARDS


def test_batches_ahead_go_on_after_the_death_of_the_coordinator(buffer):
    whole = filled(one_buffer())
    with buffer.loader(16, slots=3, exact=False) as batches:
        expected = [whole.sample(16).ids for _ in range(8)]
        assert np.array_equal(next(batches).ids, expected[0])
        assert np.array_equal(next(batches).ids, expected[1])
        buffer._coordinator.die()
        # The batch that was requested before the death comes; those that were on their way are lost.
        rest = [next(batches).ids for _ in range(2)]
    numbers = [next(k for k, ids in enumerate(expected) if np.array_equal(ids, drawn)) for drawn in rest]
    assert numbers[0] == 2
    assert numbers[1] > 2


def test_a_coordinator_that_nobody_knows_says_so(buffer):
    buffer._coordinator.die()
    for shard in buffer._shards:
        shard.die()
    for _ in range(2):
        with pytest.raises(per.Error, match=r"^the coordinator has died, and no shard knows of it"):
            buffer.sample(16)
