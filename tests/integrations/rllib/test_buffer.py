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
    for bad in ([1.0, np.nan, 1.0, 1.0], [-np.inf, 1.0, 1.0, 1.0], [1.0, 1.0, 1e39, 1.0], [1.0, 2.0]):
        with pytest.raises(per.InvalidArgument, match="priorities"):
            buffer.update_priorities(np.array(bad))
    assert (buffer.get_state()["_sum_segment"]["priorities"] == before).all()
    assert buffer._max_priority == 1.0


@pytest.mark.parametrize(
    ("alpha", "weight"), [(1.0, np.nan), (1.0, np.inf), (1.0, -1.0), (1.0, 1e39), (2.0, 1e20), (2.0, 1e300)]
)
def test_a_bad_weight_adds_nothing(alpha, weight):
    buffer = filled(alpha=alpha)
    with pytest.raises(per.InvalidArgument, match=rf"weight is {re.escape(str(weight))}; allowed: "):
        buffer.add(episode(9, 0, 3), weight=weight)
    assert len(buffer) == 15
    assert buffer._max_priority == 1.0
    assert len(buffer.sample(4)) == 4


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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            ({"n_step": n_step}, rf"n_step is {re.escape(repr(n_step))}; allowed: .*\(first, end\)")
            for n_step in (0, -1, 1.5, "3", [1, 3], (0, 3), (3, 1), (2, 2), (1.0, 3), (1, 2, 3))
        ),
        ({"num_items": -1}, "num_items is -1; allowed: 1 and above"),
        ({"num_items": 0}, "num_items is 0; allowed: 1 and above"),
        ({"num_items": 2.5}, "num_items is 2.5, a float; allowed: an int"),
        ({"num_items": None, "batch_size_B": -1}, "batch_size_B is -1; allowed: 1 and above"),
        ({"batch_size_B": 4}, "num_items and batch_size_B are given"),
        ({"beta": -1.0}, "beta is -1.0; allowed: finite numbers >= 0"),
        ({"beta": np.nan}, "beta is nan; allowed: finite numbers >= 0"),
        ({"beta": "x"}, "beta is 'x'; allowed: a number"),
    ],
    ids=str,
)
def test_arguments_without_a_meaning_are_errors_and_change_nothing(given, message):
    buffer, other = filled(), filled()
    for each in (buffer, other):
        each.sample(4)
    with pytest.raises(per.InvalidArgument, match=message):
        buffer.sample(**{"num_items": 4, **given})
    buffer.update_priorities(np.arange(4.0))
    other.update_priorities(np.arange(4.0))
    assert starts(buffer.sample(8)) == starts(other.sample(8))


@pytest.mark.parametrize("n_step", [3, (3, 5)])
def test_steps_of_hardly_any_priority_are_drawn_if_the_windows_of_all_others_are_incomplete(n_step):
    """The others have 10^18 times as much. In 6000 draws counts have a standard deviation of at most 39."""
    buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=0)
    buffer.add(episode(1, 0, 6), weight=1e-12)
    buffer.add(episode(2, 0, 2), weight=1e6)
    rows = buffer.sample(6000, n_step=n_step)
    drawn = [(t, row.get_extra_model_outputs("n_step", 0)) for row, (_, t) in zip(rows, starts(rows), strict=True)]
    choices = [(t, n) for n in (3, 4) if n == 3 or n_step != 3 for t in range(6 - n + 1)]
    assert {*drawn} == {*choices}
    assert all(abs(drawn.count(choice) - 6000 / len(choices)) < 200 for choice in choices)


def test_steps_of_priority_0_are_not_drawn_even_if_the_windows_of_all_others_are_incomplete():
    buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=0)
    buffer.add(episode(1, 0, 6), weight=0.0)
    buffer.add(episode(2, 0, 2))
    with pytest.raises(per.Empty, match="n_step is 3: all steps that can be drawn have priority 0"):
        buffer.sample(4, n_step=3)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (replay_buffers.PrioritizedEpisodeReplayBuffer, "state is of another kind of buffer"),
        (replay_buffers.EpisodeReplayBuffer, "state is of another kind of buffer"),
        (PrioritizedEpisodeReplayBuffer, "state is of a buffer of capacity 513 to 1024; allowed: 65 to 128"),
    ],
)
def test_a_state_of_another_buffer_changes_nothing(kind, message):
    other, buffer = kind(capacity=1000), filled()
    other.add(episode(7, 0, 3))
    buffer.add(episode(8, 0, 2), weight=0.0)
    with pytest.raises(per.InvalidArgument, match=message):
        buffer.set_state(other.get_state())
    assert [held.id_ for held in buffer.episodes] == ["1", "3", "2", "8"]
    assert {number for number, _ in starts(buffer.sample(200))} == {1, 2, 3}


def test_a_state_replaces_the_episodes_of_a_buffer():
    buffer, other = filled(), PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=1)
    other.add(episode(7, 0, 3))
    other.set_state(buffer.get_state())
    assert {number for number, _ in starts(other.sample(200))} == {1, 2, 3}


def test_later_calls_do_not_change_a_state():
    """RLlib's own state shares its lists with the buffer. Here an episode goes on after the state was taken."""
    buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=1)
    buffer.add([episode(1, 0, 3), episode(2, 0, 4, terminated=True)])
    state = buffer.get_state()
    other = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=1)
    other.set_state(state)
    for each in (other, buffer):
        for _ in range(2):
            each.add([episode(1, 3, 6), episode(3, 0, 5)])
            assert len(each) == len(each._indices) == 15
            each.set_state(state)
            assert len(each) == len(each._indices) == 7
            assert set(starts(each.sample(200))) == {(1, t) for t in range(3)} | {(2, t) for t in range(4)}


@pytest.mark.parametrize("alpha", [4.0, 40.0])
def test_positive_priorities_can_be_drawn_whatever_alpha_makes_of_them(alpha):
    buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=alpha, seed=1)
    buffer.add(episode(1, 0, 4), weight=1e-20)
    assert set(starts(buffer.sample(200))) == {(1, t) for t in range(4)}
    buffer.update_priorities(np.zeros(200))
    assert set(starts(buffer.sample(200))) == {(1, t) for t in range(4)}


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
