"""What stands before each example of the reference: a small network that was trained on scikit-learn's digits."""

import torch

import nestling as nl

torch.manual_seed(0)
data = nl.data.load("digits")
module = nl.models.build("mlp", hidden=[32, 16], in_features=64, num_classes=10)
example = torch.zeros(2, 1, 8, 8)
run = nl.train(nl.nest(module, example, num_blocks=8), data, nl.Recipe(epochs=8), out="runs/digits", quiet=True)
nested = run.nested  # in eval mode
loader = data.batches("validation", 100)
images, labels = next(iter(data.batches("test", 100)))
p = nl.predict(nested, images, calibration=run.calibration(1.0))
casc = nl.cascade(nested, (0.25, 0.5, 1.0), loader)
curve = nl.search(nested, loader)
exported = nl.export(run, "digits.onnx", cut=0.5, compare=False)
means = nl.cascade(nested, (0.5, 1.0), loader, goal="macs=0.8x", samples=0)  # of the mean weights, which files have
nl.export(run, "cascade.onnx", cascade=means, compare=False)
