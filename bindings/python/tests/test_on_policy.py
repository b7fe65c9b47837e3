"""epochs() and advantages(): arrays, errors, threads. Their semantics are tested in C and by a model."""

from __future__ import annotations

import gc
import pickle
import threading

import cuda_switch
import numpy as np
import per
import pytest

FIELDS = {"observation": per.Field(2), "action": per.Field((), "int64"), "value": per.Field(), "advantage": per.Field()}


def filled(n=10, fields=FIELDS, **options):
    """One environment, whose steps 0 to n - 1 have ids of the same numbers."""
    buffer = per.ReplayBuffer(2 * n + 5, fields, **options)
    steps = np.arange(n + 1, dtype=np.float32)
    observation = np.stack([steps, -steps], axis=1)
    flags = np.zeros(n, bool)
    values = {name: np.zeros((n, *field.shape), field.dtype) for name, field in fields.items() if name != "observation"}
    buffer.extend(
        observation=observation[:-1],
        next_observation=observation[1:],
        **(values | {"action": np.arange(n)}),
        reward=np.ones(n, np.float32),
        terminated=flags,
        truncated=flags,
    )
    return buffer


def test_every_transition_comes_once_an_epoch_with_all_its_arrays():
    buffer = filled(seed=3)
    batches = list(buffer.epochs(2, batch_size=4))
    assert [len(batch.ids) for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert list(batches[0]) == list(buffer.sample(4))
    orders = []
    for epoch in (batches[:3], batches[3:]):
        ids = np.concatenate([batch.ids for batch in epoch])
        assert sorted(ids) == list(range(10))
        orders.append(ids.tolist())
        for batch in epoch:
            np.testing.assert_array_equal(batch.action, batch.ids)
            np.testing.assert_array_equal(batch.observation[:, 0], batch.ids)
            np.testing.assert_array_equal(batch.next_observation[:, 1], -batch.ids - 1)
            assert (batch.weights == 1).all() and np.allclose(batch.probabilities, 0.1)
    assert orders[0] != orders[1]
    again = [batch.ids.tolist() for batch in filled(seed=3).epochs(2, batch_size=4)]
    assert again == [batch.ids.tolist() for batch in batches]
    assert len(list(buffer.epochs(3, 4, drop_last=True))) == 6


def test_extra_fields_of_every_dtype_come_out_unchanged():
    random = np.random.default_rng(0)
    dtypes = [name for name in per._arrays.DTYPES if name != "bfloat16"]
    fields = {"observation": per.Field((), "int64")} | {f"extra_{d}": per.Field(3, d) for d in dtypes}
    buffer = per.ReplayBuffer(40, fields, n_envs=2)
    given = {f"extra_{d}": random.integers(0, 256, (10, 2, 3 * np.dtype(d).itemsize), np.uint8) for d in dtypes}
    given["extra_bool"] &= 1
    given = {name: bytes.view(name.removeprefix("extra_")).copy() for name, bytes in given.items()}
    flags = np.zeros((10, 2), bool)
    steps = np.arange(11)[:, None].repeat(2, axis=1)
    ids = buffer.extend(
        observation=steps[:-1], next_observation=steps[1:], reward=flags, terminated=flags, truncated=flags, **given
    )
    rows = {int(id): place for place, id in np.ndenumerate(ids)}
    taken = 0
    for batch in buffer.epochs(1, batch_size=3):
        for i, id in enumerate(batch.ids):
            taken += 1
            for name, values in given.items():
                assert batch[name][i].tobytes() == values[rows[int(id)]].tobytes(), name
    assert taken == 20


def test_consumers_in_threads_share_the_epochs():
    buffer = filled(1000)
    walk = buffer.epochs(20, batch_size=7)
    taken = [[] for _ in range(4)]

    def consume(own):
        for batch in walk:
            np.testing.assert_array_equal(batch.action, batch.ids)
            own.append(batch)

    threads = [threading.Thread(target=consume, args=(own,)) for own in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = np.concatenate([batch.ids for own in taken for batch in own])
    np.testing.assert_array_equal(np.bincount(ids), np.full(1000, 20))


def test_what_died_meanwhile_is_an_error():
    buffer = filled()
    walk = buffer.epochs(1, batch_size=4)
    assert len(next(walk).ids) == 4
    buffer.clear()
    if cuda_switch.IS_CUDA:  # overwritten transitions have id -1, and the epochs continue
        assert [next(walk).ids.tolist(), len(next(walk).ids), list(walk)] == [[-1] * 4, 2, []]
        with pytest.raises(per.InvalidArgument, match="6 ids named no row"):
            buffer.synchronize()
        return
    for _ in range(2):
        with pytest.raises(per.InvalidArgument, match="not live any more"):
            next(walk)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"n_epochs": 0, "batch_size": 4}, "n_epochs is 0"),
        ({"n_epochs": 1.5, "batch_size": 4}, "n_epochs is 1.5"),
        ({"n_epochs": 1, "batch_size": 0}, "batch_size is 0"),
        ({"n_epochs": 1, "batch_size": "x"}, "batch_size is 'x'"),
        ({"n_epochs": 1, "batch_size": 11, "drop_last": True}, "batch_size is 11"),
    ],
)
def test_bad_arguments_of_epochs_draw_nothing(arguments, words):
    buffer = filled()
    with pytest.raises(per.InvalidArgument, match=words):
        buffer.epochs(**arguments)
    assert buffer.stats().samples == 0
    with pytest.raises(per.Empty):
        per.ReplayBuffer(20, FIELDS).epochs(1, 4)


def test_a_walk_outlives_its_buffer_and_says_that_it_is_closed():
    buffer = filled()
    walk = buffer.epochs(1, batch_size=4)
    del buffer
    gc.collect()
    assert len(next(walk).ids) == 4
    closed = filled()
    walk = closed.epochs(1, batch_size=4)
    closed.close()
    with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
        next(walk)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(walk)


