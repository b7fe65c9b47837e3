"""Buffers of per.jax in jitted programs, compared with Flashbax's buffers and with naive models."""

from __future__ import annotations

import copy
import gc
import pickle
import re

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
import per
import per.jax
import pytest
from flashbax.buffers import sum_tree

KEY = jax.random.key(0)
STEP = {"observation": jnp.zeros(3), "reward": jnp.zeros(())}


def step_of(t):
    return {"observation": jnp.full(3, t, jnp.float32), "reward": jnp.asarray(t, jnp.float32)}


def flat(batch_size=64, **options):
    """A buffer of 100 steps and its initial state."""
    buffer = per.jax.make_prioritised_flat_buffer(100, 1, batch_size, **options)
    return buffer, buffer.init(STEP)


def added(buffer, state, steps):
    return jax.jit(lambda state: jax.lax.scan(lambda s, t: (buffer.add(s, step_of(t)), None), state, steps)[0])(state)


def filled(n=10, **options):
    buffer, state = flat(**options)
    return buffer, added(buffer, state, jnp.arange(n))


def ids_of(indices):
    return np.asarray(indices).view(np.int64)[..., 0]


def firsts(batch):
    return np.asarray(batch.experience.first["reward"])


def are_equal(one, other):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), one, other))


def refused(message):
    """Expects that the call is refused while it is traced, with this text in the message."""
    return pytest.raises(per.InvalidArgument, match=re.escape(message))


def fails(message):
    """Expects that the program fails when it runs, with a message that matches."""
    return pytest.raises(jax.errors.JaxRuntimeError, match=message)


# ---------------------------------------------------------------------------------------------- beside Flashbax


@pytest.mark.parametrize("lanes, steps, rows, calls", [(1, 1, 7, 20), (3, 1, 5, 4), (3, 1, 5, 13), (2, 4, 9, 5)])
def test_the_same_pairs_can_be_drawn_as_from_flashbax(lanes, steps, rows, calls):
    arguments = {"max_length": rows * lanes, "min_length": 1, "add_sequences": True, "add_batch_size": lanes}
    theirs = flashbax.make_prioritised_flat_buffer(sample_batch_size=1, **arguments)
    live = lanes * (min(rows, calls * steps) - 1)
    # The batch has as many systematic draws as there are pairs of equal priority: each pair is drawn once.
    ours = per.jax.make_prioritised_flat_buffer(sample_batch_size=live, scheme="systematic", **arguments)
    states = [buffer.init({"t": jnp.zeros((), jnp.int32)}) for buffer in (theirs, ours)]
    adds = jax.jit(theirs.add), jax.jit(ours.add)
    for call in range(calls):
        t = jnp.arange(lanes)[:, None] * 1000 + jnp.arange(steps)[None, :] + call * steps
        states = [add(state, {"t": t}) for add, state in zip(adds, states, strict=True)]
        for state in states:
            assert state.current_index == (call + 1) * steps % rows
            assert state.is_full == ((call + 1) * steps >= rows)
    t = np.asarray(states[0].experience["t"])
    leaves = np.asarray(sum_tree.get(states[0].sum_tree_state, jnp.arange(t.size))).reshape(t.shape)
    expected = {(t[lane, i], t[lane, (i + 1) % rows]) for lane, i in np.argwhere(leaves > 0)}
    pair = ours.sample(states[1], KEY).experience
    assert len(expected) == live
    assert set(zip(pair.first["t"].tolist(), pair.second["t"].tolist(), strict=True)) == expected


def test_there_is_nothing_to_sample_before_a_pair():
    for kind in (flashbax, per.jax):
        buffer = kind.make_prioritised_flat_buffer(max_length=800, min_length=4, sample_batch_size=4, add_batch_size=8)
        state = buffer.init({"t": jnp.zeros(())})
        for is_there in (False, True):
            state = buffer.add(state, {"t": jnp.zeros(8)})
            assert bool(buffer.can_sample(state)) == is_there


