"""The script of the documentation opens a file where neither torch nor nestling can be imported."""

import re
import subprocess
import sys
from pathlib import Path

import torch
from PIL import Image

import nestling as nl

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "nestling"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
"""


def script():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if "onnxruntime" in block)
    return found


def test_the_script_has_ten_lines():
    assert len([line for line in script().splitlines() if line.strip()]) == 10


def test_the_script_gives_class_probability_uncertainty_and_set_for_an_image(tmp_path):
    data = nl.data.load("digits")
    torch.manual_seed(0)
    module = nl.models.build("mlp", hidden=[6], in_features=64, num_classes=10)
    nested = nl.nest(module, torch.zeros(2, 1, 8, 8), weights=None, num_blocks=4)
    calibration = nl.calibrate(nested, data.batches("validation", 200), cut=0.5, samples=0)
    options = {"data": data, "calibration": calibration, "compare": False}
    nl.export(nested, tmp_path / "digits.onnx", cut=0.5, **options)
    image = data.test.inputs[3, 0]
    Image.fromarray(image.numpy()).save(tmp_path / "digit.png")
    words = [sys.executable, "-c", WITHOUT + script()]
    shown = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    x = (image[None, None].float() / 255 - data.mean[0]) / data.std[0]
    p = nl.predict(nested, x, cut=0.5, samples=0, calibration=calibration)
    first, second = shown.stdout.splitlines()
    assert first == f"{p.labels.item()} {p.confidence.item():.3f} {p.entropy.item():.3f} nats"
    assert second == str([data.classes[n] for n in p.sets(0.9)[0].nonzero().flatten()])
