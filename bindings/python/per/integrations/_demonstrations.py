"""Demonstrations beside the steps of an agent, in the buffers of several frameworks."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import torch

import per
from per import _arrays
from per._errors import kind_of


class WithDemonstrations:
    """A framework's buffer, whose batches may have a share of demonstrations."""

    replay: per.ReplayBuffer
    _hindsight: per.Hindsight | None = None
    _mixture: per.Mixture | None = None

    def mix(self, demonstrations: WithDemonstrations, share: float = 0.5) -> None:
        """Draws a share of each batch from another buffer from now on, by a per.Mixture.

        Losses set the priorities of both buffers. In batches the `ids` of demonstrations are -1 - id, for
        update_priorities(). A pickled buffer includes its demonstrations. All other methods concern this buffer alone.
        Another call replaces the demonstrations.

        Parameters
        ----------
        demonstrations : WithDemonstrations
            A buffer of this module, with the same spaces, n_step and gamma; all else may differ. Steps may be added to
            it at any time.
        share : float, default 0.5
            Share of each batch, 0 to 1.

        Raises
        ------
        InvalidArgument
            The buffers do not fit together, or the share is not allowed. Nothing is changed.
        Unsupported
            One of the buffers draws with hindsight.
        """
        if not isinstance(demonstrations, WithDemonstrations):
            raise per.InvalidArgument(
                f"demonstrations is {kind_of(demonstrations)}; allowed: a buffer of this module, such as "
                f"{type(self).__name__}"
            )
        if not isinstance(share, numbers.Real) or not 0 <= share <= 1:
            raise per.InvalidArgument(f"share is {share!r}; allowed: 0 to 1")
        if self._hindsight is not None or demonstrations._hindsight is not None:
            raise per.Unsupported("demonstrations with hindsight; allowed: two buffers without")
        for name in ("n_step", "gamma"):
            given, allowed = demonstrations.replay.options[name], self.replay.options[name]
            if given != allowed:
                raise per.InvalidArgument(f"{name} of demonstrations is {given}; allowed: {allowed}, as here")
        self._mixture = per.Mixture(
            {"online": (self.replay, 1 - share), "demonstrations": (demonstrations.replay, share)}
        )

    def _draw(self, batch_size: int) -> per.Batch:
        if self._mixture is None:
            return self.replay.sample(batch_size, hindsight=self._hindsight)
        batch = self._mixture.sample(batch_size)
        batch.ids[batch.sources == 1] ^= -1  # -1 - id
        return batch

    def update_priorities(self, ids: Any, td_errors: torch.Tensor) -> None:
        """Sets the priorities of the transitions of a batch by TD errors [B], or [n_critics, B].

        Parameters
        ----------
        ids : Any
            int64[n], from batches.
        td_errors : torch.Tensor
            float32[n] of any sign.
        """
        td_errors = td_errors.detach().cpu()
        if self._mixture is None:
            self.replay.update_priorities(ids, td_errors)
            return
        ids = _arrays.as_int64(ids, "ids")
        sources = (ids < 0).astype(np.int32)
        self._mixture.update_priorities(per.Batch({"ids": ids ^ -sources, "sources": sources}), td_errors)
