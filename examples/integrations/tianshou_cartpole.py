"""tianshou's DQN on CartPole-v1 with libper's prioritized buffer, or with tianshou's own.

Two environments fill a vector buffer; `--envs 1` uses the buffer of one. The curve is the mean return of 10 greedy
episodes before the first and after each epoch of 2,000 steps.
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import tianshou
import torch
from per.integrations.tianshou import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net


def new_buffer(library: str, n_envs: int, seed: int) -> tianshou.data.PrioritizedReplayBuffer:
    options = {"alpha": 0.6, "beta": 0.4, "random_seed": seed}
    if n_envs == 1:
        kind = PrioritizedReplayBuffer if library == "libper" else tianshou.data.PrioritizedReplayBuffer
        return kind(20_000, **options)
    kind = PrioritizedVectorReplayBuffer if library == "libper" else tianshou.data.PrioritizedVectorReplayBuffer
    return kind(20_000, n_envs, **options)


def train(library: str, n_envs: int, seed: int, epochs: int, epoch_steps: int) -> list[float]:
    """Mean returns after each epoch."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    environments = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(n_envs)])
    test_environments = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(10)])
    environments.seed(seed)
    test_environments.seed(seed + 1000)
    space = environments.action_space[0]
    space.seed(seed)
    network = Net(state_shape=(4,), action_shape=2, hidden_sizes=[128, 128])
    policy = DiscreteQLearningPolicy(model=network, action_space=space, eps_training=0.1, eps_inference=0.0)
    optimizer = AdamOptimizerFactory(lr=1e-3)
    algorithm = DQN(policy=policy, optim=optimizer, gamma=0.95, n_step_return_horizon=3, target_update_freq=200)

    buffer = new_buffer(library, n_envs, seed)
    collector = Collector(algorithm, environments, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=500, random=True)
    returns = []

    def score(result) -> float:
        returns.append(float(result.returns.mean()))
        print(f"epoch {len(returns)}: mean return {returns[-1]:.1f}", flush=True)
        return returns[-1]

    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=Collector(algorithm, test_environments),
            max_epochs=epochs,
            epoch_num_steps=epoch_steps,
            collection_step_num_env_steps=10,
            update_step_num_gradient_steps_per_sample=0.2,
            test_step_num_episodes=10,
            compute_score_fn=score,
            training_fn=lambda epoch, step: buffer.set_beta(min(1.0, 0.4 + 0.6 * step / (epoch_steps * epochs))),
            verbose=False,
            show_progress=False,
        )
    )
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buffer", choices=["libper", "tianshou"], default="libper")
    parser.add_argument("--envs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--short", action="store_true", help="one epoch of 200 steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    epochs, steps = (1, 200) if arguments.short else (arguments.epochs, 2000)
    returns = train(arguments.buffer, arguments.envs, arguments.seed, epochs, steps)
    print(f"best mean return with {arguments.buffer}: {max(returns):.1f}")
