"""per.integrations.minari copies datasets into buffers and back, bit for bit."""

from __future__ import annotations

import dataclasses
import re

import gymnasium
import minari
import numpy as np
import per
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from per.integrations.minari import create_dataset, episodes, new_buffer

IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
OBSERVATIONS = {
    "float32": spaces.Box(-1, 1, (3,), np.float32),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "image": IMAGE,
    "discrete": spaces.Discrete(9),
    "dict": spaces.Dict(
        {
            "camera": IMAGE,
            "joints": spaces.Dict({"angle": spaces.Box(-1, 1, (4,), np.float64)}),
            "on": spaces.MultiBinary(5),
        }
    ),
    "keys": spaces.Dict({key: spaces.Discrete(4) for key in ("agent-pos", "camera 1", "a.b", "0", "1", "größe")}),
    "tuple": spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (3,), np.float32))),
}
ACTIONS = {
    "discrete": spaces.Discrete(5),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "dict": spaces.Dict({"gripper": spaces.Discrete(2), "torque": spaces.Box(-1, 1, (6,), np.float64)}),
}


def stacked(values):
    """Stacks samples of a space into arrays."""
    first = values[0]
    if isinstance(first, dict):
        return {key: stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked([value[i] for value in values]) for i in range(len(first)))
    return np.stack(values)


def episode_of(observation_space, action_space, length, ending, random):
    """Random steps. The ending is "terminated", "truncated", "both" or "neither"."""
    terminations, truncations = np.zeros(length, bool), np.zeros(length, bool)
    terminations[-1], truncations[-1] = ending in ("terminated", "both"), ending in ("truncated", "both")
    return EpisodeBuffer(
        observations=stacked([observation_space.sample() for _ in range(length + 1)]),
        actions=stacked([action_space.sample() for _ in range(length)]),
        rewards=random.normal(size=length),
        terminations=terminations,
        truncations=truncations,
    )


def dataset_of(
    observation_space, action_space, lengths=(5, 1, 9), endings=("terminated", "truncated", "both"), name="test/in-v0"
):
    observation_space.seed(1)
    action_space.seed(2)
    random = np.random.default_rng(3)
    buffers = [
        episode_of(observation_space, action_space, length, ending, random)
        for length, ending in zip(lengths, endings, strict=True)
    ]
    return minari.create_dataset_from_buffers(
        name, buffers, observation_space=observation_space, action_space=action_space, jpeg_encoding=False
    )