@pytest.mark.parametrize(
    ("length", "options"),  # None: a pair
    [
        (None, {"n_step": 3}),
        (None, {"n_step": 2, "frame_stack": 3}),
        (None, {"frame_stack": 4}),
        (3, {"n_step": 2}),
        (3, {"burn_in": 1}),
        (4, {"n_step": 3, "burn_in": 2, "frame_stack": 2}),
    ],
)
def test_can_sample_is_true_once_there_is_a_draw_whatever_a_draw_needs(length, options):
    needed = (length or 2) + options.get("n_step", 1) - 1 + options.get("burn_in", 0)
    for rows in (needed - 1, needed, needed + 1, needed + 4):
        try:
            if length is None:
                buffer = per.jax.make_prioritised_flat_buffer(rows, 1, 4, True, 1, **options)
            else:
                buffer = per.jax.make_prioritised_trajectory_buffer(
                    1, 4, length, 1, 1, max_length_time_axis=rows, **options
                )
        except per.InvalidArgument:
            assert rows < needed
            continue
        assert rows >= needed
        state = buffer.init(jnp.zeros(()))
        for t in range(3 * rows):
            state = buffer.add(state, jnp.full((1, 1), float(t)))
            can_sample = bool(buffer.can_sample(state))
            assert can_sample == (t + 1 >= needed)
            if can_sample:
                jax.block_until_ready(buffer.sample(state, KEY))
            elif t + 2 == needed:
                with fails("libper"):
                    jax.block_until_ready(buffer.sample(state, KEY))


def test_probabilities_are_those_of_flashbax_and_a_new_pair_gets_the_largest_priority():
    buffer, state = filled(40, batch_size=39, priority_exponent=0.7)
    theirs = flashbax.make_prioritised_flat_buffer(100, 1, 39, add_sequences=True, priority_exponent=0.7)
    their_state = theirs.add(theirs.init(STEP), {"observation": jnp.zeros((40, 3)), "reward": jnp.zeros(40)})
    priorities = np.random.default_rng(3).uniform(0, 5, 39).astype(np.float32)
    slots = jnp.arange(39)
    ids = jnp.stack([slots, jnp.zeros_like(slots)], -1).astype(jnp.uint32)
    state = buffer.set_priorities(state, ids, priorities)
    their_state = theirs.set_priorities(their_state, slots, priorities)
    batch = buffer.sample(state, KEY)
    expected = sum_tree.get_probability(their_state.sum_tree_state, ids_of(batch.indices))
    np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-5)
    # Flashbax would round the largest priority down to a whole number.
    batch = buffer.sample(added(buffer, state, jnp.array([40])), KEY)
    weights = np.append(priorities, priorities.max()) ** 0.7
    np.testing.assert_allclose(batch.probabilities, (weights / weights.sum())[ids_of(batch.indices)], rtol=1e-5)
    assert 39 in ids_of(batch.indices)


def test_weights_are_those_of_the_paper():
    buffer, state = filled(beta=0.5, normalize_weights="batch_max", priority_exponent=1.0)
    batch = buffer.sample(state, KEY)
    state = buffer.set_priorities(state, batch.indices, 1 + firsts(batch))
    batch = buffer.sample(state, KEY)
    np.testing.assert_allclose(batch.probabilities, (1 + firsts(batch)) / 45, rtol=1e-6)
    weights = (9 * np.asarray(batch.probabilities)) ** -0.5
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-6)


# In the last two cases a trajectory is as long as the buffer, which then keeps one more step.
@pytest.mark.parametrize(
    "length, period, rows, lanes, steps",
    [(4, 1, 9, 1, 1), (3, 2, 10, 2, 3), (5, 3, 13, 3, 4), (4, 1, 4, 1, 1), (5, 5, 5, 2, 5)],
)
@pytest.mark.parametrize("make", [per.jax.make_prioritised_trajectory_buffer, per.jax.make_trajectory_buffer])
def test_trajectories_are_the_whole_ones_that_start_at_multiples_of_the_period(
    make, length, period, rows, lanes, steps
):
    buffer = make(lanes, 512, length, period, length, max_length_time_axis=rows, scheme="systematic")
    state = buffer.init({"t": jnp.zeros((2,), jnp.int32)})
    add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
    for call in range(12):
        t = jnp.arange(lanes)[:, None] * 1000 + jnp.arange(steps)[None, :] + call * steps
        state = add(state, {"t": jnp.stack([t, -t], -1)})
        end = (call + 1) * steps
        starts = [s for s in range(0, end - length + 1, period) if s >= end - max(rows, length + 1)]
        assert bool(buffer.can_sample(state)) == (end >= length)
        if not starts:
            with fails("libper"):
                jax.block_until_ready(sample(state, KEY))
            continue
        drawn = np.asarray(sample(state, KEY).experience["t"])
        assert drawn.shape == (512, length, 2) and (drawn[..., 0] == -drawn[..., 1]).all()
        expected = {tuple(1000 * lane + np.arange(s, s + length)) for lane in range(lanes) for s in starts}
        assert set(map(tuple, drawn[..., 0].tolist())) == expected


