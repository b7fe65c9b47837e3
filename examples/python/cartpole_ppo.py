"""PPO on CartPole-v1 with `epochs` and `advantages` of a `per.ReplayBuffer`, on 8 parallel environments.

Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with the clipped objective. An iteration adds a
rollout to the buffer, which computes generalised advantages, trains on all transitions for some epochs, and clears the
buffer: `overwrite=False` makes sure that no transition is lost before. Environments reset in the step after an end,
Gymnasium's default, and the buffer skips those steps. Training stops when 20 greedy episodes have a mean return of 475
or more.
"""

from __future__ import annotations

import argparse
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

SOLVED = 475.0
EVALUATION_EPISODES = 20
N_ENVS = 8
ROLLOUT = 64
N_EPOCHS = 8
BATCH_SIZE = 128
LEARNING_RATE = 1.5e-3
CLIP = 0.2
ENTROPY_WEIGHT = 0.0
EVALUATE_EVERY = 10


class ActorCritic(nn.Module):
    """A policy and a value function with separate networks."""

    def __init__(self, observation_size: int, n_actions: int, width: int = 64) -> None:
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(observation_size, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, n_actions),
        )
        self.critic = nn.Sequential(
            nn.Linear(observation_size, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        nn.init.orthogonal_(self.actor[-1].get_parameter("weight"), 0.01)

    def value(self, observation: torch.Tensor) -> torch.Tensor:
        return self.critic(observation).squeeze(-1)

    def log_probabilities(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.actor(observation), dim=-1)


@dataclass
class Run:
    """The training record, by iteration."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    clipped: list[float] = field(default_factory=list)
    episodes: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    solved_at: int | None = None
    seconds: float = 0.0


def greedy_return(network: ActorCritic, environments: gymnasium.vector.VectorEnv, seed: int) -> float:
    """Mean return of one greedy episode in each of the environments."""
    observation, _ = environments.reset(seed=seed)
    returns = np.zeros(environments.num_envs)
    running = np.ones(environments.num_envs, dtype=bool)
    while running.any():
        with torch.no_grad():
            action = network.actor(torch.from_numpy(observation)).argmax(dim=1).numpy()
        observation, reward, terminated, truncated, _ = environments.step(action)
        returns += running * reward
        running &= ~(terminated | truncated)
    return float(returns.mean())


class Collector:
    """Plays the policy and adds its steps to the buffer."""

    def __init__(self, environments: gymnasium.vector.VectorEnv, seed: int) -> None:
        self.environments = environments
        self.observation, _ = environments.reset(seed=seed)
        self.returns = np.zeros(environments.num_envs)
        self.steps = 0

    def rollout(self, network: ActorCritic, buffer: per.ReplayBuffer, run: Run) -> None:
        for _ in range(ROLLOUT):
            with torch.no_grad():
                observation = torch.from_numpy(self.observation)
                log_probabilities = network.log_probabilities(observation)
                action = torch.multinomial(log_probabilities.exp(), 1)
                log_probability = log_probabilities.gather(1, action).squeeze(1)
                value = network.value(observation)
            following, reward, terminated, truncated, _ = self.environments.step(action.squeeze(1).numpy())
            ids = buffer.add(
                observation=self.observation,
                action=action.squeeze(1),
                log_probability=log_probability,
                value=value,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                next_observation=following,
            )
            self.observation = following
            self.steps += int((ids >= 0).sum())
            self.returns += np.where(ids >= 0, reward, 0.0)
            for env in np.flatnonzero(terminated | truncated):
                run.episodes.append((self.steps, float(self.returns[env])))
                self.returns[env] = 0.0


def update(
    network: ActorCritic, optimizer: torch.optim.Optimizer, buffer: per.ReplayBuffer, clip: float
) -> tuple[float, float, float]:
    """One iteration of learning: mean loss, entropy and share of clipped ratios."""
    sums = np.zeros(3)
    n_batches = 0
    for batch in buffer.epochs(N_EPOCHS, batch_size=BATCH_SIZE):
        log_probabilities = network.log_probabilities(batch.observation)
        log_probability = log_probabilities.gather(1, batch.action.unsqueeze(1)).squeeze(1)
        ratio = (log_probability - batch["log_probability"]).exp()
        advantage = batch["advantage"] - batch["advantage"].mean()
        advantage = advantage / (batch["advantage"].std(correction=0) + 1e-8)
        clipped = ratio.clamp(1 - clip, 1 + clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = nn.functional.mse_loss(network.value(batch.observation), batch["value_target"])
        entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=1).mean()
        loss = policy_loss + 0.5 * value_loss - ENTROPY_WEIGHT * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
        sums += (loss.item(), entropy.item(), (ratio != clipped).float().mean().item())
        n_batches += 1
    loss, entropy, share = sums / n_batches
    return float(loss), float(entropy), float(share)


def train(seed: int, n_iterations: int) -> Run:
    """Trains until the task is solved or `n_iterations` are done."""
    torch.manual_seed(seed)
    environments = gymnasium.make_vec("CartPole-v1", num_envs=N_ENVS, vectorization_mode="sync")
    evaluation_envs = gymnasium.make_vec("CartPole-v1", num_envs=EVALUATION_EPISODES, vectorization_mode="sync")
    number = per.Field((), "float32")
    computed_later = per.Field((), "float32", default=0.0)
    buffer = per.ReplayBuffer.for_env(
        environments,
        # One row per step, one per end of an episode, and one for the observation after the last step.
        N_ENVS * (2 * ROLLOUT + 1),
        fields={
            "log_probability": number,
            "value": number,
            "advantage": computed_later,
            "value_target": computed_later,
        },
        gamma=0.98,
        prioritization="uniform",
        overwrite=False,
        arrays="torch",
        seed=seed,
    )
    spaces = environments.single_observation_space, environments.single_action_space
    network = ActorCritic(*map(gymnasium.spaces.flatdim, spaces))
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, eps=1e-5)
    collector = Collector(environments, seed)
    run = Run()

    def bootstrap(batch: per.Batch) -> torch.Tensor:
        with torch.no_grad():
            return network.value(batch.next_observation)

    start = time.perf_counter()
    with tqdm(total=n_iterations, unit="iteration", mininterval=0.5) as bar:
        for iteration in range(1, n_iterations + 1):
            left = 1 - (iteration - 1) / n_iterations
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * left
            collector.rollout(network, buffer, run)
            buffer.advantages(returns="value_target", gae_lambda=0.9, bootstrap=bootstrap)
            loss, entropy, clipped = update(network, optimizer, buffer, CLIP * left)
            buffer.clear()
            run.steps.append(collector.steps)
            run.losses.append(loss)
            run.entropies.append(entropy)
            run.clipped.append(clipped)
            bar.update()
            recent = [value for _, value in run.episodes[-20:]]
            mean = float(np.mean(recent)) if recent else 0.0
            bar.set_postfix_str(f"return {mean:3.0f}, loss {loss:.2f}, entropy {entropy:.2f}")
            if iteration % EVALUATE_EVERY == 0 or iteration == n_iterations:
                score = greedy_return(network, evaluation_envs, seed=1000 + seed)
                run.evaluations.append((collector.steps, score))
                if score >= SOLVED:
                    run.solved_at = collector.steps
                    break
    run.seconds = time.perf_counter() - start
    environments.close()
    evaluation_envs.close()
    return run


def draw_picture(run: Run, path: Path) -> None:
    figure, (returns, loss, entropy) = plt.subplots(1, 3, figsize=(13, 3.8), width_ratios=(2, 1, 1))
    if run.episodes:
        returns.plot(
            *zip(*run.episodes, strict=True), ".", color="#4a6fa5", markersize=2, label="episodes while training"
        )
    returns.plot(*zip(*run.evaluations, strict=True), "o-", color="#c1440e", markersize=4, label="greedy, mean of 20")
    returns.axhline(SOLVED, color="0.4", linestyle=":", linewidth=1)
    returns.annotate("solved", (0, SOLVED), xytext=(2, 3), textcoords="offset points", fontsize=8, color="0.3")
    returns.set(title="CartPole-v1, returns", xlabel="environment steps", ylim=(0, 520))
    returns.legend(loc="lower right", frameon=False)
    loss.plot(run.steps, run.losses, color="#c1440e", linewidth=1)
    loss.set(title="loss", xlabel="environment steps", yscale="symlog")
    entropy.plot(run.steps, run.entropies, color="#c1440e", linewidth=1, label="entropy of the policy")
    entropy.plot(run.steps, run.clipped, color="#4a6fa5", linewidth=1, label="share of clipped ratios")
    entropy.set(title="policy", xlabel="environment steps", ylim=(0, None))
    entropy.legend(frameon=False, fontsize=8)
    for axes in (returns, loss, entropy):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of networks, environments and orders (default 0)")
    parser.add_argument("--iterations", type=int, default=300, help="at most so many (default 300)")
    parser.add_argument("--short", action="store_true", help="3 iterations, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("cartpole_ppo.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    run = train(arguments.seed, 3 if arguments.short else arguments.iterations)
    draw_picture(run, arguments.picture)
    outcome = f"solved after {run.solved_at:,} steps" if run.solved_at is not None else "not solved"
    print(f"{outcome}, greedy return {run.evaluations[-1][1]:.1f}, {run.seconds:.0f} s")
    print(f"picture: {arguments.picture}")
    return 0 if arguments.short or run.solved_at is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
