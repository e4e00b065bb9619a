"""Every private or unstable part of torch that is used: what for, and what could replace it."""

import inspect
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch._guards import detect_fake_mode
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.jit._trace import is_tracing
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.modules.conv import _ConvTransposeNd as ConvTransposeNd
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "BatchNorm",  # batch norms with any number of axes; a tuple of the public classes would miss new ones
    "ConvNd",  # the same for convolutions
    "ConvTransposeNd",
    "NormBase",  # the same including instance norms
    "OpOverload",  # what a node of an exported graph calls; nothing public names its type
    "OpOverloadPacket",  # the overloads of one operation, found by name
    "pytree",  # nested containers as torch.export sees them; optree could replace it, once torch.export takes its specs
]

version_of: Callable[[Tensor], int] = operator.attrgetter("_version")
"""How often a tensor was written to; a public counter could replace it."""
is_wrapped: Callable[[Tensor], bool] = is_functorch_wrapped_tensor
"""Whether a transform of ``torch.func`` has wrapped a tensor; no public function says so."""
STORES = ("_parameters", "_buffers", "_modules")
"""Where a module keeps its tensors and children. Twins and swaps of layers need these dictionaries: they contain None
and second names, which ``named_parameters`` and the like leave out."""
ASSERTED_METADATA = torch.ops.aten._assert_tensor_metadata.default
"""Added by torch.export after a cast: it fixes a graph to the example's precision; an option could leave it out."""
SIZES_ASSERTED = torch.ops.aten._assert_scalar.default
"""Added by torch.export for a condition on sizes under which a graph holds; the graph's own check could do it."""
BATCH_NORM_IN_EVAL = torch.ops.aten._native_batch_norm_legit_no_training.default
"""What torch.export makes of a batch norm in eval mode; its tensor is the first of three results."""
_ASSERTING = "prefer_deferred_runtime_asserts_over_guards"
"""The option that adds these conditions; torch 2.8 does not have it, and keeps only the range of each size."""
_NOTE = "nestling"
"""The entry of a node's metadata that is the library's own."""
_HOOKS = """
    _forward_hooks _forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks
    _forward_pre_hooks_with_kwargs _backward_hooks _backward_pre_hooks _is_full_backward_hook
""".split()


def tensor_stores(module: nn.Module) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
    """The dictionaries of a module's direct parameters and buffers, to be written to."""
    return module._parameters, module._buffers  # type: ignore[return-value]  # a parameter is a tensor


def weight_list(module: nn.Module) -> tuple[list[Any], Sequence[str]]:
    """The list in which a recurrent layer keeps its weights a second time, to be written to, and their names."""
    return (module._flat_weights, module._flat_weights_names) if isinstance(module, nn.RNNBase) else ([], ())


def child_store(module: nn.Module) -> dict[str, nn.Module | None]:
    """The dictionary of a module's direct children, to be written to."""
    return module._modules


def hand_over_hooks(old: nn.Module, new: nn.Module) -> None:
    """Give one module the hooks of another, which no public function lists."""
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))


def copy_persistence(old: nn.Module, new: nn.Module) -> None:
    """Leave buffers out of a copy's state that are left out of the original's: a deep copy by fx forgets this."""
    new._non_persistent_buffers_set |= old._non_persistent_buffers_set


def edges_of(plain: ConvNd) -> Sequence[int]:
    """The padding of a convolution on both sides of each axis, last axis first; torch computes it from its options."""
    return plain._reversed_padding_repeated_twice


def output_padding(x: Tensor, size: list[int] | None, like: Any) -> list[int]:  # noqa: ANN401
    """The output padding of a transposed convolution, with the options of ``like``, for an output of this size."""
    padding_for: Callable[..., list[int]] = ConvTransposeNd._output_padding
    return padding_for(like, x, size, like.stride, like.padding, like.kernel_size, like.rank, like.dilation)


def allow_fast_path(layer: nn.TransformerEncoderLayer, allowed: bool) -> None:
    """Allow or forbid the fused kernel of an encoder layer, which skips its sublayers; a public switch could do it."""
    fused = (F.relu, nn.ReLU, 1), (F.gelu, nn.GELU, 2)
    kinds = [kind for f, of, kind in fused if layer.activation is f or isinstance(layer.activation, of)]
    layer.activation_relu_or_gelu = kinds[0] if kinds and allowed else 0


