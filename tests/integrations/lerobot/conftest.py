import os

# Datasets are not looked up on the Hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

torch.set_num_threads(1)  # the networks are small, and other work shares the machine
