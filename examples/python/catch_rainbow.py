"""A Rainbow-like DQN on images: double and dueling Q-learning from prioritized 3-step returns and stacks of 4 frames.

The program renders the task itself, 84 x 84 bytes per frame: a ball falls, straight or diagonally, and bounces off the
walls, and a paddle must be under it when it lands. One frame does not show the direction of the ball; a stack does. The
agent has these parts of Rainbow (Hessel et al. 2018, arXiv:1710.02298): prioritized replay with annealed beta, n-step
returns, double Q-learning and dueling networks, but no noisy layers or value distributions.

The buffer stores each frame once; stacks and returns are formed when a batch is drawn. Training stops when 95 of 100
balls are caught without exploration.
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

SOLVED = 0.95
EVALUATION_EPISODES = 100
EVALUATE_EVERY = 1000
N_ENVS = 8
STACK = 4
N_STEP = 3
CAPACITY = 20_000
BATCH_SIZE = 32
STEPS_PER_UPDATE = 4
WARM_UP = 1000
EXPLORATION_STEPS = 8000
LEARNING_RATE = 5e-4
TARGET_RATE = 0.01


class Catch(gymnasium.Env):
    """A ball falls through 12 rows of 12 cells; a paddle of 3 cells moves by one cell a step. Reward 1 or -1."""

    CELLS = 12
    PIXELS = 7

    def __init__(self) -> None:
        side = self.CELLS * self.PIXELS
        self.observation_space = gymnasium.spaces.Box(0, 255, (side, side), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.row = self.column = self.direction = self.paddle = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.row = 0
        self.column = int(self.np_random.integers(self.CELLS))
        self.direction = int(self.np_random.integers(-1, 2))
        self.paddle = int(self.np_random.integers(1, self.CELLS - 1))
        return self.frame(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.paddle = min(max(self.paddle + int(action) - 1, 1), self.CELLS - 2)
        if not 0 <= self.column + self.direction < self.CELLS:
            self.direction = -self.direction
        self.column += self.direction
        self.row += 1
        landed = self.row == self.CELLS - 1
        caught = abs(self.column - self.paddle) <= 1
        return self.frame(), (1.0 if caught else -1.0) if landed else 0.0, landed, False, {}

    def frame(self) -> np.ndarray:
        cells = np.zeros((self.CELLS, self.CELLS), np.uint8)
        cells[-1, self.paddle - 1 : self.paddle + 2] = 128
        cells[self.row, self.column] = 255
        return cells.repeat(self.PIXELS, axis=0).repeat(self.PIXELS, axis=1)


class DuelingNetwork(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean A(s, .) of a stack of frames [B, 4, 84, 84] in bytes."""

    def __init__(self, n_actions: int, width: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(STACK, 16, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 9 * 9, width),
            nn.ReLU(),
        )
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, n_actions)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        features = self.body(frames.float() / 255)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(dim=-1, keepdim=True)


class FrameStack:
    """The last 4 frames of each environment, oldest first, as the agent sees them while it plays."""

    def __init__(self, frames: np.ndarray) -> None:
        self.frames = np.repeat(frames[:, None], STACK, axis=1)

    def push(self, frames: np.ndarray, begins: np.ndarray) -> None:
        """begins: True where an episode begins with this frame, which then also fills the earlier frames."""
        self.frames = np.concatenate([self.frames[:, 1:], frames[:, None]], axis=1)
        self.frames[begins] = frames[begins, None]


