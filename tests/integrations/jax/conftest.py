from __future__ import annotations

# Flashbax's conftest.py gives JAX two CPU devices; its fixtures are used by its own tests.
from flashbax.buffers.conftest import add_batch_size as add_batch_size
from flashbax.buffers.conftest import fake_transition as fake_transition
from flashbax.buffers.conftest import max_length as max_length
from flashbax.buffers.conftest import min_length as min_length
from flashbax.buffers.conftest import sample_batch_size as sample_batch_size
from flashbax.conftest import rng_key as rng_key
