"""per.plot draws the expected plots."""

import importlib
import sys

import numpy as np
import per
import pytest

FIELDS = {"observation": per.Field()}


def filled(n=10, **options):
    buffer = per.ReplayBuffer(100, FIELDS, seed=6, **options)
    steps = np.arange(n)
    buffer.extend(
        observation=steps,
        reward=np.zeros(n),
        terminated=np.zeros(n),
        truncated=steps == n - 1,
        next_observation=steps + 1,
    )
    return buffer


@pytest.fixture(autouse=True)
def matplotlib():
    return pytest.importorskip("matplotlib")


def heights(axes):
    return [patch.get_height() for patch in axes.patches]


def test_priorities_are_those_of_the_live_transitions():
    buffer = filled()
    buffer.update_priorities(np.arange(4), priorities=[0.001, 0.001, 1000, 0])
    axes = per.plot.priorities(buffer)
    assert sum(heights(axes)) == 9 and heights(axes)[0] == 2 and heights(axes)[-1] == 1
    assert axes.get_xscale() == "log" and "(1 of 10 are 0)" in axes.get_title()
    assert sum(heights(per.plot.priorities(np.ones(5)))) == 5
    assert sum(heights(per.plot.priorities(np.zeros(5)))) == 0


def test_weights_of_an_array_and_of_the_last_batches():
    axes = per.plot.weights([0.5, 0.5, 1.0], color="black", bins=2)
    assert heights(axes) == [2, 1]
    assert per.plot.weights([0.5, 4.0]).get_xlim() == (0, 4)
    buffer = filled()
    history = per.plot.History(buffer, batches=2)
    for size in (8, 4, 2):
        history.record(buffer.sample(size))
    assert history.weights.tolist() == [1.0] * 6
    assert sum(heights(per.plot.weights(history))) == 6


def test_ages_and_effective_sizes_are_those_of_stats():
    buffer = filled(alpha=1.0)
    buffer.update_priorities(np.arange(10), priorities=np.arange(10))
    history = per.plot.History(buffer)
    expected = []
    for _ in range(5):
        history.record(buffer.sample(16, normalize_weights="none", beta=1.0))
        stats = buffer.stats()
        expected.append((stats.samples, stats.last_mean_age, stats.last_max_age, stats.last_effective_size / 16))
    samples, mean, oldest, share = np.array(expected).T
    line = per.plot.age(history).lines[0]
    np.testing.assert_array_equal(line.get_xydata(), np.stack([samples, mean], axis=1))
    line = per.plot.effective_size(history).lines[0]
    np.testing.assert_array_equal(line.get_xydata(), np.stack([samples, share], axis=1))
    np.testing.assert_array_equal(history.max_ages, oldest)
    assert (oldest > mean).all() and (share < 1).all()


def test_effective_sizes_of_a_loader_are_those_of_its_batches():
    buffer = filled(60, alpha=1.0, beta=1.0)
    buffer.update_priorities(np.arange(60), priorities=np.random.default_rng(1).random(60) ** 8)
    history, shares = per.plot.History(buffer), []
    with buffer.loader(32) as batches:
        for batch, _ in zip(batches, range(4), strict=False):
            weights = batch.weights.astype(float)
            shares.append(weights.sum() ** 2 / (32 * (weights**2).sum()))
            history.record(batch)
    assert len(set(shares)) == 4
    np.testing.assert_allclose(history.effective_sizes, shares, rtol=1e-6)


@pytest.mark.parametrize("plot", [per.plot.priorities, per.plot.weights])
def test_numbers_may_be_tensors_and_are_finite(plot):
    torch = pytest.importorskip("torch")
    for tensor in (torch.ones(3, requires_grad=True), torch.ones((3, 1), dtype=torch.bfloat16)):
        assert sum(heights(plot(tensor))) == 3
    for number in (np.inf, np.nan, -3.0):
        with pytest.raises(per.InvalidArgument, match=f"source has {number}; allowed: finite numbers, >= 0"):
            plot([1.0, number])
    with pytest.raises(per.InvalidArgument, match="source has dtype str"):
        plot(["a"])


def test_a_history_of_fewer_than_no_batches_is_refused():
    with pytest.raises(per.InvalidArgument, match="batches is -1; allowed: 0 and above"):
        per.plot.History(filled(), batches=-1)


def test_a_batch_that_was_not_drawn_last_is_refused():
    buffer = filled()
    history = per.plot.History(buffer)
    batch = buffer.sample(8)
    buffer.sample(4)
    with pytest.raises(per.InvalidArgument, match="batch has 8 transitions; allowed: the last batch drawn, of 4"):
        history.record(batch)


@pytest.mark.parametrize("arrays", ["numpy", "torch", "jax"])
def test_picture_of_everything(arrays, tmp_path):
    pytest.importorskip(arrays)
    buffer = filled(arrays=arrays)
    history = per.plot.History(buffer)
    for _ in range(3):
        history.record(buffer.sample(8))
    figure = history.picture()
    assert [bool(axes.patches or axes.lines) for axes in figure.axes] == [True] * 4
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_before_the_first_batch_there_is_an_empty_picture():
    figure = per.plot.History(per.ReplayBuffer(10, FIELDS)).picture()
    assert len(figure.axes) == 4


def test_axes_given_are_drawn_into():
    axes = importlib.import_module("matplotlib.figure").Figure().subplots()
    assert per.plot.priorities(filled(), axes) is axes


def test_without_matplotlib_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(per.Unsupported, match=r"per\.plot needs matplotlib, which cannot be imported"):
        per.plot.weights([1.0])
