"""The buffers of per.integrations.sb3 keep the promises of stable-baselines3's replay buffers, on the same steps."""

from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import per
import pytest
import torch
from gymnasium import spaces
from per.integrations.sb3 import PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_steps import fill, plain, replace, rows
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common import buffers
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her import GoalSelectionStrategy

OBSERVATIONS = {
    "float32": spaces.Box(-1, 1, (3,), np.float32),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "image": spaces.Box(0, 255, (1, 6, 5), np.uint8),
    "discrete": spaces.Discrete(7),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(4),
    "dict": spaces.Dict({"image": spaces.Box(0, 255, (1, 4, 4), np.uint8), "room": spaces.Discrete(5)}),
    "keys": spaces.Dict({key: spaces.Discrete(5) for key in ("walker/joints_pos", "camera 1", "größe")}),
    "numbers": spaces.Dict({key: spaces.Discrete(5) for key in ("0", "1")}),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "float64": spaces.Box(-1, 1, (2,), np.float64),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(4),
}
NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_batches_have_the_transitions_shapes_and_dtypes_of_theirs(observation, action, n_envs):
    arguments = OBSERVATIONS[observation], ACTIONS[action]
    is_dict = isinstance(OBSERVATIONS[observation], spaces.Dict)
    theirs = (buffers.DictReplayBuffer if is_dict else buffers.ReplayBuffer)(60, *arguments, "cpu", n_envs=n_envs)
    ours = (PrioritizedDictReplayBuffer if is_dict else PrioritizedReplayBuffer)(60, *arguments, "cpu", n_envs=n_envs)
    fill([theirs, ours], *arguments, steps=15, n_envs=n_envs)
    sizes = [(buffer.size(), buffer.pos, buffer.full, buffer.buffer_size) for buffer in (ours, theirs)]
    assert sizes[0] == sizes[1]

    # 15 n_envs transitions: that 2,000 independent draws of theirs leave one out has probability below 45 (44/45)^2000.
    expected, given = theirs.sample(2000), ours.sample(2000)
    assert set(rows(given)) == set(rows(expected))
    assert isinstance(given, type(expected))
    assert len(given) == len(expected)
    for name, value in expected._asdict().items():
        parts = value.items() if isinstance(value, dict) else [(None, value)]
        for key, tensor in parts:
            own = getattr(given, name) if key is None else getattr(given, name)[key]
            assert tensor is own is None or (own.shape, own.dtype) == (tensor.shape, tensor.dtype)


def test_timeouts_are_terminal_unless_they_are_handled():
    for handled, dones in ((True, 0.0), (False, 1.0)):
        buffer = PrioritizedReplayBuffer(
            10, NUMBER, spaces.Discrete(2), "cpu", handle_timeout_termination=handled, n_steps=2
        )
        step = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32), np.zeros((1, 1), np.int64), np.ones(1)
        buffer.add(*step, np.array([True]), [{"TimeLimit.truncated": True}])
        assert buffer.sample(1).dones.tolist() == [[dones]]


def test_last_transitions_replace_the_first_ones_when_it_is_full():
    buffer = PrioritizedReplayBuffer(8, NUMBER, spaces.Discrete(2), "cpu", n_envs=2)
    for t in range(20):
        obs = np.array([[t], [100 + t]], np.float32)
        buffer.add(obs, obs + 1, np.zeros((2, 1), np.int64), np.full(2, t), np.zeros(2, bool), [{}, {}])
    # There is room for four of each environment, and for one more as long as no episode has ended.
    assert (buffer.full, buffer.size(), buffer.pos) == (True, 5, 0)
    kept = {15, 16, 17, 18, 19}
    assert set(buffer.sample(500).observations.flatten().tolist()) == kept | {100 + t for t in kept}
    buffer.reset()
    assert (buffer.full, buffer.size(), buffer.pos) == (False, 0, 0)
    with pytest.raises(per.Empty):
        buffer.sample(1)


def test_what_is_added_is_copied():
    buffer = PrioritizedReplayBuffer(4, NUMBER, spaces.Discrete(2), "cpu")
    obs, after = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    buffer.add(obs, after, np.zeros((1, 1), np.int64), np.zeros(1), np.array([True]), [{}])
    obs[:], after[:] = 7, 8
    assert (buffer.sample(1).observations.item(), buffer.sample(1).next_observations.item()) == (0, 1)


