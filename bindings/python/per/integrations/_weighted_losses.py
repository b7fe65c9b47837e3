"""Rewards that carry a batch's weights into the losses of learners without support for priorities."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import torch
from torch.nn import _reduction as legacy
from torch.utils import _pytree as pytree

import per
from per.integrations._demonstrations import WithDemonstrations

_LOSSES = {
    loss: inspect.signature(loss)
    for loss in (torch.nn.functional.mse_loss, torch.nn.functional.smooth_l1_loss, torch.nn.functional.huber_loss)
}
_numbers = itertools.count()


@dataclasses.dataclass(eq=False)
class _Draw:
    """The data of a batch that losses of its targets need."""

    replay: per.ReplayBuffer | WithDemonstrations
    ids: Any
    """[B]"""
    weights: torch.Tensor
    """[B]"""
    reductions: tuple[str, ...]
    """reductions of the losses to be weighted"""
    first_row: int = dataclasses.field(default_factory=lambda: next(_numbers) << 24)  # batches have up to 2^24
    """row of the first transition; no other batch has these rows"""
    errors: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)
    """for each loss so far: |TD errors| [critics, B], and bool[B], True for the transitions that have errors"""
    spoiled_by: Any = None
    """function that wrote numbers of unknown rows into a tensor of this batch"""


class _Origin(NamedTuple):
    """The rows that the numbers of a tensor belong to."""

    draws: tuple[_Draw, ...]
    rows: torch.Tensor | None
    """row of each number, int64 in host memory, -1 for a number of no batch; None if unknown"""
    lost_by: Any = None
    """function whose result this is, if the rows are unknown"""


class WeightedRewards(torch.Tensor):
    """Rewards, and targets computed from them. A loss of these is weighted and sets priorities.

    torch calls __torch_function__ in place of every function with such an argument. Each number knows its row of the
    batch: elementwise functions keep the row, and functions that only move numbers move it with them. After any other
    function the row is unknown, and a loss that would be weighted raises an error.

    Learners with several critics compute a loss for each. The first loss sets priorities by its TD errors, and each
    later loss by the TD errors of all critics so far. Axes before the axis of the batch are critics, too. A row with
    further axes uses the mean of its TD errors.
    """

    _origin = _Origin((), None)

    @classmethod
    def of(
        cls,
        rewards: torch.Tensor,
        weights: torch.Tensor,
        replay: per.ReplayBuffer | WithDemonstrations,
        ids: Any,
        reductions: tuple[str, ...] = ("mean",),
    ) -> torch.Tensor:
        """The rewards of drawn transitions, [B] or [B, 1], with their weights and ids.

        Parameters
        ----------
        reductions : tuple[str, ...], default ("mean",)
            Reductions of the losses to be weighted; other losses are unchanged.
        """
        weighted = rewards.as_subclass(cls)
        draw = _Draw(replay, ids, weights.flatten(), reductions)
        rows = torch.arange(draw.first_row, draw.first_row + len(rewards), device="cpu")
        weighted._origin = _Origin((draw,), rows.reshape(rewards.shape))
        return weighted

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are plain tensors: their losses are those of another learner."""
        plain: Any = self.as_subclass(torch.Tensor)
        return plain.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.detach().as_subclass(torch.Tensor).clone()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _LOSSES:
            with torch._C.DisableTorchFunctionSubclass():
                loss = _weighted_loss(function, args, kwargs)
            if loss is not None:
                return loss
        result = super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            return _traced(function, args, kwargs, result)


def _tensors(*trees: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, torch.Tensor)]


def _carriers(*trees: Any) -> list[WeightedRewards]:
    return [tensor for tensor in _tensors(*trees) if isinstance(tensor, WeightedRewards)]


def _draws_of(tensors: list[WeightedRewards]) -> tuple[_Draw, ...]:
    """The distinct batches that tensors come from."""
    return tuple(dict.fromkeys(draw for tensor in tensors for draw in tensor._origin.draws))


