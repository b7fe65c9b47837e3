"""Checks of draws and of their weights."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import scenes
from contract import Array, Batch, Library, NotClaimed, Options, check, expect, not_claimed

PAPER = "Schaul et al. 2016, arXiv:1511.05952"


def chi_square_limit(n_classes: int) -> float:
    """Exceeded by the chi-square of n_classes classes with probability below 1e-6 (Wilson and Hilferty 1931)."""
    n = n_classes - 1
    return n * (1 - 2 / (9 * n) + 4.7534 * (2 / (9 * n)) ** 0.5) ** 3


def expect_shares(steps: Array, shares: Array) -> None:
    """Expects steps 0, 1, ... drawn in proportion to shares. Needs about five draws of each, or more."""
    counts = np.bincount(steps, minlength=len(shares))
    expected = shares / shares.sum() * counts.sum()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    limit = chi_square_limit(len(shares))
    worst = int(np.argmax(np.abs(counts - expected) / expected**0.5))
    expect(
        chi_square < limit,
        f"chi-square {chi_square:.0f}, limit {limit:.0f} for {len(shares) - 1} degrees of freedom\n"
        f"of {counts.sum()} draws, step {worst} has {counts[worst]}, expected {expected[worst]:.1f}",
    )


def weights_of(batch: Batch) -> Array:
    """The weights of a batch in float64."""
    if batch.weights is None:
        not_claimed("batches have no weights")
    return np.asarray(batch.weights, np.float64).reshape(-1)


@check("law", f"{PAPER}, equation 1")
def draws_follow_equation_1(library: Library) -> None:
    """P(i) = p_i^alpha / sum_k p_k^alpha: 32,000 draws of 64 transitions, chi-square, false alarms 1e-6."""
    options = Options(capacity=64, batch_size=32, alpha=0.6)
    priorities = np.arange(1, 65, dtype=np.float64)
    buffer = scenes.filled(library, options, 64, priorities)
    expect_shares(scenes.drawn(buffer, 1000), priorities**0.6)


@check("law", f"{PAPER}, equation 1: a priority of 0 has probability 0")
def priority_0_is_never_drawn(library: Library) -> None:
    """A transition of priority 0 is never drawn while others have a positive one: 9,600 draws of 64 transitions, of
    which every second has priority 1e-8. Only ratios count in equation 1; small priorities show what is added to 0."""
    if library.epsilon:
        not_claimed(f"adds {library.epsilon:.2g} to every priority, as section 3.3 does")
    options = Options(capacity=64, alpha=0.6)
    buffer = scenes.filled(library, options, 64, [1e-8 * (t % 2) for t in range(64)])
    steps = scenes.drawn(buffer, 300)
    expect((steps % 2 == 1).all(), f"{(steps % 2 == 0).sum()} of {steps.size} draws have priority 0")


@check("law", f"{PAPER}, equation 1: a positive priority has a positive probability")
def every_positive_priority_is_drawn(library: Library) -> None:
    """All transitions, of priorities from 1 to 1e12, are drawn within 300 batches of 32. Drawn ones get priority 1e-3
    (alpha = 1), so the largest of the others nearly always comes next; false alarms far below 1e-6."""
    priorities = 10 ** (np.arange(64) * 12 / 63)
    buffer = scenes.filled(library, Options(capacity=64, alpha=1.0), 64, priorities)
    left = set(range(64))
    for _ in range(300):
        batch = buffer.sample()
        left -= set(batch.steps().tolist())
        if not left:
            return
        buffer.update(batch.handle, np.full(32, 1e-3))
    first = min(left)
    share = priorities[first] / (priorities[list(left)].sum() + 1e-3 * (64 - len(left)))
    expect(
        False,
        f"{len(left)} of 64 transitions were not drawn in 300 batches of 32, among them one\n"
        f"of priority {priorities[first]:.3g}, whose probability was {share:.2g} or more in each of the last draws",
    )


@check("law", f"{PAPER}, equation 1, which holds whatever priorities were before")
def no_drift_after_many_updates(library: Library) -> str:
    """Transitions get priorities from 1 to 1e12 in as many updates as fit into 4 s, at most 1e7. Then 300 batches of 64
    set the final ones: 1, 2, and 1e-6 for the 62 others. At least 99 % of the next 9,600 draws are of the first two,
    in this ratio (alpha = 1; within 6 standard deviations, false alarms 1e-6)."""
    buffer = scenes.filled(library, Options(capacity=64, batch_size=64, alpha=1.0), 64, np.ones(64))
    random = np.random.default_rng(1)
    buffer.update(buffer.sample().handle, np.ones(64))  # the first may take long
    updates, until = 0, time.monotonic() + 4
    while updates < 10**7 and time.monotonic() < until:
        buffer.update(buffer.sample().handle, 10 ** random.uniform(0, 12, 64))
        updates += 64
    last = np.where(np.arange(64) == 20, 1.0, np.where(np.arange(64) == 41, 2.0, 1e-6))
    for _ in range(300):
        batch = buffer.sample()
        buffer.update(batch.handle, last[batch.steps()])
    after = f"after {updates:,} updates of priorities from 1 to 1e12"
    steps = scenes.drawn(buffer, 150)
    ones, twos = int((steps == 20).sum()), int((steps == 41).sum())
    others = steps.size - ones - twos
    expect(
        others <= steps.size / 100, f"{after}, {others} of {steps.size} draws are of priority 1e-6, others have 1 and 2"
    )
    deviation = (ones - (ones + twos) / 3) / (max(ones + twos, 1) * 2 / 9) ** 0.5
    expect(abs(deviation) < 6, f"{after}, {ones} draws of priority 1, {twos} of 2: {deviation:.1f} standard deviations")
    return f"{updates:,} updates"


@check("law", f"{PAPER}, section 3.4")
def weights_follow_section_3_4(library: Library) -> None:
    """w_i is proportional to P(i)^-beta: ratios of weights within a batch, beta = 0.4, to 1e-3."""
    options = Options(capacity=64, alpha=0.6, beta=0.4)
    priorities = np.arange(1, 65, dtype=np.float64)
    batch = scenes.filled(library, options, 64, priorities).sample()
    product = weights_of(batch) * priorities[batch.steps()] ** (0.6 * 0.4)
    spread = product.max() / product.min() - 1
    expect(spread < 1e-3, f"weights times P^beta differ by {100 * spread:.2g} % within a batch; they must be constant")


@check("law", f"{PAPER}, section 3.4: weights are normalised by 1 / max w, so that they only scale downwards")
def weights_are_at_most_1(library: Library) -> None:
    """No weight exceeds 1 in 20 batches. After each batch its transitions get new priorities, from 1e-3 to 1e3. The
    library may normalise by the maximum of the batch or of the buffer."""
    buffer = scenes.filled(library, Options(capacity=64, alpha=0.6, beta=0.4), 64, np.arange(1, 65))
    random = np.random.default_rng(1)
    for number in range(20):
        batch = buffer.sample()
        largest = weights_of(batch).max()
        expect(largest < 1 + 1e-5, f"batch {number} has a weight of {largest:.4g}")
        buffer.update(batch.handle, 10 ** random.uniform(-3, 3, 32))


@check("law", f"{PAPER}, section 3.4: beta is annealed linearly from its first value to 1")
def beta_rises_linearly_to_1(library: Library) -> None:
    """With beta = 0.4 and 20 batches until it is 1, the exponent of the weights is on the line to a step of it, so that
    the first batch may count as the first or as the zeroth, and 1 to 1e-3 from batch 21 to batch 25."""
    options = Options(capacity=64, alpha=0.6, beta=0.4, beta_steps=20)
    priorities = np.arange(1, 65, dtype=np.float64)
    buffer = scenes.filled(library, options, 64, priorities)
    for number in range(26):
        batch = buffer.sample()
        masses = priorities[batch.steps()] ** 0.6
        beta = -np.polyfit(np.log(masses), np.log(weights_of(batch)), 1)[0]
        line = 0.4 + 0.6 * min(number / 20, 1)
        slack = 1e-3 + (0.03 if number <= 20 else 0)
        expect(
            abs(beta - line) <= slack, f"batch {number} has weights of exponent {beta:.4f}, on the line is {line:.4f}"
        )


@check("law", f"{PAPER}, algorithm 1, lines 8 to 13: a loop sets the priorities of a batch one after the other")
def last_of_equal_indices_wins(library: Library) -> None:
    """If one update names a transition several times, its last priority counts: each of 4 transitions is in a batch of
    32 several times; of the 32 priorities only the last of one transition is 1, and only the last ones of the others
    are 1e-9. At least 99 % of 1,920 draws are of that one (alpha = 1)."""
    buffer = scenes.filled(library, Options(capacity=64, alpha=1.0), 4, np.ones(4))
    batch = buffer.sample()
    steps = batch.steps()
    chosen = int(np.bincount(steps).argmax())
    priorities = np.where(steps == chosen, 1e-9, 1.0)
    for step in set(steps.tolist()):
        priorities[np.flatnonzero(steps == step)[-1]] = 1.0 if step == chosen else 1e-9
    buffer.set_all(np.full(4, 1e-9))
    buffer.update(batch.handle, priorities)
    share = float((scenes.drawn(buffer, 60) == chosen).mean())
    expect(
        share >= 0.99,
        f"update() names step {chosen} {(steps == chosen).sum()} times, lastly with priority 1, the others lastly\n"
        f"with 1e-9; {100 * share:.1f} % of the draws are of it",
    )


@check("law", "documents of the libraries that have the option")
def without_replacement_all_differ(library: Library) -> None:
    """Without replacement, no transition is twice in a batch: 100 batches of 32 of 40 transitions."""
    buffer = scenes.filled(library, Options(capacity=64, replacement=False), 40)
    for number in range(100):
        different = len(set(buffer.sample().steps().tolist()))
        expect(different == 32, f"batch {number} has {different} different transitions; 32 were drawn")


@check("law", f"{PAPER}, appendix B.2.1: [0, p_total] is divided into k ranges, and each range is drawn from once")
def each_stratum_is_drawn_once(library: Library) -> None:
    """Stratified batches of 32 have each of 4 transitions of equal priority 7 to 9 times, in each of 50 batches:
    a quarter of the range is 8 strata, and numbers are rounded only where two transitions meet."""
    buffer = scenes.filled(library, Options(capacity=64, stratified=True), 4, np.ones(4))
    for number in range(50):
        counts = np.bincount(buffer.sample().steps(), minlength=4)
        expect(counts.min() >= 7 and counts.max() <= 9, f"batch {number} has its four transitions {counts} times")


@check("law", f"{PAPER}, algorithm 1, line 6: a transition is stored with p_t = max p_i")
def new_ones_have_the_maximum(library: Library) -> None:
    """A new transition is drawn as often as one that has the largest priority, 8; others have 1. Of 16,000 draws,
    those of the two are compared; within 6 standard deviations, false alarms below 1e-6."""
    options = Options(capacity=64, alpha=1.0)
    buffer = scenes.filled(library, options, 40, np.where(np.arange(40) == 7, 8.0, 1.0))
    buffer.extend([scenes.step(t, options, reward=1.0, terminated=True) for t in (40, 41)])
    steps = scenes.drawn(buffer, 500)
    largest, new = int((steps == 7).sum()), int((steps == 40).sum())
    deviation = (new - largest) / max(largest + new, 1) ** 0.5
    expect(
        largest + new > 0 and abs(deviation) < 6,
        f"of {steps.size} draws, {new} are of a new transition and {largest} of the one of the largest priority: "
        f"{deviation:.0f}\nstandard deviations",
    )


@check("law", f"{PAPER}, section 3.3: alpha = 0 is the uniform case")
def alpha_0_is_uniform(library: Library) -> None:
    """With alpha = 0 all are drawn alike, whatever their priorities: 32,000 draws of 64 transitions of priorities 1 to
    64, if they can be set; chi-square, false alarms 1e-6."""
    buffer = scenes.filled(library, Options(capacity=64, alpha=0.0), 64)
    with contextlib.suppress(NotClaimed):  # a library without priorities is the uniform case, too
        buffer.set_all(np.arange(1, 65, dtype=np.float64))
    expect_shares(scenes.drawn(buffer, 1000), np.ones(64))


@check("law", f"{PAPER}, equation 1: one transition has probability 1")
def one_transition_fills_the_batch(library: Library) -> None:
    """A buffer of a single transition returns it 32 times in a batch of 32, or once if batches are no larger than the
    buffer, with weights of 1 if it has them, also after its priority was set to 1e-6 and to 1e6."""
    buffer = scenes.filled(library, Options(capacity=64), 1)
    for priority in (1e-6, 1e6, 1.0):
        batch = buffer.sample()
        steps = batch.steps().tolist()
        expect(set(steps) == {0} and len(steps) in (1, 32), f"the only step is 0; drawn were {steps}")
        if batch.weights is not None:
            weights = weights_of(batch)
            expect(np.abs(weights - 1).max() < 1e-5, f"weights of the only transition: {sorted(set(weights.tolist()))}")
        with contextlib.suppress(NotClaimed):
            buffer.update(batch.handle, np.full(len(steps), priority))


@check("law", "documents of the libraries that take a seed")
def same_seed_same_batches(library: Library) -> None:
    """Two buffers with seed 7, of which one after the other gets the same 64 steps and the same updates, draw the same
    20 batches with the same weights; one with seed 8 draws others."""

    def batches(seed: int) -> list[tuple[list[int], list[float]]]:
        buffer = scenes.filled(library, Options(capacity=64, seed=seed), 64)
        seen = []
        for number in range(20):
            batch = buffer.sample()
            weights = [] if batch.weights is None else weights_of(batch).tolist()
            seen.append((batch.steps().tolist(), weights))
            with contextlib.suppress(NotClaimed):
                buffer.update(batch.handle, 1.0 + (batch.steps() + number) % 7)
        return seen

    first, again, other = batches(7), batches(7), batches(8)
    for number, (one, two) in enumerate(zip(first, again, strict=True)):
        expect(one == two, f"batch {number} with seed 7: steps {one[0][:6]} ..., and again: {two[0][:6]} ...")
    expect(first != other, "seeds 7 and 8 draw the same batches")