def test_arrays_of_torch_and_jax():
    torch = pytest.importorskip("torch")
    for batch in filled(arrays="torch").epochs(1, batch_size=4):
        assert isinstance(batch.observation, torch.Tensor) and torch.equal(batch.action, batch.ids)
        assert batch.observation.shape == (len(batch.ids), 2)
    jax = pytest.importorskip("jax")
    fields = FIELDS | {"action": per.Field((), "int32")}
    seen = [batch.action for batch in filled(fields=fields, arrays="jax").epochs(1, batch_size=4)]
    assert all(isinstance(actions, jax.Array) for actions in seen)
    assert sorted(np.concatenate(seen).tolist()) == list(range(10))


def test_nested_observations_stay_nested():
    fields = {
        "observation.a": per.Field(),
        "observation.b": per.Field(2),
        "value": per.Field(),
        "advantage": per.Field(),
    }
    buffer = per.ReplayBuffer(20, fields, gamma=0.5)
    for t in range(3):
        following = {"a": t + 1.0, "b": [t, t]}
        buffer.add(
            observation={"a": float(t), "b": [t - 1, t - 1]},
            next_observation=following,
            value=0.0,
            advantage=0.0,
            reward=1.0,
            terminated=False,
            truncated=t == 2,
        )
    asked = []
    buffer.advantages(bootstrap=lambda batch: asked.append(batch) or batch.next_observation["a"])
    assert asked[0].next_observation["b"].tolist() == [[2, 2]] and asked[0].ids.tolist() == [2]
    assert "weights" not in asked[0]
    # 1 + 0.5 * 3; then twice gamma lambda = 0.475 of the next advantage
    np.testing.assert_allclose(
        np.concatenate([batch.advantage[np.argsort(batch.ids)] for batch in buffer.epochs(1, batch_size=3)]),
        [1 + 0.475 * (1 + 0.475 * 2.5), 1 + 0.475 * 2.5, 2.5],
        rtol=1e-6,
    )


@pytest.mark.parametrize("arrays", ["numpy", "torch", "jax"])
def test_bootstrap_gives_arrays_of_any_library(arrays):
    pytest.importorskip(arrays)
    fields = FIELDS | {"action": per.Field((), "int32")}
    buffer = filled(3, fields=fields, gamma=0.5, arrays=arrays)
    scale = 1.0
    if arrays == "torch":
        scale = pytest.importorskip("torch").ones(1, requires_grad=True)
    buffer.advantages(gae_lambda=1, bootstrap=lambda batch: batch.next_observation[:, :1] * scale)
    batch = buffer.get([0, 1, 2])
    # 1 + 3/2, then 1 + half of what follows.
    assert np.asarray(batch.advantage).tolist() == [2.125, 2.25, 2.5]


def advantages_of(buffer):
    return buffer.get(np.arange(10)).advantage.tolist()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"bootstrap": None}, "bootstrap is None: 1 steps need"),
        ({"bootstrap": lambda batch: [1.0, 2.0]}, r"bootstrap gave shape \[2\]; allowed: \[1\]"),
        ({"bootstrap": lambda batch: "x"}, "bootstrap has dtype"),
        ({"bootstrap": lambda batch: [np.nan]}, r"bootstrap's values\[0\] is nan"),
        ({"value": "v"}, "value is 'v', but the buffer has no such field; its fields: observation, action"),
        ({"advantage": "action"}, 'advantage is "action"'),
        ({"advantage": "value"}, 'advantage and value are both "value": must be two fields'),
        ({"returns": "observation"}, 'returns is "observation"'),
        ({"gae_lambda": 2}, "lambda is 2"),
        ({"gae_lambda": "x"}, "gae_lambda is 'x'"),
    ],
)
def test_bad_arguments_of_advantages_write_nothing(arguments, words):
    buffer = filled()
    before = advantages_of(buffer)
    if words.startswith("bootstrap's"):
        words = cuda_switch.said(words, r"1 calls for advantages had .* bootstrap values not finite")
    with pytest.raises(per.InvalidArgument, match=words):
        buffer.advantages(**({"bootstrap": lambda batch: [0.0]} | arguments))
    assert advantages_of(buffer) == before


def test_steps_added_while_values_are_computed_are_an_error():
    buffer = filled()

    def bootstrap(batch):
        buffer.add(
            observation=[10, -10],
            next_observation=[11, -11],
            action=0,
            value=0.0,
            advantage=0.0,
            reward=0.0,
            terminated=False,
            truncated=True,
        )
        return [0.0]

    before = advantages_of(buffer)
    words = cuda_switch.said(r"ids\[0\] is 9", r"1 calls for advantages had ids that were not due")
    with pytest.raises(per.InvalidArgument, match=words):
        buffer.advantages(bootstrap=bootstrap)
    assert advantages_of(buffer) == before
    buffer.advantages(bootstrap=lambda batch: [0.0])


def test_an_exception_of_bootstrap_reaches_the_caller():
    def bootstrap(batch):
        raise KeyError("critic")

    with pytest.raises(KeyError, match="critic"):
        filled().advantages(bootstrap=bootstrap)


def test_nothing_to_bootstrap_asks_nobody():
    buffer = per.ReplayBuffer(20, FIELDS)
    buffer.advantages()
    step = {"observation": [0, 0], "action": 0, "value": 2.0, "advantage": 0.0, "reward": 5.0}
    buffer.add(**step, terminated=True, truncated=False, next_observation=[1, 1])
    buffer.advantages(bootstrap=None)
    assert buffer.get([0]).advantage.tolist() == [3.0]
