"""What the server that test processes are forked from has done before: the networks are nested, with one thread."""

import torch
from small_networks import nested_mlp, nested_norms

torch.set_num_threads(1)
PLAIN = {"order": "uniform", "weights": None}
for options in ({}, {"weights": None}, PLAIN):
    nested_mlp(**options)
for options in ({}, PLAIN):
    nested_norms(**options)