def schema_of(operation: Any) -> Any:  # noqa: ANN401
    """The names, defaults and aliases of an operation's arguments, or None for a function without a schema."""
    return getattr(operation, "_schema", None)


def example_size(size: torch.SymInt) -> Any:  # noqa: ANN401
    """The value that a symbolic size of an exported graph has for the example."""
    return size.node.hint


def exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any) -> Any:  # noqa: ANN401
    """The program of a module, with conditions on those of its sizes that ``shapes`` leaves open, in its graph."""
    known = _ASSERTING in inspect.signature(torch.export.export).parameters
    options: dict[str, Any] = {_ASSERTING: True} if known and shapes is not None else {}
    return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False, **options)


def recorded(run: Callable[..., Any], *inputs: Any) -> fx.Graph:  # noqa: ANN401
    """The graph of operations that run on an example, with data-dependent ones, which torch.export refuses."""
    record = make_fx(run, tracing_mode="real", pre_dispatch=True, _error_on_data_dependent_ops=False)
    return record(*inputs).graph


@contextmanager
def annotated(note: Any) -> Iterator[None]:  # noqa: ANN401
    """A context whose operations have a note on their nodes of an export; early versions of torch can't write it."""
    annotate = getattr(traceback, "annotate", lambda note: nullcontext())
    with traceback.preserve_node_meta(), annotate({_NOTE: note}):
        yield


def annotation_of(node: fx.Node) -> Any:  # noqa: ANN401
    """The note on a node, or None."""
    return (node.meta.get("custom") or {}).get(_NOTE)


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is active; no public function says so."""
    return peek_interpreter_stack() is not None


def is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor has values: nothing is traced, compiled or transformed."""
    if type(tensor) not in (Tensor, nn.Parameter) or is_transformed() or torch.compiler.is_compiling():
        return False
    return not is_tracing() and get_proxy_mode() is None and detect_fake_mode() is None  # type: ignore[no-untyped-call]


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees each operation on tensors; torch documents it, but not as public."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled inside the mode, and keeping torch.compile out costs as much as a lookup."""
        return False


class Measured(DispatchMode):  # type: ignore[no-untyped-call]
    """Operations on tensors of the device meta give tensors without memory, of which all ``bytes`` are counted.

    What makes tensors of its own makes them on meta too. Raises a MemoryError as soon as there are more than ``most``.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.bytes = most, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        given, named = list(args), dict(kwargs or {})
        for place, argument in enumerate(schema_of(func).arguments):
            if argument.name == "device" and place < len(given):
                given[place] = "meta"
            elif argument.name == "device":
                named["device"] = "meta"
        result = func(*given, **named)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self.bytes > self.most:
            raise MemoryError(f"more than {self.most:,} bytes in one run")
        return result


class Moving(nn.Module):
    """A module that is told when its tensors change device or dtype; a public hook on ``to`` could replace it."""

    def moving(self) -> AbstractContextManager[object]:
        """A context in which the tensors change."""
        return nullcontext()

    @abstractmethod
    def moved(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move, or forget, tensors that are no parameters or buffers; ``fn`` moves a tensor."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with self.moving():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            self.moved(fn)
        return self


class ArrangedAdamW(torch.optim.AdamW):
    """AdamW that can lay out the tensors of a step before its kernel runs, for which there is no public hook."""

    @abstractmethod
    def lay_out(self, params: list[Tensor]) -> None:
        """Lay out the state of parameters before it is gathered for a step."""

    @abstractmethod
    def arrange(self, params: list[Tensor], grads: list[Tensor], *state: list[Tensor]) -> None:
        """Replace, in the lists themselves, the tensors that the kernel takes."""

    def _init_group(self, group: Any, params: list[Tensor], grads: list[Tensor], *state: list[Tensor]) -> Any:  # noqa: ANN401
        self.lay_out(group["params"])
        result = super()._init_group(group, params, grads, *state)  # type: ignore[no-untyped-call]
        self.arrange(params, grads, *state)
        return result