def choose(network: DuelingNetwork, frames: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network(torch.from_numpy(frames)).argmax(dim=1).numpy()


def catch_rate(network: DuelingNetwork, seed: int) -> float:
    """Share of 100 balls that the greedy policy catches."""
    balls = [Catch() for _ in range(EVALUATION_EPISODES)]
    stack = FrameStack(np.stack([ball.reset(seed=seed + i)[0] for i, ball in enumerate(balls)]))
    never = np.zeros(len(balls), dtype=bool)
    for _ in range(Catch.CELLS - 1):
        actions = choose(network, stack.frames)
        frames, rewards, *_ = zip(
            *(ball.step(action) for ball, action in zip(balls, actions, strict=True)), strict=True
        )
        stack.push(np.stack(frames), never)
    return float(np.mean(np.array(rewards) > 0))


@dataclass
class Run:
    """The training record."""

    training_rates: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    solved_at: int | None = None
    seconds: float = 0.0
    priorities_by_row: list[np.ndarray] = field(default_factory=list)
    examples: list[np.ndarray] = field(default_factory=list)


class Learner:
    """Online and target network, and one step of learning from a batch."""

    def __init__(self, n_actions: int) -> None:
        self.online = DuelingNetwork(n_actions)
        self.target = DuelingNetwork(n_actions)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE)

    def learn(self, batch: per.Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the TD errors [B]."""
        with torch.no_grad():
            best = self.online(batch.next_observation).argmax(dim=1, keepdim=True)
            bootstrap = self.target(batch.next_observation).gather(1, best).squeeze(1)
            goal = batch.reward + batch.discount * bootstrap
        value = self.online(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = (batch.weights * nn.functional.smooth_l1_loss(value, goal, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), TARGET_RATE)
        return loss.detach(), goal - value.detach()


def naive_bytes(buffer: per.ReplayBuffer) -> int:
    """The memory of the same rows if each stored its stack of frames and the next stack."""
    frame = int(np.prod(buffer.fields["observation"].value_shape))
    return buffer.stats().memory_bytes + (2 * STACK - 1) * frame * buffer.capacity


def print_memory(buffer: per.ReplayBuffer) -> None:
    stored, naive = buffer.stats().memory_bytes, naive_bytes(buffer)
    print(
        f"buffer: {buffer.capacity:,} rows of {stored / buffer.capacity:,.0f} bytes, {stored / 1e6:,.0f} MB; "
        f"{naive / buffer.capacity:,.0f} bytes and {naive / 1e6:,.0f} MB if each kept both its stacks"
    )


class Player:
    """Plays several environments in parallel and adds their steps to the buffer."""

    def __init__(self, seed: int) -> None:
        self.environments = gymnasium.vector.SyncVectorEnv([Catch] * N_ENVS)
        self.observation, _ = self.environments.reset(seed=seed)
        self.stack = FrameStack(self.observation)
        self.begins = np.zeros(N_ENVS, dtype=bool)
        self.rng = np.random.default_rng(seed)
        self.caught: list[bool] = []

    def step(self, network: DuelingNetwork, exploration: float, buffer: per.ReplayBuffer) -> None:
        action = choose(network, self.stack.frames)
        explores = self.rng.random(N_ENVS) < exploration
        action = np.where(explores, self.rng.integers(3, size=N_ENVS), action)
        following, reward, terminated, truncated, _ = self.environments.step(action)
        buffer.add(
            observation=self.observation,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=following,
        )
        self.caught.extend(reward[terminated] > 0)
        # An environment resets in the step after an end; the buffer skips that step.
        self.stack.push(following, self.begins)
        self.observation, self.begins = following, terminated | truncated


def train(seed: int, max_steps: int, capacity: int) -> Run:
    """Trains until the task is solved or `max_steps` environment steps are done."""
    torch.manual_seed(seed)
    player = Player(seed)
    buffer = per.ReplayBuffer.for_env(
        player.environments,
        capacity,
        frame_stack=STACK,
        n_step=N_STEP,
        gamma=0.97,
        alpha=0.5,
        beta=0.4,
        beta_steps=max_steps // STEPS_PER_UPDATE,
        arrays="torch",
        seed=seed,
    )
    print_memory(buffer)
    learner = Learner(gymnasium.spaces.flatdim(player.environments.single_action_space))
    run = Run()
    start = time.perf_counter()
    losses: list[float] = []
    with tqdm(total=max_steps, unit="step", mininterval=0.5) as bar:
        for step in range(N_ENVS, max_steps + 1, N_ENVS):
            player.step(learner.online, max(0.02, 1 - step / EXPLORATION_STEPS), buffer)
            bar.update(N_ENVS)
            if step <= WARM_UP:
                continue
            for _ in range(N_ENVS // STEPS_PER_UPDATE):
                batch = buffer.sample(BATCH_SIZE)
                loss, td_errors = learner.learn(batch)
                buffer.update_priorities(batch.ids, td_errors)
                losses.append(float(loss))
            if step % 200 == 0:
                rate, mean_loss = float(np.mean(player.caught[-200:])), float(np.mean(losses))
                run.training_rates.append((step, rate))
                bar.set_postfix_str(f"caught {rate:.2f}, loss {mean_loss:.4f}, beta {buffer.beta:.2f}")
                losses.clear()
            if step % EVALUATE_EVERY == 0:
                run.evaluations.append((step, catch_rate(learner.online, seed=1000 * (seed + 1))))
                if run.evaluations[-1][1] >= SOLVED:
                    run.solved_at = step
                    break
    run.seconds = time.perf_counter() - start
    look_at_priorities(buffer, run)
    player.environments.close()
    return run


def look_at_priorities(buffer: per.ReplayBuffer, run: Run) -> None:
    """Number of draws by the row of the ball, and the stack of the transition drawn most often."""
    batch = buffer.sample(min(512, len(buffer)), prioritization="uniform", beta=0.0)
    frames = batch.observation.numpy()
    rows = frames[:, -1].reshape(len(frames), -1).argmax(axis=1) // frames.shape[-1] // Catch.PIXELS
    chances = batch.priorities.numpy() ** buffer.alpha
    chances /= chances.mean()
    run.priorities_by_row = [chances[rows == row] for row in range(Catch.CELLS - 1)]
    run.examples = list(frames[chances.argmax()])


def draw_picture(run: Run, path: Path) -> None:
    figure = plt.figure(figsize=(13, 3.9))
    left, middle, right = figure.subfigures(1, 3, squeeze=False, width_ratios=(1.7, 1, 1.1))[0]
    rates = left.subplots()
    left.subplots_adjust(left=0.11, right=0.97, bottom=0.14, top=0.9)
    rates.plot(*zip(*run.training_rates, strict=True), color="#4a6fa5", label="last 200 while training")
    if run.evaluations:
        rates.plot(*zip(*run.evaluations, strict=True), "o-", color="#c1440e", markersize=4, label="greedy, 100 balls")
    rates.axhline(SOLVED, color="0.4", linestyle=":", linewidth=1)
    rates.annotate("solved", (0, SOLVED), xytext=(2, 3), textcoords="offset points", fontsize=8, color="0.3")
    rates.set_xlim(left=0)
    rates.set(title="Catch, share of balls caught", xlabel="environment steps", ylim=(0, 1.05))
    rates.legend(loc="lower right", frameon=False)

    chances = middle.subplots()
    middle.subplots_adjust(left=0.19, right=0.95, bottom=0.14, top=0.9)
    heights = [chance.mean() if chance.size else 0.0 for chance in run.priorities_by_row]
    chances.barh(np.arange(len(heights)), heights, color="#c1440e")
    chances.axvline(1, color="0.4", linestyle=":", linewidth=1)
    chances.invert_yaxis()
    chances.set(title="drawn how often", xlabel="times as often as uniformly", ylabel="row that the ball is in")

    right.suptitle("a stack of 4 frames in a batch", fontsize="large", y=0.965)
    strip = right.subplots(2, 2)
    right.subplots_adjust(left=0.05, right=0.95, bottom=0.04, top=0.88, hspace=0.12, wspace=0.04)
    for axes, frame, age in zip(strip.flat, run.examples, range(STACK - 1, -1, -1), strict=True):
        axes.imshow(frame, cmap="gray", vmin=0, vmax=255)
        axes.set_title("newest" if age == 0 else f"{age} before", fontsize=8, pad=3)
        axes.set(xticks=[], yticks=[])
    for axes in (rates, chances):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of networks, balls and draws (default 0)")
    parser.add_argument("--max-steps", type=int, default=60_000, help="environment steps (default 60000)")
    parser.add_argument("--short", action="store_true", help="1600 steps and a small buffer, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("catch_rainbow.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    max_steps, capacity = (1600, 2000) if arguments.short else (arguments.max_steps, CAPACITY)
    run = train(arguments.seed, max_steps, capacity)
    draw_picture(run, arguments.picture)
    if run.solved_at is not None:
        share = f"{run.evaluations[-1][1]:.2f} of {EVALUATION_EPISODES} balls caught"
        print(f"solved after {run.solved_at:,} steps: {share}, {run.seconds:.0f} s")
    else:
        print(f"not solved, {run.seconds:.0f} s")
    print(f"picture: {arguments.picture}")
    return 0 if arguments.short or run.solved_at is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
