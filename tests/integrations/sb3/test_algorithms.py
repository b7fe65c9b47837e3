"""Algorithms of stable-baselines3 and those of per.integrations.sb3 learn by priority."""

from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import per
import per.integrations.sb3 as ours
import pytest
import stable_baselines3 as theirs
import torch
import torch.nn.functional as F
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, FakeImageEnv, SimpleMultiObsEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

NAMES = ["DQN", "SAC", "TD3", "DDPG"]


def small():
    """Arguments of an algorithm, made again for each one because algorithms change policy_kwargs."""
    return {"policy_kwargs": {"net_arch": [16]}, "device": "cpu", "seed": 1, "learning_starts": 20, "batch_size": 8}


def env_for(name):
    return "CartPole-v1" if name == "DQN" else "Pendulum-v1"


def trained(kind, name, steps=60, **options):
    options = {**small(), "train_freq": 4, "gradient_steps": 2, **options}
    return getattr(kind, name)("MlpPolicy", options.pop("env", env_for(name)), **options).learn(steps)


def priorities(model):
    replay = model.replay_buffer.replay
    return replay.priorities(replay.live_ids())


@pytest.mark.parametrize("name", NAMES)
def test_algorithms_of_theirs_learn_by_priority_with_the_buffer_alone(name):
    model = trained(theirs, name, replay_buffer_class=ours.PrioritizedReplayBuffer)
    assert type(model) is getattr(theirs, name)
    assert len(np.unique(priorities(model))) > 10
    assert float(model.replay_buffer.sample(8).weights.min()) < 1


@pytest.mark.parametrize("name", NAMES)
def test_algorithms_take_the_arguments_of_theirs_and_give_the_same_to_their_buffer(name, recwarn):
    model = trained(ours, name, n_steps=3, gamma=0.9, buffer_size=50, replay_buffer_kwargs={"alpha": 0.5})
    options = model.replay_buffer.replay.options
    assert (options["n_step"], options["gamma"], options["alpha"]) == (3, 0.9, 0.5)
    assert model.n_steps == 3
    assert model.replay_buffer.size() >= 45
    assert len(np.unique(priorities(model))) > 10
    assert not any("n_steps" in str(warning.message) for warning in recwarn)


@pytest.mark.parametrize("name", NAMES)
def test_saved_algorithms_and_buffers_go_on_as_if_they_had_not_been_saved(name, tmp_path):
    model = trained(ours, name, n_steps=2)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = getattr(ours, name).load(tmp_path / "model", device="cpu")
    again.load_replay_buffer(tmp_path / "buffer")
    results = []
    for each in (model, again):
        each.set_logger(theirs.common.logger.Logger(None, []))
        torch.manual_seed(5)
        each.train(gradient_steps=3, batch_size=16)
        results.append((priorities(each), [value.clone() for value in each.policy.state_dict().values()]))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)


def of_theirs(buffer):
    """The transitions of a buffer of SB3, sorted: reward, action, termination, observation, next observation."""
    n = buffer.buffer_size if buffer.full else buffer.pos
    terminated = buffer.dones[:n] * (1 - buffer.timeouts[:n])
    columns = (buffer.rewards, buffer.actions, terminated, buffer.observations, buffer.next_observations)
    return sorted(np.concatenate([column[:n].reshape(n * buffer.n_envs, -1) for column in columns], 1).tolist())


def of_ours(buffer):
    """The transitions of a buffer of libper, in the same form."""
    rows = buffer.replay.get(buffer.replay.live_ids())
    columns = (rows.reward, rows.action, rows.terminated, rows.observation, rows.next_observation)
    return sorted(np.concatenate([column.reshape(len(rows.reward), -1) for column in columns], 1).tolist())


