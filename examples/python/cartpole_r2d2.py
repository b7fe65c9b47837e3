"""A recurrent agent in the style of R2D2 on CartPole with hidden velocities.

The agent observes the cart's position, the pole's angle and the previous action; a GRU has to remember velocities. The
buffer stores the GRU's state with every step and draws sequences of 8 + 16 steps: the first 8 only warm up the state,
since the stored one comes from older weights (stored state and burn-in of Kapturowski et al. 2019, "Recurrent
Experience Replay in Distributed Reinforcement Learning"). Q-learning is double, with 3-step returns; the priority of a
sequence is eta max + (1 - eta) mean of its absolute TD errors, with eta 0.9 as in that paper. 8 environments play in
parallel, each with its own epsilon.

Training stops when 20 greedy episodes have a mean return of 475 or more, and 20 others confirm it.
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

SOLVED = 475.0
EVALUATION_EPISODES = 20
EVALUATE_EVERY = 500
N_ENVS = 8
WIDTH = 64
BURN_IN = 8
LENGTH = 16
BATCH_SIZE = 32
N_STEP = 3
GAMMA = 0.99
LEARNING_RATE = 1e-3
TARGET_RATE = 0.01
WARM_UP = 150  # steps of every environment before learning begins


class Masked(gymnasium.Wrapper):
    """Position, angle and the previous action (-1 and 1; 0 at the start), each scaled to about 1."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def reset(self, **arguments):
        observation, info = self.env.reset(**arguments)
        return self._seen(observation, 0.0), info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(observation, 2.0 * float(action) - 1.0), reward, terminated, truncated, info

    @staticmethod
    def _seen(observation: np.ndarray, action: float) -> np.ndarray:
        return np.array([observation[0] / 2.4, observation[2] / 0.21, action], np.float32)


def make_environments(count: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec(
        "CartPole-v1",
        count,
        vectorization_mode="sync",
        wrappers=(Masked,),
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )


class RecurrentQ(nn.Module):
    """Action values of sequences of observations, [B, t, actions], and the state after them."""

    def __init__(self, observation_size: int, n_actions: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(observation_size, WIDTH), nn.ReLU())
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.advantage, self.value = nn.Linear(WIDTH, n_actions), nn.Linear(WIDTH, 1)

    def forward(self, observation: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features, state = self.memory(self.encoder(observation), state[None])
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(dim=-1, keepdim=True), state[0]


class Learner:
    """The networks, and one step of learning from a batch of sequences."""

    def __init__(self, observation_size: int, n_actions: int) -> None:
        self.online = RecurrentQ(observation_size, n_actions)
        self.target = RecurrentQ(observation_size, n_actions)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE)

    def learn(self, batch: per.Batch) -> torch.Tensor:
        """Updates the networks once; the TD errors of all steps, [B, T], 0 in the burn-in."""
        with torch.no_grad():
            _, state = self.online(batch.observation[:, :BURN_IN], batch["state"])
            goal_values, _ = self.target(batch.observation, batch["state"])
        values, _ = self.online(batch.observation[:, BURN_IN:], state)
        with torch.no_grad():
            best = values.argmax(dim=-1, keepdim=True)
            goal_values = goal_values[:, BURN_IN:].gather(2, best).squeeze(2)
            n_steps = batch.n_steps[:, BURN_IN:].long()
            bootstrap = goal_values.gather(1, torch.arange(LENGTH) + n_steps)
            # Rewards of 1 - gamma make values of at most 1.
            goal = (1 - GAMMA) * batch.reward[:, BURN_IN:] + batch.discount[:, BURN_IN:] * bootstrap
        chosen = values[:, :LENGTH].gather(2, batch.action[:, BURN_IN:, None]).squeeze(2)
        mask = batch.mask[:, BURN_IN:]
        td_errors = (goal - chosen) * mask
        loss = (batch.weights[:, None] * td_errors**2).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), TARGET_RATE)
        return nn.functional.pad(td_errors.detach(), (BURN_IN, 0))


class Player:
    """Plays the environments and adds their steps to the buffer, with the recurrent state before each step."""

    def __init__(self, seed: int) -> None:
        self.environments = make_environments(N_ENVS)
        self.observation, _ = self.environments.reset(seed=seed)
        self.state = torch.zeros(N_ENVS, WIDTH)
        self.returns = np.zeros(N_ENVS)
        self.rng = np.random.default_rng(seed)
        # From 0.4 to 0.0007, as in Ape-X (Horgan et al. 2018, section 4).
        self.epsilons = 0.4 ** (1 + 7 * np.arange(N_ENVS) / (N_ENVS - 1))

    def step(self, network: RecurrentQ, buffer: per.ReplayBuffer, explores: bool) -> list[float]:
        """One step of each environment; the returns of the episodes that it ends."""
        with torch.no_grad():
            values, state = network(torch.from_numpy(self.observation)[:, None], self.state)
        action = values[:, 0].argmax(dim=-1).numpy()
        at_random = self.rng.random(N_ENVS) < (1.0 if explores else self.epsilons)
        action[at_random] = self.rng.integers(2, size=int(at_random.sum()))
        following, reward, terminated, truncated, info = self.environments.step(action)
        buffer.add(
            observation=self.observation,
            action=action,
            state=self.state,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=following,
            info=info,
        )
        ended = terminated | truncated
        self.returns += reward
        done = self.returns[ended].tolist()
        self.returns[ended] = 0.0
        self.observation = following
        self.state = state * torch.from_numpy(~ended)[:, None]
        return done


@dataclass
class Run:
    """The training record of one agent."""

    episodes: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    errors: np.ndarray = field(default_factory=lambda: np.zeros(LENGTH))
    confirmed: float = -math.inf
    solved_at: int | None = None
    seconds: float = 0.0


