"""per.integrations.torchrl.ReplayBuffer stores TensorDicts and returns them unchanged."""

import math

import per
import pytest
import torch
from per.integrations.torchrl import ReplayBuffer
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, GymWrapper, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import RandomPolicy


def rollout(lengths, *, truncated=(), pixels=(2, 2)):
    """Episodes of these lengths, one after the other. Each observation and each reward is a different number."""
    steps = []
    number = 0
    for episode, length in enumerate(lengths):
        for t in range(length):
            last = t == length - 1
            cut = last and episode in truncated
            observations = [
                {"observation": torch.tensor([float(n), -1.0]), "agents": {"pixels": torch.full(pixels, n).byte()}}
                for n in (number, number + 1)
            ]
            flags = {"terminated": last and not cut, "truncated": cut, "done": last}
            following = {name: torch.tensor([flag]) for name, flag in flags.items()}
            following |= {"reward": torch.tensor([float(number)]), "steps": torch.tensor([t])}
            step = {"action": torch.tensor(t), "episode": torch.tensor([episode]), "done": torch.tensor([False])}
            steps.append(TensorDict({**observations[0], **step, "next": {**observations[1], **following}}))
            number += 1
        number += 1
    return torch.stack(steps)


def buffer_of(capacity=64, **options):
    return ReplayBuffer(capacity, **{"alpha": 1.0, "beta": 0.5, "epsilon": 0.0, "seed": 1, **options})


@pytest.mark.parametrize("way", ["add", "extend", "pieces"])
def test_batches_have_each_entry_of_the_transition_that_was_added(way):
    data = rollout([4, 3, 5], truncated={1})
    buffer = buffer_of()
    if way == "add":
        ids = torch.stack([buffer.add(step) for step in data])
    elif way == "extend":
        ids = buffer.extend(data)
    else:
        ids = torch.cat([buffer.extend(piece) for piece in data.split(5)])
    assert ids.shape == data.shape and ids.dtype == torch.int64
    assert len(buffer) == buffer.write_count == 12
    batch = buffer.sample(256)
    assert set(batch["index"].tolist()) == set(ids.tolist())
    row = {int(number): i for i, number in enumerate(ids)}
    expected = data[torch.tensor([row[int(number)] for number in batch["index"]])]
    found = batch.exclude("index", "priority_weight")
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    assert (found == expected).all()
    for key, value in found.items(True, True):
        assert value.dtype == expected[key].dtype and value.shape == expected[key].shape, key


def test_any_key_comes_back_from_batches_and_files(tmp_path):
    keys = ["observation.state", ("observation.images", "cam-left"), ("agents", "0"), ("agents", "1"), "a b", "größe"]
    steps, flag = torch.arange(10.0)[:, None], torch.zeros(10, 1, dtype=torch.bool)
    data = TensorDict({"next": TensorDict({"reward": steps, "done": flag}, [10])}, [10])
    for i, key in enumerate(keys):
        data[key] = steps + 100 * i
        data["next"][key] = steps + 100 * i + 1
    buffer, again = buffer_of(), buffer_of()
    buffer.extend(data)
    buffer.dumps(tmp_path)
    again.loads(tmp_path)
    for each in (buffer, again):
        batch = each.sample(32)
        for i, key in enumerate(keys):
            assert torch.equal(batch[key], batch["next", "reward"] + 100 * i)
            assert torch.equal(batch["next"][key], batch[key] + 1)
        each.extend(data)


def test_observations_are_stored_once():
    def row_bytes(**options):
        buffer = buffer_of(1000, **options)
        buffer.extend(rollout([4], pixels=(64, 64)))
        return buffer.buffer.stats().memory_bytes / 1000

    assert 4096 < row_bytes() < 4300
    assert 8192 < row_bytes(store_next_observation=True) < 8400


