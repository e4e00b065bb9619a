"""Trains a nested network in a loop of one's own, then scores it at a few of its widths."""

import torch

import nestling as nl

EPOCHS, CUTS = 10, (0.25, 0.5, 1.0)


def main() -> None:
    """Train on the digits, and print what each width gives."""
    torch.manual_seed(0)
    data = nl.data.load("digits")
    batches = data.batches("train", 64, shuffle=True, drop_last=True)
    net = nl.models.build("mlp", hidden=[64, 32], in_features=64)  # or any nn.Module of yours
    nested = nl.nest(net, torch.zeros(2, 1, 8, 8), num_blocks=8)
    optimiser = torch.optim.Adam(nested.parameters(), lr=0.01)

    nested.train()
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        for batch in batches:
            loss = nl.elbo(nested, batch, dataset_size=batches.dataset_size)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    print("width  parameters  accuracy    ECE")
    for cut, scores in zip(CUTS, nl.evaluate(nested, data.batches("test", 100), cut=CUTS), strict=True):
        print(f"{cut:5.0%}  {nl.cost(nested, cut).params:10,}  {scores.accuracy:8.1%}  {scores.ece:5.1%}")


if __name__ == "__main__":
    main()
