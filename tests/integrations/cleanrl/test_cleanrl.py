"""The buffers of per.integrations.cleanrl have the interfaces of CleanRL's, and keep transitions that those lose."""

from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import per
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from per.integrations.cleanrl import PrioritizedReplayBuffer, ReplayBuffer
from sb3_steps import fill, plain, rows
from stable_baselines3.common.buffers import ReplayBuffer as TheirReplayBuffer

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def following_of(samples):
    """The next observation of each observation, for observations of one number."""
    return dict(torch.cat([samples.observations, samples.next_observations], 1).tolist())


# ---- ReplayBuffer, as cleanrl_utils.buffers has it


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.Box(-1, 1, (2, 3), np.float32)])
@pytest.mark.parametrize("observation", [NUMBER, spaces.Box(0, 255, (2, 5, 4), np.uint8), spaces.Discrete(900)])
def test_batches_have_the_transitions_shapes_and_dtypes_of_theirs(observation, action, n_envs):
    theirs = TheirReplayBuffer(90, observation, action, "cpu", n_envs=n_envs)
    ours = ReplayBuffer(90, observation, action, "cpu", n_envs=n_envs)
    fill([theirs, ours], observation, action, steps=15, n_envs=n_envs, end=0.3)
    assert ours.size() == theirs.size()

    # The probability that 2,000 independent draws of 45 transitions leave one out is below 45 (44/45)^2000.
    expected, given = theirs.sample(2000), ours.sample(2000)
    # After a terminal state theirs returns the first observation of the next episode, ours repeats the last one.
    shape = -1, *[1] * (expected.observations.dim() - 1)
    ended = expected.dones.bool().reshape(shape)
    expected = expected._replace(
        next_observations=torch.where(ended, expected.observations, expected.next_observations)
    )
    assert set(rows(given)) == set(rows(expected))
    for name in expected._fields[:5]:
        own, other = getattr(given, name), getattr(expected, name)
        assert (own.shape, own.dtype) == (other.shape, other.dtype), name


def test_episodes_truncated_without_a_word_end_where_observations_do_not_follow():
    buffer = ReplayBuffer(90, NUMBER, spaces.Discrete(2), "cpu", handle_timeout_termination=False, n_step=3, gamma=0.5)
    for t in (0, 1, 2, 3, 10, 11, 12, 13):  # after step 3 the observation is 4; then another episode begins
        obs = np.array([[t]], np.float64)
        # Vector environments of Gymnasium have one dict of infos.
        buffer.add(obs, obs + 1, np.array([0]), np.array([1.0]), np.array([False]), {"final_observation": None})
    samples = buffer.sample(300)
    following = following_of(samples)
    assert following == {0: 3, 1: 4, 2: 4, 3: 4, 10: 13, 11: 14}
    assert samples.dones.sum() == 0
    assert torch.equal(samples.discounts, 0.5 ** (samples.next_observations - samples.observations))


def test_first_observations_of_the_next_episode_are_no_next_observations(recwarn):
    buffer = ReplayBuffer(90, NUMBER, spaces.Discrete(2), "cpu", handle_timeout_termination=False)
    for t in range(40):  # episodes of 4 steps; single files do not give the final observation of a terminal step
        obs, after = np.array([[t % 4]], np.float32), np.array([[(t + 1) % 4]], np.float32)
        buffer.add(obs, after, np.array([0]), np.array([1.0]), np.array([t % 4 == 3]), {})
    assert following_of(buffer.sample(100)) == {0: 1, 1: 2, 2: 3, 3: 3}
    statistics = buffer.replay.stats()
    assert (statistics.episodes, statistics.cuts, statistics.suspected_resets, len(recwarn)) == (10, 0, 0, 0)


def test_targets_of_single_files_are_weighted_and_set_priorities():
    buffer = ReplayBuffer(
        50, NUMBER, spaces.Discrete(2), "cpu", beta=1.0, epsilon=0.0, handle_timeout_termination=False
    )
    for t in range(40):
        obs = np.array([[t]], np.float32)
        buffer.add(obs, obs + 1, np.array([0]), np.array([t / 10]), np.array([False]), {})
    for _ in range(3):
        data = buffer.sample(16)
        with torch.no_grad():
            td_target = data.rewards.flatten() + 0.9 * data.next_observations.max(dim=1)[0] * (1 - data.dones.flatten())
        old_val = torch.linspace(0, 30, 16, requires_grad=True)
        loss = F.mse_loss(td_target, old_val)
        td_errors = plain(td_target) - old_val
        torch.testing.assert_close(loss, (data.weights.flatten() * td_errors**2).mean())
        (gradient,) = torch.autograd.grad(loss, old_val)
        torch.testing.assert_close(gradient, -2 * data.weights.flatten() * td_errors.detach() / 16)
        last = {int(id): abs(float(error)) for id, error in zip(data.ids, td_errors.detach(), strict=True)}
        np.testing.assert_allclose(buffer.replay.priorities(list(last)), list(last.values()), rtol=1e-6)
    assert float(data.weights.min()) < 1


