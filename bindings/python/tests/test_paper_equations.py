"""Probabilities and weights of Schaul et al. 2016, by hand: the values in batches.

tests/cpp/replay_draw_test.cpp tests how often transitions are then drawn.
"""

import numpy as np
import per
import pytest

# Each id i has the priority PRIORITIES[i].
PRIORITIES = np.array([16, 256, 1, 81], np.float32)


def batch_of(prioritization, alpha, **options):
    """A batch in which every transition is, as columns by id."""
    fields = {"observation": per.Field((), "int32")}
    with per.ReplayBuffer(10, fields, prioritization=prioritization, alpha=alpha, seed=1, **options) as buffer:
        for step in range(4):
            buffer.add(observation=step, reward=0, terminated=False, truncated=False, next_observation=step + 1)
        buffer.update_priorities(range(4), priorities=PRIORITIES)
        batch = buffer.sample(512)
    ids, first = np.unique(batch.ids, return_index=True)
    np.testing.assert_array_equal(ids, range(4))
    np.testing.assert_array_equal(batch.priorities[first], PRIORITIES)
    return batch.probabilities[first], batch.weights[first]


# Equation 1, P(i) = p_i^alpha / sum_k p_k^alpha. Fourth roots are 2, 4, 1, 3; square roots 4, 16, 1, 9.
# By rank (section 3.3) p_i = 1 / rank(i), and ranks are 3, 1, 4, 2.
CASES = {
    ("proportional", 0.25): np.array([2, 4, 1, 3]) / 10,
    ("proportional", 0.5): np.array([4, 16, 1, 9]) / 30,
    ("proportional", 1.0): np.array([16, 256, 1, 81]) / 354,
    ("proportional", 0.0): np.full(4, 1 / 4),
    ("rank", 1.0): np.array([4, 12, 3, 6]) / 25,
    ("rank", 2.0): np.array([16, 144, 9, 36]) / 205,
    ("rank", 0.0): np.full(4, 1 / 4),
    ("uniform", 0.5): np.full(4, 1 / 4),
}


@pytest.mark.parametrize(("prioritization", "alpha"), CASES)
def test_probabilities_are_those_of_equation_1(prioritization, alpha):
    probabilities, _ = batch_of(prioritization, alpha)
    np.testing.assert_allclose(probabilities, CASES[prioritization, alpha], rtol=3e-7)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("prioritization", "alpha"), CASES)
def test_weights_are_those_of_section_3_4(prioritization, alpha, beta):
    """w_i = (1 / (N P(i)))^beta, divided by the largest weight."""
    expected = (1 / (4 * CASES[prioritization, alpha])) ** beta
    _, weights = batch_of(prioritization, alpha, beta=beta, normalize_weights="none")
    np.testing.assert_allclose(weights, expected, rtol=5e-7)
    for normalization in ("batch_max", "buffer_max"):
        _, weights = batch_of(prioritization, alpha, beta=beta, normalize_weights=normalization)
        np.testing.assert_allclose(weights, expected / expected.max(), rtol=5e-7)


def test_priority_is_the_absolute_td_error_and_epsilon():
    """p_i = |delta_i| + epsilon (section 3.3)."""
    fields = {"observation": per.Field((), "int32")}
    with per.ReplayBuffer(10, fields, epsilon=0.25) as buffer:
        for step in range(3):
            buffer.add(observation=step, reward=0, terminated=False, truncated=False, next_observation=step + 1)
        buffer.update_priorities([0, 1, 2], [-3.0, 0.0, 0.5])
        assert buffer.priorities([0, 1, 2]).tolist() == [3.25, 0.25, 0.75]