def _traced(function: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The result of a function, with the rows of its tensors if known."""
    rule = _RULES.get(function)
    if rule is _unrelated or (rule in (_kept, _moved_as) and not isinstance(_source(args, kwargs), WeightedRewards)):
        return pytree.tree_map_only(WeightedRewards, lambda tensor: tensor.as_subclass(torch.Tensor), result)
    made = _carriers(args[:1] if rule is _written else result)
    if not made:
        return result
    given = _carriers(args, kwargs)
    draws = _draws_of(given)
    found = _tensors(rule(function, args, kwargs, result)) if rule else []
    for tensor, rows in zip(made, found if len(found) == len(made) else [None] * len(made), strict=True):
        # view(dtype) also reinterprets the rows, whose dtype or shape then differs.
        if rows is not None and rows.shape == tensor.shape and rows.dtype == torch.int64:
            tensor._origin = _Origin(draws, rows)
            continue
        if any(tensor is one for one in given):
            # The function wrote in place, and other tensors may share the memory.
            for draw in draws:
                draw.spoiled_by = function
        tensor._origin = _Origin(draws, None, function)
    return result


# The rules. Each returns the rows of a result, or None if they are unknown.


def _unrelated(function: Any, args: Any, kwargs: Any, result: Any) -> None:
    """The result shares at most dtype and device with its arguments, and is a plain tensor."""


def _elementwise(function: Any, args: Any, kwargs: Any, result: Any) -> torch.Tensor | None:
    """Each number is computed from the numbers at the same place, which must have the same row."""
    tensors = _tensors(args, kwargs)
    if isinstance(result, torch.Tensor) and result.shape == _broadcast(tensors):
        return _common_rows(tensors, result.shape)
    return None


def _broadcast(tensors: Iterable[torch.Tensor]) -> torch.Size:
    return torch.broadcast_shapes(*[tensor.shape for tensor in tensors])  # type: ignore[no-untyped-call, no-any-return]


def _common_rows(tensors: Iterable[torch.Tensor], shape: torch.Size) -> torch.Tensor | None:
    """The common rows of tensors that are broadcast to a shape."""
    # A single number of unknown row, such as the mean of all rewards, belongs to no particular row.
    origins = [
        tensor._origin for tensor in _carriers(tensors) if tensor.numel() != 1 or tensor._origin.rows is not None
    ]
    known = [origin.rows for origin in origins if origin.rows is not None]
    if not known or len(known) < len(origins):
        return None
    first = known[0].expand(shape)
    return first if all(rows is known[0] or torch.equal(rows.expand(shape), first) for rows in known) else None


def _source(args: Any, kwargs: Any) -> Any:
    """The first argument, whose numbers a function moves or keeps."""
    return args[0] if args else kwargs.get("input")


def _kept(function: Any, args: Any, kwargs: Any, result: Any) -> torch.Tensor | None:
    """Every number of the first argument keeps its place."""
    source = _source(args, kwargs)
    return source._origin.rows if isinstance(source, WeightedRewards) else None


def _moved(function: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Numbers of the first argument move: the function moves their rows in the same way."""
    source = _source(args, kwargs)
    if not isinstance(source, WeightedRewards) or source._origin.rows is None:
        return None
    rows = source._origin.rows.clone(memory_format=torch.contiguous_format)

    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        return rows if tensor is source else tensor.as_subclass(torch.Tensor).cpu()

    return _applied(function, args, kwargs, replaced)


def _moved_as(function: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The same for functions whose second argument only gives a shape."""
    return _moved(function, args, kwargs, result)


def _joined(function: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Numbers of several tensors are joined. Those of plain tensors have no row."""
    if any(tensor._origin.rows is None for tensor in _carriers(args, kwargs)):
        return None

    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, WeightedRewards) and tensor._origin.rows is not None:
            return tensor._origin.rows
        return torch.full(tensor.shape, -1, device="cpu")

    return _applied(function, args, kwargs, replaced)


def _applied(function: Any, args: Any, kwargs: Any, replaced: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    options = {name: value for name, value in kwargs.items() if name != "out"}
    args, options = pytree.tree_map_only(torch.Tensor, replaced, (args, options))
    return function(*args, **options)


def _written(function: Any, args: Any, kwargs: Any, result: Any) -> torch.Tensor | None:
    """Numbers of the first argument are replaced by a value without rows, or with the same rows."""
    target, *index, value = args
    if not index:  # the whole memory is replaced
        return value._origin.rows if isinstance(value, WeightedRewards) else None
    part = target[index[0]].as_subclass(WeightedRewards)
    part._origin = _Origin((), _moved(torch.Tensor.__getitem__, (target, index[0]), {}, None))
    tensors = _tensors(part, value)
    return None if _common_rows(tensors, _broadcast(tensors)) is None else target._origin.rows


# The functions of each rule; the rows of all other results are unknown. A name stands for the torch function and the
# method; a name in _ELEMENTWISE also for functions of torch.special and torch.nn.functional, and in-place versions.
_ELEMENTWISE = """
    __and__ __invert__ __or__ __rdiv__ __rfloordiv__ __rpow__ __rsub__ __xor__ abs absolute acos acosh add addcdiv
    addcmul arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh bitwise_and bitwise_not
    bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min clip copysign cos cosh deg2rad div divide elu empty_like
    eq erf erfc erfinv exp exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac full_like ge gelu greater
    greater_equal gt hardsigmoid hardswish hardtanh heaviside hypot isclose isfinite isinf isnan isneginf isposinf ldexp
    le leaky_relu lerp less less_equal lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not
    logical_or logical_xor logit logsigmoid lt masked_fill max maximum min minimum mish mul multiply nan_to_num ne neg
    negative nextafter not_equal ones_like positive pow rad2deg rand_like randn_like reciprocal relu relu6 remainder
    round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softsign sqrt square sub subtract tan
    tanh threshold true_divide trunc where xlog1py xlogy zero zeros_like
"""
_KEPT = """
    bfloat16 bool byte clone contiguous cpu cuda detach double float half int long requires_grad_ short to type
    type_as
"""
_MOVED = """
    __getitem__ broadcast_to chunk diagonal expand flatten flip fliplr flipud gather hsplit index_select masked_select
    moveaxis movedim narrow permute ravel repeat reshape roll rot90 select split squeeze squeeze_
    swapaxes swapdims t take take_along_dim tensor_split tile transpose unbind unflatten unfold unsqueeze unsqueeze_
    view vsplit
"""
_JOINED = "cat column_stack concat concatenate dstack hstack row_stack stack vstack"
_UNRELATED = "new_empty new_full new_ones new_tensor new_zeros"


def _descriptor(name: str) -> Any:
    return getattr(torch.Tensor, name)


def _functions(names: str, *others: Any) -> list[Any]:
    found = [getattr(place, name, None) for name in names.split() for place in (torch, torch.Tensor, *others)]
    return [function for function in found if callable(function)]  # torch.bool is a dtype


def _elementwise_functions() -> list[Any]:
    names = " ".join(f"{name} {name}_" for name in _ELEMENTWISE.split())
    return _functions(names, torch.special, torch.nn.functional)


_RULES: dict[Any, Callable[[Any, Any, Any, Any], Any]] = {
    **dict.fromkeys(_elementwise_functions(), _elementwise),
    **dict.fromkeys([*_functions(_KEPT), *(_descriptor(name).__get__ for name in ("data", "real"))], _kept),
    # With one argument the function returns places, not numbers of that argument.
    torch.Tensor.repeat_interleave: _moved,
    **dict.fromkeys([*_functions(_MOVED), *(_descriptor(name).__get__ for name in ("T", "mT"))], _moved),
    **dict.fromkeys(_functions("expand_as reshape_as view_as"), _moved_as),
    **dict.fromkeys(_functions(_JOINED), _joined),
    **dict.fromkeys([torch.Tensor.__setitem__, _descriptor("data").__set__], _written),
    **dict.fromkeys(_functions(_UNRELATED), _unrelated),
}


def _weighted_loss(loss: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The weighted loss, whose TD errors become priorities; None for a loss that is not weighted.

    Raises
    ------
    InvalidArgument
        The weights and TD errors cannot be assigned to rows.
    """
    given = _LOSSES[loss].bind(*args, **kwargs).arguments
    carriers = _carriers(given["input"], given["target"])
    draws = _draws_of(carriers)
    size_average, reduce = given.pop("size_average", None), given.pop("reduce", None)
    if size_average is not None or reduce is not None:
        given["reduction"] = legacy.legacy_get_string(size_average, reduce)
    reduction = given.get("reduction", "mean")
    if not any(reduction in draw.reductions for draw in draws):
        return None
    plain = {name: given[name].as_subclass(torch.Tensor) for name in ("input", "target")}
    losses = loss(**{**given, **plain, "reduction": "none"})
    rows = _common_rows(carriers, losses.shape)
    spoiled_by = next((draw.spoiled_by for draw in draws if draw.spoiled_by is not None), None)
    if rows is None or spoiled_by is not None:
        _refuse(loss, carriers, spoiled_by)
    errors = (plain["target"] - plain["input"]).detach().abs().expand(losses.shape).cpu()
    weights = torch.ones(losses.shape, device=losses.device)
    for draw in draws:
        places = rows - draw.first_row
        is_of_draw = (places >= 0) & (places < len(draw.weights))
        _set_priorities(draw, torch.where(is_of_draw, places, -1), errors)
        places, is_of_draw = places.to(losses.device), is_of_draw.to(losses.device)
        own = draw.weights.to(losses.device)[torch.where(is_of_draw, places, 0)]
        weights = torch.where(is_of_draw, own, weights)
    losses = weights * losses
    if reduction == "none":
        return losses
    if given.get("weight") is not None and reduction == "mean":  # torch divides by the sum of these weights
        return losses.sum() / given["weight"].sum()
    return losses.mean() if reduction == "mean" else losses.sum()


def _set_priorities(draw: _Draw, places: torch.Tensor, errors: torch.Tensor) -> None:
    """Sets priorities by the TD errors of a loss and of earlier ones.

    Parameters
    ----------
    places : torch.Tensor
        Places in the batch, in the shape of the errors; -1 for errors of another batch.
    """
    # Leading axes with identical rows are critics.
    while places.dim() > 1 and torch.equal(places, places[:1].expand(places.shape)):
        places = places[0]
    columns = places.flatten() + 1
    count = len(draw.weights)
    errors = errors.reshape(-1 if len(columns) else 0, len(columns))
    sums = errors.new_zeros(len(errors), count + 1).index_add_(1, columns, errors)[:, 1:]
    counts = torch.bincount(columns, minlength=count + 1)[1:]
    is_given = counts > 0
    if not is_given.any():
        return
    draw.errors.append((sums / counts, is_given))
    ids = torch.as_tensor(draw.ids).cpu()[is_given]
    td_errors = [errors[:, is_given] for errors, has_errors in draw.errors if has_errors[is_given].all()]
    critics = torch.cat(td_errors)
    if len(critics) == len(ids):  # would be taken for a broadcast by mistake; twice as many have the same mean
        critics = critics.repeat(2, 1)
    draw.replay.update_priorities(ids, critics)


def _refuse(loss: Any, carriers: list[WeightedRewards], spoiled_by: Any) -> NoReturn:
    lost_by = [tensor._origin.lost_by for tensor in carriers if tensor._origin.rows is None]
    if spoiled_by is not None:
        happened = f"after {_name(spoiled_by)} wrote into a tensor of the batch"
    elif lost_by:
        happened = f"after {_name(lost_by[0])}"
    else:
        happened = "as input and target belong to different ones"
    raise per.InvalidArgument(
        f"{_name(loss)} cannot tell which transitions its targets belong to, {happened}; allowed: targets computed "
        "from the rewards of a batch by elementwise functions and by those that index, reshape or join; or "
        "target.as_subclass(torch.Tensor), whose loss is not weighted"
    )


def _name(function: Any) -> str:
    return f"{torch.overrides.resolve_name(function) or getattr(function, '__name__', function)}()"
