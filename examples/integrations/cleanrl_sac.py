"""SAC in one file, in the style of CleanRL. Only the import below makes its replay prioritized.

    .venvs/cleanrl/bin/python examples/integrations/cleanrl_sac.py [--total-timesteps N] [--seed S]

With --env-id MountainCarContinuous-v0, --demonstrations mixed takes half of each batch from demonstrations of a simple
rule, and --demonstrations added puts them into the buffer of the agent's own steps.
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
    parser.add_argument("--env-id", default="Pendulum-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    parser.add_argument("--buffer-size", type=int, default=100_000)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--tau", type=float, default=0.005)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--policy-lr", type=float, default=1e-3)
    parser.add_argument("--q-lr", type=float, default=1e-3)
    parser.add_argument("--n-step", type=int, default=1)
    parser.add_argument("--demonstrations", choices=["mixed", "added", "none"], default="none")
    return parser.parse_args()


def layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class Actor(nn.Module):
    """Actions of a normal distribution, squashed by tanh, and their log densities [B, 1]."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        space = envs.single_action_space
        self.network = layers(int(np.prod(envs.single_observation_space.shape)), 2 * int(np.prod(space.shape)))
        self.register_buffer("scale", torch.as_tensor((space.high - space.low) / 2))
        self.register_buffer("center", torch.as_tensor((space.high + space.low) / 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.network(x).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        sample = normal.rsample()
        # log(1 - tanh(u)^2), in a form that does not overflow
        log_slope = 2 * (np.log(2) - sample - F.softplus(-2 * sample))
        log_prob = (normal.log_prob(sample) - log_slope - self.scale.log()).sum(1, keepdim=True)
        return sample.tanh() * self.scale + self.center, log_prob


def demonstrate(rb: ReplayBuffer, env_id: str, episodes: int = 10) -> None:
    """Adds episodes of a demonstrator on MountainCarContinuous who pushes the way the car moves already."""
    env = gym.make(env_id)
    for i in range(episodes):
        obs, _ = env.reset(seed=1000 + i)
        ended = False
        while not ended:
            action = np.array([1.0 if obs[1] > 0 else -1.0], np.float32)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            rb.add(obs, next_obs, action, reward, terminated, {}, truncated)
            obs, ended = next_obs, terminated or truncated


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
    n_inputs = int(np.prod(envs.single_observation_space.shape) + np.prod(envs.single_action_space.shape))
    actor = Actor(envs).to(device)
    critics, targets = (nn.ModuleList(layers(n_inputs, 1) for _ in range(2)).to(device) for _ in range(2))
    targets.load_state_dict(critics.state_dict())
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    target_entropy = -float(np.prod(envs.single_action_space.shape))
    q_optimizer = torch.optim.Adam(critics.parameters(), lr=args.q_lr)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.policy_lr)
    a_optimizer = torch.optim.Adam([log_alpha], lr=args.q_lr)
    rb, demonstrations = (
        ReplayBuffer(
            args.buffer_size,
            envs.single_observation_space,
            envs.single_action_space,
            device,
            handle_timeout_termination=False,
            n_step=args.n_step,
            gamma=args.gamma,
        )
        for _ in range(2)
    )
    if args.demonstrations == "mixed":
        demonstrate(demonstrations, args.env_id)
        rb.mix(demonstrations)  # half of each batch
    elif args.demonstrations == "added":
        demonstrate(rb, args.env_id)

    episodic_return, returns = 0.0, []
    obs, _ = envs.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        if global_step < args.learning_starts:
            actions = envs.action_space.sample()
        else:
            with torch.no_grad():
                actions = actor(torch.as_tensor(obs, device=device))[0].cpu().numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)

        episodic_return += float(rewards[0])
        if terminations[0] or truncations[0]:
            returns.append(episodic_return)
            print(f"global_step={global_step}, episodic return={episodic_return:.1f}", flush=True)
            episodic_return = 0.0

        real_next_obs = next_obs.copy()
        for i, ended in enumerate(np.logical_or(terminations, truncations)):
            if ended:
                real_next_obs[i] = infos["final_obs"][i]
        rb.add(obs, real_next_obs, actions, rewards, terminations, infos)
        obs = next_obs

        if global_step > args.learning_starts:
            data = rb.sample(args.batch_size)
            alpha = log_alpha.exp().item()
            with torch.no_grad():
                next_actions, next_log_pi = actor(data.next_observations)
                next_inputs = torch.cat([data.next_observations, next_actions], 1)
                next_value = torch.min(*(target(next_inputs) for target in targets)) - alpha * next_log_pi
                next_q_value = data.rewards + (1 - data.dones) * data.discounts * next_value
            inputs = torch.cat([data.observations, data.actions], 1)
            qf_loss = sum(F.mse_loss(critic(inputs), next_q_value) for critic in critics)  # weighted; sets priorities
            q_optimizer.zero_grad()
            qf_loss.backward()
            q_optimizer.step()

            pi, log_pi = actor(data.observations)
            min_qf_pi = torch.min(*(critic(torch.cat([data.observations, pi], 1)) for critic in critics))
            actor_loss = (alpha * log_pi - min_qf_pi).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()

            alpha_loss = -(log_alpha.exp() * (log_pi.detach() + target_entropy)).mean()
            a_optimizer.zero_grad()
            alpha_loss.backward()
            a_optimizer.step()

            with torch.no_grad():
                for target, parameter in zip(targets.parameters(), critics.parameters(), strict=True):
                    target.lerp_(parameter, args.tau)

    print(f"return of the last 5 episodes: {np.mean(returns[-5:]):.1f}")
    envs.close()
