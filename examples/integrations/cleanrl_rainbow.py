"""A small Rainbow in one file, in the style of CleanRL: double, dueling, distributional, 3 steps, prioritized.

.venvs/cleanrl/bin/python examples/integrations/cleanrl_rainbow.py [--total-timesteps N] [--seed S]
"""

from __future__ import annotations

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from per.integrations.cleanrl import PrioritizedReplayBuffer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--buffer-size", type=int, default=10_000)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--n-step", type=int, default=3)
    parser.add_argument("--prioritized-replay-alpha", type=float, default=0.5)
    parser.add_argument("--prioritized-replay-beta", type=float, default=0.4)
    parser.add_argument("--prioritized-replay-eps", type=float, default=1e-6)
    parser.add_argument("--n-atoms", type=int, default=51)
    parser.add_argument("--v-max", type=float, default=100.0)
    parser.add_argument("--target-network-frequency", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--end-e", type=float, default=0.05)
    parser.add_argument("--exploration-fraction", type=float, default=0.2)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--train-frequency", type=int, default=4)
    return parser.parse_args()


class DistributionalNetwork(nn.Module):
    """The probabilities [B, actions, atoms] of returns, from state values and action advantages."""

    def __init__(self, envs: gym.vector.VectorEnv, n_atoms: int, v_max: float) -> None:
        super().__init__()
        self.n_atoms = n_atoms
        self.register_buffer("support", torch.linspace(0, v_max, n_atoms))
        inputs, n_actions = int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n)
        self.network = nn.Sequential(nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        self.value, self.advantage = nn.Linear(84, n_atoms), nn.Linear(84, n_atoms * n_actions)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.network(x)
        advantage = self.advantage(hidden).view(len(x), -1, self.n_atoms)
        return (self.value(hidden).unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)).softmax(2)

    def best(self, x: torch.Tensor) -> torch.Tensor:
        return (self(x) * self.support).sum(2).argmax(1)


def projected(probabilities: torch.Tensor, returns: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Projects the returns onto the neighbouring atoms: probabilities [B, atoms] (Bellemare et al. 2017)."""
    width = support[1] - support[0]
    near = 1 - (returns.clamp(support[0], support[-1]).unsqueeze(1) - support.view(1, -1, 1)).abs() / width
    return (near.clamp(0, 1) * probabilities.unsqueeze(1)).sum(2)


if __name__ == "__main__":
    args = parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # The last observation of an episode is in infos["final_obs"].
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.env_id)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    envs.action_space.seed(args.seed)
    q_network = DistributionalNetwork(envs, args.n_atoms, args.v_max).to(device)
    target_network = DistributionalNetwork(envs, args.n_atoms, args.v_max).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    rb = PrioritizedReplayBuffer(
        args.buffer_size,
        envs.single_observation_space.shape,
        device,
        args.n_step,
        args.gamma,
        args.prioritized_replay_alpha,
        args.prioritized_replay_beta,
        args.prioritized_replay_eps,
        dtype=np.float32,
    )

    episodic_return, returns = 0.0, []
    obs, _ = envs.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        progress = global_step / args.total_timesteps
        rb.beta = args.prioritized_replay_beta + progress * (1 - args.prioritized_replay_beta)
        if random.random() < max(1 - (1 - args.end_e) * progress / args.exploration_fraction, args.end_e):
            actions = envs.action_space.sample()
        else:
            actions = q_network.best(torch.as_tensor(obs, device=device)).cpu().numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)

        episodic_return += float(rewards[0])
        if terminations[0] or truncations[0]:
            returns.append(episodic_return)
            episodic_return = 0.0
            if len(returns) % 50 == 0:
                print(
                    f"global_step={global_step}, return of the last 50 episodes={np.mean(returns[-50:]):.1f}",
                    flush=True,
                )

        real_next_obs = next_obs.copy()
        for i, ended in enumerate(np.logical_or(terminations, truncations)):
            if ended:
                real_next_obs[i] = infos["final_obs"][i]
        rb.add(obs, actions, rewards, real_next_obs, terminations, truncations)
        obs = next_obs

        if global_step > args.learning_starts and global_step % args.train_frequency == 0:
            data = rb.sample(args.batch_size)
            rows = torch.arange(args.batch_size, device=device)
            with torch.no_grad():
                next_pmfs = target_network(data.next_observations)[rows, q_network.best(data.next_observations)]
                next_atoms = data.rewards + data.discounts * (1 - data.dones.float()) * q_network.support
                target_pmfs = projected(next_pmfs, next_atoms, q_network.support)
            pmfs = q_network(data.observations)[rows, data.actions.squeeze(1)]
            loss_per_sample = -(target_pmfs * pmfs.clamp(min=1e-5).log()).sum(1)
            loss = (loss_per_sample * data.weights.squeeze(1)).mean()
            rb.update_priorities(data.indices, loss_per_sample.detach().cpu().numpy())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if global_step % args.target_network_frequency == 0:
            target_network.load_state_dict(q_network.state_dict())

    print(f"return of the last 20 episodes: {np.mean(returns[-20:]):.1f}")
    envs.close()
