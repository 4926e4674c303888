import torch

# Toy matrix products gain nothing from threads and lose much on a busy machine.
torch.set_num_threads(1)
