"""Trains a nested network under Lightning Fabric, in one process or, with ``--devices 2``, in two."""

import torch
import tyro
from lightning_fabric import Fabric
from torch import Tensor, nn

import nestling as nl

EPOCHS, CUTS = 10, (0.25, 0.5, 1.0)


class Bound(nn.Module):
    """The objective as a forward pass, which is where processes agree to average their gradients."""

    def __init__(self, nested: nl.Nested, dataset_size: int) -> None:
        super().__init__()
        self.nested, self.dataset_size = nested, dataset_size

    def forward(self, batch: tuple[Tensor, Tensor], step: int) -> Tensor:
        """The loss on one process's rows, at widths that follow from the step and so are the same for all."""
        widths = torch.Generator().manual_seed(step)
        return nl.elbo(self.nested, batch, dataset_size=self.dataset_size, generator=widths)


def main(devices: int = 1) -> None:
    """Train on the digits, and print what each width gives."""
    # A cut may leave out whole layers, which then have no gradient: hence "find unused parameters".
    fabric = Fabric(accelerator="cpu", devices=devices, strategy="ddp_find_unused_parameters_true")
    fabric.launch()
    fabric.seed_everything(fabric.global_rank)  # noise of its own for each; setup gives all the first one's weights
    data = nl.data.load("digits")
    batches = data.batches("train", 64, shuffle=True, drop_last=True).shard(fabric.global_rank, fabric.world_size)
    net = nl.models.build("mlp", hidden=[64, 32], in_features=64)  # or any nn.Module of yours
    nested = nl.nest(net, torch.zeros(2, 1, 8, 8), num_blocks=8)
    optimiser = torch.optim.Adam(nested.parameters(), lr=0.01)
    bound, optimiser = fabric.setup(Bound(nested, batches.dataset_size), optimiser)

    bound.train()
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        for step, batch in enumerate(batches, start=epoch * len(batches)):
            loss = bound(fabric.to_device(batch), step)
            optimiser.zero_grad()
            fabric.backward(loss)
            optimiser.step()

    scores = nl.evaluate(nested, data.batches("test", 100), cut=CUTS, spread=True)  # each process takes some batches
    fabric.print("width  parameters  accuracy    ECE")
    for cut, own in zip(CUTS, scores, strict=True):
        fabric.print(f"{cut:5.0%}  {nl.cost(nested, cut).params:10,}  {own.accuracy:8.1%}  {own.ece:5.1%}")


if __name__ == "__main__":
    tyro.cli(main)
