"""An export that is killed leaves nothing that stays: the next to the same place removes it, and no live one."""

import subprocess
import sys

import torch
from torch import nn

import nestling as nl

SCRIPT = """
import sys, time
import torch
import nestling as nl
from nestling.delivery.formats.onnx import OnnxFormat

def opened(self, path):
    print("written", flush=True)
    time.sleep(100)

OnnxFormat.opened = opened
nl.export(torch.nn.Linear(4, 2), sys.argv[1], torch.zeros(2, 4))
"""


def test_a_killed_export_is_cleared_away_and_a_running_one_is_not(tmp_path):
    path, x = tmp_path / "a.onnx", torch.zeros(2, 4)
    command = [sys.executable, "-c", SCRIPT, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "written\n"
            (part,) = tmp_path.iterdir()
            assert next(part.rglob("a.onnx")).stat().st_size > 0
            nl.export(nn.Linear(4, 2), path, x)
            assert set(tmp_path.iterdir()) == {path, part}
        finally:
            child.kill()
    assert part.is_dir(), "so the test can fail"
    nl.export(nn.Linear(4, 2), path, x)
    assert list(tmp_path.iterdir()) == [path]
