"""The quantiser of AdaBits: DoReFa's, modified so that fewer bits are the first bits of more."""

import torch
from torch import Tensor

from nestling.arguments import count
from nestling.errors import RangeError
from nestling.tensor_arguments import floating_tensor

MOST_BITS = 4
"""The largest number of bits, comparable to the nine levels of nested steps."""


def quantise_dorefa(weight: Tensor, num_bits: int) -> Tensor:
    """2 q - 1 with q = (min(floor(2^k u), 2^k - 1) + 1/2) / 2^k and u = tanh(w) / (2 max |tanh(w)|) + 1/2 in [0, 1].

    The floor, where DoReFa rounds, makes the code of k bits the first k bits of any longer one (AdaBits, "modified
    scheme"). Half a step centres the levels. They are scaled to the variance 1 / fan-out, which layers without a norm
    after them need (the same authors' scale-adjusted training). The floor's gradient is that of the identity.
    """
    levels = 2 ** _checked(num_bits)
    squashed = torch.tanh(floating_tensor("weight", weight))
    largest = squashed.detach().abs().amax().clamp_min(torch.finfo(weight.dtype).tiny)
    unit = squashed / (2 * largest) + 0.5
    code = (levels * unit.detach()).floor().clamp_max(levels - 1)
    centred = 2 * (code + 0.5) / levels - 1
    straight = centred + 2 * (unit - unit.detach())
    fan_out = weight.shape[0] * weight[0, 0].numel() if weight.ndim > 1 else weight.numel()
    scaled: Tensor = straight / (fan_out * centred.square().mean()).sqrt()
    return scaled


def _checked(num_bits: int) -> int:
    if count("num_bits", num_bits, "how many bits a weight has") > MOST_BITS:
        raise RangeError("num_bits", num_bits, f"between 1 and {MOST_BITS}", "Pass fewer.")
    return num_bits