@pytest.mark.parametrize("buffer_size", [1000, 40])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_and_a_buffer_that_theirs_saved_go_on_by_priority(name, buffer_size, tmp_path):
    old = trained(theirs, name, 60, buffer_size=buffer_size)
    old.save(tmp_path / "model")
    old.save_replay_buffer(tmp_path / "buffer")
    model = getattr(ours, name).load(tmp_path / "model", env=old.get_env(), device="cpu")
    assert type(model.replay_buffer) is ours.PrioritizedReplayBuffer
    model.load_replay_buffer(tmp_path / "buffer")
    assert type(model.replay_buffer) is ours.PrioritizedReplayBuffer
    found, expected = of_ours(model.replay_buffer), of_theirs(old.replay_buffer)
    # In a full buffer each end of an episode occupies the row of a transition.
    n_missing = len(expected) - len(found)
    assert 0 <= n_missing <= (old.replay_buffer.dones.sum() if buffer_size < 60 else 0)
    assert all(row in expected for row in found)
    assert set(priorities(model)) == {1.0}
    model.learn(40, reset_num_timesteps=False)
    assert len(np.unique(priorities(model))) > 10
    # The model is saved with libper's class.
    model.save(tmp_path / "model")
    assert type(getattr(ours, name).load(tmp_path / "model").replay_buffer) is ours.PrioritizedReplayBuffer


def test_returns_of_several_steps_go_on_in_a_model_that_theirs_saved(tmp_path):
    old = trained(theirs, "SAC", 30, n_steps=3, gamma=0.9)
    old.save(tmp_path / "model")
    model = ours.SAC.load(tmp_path / "model", env=old.get_env(), device="cpu")
    options = model.replay_buffer.replay.options
    assert (model.n_steps, options["n_step"], options["gamma"]) == (3, 3, 0.9)


@pytest.mark.parametrize("options", [{}, {"copy_info_dict": True}])
def test_goals_and_parts_of_observations_go_on_in_what_theirs_saved(options, tmp_path):
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=3, continuous=False)] * 2)
    chosen = {"replay_buffer_class": theirs.HerReplayBuffer, "replay_buffer_kwargs": options}
    old = theirs.DQN("MultiInputPolicy", env, **chosen, **small()).learn(80)
    old.save(tmp_path / "model")
    old.save_replay_buffer(tmp_path / "buffer")
    model = ours.DQN.load(tmp_path / "model", env=env, device="cpu")
    assert type(model.replay_buffer) is ours.PrioritizedHerReplayBuffer
    model.load_replay_buffer(tmp_path / "buffer")
    assert len(model.replay_buffer.replay) == 80
    model.learn(40, reset_num_timesteps=False)
    assert len(np.unique(priorities(model))) > 10

    dicts = DummyVecEnv([lambda: SimpleMultiObsEnv(random_start=False)])
    theirs.DQN("MultiInputPolicy", dicts, buffer_size=50, **small()).save(tmp_path / "model")
    loaded = ours.DQN.load(tmp_path / "model", env=dicts)
    assert type(loaded.replay_buffer) is ours.PrioritizedDictReplayBuffer


def test_a_buffer_class_that_was_chosen_stays_the_chosen_one(tmp_path):
    model = trained(ours, "DQN", 30, replay_buffer_class=ReplayBuffer)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = ours.DQN.load(tmp_path / "model", env=model.get_env())
    again.load_replay_buffer(tmp_path / "buffer")
    assert type(model.replay_buffer) is type(again.replay_buffer) is ReplayBuffer


def test_a_buffer_of_theirs_that_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    trained(theirs, "DQN", 60, env=make_vec_env("CartPole-v1", 2)).save_replay_buffer(tmp_path / "buffer")
    model = trained(ours, "DQN", 60)
    before = bytes(model.replay_buffer.replay)
    with pytest.raises(per.InvalidArgument, match="n_envs of the buffer is 2; allowed: 1"):
        model.load_replay_buffer(tmp_path / "buffer")
    assert bytes(model.replay_buffer.replay) == before


