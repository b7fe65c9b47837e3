"""per.SumTree: each method, its results and its errors."""

import pickle

import cuda_switch
import numpy as np
import per
import pytest
import torch


@pytest.fixture
def tree():
    tree = per.SumTree(4, seed=1)
    tree.update([0, 1, 3], [1.0, 2.0, 5.0])
    return tree


def test_total_is_the_sum_of_priorities_and_len_the_capacity(tree):
    assert tree.total == 8.0
    assert len(tree) == tree.capacity == 4


def test_priorities_are_read_back_all_or_by_index(tree):
    np.testing.assert_array_equal(tree.priorities(), np.array([1, 2, 0, 5], np.float32))
    np.testing.assert_array_equal(tree.priorities([3, 0, 3]), np.array([5, 1, 5], np.float32))
    assert tree.priorities([3]).dtype == np.float32


def test_last_of_equal_indices_wins(tree):
    tree.update([2, 2, 2], [7.0, 0.0, 3.0])
    assert tree.priorities([2])[0] == 3.0
    assert tree.total == 11.0


def test_each_prefix_sum_finds_the_leaf_whose_part_of_the_total_it_lies_in(tree):
    np.testing.assert_array_equal(tree.find([0.0, 0.99, 1.0, 2.5, 3.0, 7.99]), [0, 0, 1, 1, 3, 3])
    assert tree.find([0.5]).dtype == np.int64


def test_first_and_last_unit_of_each_mass_find_their_leaf(tree):
    total, scale = tree.mass
    units = [p * 2**scale for p in (1, 2, 5)]
    assert sum(units) == total
    ends = np.cumsum(units)
    starts = ends - units
    np.testing.assert_array_equal(tree.find_mass(starts.astype(np.uint64)), [0, 1, 3])
    np.testing.assert_array_equal(tree.find_mass(ends.astype(np.uint64) - 1), [0, 1, 3])


def test_draw_without_beta_has_weights_of_one(tree):
    draw = tree.sample(16)
    assert (draw.indices.dtype, draw.priorities.dtype, draw.weights.dtype) == (np.int64, np.float32, np.float32)
    np.testing.assert_array_equal(draw.weights, 1)
    np.testing.assert_array_equal(draw.priorities, tree.priorities(draw.indices))


def test_weights_are_the_smallest_probability_of_the_batch_over_their_own_to_the_power_of_beta(tree):
    draw = tree.sample(64, beta=0.5)
    expected = np.sqrt(draw.priorities.min() / draw.priorities)
    np.testing.assert_allclose(draw.weights, expected, rtol=1e-6)
    assert {0, 1, 3} == set(draw.indices.tolist())


def test_stratified_draws_take_one_index_from_each_equal_part_of_the_total(tree):
    # Strata of width 1 over the masses 1, 2, 0, 5 hold one leaf each.
    np.testing.assert_array_equal(tree.sample(8).indices, [0, 1, 1, 3, 3, 3, 3, 3])


def test_same_seed_draws_the_same_and_another_does_not():
    def drawn(seed):
        tree = per.SumTree(1000, seed=seed)
        tree.update(np.arange(1000), np.ones(1000))
        return [tree.sample(50, scheme="independent").indices.tolist() for _ in range(3)]

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)
    assert drawn(2**64 - 1) == drawn(2**64 - 1)


def test_reset_takes_all_mass(tree):
    tree.reset()
    assert tree.total == 0.0
    with pytest.raises(per.Empty):
        tree.sample(1)


