from __future__ import annotations

import re

import lerobot.rl.buffer as theirs
import numpy as np
import per
import pytest
import torch
from per.integrations.lerobot import ReplayBuffer

IMAGE, STATE = "observation.images.front", "observation.state"
KEYS = [IMAGE, STATE]


def state(number: int) -> dict[str, torch.Tensor]:
    """The state with this number: an image of 3 x 8 x 8 in multiples of 1 / 255, and two numbers."""
    image = torch.arange(3 * 8 * 8).reshape(3, 8, 8) % 100 + number
    return {IMAGE: (image / 255)[None], STATE: torch.tensor([[number, -number]], dtype=torch.float32)}


def number_of(states: dict[str, torch.Tensor]) -> list[int]:
    """The numbers of the states of a batch. Asserts that each image belongs to its number."""
    numbers = states[STATE][:, 0]
    for i, number in enumerate(numbers.int().tolist()):
        assert torch.equal(states[IMAGE][i], state(number)[IMAGE][0])
        assert states[STATE][i, 1] == -number
    return numbers.int().tolist()


def filled(kind=ReplayBuffer, *, steps: int = 10, capacity: int = 20, first: int = 0, **options):
    """Terminated episodes of five steps. The reward is the number of the step, the action a hundredth of it."""
    options = {"seed": 0, **options} if kind is ReplayBuffer else options
    buffer = kind(capacity, "cpu", KEYS, use_drq=False, **options)
    for t in range(first, first + steps):
        action = torch.tensor([[t / 100, 0.0, 1.0]])
        info = {"discrete_penalty": torch.tensor([-t / 2])}
        buffer.add(state(t), action, float(t), state(t + 1), t % 5 == 4, False, info)
    return buffer


def test_batches_are_those_of_lerobot_with_next_states_of_their_own_episode():
    buffer = filled()
    batch = buffer.sample(10)
    of_theirs = filled(theirs.ReplayBuffer).sample(10)
    assert len(buffer) == 10
    assert batch.keys() == of_theirs.keys()
    for name in ("action", "reward", "done", "truncated"):
        assert (batch[name].shape, batch[name].dtype) == (of_theirs[name].shape, of_theirs[name].dtype)
    for key in KEYS:
        assert batch["state"][key].shape == of_theirs["state"][key].shape
        assert batch["state"][key].dtype == of_theirs["state"][key].dtype
    numbers = number_of(batch["state"])
    assert number_of(batch["next_state"]) == [number + 1 for number in numbers]
    assert batch["reward"].tolist() == numbers
    assert torch.equal(batch["action"][:, 0], torch.tensor(numbers) / 100)
    assert batch["done"].tolist() == [float(number % 5 == 4) for number in numbers]
    assert batch["complementary_info"]["discrete_penalty"].flatten().tolist() == [-number / 2 for number in numbers]


def test_any_key_of_a_state_and_of_complementary_info_is_one_of_batches():
    keys = ["observation.images.cam-left", "observation.state", "observation.joint 1", "observation.größe"]
    infos = ["penalty", "penalty.left", "is-intervention", "0"]
    buffer = ReplayBuffer(20, "cpu", keys, use_drq=False, seed=0)
    for t in range(4):
        before, after = ({key: torch.full((1, 2), float(i + n)) for i, key in enumerate(keys)} for n in (t, t + 1))
        info = {key: torch.tensor([float(10 * i + t)]) for i, key in enumerate(infos)}
        before[keys[0]], after[keys[0]] = before[keys[0]] / 255, after[keys[0]] / 255
        buffer.add(before, torch.zeros(1, 1), float(t), after, False, t == 3, info)
    batch = buffer.sample(4)
    assert list(batch["state"]) == list(batch["next_state"]) == keys
    for i, key in enumerate(keys):
        scale = 255 if i == 0 else 1
        assert torch.allclose(batch["state"][key][:, 0] * scale, batch["reward"] + i)
        assert torch.allclose(batch["next_state"][key][:, 1] * scale, batch["reward"] + i + 1)
    for i, key in enumerate(infos):
        assert batch["complementary_info"][key].flatten().tolist() == [10 * i + r for r in batch["reward"].tolist()]