def test_a_sequence_may_be_as_long_as_the_buffer_and_not_longer():
    """If a sequence is as long as the buffer, Flashbax's buffers return the newest one; ours can return it, too."""
    trajectories = {"add_batch_size": 1, "sample_batch_size": 64, "min_length_time_axis": 4, "period": 1}
    trajectories |= {"sample_sequence_length": 4, "max_length_time_axis": 4}
    pairs = {"max_length": 2, "min_length": 1, "sample_batch_size": 2}
    for make, arguments, length in (
        ("make_prioritised_trajectory_buffer", trajectories, 4),
        ("make_prioritised_flat_buffer", pairs, 2),
    ):
        ours, theirs = (getattr(library, make)(**arguments) for library in (per.jax, flashbax))
        states = [buffer.init(jnp.zeros(())) for buffer in (ours, theirs)]
        for t in range(11):
            batch = jnp.full((1, 1) if length == 4 else (), float(t))
            states = [buffer.add(state, batch) for buffer, state in zip((ours, theirs), states, strict=True)]
            assert states[0].current_index == states[1].current_index and states[0].is_full == states[1].is_full
            assert ours.can_sample(states[0]) == theirs.can_sample(states[1]) == (t + 1 >= length)
        drawn = [
            np.asarray(jnp.stack(jax.tree.leaves(buffer.sample(state, KEY).experience), -1)).reshape(-1, length)
            for buffer, state in zip((ours, theirs), states, strict=True)
        ]
        newest = tuple(range(11 - length, 11))
        assert set(map(tuple, drawn[1].tolist())) == {newest}
        assert newest in set(map(tuple, drawn[0].tolist()))
    with refused("sample_sequence_length is 5; allowed: 2 to 4, as the buffer holds 4 steps"):
        per.jax.make_prioritised_trajectory_buffer(**{**trajectories, "sample_sequence_length": 5})
    with refused("max_length is 7; allowed: 2 for each environment, 8, or more"):
        per.jax.make_prioritised_flat_buffer(**{**pairs, "max_length": 7}, add_batch_size=4)


def test_priorities_of_trajectories_decide_what_is_drawn():
    buffer = per.jax.make_prioritised_trajectory_buffer(1, 32, 3, 1, 3, max_size=20)
    state = buffer.add(buffer.init(jnp.zeros(())), jnp.arange(10.0)[None])
    batch = buffer.sample(state, KEY)
    state = buffer.set_priorities(state, batch.indices, batch.experience[:, 0] == 4)
    assert (buffer.sample(state, KEY).experience == jnp.array([4.0, 5.0, 6.0])).all()


def test_every_dtype_and_structure_of_experience_comes_back():
    buffer = per.jax.make_prioritised_flat_buffer(50, 1, 16)
    dtypes = [bool, jnp.int8, jnp.uint8, jnp.int16, jnp.uint32, jnp.int32, jnp.float16, jnp.bfloat16, jnp.float32]
    step = ([jnp.zeros((2,), dtype) for dtype in dtypes], {"deep": {"x": jnp.zeros((2, 3))}}, None)
    state = buffer.init(step)
    add = jax.jit(buffer.add)
    for t in range(6):
        state = add(state, jax.tree.map(lambda x, t=t: (x + t).astype(x.dtype), step))
    first, second = buffer.sample(state, KEY).experience
    assert jax.tree.structure(first) == jax.tree.structure(second) == jax.tree.structure(step)
    for x, y, given in zip(*map(jax.tree.leaves, (first, second, step)), strict=True):
        assert x.dtype == given.dtype and x.shape == (16, *given.shape)
        if x.dtype != bool:
            assert (y == x + 1).all()


# ------------------------------------------------------------------------------------ order, and one present state


def test_draws_come_before_the_adds_after_them():
    buffer, state = filled(10, batch_size=64, scheme="systematic")

    # The adds do not use the drawn values, so XLA would run them first if it did not know about the draws.
    @jax.jit
    def several(state):
        batches = [buffer.sample(state, KEY) for _ in range(4)]
        for t in range(10, 14):
            state = buffer.add(state, step_of(t))
        return state, [batch.experience.first["reward"].max() for batch in batches]

    @jax.jit
    def in_a_loop(state):
        def step(state, t):
            batch = buffer.sample(state, KEY)
            values = batch.experience.first["observation"] @ jnp.ones((3, 50)) @ jnp.ones((50, 50))
            return buffer.add(state, step_of(t)), values.max() / 150

        return jax.lax.scan(step, state, jnp.arange(14, 60))

    state, drawn = several(state)
    assert drawn == [8] * 4
    np.testing.assert_allclose(in_a_loop(state)[1], np.arange(12, 58), rtol=1e-5)