def test_flags_that_are_missing_are_what_done_says():
    data = rollout([3, 2], truncated={1})
    for given, terminated in (
        (("done",), [0, 0, 1, 0, 1]),
        (("done", "terminated"), [0, 0, 1, 0, 0]),
        (("done", "truncated"), [0, 0, 1, 0, 0]),
        (("done", "terminated", "truncated"), [0, 0, 1, 0, 0]),
    ):
        kept = data.clone()
        for name in {"done", "terminated", "truncated"} - set(given):
            del kept["next", name]
        buffer = buffer_of()
        ids = buffer.extend(kept)
        rows = buffer.buffer.get_windows(ids)
        assert rows.terminated.tolist() == [bool(flag) for flag in terminated]
        assert (rows.terminated | rows.truncated).tolist() == [False, False, True, False, True]


def test_returns_over_several_steps_and_how_many_they_were():
    # rewards are 0, 1, 2, 3 and the episode is truncated: the last windows are shorter
    buffer = buffer_of(n_step=3, gamma=0.5)
    buffer.extend(rollout([4], truncated={0}))
    batch = buffer.sample(64)
    first = batch["observation"][:, 0].long()
    expected = torch.tensor([0 + 0.5 * 1 + 0.25 * 2, 1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3.0])
    assert torch.equal(batch["next", "reward"][:, 0], expected[first])
    assert torch.equal(batch["steps_to_next_obs"][:, 0], torch.tensor([3, 3, 2, 1], dtype=torch.int32)[first])
    assert torch.equal(batch["next", "observation"][:, 0], first + batch["steps_to_next_obs"][:, 0])
    assert torch.equal(batch["next", "truncated"][:, 0], first > 0)


@pytest.mark.parametrize(
    ("way", "shape", "options", "said"),
    [
        ("add", (2,), {}, r"data has shape \[2\]; allowed with n_envs=1: \[\]; for 2 environments give n_envs=2"),
        ("extend", (2, 5), {}, r"shape \[2, 5\]; allowed with n_envs=1: \[T\]; for 2 environments give n_envs=2"),
        ("extend", (5,), {"n_envs": 2}, r"data has shape \[5\]; allowed with n_envs=2: \[2, T\]"),
        (
            "extend",
            (3, 5),
            {"n_envs": 2},
            r"\[3, 5\]; allowed with n_envs=2: \[2, T\]; for 3 environments give n_envs=3",
        ),
        ("add", (), {"n_envs": 2}, r"data has shape \[\]; allowed with n_envs=2: \[2\]"),
        ("extend", (), {}, r"data has shape \[\]; allowed: a dimension of time, or add\(\)"),
    ],
)
def test_data_of_other_environments_is_refused_by_name_and_declares_nothing(way, shape, options, said):
    buffer = buffer_of(**options)
    data = rollout([30])[: math.prod(shape)].reshape(*shape) if shape else rollout([1])[0]
    with pytest.raises(per.InvalidArgument, match=said):
        getattr(buffer, way)(data)
    assert buffer.buffer is None


def test_no_step_is_lost_where_threads_bring_the_first_ones(buffers_made_by_first_steps):
    buffer, data = buffer_of(1000), rollout([20])
    assert buffers_made_by_first_steps(buffer, "_new_buffer", lambda: buffer.extend(data)) == 1
    assert buffer.write_count == 80


def test_several_environments_have_a_lane_each():
    runs = torch.stack([rollout([4, 2]), rollout([3, 3])])  # [environment, time]
    runs["observation"] += torch.tensor([0.0, 100.0])[:, None, None]
    runs["next", "observation"] += torch.tensor([0.0, 100.0])[:, None, None]
    buffer = buffer_of(n_envs=2, n_step=2, gamma=1.0)
    ids = buffer.extend(runs[:, :5])
    added = buffer.add(runs[:, 5])
    assert ids.shape == (2, 5) and added.shape == (2,)
    assert (torch.cat([ids, added[:, None]], 1) % 2 == torch.tensor([[0], [1]])).all()
    rows = buffer.buffer.get_windows(ids[1])
    assert rows["observation.observation"][:, 0].tolist() == [100, 101, 102, 104, 105]
    assert rows.reward.tolist() == [0 + 1, 1 + 2, 2, 4 + 5, 5 + 6]


# ------------------------------------------------------------------------------------------------------- priorities


