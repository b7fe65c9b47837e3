"""Rewards of a batch that bring their weights into the losses of learners that know nothing of priorities."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

import per

_LOSSES = (torch.nn.functional.mse_loss, torch.nn.functional.smooth_l1_loss, torch.nn.functional.huber_loss)


class _Draw(NamedTuple):
    """What a loss must know of the batch that its targets come from."""

    replay: per.ReplayBuffer
    ids: np.ndarray[Any, np.dtype[np.int64]]
    weights: torch.Tensor
    td_errors: list[torch.Tensor]
    """|TD errors| [B] of the critics so far"""


class WeightedRewards(torch.Tensor):
    """Rewards, and the targets computed from them: a mean loss of these is weighted, and sets priorities.

    torch asks __torch_function__ in place of every function that is called with such a tensor. Learners with several
    critics form a loss for each: the first sets priorities by its TD errors, the next by those of both.
    """

    _draw: _Draw | None = None

    @classmethod
    def of(cls, rewards: torch.Tensor, weights: torch.Tensor, replay: per.ReplayBuffer, ids: Any) -> torch.Tensor:
        """The rewards and weights of transitions that were drawn, each [B, 1]."""
        weighted = rewards.as_subclass(cls)
        weighted._draw = _Draw(replay, ids, weights, [])
        return weighted

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draw = next((value._draw for value in args if isinstance(value, cls)), None)
        kwargs = kwargs or {}
        if function in _LOSSES and draw is not None and kwargs.get("reduction", "mean") == "mean":
            prediction, target = (value.as_subclass(torch.Tensor) for value in args[:2])
            losses = function(prediction, target, *args[2:], **{**kwargs, "reduction": "none"})
            count = len(draw.weights)
            draw.td_errors.append((target - prediction).detach().abs().reshape(count, -1).mean(1))
            draw.replay.update_priorities(draw.ids, torch.stack(draw.td_errors).cpu())
            return (draw.weights * losses.reshape(count, -1)).mean()
        result = super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]
        if isinstance(result, cls) and draw is not None and result.shape[:1] == draw.weights.shape[:1]:
            result._draw = draw
        return result
