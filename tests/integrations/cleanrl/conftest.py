import torch

torch.set_num_threads(1)  # the networks are small, and other work shares the machine
