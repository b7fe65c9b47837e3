"""The programs in examples/python: their short modes succeed, with a full progress bar and a picture."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import per
import pytest

PROGRAMS = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python"
AGENTS = ("torch", "gymnasium")

# Modules that a program needs, and the expected end of its progress bar and its output.
SHORT_MODES = {
    "cartpole_dqn": (AGENTS, "600/600", "prioritized: solved 0 of 1"),
    "cartpole_dqn_graph": (AGENTS, "600/600", r"\d+ us a training step (step by step on cpu|as one CUDA graph)"),
    "cartpole_laber": (AGENTS, "600/600", "laber: not solved"),
    "cartpole_ppo": (AGENTS, "3/3", "greedy return"),
    "cartpole_r2d2": (AGENTS, "200/200", "not solved"),
    "pendulum_sac": (AGENTS, "600/600", "not solved"),
    "catch_rainbow": (AGENTS, "1600/1600", r"2,000 rows of 7,1\d\d bytes, 14 MB; 56,5\d\d bytes and 113 MB"),
    "bit_flipping_her": (("torch",), "300/300", r"with hindsight: +\d+% of goals reached"),
    "sorting_grpo": (
        ("torch",),
        "80/80",
        r"replay, by priority, beside replay, uniform: fewer tokens in 0 pairs, more in 0, p = 1",
    ),
    "blind_cliffwalk": ((), "15240/15240", r"linear +oracle: median of +\d+ updates for n = 8"),
    "rare_reward": (
        (),
        "4000/4000",
        r"DeepSea 10 x 10: prioritized [\d,]+, uniform [\d,]+ updates .* 2 of 2 pairs, p = 0.5",
    ),
}

# They share their code with others, or hardly use the buffer.
LONG = ("cartpole_dqn_graph", "cartpole_laber", "cartpole_ppo", "cartpole_r2d2")


def skip_without(*modules):
    for module in (*modules, "matplotlib", "tqdm"):
        pytest.importorskip(module)


def module_of(name):
    """A program as a module, for tests of its parts."""
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up the module of their class there
    spec.loader.exec_module(module)
    return module


def run(name, *arguments):
    search = [str(pathlib.Path(per.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, PROGRAMS / f"{name}.py", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, search))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in SHORT_MODES]
)
def test_short_mode_runs_and_draws_a_picture(name, tmp_path):
    modules, progress, says = SHORT_MODES[name]
    skip_without(*modules)
    picture = tmp_path / "picture.png"
    result = run(name, "--short", "--seed", "1", "--picture", picture)
    assert result.returncode == 0, result.stderr
    assert progress in result.stderr
    assert re.search(says, result.stdout), result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_sac_learns_from_uniform_draws_too(tmp_path):
    skip_without(*AGENTS)
    result = run("pendulum_sac", "--short", "--no-use-per", "--picture", tmp_path / "picture.png")
    assert result.returncode == 0, result.stderr


# ------------------------------------------------------------------------------------------------- Blind Cliffwalk


@pytest.fixture(scope="module")
def cliffwalk():
    skip_without()
    return module_of("blind_cliffwalk")


def played(n_states):
    """{(state, action): times seen} if every sequence of actions is played once until it ends."""
    times = {}
    for sequence in range(2**n_states):
        for state in range(n_states):
            action = sequence >> state & 1
            times[state, action] = times.get((state, action), 0) + 1
            if action != state % 2:
                break
    return times


def test_memory_holds_every_sequence_until_its_end(cliffwalk):
    memory = cliffwalk.remember(5, np.random.default_rng(0))
    assert len(memory.state) == 2**6 - 2
    assert memory.reward.sum() == 1 and memory.terminated.sum() == 2**5
    pairs = list(zip(memory.state.tolist(), memory.action.tolist(), strict=True))
    assert {pair: pairs.count(pair) for pair in pairs} == played(5)
    # After an end comes a first state, otherwise the next state.
    following = np.where(memory.terminated, 0, memory.next_state)[:-1]
    np.testing.assert_array_equal(memory.state[1:], following)


def test_true_values_leave_no_td_error(cliffwalk):
    for is_linear in (False, True):
        values = cliffwalk.Values(4, is_linear, np.random.default_rng(0))
        values.weights, values.biases = values.truth.tolist(), [0.0, 0.0]
        assert values.truth[3, 1] == 1 and values.truth[0, 0] == 0.75**3 and values.truth[:, 0].tolist()[1::2] == [0, 0]
        assert values.error() == 0
        assert all(abs(values.td_error(state, action)) < 1e-15 for state in range(4) for action in range(2))


@pytest.mark.parametrize("is_linear", [False, True])
def test_oracle_finds_the_update_that_leaves_the_smallest_error(cliffwalk, is_linear):
    rng = np.random.default_rng(1)
    for _ in range(50):
        values = cliffwalk.Values(4, is_linear, rng)
        errors = {}
        for pair in [(state, action) for state in range(4) for action in range(2)]:
            other = cliffwalk.Values(4, is_linear, rng)
            other.weights, other.biases = [list(row) for row in values.weights], list(values.biases)
            other.learn(*pair)
            errors[pair] = other.error()
        oracle = cliffwalk.Oracle(values)
        changes = oracle.changes(oracle.steps())
        np.testing.assert_allclose(changes.ravel() / 8, np.array(list(errors.values())) - values.error(), atol=1e-12)
        assert changes.min() < 0
        assert oracle.draw() == min(errors, key=errors.get)


def test_greedy_replays_the_largest_td_error_last_seen(cliffwalk):
    memory = cliffwalk.remember(2, np.random.default_rng(0))
    greedy = cliffwalk.Greedy(memory)
    seen = []
    for td_error in (0.1, -0.5, 0.2, 0.0, 0.3, 0.4):
        seen.append(greedy.draw())
        greedy.learned(td_error)
    pairs = zip(memory.state.tolist(), memory.action.tolist(), strict=True)
    assert sorted(seen) == sorted(pairs)  # each once, before any a second time
    assert greedy.draw() == seen[1]
    greedy.learned(0.25)
    assert greedy.draw() == seen[5]


# ----------------------------------------------------------------------------------------------------------- Catch


def test_catch_is_an_environment_and_its_balls_can_be_caught():
    skip_without(*AGENTS)
    from gymnasium.utils.env_checker import check_env

    env = module_of("catch_rainbow").Catch()
    check_env(env, skip_render_check=True)
    for seed in range(50):
        frame, _ = env.reset(seed=seed)
        assert frame.max() == 255 and (frame == 128).sum() == 3 * 7 * 7
        # 11 steps from one of 12 columns, reflected by the last of them, lead to the opposite one.
        landing = 11 - env.column if env.direction else env.column
        terminated = False
        while not terminated:
            action = 1 + np.sign(landing - env.paddle)
            _, reward, terminated, truncated, _ = env.step(action)
            assert not truncated
        assert (env.column, reward) == (landing, 1.0)


# ------------------------------------------------------------------------------------------------------ rare rewards


@pytest.fixture
def rare_reward(monkeypatch):
    skip_without()
    monkeypatch.syspath_prepend(PROGRAMS)
    return module_of("rare_reward")


def test_sign_test_by_hand(rare_reward):
    def p(smaller, larger, ties=0):
        first = np.array([0] * smaller + [2] * larger + [1] * ties)
        return rare_reward.sign_test(first, np.ones_like(first))

    assert p(16, 0) == p(0, 16) == 2 / 2**16
    assert p(9, 1) == 2 * (1 + 10) / 2**10
    assert p(3, 3) == p(0, 0) == 1.0
    assert p(4, 0, ties=5) == 2 / 2**4


def test_deep_sea_pays_at_the_end_of_the_way_to_the_right(rare_reward):
    env = rare_reward.DeepSea(np.random.default_rng(0))
    observation = env.reset(2)
    for step in range(10):
        # The first diver stays on the diagonal, the second goes right only where the wall at the left stops it.
        assert observation.argmax(axis=1).tolist() == [11 * step, 10 * step] and observation.sum() == 2
        right = env.right[step, [step, 0]]
        observation, reward, terminated = env.step(np.where([True, False], right, 1 - right))
        np.testing.assert_allclose(reward, [0.999 if step == 9 else -0.001, 0.0])
        assert terminated == (step == 9)


def test_one_episode_of_the_memory_reaches_the_goal(rare_reward):
    memory = rare_reward.remember(rare_reward.DeepSea(np.random.default_rng(1)), np.random.default_rng(2))
    assert len(memory["reward"]) == 10_000 and memory["terminated"].reshape(-1, 10).sum(axis=0).tolist() == [0] * 9 + [
        1000
    ]
    returns = memory["reward"].reshape(-1, 10).sum(axis=1)
    assert (returns > 0).sum() == 1 and np.isclose(returns.max(), 0.99)
    goes_on = ~memory["terminated"][:-1]
    np.testing.assert_array_equal(memory["next_observation"][:-1][goes_on], memory["observation"][1:][goes_on])


def test_gradients_are_those_of_the_weighted_loss(rare_reward, monkeypatch):
    rng = np.random.default_rng(3)
    networks = rare_reward.Networks(np.zeros((2, 4, 3)))
    networks.parameters = [rng.normal(size=parameter.shape) for parameter in networks.parameters]
    rows = rare_reward.BATCH
    batch = {name: rng.normal(size=(2, rows, 4)) for name in ("observation", "next_observation")}
    batch |= {"reward": rng.normal(size=(2, rows)), "discount": np.zeros((2, rows)), "weights": rng.random((2, rows))}
    batch["action"] = rng.integers(0, 2, (2, rows))
    found = []
    monkeypatch.setattr(networks, "descend", lambda *gradients: found.extend(gradients))
    td_errors = networks.learn(batch)

    def loss():  # with discount 0 the goal is the reward
        values = np.take_along_axis(networks.values(batch["observation"]), batch["action"][..., None], axis=2)[..., 0]
        error = np.abs(batch["reward"] - values)
        huber = np.where(error < 1, error**2 / 2, error - 0.5)
        return (batch["weights"] * huber).sum() / rows

    assert td_errors.shape == (2, rows)
    for parameter, gradient in zip(networks.parameters, found, strict=True):
        assert parameter.shape == gradient.shape
        for place in np.ndindex(parameter.shape):
            before = parameter[place]
            parameter[place] = before + 1e-6
            above = loss()
            parameter[place] = before - 1e-6
            slope = (above - loss()) / 2e-6
            parameter[place] = before
            assert gradient[place] == pytest.approx(slope, abs=1e-6)
