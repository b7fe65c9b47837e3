"""DQN in one file, in the style of CleanRL. Only the import below makes its replay prioritized.

.venvs/cleanrl/bin/python examples/integrations/cleanrl_dqn.py [--total-timesteps N] [--seed S] [--buffer cleanrl]
"""

from __future__ import annotations

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from per.integrations.cleanrl import ReplayBuffer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--buffer-size", type=int, default=10_000)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--target-network-frequency", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--end-e", type=float, default=0.05)
    parser.add_argument("--exploration-fraction", type=float, default=0.2)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--train-frequency", type=int, default=4)
    parser.add_argument("--buffer", choices=["libper", "cleanrl"], default="libper", help="the second draws uniformly")
    return parser.parse_args()


class QNetwork(nn.Module):
    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        inputs, outputs = int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n)
        self.network = nn.Sequential(
            nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


if __name__ == "__main__":
    args = parse_args()
    if args.buffer == "cleanrl":
        # The buffer of cleanrl_utils.buffers is a copy of this one.
        from stable_baselines3.common.buffers import ReplayBuffer
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # The last observation of an episode is in infos["final_obs"].
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.env_id)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    envs.action_space.seed(args.seed)
    q_network, target_network = QNetwork(envs).to(device), QNetwork(envs).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    rb = ReplayBuffer(
        args.buffer_size,
        envs.single_observation_space,
        envs.single_action_space,
        device,
        handle_timeout_termination=False,
    )

    episodic_return, returns = 0.0, []
    obs, _ = envs.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        explored = global_step / (args.exploration_fraction * args.total_timesteps)
        if random.random() < max(1 - (1 - args.end_e) * explored, args.end_e):
            actions = envs.action_space.sample()
        else:
            actions = q_network(torch.as_tensor(obs, device=device)).argmax(dim=1).cpu().numpy()
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
        rb.add(obs, real_next_obs, actions, rewards, terminations, infos)
        obs = next_obs

        if global_step > args.learning_starts and global_step % args.train_frequency == 0:
            data = rb.sample(args.batch_size)
            with torch.no_grad():
                target_max, _ = target_network(data.next_observations).max(dim=1)
                td_target = data.rewards.flatten() + args.gamma * target_max * (1 - data.dones.flatten())
            old_val = q_network(data.observations).gather(1, data.actions).squeeze()
            loss = F.mse_loss(td_target, old_val)  # weighted; sets priorities
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if global_step % args.target_network_frequency == 0:
            target_network.load_state_dict(q_network.state_dict())

    print(f"return of the last 20 episodes: {np.mean(returns[-20:]):.1f}")
    envs.close()
