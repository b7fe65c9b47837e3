"""Targets computed from a batch's rewards give each transition the right weight and priority, or an error."""

from __future__ import annotations

import copy
import pickle
import textwrap
import warnings

import numpy as np
import per
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402  torch may be missing
from per.integrations import _weighted_losses as weighted_losses  # noqa: E402
from per.integrations._weighted_losses import WeightedRewards  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

ORDER = torch.tensor([3, 0, 4, 1, 2])


def plain(tensor):
    return tensor.as_subclass(torch.Tensor).detach()


# ------------------------------------------------------------------------------------------------ losses by hand


def drawn(first_reward=1.0, reductions=("mean",), **options):
    """The buffer of a draw of six transitions, their rewards [6, 1] that go up by 1, and their weights."""
    replay = per.ReplayBuffer(20, {"observation": per.Field(1)}, alpha=1.0, beta=1.0, epsilon=0.0, **options)
    for t in range(6):
        flags = {"terminated": t == 5, "truncated": False, "next_observation": [t + 1.0]}
        replay.add(observation=[float(t)], reward=first_reward + t, **flags)
    replay.update_priorities(replay.live_ids(), priorities=[4, 2, 1, 8, 16, 32])
    batch = replay.sample(6, scheme="without_replacement")
    order = np.argsort(batch.ids)
    rewards, weights = (torch.as_tensor(array[order]).reshape(6, 1) for array in (batch.reward, batch.weights))
    return replay, WeightedRewards.of(rewards, weights, replay, batch.ids[order], reductions), weights


def priorities(replay):
    return torch.as_tensor(replay.priorities(replay.live_ids()))