def test_a_loop_of_adds_draws_and_priorities_is_one_program():
    buffer, state = filled(20, batch_size=8, priority_exponent=1.0)

    def step(state, t):
        state = jax.lax.cond(t % 2 == 0, lambda s: buffer.add(s, step_of(t)), lambda s: s, state)
        batch = buffer.sample(state, KEY)
        state = buffer.set_priorities(state, batch.indices, jnp.where(batch.experience.first["reward"] == 7, 1e6, 1e-6))
        return state, batch.experience.first["reward"]

    state, drawn = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(20, 120)))(state)
    assert (drawn[-1] == 7).all()
    assert state.current_index == 70


def test_a_state_that_goes_through_branches_and_copies_stays_the_present_one():
    buffer, state = filled(10)

    @jax.jit
    def program(state, learns):
        def learn(state):
            batch = buffer.sample(state, KEY)
            return buffer.set_priorities(state, batch.indices, jnp.ones(64)), batch.weights.sum()

        state, total = jax.lax.cond(learns, learn, lambda state: (state, 0.0), state)
        state = jax.tree.map(lambda x: x, state)
        return buffer.add(state, step_of(10)), total

    for learns in (True, False, True):
        state, total = program(state, learns)
        assert total == (64 if learns else 0)
    assert state.current_index == 13


def test_a_draw_inside_of_a_branch_from_a_state_outside_of_it_leaks_nothing():
    buffer, state = filled(10)

    @jax.jit
    def program(state):
        total = jax.lax.cond(True, lambda: buffer.sample(state, KEY).weights.sum(), lambda: 0.0)
        grad = jax.grad(lambda w: (w * buffer.sample(state, KEY).weights).sum())(1.0)
        return buffer.set_priorities(state, jnp.zeros((1, 2), jnp.uint32), total[None] + grad), total

    assert program(state)[1] == 64


def test_a_state_used_twice_in_a_program_is_refused_while_it_is_traced():
    buffer, state = filled(10)
    with refused("this state is used up"):
        jax.jit(lambda s: (buffer.add(s, step_of(1)), buffer.add(s, step_of(2))))(state)
    with refused("this state is used up"):
        jax.jit(lambda s: (buffer.add(s, step_of(1)), buffer.sample(s, KEY)))(state)


@pytest.mark.parametrize("call", ["add", "sample", "set_priorities"])
def test_a_state_of_the_past_is_refused_and_changes_nothing(call):
    buffer, state = filled(10, batch_size=9, scheme="systematic")
    ids = buffer.sample(state, KEY).indices
    present = buffer.add(state, step_of(10))
    calls = {
        "add": lambda s: buffer.add(s, step_of(99)),
        "sample": lambda s: buffer.sample(s, KEY),
        "set_priorities": lambda s: buffer.set_priorities(s, ids, jnp.zeros(9)),
    }
    said = (
        r"libper: this state is of the past: it has seen 10 calls of add\(\) and set_priorities\(\), and its buffer 11"
    )
    with fails(said):
        jax.block_until_ready(jax.jit(calls[call])(state))
    assert buffer.add(present, step_of(11)).current_index == 12


def test_two_programs_cannot_share_a_state():
    buffer, state = filled(10)
    one, other = jax.jit(lambda s: buffer.add(s, step_of(1))), jax.jit(lambda s: buffer.add(s, step_of(2)))
    state_of_one = one(state)
    with fails("this state is of the past"):
        jax.block_until_ready(other(state))
    assert one(state_of_one).current_index == 12


def test_init_makes_the_states_before_it_invalid_and_begins_anew():
    buffer, old = filled(10)
    state = jax.jit(buffer.init)(STEP)
    with fails("not from the latest init"):
        jax.block_until_ready(buffer.add(old, step_of(1)))
    assert not buffer.can_sample(state) and state.current_index == 0
    with fails("libper"):
        jax.block_until_ready(buffer.sample(state, KEY))


def test_a_program_that_makes_its_buffer_gives_the_same_each_time():
    buffer = per.jax.make_prioritised_flat_buffer(100, 1, 16)

    @jax.jit
    def program(key):
        def step(state, given):
            t, key = given
            state = buffer.add(buffer.add(state, step_of(t)), step_of(-t))
            batch = buffer.sample(state, key)
            return buffer.set_priorities(state, batch.indices, 1 + batch.weights * t), batch

        return jax.lax.scan(step, buffer.init(STEP), (jnp.arange(80.0), jax.random.split(key, 80)))[1]

    one, same, other = program(KEY), program(KEY), program(jax.random.key(1))
    assert are_equal(one, same)
    assert len(set(map(tuple, one.indices[..., 0].tolist()))) > 70
    assert (one.indices != other.indices).any(axis=(1, 2)).sum() > 70