def test_failed_draw_is_no_draw():
    trees = [per.SumTree(4, seed=3) for _ in range(2)]
    with pytest.raises(per.Empty):
        trees[0].sample(4)
    for tree in trees:
        tree.update([0, 1], [1.0, 1.0])
    draws = [tree.sample(32, scheme="independent").indices.tolist() for tree in trees]
    assert draws[0] == draws[1]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda t: t.update([0, 4], [1, 1]), "indices[1] is 4"),
        (lambda t: t.update([-1], [1]), "indices[0] is -1"),
        (lambda t: t.update([0], [np.nan]), "priorities[0] is nan"),
        (lambda t: t.update([0, 1], [1, np.inf]), "priorities[1] is inf"),
        (lambda t: t.update([0], [1e39]), "priorities[0] is inf"),
        (lambda t: t.update([0], [-0.5]), "priorities[0] is -0.5"),
        (lambda t: t.update([0, 1], [1]), "priorities has 1 entries, indices 2"),
        (lambda t: t.update([0.0], [1]), "indices has dtype float64; allowed: whole numbers"),
        (
            lambda t: t.update([2**63], [1]),
            "indices has 9223372036854775808; allowed: -9223372036854775808 to 9223372036854775807",
        ),
        (lambda t: t.update(["a"], [1]), "indices has dtype str; allowed: bool, "),
        (lambda t: t.update([0], ["x"]), "priorities has dtype str; allowed: numbers"),
        (lambda t: t.update([[0], [1, 2]], [1]), "indices is a list that is no array of numbers"),
        (lambda t: t.update(object(), [1]), "indices is an object; allowed: arrays, numbers and lists"),
        (lambda t: t.sample(0), "batch_size is 0"),
        (lambda t: t.sample(-5), "batch_size is -5"),
        (lambda t: t.sample(2**24 + 1), "batch_size is 16777217"),
        (lambda t: t.sample(4.0), "batch_size is 4.0"),
        (lambda t: t.sample(2**70), "batch_size is 1180591620717411303424"),
        (lambda t: t.sample(4, beta=-1), "beta is -1"),
        (lambda t: t.sample(4, beta=np.nan), "beta is nan"),
        (lambda t: t.sample(4, beta="much"), "beta is 'much'"),
        (
            lambda t: t.sample(4, scheme="random"),
            "scheme is 'random'; allowed: 'stratified', 'independent', 'systematic'",
        ),
        (lambda t: t.find([8.0]), "prefix_sums[0] is 8"),
        (lambda t: t.find([0.0, -0.1]), "prefix_sums[1] is -0.1"),
        (lambda t: t.find([np.nan]), "prefix_sums[0] is nan"),
        (lambda t: t.find_mass([-1]), "units has -1; allowed: 0 to 18446744073709551615"),
        (lambda t: t.find_mass([0.5]), "units has dtype float64"),
        (lambda t: t.find_mass([t.mass.total]), "units[0] is"),
        (lambda t: t.priorities([4]), "indices[0] is 4"),
    ],
)
def test_bad_argument_is_named_with_its_value_and_changes_nothing(tree, call, words):
    before = tree.priorities(), tree.total
    with pytest.raises(per.InvalidArgument) as caught:
        call(tree)
    if cuda_switch.names_an_entry(words):
        words = cuda_switch.said(words, "1 entries were not allowed, and skipped: 1 of ")
    assert words in str(caught.value)
    assert caught.value.status == 1
    np.testing.assert_array_equal(tree.priorities(), before[0])
    assert tree.total == before[1]
    np.testing.assert_array_equal(tree.sample(8).indices, [0, 1, 1, 3, 3, 3, 3, 3])


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": -3}, "capacity is -3"),
        ({"capacity": 2**41}, "capacity is 2199023255552"),
        ({"capacity": 2**63}, "capacity is 9223372036854775808; allowed: whole numbers from -2^63 to 2^63 - 1"),
        ({"capacity": 10.0}, "capacity is 10.0"),
        ({"capacity": 4, "seed": -1}, "seed is -1; allowed: whole numbers from 0 to 2^64 - 1"),
        ({"capacity": 4, "seed": 2**64}, "seed is 18446744073709551616"),
        ({"capacity": 4, "device": "gpu"}, "device is 'gpu'; allowed: 'cpu', 'cuda'"),
        ({"capacity": 4, "device": "cuda:x"}, "device is 'cuda:x'"),
        ({"capacity": 4, "device": "cpu:1"}, "device is 'cpu:1'"),
    ],
)
def test_bad_option_is_named_with_its_value(arguments, words):
    with pytest.raises(per.InvalidArgument) as caught:
        per.SumTree(**arguments)
    assert words in str(caught.value)


def test_tree_on_a_missing_device_says_so():
    with pytest.raises(per.NoDevice) as caught:
        per.SumTree(4, device="cuda")
    assert isinstance(caught.value, RuntimeError) and caught.value.status == 7
    assert str(caught.value)


def test_draws_without_replacement_are_distinct_and_no_more_than_there_are(tree):
    draw = tree.sample(3, scheme="without_replacement", beta=0.5)
    assert sorted(draw.indices.tolist()) == [0, 1, 3]
    words = cuda_switch.said("batch_size is 4", "batch_size was more than the leaves of positive priority in 1 draws")
    with pytest.raises(per.InvalidArgument, match=words):
        tree.sample(4, scheme="without_replacement")


def test_empty_arrays_change_nothing(tree):
    tree.update([], [])
    tree.update(np.zeros(0, np.int64), torch.zeros(0))
    assert tree.total == 8.0
    assert tree.find([]).shape == (0,)
    assert tree.find_mass([]).shape == (0,)
    assert tree.priorities([]).shape == (0,)


@pytest.mark.parametrize(
    "indices, priorities",
    [
        (torch.tensor([2, 0]), torch.tensor([4.0, 0.5])),
        (torch.tensor([2, 0], dtype=torch.int32), torch.tensor([4.0, 0.5], requires_grad=True, dtype=torch.float64)),
        (np.array([2, 9, 0], np.uint8)[::2], np.array([[4.0, 9.0], [0.5, 9.0]], np.float32)[:, 0]),
        (np.array([2, 0], ">i8"), np.array([4.0, 0.5], ">f8")),
        ((2, 0), [4, 0.5]),
        (np.array([2, 0], np.uint64), torch.tensor([4.0, 0.5], dtype=torch.bfloat16)),
        (memoryview(np.array([2, 0], np.int16)), np.array([4.0, 0.5], np.float16)),
    ],
)
def test_arrays_of_any_library_kind_and_layout_are_read(tree, indices, priorities):
    tree.update(indices, priorities)
    np.testing.assert_array_equal(tree.priorities(), np.array([0.5, 2, 4, 5], np.float32))


def test_use_after_close_is_an_error(tree):
    with tree as same:
        assert same is tree
    for call in (lambda: tree.total, lambda: tree.sample(1), lambda: tree.update([0], [1]), lambda: tree.__enter__()):
        with pytest.raises(per.InvalidArgument, match="the tree is closed"):
            call()
    tree.close()
    assert "closed" in repr(tree)


def test_repr_says_what_it_is(tree):
    assert repr(tree) == "per.SumTree(4, device='cpu', total=8)"


def test_pickle_is_refused_with_the_reason(tree):
    with pytest.raises(TypeError, match="handle of this process"):
        pickle.dumps(tree)