MOVES = {
    "index": lambda r: (r[ORDER], ORDER),
    "mask": lambda r: (r[r.flatten() > 2], torch.tensor([2, 3, 4, 5])),
    "flip": lambda r: (r.flip(0), torch.arange(5, -1, -1)),
    "roll": lambda r: (r.roll(2, 0), torch.tensor([4, 5, 0, 1, 2, 3])),
    "argsort": lambda r: (r[r.flatten().neg().argsort().as_subclass(torch.Tensor)], torch.arange(5, -1, -1)),
    "slice": lambda r: (r[1:4], torch.tensor([1, 2, 3])),
    "joined": lambda r: (torch.cat([r[4:], r[:2]]), torch.tensor([4, 5, 0, 1])),
    "stacked": lambda r: (torch.stack([r[i] for i in (5, 0)]), torch.tensor([5, 0])),
    "transposed": lambda r: (r.T.reshape(3, 2).T.reshape(6, 1), torch.tensor([0, 2, 4, 1, 3, 5])),
    "normalized": lambda r: ((r - r.mean()) / r.std() * r.std() + r.mean(), torch.arange(6)),
    "written": lambda r: (r.clone().clamp_(1.0, 6.0).masked_fill_(r > 9, 0.0), torch.arange(6)),
    "repeated": lambda r: (r.repeat(2, 1), torch.arange(6).repeat(2)),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_weights_and_td_errors_go_where_the_rewards_went(loss, move):
    replay, rewards, weights = drawn()
    before = priorities(replay)
    target, rows = MOVES[move](rewards)
    prediction = torch.full_like(plain(target), 0.5)
    found = loss(prediction, target)
    expected = plain(rewards)[rows]
    torch.testing.assert_close(found, (weights[rows] * loss(prediction, expected, reduction="none")).mean())
    before[rows] = (expected - 0.5).abs().flatten()
    torch.testing.assert_close(priorities(replay), before)


UNKNOWN = {
    "sort": (lambda r: r.sort(0).values, r"after torch\.Tensor\.sort\(\)"),
    "sum": (lambda r: r.cumsum(0), r"after torch\.Tensor\.cumsum\(\)"),
    "mixed": (lambda r: r + r.flip(0), r"after torch\.Tensor\.add\(\)"),
    "broadcast": (lambda r: r + r.flatten(), r"after torch\.Tensor\.add\(\)"),
    "mean": (lambda r: r.mean().expand(6, 1), r"after torch\.Tensor\.expand\(\)"),
    "copied": (lambda r: r.copy_(r.flip(0)), r"after torch\.Tensor\.copy_\(\) wrote into a tensor of the batch"),
    "assigned": (lambda r: (r.__setitem__(0, r[1]), r)[1], r"after torch\.Tensor\.__setitem__\(\) wrote into"),
    "a view": (lambda r: (r.flatten().copy_(plain(r).flatten()), r)[1], r"after torch\.Tensor\.copy_\(\) wrote into"),
    "other rows": (lambda r: r[1:], "as input and target belong to different ones"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_loss_that_cannot_tell_whose_its_targets_are_raises_and_changes_nothing(name):
    compute, message = UNKNOWN[name]
    replay, rewards, _ = drawn()
    before = bytes(replay)
    prediction = torch.zeros(6, 1)
    if name == "other rows":
        prediction = rewards[:5] * 0
    with pytest.raises(per.InvalidArgument, match=f"^torch.nn.functional.mse_loss.* cannot tell .*{message}"):
        F.mse_loss(prediction, compute(rewards))
    assert bytes(replay) == before


def test_the_same_loss_of_a_plain_tensor_is_left_alone():
    replay, rewards, _ = drawn()
    before = bytes(replay)
    ordered = rewards.sort(0, descending=True).values.as_subclass(torch.Tensor)
    torch.testing.assert_close(F.mse_loss(torch.zeros(6, 1), ordered), torch.tensor((1 + 4 + 9 + 16 + 25 + 36) / 6))
    assert F.mse_loss(torch.zeros(6, 1), rewards.flip(0), reduction="sum") * 1 == 91
    assert bytes(replay) == before


def test_losses_of_parts_of_a_batch_set_priorities_by_all_critics_of_their_part():
    replay, rewards, _ = drawn()
    for part in (slice(0, 2), slice(2, 6)):
        for value in (0.0, 3.0):
            F.mse_loss(torch.full_like(plain(rewards[part]), value), rewards[part])
    by_hand = [(abs(reward) + abs(reward - 3)) / 2 for reward in range(1, 7)]
    torch.testing.assert_close(priorities(replay), torch.tensor(by_hand))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_joined_batches_weigh_each_part_by_its_own_draw(reduction):
    both = ("mean", "sum", "none")
    (one, first, first_weights), (other, second, second_weights) = drawn(1.0, both), drawn(11.0, both)
    joined = torch.cat([first, torch.full((2, 1), 7.0), second])[torch.arange(13, -1, -1)]
    loss = F.mse_loss(target=joined, input=torch.zeros(14, 1), reduction=reduction)
    weights = torch.cat([first_weights, torch.ones(2, 1), second_weights]).flip(0)
    losses = weights * plain(joined) ** 2
    torch.testing.assert_close(loss, losses if reduction == "none" else getattr(losses, reduction)())
    torch.testing.assert_close(priorities(one), torch.arange(1.0, 7))
    torch.testing.assert_close(priorities(other), torch.arange(11.0, 17))


def test_older_arguments_of_losses_say_the_same():
    for arguments, reduction in (((True,), "mean"), ((False,), "sum"), ((None, False), "none")):
        _, rewards, weights = drawn(reductions=("mean", "sum", "none"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = F.mse_loss(torch.zeros(6, 1), rewards, *arguments)
        losses = weights * plain(rewards) ** 2
        torch.testing.assert_close(loss, losses if reduction == "none" else getattr(losses, reduction)())


def test_a_loss_with_weights_of_its_own_is_a_mean_by_these():
    _, rewards, weights = drawn()
    own = torch.arange(6.0).reshape(6, 1)
    loss = F.mse_loss(torch.zeros(6, 1), rewards, weight=own)
    torch.testing.assert_close(loss, (own * weights * plain(rewards) ** 2).sum() / 15)


def test_the_largest_error_of_several_critics_counts_where_the_buffer_says_so():
    replay, rewards, _ = drawn(critics="max")
    values = torch.tensor([0.0, 5.0]).reshape(2, 1).expand(2, 6)
    F.mse_loss(values, rewards.flatten().repeat(2, 1))  # axes in front are critics
    torch.testing.assert_close(priorities(replay), torch.tensor([4.0, 3, 3, 4, 5, 6]))
    replay, rewards, _ = drawn(critics="max")
    F.mse_loss(torch.tensor([0.0, 5.0]).expand(6, 2), rewards.repeat(1, 2))  # others are parts of one value
    torch.testing.assert_close(priorities(replay), torch.tensor([2.5, 2.5, 2.5, 2.5, 2.5, 3.5]))


# ------------------------------------------------------------------------------------------- functions of torch


def tensors(*trees):
    return [leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, torch.Tensor)]


def carriers(*trees):
    return [tensor for tensor in tensors(trees) if isinstance(tensor, WeightedRewards)]


def argument_lists(shape):
    """Functions of rewards that make argument lists like those of torch functions."""
    other, mask, order = torch.linspace(0.5, 1.5, 5).reshape(shape), ORDER.reshape(shape) > 1, ORDER.reshape(shape)
    whole, pair = (5, 1), (0, 1)
    tails = [
        *[(), (0,), (1,), (-1,), (2,), (0.5,), (other,), (mask,), (ORDER,), (order,), (shape,), (whole,), ((1, 5),)],
        *[(5, 1), ((-1,),), ([0, 2, 1, 4, 3],), ([2, 3],), (slice(1, 4),), (torch.float64,), ("cpu",), ((1, 0),)],
        *[(0, ORDER), (0, order), (0, 0), (0, 1), (1, 0), (-1, 0), (0, -1), (0, 1, 3), (0, 2, 1), (0, whole)],
        *[(0, [2, 3]), (2, 0), (2, pair), (1, pair), (mask, 0.5), (mask, other), (other, other), (other, 0.5)],
        *[(0.1, 0.9), (0, ORDER, 1.5), (0, mask), (0, order, other), (0, ORDER, other), (whole, (1, 1)), ((0,),)],
        *[((ORDER,), other), (0, order, 0.5)],
    ]
    makers = [lambda x, tail=tail: (x, *tail) for tail in tails]
    makers += [
        *(lambda x: (x, x * 2), lambda x: (x, x.flip(0)), lambda x: (x, x > -2), lambda x: (x, x[:1])),
        *(lambda x: (x, mask, x * 2), lambda x: (x, x * 2, x * 3), lambda x: (x, x.flip(0), other)),
        *(lambda x: (other, x), lambda x: (2.0, x), lambda x: (mask, x), lambda x: (ORDER, x)),
        *(lambda x: (other, other, x), lambda x: (mask, x, other), lambda x: (mask, x, x.flip(0))),
        *(lambda x: (mask, other, x), lambda x: (x, ORDER, x[ORDER]), lambda x: (x, slice(0, 5), x.flip(0))),
        *(lambda x: (x, 0, x[1]), lambda x: (x > 0,), lambda x: (x > 0, x > -2), lambda x: (x > 0, mask)),
        *(lambda x: ((x > 0).long(),), lambda x: ((x > 0).long(), order), lambda x: (torch.stack([x, x * 2]),)),
        *(lambda x: (x.double(), 2), lambda x: (x.double(), x.double().flip(0))),
    ]
    for parts in (lambda x: [x, other], lambda x: [other, x], lambda x: [x, x.flip(0)], lambda x: (x, x * 2)):
        makers += [lambda x, parts=parts, tail=tail: (parts(x), *tail) for tail in ((), (0,), (-1,))]
    return makers


def arguments_of(make, values, shape):
    """An argument list in memory that is not shared with others."""
    rewards = WeightedRewards.of(values.clone().reshape(shape), torch.ones(shape), None, np.arange(5))
    return pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) and leaf is not rewards else leaf, make(rewards)
    )


def known(*trees):
    """The rewards whose rows are known, provided that a loss of them would not raise."""
    found = [tensor for tensor in carriers(trees) if tensor._origin.rows is not None]
    return [] if any(draw.spoiled_by for tensor in found for draw in tensor._origin.draws) else found


def is_unchanged(given, before):
    """Whether tensors have their earlier numbers, and rewards their rows."""

    def is_same(one, other):
        kinds = [(t.dtype, t.shape, t.requires_grad) for t in (one, other)]
        return kinds[0] == kinds[1] and torch.equal(one, other)

    return all(map(is_same, tensors(given), before)) and len(known(given)) == len(carriers(given))


VALUES = torch.tensor([0.3, -0.7, 0.9, 0.1, -0.2])


def goes_to_another_row(function, make, shape):
    """Whether a number in a call's result depends on a reward of another row."""

    def call(values):
        given = arguments_of(make, values, shape)
        torch.manual_seed(0)
        return known(function(*given), given)

    changed = torch.where(torch.arange(5) == 3, 0.6, VALUES)
    for one, other in zip(call(VALUES), call(changed), strict=True):
        rows = one._origin.rows & 0xFFFFFF
        is_same = torch.isclose(plain(one).double(), plain(other).double(), rtol=0, atol=0, equal_nan=True)
        if not torch.equal(rows, other._origin.rows & 0xFFFFFF) or not (is_same | (rows == 3)).all():
            return True
    return False


def works(function, arguments):
    try:
        function(*arguments)
    except Exception:
        return False
    return True


def described(function, arguments):
    """A call in one line."""
    name = torch.overrides.resolve_name(function) or function
    return textwrap.shorten(f"{name}{tuple(arguments)}", 200, placeholder=" ...")


@pytest.mark.long
@pytest.mark.parametrize("shape", [(5, 1), (5,)])
def test_functions_of_torch_leave_each_number_with_its_row_or_make_it_unknown(shape):
    """Changing one reward changes only numbers of its row, whatever the function and its arguments."""
    # In the same order in each run: dicts keep their order, that of sets depends on addresses.
    listed = dict.fromkeys(f for f, rule in weighted_losses._RULES.items() if rule is not weighted_losses._unrelated)
    functions = dict.fromkeys(f for names in torch.overrides.get_overridable_functions().values() for f in names)
    functions |= listed
    # torch does not report the first to __torch_function__; the second is for parameters; the third gives any numbers.
    for function in (torch.Tensor.set_, torch.Tensor.module_load, torch.empty_like):
        del functions[function]
    makers = argument_lists(shape)
    arguments = [arguments_of(make, VALUES, shape) for make in makers]
    before = [[plain(tensor).clone() for tensor in tensors(given)] for given in arguments]
    without_rewards = [pytree.tree_map_only(torch.Tensor, lambda t: plain(t).clone(), given) for given in arguments]
    reached, problems = set(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for function in functions:
            # Functions outside the list are only checked for writes, which takes fewer kinds of arguments.
            for i, make in enumerate(makers if function in listed else makers[:30]):
                try:
                    result, is_call = function(*arguments[i]), True
                except Exception as error:  # the arguments fit other functions
                    result, is_call = None, False
                    if function in listed and works(function, without_rewards[i]):
                        call = described(function, without_rewards[i])
                        problems.append(f"{call} works, but of rewards it raises {error}")
                with torch._C.DisableTorchFunctionSubclass():
                    is_known, is_written = bool(known(result)), not is_unchanged(arguments[i], before[i])
                if is_written:  # a call that raised may have written before that, as dropout1d() does in place
                    arguments[i] = arguments_of(make, VALUES, shape)
                if is_call and (is_known or is_written):
                    if is_known or result is None:
                        reached.add(function)
                    if goes_to_another_row(function, make, shape):
                        call = described(function, arguments_of(make, VALUES, shape))
                        problems.append(f"{call} gives a row numbers that depend on another one's reward")
    assert not problems, f"{len(problems)} of them:\n" + "\n".join(problems[:10])
    if len(shape) == 2:
        assert listed.keys() - reached <= {torch.Tensor.cuda, torch.empty_like}


def test_as_many_losses_as_transitions_set_their_mean():
    """Seventeen and more critics for as many ids are otherwise taken for a broadcast by mistake."""
    replay = per.ReplayBuffer(30, {"observation": per.Field()}, epsilon=0.0)
    steps = {"observation": range(18), "next_observation": range(1, 19), "reward": [1.0] * 18}
    ids = replay.extend(**steps, terminated=[0] * 18, truncated=[0] * 18)
    rewards = WeightedRewards.of(torch.ones(18), torch.ones(18), replay, ids)
    for i in range(20):
        F.mse_loss(torch.full((18,), float(i)), rewards)
        mean = np.mean([abs(1 - k) for k in range(i + 1)])
        np.testing.assert_allclose(replay.priorities(ids), mean, rtol=1e-6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tensor: pickle.loads(pickle.dumps(tensor))])
def test_copies_are_plain_tensors(copied):
    replay, rewards, _ = drawn()
    before = priorities(replay)
    twin = copied(rewards)
    assert type(twin) is torch.Tensor
    assert torch.equal(twin, plain(rewards))
    F.mse_loss(torch.zeros(6, 1), twin)
    assert torch.equal(priorities(replay), before)
