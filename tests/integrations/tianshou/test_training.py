"""tianshou's DQN learns from the buffers: priorities are its TD errors, and weights enter its loss."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from per.integrations.tianshou import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step


def new_buffer(n_envs: int):
    options = {"alpha": 0.6, "beta": 0.4, "random_seed": 0}
    if n_envs == 1:
        return PrioritizedReplayBuffer(10_000, **options)
    return PrioritizedVectorReplayBuffer(10_000, n_envs, **options)


def agent(n_envs: int):
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    environments = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(n_envs)])
    environments.seed(0)
    space = environments.action_space[0]
    space.seed(0)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[64, 64]), action_space=space, eps_training=0.2
    )
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.95,
        n_step_return_horizon=3,
        target_update_freq=100,
    )
    return algorithm, environments


@pytest.mark.parametrize("n_envs", [pytest.param(1, marks=pytest.mark.long), 4])
def test_dqn_trains_on_cartpole(n_envs):
    """Seed 0. A random agent has a mean return of 22; greedy agents of this training reach 60 and more."""
    algorithm, environments = agent(n_envs)
    buffer = new_buffer(n_envs)
    collector = Collector(algorithm, environments, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=400, random=True)
    test_environments = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(3)])
    test_environments.seed(1)
    returns = []
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=Collector(algorithm, test_environments),
            max_epochs=2,
            epoch_num_steps=1500,
            collection_step_num_env_steps=8,
            update_step_num_gradient_steps_per_sample=0.25,
            test_step_num_episodes=3,
            compute_score_fn=lambda result: returns.append(float(result.returns.mean())) or returns[-1],
            verbose=False,
            show_progress=False,
        )
    )
    assert max(returns) > 40
    priorities = buffer.weight[buffer.sample_indices(0)]
    assert (priorities > 0).all()
    assert len(np.unique(priorities)) > 500


def test_weights_enter_the_loss_and_errors_become_priorities():
    """From the same network and draws, a step with beta 1 and one with beta 0 result in different networks."""
    networks = []
    for beta in (0.0, 1.0):
        algorithm, environments = agent(1)
        buffer = new_buffer(1)
        collector = Collector(algorithm, environments, buffer, exploration_noise=True)
        collector.reset()
        collector.collect(n_step=200, random=True)
        indices = buffer.sample_indices(0)
        buffer.update_weight(indices, np.linspace(0.1, 5.0, len(indices)))
        buffer.set_beta(beta)
        before = buffer.weight[indices].copy()
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer, 64)
        assert (buffer.weight[indices] != before).sum() > 10
        networks.append(torch.cat([parameter.detach().ravel() for parameter in algorithm.policy.parameters()]))
    assert (networks[0] != networks[1]).any()


@pytest.mark.parametrize("wrapper", [lambda env: env, gymnasium.wrappers.Autoreset], ids=["plain", "autoreset"])
def test_the_true_transitions_are_drawn_as_collectors_reset_each_environment(wrapper, counting):
    """tianshou's own vector environments do not reset anything themselves."""
    np.random.seed(0)
    environments = DummyVectorEnv([lambda number=number: wrapper(counting.environment(number)) for number in range(2)])
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(3,), action_shape=4, hidden_sizes=[8]), action_space=environments.action_space[0]
    )
    buffer = new_buffer(2)
    collector = Collector(policy, environments, buffer)
    collector.reset()
    collector.collect(n_step=200, random=True)
    batch, _ = buffer.sample(1000)
    drawn = counting.drawn(batch.obs, batch.act, batch.rew, batch.obs_next, batch.terminated)
    assert drawn == set(counting.transitions)