# ---- demonstrations


def counted(first, n_envs=1, **options):
    """A buffer of one episode of 20 steps per environment, with the observations first, first + 1, .."""
    options = {"handle_timeout_termination": False, "seed": first, "epsilon": 0.0, **options}
    buffer = ReplayBuffer(100, NUMBER, spaces.Discrete(2), "cpu", n_envs=n_envs, **options)
    for t in range(20):
        obs = first + t + np.arange(n_envs, dtype=np.float32)[:, None] * 100
        buffer.add(obs, obs + 1, np.zeros(n_envs, int), obs[:, 0] / 10, np.full(n_envs, t == 19), {})
    return buffer


def test_half_of_each_batch_is_from_demonstrations_and_losses_set_the_priorities_of_both_buffers():
    online, demonstrations = counted(0, n_envs=2), counted(1000)
    online.mix(demonstrations)
    data = online.sample(16)
    is_demonstration = data.observations.flatten().numpy() >= 1000
    assert is_demonstration.tolist() == (data.ids < 0).tolist() == [False] * 8 + [True] * 8
    prediction = torch.linspace(0, 30, 16)
    loss = F.mse_loss(prediction, data.rewards.flatten() + 1)
    errors = plain(data.rewards).flatten() + 1 - prediction
    torch.testing.assert_close(loss, (data.weights.flatten() * errors**2).mean())
    for buffer, own, ids in ((online, ~is_demonstration, data.ids), (demonstrations, is_demonstration, -1 - data.ids)):
        np.testing.assert_array_equal(data.observations[own], buffer.replay.get(ids[own]).observation)
        last = dict(zip(ids[own].tolist(), errors[own].abs().tolist(), strict=True))
        wanted = {id: last.get(id, 1.0) for id in buffer.replay.live_ids().tolist()}
        found = buffer.replay.priorities(list(wanted))
        np.testing.assert_allclose(found, list(wanted.values()), rtol=1e-6)


def test_pickled_buffers_go_on_with_their_demonstrations():
    online = counted(0)
    online.mix(counted(1000), 0.3)
    again = pickle.loads(pickle.dumps(online))
    for _ in range(4):
        first, second = online.sample(7), again.sample(7)
        np.testing.assert_array_equal(first.ids, second.ids)
        assert torch.equal(first.observations, second.observations)


def test_demonstrations_that_do_not_fit_are_refused():
    with pytest.raises(per.InvalidArgument, match="n_step of demonstrations is 3; allowed: 1, as here"):
        counted(0).mix(counted(1000, n_step=3))
    with pytest.raises(per.InvalidArgument, match="demonstrations is a PrioritizedReplayBuffer; allowed: a buffer"):
        counted(0).mix(PrioritizedReplayBuffer(100, (1,), "cpu", 1, 0.99))


# ---- how environments reset

MODES = ["next_step", "same_step", "disabled"]


def drawn(counting, buffer):
    """The transitions of a batch with more strata than transitions, so that it contains each of them."""
    samples = buffer.sample(1000)
    columns = samples.observations, samples.actions, plain(samples.rewards), samples.next_observations, samples.dones
    return counting.drawn(*columns)


def real_following(following, truncated, info):
    """Next observations as in dqn.py, with Gymnasium 1's name for final observations."""
    real = following.copy()
    for i in np.flatnonzero(truncated):
        if "final_obs" in info:
            real[i] = info["final_obs"][i]
    return real


def step_in_single_files(buffer, counting, envs):
    """Adds 100 steps of the environments as dqn.py does."""
    for seen, action, (following, reward, terminated, truncated, info) in counting.steps(envs, 100):
        buffer.add(seen, real_following(following, truncated, info), action, reward, terminated, info)


def new_buffer(envs, **options):
    spaces = envs.single_observation_space, envs.single_action_space
    return ReplayBuffer(600, *spaces, "cpu", n_envs=envs.num_envs, handle_timeout_termination=False, **options)