@pytest.mark.parametrize(
    "other, message",
    [
        ({"env": 2}, "n_envs of the buffer is 2; allowed: 1"),
        ({"n_steps": 3}, "n_steps of the buffer is 3; allowed: 1"),
        ({"gamma": 0.5}, r"gamma of the buffer is 0\.5; allowed: 0\.99"),
    ],
)
def test_a_buffer_of_ours_that_does_not_fit_is_refused_and_changes_nothing(other, message, tmp_path):
    if "env" in other:
        other = {"env": make_vec_env("CartPole-v1", other["env"])}
    trained(ours, "DQN", 60, **other).save_replay_buffer(tmp_path / "buffer")
    model = trained(ours, "DQN", 60)
    before = bytes(model.replay_buffer.replay)
    with pytest.raises(per.InvalidArgument, match=message):
        model.load_replay_buffer(tmp_path / "buffer")
    assert bytes(model.replay_buffer.replay) == before


def test_rows_of_a_frugal_buffer_of_theirs_are_those_that_it_still_has(tmp_path):
    kind = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
    old = trained(theirs, "DQN", 60, buffer_size=40, **kind)
    old.save_replay_buffer(tmp_path / "buffer")
    model = trained(ours, "DQN", 0, buffer_size=40)
    model.load_replay_buffer(tmp_path / "buffer")
    last = old.replay_buffer
    order = (np.arange(1, 40) + last.pos) % 40
    rows = model.replay_buffer.replay.get(model.replay_buffer.replay.live_ids())
    np.testing.assert_array_equal(rows.observation, last.observations[order, 0])
    np.testing.assert_array_equal(rows.next_observation, last.observations[(order + 1) % 40, 0])
    np.testing.assert_array_equal(rows.terminated, last.dones[order, 0] != 0)


def same_draw(model, batch_size):
    """The batch that the next draw of the model's buffer will return."""
    return pickle.loads(pickle.dumps(model.replay_buffer)).sample(batch_size, model.get_vec_normalize_env())


def test_dqn_descends_the_weighted_loss_and_its_td_errors_become_priorities():
    options = {"net_arch": [16], "optimizer_class": torch.optim.SGD}
    exact = {"beta": 1.0, "alpha": 1.0, "epsilon": 0.0}
    common = {"learning_starts": 40, "learning_rate": 0.1, "gamma": 0.9, "max_grad_norm": 1e9}
    model = trained(ours, "DQN", 40, **common, policy_kwargs=options, replay_buffer_kwargs=exact)
    replay = model.replay_buffer.replay
    replay.update_priorities(replay.live_ids(), np.linspace(0.5, 2, len(replay)))
    samples = same_draw(model, 16)
    assert float(samples.weights.min()) < 0.5

    rewards, dones = samples.rewards.as_subclass(torch.Tensor), samples.dones
    with torch.no_grad():
        targets = rewards + 0.9 * (1 - dones) * model.q_net_target(samples.next_observations).max(1, keepdim=True)[0]
    td_errors = targets - model.q_net(samples.observations).gather(1, samples.actions)
    huber = torch.where(td_errors.abs() < 1, td_errors**2 / 2, td_errors.abs() - 0.5)
    before = list(model.q_net.parameters())
    weighted = torch.autograd.grad((samples.weights * huber).mean(), before, retain_graph=True)
    unweighted = torch.autograd.grad(huber.mean(), before)
    assert not torch.allclose(weighted[0], unweighted[0], rtol=1e-2)
    expected = [parameter.detach() - 0.1 * gradient for parameter, gradient in zip(before, weighted, strict=True)]

    model.train(gradient_steps=1, batch_size=16)
    torch.testing.assert_close([parameter.detach() for parameter in model.q_net.parameters()], expected)
    last = {int(id): abs(float(error)) for id, error in zip(samples.ids, td_errors.detach(), strict=True)}
    np.testing.assert_allclose(replay.priorities(list(last)), list(last.values()), rtol=1e-5)


