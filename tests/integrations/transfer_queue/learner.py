"""A trainer over TransferQueue that saves its model, its ledger and the queue: test_restore.py kills and restarts it.

    python learner.py FOLDER

It prints the version after each step, and the groups that the model learned from at the end.
"""

import os
import sys
from pathlib import Path

import per.llm
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from per.integrations.transfer_queue import GroupSampler, lease_of
from tensordict import TensorDict

SIZE, GROUPS, VERSIONS = 2, 2, 12


def generate(groups):
    """Puts an answer for each member of the open groups. Its token says which group it is."""
    for group in groups.missing():
        tags = [{"group": group, "member": member, "version": groups.version} for member in range(SIZE)]
        keys = [f"{group}.{member}" for member in range(SIZE)]
        fields = TensorDict({"tokens": torch.tensor([[group, member] for member in range(SIZE)])}, batch_size=SIZE)
        tq.kv_batch_put(keys, "train", fields, tags)


def draw(groups):
    meta = tq.get_client().get_meta(["tokens"], SIZE * GROUPS, "train", task_name="train")
    return meta, lease_of(groups, meta)


folder = Path(sys.argv[1])
saved = folder / "model.pt"
state = torch.load(saved, weights_only=False) if saved.exists() else None
if state is None:
    groups = per.llm.Groups(SIZE, capacity=8, per_version=GROUPS, ahead=1, max_age=1)
else:
    groups = per.llm.Groups.load(state["groups"])
learned = [] if state is None else state["learned"]

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
address = per.llm.serve(groups, authkey=b"secret")
conf = OmegaConf.create(flags={"allow_objects": True})
conf.backend = {"SimpleStorage": {"num_data_storage_units": 1}}
conf.controller = {"sampler": GroupSampler(address, SIZE, authkey=b"secret"), "polling_mode": True}
tq.init(conf)
if state is not None:
    tq.load_checkpoint(folder / state["queue"])

while groups.version < VERSIONS:
    groups.reserve(groups.room)
    generate(groups)
    meta, lease = draw(groups)
    if groups.version % 3 == 2:  # the lease is open: a restore brings its groups back
        name = f"queue{groups.version}"
        tq.save_checkpoint(folder / name)
        torch.save({"groups": groups.state_dict(), "learned": learned, "queue": name}, folder / "new.pt")
        os.replace(folder / "new.pt", saved)
    tokens = [row.tolist() for row in tq.get_client().get_data(meta)["tokens"].unbind()]
    assert tokens == [[group, member] for group in lease.groups.tolist() for member in range(SIZE)]
    learned += lease.groups.tolist()
    groups.ack(lease, version=groups.version + 1)
    tq.get_client().clear_samples(meta)
    print("version", groups.version, flush=True)
print("learned", *learned, flush=True)
print("counts", groups.counts(), flush=True)
tq.close()
ray.shutdown()
