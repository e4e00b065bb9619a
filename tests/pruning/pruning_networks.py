"""Networks for the tests of pruning, with disturbed norms, in double precision."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from nestling.network import nest
from nestling.pruning.prune import ONE_UNIT_A_BLOCK
from nestling.pruning.sites import check_called, find_sites


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def disturbed(module):
    """Every parameter and running statistic away from zero and one, which hide mistakes."""
    generator = seeded(7)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.copy_(0.5 + noise.abs() if name.endswith("running_var") else noise * 0.5)
    return module.double().eval()


def mlp():
    return disturbed(
        nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))
    ), normal(5, 6)


def convolutions():
    """A convolution before a norm, one after it, and flattened channels that a linear layer reads."""
    return disturbed(
        nn.Sequential(
            nn.Conv2d(1, 5, 3, padding=1),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.Conv2d(5, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * 2 * 2, 6),
            nn.ReLU(),
            nn.Linear(6, 3),
        )
    ), normal(4, 1, 6, 6)


class Residual(nn.Module):
    """A stream that two blocks and the head read."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.first = nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.ReLU(), nn.Conv2d(5, 6, 1))
        self.second = nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 1))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.first(x)
        x = x + self.second(x)
        return self.head(x.mean((2, 3)))


def residual():
    return disturbed(Residual()), normal(4, 1, 5, 5)


def transposed():
    return disturbed(
        nn.Sequential(nn.Conv1d(2, 5, 3), nn.ReLU(), nn.ConvTranspose1d(5, 4, 3), nn.ReLU(), nn.Conv1d(4, 2, 1))
    ), normal(3, 2, 8)


NETWORKS = {"mlp": mlp, "convolutions": convolutions, "residual": residual, "transposed": transposed}


def based(module, x, *, inputs=False, where="all"):
    """The nested network that pruned ones are taken out of, and its sites."""
    base = nest(module, x, order="full", weights=None, num_blocks=ONE_UNIT_A_BLOCK, num_always=1, where=where)
    sites, _ = find_sites(base.module, base.groups, inputs=inputs)
    return base.eval(), check_called(base.module, sites, base.example)[0]


def examples(number=120, features=6, classes=3, seed=2):
    """Examples that can be learned: the class is the largest of the first features."""
    x = torch.randn(number, features, generator=seeded(seed))
    return TensorDataset(x, x[:, :classes].argmax(1))


def small_mlp(hidden=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 5), nn.ReLU(), nn.Linear(5, 3))