def test_priorities_are_the_mean_td_errors_of_the_critics():
    options = {"learning_starts": 30, "target_policy_noise": 0.0, "replay_buffer_kwargs": {"epsilon": 0.0}}
    model = trained(ours, "TD3", 30, **options)
    samples = same_draw(model, 16)
    with torch.no_grad():
        next_actions = model.actor_target(samples.next_observations)
        next_values = torch.cat(model.critic_target(samples.next_observations, next_actions), 1).min(1, keepdim=True)[0]
        targets = samples.rewards.as_subclass(torch.Tensor) + 0.99 * (1 - samples.dones) * next_values
        first, second = (targets - values for values in model.critic(samples.observations, samples.actions))
    model.train(gradient_steps=1, batch_size=16)
    expected = (first.abs() + second.abs()).flatten() / 2
    np.testing.assert_allclose(model.replay_buffer.replay.priorities(samples.ids), expected, rtol=1e-5)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, torch.nn.MSELoss()])
def test_mean_losses_of_targets_are_weighted(loss):
    model = trained(theirs, "DQN", replay_buffer_class=ours.PrioritizedReplayBuffer)
    samples = model.replay_buffer.sample(16)
    prediction = torch.linspace(-3, 3, 16).reshape(16, 1)
    by_row = [loss(prediction[i], samples.rewards.as_subclass(torch.Tensor)[i]) for i in range(16)]
    expected = (torch.stack(by_row) * samples.weights.flatten()).mean()
    torch.testing.assert_close(loss(prediction, samples.rewards), expected)
    torch.testing.assert_close(loss(prediction.flatten(), samples.rewards.flatten()), expected)
    # With further axes, a transition counts by the mean of its targets.
    torch.testing.assert_close(loss(prediction.expand(16, 3), samples.rewards + torch.zeros(16, 3)), expected)


def test_other_losses_are_left_alone():
    model = trained(theirs, "DQN", replay_buffer_class=ours.PrioritizedReplayBuffer)
    samples = model.replay_buffer.sample(16)
    before = priorities(model)
    rewards, zeros = samples.rewards.as_subclass(torch.Tensor), torch.zeros(16, 1)
    torch.testing.assert_close(F.mse_loss(zeros, samples.rewards, reduction="sum") * 1.0, (rewards**2).sum())
    torch.testing.assert_close(F.l1_loss(zeros, samples.rewards) * 1.0, rewards.abs().mean())
    np.testing.assert_array_equal(priorities(model), before)


def test_targets_of_reordered_rewards_set_the_priorities_of_their_own_transitions():
    model = trained(
        theirs, "DQN", replay_buffer_class=ours.PrioritizedReplayBuffer, replay_buffer_kwargs={"epsilon": 0.0}
    )
    samples = model.replay_buffer.sample(16)
    order = torch.randperm(16)
    prediction = torch.linspace(-3, 3, 16).reshape(16, 1)
    loss = F.mse_loss(prediction, samples.rewards[order] + 1)
    errors = samples.rewards.as_subclass(torch.Tensor)[order] + 1 - prediction
    torch.testing.assert_close(loss, (samples.weights[order] * errors**2).mean())
    last = {int(samples.ids[i]): abs(float(error)) for i, error in sorted(zip(order, errors, strict=True))}
    np.testing.assert_allclose(model.replay_buffer.replay.priorities(list(last)), list(last.values()), rtol=1e-6)
    before = priorities(model)
    with pytest.raises(
        per.InvalidArgument, match=r"cannot tell which transitions its targets belong to, after torch\.sort"
    ):
        F.mse_loss(prediction, torch.sort(samples.rewards, dim=0).values)
    np.testing.assert_array_equal(priorities(model), before)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_observations_are_normalized_in_several_environments(name, n_envs):
    env = VecNormalize(make_vec_env(env_for(name), n_envs))
    model = trained(ours, name, 90, env=env)
    assert len(np.unique(priorities(model))) > 10
    # The buffer stores the observations of the environment and returns those that the networks saw.
    replay = model.replay_buffer.replay
    ids = replay.live_ids()
    last = replay.get([ids[ids % n_envs == i].max() for i in range(n_envs)])
    running = ~(last.terminated | last.truncated)
    assert running.any()
    np.testing.assert_array_equal(last.next_observation[running], env.get_original_obs()[running])
    drawn = same_draw(model, 8).observations.numpy()
    model._vec_normalize_env = None
    np.testing.assert_allclose(drawn, env.normalize_obs(same_draw(model, 8).observations.numpy()), rtol=1e-6)


