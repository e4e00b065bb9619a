"""Trains a nested network under Hugging Face accelerate, alone or in two by ``torchrun --nproc-per-node 2``."""

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import send_to_device, set_seed
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


def main() -> None:
    """Train on the digits, and print what each width gives."""
    # A cut may leave out whole layers, which then have no gradient: hence "find unused parameters".
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    set_seed(0, device_specific=True)  # noise of its own for each process; prepare gives all the first one's weights
    data = nl.data.load("digits")
    batches = data.batches("train", 64, shuffle=True, drop_last=True)
    batches = batches.shard(accelerator.process_index, accelerator.num_processes)
    net = nl.models.build("mlp", hidden=[64, 32], in_features=64)  # or any nn.Module of yours
    nested = nl.nest(net, torch.zeros(2, 1, 8, 8), num_blocks=8)
    optimiser = torch.optim.Adam(nested.parameters(), lr=0.01)
    bound, optimiser = accelerator.prepare(Bound(nested, batches.dataset_size), optimiser)

    bound.train()
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        for step, batch in enumerate(batches, start=epoch * len(batches)):
            loss = bound(send_to_device(batch, accelerator.device), step)
            optimiser.zero_grad()
            accelerator.backward(loss)
            optimiser.step()

    scores = nl.evaluate(nested, data.batches("test", 100), cut=CUTS, spread=True)  # each process takes some batches
    accelerator.print("width  parameters  accuracy    ECE")
    for cut, own in zip(CUTS, scores, strict=True):
        accelerator.print(f"{cut:5.0%}  {nl.cost(nested, cut).params:10,}  {own.accuracy:8.1%}  {own.ece:5.1%}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
