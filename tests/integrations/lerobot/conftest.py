import os

# A folder of datasets on the Hub is not looked for.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

torch.set_num_threads(1)  # the networks are small, and other work shares the machine