def test_dict_observations_are_learned_from():
    env = DummyVecEnv([lambda: SimpleMultiObsEnv(random_start=False)] * 2)
    options = {
        "learning_starts": 20,
        "policy_kwargs": {"net_arch": [8]},
        "device": "cpu",
        "batch_size": 8,
        "n_steps": 3,
    }
    model = ours.DQN("MultiInputPolicy", env, **options).learn(80)
    assert isinstance(model.replay_buffer, DictReplayBuffer)
    assert len(np.unique(priorities(model))) > 10
    assert model.replay_buffer.replay.stats().cuts == 0


@pytest.mark.parametrize("options", [{}, {"copy_info_dict": True}, {"n_steps": 2}])
@pytest.mark.parametrize("kind", [ours, theirs])
def test_goals_are_learned_from_in_hindsight(kind, options, tmp_path):
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=3, continuous=False)] * 2)
    model = kind.DQN(
        "MultiInputPolicy",
        env,
        replay_buffer_class=ours.PrioritizedHerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future", **options},
        **small(),
    ).learn(80)
    assert len(np.unique(priorities(model))) > 10
    model.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    model.learn(24, reset_num_timesteps=False)
    assert model.replay_buffer.replay.stats().added == 104


@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
@pytest.mark.parametrize("is_optimized", [False, True])
def test_learning_again_begins_another_episode(is_optimized):
    model = trained(theirs, "DQN", 32, replay_buffer_class=ours.PrioritizedReplayBuffer)
    model.optimize_memory_usage = is_optimized
    model.learn(32)
    stats = model.replay_buffer.replay.stats()
    assert (stats.added, stats.cuts) == (64, 1)
    assert isinstance(model.replay_buffer, ReplayBuffer)


def test_images_are_learned_from():
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=True)
    model = ours.DQN("CnnPolicy", env, device="cpu", learning_starts=8, batch_size=4, train_freq=4, buffer_size=100)
    model.learn(16)
    assert model.replay_buffer.replay.fields["observation"].shape == (1, 36, 36)
    assert len(np.unique(priorities(model))) > 2


def test_another_gamma_than_the_algorithms_is_refused():
    with pytest.raises(per.InvalidArgument, match=r"gamma of replay_buffer_kwargs is 0\.5; the algorithm's is 0\.99"):
        trained(ours, "DQN", gamma=0.99, replay_buffer_kwargs={"gamma": 0.5})
    trained(ours, "DQN", gamma=0.99, replay_buffer_kwargs={"gamma": 0.99})


@pytest.mark.parametrize("wrapper", [lambda env: env, gymnasium.wrappers.Autoreset], ids=["plain", "autoreset"])
def test_the_true_transitions_are_drawn_as_vecenvs_reset_each_environment(wrapper, counting):
    """A VecEnv resets an environment in the step that ends an episode, whether or not the environment resets itself."""
    env = DummyVecEnv([lambda number=number: wrapper(counting.environment(number)) for number in range(2)])
    model = ours.DQN("MlpPolicy", env, **{**small(), "learning_starts": 1000, "buffer_size": 600}).learn(200)
    samples = model.replay_buffer.sample(1000)
    rewards = samples.rewards.as_subclass(torch.Tensor)
    columns = samples.observations, samples.actions, rewards, samples.next_observations, samples.dones
    assert counting.drawn(*columns) == set(counting.transitions)
