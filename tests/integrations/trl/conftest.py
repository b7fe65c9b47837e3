import os

# Nothing is looked up on the Hub. TRL's rollout_func is experimental.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch

torch.set_num_threads(1)  # the model is small, and other work shares the machine
