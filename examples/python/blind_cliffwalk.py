"""The Blind Cliffwalk of Schaul et al. 2016 (arXiv:1511.05952, figures 1 and 2): updates until its values are known.

In each of n states one of two actions moves on and the other ends the episode with nothing; the last right action is
rewarded with 1. The memory holds all 2^n sequences of actions, each until its end: 2^(n+1) - 2 transitions, one of them
rewarded. Q-learning replays one transition at a time, with gamma = 1 - 1/n and a step size of 1/4, until the mean
squared error of all values is below 1e-3 (appendix B.1). The program compares five ways to choose the transition:

    uniform       all equally likely
    greedy        the one with the largest absolute TD error at its last replay (section 3.2)
    rank          P(i) in proportion to 1 / rank(i)^0.7 (section 3.3)
    proportional  P(i) in proportion to |TD error|^0.6
    oracle        the one that brings the values closest to the truth, which no real agent knows

Uniform draws need updates in proportion to the number of transitions, which is exponential in n; the oracle needs
polynomially many. Prioritized replay needs little more than one replay of each transition.
"""

from __future__ import annotations

import argparse
import heapq
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import per

# matplotlib and tqdm are imported where they are used, so that --help needs neither.

STEP_SIZE = 0.25
LEARNED = 1e-3
RANK_ALPHA, PROPORTIONAL_ALPHA = 0.7, 0.6
UNIFORM_DRAWS = 512
FEWEST_STATES = 2


class Memory(NamedTuple):
    """Every transition of every sequence of actions, in a random order of the sequences; arrays [2^(n+1) - 2]."""

    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    next_state: np.ndarray


def right_action(state: np.ndarray) -> np.ndarray:
    """The right action of each state; it alternates, so that no action is right in general."""
    return state % 2


def remember(n_states: int, rng: np.random.Generator) -> Memory:
    sequences = rng.permutation(2**n_states)[:, None]
    states = np.arange(n_states)
    is_right = (sequences >> states & 1).astype(bool)
    is_reached = np.logical_and.accumulate(is_right, axis=1)
    is_reached = np.concatenate([np.ones_like(sequences, dtype=bool), is_reached[:, :-1]], axis=1)
    state = np.broadcast_to(states, is_right.shape)[is_reached]
    moves_on = is_right[is_reached]
    succeeds = moves_on & (state == n_states - 1)
    return Memory(
        state=state,
        action=np.where(moves_on, right_action(state), 1 - right_action(state)),
        reward=succeeds.astype(np.float32),
        terminated=succeeds | ~moves_on,
        next_state=np.where(moves_on, state + 1, n_states),
    )


class Values:
    """Q(s, a), from a table or as a linear function of a one-hot state and a bias for each action."""

    def __init__(self, n_states: int, is_linear: bool, rng: np.random.Generator) -> None:
        self.n_states = n_states
        self.gamma = 1 - 1 / n_states
        self.bias_step = STEP_SIZE if is_linear else 0.0
        self.weights: list[list[float]] = rng.normal(0, 0.1, (n_states, 2)).tolist()
        self.biases: list[float] = rng.normal(0, 0.1, 2).tolist() if is_linear else [0.0, 0.0]
        states = np.arange(n_states)
        self.truth = np.zeros((n_states, 2))
        self.truth[states, right_action(states)] = self.gamma ** (n_states - 1 - states)

    def table(self) -> np.ndarray:
        return np.array(self.weights) + self.biases

    def error(self) -> float:
        return float(((self.table() - self.truth) ** 2).mean())

    def td_error(self, state: int, action: int) -> float:
        """The TD error. The outcome follows from state and action, without a lookup of the transition."""
        goal = 0.0
        if action == state % 2:
            if state == self.n_states - 1:
                goal = 1.0
            else:
                left, right = self.weights[state + 1]
                goal = self.gamma * max(left + self.biases[0], right + self.biases[1])
        return goal - self.weights[state][action] - self.biases[action]

    def learn(self, state: int, action: int) -> float:
        """A step of Q-learning; the TD error before it."""
        td_error = self.td_error(state, action)
        self.weights[state][action] += STEP_SIZE * td_error
        self.biases[action] += self.bias_step * td_error
        return td_error


class Replay(Protocol):
    """Chooses the next transition to replay, and receives its TD error."""

    def draw(self) -> tuple[int, int]: ...

    def learned(self, td_error: float) -> None: ...


