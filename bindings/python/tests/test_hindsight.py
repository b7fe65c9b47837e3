"""`sample(hindsight=)` as users call it; test_hindsight_model.py tests its semantics."""

import threading

import numpy as np
import per
import pytest

FIELDS = {"observation": per.Field(2, "float32"), "goal": per.Field(2, "float32")}


def at(steps):
    return np.stack([steps, -steps], axis=-1).astype(np.float32)


def filled(fields=FIELDS, n=10, **options):
    """One truncated episode; after step t the state is (t + 1, -t - 1)."""
    buffer = per.ReplayBuffer(100, fields, seed=6, **options)
    steps = np.arange(n)
    buffer.extend(
        observation=at(steps),
        goal=np.zeros((n, 2), np.float32),
        reward=np.full(n, 100.0),
        terminated=np.zeros(n),
        truncated=steps == n - 1,
        next_observation=at(steps + 1),
    )
    return buffer


def reached(achieved, goal):
    return (achieved == goal).all(axis=1)


def same(batch, other):
    assert list(batch) == list(other)
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


def test_own_exceptions_pass_through_and_the_call_is_no_draw():
    class Mine(Exception):
        pass

    def failing(achieved, goal):
        raise Mine("no reward")

    buffer, twin = filled(beta_steps=5), filled(beta_steps=5)
    with pytest.raises(Mine, match="no reward"):
        buffer.sample(8, hindsight=per.Hindsight("observation", "goal", failing))
    assert buffer.stats() == twin.stats()
    same(buffer.sample(8), twin.sample(8))


@pytest.mark.parametrize("sequence_length", [None, 2])
def test_own_errors_of_this_library_are_raised_by_the_first_call(sequence_length):
    calls = []

    def failing(achieved, goal):
        calls.append(achieved)
        raise per.InvalidArgument("this goal is refused")

    buffer = filled(sequence_length=sequence_length)
    with pytest.raises(per.InvalidArgument, match="this goal is refused"):
        buffer.sample(8, hindsight=per.Hindsight("observation", "goal", failing))
    assert len(calls) == 1


@pytest.mark.parametrize(
    "given, words",
    [
        (lambda n: np.zeros((n, 1)), "reward gave reward of shape"),
        (lambda n: np.zeros(n - 1), "reward gave reward of shape"),
        (lambda n: 0.0, r"reward gave reward of shape \[\]; allowed: "),
        (lambda n: (np.zeros(n), np.zeros(2)), "reward gave terminated of shape"),
        (lambda n: (np.zeros(n), np.full(n, -1.5)), r"reward gave terminated\[0\] = -1.5; allowed: booleans, 0 and 1"),
        (
            lambda n: np.where(np.arange(n) == 2, 1e300, np.inf),
            r"reward gave reward\[2\] = 1e\+300; allowed: -3.4028235e\+38 .. 3.4028235e\+38 \(float32\)",
        ),
        (lambda n: [-1e39] * n, r"reward gave reward\[0\] = -1e\+39; allowed: "),
        (lambda n: "none", "what hindsight.reward gave as reward"),
        (lambda n: None, "what hindsight.reward gave as reward"),
        (lambda n: (np.zeros(n),), r"reward gave a tuple of 1; allowed: rewards, or \(rewards, flags\)"),
        (lambda n: (np.zeros(n), np.zeros(n), {}), "reward gave a tuple of 3"),
    ],
)
def test_answers_of_wrong_shape_or_values_are_errors(given, words):
    buffer, twin = filled(), filled()
    with pytest.raises(per.InvalidArgument, match=words):
        buffer.sample(64, hindsight=per.Hindsight("observation", "goal", lambda achieved, goal: given(len(goal))))
    assert buffer.stats() == twin.stats()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"achieved": "position"}, "hindsight.achieved is 'position'; allowed: 'observation', 'goal'"),
        ({"goal": "next_goal"}, "hindsight.goal is 'next_goal'"),
        ({"goal": "observation"}, 'hindsight.goal and hindsight.achieved are both "observation"'),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    buffer = filled()
    hindsight = per.Hindsight(**({"achieved": "observation", "goal": "goal", "reward": reached} | arguments))
    with pytest.raises(per.InvalidArgument) as caught:
        buffer.sample(8, hindsight=hindsight)
    assert words in str(caught.value)
    with pytest.raises(per.InvalidArgument, match="hindsight is a function"):
        buffer.sample(8, hindsight=reached)
    assert buffer.stats().samples == 0