TOLD = [pytest.param(mode, {"autoreset": mode}, id=mode) for mode in MODES]
UNTOLD = pytest.param("same_step", {}, id="same_step without the option")


@pytest.mark.parametrize(("mode", "options"), [*TOLD, UNTOLD])
def test_single_files_draw_the_true_transitions_however_environments_reset(mode, options, counting, recwarn):
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(counting.vector(mode))
    buffer = new_buffer(envs, **options)
    step_in_single_files(buffer, counting, envs)
    assert drawn(counting, buffer) == set(counting.transitions)
    statistics = buffer.replay.stats()
    assert (statistics.added, statistics.suspected_resets) == (len(counting.transitions), 0)
    assert [warning.message for warning in recwarn if warning.category is UserWarning] == []


@pytest.mark.parametrize("mode", MODES)
def test_truncations_may_be_told_and_final_observations_come_from_infos(mode, counting, recwarn):
    envs = counting.vector(mode)
    buffer = new_buffer(envs, autoreset=mode, n_step=3, gamma=0.5)
    for seen, action, (following, reward, terminated, truncated, info) in counting.steps(envs, 100):
        buffer.add(seen, following, action, reward, terminated, info, truncated)
    samples = buffer.sample(1000)
    ends = {truth.observation for truth in counting.transitions if truth.observation[2] == 5}
    for seen, after, done in zip(samples.observations.tolist(), samples.next_observations, samples.dones, strict=True):
        t = min(seen[2] + 3, 6)
        assert bool(done) == (t == 6 and sum(seen[:2]) % 2 == 0)
        assert after.tolist() == [*seen[:2], t]
    assert {tuple(seen) for seen in samples.observations.tolist()} >= ends
    assert [warning.message for warning in recwarn if warning.category is UserWarning] == []


def test_final_observations_without_a_mask_are_those_of_truncated_environments():
    box = spaces.Box(-100, 100, (1,))
    buffer = ReplayBuffer(
        20, box, spaces.Discrete(2), "cpu", 3, handle_timeout_termination=False, autoreset="same_step", seed=0
    )
    info = {"final_obs": np.array([[97.0], [98.0], [99.0]], np.float32)}  # as ALE's own vector environment gives it
    no, last = np.array([False, True, False]), np.array([False, False, True])
    buffer.add([[1.0], [2.0], [3.0]], [[51.0], [52.0], [53.0]], [0, 0, 0], [1.0, 2.0, 3.0], no, info, truncated=last)
    batch = buffer.sample(200)
    found = set(zip(batch.observations[:, 0].tolist(), batch.next_observations[:, 0].tolist(), strict=True))
    assert {(1.0, 51.0), (3.0, 99.0)} <= found and len(found) == 3


@pytest.mark.parametrize("mode", MODES)
def test_rainbow_draws_the_true_transitions_however_environments_reset(mode, counting):
    envs = counting.vector(mode)
    buffer = PrioritizedReplayBuffer(600, (3,), "cpu", 1, 0.9, dtype=np.float32, n_envs=2, autoreset=mode)
    for seen, action, (following, reward, terminated, truncated, info) in counting.steps(envs, 100):
        buffer.add(seen, action, reward, real_following(following, truncated, info), terminated, truncated)
    assert drawn(counting, buffer) == set(counting.transitions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({}, "After 3 of 3 ends .* autoreset='next_step'", id="resets in the next step"),
        pytest.param({"autoreset": "next_step"}, "Give add.*truncated=truncations", id="truncations"),
    ],
)
def test_what_the_buffer_is_not_told_is_warned_of_once(options, message, counting):
    envs = counting.vector("next_step")
    buffer = new_buffer(envs, **options)
    with pytest.warns(UserWarning, match=message) as warned:
        step_in_single_files(buffer, counting, envs)
    assert len(warned) == 1


def test_infos_of_a_vector_environment_are_no_list():
    buffer = ReplayBuffer(90, NUMBER, spaces.Discrete(2), "cpu")
    step = np.zeros((1, 1)), np.ones((1, 1)), np.array([0]), np.array([1.0]), np.array([False])
    with pytest.raises(per.InvalidArgument, match="infos is a dict; allowed: a list of 1 dicts"):
        buffer.add(*step, {"episode": {}})