def buffer_of(memory: Memory, **options: Any) -> per.ReplayBuffer:
    fields = {"observation": per.Field((), "int32"), "action": per.Field((), "int32")}
    # One row per transition, one for the end of each sequence, and a few extra for the smallest memories.
    buffer = per.ReplayBuffer(len(memory.state) + int(memory.terminated.sum()) + 4, fields, **options)
    buffer.extend(
        observation=memory.state.astype(np.int32),
        action=memory.action.astype(np.int32),
        reward=memory.reward,
        terminated=memory.terminated,
        truncated=np.zeros_like(memory.terminated),
        next_observation=memory.next_state.astype(np.int32),
    )
    return buffer


class Uniform:
    """Draws that do not depend on learning can be made many at a time."""

    def __init__(self, memory: Memory, seed: int) -> None:
        self.buffer = buffer_of(memory, prioritization="uniform", scheme="independent", seed=seed)
        self.drawn: list[tuple[int, int]] = []

    def draw(self) -> tuple[int, int]:
        if not self.drawn:
            batch = self.buffer.sample(UNIFORM_DRAWS)
            self.drawn = list(zip(batch.observation.tolist(), batch.action.tolist(), strict=True))
        return self.drawn.pop()

    def learned(self, td_error: float) -> None:
        pass


class Prioritized:
    """The library's draws. Transitions begin with the largest priority, so that all of them are seen."""

    def __init__(self, memory: Memory, seed: int, prioritization: str, alpha: float) -> None:
        self.buffer = buffer_of(memory, prioritization=prioritization, alpha=alpha, seed=seed)
        self.batch = self.buffer.sample(1)
        self.td_errors = np.empty(1, np.float32)

    def draw(self) -> tuple[int, int]:
        self.buffer.sample(1, out=self.batch)
        return self.batch.observation.item(), self.batch.action.item()

    def learned(self, td_error: float) -> None:
        self.td_errors[0] = td_error
        self.buffer.update_priorities(self.batch.ids, self.td_errors)


class Greedy:
    """A heap of all transitions by their latest TD error; initially all rank above any TD error."""

    def __init__(self, memory: Memory) -> None:
        pairs = zip(memory.state.tolist(), memory.action.tolist(), strict=True)
        self.heap = [(-np.inf, place, pair) for place, pair in enumerate(pairs)]  # sorted, and so a heap

    def draw(self) -> tuple[int, int]:
        return self.heap[0][2]

    def learned(self, td_error: float) -> None:
        _, place, pair = self.heap[0]
        heapq.heapreplace(self.heap, (-abs(td_error), place, pair))


