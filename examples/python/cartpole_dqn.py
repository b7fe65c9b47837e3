"""DQN with prioritized replay on CartPole-v1, compared with uniform replay.

Double Q-learning (van Hasselt et al. 2016), a dueling network (Wang et al. 2016) and a `per.ReplayBuffer`; the uniform
agent differs in one option. Training stops when 20 greedy episodes have a mean return of 475 or more. A figure shows
the learning curves of both agents, their priorities and their weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


class DuelingNetwork(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean A(s, .)."""

    def __init__(self, observation_size: int, n_actions: int, width: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation_size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, n_actions)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        features = self.body(observation)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(dim=-1, keepdim=True)


class Stopwatch:
    """Adds up the time spent inside `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


@dataclass
class Run:
    """The training record of one agent."""

    name: str
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    solved_at: int | None = None
    seconds: float = 0.0
    replay_seconds: float = 0.0
    draws: int = 0
    priorities: np.ndarray = field(default_factory=lambda: np.empty(0))
    weights: np.ndarray = field(default_factory=lambda: np.empty(0))


def greedy_return(network: nn.Module, environments: gymnasium.vector.VectorEnv, seed: int) -> float:
    """Mean return of one greedy episode in each of the environments."""
    observation, _ = environments.reset(seed=seed)
    returns = np.zeros(environments.num_envs)
    running = np.ones(environments.num_envs, dtype=bool)
    while running.any():
        with torch.no_grad():
            action = network(torch.from_numpy(observation)).argmax(dim=1).numpy()
        observation, reward, terminated, truncated, _ = environments.step(action)
        returns += running * reward
        running &= ~(terminated | truncated)
    return float(returns.mean())


def train(name: str, seed: int, max_steps: int, alpha: float) -> Run:
    """Trains one agent until it is solved or `max_steps` environment steps are done."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gymnasium.make("CartPole-v1")
    evaluation_envs = gymnasium.make_vec("CartPole-v1", num_envs=EVALUATION_EPISODES, vectorization_mode="sync")
    batch_size, warm_up, evaluate_every, exploration_steps = 128, 500, 500, 4000

    buffer = per.ReplayBuffer.for_env(
        env, 50_000, gamma=0.99, alpha=alpha, beta=0.4, beta_steps=max_steps, arrays="torch", seed=seed
    )
    size, n_actions = map(gymnasium.spaces.flatdim, (env.observation_space, env.action_space))
    online = DuelingNetwork(size, n_actions)
    target = DuelingNetwork(size, n_actions)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)

    run = Run(name)
    replay_time = Stopwatch()
    start = time.perf_counter()
    last_return, episode_return, loss = 0.0, 0.0, torch.zeros(())
    weights: list[np.ndarray] = []
    observation, _ = env.reset(seed=seed)
    with tqdm(total=max_steps, desc=f"{name:>11}", unit="step", mininterval=0.5) as bar:
        for step in range(1, max_steps + 1):
            exploration = max(0.02, 1.0 - step / exploration_steps)
            if rng.random() < exploration:
                action = int(rng.integers(n_actions))
            else:
                with torch.no_grad():
                    action = int(online(torch.from_numpy(observation)).argmax())
            next_observation, reward, terminated, truncated, _ = env.step(action)
            with replay_time():
                buffer.add(
                    observation=observation,
                    action=action,
                    reward=reward,
                    terminated=terminated,
                    truncated=truncated,
                    next_observation=next_observation,
                )
            episode_return += float(reward)
            observation = next_observation
            if terminated or truncated:
                last_return, episode_return = episode_return, 0.0
                observation, _ = env.reset()

            if step >= warm_up:
                with replay_time():
                    batch = buffer.sample(batch_size)
                with torch.no_grad():
                    best = online(batch.next_observation).argmax(dim=1, keepdim=True)
                    bootstrap = target(batch.next_observation).gather(1, best).squeeze(1)
                    goal = batch.reward + batch.discount * bootstrap
                value = online(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
                loss = (batch.weights * nn.functional.smooth_l1_loss(value, goal, reduction="none")).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with replay_time():
                    buffer.update_priorities(batch.ids, goal - value.detach())
                run.draws += batch_size
                weights = [*weights[-99:], batch.weights.numpy().copy()]
                with torch.no_grad():
                    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 0.01)

            if step % 100 == 0:
                bar.update(100)
                bar.set_postfix_str(f"return {last_return:3.0f}, loss {loss.item():.3f}, beta {buffer.beta:.2f}")
            if step % evaluate_every == 0 and step >= warm_up:
                run.evaluations.append((step, greedy_return(online, evaluation_envs, seed=1000 + seed)))
                if run.evaluations[-1][1] >= SOLVED:
                    run.solved_at = step
                    break
    run.seconds = time.perf_counter() - start
    run.replay_seconds = replay_time.seconds
    run.priorities = buffer.priorities(buffer.live_ids())
    run.weights = np.concatenate(weights) if weights else np.empty(0)
    env.close()
    evaluation_envs.close()
    return run


