"""Prompts: which ones to ask next, by how often their answers pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from per import _arrays, _options
from per._errors import Busy, InvalidArgument, kind_of
from per._waiting import new_lock
from per.tree import SumTree
from per.typing import ArrayLike, IntLike

Key = TypeVar("Key", int, str)


class Prompts(Generic[Key]):
    """Draws prompts in proportion to p (1 - p) + epsilon, where p is the rate at which answers to a prompt pass.

    The variance of a reward of 0 or 1 is p (1 - p). A group of answers that all pass or all fail teaches nothing.
    Several threads may use it. A million prompts are drawn from and updated in microseconds, by a per.SumTree.

    Parameters
    ----------
    keys : Iterable[int] or Iterable[str]
        The prompts, each once; a million take about 250 MB. Their rates begin with 0.5, which makes them most likely.
    epsilon : float, default 0.01
        Keeps prompts that always pass or always fail from being forgotten, 1e-45 to 1.
    seed : int, default 0
        Seed of the draws.

    Examples
    --------
    >>> import per.llm
    >>> prompts = per.llm.Prompts(["1 + 1", "17 * 23", "prove P = NP"], epsilon=0.001)
    >>> prompts.update(["1 + 1", "17 * 23", "prove P = NP"], [1.0, 0.5, 0.0])
    >>> prompts.sample(1)
    ['17 * 23']
    """

    def __init__(self, keys: Iterable[Key], *, epsilon: float = 0.01, seed: IntLike = 0) -> None:
        self._keys: list[Key] = list(keys) if isinstance(keys, Iterable) else []
        if (
            isinstance(keys, str)
            or not isinstance(keys, Iterable)
            or not all(isinstance(key, (int, str, np.integer)) for key in self._keys)
        ):
            raise InvalidArgument(f"keys is {kind_of(keys)}; allowed: ints or strings, each a prompt")
        self._places: dict[Key, int] = {key: place for place, key in enumerate(self._keys)}
        if (n_repeated := len(self._keys) - len(self._places)) or not self._keys:
            given = f"keys has {len(self._keys)} prompts, {n_repeated} of them repeated"
            raise InvalidArgument(f"{given}; allowed: 1 and above, each once")
        self._epsilon, self._seed = _options.real("epsilon", epsilon), _options.at_least("seed", seed, 0)
        if not 0 < np.float32(self._epsilon) <= 1:
            raise InvalidArgument(f"epsilon is {epsilon}; allowed: 1e-45 to 1")
        self._rates, self._draws = np.full(len(self._keys), 0.5, np.float32), 0
        self._lock = new_lock()
        self._rebuild()

    def __len__(self) -> int:
        return len(self._keys)

    def update(self, keys: Sequence[Key], rates: ArrayLike) -> None:
        """Sets the rates of prompts.

        Parameters
        ----------
        keys : Sequence[Key]
            The prompts. Of equal ones the last rate counts.
        rates : ArrayLike
            The rate of each, 0 to 1, such as the mean reward of a group.
        """
        values = _arrays.as_float(rates, "rates").reshape(-1)
        with self._locked():
            places = self._places_of(keys)
            if len(places) != len(values) or not ((values >= 0) & (values <= 1)).all():
                raise InvalidArgument(f"rates is {values}; allowed: 0 to 1, for each of {len(places)} keys")
            self._is_stale = True
            self._rates[places] = values
            self._weigh(places)

    def rates(self, keys: Sequence[Key]) -> npt.NDArray[np.float32]:
        """The rates of prompts, float32[n].

        Parameters
        ----------
        keys : Sequence[Key]
            The n prompts.
        """
        with self._locked():
            return self._rates[self._places_of(keys)]

    def sample(self, k: IntLike) -> list[Key]:
        """Draws different prompts.

        Parameters
        ----------
        k : int
            Number of prompts, at most those that there are.
        """
        with self._locked():
            count = _options.at_least("k", k, 0, len(self._keys))
            random = np.random.PCG64([self._seed, self._draws])
            drawn: list[int] = []
            self._is_stale = True
            try:
                while len(drawn) < count:
                    bits = random.random_raw(count - len(drawn)) >> np.uint64(11)
                    found: npt.NDArray[np.int64] = self._tree.find(bits * (2.0**-53 * self._tree.total))
                    fresh = [*dict.fromkeys(found.tolist())]
                    drawn += fresh
                    self._tree.update(fresh, np.zeros(len(fresh), np.float32))
            finally:  # also after an error
                self._weigh(np.array(drawn, np.int64))
            self._draws += 1
            return [self._keys[place] for place in drawn]

    def state_dict(self) -> dict[str, Any]:
        """Everything, for load_state_dict() and torch.save()."""
        with self._locked():
            self._rebuild()
            own = {"epsilon": self._epsilon, "seed": self._seed, "draws": self._draws}
            return {"keys": list(self._keys), "rates": self._rates.copy(), **own}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues with other prompts.

        Parameters
        ----------
        state_dict : Mapping[str, Any]
            What state_dict() of theirs returned.
        """
        if not isinstance(state_dict, Mapping) or set(state_dict) != {"keys", "rates", "epsilon", "seed", "draws"}:
            raise InvalidArgument(f"state_dict is {kind_of(state_dict)}; allowed: what state_dict() returned")
        other: Prompts[Key] = Prompts(state_dict["keys"], epsilon=state_dict["epsilon"], seed=state_dict["seed"])
        other.update(other._keys, state_dict["rates"])
        other._draws = _options.at_least("draws", state_dict["draws"], 0)
        other._rebuild()
        with self._locked():
            vars(self).update({name: value for name, value in vars(other).items() if name != "_lock"})

    def __reduce__(self) -> NoReturn:
        raise TypeError("per.llm.Prompts cannot be pickled or copied; allowed: state_dict(), and serve()")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock._is_owned():
            raise Busy("a signal handler or destructor interrupted a call of the prompts; allowed: after it")
        with self._lock:
            if self._is_stale:
                self._rebuild()
            yield

    def _places_of(self, keys: Sequence[Key]) -> npt.NDArray[np.int64]:
        try:
            return np.array([self._places[key] for key in keys], np.int64)
        except KeyError as error:
            allowed = "the prompts that were given at first"
            raise InvalidArgument(f"keys has {error.args[0]!r}; allowed: {allowed}") from error
        except TypeError as error:
            raise InvalidArgument(f"keys is {keys!r}; allowed: a list of prompts") from error

    def _rebuild(self) -> None:
        """Makes the tree that the rates alone determine. After updates its masses may have another scale."""
        self._is_stale = True  # until the tree has the masses of the rates; also after an interrupt
        self._tree = SumTree(len(self._keys))
        self._weigh(np.arange(len(self._keys)))

    def _weigh(self, places: npt.NDArray[np.int64]) -> None:
        rates = self._rates[places]
        self._tree.update(places, rates * (1 - rates) + np.float32(self._epsilon))
        self._is_stale = False