def test_next_states_at_a_truncation_and_at_the_seam_of_the_ring_are_those_given():
    buffer = ReplayBuffer(8, "cpu", KEYS, use_drq=False, seed=0)
    for t in range(50):
        # The final observation of an episode is not a state of the next one.
        is_last = t % 4 == 3
        buffer.add(state(t), torch.zeros(1, 1), 0.0, state(100 if is_last else t + 1), False, is_last)
    batch = buffer.sample(8)
    pairs = zip(number_of(batch["state"]), number_of(batch["next_state"]), batch["truncated"].tolist(), strict=True)
    for number, following, truncated in pairs:
        assert (following, truncated) == ((100, 1.0) if number % 4 == 3 else (number + 1, 0.0))


def test_images_are_stored_once_as_uint8():
    fields = filled().replay.fields
    assert (fields[IMAGE].dtype, fields[IMAGE].shape, fields[STATE].dtype) == ("uint8", (3, 8, 8), "float32")
    sizes = []
    for kind in (ReplayBuffer, theirs.ReplayBuffer):
        buffer = kind(1000, "cpu", KEYS, use_drq=False)
        image = torch.zeros(1, 3, 64, 64)
        buffer.add({IMAGE: image}, torch.zeros(1, 1), 0.0, {IMAGE: image}, False, False)
        sizes.append(buffer.replay.stats().memory_bytes if kind is ReplayBuffer else 2 * buffer.states[IMAGE].nbytes)
    assert sizes[1] > 7.5 * sizes[0]


def test_images_of_bytes_stay_what_they_are():
    buffer = ReplayBuffer(10, "cpu", [IMAGE], use_drq=False)
    image = torch.arange(192, dtype=torch.uint8).reshape(1, 3, 8, 8)
    buffer.add({IMAGE: image}, torch.zeros(1, 1), 0.0, {IMAGE: image}, True, False)
    assert torch.equal(buffer.sample(1)["state"][IMAGE], image.float())


def test_images_that_are_no_fractions_are_refused_or_kept_as_float32():
    image = {IMAGE: torch.full((1, 3, 8, 8), 1.5)}
    step = image, torch.zeros(1, 1), 0.0, image, False, False
    with pytest.raises(per.InvalidArgument, match=re.escape(f"{IMAGE} has numbers from 1.5 to 1.5; allowed: 0 .. 1")):
        ReplayBuffer(10, "cpu", [IMAGE]).add(*step)
    refusing = ReplayBuffer(10, "cpu", [IMAGE], use_drq=False)
    with pytest.raises(per.InvalidArgument, match="allowed: 0"):
        refusing.add(*step)
    bytes_of = {IMAGE: torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)}  # the refused step has declared nothing
    refusing.add(bytes_of, torch.zeros(1, 1), 0.0, bytes_of, True, False)
    assert torch.equal(refusing.sample(1)["state"][IMAGE], bytes_of[IMAGE].float())
    buffer = ReplayBuffer(10, "cpu", [IMAGE], use_drq=False, image_dtype="float32")
    buffer.add(*step)
    assert torch.equal(buffer.sample(1)["state"][IMAGE], image[IMAGE])


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (torch.float32, torch.uint8, f"{IMAGE} has dtype uint8; allowed: floats, or uint8 if the first image is uint8"),
        (torch.uint8, torch.float32, f"{IMAGE} has dtype float32: allowed are bool and unsigned integers"),
        (torch.float32, torch.bool, f"{IMAGE} has dtype bool; allowed: floats"),
    ],
    ids=str,
)
def test_images_of_floats_and_of_bytes_are_not_mixed(first, later, message):
    buffer = ReplayBuffer(10, "cpu", [IMAGE], use_drq=False)
    before, after = ({IMAGE: torch.ones(1, 3, 8, 8, dtype=dtype)} for dtype in (first, later))
    step = torch.zeros(1, 1), 0.0
    buffer.add(before, *step, before, True, False)
    for states in ((after, after), (before, after)):
        with pytest.raises(per.InvalidArgument, match=re.escape(message)):
            buffer.add(states[0], *step, states[1], True, False)
    assert len(buffer) == 1