@pytest.mark.parametrize("value", [256, -1, 3.5, np.nan])
def test_observations_that_their_space_has_no_number_for_are_refused(value):
    image, room = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(0, 255, (1,), np.uint8)
    single = PrioritizedReplayBuffer(10, image, spaces.Discrete(2), "cpu")
    parts = PrioritizedDictReplayBuffer(10, spaces.Dict({"image": image, "room": room}), spaces.Discrete(2), "cpu")
    good, bad = np.array([[0.0, 255.0]]), np.array([[7.0, value]])
    rest = np.zeros((1, 1), np.int64), np.zeros(1), np.zeros(1, bool), [{}]
    for observations in ((bad, good), (good, bad)):
        with pytest.raises(
            per.InvalidArgument, match=r"observation has numbers from .*; allowed: whole ones of 0 \.\. 255"
        ):
            single.add(*observations, *rest)
        with pytest.raises(per.InvalidArgument, match=r"image has numbers from .*; allowed: whole ones of 0 \.\. 255"):
            parts.add(*({"image": array, "room": [[1]]} for array in observations), *rest)
    single.add(good, good, *rest)
    assert single.sample(1).observations.tolist() == [[0, 255]]
    assert len(parts.replay) == 0


def test_what_reads_the_arrays_of_theirs_is_told_what_there_is_instead():
    buffer = PrioritizedReplayBuffer(60, NUMBER, spaces.Discrete(2), "cpu")
    fill([buffer], NUMBER, spaces.Discrete(2), steps=10, end=0.0)
    for name in ("observations", "next_observations", "actions", "rewards", "timeouts"):
        assert not hasattr(buffer, name)
        with pytest.raises(AttributeError, match=rf"has no {name}; allowed, .*: replay.get\(replay.live_ids\(\)\)"):
            getattr(buffer, name)
    with pytest.raises(per.Unsupported, match=r"dones\[3\] is read; allowed"):
        buffer.dones[3]
    with pytest.raises(per.Unsupported, match=r"_get_samples\(\) reads their arrays; allowed"):
        buffer._get_samples(np.arange(3))
    buffer.dones[9] = True  # as learn() does
    assert buffer.replay.stats().episodes == 1


def test_memory_is_that_of_observations_stored_once():
    space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    buffer = PrioritizedReplayBuffer(1000, space, spaces.Discrete(2), "cpu", n_envs=4)
    assert buffer.replay.stats().memory_bytes < 1.1 * 1000 * 84 * 84 * 4


@pytest.mark.parametrize("normalize", [False, True])
def test_n_step_returns_are_those_of_their_n_step_buffer(normalize):
    gamma, n = 0.9, 4
    theirs = buffers.NStepReplayBuffer(400, NUMBER, spaces.Discrete(2), "cpu", n_steps=n, gamma=gamma)
    ours = PrioritizedReplayBuffer(400, NUMBER, spaces.Discrete(2), "cpu", n_steps=n, gamma=gamma)
    fill([theirs, ours], NUMBER, spaces.Discrete(2), steps=300)
    env = normalizing(NUMBER) if normalize else None
    if normalize:  # returns exceed the bound, rewards do not
        env.clip_reward = 1.001 * np.abs(env.normalize_reward(theirs.rewards)).max()
    given = ours.sample(500, env)
    # The buffer is not full and observations are distinct, so an observation identifies the step of their buffer.
    raw = given.observations if env is None else torch.as_tensor(env.unnormalize_obs(given.observations.numpy()))
    steps = np.abs(theirs.observations[:300, 0, 0] - raw.numpy()).argmin(axis=1)
    expected = theirs._get_samples(steps, env)
    for name in ("observations", "actions", "next_observations", "dones", "rewards", "discounts"):
        torch.testing.assert_close(plain(getattr(given, name)), getattr(expected, name), rtol=1e-5, atol=1e-5)
    assert len(set(given.discounts.flatten().tolist())) == n
    assert env is None or float(plain(given.rewards).abs().max()) > env.clip_reward


def normalizing(observation_space, n_envs=1, **options):
    """A VecNormalize with statistics of 20 steps."""

    class Env(gymnasium.Env):
        action_space = spaces.Discrete(2)

        def __init__(self):
            self.observation_space = observation_space

        def reset(self, *, seed=None, options=None):
            return observation_space.sample(), {}

        def step(self, action):
            return observation_space.sample(), 3.0, False, False, {}

    env = VecNormalize(DummyVecEnv([Env] * n_envs), **options)
    observation_space.seed(5)
    env.reset()
    for _ in range(20):
        env.step(np.zeros(n_envs, np.int64))
    return env


