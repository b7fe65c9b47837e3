"""per.integrations.rllib keeps the promises of RLlib's prioritized episode buffer, and DQN learns from it."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import numpy as np
import per
import pytest
from per.integrations.rllib import PrioritizedEpisodeReplayBuffer
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import replay_buffers


def episode(number, begin, end, *, terminated=False, truncated=False):
    """The steps from begin to end - 1 of an episode: observation [number, t], action t, reward 2^t."""
    return SingleAgentEpisode(
        id_=str(number),
        observations=[np.array([number, t]) for t in range(begin, end + 1)],
        actions=list(range(begin, end)),
        rewards=[float(2**t) for t in range(begin, end)],
        terminated=terminated,
        truncated=truncated,
        t_started=begin,
        len_lookback_buffer=0,
        extra_model_outputs={"logp": [float(t) for t in range(begin, end)]},
    )


def filled(**options):
    """Episode 1 terminates after 6 steps, 2 is truncated after 4, and 3 is running and was added in two parts."""
    buffer = PrioritizedEpisodeReplayBuffer(**{"capacity": 100, "alpha": 1.0, "seed": 0, **options})
    buffer.add([episode(1, 0, 6, terminated=True), episode(3, 0, 2)])
    buffer.add([episode(2, 0, 4, truncated=True), episode(3, 2, 5)])
    return buffer


LENGTHS = {1: 6, 2: 4, 3: 5}


def starts(rows):
    return [tuple(row.get_observations(0)) for row in rows]


@pytest.mark.parametrize("n_step", [None, 1, 3, (1, 4)])
def test_rows_are_the_n_step_transitions_of_the_episodes(n_step):
    buffer = filled()
    rows = buffer.sample(400, n_step=n_step, gamma=0.5, include_extra_model_outputs=True)
    found = set()
    for row in rows:
        number, t = row.get_observations(0)
        n = row.get_extra_model_outputs("n_step", 0)
        found.add((number, t, n))
        assert row.get_observations(1).tolist() == [number, t + n]
        assert row.get_actions(0) == t
        assert row.get_rewards(0) == n * 2**t  # 2^t + 2^(t+1) / 2 + 2^(t+2) / 4
        assert row.get_extra_model_outputs("logp", 0) == t
        is_last = t + n == LENGTHS[number]
        assert row.is_terminated == (is_last and number == 1)
        assert row.is_truncated == (is_last and number == 2)
    choices = range(*n_step) if isinstance(n_step, tuple) else [n_step or 1]
    assert found == {
        (number, t, n) for number, length in LENGTHS.items() for n in choices for t in range(length - n + 1)
    }


def test_steps_are_drawn_in_proportion_to_their_priorities_and_weigh_less():
    """In 1000 stratified draws a step of probability P always gets between 1000 P - 2 and 1000 P + 2."""
    buffer = filled()
    priority = lambda row: float(row.get_observations(0) @ [10, 1])  # noqa: E731
    rows = buffer.sample(200)
    buffer.update_priorities(np.array([priority(row) for row in rows], np.float32))
    total = sum(10 * number + t for number, length in LENGTHS.items() for t in range(length))
    rows = buffer.sample(1000, beta=0.5)
    for number, length in LENGTHS.items():
        for t in range(length):
            drawn = starts(rows).count((number, t))
            assert abs(drawn - 1000 * (10 * number + t) / total) < 2.1
    weights = [row.get_extra_model_outputs("weights", 0) for row in rows]
    np.testing.assert_allclose(weights, [(10 / priority(row)) ** 0.5 for row in rows], rtol=1e-6)


def test_evicted_steps_are_not_drawn():
    buffer = filled(capacity=16)
    buffer.add(episode(4, 0, 8, terminated=True))
    assert {number for number, _ in starts(buffer.sample(200))} == {int(held.id_) for held in buffer.episodes}
    assert "1" not in {held.id_ for held in buffer.episodes}


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_priority_of_a_step_that_was_evicted_touches_nothing(is_restored):
    """Episode 1 is evicted before its priorities come, and episode 4 takes its nodes. Only 2 and 3 get 100."""
    buffer = filled(capacity=16)
    drawn = starts(buffer.sample(200))
    assert {number for number, _ in drawn} == {1, 2, 3}
    buffer.add(episode(4, 0, 7, terminated=True))
    assert [held.id_ for held in buffer.episodes] == ["3", "2", "4"]
    if is_restored:
        state, buffer = buffer.get_state(), PrioritizedEpisodeReplayBuffer(capacity=16, alpha=1.0, seed=1)
        buffer.set_state(state)
    # A priority counts as the largest one only if its step is still stored.
    buffer.update_priorities([1e6 if number == 1 else 100.0 for number, _ in drawn])
    expected = {(4, t): 1.0 for t in range(7)} | {start: 100.0 for start in drawn if start[0] != 1}
    steps = {(int(buffer.episodes[i - buffer._num_episodes_evicted].id_), t): node for i, t, node in buffer._indices}
    leaves = buffer.get_state()["_sum_segment"]["priorities"]
    assert {step: leaves[node] for step, node in steps.items()} == expected
    assert leaves.sum() == sum(expected.values())
    assert set(starts(buffer.sample(200))) <= set(expected)
    assert buffer._max_priority == 100.0


def test_a_bad_priority_changes_nothing():
    buffer = filled()
    buffer.sample(4)
    before = buffer.get_state()["_sum_segment"]["priorities"]
    for bad in ([1.0, np.nan, 1.0, 1.0], [1.0, 2.0]):
        with pytest.raises(per.InvalidArgument):
            buffer.update_priorities(np.array(bad))
    assert (buffer.get_state()["_sum_segment"]["priorities"] == before).all()
    for bad in (np.nan, np.inf, -1.0):
        with pytest.raises(per.InvalidArgument, match="weight is"):
            buffer.add(episode(9, 0, 3), weight=bad)
    assert len(buffer) == 15
    assert buffer._max_priority == 1.0


def test_a_state_brings_episodes_and_priorities_back():
    buffer, other = filled(), PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0)
    rows = buffer.sample(50)
    buffer.update_priorities([float(row.get_observations(0)[1] == 3) * 1e6 for row in rows])
    other.set_state(buffer.get_state())
    assert len(other) == len(buffer) == 15
    assert {t for _, t in starts(other.sample(50))} == {3}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_has_the_episodes_and_the_priorities(copied):
    buffer = filled()
    rows = buffer.sample(50)
    other = copied(buffer)
    for each, t in ((buffer, 3), (other, 1)):
        each.update_priorities([float(row.get_observations(0)[1] == t) * 1e6 for row in rows])
        assert {t for _, t in starts(each.sample(50))} == {t}
    assert starts(copied(other).sample(50)) == starts(copied(other).sample(50))


def test_the_same_seed_draws_the_same():
    assert starts(filled().sample(32)) == starts(filled().sample(32)) != starts(filled(seed=1).sample(32))


def test_what_cannot_be_drawn_is_an_error():
    with pytest.raises(per.Empty):
        PrioritizedEpisodeReplayBuffer(capacity=100).sample(4)
    with pytest.raises(per.InvalidArgument, match="n_step is 7"):
        filled().sample(4, n_step=7)


def test_metrics_count_what_was_drawn():
    buffer = filled()
    buffer.sample(64, n_step=2)
    assert isinstance(buffer, replay_buffers.PrioritizedEpisodeReplayBuffer)
    assert buffer.get_sampled_timesteps() == 64
    assert buffer.get_metrics()


def test_the_example_trains(output_of_example):
    assert re.search(r"priorities from [0-9.]+ to [0-9.]+", output_of_example("rllib_cartpole", "--short"))


def test_the_true_transitions_are_drawn_from_what_rllibs_environments_bring(counting):
    """RLlib's vector environments reset in the next step; its runner leaves that step out of the episodes."""
    numbers = itertools.count()

    class Numbered(counting.environment):
        def __init__(self, config):
            super().__init__(next(numbers))

    config = DQNConfig().environment(Numbered, disable_env_checking=True)
    config = config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    runner = SingleAgentEnvRunner(config=config)
    counting.transitions.clear()
    buffer = PrioritizedEpisodeReplayBuffer(capacity=1000, seed=0)
    for _ in range(3):
        buffer.add(runner.sample(num_timesteps=70, random_actions=True))
    rows = buffer.sample(1500)
    getters = ("get_observations", 0), ("get_actions", 0), ("get_rewards", 0), ("get_observations", 1)
    columns = [[getattr(row, name)(i) for row in rows] for name, i in getters]
    assert counting.drawn(*columns, [row.is_terminated for row in rows]) == set(counting.transitions)