@pytest.mark.parametrize("key", ["weights", "ids"])
def test_names_of_the_librarys_own_entries_of_complementary_info_are_refused(key):
    buffer = ReplayBuffer(10, "cpu", KEYS, use_drq=False)
    message = f"complementary_info has {key!r}; allowed: other names than 'weights' and 'ids'"
    with pytest.raises(per.InvalidArgument, match=message):
        buffer.add(state(0), torch.zeros(1, 1), 0.0, state(1), True, False, {key: torch.tensor([7.0])})
    assert len(buffer) == 0
    buffer.add(state(0), torch.zeros(1, 1), 0.0, state(1), True, False)
    with pytest.raises(per.InvalidArgument, match=message):
        buffer.add(state(2), torch.zeros(1, 1), 0.0, state(3), True, False, {key: torch.tensor([7.0])})
    assert len(buffer) == 1


def test_a_gap_cuts_the_trajectory():
    buffer = ReplayBuffer(20, "cpu", [STATE], use_drq=False, seed=0)
    for t in (0, 1, 5, 6):  # an offline buffer gets only the steps of interventions
        buffer.add(
            {STATE: torch.tensor([[float(t)]])}, torch.zeros(1, 1), 0.0, {STATE: torch.tensor([[t + 1.0]])}, 0, 0
        )
    batch = buffer.sample(4)
    assert sorted(batch["state"][STATE].flatten().tolist()) == [0.0, 1.0, 5.0, 6.0]
    assert torch.equal(batch["next_state"][STATE], batch["state"][STATE] + 1)


def test_augmentation_sees_all_images_of_a_batch_at_once():
    shapes = []

    def brighter(images):
        shapes.append(tuple(images.shape))
        return images + 1

    buffer = filled(image_augmentation_function=brighter)
    buffer.use_drq = True
    batch = buffer.sample(10)
    assert shapes == [(20, 3, 8, 8)]
    for name in ("state", "next_state"):
        for image, number in zip(batch[name][IMAGE], batch[name][STATE][:, 0].int().tolist(), strict=True):
            assert torch.allclose(image - 1, state(number)[IMAGE][0], atol=1e-6)


@pytest.mark.parametrize("async_prefetch", [False, True])
def test_iterators_give_batches_without_end(async_prefetch):
    batches = filled().get_iterator(4, async_prefetch=async_prefetch)
    for _ in range(8):
        assert len(number_of(next(batches)["state"])) == 4
    batches.close()


def test_what_cannot_be_drawn_is_an_error_and_batches_are_no_larger_than_the_buffer():
    with pytest.raises(RuntimeError, match="Cannot sample from an empty buffer"):
        ReplayBuffer(10, "cpu", KEYS).sample(1)
    with pytest.raises(ValueError, match="Capacity must be greater than 0"):
        ReplayBuffer(0, "cpu", KEYS)
    assert len(filled(steps=3).sample(100)["reward"]) == 3