@pytest.mark.parametrize(
    ("final", "message"),
    [
        (np.array([[300.7]]), "next_observation has dtype float64: allowed are bool and unsigned integers"),
        (np.array([np.ones(3)], object), r"infos\['final_obs'\]\[0\] has shape \[3\]; allowed: \[1\]"),
        (None, r"infos\['final_obs'\] is None; allowed: 1 observations"),
    ],
)
def test_final_observations_that_do_not_fit_are_refused(final, message):
    buffer = ReplayBuffer(
        90, spaces.Box(0, 255, (1,), np.uint8), spaces.Discrete(2), "cpu", handle_timeout_termination=False
    )
    step = np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.uint8), np.array([0]), np.array([1.0]), np.array([False])
    with pytest.raises(per.InvalidArgument, match=message):
        buffer.add(*step, {"final_obs": final, "_final_obs": np.array([True])})
    assert buffer.replay.stats().added == 0


@pytest.mark.parametrize("infos", [None, [], [{}, {}]])
def test_infos_of_another_length_are_refused(infos):
    buffer = ReplayBuffer(90, NUMBER, spaces.Discrete(2), "cpu")
    step = np.zeros((1, 1)), np.ones((1, 1)), np.array([0]), np.array([1.0]), np.array([False])
    with pytest.raises(per.InvalidArgument, match=r"^infos is .*; allowed: a list of 1 dicts"):
        buffer.add(*step, infos)


def test_observations_of_another_shape_are_refused():
    buffer = PrioritizedReplayBuffer(90, (2,), "cpu", 1, 0.9)
    with pytest.raises(per.InvalidArgument, match=r"^observation has shape \[3\]; allowed: \[1, 2\]"):
        buffer.add(np.zeros(3), 0, 1.0, np.zeros(2), False)
    with pytest.raises(per.InvalidArgument, match=r"shape \[3, 8\]; allowed: stacks of frame_stack = 4"):
        PrioritizedReplayBuffer(90, (3, 8), "cpu", 1, 0.9, frame_stack=4)
    with pytest.raises(per.Unsupported, match=r"^the spaces have observation.a, action; allowed: one array each"):
        ReplayBuffer(90, spaces.Dict({"a": NUMBER}), spaces.Discrete(2), "cpu")


# ---- PrioritizedReplayBuffer, as rainbow_atari.py has it


def add(buffer, t, done=False, *truncated):
    """A step from observation t to t + 1, in the arrays of one environment."""
    obs = np.array([[t]], np.uint8)
    buffer.add(obs, np.array([0]), np.array([1.0]), obs + 1, np.array([done]), *truncated)


def test_last_starts_of_an_episode_are_kept():
    buffer = PrioritizedReplayBuffer(100, (1,), "cpu", 3, 0.5)
    for first, length in ((0, 5), (10, 2), (20, 1)):
        for t in range(first, first + length):
            add(buffer, t, t == first + length - 1)
    # Rainbow's buffer would lose the last n_step - 1 = 2 starts of each episode.
    assert buffer.size == 5 + 2 + 1
    data = buffer.sample(400)
    # The next observation of a terminal state is unused; the last observation is returned instead.
    found = {
        int(o): (int(following), float(reward), bool(done), float(discount))
        for o, following, reward, done, discount in zip(
            data.observations, data.next_observations, data.rewards, data.dones, data.discounts, strict=True
        )
    }
    assert found == {
        0: (3, 1.75, False, 0.125),
        1: (4, 1.75, False, 0.125),
        2: (4, 1.75, True, 0.125),
        3: (4, 1.5, True, 0.25),
        4: (4, 1.0, True, 0.5),
        10: (11, 1.5, True, 0.25),
        11: (11, 1.0, True, 0.5),
        20: (20, 1.0, True, 0.5),
    }


@pytest.mark.parametrize("told", [False, True])
def test_returns_do_not_go_on_in_the_next_episode_when_one_is_truncated(told):
    buffer = PrioritizedReplayBuffer(100, (1,), "cpu", 3, 0.5)
    for first in (0, 10):
        for t in range(first, first + 4):
            add(buffer, t, False, *([np.array([t == first + 3])] if told else []))
    data = buffer.sample(400)
    following = following_of(data)
    expected = {0: 3, 1: 4, 2: 4, 3: 4, 10: 13, 11: 14}
    assert following == ({**expected, 12: 14, 13: 14} if told else expected)
    assert not data.dones.any()


