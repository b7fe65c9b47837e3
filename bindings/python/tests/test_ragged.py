"""Rows of any length in Python: how they are given, and the batches in the form of each array library.

tests/c/replay_ragged.c and the walks of test_replay_model.py compare their contents.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import per
import per.torch
import pytest

ROWS = [[5, 7], [], [1, 2, 3]]
POINTS = per.Field((None, 2), "float32", max_length=4)
TOKENS = per.Field(None, "int16", max_length=6)
ENDS = {"terminated": True, "truncated": False}


def ragged(rows=ROWS, dtype=np.int64):
    values = [value for row in rows for value in row]
    return per.Ragged(np.array(values, dtype), np.cumsum([0, *map(len, rows)]))


def buffer_of(n_envs=1, **options):
    fields = {"observation": per.Field(), "tokens": TOKENS, "points": POINTS}
    return per.ReplayBuffer(40 * n_envs, fields, n_envs=n_envs, seed=2, **options)


def add_three(buffer, tokens, points=((), (), ())):
    """Three environments with one step each."""
    more = {"reward": [0, 0, 0], "terminated": [True] * 3, "truncated": [False] * 3}
    return buffer.add(observation=[0, 1, 2], next_observation=[0, 0, 0], tokens=tokens, points=points, **more)


def as_lists(rows):
    return [row.tolist() for row in rows]


@pytest.mark.parametrize("end", [2, 4])
def test_rows_that_are_not_those_of_all_values_are_refused_where_they_are_added(end):
    torch = pytest.importorskip("torch")
    buffer = per.ReplayBuffer(40, {"observation": per.Field(), "tokens": TOKENS}, arrays="torch")
    # As on a device, where per.Ragged does not look at offsets.
    rows = per.ragged.of_tree((1,), (torch.arange(3), torch.tensor([0, end])))
    step = {"observation": 0, "next_observation": 0, "reward": 0, "terminated": True, "truncated": False}
    with pytest.raises(
        per.InvalidArgument, match=rf"^tokens\.offsets ends with {end}; allowed: 3, as there are values$"
    ):
        buffer.add(tokens=rows, **step)
    assert buffer.stats().added == 0


def test_arrays_of_a_batch_can_be_read_once_its_slot_has_grown():
    tokens = per.Field(None, "float32", max_length=2_000_000)
    buffer = per.ReplayBuffer(10, {"observation": per.Field(), "tokens": tokens})
    step = {"observation": 0, "next_observation": 0, "reward": 0, "terminated": True, "truncated": False}
    buffer.add(tokens=np.ones(100_000, np.float32), **step)
    with buffer.loader(2, slots=2) as batches:
        batch = batches.take()
        values = batch.tokens.values
        batch.release()
        buffer.clear()
        buffer.add(tokens=np.ones(1_500_000, np.float32), **step)
        for _ in range(5):
            batches.take().release()
        assert len(values) == 200_000
        assert np.isfinite(values).all()


# ---- per.Ragged


def test_rows_are_views_of_the_values():
    rows = ragged()
    assert as_lists(rows) == ROWS and len(rows) == 3 and rows.lengths.tolist() == [2, 0, 3]
    rows[2][0] = 9
    assert rows.values.tolist() == [5, 7, 9, 2, 3] and rows[-1].tolist() == [9, 2, 3]


def test_rows_of_sequences_have_two_axes():
    rows = per.Ragged(np.arange(6), np.array([0, 1, 1, 3, 6]), (2, 2))
    assert rows.lengths.tolist() == [[1, 0], [2, 3]]
    assert rows[1, 0].tolist() == [1, 2] and as_lists(rows[1]) == [[1, 2], [3, 4, 5]]
    assert rows.padded(4, value=-1).tolist() == [[[0, -1, -1, -1], [-1] * 4], [[1, 2, -1, -1], [3, 4, 5, -1]]]


def test_padded_has_the_longest_row_or_the_length_asked_for():
    assert ragged().padded().tolist() == [[5, 7, 0], [0, 0, 0], [1, 2, 3]]
    assert ragged().padded(5).shape == (3, 5)
    points = per.Ragged(np.ones((3, 2), np.float32), np.array([0, 1, 3]))
    assert points.padded(value=9).tolist() == [[[1, 1], [9, 9]], [[1, 1], [1, 1]]]
    assert per.Ragged(np.zeros((0, 2)), np.zeros(3, np.int64)).padded().shape == (2, 0, 2)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: ragged().padded(2), r"length is 2; allowed: 3 and more"),
        (lambda: ragged().padded(4.5), r"length is 4.5"),
        (lambda: ragged().padded(value=0.5), r"value is 0.5; allowed: whole numbers from -"),
        (lambda: ragged().padded(value=2**63), r"value is 9223372036854775808; allowed: whole numbers from -"),
        (lambda: ragged().padded(value="x"), r"value is 'x'; allowed: a number"),
        (lambda: ragged().padded(2**40), r"out of memory: rows of shape \[3298534883328\]"),
        (lambda: ragged().padded(2**62), r"out of memory: rows of shape \[13835058055282163712\]"),
        (lambda: ragged()["a"], r"index is 'a'; allowed: up to 1 whole numbers"),
        (lambda: ragged()[0, 0], r"allowed: up to 1 whole numbers"),
        (
            lambda: per.Ragged(np.zeros(3), np.array([0, 3]), (2,)),
            r"offsets has 2 entries; allowed: 1 more than rows, 2",
        ),
        (lambda: per.Ragged(np.zeros(3), [0, 1, 3], 2), r"shape is 2; allowed: a tuple of whole numbers"),
        (lambda: per.Ragged(np.zeros(3), [0, 1, 3], (-2, -1)), r"shape\[0\] is -2; allowed: 0 and above"),
        (lambda: per.Ragged(np.zeros(3), [0, 1, 3], (2.0,)), r"shape\[0\] is 2.0, a float; allowed: an int"),
        (lambda: per.Ragged(np.float32(5), [0, 1]), r"values is a float32; allowed: an array, whose first axis"),
        (lambda: per.Ragged(np.zeros(3), []), r"offsets has shape \[0\]; allowed: \[n \+ 1\], for n rows"),
        (lambda: per.Ragged(np.zeros(3), [[0, 1], [1, 3]]), r"offsets has shape \[2, 2\]; allowed: \[n \+ 1\]"),
        (lambda: per.Ragged(np.zeros(3), 3), r"offsets has shape \[\]; allowed: \[n \+ 1\]"),
        (lambda: ragged().nested(), r"nested\(\) of an array of numpy|nested\(\) of .*; allowed: arrays='torch'"),
    ],
)
def test_misuse_is_an_error_that_says_what_is_allowed(call, text):
    with pytest.raises(per.Error, match=text):
        call()


@pytest.mark.parametrize(
    "offsets, text",
    [
        ([1, 2, 4], "offsets begins with 1 and ends with 4; allowed: 0, 4"),
        ([0, 2, 3], "offsets begins with 0 and ends with 3; allowed: 0, 4"),
        ([0, 3, 1, 4], "offsets falls; allowed: ascending numbers"),
    ],
)
def test_offsets_are_those_of_all_values(offsets, text):
    with pytest.raises(per.InvalidArgument, match=text):
        per.Ragged(np.arange(4), offsets)
    torch = pytest.importorskip("torch")
    with pytest.raises(per.InvalidArgument, match=text):
        per.Ragged(torch.arange(4), torch.tensor(offsets))
    with pytest.raises(per.InvalidArgument, match=text):
        per.ragged.of_tree((len(offsets) - 1,), (torch.arange(4), torch.tensor(offsets))).padded()


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_offsets_of_real_numbers_are_refused(library):
    asarray = pytest.importorskip(library).asarray
    with pytest.raises(per.InvalidArgument, match="offsets has dtype float32; allowed: whole numbers"):
        per.Ragged(asarray([5, 7]), asarray([0.0, 1.0, 2.0]))


def test_offsets_without_values_are_taken_as_they_are():
    torch = pytest.importorskip("torch")

    def lengths(values, offsets):
        return per.Ragged(values, offsets).lengths

    offsets = torch.tensor([[0, 2, 5], [0, 3, 5]])
    compiled = torch.compile(lengths, fullgraph=True, backend="eager")
    assert compiled(torch.arange(5), offsets[0]).tolist() == [2, 3]
    assert torch.func.vmap(lengths)(torch.zeros(2, 5), offsets).tolist() == [[2, 3], [3, 2]]
    assert lengths(torch.zeros(5, device="meta"), offsets[0].to("meta")).shape == (2,)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
@pytest.mark.parametrize(
    ("dtype", "value", "is_allowed"),
    [
        ("bool", True, True),
        ("bool", 0.5, False),
        ("bool", 7, False),
        ("float16", 65504, True),
        ("float16", 1e30, False),
        ("float32", -1e30, True),
        ("float32", -1e300, False),
        ("float32", np.inf, True),
        ("bfloat16", 1e30, True),
        ("bfloat16", 3.4e38, False),
        ("float64", 1e300, True),
        ("uint16", 65535, True),
        ("uint16", 65536, False),
        ("uint32", 2**32 - 1, True),
        ("uint64", 2**63, True),
        ("uint64", -1, False),
        ("uint8", 255, True),
        ("int8", 128, False),
    ],
)
def test_rows_are_padded_with_a_value_that_their_elements_can_have(library, dtype, value, is_allowed):
    if (library, dtype) in (("numpy", "bfloat16"), ("jax.numpy", "float64"), ("jax.numpy", "uint64")):
        pytest.skip("no such arrays")
    module = pytest.importorskip(library)
    rows = per.Ragged(module.ones(3, dtype=getattr(module, dtype)), [0, 1, 3])
    if is_allowed:
        padded = rows.padded(3, value)
        assert padded.dtype == rows.values.dtype
        expected = module.full((), value, dtype=rows.values.dtype).item()
        assert padded.tolist() == [[1, expected, expected], [1, 1, expected]]
    else:
        with pytest.raises(per.InvalidArgument, match=r"^value is .*; allowed: "):
            rows.padded(3, value)


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
@pytest.mark.parametrize("length", [2**45, 2**62])
def test_rows_too_long_for_the_memory_are_an_error_of_each_library(library, length):
    asarray = pytest.importorskip(library).asarray
    with pytest.raises(per.OutOfMemory, match="out of memory: rows of shape"):
        per.Ragged(asarray([5, 7]), [0, 1, 2]).padded(length)


@pytest.mark.parametrize("offsets", [[0, 1, 4], range(0, 5, 2), np.array([0, 1, 4], np.uint64)])
def test_offsets_may_be_any_whole_numbers(offsets):
    torch = pytest.importorskip("torch")
    for values in (np.arange(4), [0, 1, 2, 3], torch.arange(4)):
        rows = per.Ragged(values, offsets)
        assert sum(as_lists(rows), []) == [0, 1, 2, 3] and rows.padded().shape[0] == 2  # noqa: RUF017
    assert rows.nested().values().tolist() == [0, 1, 2, 3]


def test_an_index_beyond_the_rows_ends_an_iteration():
    with pytest.raises(IndexError, match=r"allowed for shape \(3,\): -3 to 2"):
        ragged()[3]


# ---- giving rows


@pytest.mark.parametrize(
    "tokens",
    [
        ROWS,
        tuple(map(tuple, ROWS)),
        [np.array(row, np.int8) for row in ROWS],
        ragged(),
        ragged(dtype=np.int16),
        [[5, 7], np.zeros(0, np.uint8), np.array([1, 2, 3], np.int16)],
    ],
)
def test_rows_may_be_given_in_many_forms(tokens):
    buffer = buffer_of(n_envs=3)
    ids = add_three(buffer, tokens, [[[1, 2]], [], [[3, 4], [5, 6]]])
    rows = buffer.get(ids)
    assert as_lists(rows.tokens) == ROWS and rows.tokens.values.dtype == np.int16
    assert as_lists(rows.points) == [[[1, 2]], [], [[3, 4], [5, 6]]]


def test_rows_that_are_all_empty_are_counted_by_their_lists():
    buffer = buffer_of()
    more = {"observation": 0, "next_observation": 0, "reward": 0, **ENDS}
    for points in ([[]], [], np.zeros((0, 2)), np.zeros((1, 0, 2)), per.Ragged(np.zeros((0, 2)), [0, 0])):
        id = buffer.add(tokens=[[]], points=points, **more)
        assert buffer.get(id).points.lengths.tolist() == [0]
        buffer.set(id, points=[[]])
    buffer = buffer_of(n_envs=2)
    more = {"reward": np.zeros((2, 2)), "terminated": np.ones((2, 2)), "truncated": np.zeros((2, 2))}
    zeros = np.zeros((2, 2))
    for points in ([[[], []], [[], []]], [[], [], [], []], np.zeros((2, 2, 0, 2))):
        ids = buffer.extend(
            observation=zeros, next_observation=zeros, tokens=[[[1], []], [[], []]], points=points, **more
        )
        assert buffer.get(ids.ravel()).points.lengths.tolist() == [0, 0, 0, 0]


def test_final_observations_come_from_the_info():
    buffer = per.ReplayBuffer(20, {"observation": TOKENS}, n_envs=2, autoreset="same_step")
    info = {"final_obs": np.array([[7, 8, 9], None], object), "_final_obs": np.array([True, False])}
    step = {"observation": [[1], [2, 3]], "next_observation": [[4], [5]], "reward": [0, 0], "info": info}
    step |= {"terminated": [True, False], "truncated": [False, False]}
    ids = buffer.add(**step)
    assert as_lists(buffer.get(ids).next_observation) == [[7, 8, 9], [5]]
    buffer.clear()
    with buffer.channel().writer() as writer:
        writer.add(**step)
        writer.flush()
    assert as_lists(buffer.get(buffer.live_ids()).next_observation) == [[7, 8, 9], [5]]


def test_equal_lengths_may_be_one_array():
    buffer = buffer_of(n_envs=3)
    ids = add_three(buffer, np.arange(6).reshape(3, 2), np.zeros((3, 1, 2)))
    rows = buffer.get(ids)
    assert as_lists(rows.tokens) == [[0, 1], [2, 3], [4, 5]] and rows.points.lengths.tolist() == [1, 1, 1]


def test_one_environment_needs_no_list_around_its_row():
    buffer = buffer_of()
    for tokens, points in (([4, 5], [[1, 2]]), ([[4, 5]], [[[1, 2]]]), (np.array([4, 5]), np.ones((1, 2)))):
        id = buffer.add(observation=0, next_observation=0, tokens=tokens, points=points, reward=0, **ENDS)
        rows = buffer.get(id)
        assert rows.tokens[0].tolist() == [4, 5] and rows.points[0].shape == (1, 2)
    id = buffer.add(observation=0, next_observation=0, tokens=[], points=[], reward=0, **ENDS)
    assert buffer.get(id).tokens.lengths.tolist() == [0]


def test_runs_are_lists_of_steps():
    buffer = buffer_of(n_envs=2)
    more = {"reward": np.zeros((3, 2)), "terminated": np.ones((3, 2)), "truncated": np.zeros((3, 2))}
    tokens = [[[1], []], [[2, 3], [4]], [[], [5, 6, 7]]]
    points = per.Ragged(np.arange(4).reshape(2, 2), np.array([0, 0, 1, 1, 1, 1, 2]))
    ids = buffer.extend(observation=np.zeros((3, 2)), next_observation=np.zeros((3, 2)), tokens=tokens, points=points,
                        **more)  # fmt: skip
    rows = buffer.get(ids.ravel())
    assert as_lists(rows.tokens) == [[1], [], [2, 3], [4], [], [5, 6, 7]]
    assert as_lists(rows.points) == [[], [[0, 1]], [], [], [], [[2, 3]]]


@pytest.mark.parametrize(
    "tokens, text",
    [
        ([[1], [2]], r"tokens has 2 rows; allowed: 3, one for each step"),
        (ragged([[1]]), r"tokens has 1 rows; allowed: 3"),
        ([[1], [2], [1, 2, 3, 4, 5, 6, 7]], r"tokens: row 2 has 7 values: at most max_length, 6, are allowed"),
        ([[1], [2], [[3]]], r"tokens has rows that differ in the shape of their values"),
        ([[0.5], [1], [2]], r"tokens has dtype float64"),
        ([[1], [2], [40000]], r"tokens\[2\] is 40000: allowed are -32768 .. 32767"),
        (7, r"tokens is an int; allowed: a list of rows, or a per.Ragged"),
        ([1, 2, 3], r"tokens\[0\] is a number; allowed: a row, which has an axis"),
        ([[2.5], [True], [-1]], r"tokens has dtype float64"),
        (None, r"tokens is missing"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_nothing_is_added(tokens, text):
    buffer = buffer_of(n_envs=3)
    with pytest.raises(per.InvalidArgument, match=text):
        add_three(buffer, tokens)
    assert buffer.stats().added == 0


def test_values_of_another_shape_are_named():
    with pytest.raises(per.InvalidArgument, match=r"points has shape \(4,\): expected is \(n, 2\), for n values"):
        add_three(buffer_of(n_envs=3), ROWS, [[1, 2], [3], [4]])


def test_set_replaces_rows_by_longer_and_shorter_ones():
    buffer = buffer_of(n_envs=3)
    ids = add_three(buffer, ROWS)
    buffer.set(ids[:2], tokens=[[], [9, 9, 9, 9, 9, 9]])
    assert as_lists(buffer.get(ids).tokens) == [[], [9] * 6, [1, 2, 3]]
    with pytest.raises(per.InvalidArgument, match="tokens has 1 rows; allowed: 2"):
        buffer.set(ids[:2], tokens=[[]])


# ---- fields


@pytest.mark.parametrize(
    "shape, more, text",
    [
        (None, {}, "needed: max_length, as its first axis is None"),
        ((None, 3), {}, "needed: max_length"),
        (3, {"max_length": 4}, "needed: None as its first axis, with max_length"),
        ((3, None), {"max_length": 4}, "the first one may be None"),
        ((None, None), {"max_length": 4}, "the first one may be None"),
        (None, {"max_length": 0}, "max_length is 0; allowed: 1 and above"),
        (None, {"max_length": -1}, "max_length is -1"),
        (None, {"max_length": 2**31}, "max_length is 2147483648"),
    ],
)
def test_a_free_axis_needs_its_largest_length(shape, more, text):
    with pytest.raises(per.InvalidArgument, match=text):
        per.Field(shape, "float32", **more)


@pytest.mark.parametrize("more", [{"stack": 2}, {"compression": "delta"}, {"default": 0}])
def test_what_does_not_go_with_it_is_unsupported(more):
    with pytest.raises(per.Unsupported, match=next(iter(more))):
        per.Field((None, 8), "uint8", max_length=3, **more)


def test_fields_know_themselves_when_loaded(tmp_path):
    assert repr(POINTS).endswith("max_length=4)") and POINTS.shape == (None, 2) and POINTS.value_shape == (2,)
    buffer = buffer_of()
    buffer.save(tmp_path / "buffer.per")
    loaded = per.ReplayBuffer.load(tmp_path / "buffer.per")
    assert loaded.fields == buffer.fields and loaded.fields["points"].max_length == 4


def test_out_takes_no_rows_of_any_length():
    buffer = buffer_of(n_envs=3)
    add_three(buffer, ROWS)
    batch = buffer.sample(4)
    with pytest.raises(per.InvalidArgument, match="out is given; not allowed with rows of any length"):
        buffer.sample(4, out=batch)


def test_the_memory_for_rows_has_a_limit(tmp_path):
    tokens = {"observation": per.Field(), "tokens": per.Field(None, "int32", max_length=2000)}
    buffer = per.ReplayBuffer(1000, tokens, max_heap_bytes=1_000_000)
    step = {"observation": 0, "tokens": np.ones(2000, np.int32), "reward": 0, "next_observation": 1} | ENDS
    with pytest.raises(per.Full, match=r"bytes more, and \d+ of max_heap_bytes, 1000000, are left"):
        for _ in range(200):
            buffer.add(**step)
    assert 100 < buffer.stats().added < 125  # of 8000 bytes each
    assert buffer.options["max_heap_bytes"] == 1_000_000
    buffer.save(tmp_path / "buffer.per")
    with open(tmp_path / "buffer.per", "rb") as file:
        for place in (tmp_path / "buffer.per", file):
            with pytest.raises(per.Full, match="of max_heap_bytes, 500000, are left"):
                per.ReplayBuffer.load(place, max_heap_bytes=500_000)
    loaded = per.ReplayBuffer.load(tmp_path / "buffer.per")
    assert loaded.options["max_heap_bytes"] is None
    loaded.add(**step)
    buffer.load_state_dict(buffer.state_dict())
    for same in (buffer, pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        assert same.options["max_heap_bytes"] == 1_000_000
    for value, allowed in ((0, "None, or 1 and above"), (-1, "None and 1 .."), (1.5, "an int")):
        with pytest.raises(per.InvalidArgument, match=f"max_heap_bytes is {value}.*allowed.*{allowed}"):
            per.ReplayBuffer(10, tokens, max_heap_bytes=value)


# ---- batches


def filled(**options):
    buffer = buffer_of(n_envs=3, **options)
    for _ in range(4):
        add_three(buffer, ROWS, [[[1, 2]], [], [[3, 4], [5, 6]]])
    return buffer


def check_batch(batch, to_list=lambda array: array.tolist()):
    for i, id in enumerate(to_list(batch.ids)):
        assert to_list(batch.tokens[i]) == ROWS[id % 3]
        assert to_list(batch.points[i]) == [[[1, 2]], [], [[3, 4], [5, 6]]][id % 3]


def test_room_grows_with_the_batches():
    buffer = filled()
    for size in (1, 2, 64, 3, 256):
        check_batch(buffer.sample(size))
    twin = filled()
    for size in (1, 2, 64, 3):  # the same draws, as no batch was drawn for nothing
        twin.sample(size)
    np.testing.assert_array_equal(twin.sample(8).ids, filled_after(4).sample(8).ids)


def filled_after(n_draws):
    buffer = filled()
    for _ in range(n_draws):
        buffer.sample(5)
    return buffer


@pytest.mark.parametrize("options", [{}, {"sequence_length": 3}])
def test_loaders_have_them(options):
    def runs():
        buffer = per.ReplayBuffer(200, {"observation": POINTS, "tokens": TOKENS}, seed=2, **options)
        points = [[[t, k] for k in range(t % 5)] for t in range(61)]
        tokens = [list(range(t % 7)) for t in range(60)]
        flags = {"terminated": [False] * 60, "truncated": [t % 9 == 8 for t in range(60)]}
        steps = {"observation": points[:-1], "tokens": tokens, "next_observation": points[1:], "reward": range(60)}
        buffer.extend(**steps, **flags)
        return buffer

    def check_same(batch, expected):
        assert list(batch) == list(expected)
        for name in expected:
            if isinstance(expected[name], per.Ragged):
                np.testing.assert_array_equal(batch[name].values, expected[name].values)
                np.testing.assert_array_equal(batch[name].offsets, expected[name].offsets)
                assert batch[name].shape == expected[name].shape
            else:
                np.testing.assert_array_equal(batch[name], expected[name])

    twin, shared = runs(), runs().shared_loader(8, readers=1)
    with runs().loader(8, slots=2) as loader, shared.reader() as reader:
        for _ in range(8):
            expected, batches = twin.sample(8), [loader.take(), reader.take()]
            for batch in batches:
                check_same(batch, expected)
                assert str(batch) == str(expected)
                batch.release()


def test_loaders_give_tensors():
    torch = pytest.importorskip("torch")
    with filled(arrays="torch").loader(4) as batches:
        for _ in range(3):
            batch = next(batches)
            assert isinstance(batch.tokens.values, torch.Tensor) and batch.tokens.offsets.dtype == torch.int64
            check_batch(batch)


def test_writers_bring_them_into_the_buffer():
    buffer, twin = buffer_of(n_envs=3), buffer_of(n_envs=3)
    channel = buffer.channel(slots=4)
    with channel.writer() as writer:
        assert writer.fields == buffer.fields
        for k in range(9):
            flags = {"reward": [0] * 3, "terminated": [True] * 3, "truncated": [False] * 3}
            points = [[], [[k, 1]], [[k, 2]] * 4]
            step = {"observation": [0, 1, 2], "next_observation": [0] * 3, "tokens": ROWS, "points": points} | flags
            writer.add(**step)
            twin.add(**step)
        with pytest.raises(per.InvalidArgument, match="tokens: row 1 has 7 values: at most max_length, 6"):
            writer.add(**step | {"tokens": [[], range(7), []]})
    channel.flush()
    batch, expected = buffer.sample(32), twin.sample(32)
    assert batch.ids.tolist() == expected.ids.tolist()
    assert as_lists(batch.tokens) == as_lists(expected.tokens) and as_lists(batch.points) == as_lists(expected.points)
    with pytest.raises(per.InvalidArgument, match='max_length of field "tokens" is 7: in the buffer it is 6'):
        per.Writer(channel.path, buffer.fields | {"tokens": per.Field(None, "int16", max_length=7)})


def test_mixtures_join_them():
    mixture = per.Mixture({"a": (filled(), 1), "b": (filled(), 2)})
    for size in (1, 6, 64, 5):
        batch = mixture.sample(size)
        check_batch(batch)
        assert batch.sources.tolist() == sorted(batch.sources.tolist()) and len(batch.tokens) == size
    assert mixture.state_dict()["carries"]["a"] in range(-(2**32), 2**32)


def test_windows_and_epochs_have_them():
    buffer = filled()
    windows = buffer.get_windows([7, 99, 8], on_invalid="skip")
    assert buffer.get_windows([]).tokens.offsets.tolist() == buffer.get([]).tokens.offsets.tolist() == [0]
    assert as_lists(windows.tokens) == [[], [], [1, 2, 3]] and windows.ids.tolist() == [7, -1, 8]
    sizes = []
    for batch in buffer.epochs(1, 5):
        check_batch(batch)
        sizes.append((len(batch.tokens), batch.tokens.offsets.size, len(batch.ids)))
    assert sizes == [(5, 6, 5), (5, 6, 5), (2, 3, 2)]


@pytest.mark.parametrize("options", [{}, {"sequence_length": 3}])
def test_bootstraps_have_them(options):
    fields = {"observation": POINTS, "value": per.Field(default=0.0), "advantage": per.Field(default=0.0)}
    buffer = per.ReplayBuffer(20, fields, gamma=1.0, **options)
    points = {"observation": [[1, 2]], "next_observation": [[3, 4], [5, 6]]}
    id = buffer.add(**points, reward=2, terminated=False, truncated=True)
    seen = []

    def bootstrap(batch):
        seen.extend(as_lists(batch.next_observation))
        return np.ones(len(batch.ids), np.float32)

    buffer.advantages(bootstrap=bootstrap)
    assert seen == [[[3, 4], [5, 6]]] and buffer.get(id).advantage.tolist() == [3]


def test_batches_are_described_copied_and_pickled():
    batch = filled().sample(6)
    assert "tokens Ragged(int16[" in repr(batch) and "shape=(6,)" in repr(batch)
    for other in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert as_lists(other.tokens) == as_lists(batch.tokens)
    assert list(batch)[:3] == ["observation", "tokens", "points"]


def test_torch_gets_tensors_and_nested_ones():
    torch = pytest.importorskip("torch")
    batch = filled(arrays="torch").sample(8)
    check_batch(batch)
    assert batch.tokens.values.dtype == torch.int16 and batch.tokens.offsets.dtype == torch.int64
    nested = batch.points.nested()
    assert [row.tolist() for row in nested.unbind()] == as_lists(batch.points)
    assert nested.values().data_ptr() == batch.points.values.data_ptr()
    numpy_batch = filled().sample(8)
    assert batch.points.padded(value=7).tolist() == numpy_batch.points.padded(value=7).tolist()
    leaves, tree = torch.utils._pytree.tree_flatten(batch)
    assert any(leaf is batch.tokens.values for leaf in leaves)
    check_batch(torch.utils._pytree.tree_unflatten(leaves, tree))
    paths = [torch.utils._pytree.keystr(path) for path, _ in torch.utils._pytree.tree_flatten_with_path(batch)[0]]
    assert ".tokens.values" in paths and ".points.offsets" in paths
    with pytest.raises(per.Unsupported, match="field tokens has max_length 6: programs take no rows of any length"):
        per.torch.Buffer(filled(arrays="torch"))
    check_batch(batch.to("cpu"))


def test_bfloat16_rows():
    torch = pytest.importorskip("torch")
    fields = {"observation": per.Field(None, "bfloat16", max_length=3)}
    buffer = per.ReplayBuffer(20, fields, arrays="torch")
    row = torch.tensor([0.5, 1.5], dtype=torch.bfloat16)
    buffer.add(observation=[row], next_observation=[row[:1]], reward=0, **ENDS)
    batch = buffer.sample(2)
    assert batch.observation.values.dtype == torch.bfloat16 and batch.observation[1].tolist() == [0.5, 1.5]


def test_jax_gets_its_arrays_and_pads_under_jit():
    jax = pytest.importorskip("jax")
    batch = filled(arrays="jax").sample(8)
    assert isinstance(batch.tokens.values, jax.Array) and batch.tokens.offsets.dtype == np.int32
    check_batch(filled().sample(8))
    for i, row in enumerate(filled().sample(8).tokens):
        assert batch.tokens[i].tolist() == row.tolist()
    padded = batch.points.padded(4)
    assert padded.shape == (8, 4, 2) and padded.tolist() == filled().sample(8).points.padded(4).tolist()
    doubled = jax.jit(lambda rows: rows.values * 2)(batch.points)
    assert doubled.tolist() == (batch.points.values * 2).tolist()
