"""The noise of files with uncertainty, made by numpy alone."""

import subprocess
import sys

import numpy as np

from nestling.runtime import noise_for

RECORD = {"axes": ["samples", "batch"], "values": 400, "samples": 6, "layers": [["0", 400]]}


def test_noise_is_standard_normal_and_repeats_with_its_seed():
    noise = noise_for(RECORD, seed=3, batch=50)
    assert (noise.shape, noise.dtype) == ((6, 50, 400), np.float32)
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / noise.size)
    assert np.array_equal(noise, noise_for(RECORD, seed=3, batch=50))
    assert not np.array_equal(noise, noise_for(RECORD, seed=4, batch=50))
    assert noise_for(RECORD, seed=3, batch=2, samples=1).shape == (1, 2, 400)


def test_an_example_keeps_its_noise_in_a_larger_batch():
    assert np.array_equal(noise_for(RECORD, seed=0, batch=9)[:, :4], noise_for(RECORD, seed=0, batch=4))


def test_noise_that_all_examples_share_has_no_axis_for_them():
    assert noise_for(RECORD | {"axes": ["samples"]}, seed=0, batch=9).shape == (6, 400)


def test_noise_needs_no_torch():
    script = "import sys; from nestling.runtime import noise_for; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