@pytest.mark.parametrize("observation", ["float32", "dict"])
def test_batches_are_normalized_when_they_are_drawn(observation):
    space = OBSERVATIONS[observation]
    keys = {"norm_obs_keys": ["image"]} if observation == "dict" else {}
    env = normalizing(space, **keys, clip_reward=0.05)
    ours = PrioritizedReplayBuffer(60, space, spaces.Discrete(2), "cpu", seed=3)
    again = PrioritizedReplayBuffer(60, space, spaces.Discrete(2), "cpu", seed=3)
    fill([ours, again], space, spaces.Discrete(2), steps=40)
    raw, given = ours.sample(64), again.sample(64, env)

    def parts(value):
        return list(value.values()) if isinstance(value, dict) else [value]

    for name in ("observations", "next_observations"):
        value = getattr(raw, name)
        numbers = {k: v.numpy() for k, v in value.items()} if isinstance(value, dict) else value.numpy()
        for own, expected in zip(parts(getattr(given, name)), parts(env.normalize_obs(numbers)), strict=True):
            np.testing.assert_array_equal(own.numpy(), expected)
    rewards = env.normalize_reward(raw.rewards.numpy()).astype(np.float32)
    np.testing.assert_array_equal(given.rewards.numpy(), rewards)
    assert np.abs(rewards).max() == np.float32(0.05)


def test_draws_follow_the_priorities_and_weights_correct_for_them():
    buffer = PrioritizedReplayBuffer(10, NUMBER, spaces.Discrete(2), "cpu", alpha=1.0, beta=1.0, epsilon=0.0, seed=1)
    for t in range(2):
        obs = np.array([[t]], np.float32)
        buffer.add(obs, obs + 1, np.zeros((1, 1), np.int64), np.ones(1), np.array([t == 1]), [{}])
    ids = np.array([0, 1])
    buffer.update_priorities(ids, torch.tensor([[-1.0, 4.0], [1.0, 2.0]]))  # the means over two critics are 1 and 3
    samples = buffer.sample(400)
    first = samples.observations.flatten() == 0
    # A quarter of the 400 strata, give or take the stratum in which the quarter ends.
    assert abs(int(first.sum()) - 100) <= 1
    # w = 1 / (N P), divided by the largest: 1 and 1/3.
    torch.testing.assert_close(samples.weights[first], torch.ones(int(first.sum()), 1))
    torch.testing.assert_close(samples.weights[~first], torch.full((int((~first).sum()), 1), 1 / 3))
    assert samples.weights.shape == (400, 1)
    assert samples.ids.shape == (400,)


def test_equal_priorities_weigh_one():
    buffer = PrioritizedReplayBuffer(60, NUMBER, spaces.Discrete(2), "cpu")
    fill([buffer], NUMBER, spaces.Discrete(2), steps=40)
    assert buffer.sample(32).weights.tolist() == [[1.0]] * 32


def test_pickled_buffers_go_on_with_the_same_draws():
    buffer = PrioritizedReplayBuffer(60, NUMBER, spaces.Discrete(2), "cpu", n_steps=2, seed=3)
    fill([buffer], NUMBER, spaces.Discrete(2), steps=40)
    buffer.update_priorities(buffer.replay.live_ids(), torch.linspace(0, 1, len(buffer.replay)))
    again = pickle.loads(pickle.dumps(buffer))
    assert (again.pos, again.full, again.n_steps, again.gamma) == (buffer.pos, buffer.full, 2, buffer.gamma)
    fill([buffer, again], NUMBER, spaces.Discrete(2), steps=30, seed=9)
    for _ in range(3):
        first, second = buffer.sample(32), again.sample(32)
        np.testing.assert_array_equal(first.ids, second.ids)
        assert rows(first) == rows(second)


def test_seeds_come_from_the_generator_that_algorithms_seed():
    draws = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        buffer = PrioritizedReplayBuffer(60, NUMBER, spaces.Discrete(2), "cpu")
        fill([buffer], NUMBER, spaces.Discrete(2), steps=40)
        draws.append(buffer.sample(32).ids.tolist())
    assert draws[0] == draws[1] != draws[2]


class Counting(gymnasium.Env):
    """An environment that counts steps across episodes, so the goal reached by a step identifies the step."""

    observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), NUMBER))
    action_space = spaces.Discrete(2)
    length = 5

    def __init__(self, first=0):
        self.now = first

    def observe(self):
        now, goal = np.array([self.now], np.float32), np.array([-1], np.float32)
        return {"observation": now, "achieved_goal": now, "desired_goal": goal}

    def reset(self, *, seed=None, options=None):
        self.now += 1
        self.end = self.now + self.length
        return self.observe(), {}

    def step(self, action):
        self.now += 1
        return self.observe(), -1.0, False, self.now == self.end, {"now": self.now}

    def compute_reward(self, achieved, desired, infos):
        return np.where((achieved == desired).all(axis=1), [info.get("now", 0) for info in infos], -1)


def goal_buffer(n_envs, **options):
    env = DummyVecEnv([lambda first=1000 * i: Counting(first) for i in range(n_envs)])
    spaces_of_env = env.observation_space, env.action_space
    return env, PrioritizedHerReplayBuffer(100, *spaces_of_env, env, device="cpu", n_envs=n_envs, seed=2, **options)