def test_priorities_are_set_by_td_errors_and_weights_follow_them():
    buffer = buffer_of(prioritization="proportional")
    ids = buffer.extend(rollout([4]))
    td_errors = torch.tensor([1.0, -2.0, 4.0, 8.0])
    buffer.update_tensordict_priority(TensorDict({"index": ids, "td_error": td_errors[:, None]}, [4]))
    assert buffer.buffer.priorities(ids).tolist() == [1, 2, 4, 8]
    batch = buffer.sample(256)
    p = td_errors.abs()[batch["observation"][:, 0].long()]
    torch.testing.assert_close(batch["priority_weight"], (p / p.min()) ** -0.5)


def test_the_largest_of_several_td_errors_counts_under_the_key_that_was_named():
    buffer = buffer_of(priority_key="loss")
    ids = buffer.extend(rollout([3]))
    errors = torch.tensor([[1.0, -5.0], [2.0, 1.0]], requires_grad=True)
    buffer.update_tensordict_priority(TensorDict({"index": ids[:2], "loss": errors}, [2]))
    assert buffer.buffer.priorities(ids).tolist() == [5, 2, 1]


def test_a_late_update_touches_nothing():
    buffer = buffer_of(8)
    first = buffer.extend(rollout([4]))
    batch = buffer.sample(8)
    second = buffer.extend(rollout([7]))
    batch["td_error"] = torch.full((8,), 9.0)
    buffer.update_tensordict_priority(batch)
    assert not (buffer.buffer.priorities(second) == 9).any()
    assert not set(first.tolist()) & set(buffer.sample(64)["index"].tolist())


def test_entries_of_a_batch_are_not_stored_when_it_is_added_again():
    buffer = buffer_of()
    buffer.extend(rollout([4]))
    batch = buffer.sample(4)
    batch["td_error"] = torch.ones(4)
    other = buffer_of(store_next_observation=True)
    other.extend(batch)
    assert not {name for name in other.buffer.fields if "index" in name or "weight" in name or "error" in name}


# ------------------------------------------------------------------------------------------------------------ state


@pytest.mark.parametrize("move", ["files", "state_dict"])
def test_a_loaded_buffer_goes_on_with_the_same_draws(move, tmp_path):
    first, second = buffer_of(batch_size=16), buffer_of(200, seed=7, batch_size=16)
    first.extend(rollout([4, 5]))
    first.sample()
    if move == "files":
        first.dumps(tmp_path / "buffer")
        second.loads(tmp_path / "buffer")
    else:
        torch.save(first.state_dict(), tmp_path / "state")
        second.load_state_dict(torch.load(tmp_path / "state"))
    for _ in range(3):
        batches = [buffer.sample() for buffer in (first, second)]
        assert (batches[0] == batches[1]).all()
        for buffer, batch in zip((first, second), batches, strict=True):
            batch["td_error"] = batch["next", "reward"]
            buffer.update_tensordict_priority(batch)
            buffer.extend(rollout([3]))


def test_an_empty_buffer_has_nothing_to_draw():
    buffer = buffer_of()
    for _ in range(2):
        assert len(buffer) == 0
        with pytest.raises(RuntimeError):
            buffer.sample(4)
        assert buffer.load_state_dict(buffer.state_dict()) is None
        buffer.extend(rollout([3]))
        assert len(buffer) == 3
        buffer.empty()


def test_a_first_step_that_is_refused_declares_nothing():
    buffer, wrong = buffer_of(), rollout([3], pixels=(2, 3))
    del wrong["next", "reward"]
    for _ in range(2):
        with pytest.raises((per.InvalidArgument, KeyError), match="reward"):
            buffer.extend(wrong)
        assert buffer.buffer is None
    buffer.extend(rollout([3]))
    assert len(buffer) == 3