COLORS = {"prioritized": "#c1440e", "uniform": "#4a6fa5"}


def mean_curve(runs: list[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds of the greedy return; a solved run keeps its last value."""
    longest = max(runs, key=lambda run: len(run.evaluations))
    steps = np.array([step for step, _ in longest.evaluations])
    curves = np.empty((len(runs), len(steps)))
    for row, run in zip(curves, runs, strict=True):
        values = [value for _, value in run.evaluations]
        row[: len(values)], row[len(values) :] = values, values[-1]
    return steps, curves.mean(axis=0)


def draw_picture(runs: dict[str, list[Run]], path: Path) -> None:
    figure, (curves, priorities, weights) = plt.subplots(1, 3, figsize=(13, 3.8), width_ratios=(2, 1, 1))
    for name, agents in runs.items():
        for run in agents:
            curves.plot(*zip(*run.evaluations, strict=True), color=COLORS[name], linewidth=0.8, alpha=0.35)
            if run.solved_at is not None:
                curves.plot(run.solved_at, run.evaluations[-1][1], "o", color=COLORS[name], markersize=4)
        curves.plot(
            *mean_curve(agents), color=COLORS[name], linewidth=2.2, marker=".", label=f"{name}, mean of {len(agents)}"
        )
    curves.axhline(SOLVED, color="0.4", linestyle=":", linewidth=1)
    curves.annotate("solved", (0, SOLVED), xytext=(2, 3), textcoords="offset points", fontsize=8, color="0.3")
    curves.set(title="CartPole-v1, greedy return", xlabel="environment steps", ylim=(0, 520))
    curves.legend(loc="lower right", frameon=False)

    last = runs["prioritized"][0]
    per.plot.priorities(last.priorities, priorities, color=COLORS["prioritized"])
    per.plot.weights(last.weights, weights, color=COLORS["prioritized"])
    weights.set(title="weights of the last 100 batches")
    curves.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def print_summary(runs: dict[str, list[Run]], max_steps: int) -> None:
    for name, agents in runs.items():
        solved = [run.solved_at for run in agents if run.solved_at is not None]
        median = f"{np.median([run.solved_at or max_steps for run in agents]):.0f}"
        seconds = sum(run.seconds for run in agents)
        replay_seconds = sum(run.replay_seconds for run in agents)
        draws = sum(run.draws for run in agents)
        print(
            f"{name:>11}: solved {len(solved)} of {len(agents)}, median {median} steps; "
            f"{draws / seconds:,.0f} samples/s; libper took {100 * replay_seconds / seconds:.1f} % of the time "
            f"({1e6 * replay_seconds * 128 / max(draws, 1):.0f} us a step for add, sample and update)"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="agents of each kind (default 4)")
    parser.add_argument("--max-steps", type=int, default=25_000, help="environment steps of one agent (default 25000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first agent of each kind (default 0)")
    parser.add_argument(
        "--short", action="store_true", help="one agent of each kind for 600 steps, to see that it runs"
    )
    parser.add_argument("--picture", type=Path, default=Path("cartpole_dqn.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    n_agents, max_steps = (1, 600) if arguments.short else (arguments.seeds, arguments.max_steps)
    runs: dict[str, list[Run]] = {"prioritized": [], "uniform": []}
    for seed in range(arguments.seed, arguments.seed + n_agents):
        for name, alpha in (("prioritized", 0.6), ("uniform", 0.0)):
            runs[name].append(train(name, seed, max_steps, alpha))
    draw_picture(runs, arguments.picture)
    print_summary(runs, max_steps)
    print(f"picture: {arguments.picture}")
    is_solved = any(run.solved_at is not None for run in runs["prioritized"])
    return 0 if arguments.short or is_solved else 1


if __name__ == "__main__":
    raise SystemExit(main())