# ---------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("call", [lambda f: f, jax.jit])
@pytest.mark.parametrize("scheme", ["stratified", "independent", "systematic", "without_replacement"])
def test_the_same_state_and_key_give_the_same_batch_and_another_key_another(call, scheme):
    buffer, state = filled(50, batch_size=16, scheme=scheme)
    sample = call(buffer.sample)
    keys = jax.random.split(jax.random.key(5), 6)
    first = [sample(state, key) for key in keys]
    for i in (5, 0, 0, 3):
        again = sample(state, keys[i])
        assert are_equal(again, first[i])
    # There are few different systematic draws of 16 from 49.
    assert len({tuple(batch.indices[:, 0].tolist()) for batch in first}) >= (2 if scheme == "systematic" else 6)


def test_the_key_of_a_seed_draws_what_a_buffer_of_that_seed_draws_first():
    for seed in (0, 9, 2**31 - 1):
        buffer, state = filled(50, batch_size=16)
        outside = per.ReplayBuffer(100, {"x": per.Field(role="observation")}, seed=seed)
        for t in range(50):
            outside.add(x=t, reward=0, terminated=False, truncated=False)
        expected = outside.sample(16)["x"]
        np.testing.assert_array_equal(firsts(buffer.sample(state, jax.random.key(seed))), expected)
        np.testing.assert_array_equal(firsts(jax.jit(buffer.sample)(state, jax.random.PRNGKey(seed))), expected)


def test_each_word_of_a_key_counts():
    buffer, state = filled(50, batch_size=16)
    for n_words in (2, 4):  # threefry's and rbg's
        keys = [np.zeros(n_words, np.uint32), *np.eye(n_words, dtype=np.uint32)]
        assert len({tuple(firsts(buffer.sample(state, key))) for key in keys}) == n_words + 1
    rbg = jax.random.key(7, impl="rbg")
    expected = firsts(buffer.sample(state, jax.random.key_data(rbg)))
    np.testing.assert_array_equal(firsts(buffer.sample(state, rbg)), expected)


@pytest.mark.parametrize(
    "key, given",
    [
        (jax.random.split(KEY, 3), "key<fry>[3]"),
        (jnp.zeros(2), "float32[2]"),
        (jnp.zeros((3, 2), jnp.uint32), "uint32[3, 2]"),
        (7, "an int"),
        (None, "None"),
    ],
)
def test_what_is_no_key_is_refused_by_name(key, given):
    buffer, state = filled(10)
    with refused(f"key is {given}; allowed: one key of jax.random"):
        buffer.sample(state, key)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"store_next_observation": True},
        {"n_envs": 2},
        {"arrays": "numpy"},
        {"sequence_length": 3},
        {"sequence_stride": 2},
        {"sequence_eta": 0.5},
    ],
)
def test_options_in_whose_place_is_something_else_are_refused(options):
    (name,) = options
    with refused(f"{name} is given; "):
        flat(**options)
    with refused(f"{name} is given; "):
        per.jax.make_trajectory_buffer(1, 1, 2, 1, 2, max_size=10, **options)


# ---------------------------------------------------------------------------------------------------- checkpoints


def trained(buffer, state, steps):
    """Runs steps that depend on the whole content of a buffer. Returns its state and the batches."""

    def step(state, t):
        state = buffer.add(state, step_of(t))
        batch = buffer.sample(state, jax.random.fold_in(KEY, t))
        return buffer.set_priorities(state, batch.indices, 1 + batch.experience.first["reward"] % 7), batch

    return jax.jit(lambda state: jax.lax.scan(step, state, steps))(state)


def test_a_restored_state_goes_on_with_the_same_draws(tmp_path):
    import orbax.checkpoint

    buffer, state = filled(10, batch_size=16, beta_steps=40)
    state, _ = trained(buffer, state, jnp.arange(10, 130))
    saved = buffer.state_dict(state)
    assert saved["ticket"].dtype == np.int32 and saved["checkpoint"].dtype == np.uint8
    with orbax.checkpoint.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", saved)
        restored = checkpointer.restore(tmp_path / "saved")
    state, expected = trained(buffer, state, jnp.arange(130, 180))
    other, blank = flat(batch_size=16, beta_steps=40)
    other_state = other.load_state_dict(restored)
    assert other_state.current_index == 30 and other_state.is_full and other.can_sample(other_state)
    with refused("from before load_state_dict"):
        other.add(blank, step_of(0))
    other_state, drawn = trained(other, other_state, jnp.arange(130, 180))
    assert are_equal(drawn, expected)
    assert other_state.current_index == state.current_index == 80
    # The buffer that was saved can be restored as well.
    _, again = trained(buffer, buffer.load_state_dict(saved), jnp.arange(130, 180))
    assert are_equal(again, expected)
    assert not other.can_sample(other.init(STEP))


