"""SAC with twin critics and prioritized 3-step replay on Pendulum-v1.

Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) with a learned temperature. The priority of a transition is
the mean of both critics' absolute TD errors, and the losses are weighted by importance sampling. `--no-use-per` draws
uniformly and changes nothing else. 3-step returns are formed when a batch is drawn, and the bootstrap is multiplied by
the batch's `discount`. Pendulum's episodes only end by a time limit, so `discount` is never 0, but gamma^2 or gamma if
the limit shortens a window.

Training stops when 20 greedy episodes have a mean return of -200 or more, and 20 others confirm it.
"""

from __future__ import annotations

import argparse
import math
import time
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
from matplotlib.colors import LogNorm

SOLVED = -200.0
EVALUATION_EPISODES = 20
EVALUATE_EVERY = 250
WARM_UP = 500
BATCH_SIZE = 128
LEARNING_RATE = 1e-3
TARGET_RATE = 0.01
REWARD_SCALE = 0.1  # scale of the learned returns: values near 1 suit the networks


def perceptron(n_inputs: int, n_outputs: int, width: int = 64) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_outputs)
    )


class Actor(nn.Module):
    """A normal distribution for each action, squashed into -1 .. 1 by tanh."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        super().__init__()
        self.body = perceptron(observation_size, 2 * action_size)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """An action and its log-probability."""
        mean, log_deviation = self.body(observation).chunk(2, dim=-1)
        log_deviation = log_deviation.clamp(-5, 2)
        noise = torch.randn_like(mean)
        before = mean + log_deviation.exp() * noise
        log_normal = -0.5 * noise**2 - log_deviation - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(x)^2), without cancellation for large x
        log_slope = 2 * (math.log(2) - before - nn.functional.softplus(-2 * before))
        return torch.tanh(before), (log_normal - log_slope).sum(dim=-1)

    def greedy(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(observation).chunk(2, dim=-1)[0])


class TwinCritics(nn.Module):
    """Two independent action values, [2, B]."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        super().__init__()
        self.critics = nn.ModuleList(perceptron(observation_size + action_size, 1) for _ in range(2))

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        both = torch.cat([observation, action], dim=-1)
        return torch.stack([critic(both).squeeze(-1) for critic in self.critics])