def play(env, store, steps):
    obs = env.reset()
    for _ in range(steps):
        action = np.zeros(env.num_envs, np.int64)
        after, reward, done, infos = env.step(action)
        final = {key: value.copy() for key, value in after.items()}
        for i in np.flatnonzero(done):
            replace(final, i, infos[i]["terminal_observation"])
        store.add(obs, final, action, reward, done, infos)
        obs = after


@pytest.mark.parametrize("strategy", ["future", GoalSelectionStrategy.FINAL, "episode"])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_hindsight_gives_goals_reached_in_the_episode(strategy, n_envs):
    env, buffer = goal_buffer(n_envs, n_sampled_goal=4, goal_selection_strategy=strategy)
    assert isinstance(buffer, HerReplayBuffer)
    play(env, buffer, 3 * Counting.length)
    samples = buffer.sample(1000)
    goals = samples.observations["desired_goal"].flatten()
    now = samples.observations["observation"].flatten()
    torch.testing.assert_close(samples.next_observations["desired_goal"].flatten(), goals)
    # Episodes begin with observations 1, 7, 13 (and 1001, 1007, 1013), and end with 6, 12, 18.
    end = now + 5 - (now % 1000 - 1) % 6
    first = {"future": now + 1, "episode": end - 4}.get(strategy, end)
    given = goals != -1
    assert bool((goals[given] >= first[given]).all() and (goals[given] <= end[given]).all())
    for bound in (first, end):
        assert bool((goals == bound).any())
    # Each of 1000 goals is the pursued one with probability 1/5: 200 are expected, and 64 are 5 standard deviations.
    assert abs(int((~given).sum()) - 200) < 64
    reached = goals == samples.next_observations["achieved_goal"].flatten()
    assert samples.rewards.flatten().tolist() == [0.0 if hit else -1.0 for hit in reached]
    assert samples.dones.sum() == 0


@pytest.mark.parametrize("n_envs", [1, 2])
def test_rewards_of_other_goals_see_the_infos_of_their_transitions(n_envs):
    env, buffer = goal_buffer(n_envs, copy_info_dict=True)
    play(env, buffer, 300)  # more than fits
    samples = buffer.sample(1000)
    achieved = samples.next_observations["achieved_goal"]
    reached = (samples.observations["desired_goal"] == achieved).flatten()
    assert 0 < int(reached.sum()) < 1000
    torch.testing.assert_close(plain(samples.rewards)[reached], achieved[reached])
    assert set(plain(samples.rewards)[~reached].flatten().tolist()) == {-1.0}


def test_infos_of_steps_that_reset_are_no_transitions():
    """A step that is dropped has the id -1, whose place in the ring is another transition's."""
    _, buffer = goal_buffer(1, copy_info_dict=True, autoreset="next_step")
    observation = dict.fromkeys(("observation", "achieved_goal", "desired_goal"), np.zeros((1, 1), np.float32))
    for t in range(len(buffer.infos)):
        buffer.add(observation, observation, np.zeros((1, 1), int), np.zeros(1), np.array([t % 7 == 6]), [{"now": t}])
    dropped = [t for t in range(len(buffer.infos)) if t % 7 == 0 and t > 0]
    assert not set(dropped) & {info.get("now") for info in buffer.infos}


def test_infos_of_n_step_returns_are_refused():
    with pytest.raises(per.Unsupported, match="copy_info_dict with n_steps 3; allowed: n_steps 1"):
        goal_buffer(1, copy_info_dict=True, n_steps=3)


def test_loaded_goal_buffers_take_an_environment_and_end_their_last_episodes():
    env, buffer = goal_buffer(1, copy_info_dict=True)
    play(env, buffer, 13)
    again = pickle.loads(pickle.dumps(buffer))
    assert again.env is None
    again.set_env(env)
    first, second = buffer.sample(64), again.sample(64)
    assert rows(first) == rows(second)
    ends = again.replay.stats().episodes
    again.truncate_last_trajectory()
    assert again.replay.stats().episodes == ends + 1


@pytest.mark.parametrize(
    ("name", "value", "default", "reason"),
    [
        ("sequence_length", 3, None, "batches hold single transitions here"),
        ("n_step", 3, 1, "n_steps says how many steps a return has"),
        ("frame_stack", 4, 1, "VecFrameStack stacks frames"),
        ("arrays", "torch", None, "batches hold tensors"),
    ],
)
def test_options_that_make_other_batches_are_refused(name, value, default, reason):
    with pytest.raises(per.InvalidArgument, match=f"^{name} is {value!r}; allowed: {default}, as {reason}$"):
        PrioritizedReplayBuffer(100, NUMBER, spaces.Discrete(2), "cpu", **{name: value})
    assert PrioritizedReplayBuffer(100, NUMBER, spaces.Discrete(2), "cpu", **{name: default}).n_steps == 1