def test_a_checkpoint_is_of_a_present_state_outside_of_programs():
    buffer, old = filled(10)
    state = buffer.add(old, step_of(10))
    with refused("this state is of the past"):
        buffer.state_dict(jax.tree.map(lambda x: x, old))
    with refused("state_dict() is called inside of a program"):
        jax.jit(buffer.state_dict)(state)
    assert buffer.load_state_dict(buffer.state_dict(state)).current_index == 11


def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing():
    buffer, state = filled(10)
    saved = buffer.state_dict(state)
    fresh = per.jax.make_prioritised_flat_buffer(100, 1, 64)
    with refused("init() was not called"):
        fresh.load_state_dict(saved)
    with refused("state_dict has ['checkpoint']; allowed: ['checkpoint', 'ticket']"):
        buffer.load_state_dict({"checkpoint": saved["checkpoint"]})
    small = per.jax.make_prioritised_flat_buffer(50, 1, 64)
    small.init(STEP)
    with refused("checkpoint has capacity 100; allowed: that of the buffer, 50"):
        small.load_state_dict(saved)
    fresh.init(STEP | {"reward": jnp.zeros(2)})
    with refused("checkpoint has fields"):
        fresh.load_state_dict(saved)
    saved["checkpoint"] = saved["checkpoint"].copy()
    saved["checkpoint"][100] ^= 1
    with pytest.raises(per.CorruptFile):
        buffer.load_state_dict(saved)
    assert buffer.add(state, step_of(10)).current_index == 11


@pytest.mark.parametrize(
    ("ticket", "message"),
    [
        (np.zeros(0, np.int32), "ticket is int32[0]; allowed: int32[4]"),
        (np.zeros(9, np.int32), "ticket is int32[9]; allowed: int32[4]"),
        (np.zeros((2, 2), np.int32), "ticket is int32[2, 2]; allowed: int32[4]"),
        (np.zeros(4), "ticket is float64[4]; allowed: int32[4]"),
        (None, "ticket is object[]; allowed: int32[4]"),
        (np.array([1, 0, 100, 0], np.int32), "a place of 0 .. 99 as its third number"),
        (np.array([1, 0, 7, -1], np.int32), "a count as its fourth"),
    ],
)
def test_a_ticket_that_no_state_had_is_refused_and_changes_nothing(ticket, message):
    buffer, state = filled(10)
    with refused(message):
        buffer.load_state_dict(buffer.state_dict(state) | {"ticket": ticket})
    assert buffer.add(state, step_of(10)).current_index == 11


def test_indices_of_another_kind_than_those_of_samples_are_refused():
    buffer, state = filled(10)
    for indices in (jnp.zeros(4, jnp.int32), jnp.zeros(16, jnp.uint8), jnp.zeros(4, jnp.uint32), jnp.zeros((1, 4))):
        given = f"indices is {indices.dtype}{list(indices.shape)}; allowed, as samples have them: uint32[B, 2]"
        with refused(given):
            buffer.set_priorities(state, indices, jnp.ones(2))
    many = jnp.broadcast_to(jnp.array([3, 0], jnp.uint32), (2, 3, 2))
    assert buffer.set_priorities(state, many, jnp.ones((2, 3))).current_index == 10


# --------------------------------------------------------------------------------------------- updates that are late


def test_a_priority_that_comes_after_its_row_was_overwritten_touches_nothing():
    buffer, state = filled(50)
    indices = buffer.sample(state, KEY).indices
    state = added(buffer, state, jnp.arange(50, 200))
    before = buffer.sample(state, KEY).probabilities
    state = buffer.set_priorities(state, indices, jnp.full(64, 1e9))
    assert (buffer.sample(state, KEY).probabilities == before).all()


def test_indices_are_int64_where_jax_has_them():
    with jax.enable_x64(True):
        buffer, state = filled(10)
        batch = buffer.sample(state, KEY)
        assert batch.indices.dtype == jnp.int64 and batch.indices.shape == (64,)
        state = buffer.set_priorities(state, batch.indices, batch.indices == 4)
        assert (firsts(buffer.sample(state, KEY)) == 4).all()


# -------------------------------------------------------------------------------------------------- what cannot be


