"""Batches of the buffers of per.integrations.sb3 have a share of demonstrations."""

from __future__ import annotations

import pickle
import re

import numpy as np
import per
import per.integrations.sb3 as ours
import pytest
import stable_baselines3 as theirs
import torch
import torch.nn.functional as F
from gymnasium import spaces
from sb3_steps import fill, plain, rows
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)
ACTIONS = spaces.Discrete(2)


def counted(first, *, kind=ours.PrioritizedReplayBuffer, n_envs=1, **options):
    """A buffer of one episode of 20 steps per environment, with the observations first, first + 1, .."""
    buffer = kind(100, NUMBER, ACTIONS, "cpu", n_envs=n_envs, **{"seed": first, "epsilon": 0.0, **options})
    for t in range(20):
        obs = first + t + np.arange(n_envs, dtype=np.float32)[:, None] * 100
        step = np.zeros((n_envs, 1), np.int64), obs[:, 0] / 10, np.full(n_envs, t == 19)
        buffer.add(obs, obs + 1, *step, [{}] * n_envs)
    return buffer


def priorities(buffer):
    return dict(zip(buffer.replay.live_ids().tolist(), buffer.replay.priorities(buffer.replay.live_ids()), strict=True))


@pytest.mark.parametrize("options", [{}, {"n_steps": 3}])
@pytest.mark.parametrize(("share", "n_demonstrations"), [(0.5, 20), (0.25, 10), (0, 0), (1, 40)])
def test_a_share_of_each_batch_is_from_demonstrations_and_ids_tell_which(share, n_demonstrations, options):
    online, demonstrations = counted(0, n_envs=3, **options), counted(1000, alpha=0.1, **options)
    online.mix(demonstrations, share)
    for _ in range(3):
        samples = online.sample(40)
        is_demonstration = samples.observations.flatten().numpy() >= 1000
        assert is_demonstration.sum() == n_demonstrations
        np.testing.assert_array_equal(samples.ids < 0, is_demonstration)
        for buffer, own, ids in (
            (online, ~is_demonstration, samples.ids),
            (demonstrations, is_demonstration, -1 - samples.ids),
        ):
            expected = buffer.replay.get_windows(ids[own])
            np.testing.assert_array_equal(samples.observations[own], expected.observation)
            np.testing.assert_array_equal(samples.next_observations[own], expected.next_observation)
            np.testing.assert_array_equal(plain(samples.rewards)[own].flatten(), expected.reward)


def test_a_loss_of_part_of_a_batch_is_weighted_and_sets_the_priorities_of_its_rows():
    online, demonstrations = counted(0), counted(1000)
    online.mix(demonstrations)
    online.update_priorities(np.arange(20), torch.linspace(2, 1, 20))
    demonstrations.update_priorities(np.arange(20), torch.linspace(1, 3, 20))
    expected = [priorities(online), priorities(demonstrations)]
    samples = online.sample(16)
    assert len(samples.weights.unique()) > 8
    part = torch.tensor([15, 0, 9, 3, 12, 6, 8, 7])
    prediction = torch.linspace(-3, 3, 8).reshape(8, 1)
    errors = plain(samples.rewards)[part] - prediction
    loss = F.mse_loss(prediction, samples.rewards[part])
    torch.testing.assert_close(loss, (samples.weights[part] * errors**2).mean())
    for place, error in sorted(zip(part.tolist(), errors.flatten().tolist(), strict=True)):
        is_demonstration = samples.observations[place] >= 1000
        expected[int(is_demonstration)][int(samples.observations[place]) % 1000] = abs(error)
    for found, wanted in zip((online, demonstrations), expected, strict=True):
        assert priorities(found) == pytest.approx(wanted)


def test_update_priorities_takes_the_ids_of_batches_and_the_errors_of_several_critics():
    online, demonstrations = counted(0), counted(1000)
    online.mix(demonstrations)
    online.update_priorities(np.array([3, -1 - 3, -1 - 5]), torch.tensor([[1.0, -2.0, 3.0], [3.0, 2.0, -7.0]]))
    assert priorities(online) == {id: 2.0 if id == 3 else 1.0 for id in range(20)}
    assert priorities(demonstrations) == {id: {3: 2.0, 5: 5.0}.get(id, 1.0) for id in range(20)}
    online.update_priorities([], torch.zeros(0))
    for ids in ([1.5], [True], None):
        with pytest.raises(per.InvalidArgument, match=r"^ids "):
            online.update_priorities(ids, torch.ones(1))


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3", "DDPG"])
@pytest.mark.parametrize("kind", [ours, theirs])
def test_algorithms_set_the_priorities_of_both_buffers(kind, name, tmp_path):
    env = VecNormalize(make_vec_env("CartPole-v1" if name == "DQN" else "Pendulum-v1", 2))
    options = {"learning_starts": 20, "batch_size": 8, "train_freq": 4, "device": "cpu", "seed": 1}
    options |= {"policy_kwargs": {"net_arch": [16]}, "replay_buffer_class": ours.PrioritizedReplayBuffer}
    expert, model = (getattr(kind, name)("MlpPolicy", env, **options) for _ in range(2))
    demonstrations = expert.learn(16).replay_buffer
    model.replay_buffer.mix(demonstrations)
    model.learn(60)
    for buffer in (model.replay_buffer, demonstrations):
        assert len(set(priorities(buffer).values())) > 4
    assert len(demonstrations.replay) == 16

    model.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    samples = model.replay_buffer.sample(64, env)
    assert (samples.ids < 0).sum() == 32
    observations = demonstrations.replay.get(-1 - samples.ids[samples.ids < 0]).observation
    np.testing.assert_array_equal(samples.observations[samples.ids < 0], env.normalize_obs(observations))


