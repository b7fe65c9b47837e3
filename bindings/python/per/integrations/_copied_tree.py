"""A sum tree that belongs to a framework's memory and is copied with it."""

from __future__ import annotations

from typing import Any

import numpy as np

import per


class CopiedTree(per.SumTree):
    """A per.SumTree that is copied and pickled with its priorities.

    The random state is not copied: a copy draws with another seed, derived from the tree's seed and its number of
    draws.
    """

    _n_draws = 0

    def sample(self, batch_size: per.typing.IntLike, **choices: Any) -> per.Draw:
        """As per.SumTree."""
        draw = super().sample(batch_size, **choices)
        self._n_draws += 1
        return draw

    def __reduce__(self) -> tuple[Any, ...]:
        options = self.options
        words = np.random.SeedSequence([options["seed"], self._n_draws]).generate_state(1, np.uint64)
        return _tree_of, ({**options, "seed": int(words[0])}, self.priorities())


def _tree_of(options: dict[str, Any], priorities: Any) -> CopiedTree:
    tree = CopiedTree(**options)
    tree.update(np.arange(len(priorities)), priorities)
    return tree
