"""GRPO on a small transformer that learns to sort digits: on-policy, and with groups of answers replayed.

A prompt has 4 digits, and an answer is their sorted sequence. The reward of an answer is the share of digits in their
places. A few supervised steps teach the network to sort a tenth of the prompts. Then all agents learn by GRPO (Shao et
al. 2024, arXiv:2402.03300): 8 answers to a prompt form a group, whose rewards are compared with their mean, and the
ratio of probabilities is clipped as in PPO, with the log-probabilities of the policy that generated the answers.

per.llm.Groups holds the groups. The on-policy agents learn from each group once, in batches of 8 or of 32. The others
generate 8 groups for each update, as the first one does, but learn from 32: from those generated in the last 16
updates, each at most 8 times. They draw uniformly, or by priority and freshness: the priority of a group is the
standard deviation of its rewards, and halves with every 4 updates of age. The measure is the number of updates, and of
generated tokens, until 90 % of 500 other prompts are sorted greedily.

Agents of a pair begin with the same network, and differ in what they learn from.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
import per
import per.llm
import torch
from rare_reward import sign_test
from torch import nn
from torch.nn import functional
from tqdm import tqdm

matplotlib.use("Agg")
from matplotlib import pyplot as plt

N_DIGITS = 4
SEPARATOR = 10
WIDTH, HEADS, LAYERS = 48, 4, 2
GROUP_SIZE = 8
BEGINNER_RATE, LEARNING_RATE = 1e-3, 5e-4
CLIP = 0.2
SORTED_AT_FIRST, SORTED_AT_LAST = 0.1, 0.9
EVALUATE_EVERY = 10
FIELDS = {
    "prompt": per.Field(N_DIGITS, "int8"),
    "answer": per.Field(N_DIGITS, "int8"),
    "logprobs": per.Field(N_DIGITS, "float32"),
}


@dataclass
class Agent:
    generated: int = 8  # groups for each update
    drawn: int = 8  # groups to learn from in each update
    by_reward: bool = False  # whether priorities are standard deviations of rewards
    options: dict[str, Any] = field(default_factory=dict)


REPLAY: dict[str, Any] = {"max_age": 16, "uses": 8, "order": "priority"}
AGENTS = {
    "on-policy": Agent(),
    "on-policy, 32 groups": Agent(generated=32, drawn=32),
    "replay, uniform": Agent(drawn=32, options=REPLAY),
    "replay, by priority": Agent(drawn=32, by_reward=True, options={**REPLAY, "half_life": 4.0}),
}
REPLAYED = "replay, by priority"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.queries(self.first(x)).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, n, WIDTH))
        return cast("torch.Tensor", x + self.down(functional.gelu(self.up(self.second(x)))))


class Policy(nn.Module):
    """A causal transformer: logits of the next digit after each token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, WIDTH), nn.Embedding(2 * N_DIGITS + 1, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return cast("torch.Tensor", self.head(self.norm(x)))

    @torch.no_grad()
    def answer(self, prompts: torch.Tensor, random: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Answers and their log-probabilities, [n, N_DIGITS]; the most likely digits without `random`."""
        tokens, logprobs = with_separator(prompts), []
        for _ in range(N_DIGITS):
            each = functional.log_softmax(self(tokens)[:, -1], -1)
            digit = each.argmax(-1, True) if random is None else torch.multinomial(each.exp(), 1, generator=random)
            logprobs.append(each.gather(1, digit))
            tokens = torch.cat([tokens, digit], 1)
        return tokens[:, -N_DIGITS:], torch.cat(logprobs, 1)

    def logprobs(self, prompts: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        logits = self(torch.cat([with_separator(prompts), answers[:, :-1]], 1))[:, N_DIGITS:]
        return functional.log_softmax(logits, -1).gather(2, answers[..., None])[..., 0]

    def share_sorted(self, prompts: torch.Tensor) -> float:
        return float((self.answer(prompts)[0] == sorted_digits(prompts)).all(1).float().mean())


def with_separator(prompts: torch.Tensor) -> torch.Tensor:
    return torch.cat([prompts, torch.full((len(prompts), 1), SEPARATOR)], 1)


def sorted_digits(prompts: torch.Tensor) -> torch.Tensor:
    return prompts.sort(1).values


def new_prompts(random: np.random.Generator, n: int) -> torch.Tensor:
    return torch.from_numpy(random.integers(0, 10, (n, N_DIGITS)))


TEST = new_prompts(np.random.default_rng(1_000_000), 500)


def beginner(seed: int) -> Policy:
    """A network that sorts a tenth of the prompts."""
    torch.manual_seed(seed)
    random, policy = np.random.default_rng(seed), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), BEGINNER_RATE)
    while policy.share_sorted(TEST) < SORTED_AT_FIRST:
        for _ in range(5):
            prompts = new_prompts(random, 32)
            step(optimizer, -policy.logprobs(prompts, sorted_digits(prompts)).mean())
    return policy


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


class Trainer:
    """Generates groups of answers, and learns from those that the ledger draws."""

    def __init__(self, agent: Agent, seed: int) -> None:
        self.agent, self.policy = agent, beginner(seed)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), LEARNING_RATE)
        self.prompts, self.answers = np.random.default_rng([seed, 1]), torch.Generator().manual_seed(seed)
        capacity = agent.generated * (agent.options.get("max_age", 0) + 2)
        self.groups: per.llm.Groups[torch.Tensor] = per.llm.Groups(
            GROUP_SIZE, FIELDS, capacity=capacity, seed=seed, arrays="torch", **agent.options
        )

    def generate(self) -> None:
        ids = self.groups.reserve(self.agent.generated)
        prompts = new_prompts(self.prompts, len(ids)).repeat_interleave(GROUP_SIZE, 0)
        answers, logprobs = self.policy.answer(prompts, self.answers)
        rewards = (answers == sorted_digits(prompts)).float().mean(1)
        if self.agent.by_reward:
            self.groups.update_priorities(ids, rewards.view(-1, GROUP_SIZE).std(1) + 1e-3)
        for row, reward in enumerate(rewards.tolist()):
            group, member = ids[row // GROUP_SIZE], row % GROUP_SIZE
            self.groups.close(group, member, reward, prompt=prompts[row], answer=answers[row], logprobs=logprobs[row])

    def learn(self) -> None:
        lease = self.groups.sample(min(self.agent.drawn, self.groups.counts().sealed))
        reward = lease.batch.reward
        advantages = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
        prompts, answers = (lease.batch[name].flatten(0, 1).long() for name in ("prompt", "answer"))
        ratio = (self.policy.logprobs(prompts, answers) - lease.batch["logprobs"].flatten(0, 1)).exp()
        gain = advantages.flatten()[:, None]
        step(self.optimizer, -torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean())
        self.groups.ack(lease, version=self.groups.version + 1)


def curve_of(agent: Agent, seed: int, n_updates: int, bar: tqdm[Any]) -> list[float]:
    """The shares of sorted prompts, at first and after every 10 updates, until it is 90 %."""
    trainer = Trainer(agent, seed)
    curve = [trainer.policy.share_sorted(TEST)]
    for update in range(1, n_updates + 1):
        trainer.generate()
        trainer.learn()
        if update % EVALUATE_EVERY == 0:
            curve.append(trainer.policy.share_sorted(TEST))
            bar.set_postfix_str(f"{curve[-1]:.0%} sorted")
            if curve[-1] >= SORTED_AT_LAST:
                bar.update(n_updates - update + 1)
                break
        bar.update()
    return curve


def updates_of(curve: list[float]) -> float:
    return EVALUATE_EVERY * (len(curve) - 1) if curve[-1] >= SORTED_AT_LAST else math.inf


def tokens_of(agent: Agent, updates: float) -> float:
    return updates * agent.generated * GROUP_SIZE * N_DIGITS


COLORS = dict(zip(AGENTS, ("#4a6fa5", "#8fb3dd", "#e0a458", "#c1440e"), strict=True))


def draw_picture(curves: dict[str, list[list[float]]], path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for axes, unit in zip(panels, ("updates", "generated tokens"), strict=True):
        for name, runs in curves.items():
            for number, curve in enumerate(runs):
                updates = [EVALUATE_EVERY * i for i in range(len(curve))]
                x = updates if unit == "updates" else [tokens_of(AGENTS[name], each) for each in updates]
                axes.plot(x, curve, color=COLORS[name], alpha=0.6, linewidth=1, label=None if number else name)
        axes.axhline(SORTED_AT_LAST, color="0.4", linestyle=":", linewidth=1)
        axes.set(xlabel=unit, ylim=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="prompts sorted")
    panels[0].legend(loc="lower right", frameon=False, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first pair (default 0)")
    parser.add_argument("--pairs", type=int, default=2, help="how many agents of each kind (default 2)")
    parser.add_argument("--updates", type=int, default=600, help="at most (default 600)")
    parser.add_argument("--short", action="store_true", help="1 pair and 20 updates, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("sorting_grpo.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    n_pairs, n_updates = (1, 20) if arguments.short else (arguments.pairs, arguments.updates)
    curves: dict[str, list[list[float]]] = {name: [] for name in AGENTS}
    with tqdm(total=n_pairs * len(AGENTS) * n_updates, smoothing=0) as bar:
        for seed in range(arguments.seed, arguments.seed + n_pairs):
            for name, agent in AGENTS.items():
                bar.set_description(f"seed {seed}, {name}")
                curves[name].append(curve_of(agent, seed, n_updates, bar))
    draw_picture(curves, arguments.picture)
    needed = {name: [updates_of(curve) for curve in runs] for name, runs in curves.items()}
    for name, updates in needed.items():
        median = statistics.median(updates)
        tokens = tokens_of(AGENTS[name], median)
        print(f"{name:>20}: median of {median:g} updates, {tokens:,.0f} tokens; updates of each: {updates}")
    for name in [*AGENTS][:-1]:
        for unit in ("updates", "tokens"):
            mine, other = (
                np.array([n if unit == "updates" else tokens_of(AGENTS[each], n) for n in needed[each]])
                for each in (REPLAYED, name)
            )
            fewer, more = int((mine < other).sum()), int((mine > other).sum())
            p = sign_test(mine, other)
            print(f"{REPLAYED}, beside {name}: fewer {unit} in {fewer} pairs, more in {more}, p = {p:.2g}")
    print(f"picture: {arguments.picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
