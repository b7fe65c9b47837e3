"""Runs programs with buffers on the given device, and prints digests of their batches.

"cuda" is the simulated GPU: LIBPER_PATH is build/libper_simulated.so, which treats the memory of XLA's CPU as its own.
With PER_SIMULATOR_SEED=0 it runs enqueued work at once. on_simulated_gpu.cpp calls the handlers for CUDA.
"""

from __future__ import annotations

import ctypes
import hashlib
import pathlib
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2] / "bindings" / "python" / "tests"))


def load_shim():
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/shim.so"
        command = ["g++", "-std=c++17", "-fPIC", "-shared", f"-I{jax.ffi.include_dir()}"]
        subprocess.run([*command, str(HERE / "on_simulated_gpu.cpp"), "-o", library], check=True)
        return ctypes.CDLL(library)


def put_a_stand_in_for_jax():
    from device_memory import JaxStandIn
    from per import _device_arrays

    _device_arrays.LIBRARIES["jax"] = JaxStandIn


def let_xla_call_the_handlers_for_cuda():
    shim, register = load_shim(), jax.ffi.register_ffi_target

    def register_shim(name, handler, platform):
        if platform == "cpu":
            register(name, jax.ffi.pycapsule(getattr(shim, name)), platform=platform)

    jax.ffi.register_ffi_target = register_shim
    from per import _xla

    for name in ("init", "add", "sample", "set_priorities"):
        handler = ctypes.cast(getattr(_xla._calls, f"per_xla_{name}_cuda"), ctypes.c_void_p)
        ctypes.c_void_p.in_dll(shim, f"handler_of_{name}").value = handler.value


def digest(buffer, lanes):
    step = {"observation": jnp.zeros(3), "action": jnp.zeros((), jnp.int8), "done": jnp.zeros((), bool)}

    def call(state, given):
        t, key = given
        steps = jax.tree.map(lambda x: jnp.broadcast_to(t.astype(x.dtype), (lanes, 5, *x.shape)), step)
        state = buffer.add(state, steps)
        batch = buffer.sample(state, key)
        priorities = jnp.abs(batch.weights * 0.5 + jax.tree.leaves(batch.experience)[-1].reshape(16, -1)[:, 0])
        return buffer.set_priorities(state, batch.indices, priorities), batch

    steps = jnp.arange(30.0), jax.random.split(jax.random.key(0), 30)
    _, batches = jax.jit(lambda state: jax.lax.scan(call, state, steps))(buffer.init(step))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(batches))).hexdigest()


if __name__ == "__main__":
    (device,) = sys.argv[1:]
    put_a_stand_in_for_jax()
    if device == "cuda":
        let_xla_call_the_handlers_for_cuda()
    import per.jax

    flat = per.jax.make_prioritised_flat_buffer(100, 1, 16, True, 2, device=device)
    print(digest(flat, 2))
    print(digest(per.jax.make_prioritised_trajectory_buffer(3, 16, 4, 2, 4, max_size=90, device=device), 3))
    # A program must refuse a buffer on the other device.
    other = per.jax.make_prioritised_flat_buffer(100, 1, 16, device={"cpu": "cuda", "cuda": "cpu"}[device])
    try:
        jax.block_until_ready(other.init(jnp.zeros(3)))
    except jax.errors.JaxRuntimeError as error:
        print(error)