def test_dict_observations_may_be_mixed():
    space = spaces.Dict({"image": spaces.Box(0, 255, (1, 4, 4), np.uint8), "room": spaces.Discrete(5)})
    online, demonstrations = (ours.PrioritizedDictReplayBuffer(60, space, ACTIONS, "cpu") for _ in range(2))
    fill([online], space, ACTIONS, steps=30, seed=1)
    fill([demonstrations], space, ACTIONS, steps=30, seed=2)
    online.mix(demonstrations)
    samples = online.sample(16)
    wanted = demonstrations.replay.get(-1 - samples.ids[8:]).observation
    for key, tensor in samples.observations.items():
        np.testing.assert_array_equal(tensor[8:], wanted[key].reshape(tensor[8:].shape))


def test_pickled_buffers_go_on_with_their_demonstrations():
    online = counted(0)
    online.mix(counted(1000), 0.3)
    online.sample(7)  # rounding owes rows from here on
    again = pickle.loads(pickle.dumps(online))
    for _ in range(4):
        first, second = online.sample(7), again.sample(7)
        assert rows(first) == rows(second)
        np.testing.assert_array_equal(first.ids, second.ids)
        for buffer, samples in ((online, first), (again, second)):
            buffer.update_priorities(samples.ids, torch.arange(7.0))
    assert priorities(online) == priorities(again)


def test_another_call_replaces_the_demonstrations_and_reset_keeps_them():
    online, other = counted(0), counted(2000)
    online.mix(counted(1000), 0.9)
    online.mix(other)
    assert (online.sample(40).observations >= 2000).sum() == 20
    online.reset()
    assert len(other.replay) == 20
    with pytest.raises(per.Empty):
        online.sample(4)


def goals():
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=3, continuous=False)])
    return ours.PrioritizedHerReplayBuffer(50, env.observation_space, env.action_space, env, device="cpu")


def without_goals():
    her = goals()
    return ours.PrioritizedDictReplayBuffer(50, her.observation_space, her.action_space, "cpu")


BAD = {
    "a libper buffer": (lambda: (counted(0), counted(9).replay), "demonstrations is a ReplayBuffer; allowed: a buffer"),
    "itself": (lambda: [counted(0)] * 2, "is that of sources['online']: each source needs its own buffer"),
    "a share above 1": (lambda: (counted(0), counted(9), 1.5), "share is 1.5; allowed: 0 to 1"),
    "a share below 0": (lambda: (counted(0), counted(9), -0.1), "share is -0.1; allowed: 0 to 1"),
    "NaN": (lambda: (counted(0), counted(9), np.nan), "share is nan; allowed: 0 to 1"),
    "text": (lambda: (counted(0), counted(9), "half"), "share is 'half'; allowed: 0 to 1"),
    "n_steps": (lambda: (counted(0), counted(9, n_steps=3)), "n_step of demonstrations is 3; allowed: 1, as here"),
    "gamma": (lambda: (counted(0), counted(9, gamma=0.5)), "gamma of demonstrations is 0.5; allowed: 0.99, as here"),
    "spaces": (
        lambda: (counted(0), ours.PrioritizedReplayBuffer(9, ACTIONS, ACTIONS, "cpu")),
        "\"observation\", differs from that of sources['online']",
    ),
    "hindsight": (lambda: (goals(), without_goals()), "demonstrations with hindsight; allowed: two buffers without"),
    "hindsight of demonstrations": (lambda: (without_goals(), goals()), "demonstrations with hindsight"),
}


@pytest.mark.parametrize("case", BAD)
def test_demonstrations_that_do_not_fit_are_refused_and_change_nothing(case):
    make, message = BAD[case]
    buffer, *arguments = make()
    if case not in ("hindsight", "hindsight of demonstrations"):
        buffer.mix(counted(1000))
    with pytest.raises(per.Error, match=re.escape(message)):
        buffer.mix(*arguments)
    if len(buffer.replay):
        assert (buffer.sample(4).observations >= 1000).sum() == 2


def test_transitions_of_a_buffer_of_theirs_are_added_beside_demonstrations(tmp_path):
    options = {"policy_kwargs": {"net_arch": [16]}, "device": "cpu", "learning_starts": 100}
    theirs.SAC("MlpPolicy", "Pendulum-v1", **options).learn(20).save_replay_buffer(tmp_path / "buffer")
    model = ours.SAC("MlpPolicy", "Pendulum-v1", **options)
    model.replay_buffer.mix(ours.SAC("MlpPolicy", "Pendulum-v1", **options).learn(20).replay_buffer)
    model.load_replay_buffer(tmp_path / "buffer")
    assert (model.replay_buffer.sample(8).ids < 0).sum() == 4


@pytest.mark.parametrize(
    "how", ["mixed", pytest.param("added", marks=pytest.mark.long), pytest.param("none", marks=pytest.mark.long)]
)
def test_example_runs(output_of_example, how):
    assert "reached the goal" in output_of_example("sb3_demonstrations", "--short", "--demonstrations", how)