def test_a_state_of_another_buffer_is_refused_and_changes_nothing():
    buffer = buffer_of()
    buffer.extend(rollout([3]))
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(5))
    theirs.extend(rollout([3]))
    for state in (theirs.state_dict(), {"checkpoint": None, "more": 1}):
        with pytest.raises(per.InvalidArgument, match=r"^state_dict has \['.*'\]; allowed: what state_dict"):
            buffer.load_state_dict(state)
    for state, said in (
        ([], "state_dict is a list; allowed"),
        (None, "state_dict is None; allowed"),
        ({"checkpoint": None}, "checkpoint is of dtype object; allowed: uint8"),
        ({"checkpoint": 5}, "checkpoint is of dtype int64; allowed: uint8"),
    ):
        with pytest.raises(per.InvalidArgument, match=said):
            buffer.load_state_dict(state)
    assert len(buffer) == 3


@pytest.mark.parametrize("move", ["files", "state_dict"])
def test_a_loaded_buffer_keeps_its_limit_of_memory(move, tmp_path):
    first, second = buffer_of(max_heap_bytes=54321), buffer_of(max_heap_bytes=12345)
    first.extend(rollout([3]))
    if move == "files":
        first.dumps(tmp_path)
        second.loads(tmp_path)
    else:
        second.load_state_dict(first.state_dict())
    assert second.buffer.options["max_heap_bytes"] == 12345 and len(second) == 3


def test_a_transition_without_an_entry_of_the_first_is_refused_and_adds_nothing():
    buffer = buffer_of()
    buffer.extend(rollout([3]))
    with pytest.raises(KeyError, match="action"):
        buffer.extend(rollout([3]).exclude("action"))
    with pytest.raises(per.InvalidArgument, match="pixels"):
        buffer.extend(rollout([3], pixels=(2, 3)))
    assert len(buffer) == 3


# -------------------------------------------------------------------------------------------- TorchRL's environments


def test_a_collector_fills_it_with_true_transitions():
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=11))
    buffer = buffer_of(1000)
    collector = Collector(
        env, RandomPolicy(env.action_spec), frames_per_batch=50, total_frames=200, replay_buffer=buffer
    )
    for _ in collector:
        pass
    collector.shutdown()
    assert buffer.write_count == 200
    batch = buffer.sample(256)
    # An episode may continue across the 3 seams between the 4 pieces of 50 steps; there are no other cuts.
    assert buffer.buffer.stats().cuts <= 3
    assert (batch["step_count"] + 1 == batch["next", "step_count"]).all()
    assert (batch["next", "done"] | (batch["next", "step_count"] < 11)).all()
    # CartPole's position moves by 0.02 times its velocity
    moved = batch["observation"][:, 0] + 0.02 * batch["observation"][:, 1]
    torch.testing.assert_close(batch["next", "observation"][:, 0], moved)


def test_environments_side_by_side_are_extended_as_they_come():
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    buffer = buffer_of(1000, n_envs=2, n_step=3)
    for _ in range(3):
        buffer.extend(env.rollout(40, break_when_any_done=False))
    assert buffer.write_count == 240
    assert torch.isfinite(buffer.sample(64)["next", "reward"]).all()


def test_sequences_are_refused():
    with pytest.raises(per.InvalidArgument, match="sequence_length is 3; allowed: None, as batches hold single"):
        ReplayBuffer(10, sequence_length=3)


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_the_true_transitions_are_drawn_however_environments_reset(mode, counting):
    env = GymWrapper(counting.vector(mode), categorical_action_encoding=True)
    buffer = buffer_of(600, n_envs=2)
    collector = Collector(env, RandomPolicy(env.action_spec), frames_per_batch=40, total_frames=200)
    for data in collector:
        buffer.extend(data)
    collector.shutdown()
    batch = buffer.sample(1000)
    following = batch["next"]
    columns = batch["observation"], batch["action"], following["reward"], following["observation"]
    # TorchRL makes some steps before those that it collects.
    assert counting.drawn(*columns, following["terminated"]) == set(counting.transitions[-200:])
    assert buffer.buffer.stats().suspected_resets == 0


def test_torchrl_refuses_environments_that_reset_in_the_next_step(counting):
    with pytest.raises(RuntimeError, match="SAME_STEP or DISABLED"):
        GymWrapper(counting.vector("next_step"))
