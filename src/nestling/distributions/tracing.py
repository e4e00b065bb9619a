"""Whether code runs on numbers, or is traced or transformed by torch."""

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.jit._trace import is_tracing


def is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor has its numbers here and now: nothing is traced, and nothing mapped over other tensors."""
    return type(tensor) in (Tensor, nn.Parameter) and not (is_transformed() or _is_traced())


def is_transformed() -> bool:
    """Whether some transform of ``torch.func`` is at work."""
    return peek_interpreter_stack() is not None


def _is_traced() -> bool:
    if torch.compiler.is_compiling() or is_tracing():  # type: ignore[no-untyped-call]
        return True
    return get_proxy_mode() is not None or detect_fake_mode() is not None