def test_the_same_seed_draws_the_same():
    first, again, other = (filled(seed=seed).sample(7)["complementary_info"]["ids"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_priorities_decide_what_is_drawn():
    buffer = filled(alpha=1.0)
    ids = torch.tensor(buffer.replay.live_ids())
    buffer.update_priorities(ids, torch.where(ids == ids[7], 1.0, 0.0))
    batch = buffer.sample(10)
    assert set(number_of(batch["state"])) == {7}
    assert torch.equal(batch["complementary_info"]["weights"], torch.ones(10))


def test_priorities_may_be_of_numpy_and_need_ids_that_were_issued():
    buffer = filled(alpha=1.0)
    ids = buffer.replay.live_ids()
    buffer.update_priorities(ids, (ids == ids[7]).astype("float32"))
    assert set(number_of(buffer.sample(10)["state"])) == {7}
    buffer.update_priorities(ids[::-1], (ids == ids[6]).astype("float32")[::-1])  # views with negative strides
    assert set(number_of(buffer.sample(10)["state"])) == {6}
    empty = ReplayBuffer(10, "cpu", KEYS)
    for ids in (torch.tensor([-1, 3]), torch.tensor([-1, 3]).numpy(), np.array([3, -1])[::-1]):
        with pytest.raises(per.InvalidArgument, match=re.escape("ids[1] is 3: never issued; no step was added yet")):
            empty.update_priorities(ids, torch.ones(2))


def test_id_minus_1_is_ignored_with_and_without_steps():
    """It marks entries without a transition."""
    for buffer in (ReplayBuffer(10, "cpu", KEYS), filled(alpha=1.0)):
        for ids in (torch.tensor([-1, -1]), np.array([-1, -1])):
            buffer.update_priorities(ids, torch.ones(2))
        with pytest.raises(per.InvalidArgument, match=re.escape("ids[1] is -2: never issued")):
            buffer.update_priorities(torch.tensor([-1, -2]), torch.ones(2))
    assert buffer.replay.stats().stale_updates == 4


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_mixed_batches_are_weighted_and_set_the_priorities_of_both_buffers(reduction):
    online, offline = filled(), filled(first=20)
    for buffer in (online, offline):
        ids = torch.tensor(buffer.replay.live_ids())
        buffer.update_priorities(ids, torch.arange(1.0, 11.0))
    batch = theirs.concatenate_batch_transitions(online.sample(6), offline.sample(6))
    info = batch["complementary_info"]
    assert info["weights"].shape == info["ids"].shape == (12,)
    assert number_of(batch["state"]) == batch["reward"].tolist()
    with torch.no_grad():
        target = (batch["reward"] + (1 - batch["done"]) * 0.9 * torch.ones(12)).repeat(2, 1)
    predictions = torch.stack([torch.zeros(12), torch.full((12,), 2.0)]).requires_grad_()
    loss = torch.nn.functional.mse_loss(input=predictions, target=target, reduction=reduction)
    plain = target.as_subclass(torch.Tensor)
    losses = info["weights"] * (predictions - plain) ** 2
    wanted = losses if reduction == "none" else getattr(losses, reduction)()
    assert type(loss) is torch.Tensor
    torch.testing.assert_close(loss, wanted)
    errors = (plain - predictions).detach().abs().mean(0) + 1e-6
    for buffer, half in ((online, slice(0, 6)), (offline, slice(6, 12))):
        given = dict(zip(info["ids"][half].tolist(), errors[half].tolist(), strict=True))
        assert buffer.replay.priorities(list(given)) == pytest.approx(list(given.values()))


def test_a_batch_of_lerobots_own_buffer_may_be_joined_and_weighs_1():
    batch = theirs.concatenate_batch_transitions(filled().sample(4), filled(theirs.ReplayBuffer).sample(4))
    loss = torch.nn.functional.mse_loss(torch.zeros(8), batch["reward"], reduction="none")
    torch.testing.assert_close(loss[4:], batch["reward"].as_subclass(torch.Tensor)[4:] ** 2)


def test_losses_can_be_left_alone():
    buffer = filled(weigh_losses=False)
    batch = buffer.sample(10)
    assert type(batch["reward"]) is torch.Tensor
    torch.nn.functional.mse_loss(torch.zeros(10), batch["reward"])
    assert buffer.replay.stats().updates == 0


def test_datasets_bring_transitions_there_and_back(tmp_path):
    buffer = filled()
    dataset = buffer.to_lerobot_dataset("of/tests", root=tmp_path / "dataset")
    assert (len(dataset), dataset.num_episodes) == (10, 2)
    again = ReplayBuffer.from_lerobot_dataset(dataset, "cpu", KEYS, use_drq=False, capacity=30, seed=0)
    assert len(again) == 10
    for name in ("action", "reward", "terminated", "truncated", "complementary_info.discrete_penalty"):
        ids = [one.replay.live_ids() for one in (buffer, again)]
        rows = [one.replay.get(of_it)[name] for one, of_it in zip((buffer, again), ids, strict=True)]
        assert torch.equal(*rows), name
    assert sorted(set(number_of(again.sample(200)["state"]))) == list(range(10))
    # LeRobot's own buffer reads the same data; its images are converted to float32 and back.
    of_theirs = theirs.ReplayBuffer.from_lerobot_dataset(dataset, "cpu", KEYS, use_drq=False)
    assert of_theirs.rewards.tolist() == list(range(10))
    assert torch.equal(of_theirs.states[IMAGE][3], state(3)[IMAGE][0])


def test_the_last_transition_of_a_truncated_episode_of_a_dataset_is_not_drawn(tmp_path):
    buffer = ReplayBuffer(20, "cpu", [STATE], use_drq=False)
    for t in range(6):
        state, following = ({STATE: torch.tensor([[float(n)]])} for n in (t, t + 1))
        buffer.add(state, torch.zeros(1, 1), float(t), following, False, t % 3 == 2)
    dataset = buffer.to_lerobot_dataset("of/tests", root=tmp_path / "dataset")
    assert dataset.num_episodes == 2
    again = ReplayBuffer.from_lerobot_dataset(dataset, "cpu", [STATE], use_drq=False)
    assert again.replay.get(again.replay.live_ids()).reward.tolist() == [0.0, 1.0, 3.0, 4.0]


def frames_of(lengths: list[int], *, done: str = "each") -> list[dict[str, torch.Tensor]]:
    """Frames of episodes; `done` is "each" if each of them ends so, "no" if none does, "unknown" without that entry."""
    ends = [t == length - 1 for length in lengths for t in range(length)]
    episodes = [i for i, length in enumerate(lengths) for _ in range(length)]
    frames = [
        {
            STATE: torch.tensor([float(t), 0.0]),
            "action": torch.tensor([float(t)]),
            "next.reward": torch.tensor(float(t)),
            "next.done": torch.tensor(end and done == "each"),
            "episode_index": torch.tensor(episode),
        }
        for t, (end, episode) in enumerate(zip(ends, episodes, strict=True))
    ]
    return [{key: frame[key] for key in frame if done != "unknown" or key != "next.done"} for frame in frames]


@pytest.mark.parametrize("done", ["each", "no", "unknown"])
@pytest.mark.parametrize("lengths", [[3] * 40, [1], [2, 7, 1, 5]], ids=str)
def test_a_dataset_has_room_at_the_default_and_at_the_least_capacity(lengths, done):
    frames = frames_of(lengths, done=done)
    rewards = [frame["next.reward"].item() for frame in frames]
    if done == "no":  # the last transition of each episode has no next state
        ends = set(np.cumsum(lengths) - 1)
        rewards = [reward for reward in rewards if reward not in ends]
    least = max(1, len(frames) + (0 if done == "no" else len(lengths)) - 2)
    every = [{}, {"capacity": least}]
    if done != "no":
        every.append({"capacity": len(frames), "store_next_observation": True})
    for options in every:
        buffer = ReplayBuffer.from_lerobot_dataset(frames, "cpu", [STATE], use_drq=False, **options)
        assert buffer.replay.get(buffer.replay.live_ids()).reward.tolist() == rewards
    if least > 1:
        message = f"capacity is {least - 1}; allowed: {least} and above, for {len(frames)} frames and "
        with pytest.raises(per.InvalidArgument, match=message):
            ReplayBuffer.from_lerobot_dataset(frames, "cpu", [STATE], capacity=least - 1)


def test_a_full_buffer_comes_back_from_its_dataset_with_the_same_capacity(tmp_path):
    """LeRobot's learner resumes so."""
    buffer = filled(steps=60)
    dataset = buffer.to_lerobot_dataset("of/tests", root=tmp_path / "dataset")
    again = ReplayBuffer.from_lerobot_dataset(dataset, "cpu", KEYS, use_drq=False, capacity=20)
    assert len(again) == len(buffer) == len(dataset) == 18
    rewards = [one.replay.get(one.replay.live_ids()).reward for one in (buffer, again)]
    assert torch.equal(*rewards)


def test_entries_of_one_number_keep_their_axis():
    frames = [
        {
            STATE: torch.tensor([float(t)]),
            "action": torch.tensor([float(t)]),
            "next.reward": torch.tensor(float(t)),
            "next.done": torch.tensor(t == 5),
            "episode_index": torch.tensor(0),
        }
        for t in range(6)
    ]
    shapes = []
    for kind in (theirs.ReplayBuffer, ReplayBuffer):
        drawn = kind.from_lerobot_dataset(frames, "cpu", [STATE], use_drq=False).sample(4)
        shapes.append([drawn["state"][STATE].shape, drawn["next_state"][STATE].shape, drawn["action"].shape])
    assert shapes[0] == shapes[1] == [(4, 1)] * 3


def test_what_a_dataset_needs_is_said(tmp_path):
    with pytest.raises(ValueError, match="The replay buffer is empty"):
        ReplayBuffer(10, "cpu", KEYS).to_lerobot_dataset("of/tests")
    dataset = filled().to_lerobot_dataset("of/tests", root=tmp_path / "dataset")
    message = "capacity is 9; allowed: 10 and above, for 10 frames and 2 ends of episodes"
    with pytest.raises(per.InvalidArgument, match=message):
        ReplayBuffer.from_lerobot_dataset(dataset, "cpu", KEYS, capacity=9)
    with pytest.raises(per.InvalidArgument, match="state_keys is None"):
        ReplayBuffer.from_lerobot_dataset(dataset, "cpu")
    with pytest.raises(per.InvalidArgument, match=f"state_keys has 'sound'; allowed: .*{IMAGE!r}, {STATE!r}"):
        ReplayBuffer.from_lerobot_dataset(dataset, "cpu", [IMAGE, "sound"])
    for options in ({}, {"capacity": 9}, {"capacity": 9, "store_next_observation": True}):
        with pytest.raises(per.InvalidArgument, match="lerobot_dataset has 0 frames; allowed: 1 and above"):
            ReplayBuffer.from_lerobot_dataset([], "cpu", KEYS, **options)


@pytest.mark.parametrize("arrays", ["numpy", None, "jax"])
def test_arrays_other_than_tensors_are_refused(arrays):
    with pytest.raises(per.InvalidArgument, match=f"arrays is {arrays!r}; allowed: 'torch'"):
        ReplayBuffer(10, "cpu", KEYS, arrays=arrays)


def test_sequences_and_returns_of_several_steps_are_refused():
    for name, value, default in (("sequence_length", 3, "None"), ("n_step", 2, "1")):
        with pytest.raises(per.InvalidArgument, match=f"{name} is {value}; allowed: {default}, as"):
            filled(**{name: value})


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_the_true_transitions_are_drawn_however_environments_reset(mode, counting):
    """LeRobot resets its environment itself ("disabled"). The buffer has an option for the other modes."""
    envs = counting.vector(mode, n_envs=1)
    buffer = ReplayBuffer(200, "cpu", [STATE], use_drq=False, seed=0, autoreset=mode)
    for seen, action, (following, reward, terminated, truncated, info) in counting.steps(envs, 100):
        if "final_obs" in info:
            following = info["final_obs"][0][None]
        states = ({STATE: torch.from_numpy(observation.copy())} for observation in (seen, following))
        before, after = states
        buffer.add(before, torch.from_numpy(action)[None].float(), reward[0], after, terminated[0], truncated[0])
    found = set()
    for _ in range(20):
        batch = buffer.sample(200)
        columns = batch["state"][STATE], batch["action"], batch["reward"], batch["next_state"][STATE], batch["done"]
        found |= counting.drawn(*(column.numpy() for column in columns))
    assert found == set(counting.transitions)
    assert buffer.replay.stats().suspected_resets == 0


def test_no_step_is_lost_where_threads_bring_the_first_ones(buffers_made_by_first_steps):
    buffer = ReplayBuffer(100, "cpu", KEYS, use_drq=False)
    step = state(0), torch.zeros(1, 1), 0.0, state(1), True, False
    assert buffers_made_by_first_steps(buffer, "_new_replay", lambda: buffer.add(*step)) == 1
    assert buffer.replay.stats().added == 4
