"""Adapters, one module a library. To add a library, write a module and name its class here."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from contract import Library

# Name on the command line: module and class.
_CLASSES = {
    "libper": ("libper_", "Libper"),
    "cpprb": ("cpprb_", "Cpprb"),
    "tianshou": ("tianshou_", "Tianshou"),
    "TorchRL": ("torchrl_", "TorchRL"),
    "Flashbax": ("flashbax_", "Flashbax"),
    "AgileRL": ("agilerl_", "AgileRL"),
    "CleanRL": ("cleanrl_", "CleanRL"),
    "d3rlpy": ("d3rlpy_", "D3rlpy"),
    "Dopamine": ("dopamine_", "Dopamine"),
    "LeRobot": ("lerobot_", "LeRobot"),
    "Reverb": ("reverb_", "Reverb"),
    "RLlib": ("rllib", "RLlib"),
    "RLlib-episodes": ("rllib", "RLlibEpisodes"),
    "stable-baselines3": ("sb3", "StableBaselines3"),
    "skrl": ("skrl_", "Skrl"),
}


def _maker(module: str, name: str) -> Callable[[], Library]:
    return lambda: getattr(importlib.import_module(f"libraries.{module}"), name)()


LIBRARIES: dict[str, Callable[[], Library]] = {name: _maker(*found) for name, found in _CLASSES.items()}


def find(name: str) -> Library:
    """The library of this name, or that of an adapter's file (a path that ends with .py)."""
    if not name.endswith(".py"):
        return LIBRARIES[name]()
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == spec.name]
    classes = [value for value in own if issubclass(value, Library)]
    if len(classes) != 1:
        raise ImportError(f"{name} defines {len(classes)} subclasses of contract.Library, not one")
    return classes[0]()