def test_vmap_is_refused_by_name():
    buffer, state = filled(10)
    said = "vmap over 3 would need as many buffers of libper"
    with refused(said):
        jax.vmap(buffer.init)(jax.tree.map(lambda x: jnp.stack([x] * 3), STEP))
    with refused(said):
        jax.vmap(buffer.add, (None, 0))(state, step_of(jnp.arange(3)) | {"observation": jnp.zeros((3, 3))})
    with refused(said):
        jax.jit(jax.vmap(buffer.sample, (None, 0)))(state, jax.random.split(KEY, 3))
    with refused(said):
        jax.vmap(
            lambda p: jax.lax.scan(
                lambda s, _: (buffer.set_priorities(s, jnp.zeros((1, 2), jnp.uint32), p), 0), state, None, length=2
            )
        )(jnp.ones((3, 1)))
    assert buffer.add(state, step_of(10)).current_index == 11


def test_programs_of_several_devices_are_refused():
    assert len(jax.devices()) == 2
    buffer = per.jax.make_prioritised_flat_buffer(100, 1, 16)
    said = r"the buffer is on device \d, and this program runs on device \d"
    with fails(said):
        jax.block_until_ready(jax.pmap(buffer.init)(jax.tree.map(lambda x: jnp.stack([x] * 2), STEP)))
    buffer, state = filled(10)
    with fails(said):
        jax.block_until_ready(jax.jit(buffer.add)(jax.device_put(state, jax.devices()[1]), step_of(1)))
    assert buffer.add(state, step_of(10)).current_index == 11


def test_gradients_do_not_go_into_a_buffer():
    buffer, state = filled(10)

    def loss(w):
        new = buffer.add(state, step_of(1.0) | {"reward": w})
        batch = buffer.sample(new, KEY)
        new = buffer.set_priorities(new, batch.indices, w * jnp.ones(64))
        return w**2 * batch.weights.sum(), new

    assert jax.grad(loss, has_aux=True)(3.0)[0] == 6 * 64


def test_states_of_other_buffers_are_refused():
    (buffer, _), (_, other) = filled(10), filled(10)
    with refused("this state is of another buffer"):
        buffer.add(other, step_of(1))
    state = buffer.init(STEP)
    assert buffer.init(STEP | {"reward": jnp.zeros(2)})._number != state._number
    with refused("an init() of other steps"):
        buffer.sample(state, KEY)


def test_a_buffer_lives_as_long_as_its_object():
    buffer, state = filled(10)
    sample = jax.jit(buffer.sample).lower(state, KEY).compile()
    jax.block_until_ready(sample(state, KEY))
    del buffer
    jax.clear_caches()
    gc.collect()
    with fails("the buffer of this program is gone"):
        jax.block_until_ready(sample(state, KEY))


def test_a_bad_priority_fails_the_program_with_the_reason_and_changes_nothing():
    buffer, state = filled(10)
    batch = buffer.sample(state, KEY)
    with fails(r"libper: priorities\[3\] is nan"):
        priorities = jnp.ones(64).at[3].set(jnp.nan)
        jax.block_until_ready(jax.jit(buffer.set_priorities)(state, batch.indices, priorities))
    assert (buffer.sample(state, KEY).probabilities == batch.probabilities).all()
    buffer, state = filled(10, on_invalid="skip")
    jax.block_until_ready(buffer.set_priorities(state, batch.indices, jnp.full(64, jnp.nan)))


def test_an_index_that_was_never_given_is_an_error():
    buffer, state = filled(10)
    with fails(r"libper: ids\[0\] is 4294967303"):
        jax.block_until_ready(buffer.set_priorities(state, jnp.array([[7, 1]], jnp.uint32), jnp.ones(1)))


@pytest.mark.parametrize("number", [np.int64(2**40 + 7), np.full((), 2**63, np.uint64), 2**40, -(2**31) - 1, 2**70])
def test_whole_numbers_that_jax_would_wrap_are_refused(number):
    buffer = per.jax.make_prioritised_flat_buffer(100, 1, 4)
    state = buffer.init({"t": jnp.zeros((), jnp.int32)})
    with refused("batch['t'] has "):
        buffer.add(state, {"t": number})
    for ends in (np.int64(2**31 - 1), -(2**31)):
        state = buffer.add(state, {"t": ends})
    first, second = buffer.sample(state, KEY).experience
    assert (first["t"] == 2**31 - 1).all() and (second["t"] == -(2**31)).all()


@pytest.mark.parametrize(
    "batch, said",
    [
        (STEP | {"observation": 2**40}, "batch['observation'] is an int that JAX cannot read"),
        (STEP | {"observation": "x"}, "batch['observation'] is a str that JAX cannot read"),
        ({"observation": jnp.zeros(3)}, "batch is a PyTreeDef({'observation': *}); allowed, as init() was given"),
        (STEP | {"reward": jnp.zeros(2)}, "batch['reward'] is float32[2]; allowed: float32[]"),
        (STEP | {"observation": jnp.zeros(3, int)}, "batch['observation'] is int32[3]; allowed: float32[3]"),
    ],
)
def test_a_batch_of_other_shapes_is_refused_by_name(batch, said):
    buffer, state = filled(10)
    with refused(said):
        buffer.add(state, batch)