def greedy_return(network: RecurrentQ, seed: int) -> float:
    """Mean return of a greedy episode from each of 20 starts."""
    environments = make_environments(EVALUATION_EPISODES)
    observation, _ = environments.reset(seed=seed)
    state = torch.zeros(EVALUATION_EPISODES, WIDTH)
    returns, ended = np.zeros(EVALUATION_EPISODES), np.zeros(EVALUATION_EPISODES, dtype=bool)
    while not ended.all():
        with torch.no_grad():
            values, state = network(torch.from_numpy(observation)[:, None], state)
        observation, reward, terminated, truncated, _ = environments.step(values[:, 0].argmax(dim=-1).numpy())
        returns += ~ended * reward
        ended |= terminated | truncated
    environments.close()
    return float(returns.mean())


def evaluate(network: RecurrentQ, run: Run, step: int, seed: int) -> bool:
    """True if the task is solved: on 20 starts, and then on 20 others, so that luck does not decide."""
    run.evaluations.append((step * N_ENVS, greedy_return(network, seed=1000 + seed)))
    if run.evaluations[-1][1] < SOLVED:
        return False
    run.confirmed = greedy_return(network, seed=2000 + seed)
    return run.confirmed >= SOLVED


def train(seed: int, max_steps: int) -> Run:
    """Trains until the task is solved or every environment has done `max_steps` steps."""
    torch.manual_seed(seed)
    player = Player(seed)
    buffer = per.ReplayBuffer.for_env(
        player.environments,
        100_000,
        fields={"state": per.Field(WIDTH, role="recurrent_state")},
        sequence_length=LENGTH,
        burn_in=BURN_IN,
        sequence_stride=LENGTH // 2,
        n_step=N_STEP,
        gamma=GAMMA,
        sequence_eta=0.9,
        alpha=0.9,
        beta=0.6,
        beta_final=0.6,
        epsilon=1e-4,
        arrays="torch",
        seed=seed,
    )
    learner = Learner(3, 2)
    run = Run()
    start = time.perf_counter()
    loss = math.nan
    with tqdm(total=max_steps, unit="step", mininterval=0.5) as bar:
        for step in range(1, max_steps + 1):
            done = player.step(learner.online, buffer, explores=step <= WARM_UP)
            run.episodes += [(step * N_ENVS, value) for value in done]
            if step > WARM_UP:
                batch = buffer.sample(BATCH_SIZE)
                td_errors = learner.learn(batch)
                buffer.update_priorities(batch.ids, td_errors)
                loss = float(td_errors.square().mean())
                run.errors = 0.99 * run.errors + 0.01 * td_errors[:, BURN_IN:].abs().mean(dim=0).numpy()
            if step % 50 == 0:
                bar.update(50)
                recent = np.mean([value for _, value in run.episodes[-20:]]) if run.episodes else math.nan
                bar.set_postfix_str(f"return {recent:4.0f}, loss {loss:.5f}, sequences {len(buffer):,}")
            if step > WARM_UP and step % EVALUATE_EVERY == 0 and evaluate(learner.online, run, step, seed):
                run.solved_at = step * N_ENVS
                break
    run.seconds = time.perf_counter() - start
    player.environments.close()
    return run


def draw_picture(run: Run, path: Path) -> None:
    figure, (returns, errors) = plt.subplots(1, 2, figsize=(11, 3.9), width_ratios=(2, 1))
    if run.episodes:
        returns.plot(
            *zip(*run.episodes, strict=True), ".", color="#4a6fa5", markersize=3, label="episodes while training"
        )
    if run.evaluations:
        returns.plot(
            *zip(*run.evaluations, strict=True), "o-", color="#c1440e", markersize=4, label="greedy, mean of 20"
        )
    returns.axhline(SOLVED, color="0.4", linestyle=":", linewidth=1)
    returns.annotate("solved", (0, SOLVED), xytext=(2, 3), textcoords="offset points", fontsize=8, color="0.3")
    returns.set_xlim(left=0)
    returns.set(title="CartPole-v1 without velocities, recurrent Q", xlabel="environment steps", ylabel="return")
    returns.legend(loc="center left", bbox_to_anchor=(0, 0.75), frameon=False)

    errors.bar(np.arange(BURN_IN, BURN_IN + LENGTH), run.errors, color="#c1440e")
    errors.axvspan(-0.5, BURN_IN - 0.5, color="0.9")
    middle = errors.get_ylim()[1] / 2
    errors.text(BURN_IN / 2 - 0.5, middle, "burn-in", ha="center", va="center", color="0.3", rotation=90)
    errors.set_xlim(-0.5, BURN_IN + LENGTH - 0.5)
    errors.set(title="mean |TD error| in the last batches", xlabel="step of the sequence")
    for axes in (returns, errors):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of networks, environments and draws (default 0)")
    parser.add_argument("--max-steps", type=int, default=20_000, help="steps of each environment (default 20000)")
    parser.add_argument("--short", action="store_true", help="200 steps, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("cartpole_r2d2.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    run = train(arguments.seed, 200 if arguments.short else arguments.max_steps)
    draw_picture(run, arguments.picture)
    if run.solved_at is not None:
        returns = f"{run.evaluations[-1][1]:.0f} on 20 episodes and {run.confirmed:.0f} on 20 others"
        print(f"solved after {run.solved_at:,} steps: mean return {returns}, {run.seconds:.0f} s")
    else:
        print(f"not solved, {run.seconds:.0f} s")
    print(f"picture: {arguments.picture}")
    return 0 if arguments.short or run.solved_at is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
