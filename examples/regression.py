"""Learns numbers in their own unit from data as it comes, then scores the network at a few of its widths."""

import torch
from sklearn.datasets import load_diabetes
from torch.utils.data import TensorDataset

import nestling as nl

EPOCHS, CUTS = 40, (0.25, 0.5, 1.0)


def main() -> None:
    """Train on scikit-learn's diabetes data, whose targets are 152 on average, and print what each width gives."""
    torch.manual_seed(0)
    inputs, targets = map(torch.tensor, load_diabetes(return_X_y=True, scaled=False))
    data = nl.data.load(TensorDataset(inputs, targets))  # both are standardised inside
    net = nl.models.build("mlp", hidden=[32, 16], in_features=10, num_classes=1)  # or any nn.Module of yours
    nested = nl.nest(net, torch.zeros(2, 10), num_blocks=8)
    run = nl.train(nested, data, nl.Recipe(epochs=EPOCHS, batch_size=32, cuts=CUTS), quiet=True)

    print("width  parameters   RMSE  in the 90 % interval")
    for cut in CUTS:
        scores = nl.evaluate(nested, data.batches("test", 100), cut=cut, calibration=run.calibration(cut))
        print(f"{cut:5.0%}  {nl.cost(nested, cut).params:10,}  {scores.rmse:5.1f}  {scores.sets[0.9].coverage:20.1%}")

    x, y = next(iter(data.batches("test", 3)))
    answer = nl.predict(nested, x, cut=0.5, calibration=run.calibration(0.5))
    low, high = answer.interval(0.9)
    print("\n truth   mean    std  90 % interval")
    for row in zip(y, answer.mean, answer.std, low, high, strict=True):
        print("{:6.1f} {:6.1f} {:6.1f} {:6.1f} to {:.1f}".format(*map(float, row)))


if __name__ == "__main__":
    main()