def test_arrays_of_a_call_are_the_callers_to_keep():
    kept = []

    def keeping(achieved, goal):
        kept.append((achieved, goal))
        return reached(achieved, goal)

    buffer = filled()
    hindsight = per.Hindsight("observation", "goal", keeping, strategy="final", k=np.inf)
    batch = buffer.sample(16, hindsight=hindsight)
    other = buffer.sample(16, hindsight=hindsight, scheme="independent")
    np.testing.assert_array_equal(kept[0][0], batch.next_observation)
    np.testing.assert_array_equal(kept[1][0], other.next_observation)
    assert (kept[0][1] == [10, -10]).all() and (batch.goal == [10, -10]).all()
    np.testing.assert_array_equal(batch.reward, batch.next_observation[:, 0] == 10)


def test_out_and_torch_and_options_of_the_call():
    torch = pytest.importorskip("torch")
    hindsight = per.Hindsight("observation", "goal", lambda achieved, goal: torch.tensor(reached(achieved, goal)))
    buffer, twin = filled(arrays="torch", n_step=2), filled(n_step=2)
    batch = buffer.sample(16, hindsight=hindsight, n_step=1, beta=0.7)
    same(batch, twin.sample(16, hindsight=hindsight, n_step=1, beta=0.7))
    assert isinstance(batch.goal, torch.Tensor) and (batch.n_steps == 1).all()
    assert buffer.sample(16, hindsight=hindsight, out=batch) is batch
    same(batch, twin.sample(16, hindsight=hindsight))


def test_nested_observations_go_by_their_full_names():
    names = ("observation", "achieved_goal", "desired_goal")
    fields = {f"observation.{name}": per.Field(2, "float32") for name in names}
    buffer = per.ReplayBuffer(50, fields)
    for t in range(6):
        now = {"observation": at(t), "achieved_goal": at(t), "desired_goal": at(-1)}
        then = {"observation": at(t + 1), "achieved_goal": at(t + 1), "desired_goal": at(-1)}
        buffer.add(observation=now, next_observation=then, reward=0, terminated=t == 5, truncated=False)
    hindsight = per.Hindsight(
        "observation.achieved_goal", "observation.desired_goal", reached, strategy="final", k=np.inf
    )
    batch = buffer.sample(12, hindsight=hindsight)
    assert (batch.observation["desired_goal"] == at(6)).all()
    assert (batch.next_observation["desired_goal"] == at(6)).all()
    np.testing.assert_array_equal(batch.reward, batch.terminated)


def test_threads_may_relabel_and_add_at_the_same_time():
    buffer = filled(n=50)
    hindsight = per.Hindsight("observation", "goal", lambda achieved, goal: (goal - achieved)[:, 0], k=np.inf)
    wrong = []

    def draws():
        for _ in range(200):
            batch = buffer.sample(32, hindsight=hindsight)
            wrong.append((batch.goal[:, 0] - batch.next_observation[:, 0] != batch.reward).any())

    def adds():
        for t in range(2000):
            buffer.add(
                observation=at(t),
                goal=at(0),
                reward=0,
                terminated=False,
                truncated=t % 9 == 8,
                next_observation=at(t + 1),
            )

    threads = [threading.Thread(target=work) for work in (draws, draws, adds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 400 and not any(wrong)
    assert buffer.stats().samples == 400


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": "best"}, "hindsight.strategy is 'best'; allowed: 'future', 'final', 'episode'"),
        ({"k": -1}, "hindsight.k is -1; allowed: >= 0"),
        ({"k": float("nan")}, "hindsight.k is nan; allowed: >= 0"),
        ({"k": "four"}, "hindsight.k is 'four'; allowed: a number"),
        ({"reward": lambda achieved: achieved}, r"hindsight.reward takes \(achieved\); allowed: \(achieved, goal\)"),
        (
            {"reward": lambda achieved_goal, desired_goal, info: achieved_goal == desired_goal},
            r"takes \(achieved_goal, desired_goal, info\).*lambda achieved, goal: env.unwrapped.compute_reward\(",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_made(changes, words):
    with pytest.raises(per.InvalidArgument, match=words):
        per.Hindsight(
            "observation", "goal", **({"reward": lambda achieved, goal, tolerance=0: achieved == goal} | changes)
        )