def assert_same(one, other):
    """Asserts that containers, dtypes, shapes and bits are equal."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def assert_same_episodes(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            assert_same(getattr(mine, name), getattr(other, name))


def out(dataset, buffer):
    return create_dataset(
        "test/out-v0", buffer, observation_space=dataset.observation_space, action_space=dataset.action_space
    )


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_a_dataset_comes_back_bit_for_bit(observation, action):
    dataset = dataset_of(OBSERVATIONS[observation], ACTIONS[action])
    buffer = new_buffer(dataset)
    assert len(buffer) == dataset.total_steps == 15
    again = out(dataset, buffer)
    assert_same_episodes(again, dataset)
    assert_same_episodes(minari.load_dataset("test/out-v0"), dataset)


@pytest.mark.parametrize("ending", ["terminated", "truncated", "both", "neither"])
@pytest.mark.parametrize("options", [{}, {"n_step": 4}, {"n_envs": 2}, {"frame_stack": 3}], ids=str)
def test_every_way_to_end_comes_back(ending, options):
    dataset = dataset_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), (4, 2, 7, 3), [ending] * 4)
    buffer = new_buffer(dataset, **options)
    assert len(buffer) == 16
    given = list(episodes(buffer))
    order = [0, 2, 1, 3] if "n_envs" in options else [0, 1, 2, 3]
    assert_same_episodes(given, [dataset[i] for i in order])


def test_flags_within_an_episode_come_back():
    """In the buffer, returns end at the flags; in the dataset the episode stays whole."""
    space, actions = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
    episode = episode_of(space, actions, 8, "truncated", np.random.default_rng(4))
    episode.terminations[[2, 3]] = True
    episode.truncations[5] = True
    dataset = minari.create_dataset_from_buffers(
        "test/in-v0", [episode, episode], observation_space=space, action_space=actions
    )
    buffer = new_buffer(dataset, n_step=5)
    assert len(buffer) == 16
    assert_same_episodes(episodes(buffer), dataset)
    assert buffer.get_windows(buffer.live_ids()).n_steps.tolist() == [3, 2, 1, 1, 2, 1, 2, 1] * 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_step": 3},
        {"frame_stack": 3, "n_step": 2},
        {"n_envs": 2},
        {"store_next_observation": True, "n_step": 2},
        {"sequence_length": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_autoreset_changes_no_transition_of_a_dataset(autoreset, options):
    """There are two observations, so that most episodes, and parts of them, begin where the one before ended."""
    space, actions, random = spaces.Dict({"cell": spaces.Discrete(2)}), spaces.Discrete(5), np.random.default_rng(5)
    endings = ["terminated", "truncated", "neither", "both"] * 5
    buffers = [episode_of(space, actions, random.integers(1, 9), ending, random) for ending in endings]
    for buffer in buffers[::3]:
        buffer.truncations[::2] = True
    dataset = minari.create_dataset_from_buffers("test/in-v0", buffers, observation_space=space, action_space=actions)
    plain, resetting = (new_buffer(dataset, autoreset=mode, **options) for mode in ("disabled", autoreset))
    assert len(plain) == len(resetting) > 0
    if "sequence_length" not in options:
        assert len(resetting) == dataset.total_steps
        assert_same_episodes(episodes(resetting), episodes(plain))
    assert_same(dict(resetting.sample(300)), dict(plain.sample(300)))  # by the same seed


def test_a_first_step_that_repeats_the_datasets_last_observation_is_no_reset():
    dataset = dataset_of(spaces.Discrete(9), spaces.Discrete(2))
    buffer = new_buffer(dataset, 100, autoreset="next_step")
    last = dataset[2].observations[-1]
    step = {"action": 0, "reward": 1.0, "terminated": False, "truncated": False}
    buffer.add(observation=last, next_observation=last, **step)
    assert len(buffer) == dataset.total_steps + 1


def test_the_last_observation_is_bootstrapped_from_after_a_truncation_only():
    dataset = dataset_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), (3, 3), ("terminated", "truncated"))
    buffer = new_buffer(dataset, gamma=0.5)
    batch = buffer.get_windows(buffer.live_ids())
    assert batch.discount.tolist() == [0.5, 0.5, 0.0, 0.5, 0.5, 0.5]
    assert (batch.next_observation[5] == dataset[1].observations[3]).all()
    np.testing.assert_array_equal(batch.reward, np.concatenate([e.rewards for e in dataset]).astype(np.float32))


def test_images_are_stored_as_they_are_and_once():
    dataset = dataset_of(IMAGE, spaces.Discrete(2), (50, 50), ("terminated", "truncated"))
    buffer = new_buffer(dataset)
    assert buffer.fields["observation"].dtype == "uint8"
    assert buffer.capacity == 102
    assert not out(dataset, buffer).storage.jpeg_encoding


@pytest.mark.parametrize(
    "options", [{}, {"n_step": 3}, {"frame_stack": 4}, {"n_envs": 3}, {"sequence_length": 5}], ids=str
)
@pytest.mark.parametrize("length", [None, 1, 3])
def test_a_short_or_empty_dataset_has_room(length, options):
    dataset = dataset_of(spaces.Discrete(9), spaces.Discrete(2), (length or 1,), ("terminated",))
    if length is None:
        dataset = dataset.filter_episodes(lambda episode: False)
    buffer = new_buffer(dataset, **options)
    if "sequence_length" not in options:
        assert len(buffer) == (length or 0)
        assert_same_episodes(episodes(buffer), dataset)


@pytest.mark.parametrize("n_envs", [0, -1, None, 2.5, 2**62])
def test_a_number_of_environments_that_cannot_be_is_refused(n_envs):
    dataset = dataset_of(spaces.Discrete(9), spaces.Discrete(2))
    with pytest.raises(per.InvalidArgument, match=f"n_envs is {n_envs}"):
        new_buffer(dataset, n_envs=n_envs)


def with_dtypes(*dtypes, rewards=False):
    """A dataset whose episode i has observations, or rewards, of the i-th dtype."""
    space, actions, random, buffers = spaces.Box(0, 2), spaces.Discrete(2), np.random.default_rng(6), []
    for dtype in dtypes:
        episode = episode_of(space, actions, 4, "truncated", random)
        name = "rewards" if rewards else "observations"
        values = random.random(4 if rewards else (5, 1)) * 2
        buffers.append(dataclasses.replace(episode, **{name: values.astype(dtype)}))
    return minari.create_dataset_from_buffers("test/in-v0", buffers, observation_space=space, action_space=actions)


@pytest.mark.parametrize("rewards", [False, True], ids=["observations", "rewards"])
def test_episodes_have_the_first_ones_dtype_or_one_that_was_asked_for(rewards):
    name, attribute = ("minari.reward", "rewards") if rewards else ("observation", "observations")
    dataset = with_dtypes("float64", "float32", "int32", rewards=rewards)
    for episode, given in zip(episodes(new_buffer(dataset)), dataset, strict=True):
        assert_same(getattr(episode, attribute), getattr(given, attribute).astype("float64"))
    minari.delete_dataset("test/in-v0")
    dataset = with_dtypes("float32", "float64", rewards=rewards)
    refusal = f"{name} of episode 1 has dtype float64; allowed: values that the field's float32 can hold, or dtypes="
    with pytest.raises(per.InvalidArgument, match=re.escape(refusal + f"{{{name!r}: 'float64'}}")):
        new_buffer(dataset)
    for episode, given in zip(episodes(new_buffer(dataset, dtypes={name: "float64"})), dataset, strict=True):
        assert_same(getattr(episode, attribute), getattr(given, attribute).astype("float64"))
    assert new_buffer(dataset, dtypes={name: "float32"}).fields[name].dtype == "float32"


def test_a_dtype_of_a_container_is_that_of_its_parts():
    buffer = new_buffer(dataset_of(OBSERVATIONS["tuple"], ACTIONS["box"]), dtypes={"observation": "float64"})
    assert [buffer.fields[f"observation.{i}"].dtype for i in range(2)] == ["float64", "float64"]


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_whole_rewards_come_back_as_floats(dtype):
    """DataCollector writes such an episode if the environment returned ints."""
    dataset = with_dtypes(dtype, "float64", rewards=True)
    for episode, given in zip(episodes(new_buffer(dataset)), dataset, strict=True):
        assert_same(episode.rewards, given.rewards.astype("float64"))


def with_values(*arrays, rewards=False):
    """A dataset whose episode i of two steps has the i-th array as its rewards, or in its three observations."""
    space, actions, random, buffers = spaces.Box(0, 2), spaces.Discrete(2), np.random.default_rng(7), []
    for array in arrays:
        values = array if rewards else np.resize(array, (3, 1))
        episode = episode_of(space, actions, 2, "truncated", random)
        buffers.append(dataclasses.replace(episode, **{"rewards" if rewards else "observations": values}))
    return minari.create_dataset_from_buffers("test/in-v0", buffers, observation_space=space, action_space=actions)


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [([2**60 + 1, 2**53 + 1], "int64"), ([2**63 - 1, -(2**63)], "int64"), ([2**64 - 1, 2**53 + 1], "uint64")],
    ids=str,
)
def test_whole_rewards_that_no_float_holds_come_back_in_the_dtype_that_the_error_names(numbers, dtype):
    dataset = with_values(np.array(numbers, dtype), np.array([1, 0], dtype), rewards=True)
    message = f"minari.reward of episode 0 has dtype {dtype}; allowed: values that the field's float64 can hold, or "
    with pytest.raises(per.InvalidArgument, match=re.escape(f"{message}dtypes={{'minari.reward': '{dtype}'}}")):
        new_buffer(dataset)
    assert_same_episodes(episodes(new_buffer(dataset, dtypes={"minari.reward": dtype})), dataset)


def test_rewards_of_any_dtype_come_back_in_it_if_it_is_asked_for():
    for dtype in ("bool", "uint8", "int32", "uint64", "float16", "float32", "float64"):
        dataset = with_values(np.array([1, 0], dtype), rewards=True)
        assert_same_episodes(episodes(new_buffer(dataset, dtypes={"minari.reward": dtype})), dataset)
        minari.delete_dataset("test/in-v0")


@pytest.mark.parametrize(
    ("first", "later", "dtype"),
    [
        (np.int8([-1, 5]), np.uint8([200, 5]), "int16"),  # 200 would wrap to -56
        (np.int16([-1, 5]), np.uint16([40000, 5]), "int32"),
        (np.uint8([200, 5]), np.int8([-1, 5]), "int16"),
        (np.int64([-1, 5]), np.uint64([2**63 + 1, 5]), "uint64"),  # float64 would round
        (np.uint64([2**63 + 1, 5]), np.int64([-1, 5]), "int64"),
        (np.float32([0.5, 1]), np.int32([2**24 + 1, 5]), "float64"),
        (np.float32([0.5, 1]), np.int64([2**53 + 1, 5]), "int64"),
    ],
    ids=str,
)
def test_a_value_that_the_first_dtype_cannot_hold_is_refused_by_the_episodes_number(first, later, dtype):
    dataset = with_values(first, later)
    refusal = f"observation of episode 1 has dtype {later.dtype}; allowed: values that the field's {first.dtype} can "
    with pytest.raises(per.InvalidArgument, match=re.escape(f"{refusal}hold, or dtypes={{'observation': '{dtype}'}}")):
        new_buffer(dataset)
    if dtype in ("int64", "uint64"):  # no dtype holds both episodes
        with pytest.raises(per.InvalidArgument, match="allowed"):
            new_buffer(dataset, dtypes={"observation": dtype})
        return
    for episode, given in zip(episodes(new_buffer(dataset, dtypes={"observation": dtype})), dataset, strict=True):
        np.testing.assert_array_equal(episode.observations, given.observations.astype(dtype), strict=True)


@pytest.mark.parametrize("first", ["int8", "int64"])
def test_an_unsigned_episode_that_fits_is_stored(first):
    dataset = with_values(np.array([-1, 5], first), np.uint8([127, 5]))
    for episode, given in zip(episodes(new_buffer(dataset)), dataset, strict=True):
        assert_same(episode.observations, given.observations.astype(first))


def test_a_filtered_dataset_is_taken_as_it_is():
    dataset = dataset_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2)).filter_episodes(lambda episode: len(episode) > 1)
    assert_same_episodes(episodes(new_buffer(dataset)), dataset)


def test_dtypes_and_fields_are_those_asked_for():
    dataset = dataset_of(OBSERVATIONS["float64"], spaces.Discrete(2))
    buffer = new_buffer(dataset, 100, dtypes={"observation": "float16"}, fields={"score": per.Field(default=2.0)})
    assert buffer.fields["observation"].dtype == "float16"
    assert buffer.capacity == 100
    assert buffer.get(buffer.live_ids()[:1]).score.tolist() == [2.0]


def test_steps_added_later_go_out_too():
    dataset = dataset_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    buffer = new_buffer(dataset, 100)
    observations = np.arange(15, dtype=np.float32).reshape(5, 3)
    for t in range(4):
        buffer.add(
            observation=observations[t],
            action=t % 2,
            reward=0.5 * t,
            terminated=False,
            truncated=t == 2,
            next_observation=observations[t + 1],
        )
    *before, ended, running = episodes(buffer)
    assert_same_episodes(before, dataset)
    assert_same(ended.observations, observations[:4])
    assert_same(ended.rewards, np.array([0.0, 0.5, 1.0]))
    assert ended.truncations.tolist() == [False, False, True]
    assert_same(running.observations, observations[3:])
    assert (running.terminations.tolist(), running.truncations.tolist()) == ([False], [False])


def test_a_dataset_is_half_of_each_batch_beside_steps_of_ones_own():
    dataset = dataset_of(OBSERVATIONS["float32"], ACTIONS["discrete"])
    demonstrations = new_buffer(dataset, prioritization="uniform")
    online = per.ReplayBuffer(**(demonstrations.options | {"capacity": 100}))
    own = np.full((9, 3), 7, np.float32)
    online.extend(observation=own, action=[0] * 9, reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
    batch = per.Mixture({"online": (online, 0.5), "demonstrations": (demonstrations, 0.5)}).sample(8)
    np.testing.assert_array_equal((batch.observation == 7).all(axis=1), batch.sources == 0)
    assert batch.sources.tolist() == [0] * 4 + [1] * 4


def test_a_buffer_of_an_environment_goes_out():
    """There are two environments; each episode begins where its environment was reset."""
    env = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    buffer = per.ReplayBuffer.for_env(env, 1000)
    env.action_space.seed(1)
    observation, _ = env.reset(seed=1)
    for _ in range(100):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        buffer.add(
            observation=observation,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=after,
        )
        observation = after
    found = list(episodes(buffer))
    dataset = create_dataset("test/cartpole-v0", buffer, env="CartPole-v1")
    assert_same_episodes(dataset, found)
    assert dataset.total_steps == len(buffer)
    assert sum(bool(episode.terminations[-1]) for episode in found) == len(found) - 2
    assert all((np.abs(episode.observations[0]) <= 0.05).all() for episode in found)
    assert_same_episodes(episodes(new_buffer(dataset)), found)


def test_rows_with_next_observations_of_their_own_are_put_together():
    buffer = per.ReplayBuffer(
        20, {"observation": per.Field((), "int32"), "action": per.Field((), "int32")}, store_next_observation=True
    )
    for observation, end in [(0, False), (1, False), (10, False), (11, True), (12, False)]:
        buffer.add(
            observation=observation,
            action=0,
            reward=0.0,
            terminated=end,
            truncated=False,
            next_observation=observation + 1,
        )
    assert [episode.observations.tolist() for episode in episodes(buffer)] == [[0, 1, 2], [10, 11, 12], [12, 13]]


def test_a_buffer_of_sequences_is_refused():
    buffer = per.ReplayBuffer(20, {"observation": per.Field(1)}, sequence_length=4)
    with pytest.raises(per.Unsupported, match="sequence_length"):
        next(episodes(buffer))


def test_an_empty_buffer_has_no_episodes():
    assert list(episodes(per.ReplayBuffer(20, {"observation": per.Field(1), "action": per.Field()}))) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"observation": per.Field()}, "fields are observation; needed: observation and action"),
        ({"obs": per.Field(role="observation"), "action": per.Field()}, "fields are obs, action; needed"),
        (
            {"observation": per.Field(), "goal": per.Field(role="observation"), "action": per.Field()},
            "field goal has role 'observation'; allowed",
        ),
        (
            {"observation.x": per.Field(), "observation.y": per.Field(role="plain"), "action": per.Field()},
            "field observation.y has role 'plain'; allowed",
        ),
        ({"observation": per.Field(), "action": per.Field((), "bfloat16")}, "field action has dtype bfloat16; allowed"),
    ],
    ids=["no action", "no observation", "further observation", "plain observation", "bfloat16"],
)
def test_fields_that_episodes_cannot_have_are_refused(fields, message):
    with pytest.raises(per.Error, match=re.escape(message)):
        next(episodes(per.ReplayBuffer(20, fields, arrays="torch")))


def test_fields_that_are_not_exported_may_be_any():
    fields = {"observation": per.Field(), "action": per.Field(), "log_prob": per.Field((), "bfloat16", default=0.0)}
    buffer = per.ReplayBuffer(20, fields, arrays="torch")
    buffer.add(observation=1, action=2, reward=3, terminated=True, truncated=False, next_observation=4)
    assert [episode.actions.tolist() for episode in episodes(buffer)] == [[2]]


def test_the_example_writes_and_learns(output_of_example):
    output = output_of_example("minari_cartpole", "--short")
    assert "the same bits: True" in output