class Learner:
    """The networks, and one step of learning from a batch."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        self.actor = Actor(observation_size, action_size)
        self.critics = TwinCritics(observation_size, action_size)
        self.target = TwinCritics(observation_size, action_size)
        self.target.load_state_dict(self.critics.state_dict())
        self.log_temperature = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(action_size)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=LEARNING_RATE)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=LEARNING_RATE)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=LEARNING_RATE)

    def learn(self, batch: per.Batch) -> torch.Tensor:
        """Updates everything once; the TD errors of both critics, [2, B]."""
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            next_action, next_log_probability = self.actor(batch.next_observation)
            next_value = self.target(batch.next_observation, next_action).amin(dim=0)
            goal = REWARD_SCALE * batch.reward + batch.discount * (next_value - temperature * next_log_probability)
        td_errors = goal - self.critics(batch.observation, batch.action)
        self._step(self.critic_optimizer, (batch.weights * td_errors**2).mean(dim=1).sum())

        action, log_probability = self.actor(batch.observation)
        self.critics.requires_grad_(False)
        value = self.critics(batch.observation, action).amin(dim=0)
        # The states of a batch are also drawn by priority; the same weights correct that for the policy.
        self._step(self.actor_optimizer, (batch.weights * (temperature * log_probability - value)).mean())
        self.critics.requires_grad_(True)

        surplus = -(log_probability.detach() + self.target_entropy)
        self._step(self.temperature_optimizer, (self.log_temperature * batch.weights * surplus).mean())
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.critics.parameters()), TARGET_RATE)
        return td_errors.detach()

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@dataclass
class Run:
    """The training record of one agent."""

    episodes: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    confirmed: float = -math.inf
    solved_at: int | None = None
    seconds: float = 0.0
    observations: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    priorities: np.ndarray = field(default_factory=lambda: np.empty(0))
    effective_shares: list[tuple[int, float]] = field(default_factory=list)


def rescaled(env: gymnasium.Env) -> gymnasium.Wrapper:
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))


def greedy_return(actor: Actor, seed: int) -> float:
    """Mean return of a greedy episode from each of 20 starts."""
    environments = gymnasium.make_vec(
        "Pendulum-v1", EVALUATION_EPISODES, vectorization_mode="sync", wrappers=(rescaled,)
    )
    observation, _ = environments.reset(seed=seed)
    returns, ended = np.zeros(EVALUATION_EPISODES), np.zeros(EVALUATION_EPISODES, dtype=bool)
    while not ended.all():
        with torch.no_grad():
            action = actor.greedy(torch.from_numpy(observation)).numpy()
        observation, reward, terminated, truncated, _ = environments.step(action)
        returns += ~ended * reward
        ended |= terminated | truncated
    environments.close()
    return float(returns.mean())


def evaluate(actor: Actor, run: Run, step: int, seed: int) -> bool:
    """True if the task is solved: on 20 starts, and then on 20 others, so that luck does not decide."""
    run.evaluations.append((step, greedy_return(actor, seed=1000 + seed)))
    if run.evaluations[-1][1] < SOLVED:
        return False
    run.confirmed = greedy_return(actor, seed=2000 + seed)
    return run.confirmed >= SOLVED


class Player:
    """Plays one environment and adds its steps to the buffer."""

    def __init__(self, seed: int) -> None:
        self.env = rescaled(gymnasium.make("Pendulum-v1"))
        self.env.action_space.seed(seed)
        self.observation, _ = self.env.reset(seed=seed)
        self.episode_return = 0.0
        self.ids: list[np.ndarray] = []

    def action(self, actor: Actor) -> np.ndarray:
        with torch.no_grad():
            return actor(torch.from_numpy(self.observation))[0].numpy()

    def step(self, action: np.ndarray, buffer: per.ReplayBuffer) -> float | None:
        """Returns the return of the episode if this step ends it."""
        observation = self.observation
        self.observation, reward, terminated, truncated, _ = self.env.step(action)
        added = buffer.add(
            observation=observation,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=self.observation,
        )
        self.ids.append(added)
        self.episode_return += float(reward)
        if not terminated and not truncated:
            return None
        ended, self.episode_return = self.episode_return, 0.0
        self.observation, _ = self.env.reset()
        return ended


def train(use_per: bool, seed: int, max_steps: int) -> Run:
    """Trains until the task is solved or `max_steps` environment steps are done."""
    torch.manual_seed(seed)
    player = Player(seed)
    buffer = per.ReplayBuffer.for_env(
        player.env,
        # One row per step, one per end of an episode, and one for the observation after the last step.
        max_steps + max_steps // 200 + 1,
        n_step=3,
        gamma=0.98,
        prioritization="proportional" if use_per else "uniform",
        beta_steps=max_steps,
        arrays="torch",
        seed=seed,
    )
    learner = Learner(*map(gymnasium.spaces.flatdim, (player.env.observation_space, player.env.action_space)))
    run = Run()
    start = time.perf_counter()
    loss = math.nan
    with tqdm(total=max_steps, unit="step", mininterval=0.5) as bar:
        for step in range(1, max_steps + 1):
            explores = step <= WARM_UP
            action = player.env.action_space.sample() if explores else player.action(learner.actor)
            ended = player.step(action, buffer)
            if ended is not None:
                run.episodes.append((step, ended))
            if step > WARM_UP:
                batch = buffer.sample(BATCH_SIZE)
                td_errors = learner.learn(batch)
                buffer.update_priorities(batch.ids, td_errors)  # their mean; uniform draws ignore it
                loss = float(td_errors.square().mean())
            if step % 50 == 0:
                bar.update(50)
                last = run.episodes[-1][1] if run.episodes else math.nan
                bar.set_postfix_str(f"return {last:5.0f}, loss {loss:.2f}, beta {buffer.beta:.2f}")
                if step > WARM_UP:
                    run.effective_shares.append((step, buffer.stats().last_effective_size / BATCH_SIZE))
            if step > WARM_UP and step % EVALUATE_EVERY == 0 and evaluate(learner.actor, run, step, seed):
                run.solved_at = step
                break
    run.seconds = time.perf_counter() - start
    # The windows of the newest rows are incomplete, so they cannot be drawn yet.
    stored = buffer.get(np.concatenate(player.ids, axis=None)[:-3])
    run.observations, run.priorities = stored.observation.numpy(), stored.priorities.numpy()
    player.env.close()
    return run


def draw_picture(run: Run, use_per: bool, path: Path) -> None:
    figure, (returns, states, sizes) = plt.subplots(1, 3, figsize=(13, 3.9), width_ratios=(1.5, 1.3, 1))
    if run.episodes:
        returns.plot(
            *zip(*run.episodes, strict=True), ".", color="#4a6fa5", markersize=5, label="episodes while training"
        )
    if run.evaluations:
        returns.plot(
            *zip(*run.evaluations, strict=True), "o-", color="#c1440e", markersize=4, label="greedy, mean of 20"
        )
    returns.axhline(SOLVED, color="0.4", linestyle=":", linewidth=1)
    returns.annotate("solved", (0, SOLVED), xytext=(2, 3), textcoords="offset points", fontsize=8, color="0.3")
    name = "prioritized" if use_per else "uniform"
    returns.set_xlim(left=0)
    returns.set(title=f"Pendulum-v1, SAC with {name} 3-step replay", xlabel="environment steps", ylabel="return")
    returns.legend(loc="upper left", bbox_to_anchor=(0, 0.93), frameon=False)

    angle = np.degrees(np.arctan2(run.observations[:, 1], run.observations[:, 0]))
    order = np.argsort(run.priorities)
    points = states.scatter(
        angle[order],
        run.observations[order, 2],
        c=run.priorities[order],
        s=5,
        cmap="inferno_r",
        norm=LogNorm(*np.quantile(run.priorities, [0.01, 0.999])),
        linewidths=0,
    )
    figure.colorbar(points, ax=states, label="priority: mean |TD error| of both critics", pad=0.02)
    states.set(title="what is stored", xlabel="angle from upright, degrees", ylabel="angular velocity")
    states.set_xticks([-180, -90, 0, 90, 180])

    if run.effective_shares:
        sizes.plot(*zip(*run.effective_shares, strict=True), color="#c1440e", linewidth=1)
    sizes.set_xlim(left=0)
    sizes.set(title="effective sample size / batch size", xlabel="environment steps", ylim=(0, 1.05))
    for axes in (returns, states, sizes):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of networks, environment and draws (default 0)")
    parser.add_argument(
        "--use-per", action=argparse.BooleanOptionalAction, default=True, help="draw by priority, or uniformly"
    )
    parser.add_argument("--max-steps", type=int, default=15_000, help="environment steps (default 15000)")
    parser.add_argument("--short", action="store_true", help="600 steps, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("pendulum_sac.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    run = train(arguments.use_per, arguments.seed, 600 if arguments.short else arguments.max_steps)
    draw_picture(run, arguments.use_per, arguments.picture)
    if run.solved_at is not None:
        returns = f"{run.evaluations[-1][1]:.0f} on 20 episodes and {run.confirmed:.0f} on 20 others"
        print(f"solved after {run.solved_at:,} steps: mean return {returns}, {run.seconds:.0f} s")
    else:
        print(f"not solved, {run.seconds:.0f} s")
    print(f"picture: {arguments.picture}")
    return 0 if arguments.short or run.solved_at is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
