"""DQN on CartPole-v1 with batches selected from large ones (LaBER, Lahire et al. 2022, arXiv:2110.01528).

Each step draws a large uniform batch, scores its transitions by their current TD errors, and learns from a few of them
drawn in proportion to these scores: no priority is ever stale. The few are fetched by their ids with
`buffer.get_windows(ids)`. The same agent is also trained with uniform batches. A figure shows the learning curves, and
the errors of the large batches next to those of the selected ones.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium
import matplotlib
import numpy as np
import per
import torch
from torch import nn
from tqdm import tqdm

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SOLVED = 475.0
EVALUATION_EPISODES = 20
BATCH_SIZE = 64
LARGE = 4 * BATCH_SIZE


@dataclass
class Agent:
    """The training record of one agent."""

    selects: bool
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    solved_at: int | None = None
    large_errors: list[float] = field(default_factory=list)
    selected_errors: list[float] = field(default_factory=list)


def network_for(env: gymnasium.Env) -> nn.Module:
    size, n_actions = map(gymnasium.spaces.flatdim, (env.observation_space, env.action_space))
    return nn.Sequential(nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, n_actions))


def td_errors(online: nn.Module, target: nn.Module, batch: per.Batch) -> torch.Tensor:
    """TD errors of double Q-learning (van Hasselt et al. 2016)."""
    with torch.no_grad():
        best = online(batch.next_observation).argmax(dim=1, keepdim=True)
        goal = batch.reward + batch.discount * target(batch.next_observation).gather(1, best).squeeze(1)
    return online(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1) - goal


def select(
    buffer: per.ReplayBuffer, online: nn.Module, target: nn.Module, agent: Agent
) -> tuple[per.Batch, torch.Tensor]:
    """A batch drawn from a large one in proportion to |td_error|, and weights that keep its gradient unbiased.

    w_i = mean_j s_j / s_i over the large batch, with scores s (LaBER-mean, section 4 of the paper).
    """
    large = buffer.sample(LARGE)
    with torch.no_grad():
        scores = td_errors(online, target, large).abs() + 1e-6
    chosen = torch.multinomial(scores, BATCH_SIZE, replacement=True)
    agent.large_errors.append(float(scores.mean()))
    agent.selected_errors.append(float(scores[chosen].mean()))
    return buffer.get_windows(large.ids[chosen]), scores.mean() / scores[chosen]


def greedy_return(network: nn.Module, environments: gymnasium.vector.VectorEnv, seed: int) -> float:
    """Mean return of one greedy episode in each of the environments."""
    observation, _ = environments.reset(seed=seed)
    returns, running = np.zeros(environments.num_envs), np.ones(environments.num_envs, dtype=bool)
    while running.any():
        with torch.no_grad():
            action = network(torch.from_numpy(observation)).argmax(dim=1).numpy()
        observation, reward, terminated, truncated, _ = environments.step(action)
        returns += running * reward
        running &= ~(terminated | truncated)
    return float(returns.mean())


def train(selects: bool, seed: int, max_steps: int) -> Agent:
    """Trains one agent until it is solved or `max_steps` environment steps are done."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gymnasium.make("CartPole-v1")
    evaluation_envs = gymnasium.make_vec("CartPole-v1", num_envs=EVALUATION_EPISODES, vectorization_mode="sync")
    buffer = per.ReplayBuffer.for_env(
        env, 50_000, n_step=3, gamma=0.99, prioritization="uniform", arrays="torch", seed=seed
    )
    online, target = network_for(env), network_for(env)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    n_actions = gymnasium.spaces.flatdim(env.action_space)
    agent = Agent(selects)
    observation, _ = env.reset(seed=seed)
    with tqdm(total=max_steps, desc="laber" if selects else "uniform", unit="step", mininterval=0.5) as bar:
        for step in range(1, max_steps + 1):
            if rng.random() < max(0.02, 1.0 - step / 4000):
                action = int(rng.integers(n_actions))
            else:
                with torch.no_grad():
                    action = int(online(torch.from_numpy(observation)).argmax())
            next_observation, reward, terminated, truncated, _ = env.step(action)
            buffer.add(observation=observation, action=action, reward=reward, terminated=terminated,
                       truncated=truncated, next_observation=next_observation)  # fmt: skip
            observation = env.reset()[0] if terminated or truncated else next_observation
            bar.update()
            if step < 500:
                continue
            if selects:
                batch, weights = select(buffer, online, target, agent)
            else:
                batch = buffer.sample(BATCH_SIZE)
                weights = batch.weights
            errors = td_errors(online, target, batch)
            loss = (weights * nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 0.01)
            if step % 500 == 0:
                agent.evaluations.append((step, greedy_return(online, evaluation_envs, seed=1000 + seed)))
                if agent.evaluations[-1][1] >= SOLVED:
                    agent.solved_at = step
                    break
    env.close()
    evaluation_envs.close()
    return agent


def draw_picture(agents: list[Agent], path: Path) -> None:
    figure, (curves, errors) = plt.subplots(1, 2, figsize=(10, 3.6))
    for agent in agents:
        color = "#c1440e" if agent.selects else "#4a6fa5"
        label = "laber" if agent.selects else "uniform"
        curves.plot(*zip(*agent.evaluations, strict=True), color=color, marker=".", label=label)
    curves.set(title="CartPole-v1, greedy return", xlabel="environment steps")
    curves.legend(*[list(each) for each in zip(*_once_each(curves), strict=True)], frameon=False)
    first = next(agent for agent in agents if agent.selects)
    for values, label in ((first.large_errors, f"{LARGE} drawn"), (first.selected_errors, f"{BATCH_SIZE} selected")):
        errors.plot(np.convolve(values, np.ones(50) / 50, mode="valid"), label=label)
    errors.set(title="mean |td_error| of a batch", xlabel="updates")
    errors.legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _once_each(axes: plt.Axes) -> list[tuple[object, object]]:
    """Lines by label, the first of each."""
    return [(line, label) for label, line in {line.get_label(): line for line in axes.get_lines()}.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="agents of each kind (default 4)")
    parser.add_argument("--max-steps", type=int, default=25_000, help="environment steps of one agent (default 25000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first agent of each kind (default 0)")
    parser.add_argument("--short", action="store_true", help="one agent of each kind for 600 steps")
    parser.add_argument("--picture", type=Path, default=Path("cartpole_laber.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    n_agents, max_steps = (1, 600) if arguments.short else (arguments.seeds, arguments.max_steps)
    seeds = range(arguments.seed, arguments.seed + n_agents)
    agents = [train(selects, seed, max_steps) for seed in seeds for selects in (True, False)]
    draw_picture(agents, arguments.picture)
    for selects in (True, False):
        steps = [agent.solved_at for agent in agents if agent.selects == selects]
        outcomes = ", ".join(f"solved after {step:,} steps" if step is not None else "not solved" for step in steps)
        print(f"{'laber' if selects else 'uniform':>7}: {outcomes}")
    print(f"picture: {arguments.picture}")
    is_solved = any(agent.solved_at is not None for agent in agents if agent.selects)
    return 0 if arguments.short or is_solved else 1


if __name__ == "__main__":
    raise SystemExit(main())