def test_axes_of_a_batch_are_said_as_they_are_given():
    buffer = per.jax.make_prioritised_flat_buffer(100, 1, 16, add_sequences=True, add_batch_size=2)
    state = buffer.init(STEP)
    with refused("is float32[3]; allowed: float32[2, K, 3]"):
        buffer.add(state, STEP)
    for reward in (0.0, jnp.zeros(2), jnp.zeros((2, 4, 1))):
        with refused("; allowed: float32[2, K]"):
            buffer.add(state, {"observation": jnp.zeros((2, 4, 3)), "reward": reward})
    with refused("batch has arrays of [4, 5] steps"):
        buffer.add(state, {"observation": jnp.zeros((2, 4, 3)), "reward": jnp.zeros((2, 5))})
    with refused("priorities has shape [3]; allowed: [2], as indices"):
        buffer.set_priorities(state, jnp.zeros((2, 2), jnp.uint32), jnp.ones(3))


def test_arguments_that_cannot_be_are_refused_by_name():
    make = per.jax.make_prioritised_trajectory_buffer
    with refused("give one of max_size and max_length_time_axis"):
        make(1, 1, 2, 1, 2)
    with refused("give one of max_size and max_length_time_axis"):
        make(1, 1, 2, 1, 2, max_size=10, max_length_time_axis=10)
    with refused("sample_sequence_length is 1; allowed: 2 to 10"):
        make(1, 1, 1, 1, 2, max_size=10)
    with pytest.raises(per.Error, match="device is 'tpu'"):
        per.jax.make_prioritised_flat_buffer(100, 1, 16, device="tpu").init(STEP)


@pytest.mark.parametrize(
    ("name", "number", "allowed"),
    [
        ("add_batch_size", 0, "1 and above"),
        ("sample_batch_size", -1, "1 and above"),
        ("sample_batch_size", 1.5, "an int"),
        ("max_length", "5", "an int"),
        ("min_length", None, "an int"),
        ("max_length_time_axis", "5", "an int"),
        ("min_length_time_axis", 2.0, "an int"),
        ("period", 1.0, "an int"),
        ("sample_sequence_length", "3", "an int"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(name, number, allowed):
    arguments = {
        per.jax.make_flat_buffer: {"max_length": 9, "min_length": 1, "sample_batch_size": 1, "add_batch_size": 1},
        per.jax.make_trajectory_buffer: {
            "add_batch_size": 1,
            "sample_batch_size": 1,
            "sample_sequence_length": 3,
            "period": 1,
            "min_length_time_axis": 3,
            "max_length_time_axis": 9,
        },
    }
    for make, given in arguments.items():
        if name in given:
            with pytest.raises(per.InvalidArgument, match=f"{name} is {number!r}.*; allowed: {allowed}"):
                make(**given | {name: number})


def test_calls_with_something_else_than_their_arguments_are_refused_by_name():
    buffer = per.jax.make_prioritised_flat_buffer(100, 1, 4)
    with refused("this state is of another buffer"):
        buffer.add(filled(10)[1], STEP)
    for step, said in (
        (None, "the number of fields is 0"),
        ("abc", "step is a str"),
        ({"a": object()}, "step['a'] is"),
    ):
        with refused(said):
            buffer.init(step)
    state = buffer.init(STEP)
    for call in (
        lambda state: buffer.add(state, STEP),
        lambda state: buffer.sample(state, KEY),
        lambda state: buffer.set_priorities(state, jnp.zeros((1, 2), jnp.uint32), jnp.ones(1)),
        buffer.can_sample,
        buffer.state_dict,
    ):
        with refused("state is None; allowed: the state that the previous call returned"):
            call(None)
    with refused("state_dict is an int; allowed: what state_dict() returned"):
        buffer.load_state_dict(3)
    with refused("state_dict has ['1', 'a']; allowed: ['checkpoint', 'ticket']"):
        buffer.load_state_dict({1: 2, "a": 3})
    for duplicate in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"per\.jax\.Buffer cannot be pickled.* Pickle its state_dict\(\)"):
            duplicate(buffer)
    assert buffer.add(state, STEP).current_index == 1


def test_a_package_without_the_custom_calls_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(per._xla, "__file__", str(tmp_path / "_xla.py"))
    with pytest.raises(ImportError, match=r"needs .*libper_xla\.so, which this build of libper lacks: XLA's headers"):
        per._xla.load()