class Oracle:
    """Computes the remaining error after each possible update, once for equal transitions."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def steps(self) -> np.ndarray:
        """The change of value by an update of each state and action, [n, 2]."""
        values = self.values
        td_errors = [[values.td_error(state, action) for action in range(2)] for state in range(values.n_states)]
        return STEP_SIZE * np.array(td_errors)

    def changes(self, steps: np.ndarray) -> np.ndarray:
        """The change of the sum of squared errors by each step, [n, 2]."""
        errors = self.values.table() - self.values.truth
        if not self.values.bias_step:
            return steps * (2 * errors + steps)
        # The bias moves all values of the action by the step; the state's weight moves its value by another step.
        return steps * (2 * errors.sum(axis=0) + len(steps) * steps) + steps * (2 * errors + 3 * steps)

    def draw(self) -> tuple[int, int]:
        steps = self.steps()
        changes = self.changes(steps)
        best = int(changes.argmin())
        if changes.flat[best] > -1e-9:
            # With linear values there are dead ends, where no single update brings them closer to the truth.
            best = int(np.abs(steps).argmax())
        return divmod(best, 2)

    def learned(self, td_error: float) -> None:
        pass


METHODS = ("uniform", "greedy", "rank", "proportional", "oracle")
KINDS = ("table", "linear")


def replay_of(method: str, memory: Memory, values: Values, seed: int) -> Replay:
    if method == "uniform":
        return Uniform(memory, seed)
    if method == "greedy":
        return Greedy(memory)
    if method == "oracle":
        return Oracle(values)
    return Prioritized(memory, seed, method, RANK_ALPHA if method == "rank" else PROPORTIONAL_ALPHA)


def updates_to_learn(replay: Replay, values: Values) -> int:
    """Checks the error after each update at first, later after every further 0.1 % of updates."""
    updates = next_look = 0
    while True:
        if updates >= next_look:
            if values.error() < LEARNED:
                return updates
            next_look = updates + 1 + updates // 1000
        replay.learned(values.learn(*replay.draw()))
        updates += 1


Results = dict[tuple[str, str], dict[int, list[int]]]  # [kind, method][n_states]: updates of each run


def run_all(most_states: int, runs: int, seed: int) -> Results:
    from tqdm import tqdm

    results: Results = {(kind, method): {} for kind in KINDS for method in METHODS}
    sizes = range(FEWEST_STATES, most_states + 1)
    with tqdm(total=sum(2**n for n in sizes) * runs * len(results), mininterval=0.5) as bar:
        for n_states in sizes:
            for run in range(runs):
                rng = np.random.default_rng([seed, n_states, run])
                memory = remember(n_states, rng)
                for kind, method in results:
                    values = Values(n_states, kind == "linear", np.random.default_rng([seed, n_states, run, 1]))
                    replay = replay_of(method, memory, values, seed=1000 * seed + run)
                    bar.set_postfix_str(f"n {n_states}, {kind}, {method}")
                    results[kind, method].setdefault(n_states, []).append(updates_to_learn(replay, values))
                    bar.update(2**n_states)
    return results


COLORS = {"uniform": "0.15", "greedy": "#8e6c8a", "rank": "#c1440e", "proportional": "#4a6fa5", "oracle": "#2ca9b7"}


def transitions(n_states: np.ndarray) -> np.ndarray:
    return 2.0 ** (n_states + 1) - 2


def growth(counts: dict[int, list[int]]) -> float:
    """Exponent k of updates ~ transitions^k, fitted to the medians of the upper half of the sizes."""
    sizes = np.array(list(counts))[len(counts) // 2 :]
    medians = [np.median(counts[n]) for n in sizes]
    return float(np.polyfit(np.log(transitions(sizes)), np.log(medians), 1)[0])


def draw_picture(results: Results, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8))
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"table": "values in a table", "linear": "linear values, with a bias"}
    for axes, kind in zip(panels, KINDS, strict=True):
        for method in METHODS:
            counts = results[kind, method]
            x = transitions(np.array(list(counts)))
            runs = np.array(list(counts.values()))
            axes.plot(x, np.median(runs, axis=1), color=COLORS[method], linewidth=2, label=method)
            for extreme in (runs.min(axis=1), runs.max(axis=1)):
                axes.plot(x, extreme, color=COLORS[method], linewidth=0.7, alpha=0.4)
        axes.plot(x, x, color="0.6", linestyle=":", linewidth=1)
        axes.annotate("each once", (x[0], x[0]), xytext=(12, 2), textcoords="offset points", fontsize=8, color="0.4")
        axes.set(xscale="log", yscale="log", xlabel="transitions in the memory", title=titles[kind])
        above = axes.secondary_xaxis("top")
        above.set_xticks(x, labels=[f"{n}" if n % 2 == 0 else "" for n in counts])
        above.set_xticks([], minor=True)
        above.set_xlabel("states n", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("updates until values are known (error below 0.001)")
    panels[0].legend(frameon=False, loc="upper left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def print_table(results: Results) -> None:
    for (kind, method), counts in results.items():
        n_states = max(counts)
        median = np.median(counts[n_states])
        print(
            f"{kind:>6} {method:>12}: median of {median:>11,.0f} updates for n = {n_states}, "
            f"growing as transitions^{growth(counts):.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of memories, first values and draws (default 0)")
    parser.add_argument("--states", type=int, default=16, help="largest n, at least 5 (default 16)")
    parser.add_argument("--runs", type=int, default=10, help="of each size and method (default 10)")
    parser.add_argument("--short", action="store_true", help="3 runs up to n = 8, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("blind_cliffwalk.png"), help="where the picture goes")
    arguments = parser.parse_args()

    start = time.perf_counter()
    most_states, runs = (8, 3) if arguments.short else (arguments.states, arguments.runs)
    results = run_all(most_states, runs, arguments.seed)
    draw_picture(results, arguments.picture)
    print_table(results)
    print(f"{time.perf_counter() - start:.0f} s; picture: {arguments.picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