def test_batches_have_the_names_shapes_and_dtypes_that_rainbow_uses():
    buffer = PrioritizedReplayBuffer(100, (4, 6, 5), torch.device("cpu"), 3, 0.99, 0.5, 0.4, 1e-6)
    for t in range(20):
        obs = np.full((1, 4, 6, 5), t, np.uint8)
        buffer.add(obs, np.array([1]), np.array([1.0], np.float32), obs + 1, np.array([False]))
    data = buffer.sample(8)
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in data._asdict().items()}
    images = (8, 4, 6, 5), torch.uint8
    assert shapes == {
        "observations": images,
        "next_observations": images,
        "actions": ((8, 1), torch.int64),
        "rewards": ((8, 1), torch.float32),
        "dones": ((8, 1), torch.bool),
        "weights": ((8, 1), torch.float32),
        "discounts": ((8, 1), torch.float32),
        "indices": ((8,), np.dtype(np.int64)),
    }


def test_draws_and_weights_follow_priorities_and_the_beta_of_now():
    buffer = PrioritizedReplayBuffer(10, (1,), "cpu", 1, 0.9, alpha=1.0, beta=0.0, eps=0.5, seed=1)
    for t in range(2):
        add(buffer, t, t == 1)
    buffer.update_priorities(np.array([0, 1]), np.array([-0.5, 2.5], np.float32))  # 1 and 3 with eps
    for beta, light in ((0.0, 1.0), (0.5, 3**-0.5), (1.0, 1 / 3)):
        buffer.beta = beta
        data = buffer.sample(400)
        first = data.observations.flatten() == 0
        assert abs(int(first.sum()) - 100) <= 1  # a quarter, plus or minus a stratum
        torch.testing.assert_close(data.weights[first], torch.ones(int(first.sum()), 1))
        torch.testing.assert_close(data.weights[~first], torch.full((int((~first).sum()), 1), light))


def test_rainbow_may_have_several_environments():
    buffer = PrioritizedReplayBuffer(100, (1,), "cpu", 2, 0.5, n_envs=2)
    for t in range(3):
        obs = np.array([[t], [100 + t]], np.uint8)
        buffer.add(obs, np.array([0, 1]), np.array([1.0, 2.0]), obs + 1, np.array([t == 2, False]))
    assert following_of(buffer.sample(100)) == {0: 2, 1: 2, 2: 2, 100: 102, 101: 103}


def test_of_stacked_frames_the_newest_is_stored():
    made = [PrioritizedReplayBuffer(100, (4, 6, 5), "cpu", 3, 0.9, seed=3, **o) for o in ({}, {"frame_stack": 4})]
    random = np.random.default_rng(0)
    for length in (7, 9):
        frames = [random.integers(0, 256, (6, 5), np.uint8) for _ in range(length + 1)]
        stacks = [np.stack([frames[max(t - k, 0)] for k in (3, 2, 1, 0)]) for t in range(length + 1)]
        for t in range(length):
            for buffer in made:
                buffer.add(stacks[t][None], [t], [1.0], stacks[t + 1][None], [t == length - 1])
    assert made[1].replay.fields["observation"].shape == (6, 5)
    whole, single = (buffer.sample(64) for buffer in made)
    np.testing.assert_array_equal(whole.indices, single.indices)
    assert torch.equal(whole.observations, single.observations)
    assert torch.equal(whole.next_observations, single.next_observations)


def test_buffers_go_on_with_the_same_draws_when_their_replay_is_loaded():
    buffer = PrioritizedReplayBuffer(100, (1,), "cpu", 2, 0.9)
    for t in range(20):
        add(buffer, t)
    loaded = per.ReplayBuffer.from_bytes(bytes(buffer.replay))
    np.testing.assert_array_equal(buffer.sample(32).indices, loaded.sample(32).ids)


# ---- examples


@pytest.mark.parametrize(
    "name", ["cleanrl_dqn", pytest.param("cleanrl_sac", marks=pytest.mark.long), "cleanrl_rainbow"]
)
def test_example_runs(output_of_example, name):
    assert "return" in output_of_example(name, "--total-timesteps", "1500", "--learning-starts", "500")


@pytest.mark.parametrize("how", ["mixed", pytest.param("added", marks=pytest.mark.long)])
def test_example_runs_with_demonstrations(output_of_example, how):
    arguments = "--env-id", "MountainCarContinuous-v0", "--total-timesteps", "1100", "--learning-starts", "900"
    assert "return" in output_of_example("cleanrl_sac", *arguments, "--n-step", "5", "--demonstrations", how)


def test_sequences_are_refused():
    with pytest.raises(per.InvalidArgument, match="sequence_length is 3; allowed: None"):
        ReplayBuffer(90, NUMBER, spaces.Discrete(2), "cpu", sequence_length=3)
    with pytest.raises(per.InvalidArgument, match="burn_in is 1; allowed: 0"):
        PrioritizedReplayBuffer(90, (1,), "cpu", 1, 0.9, burn_in=1)
