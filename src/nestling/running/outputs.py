"""Picks the tensor that a likelihood reads out of whatever a network returns."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from nestling.errors import ArgumentError
from nestling.running.moments import Moments

Output = str | int | Callable[[Any], Any]
"""A key or an attribute of what a network returns, an index, or a function that makes a tensor of it."""
LOGITS = "logits"
"""The entry that is read by default, as Hugging Face's classifiers have it."""
_ADVICE = "Choose with nest(..., output=): a key, an index, or a function that gives the tensor."


def picked(output: Any, choice: Output | None = None) -> Any:  # noqa: ANN401
    """What ``choice`` picks of a network's output; by default the output itself if it is a tensor, else its logits."""
    if callable(choice):
        return choice(output)
    if isinstance(output, Tensor | Moments):
        return output
    key = LOGITS if choice is None else choice
    try:
        return output[key] if isinstance(key, int) or isinstance(output, Mapping) else getattr(output, key)
    except (LookupError, TypeError, AttributeError):
        needed = "a tensor, or something with logits" if choice is None else f"something with {key!r}"
        raise ArgumentError("output", _described(output), needed, _ADVICE) from None


class Pick:
    """A forward hook that gives the picked tensor in place of what a module returns."""

    def __init__(self, choice: Output) -> None:
        self.choice = choice

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:  # noqa: ANN401
        """The picked tensor."""
        return picked(output, self.choice)


def pick_output(module: nn.Module, output: Any, choice: Output | None) -> Output | None:  # noqa: ANN401
    """Make a module return the tensor that a choice picks of its output on the example; returns the choice.

    Without a choice it is the logits, if the output has them. An output without them stays as it is: such a network
    can be cut, and not trained.
    """
    if choice is None:
        has_logits = LOGITS in output if isinstance(output, Mapping) else hasattr(output, LOGITS)
        if isinstance(output, Tensor) or not has_logits:
            return None
        choice = LOGITS
    value = picked(output, choice)
    if not isinstance(value, Tensor):
        given = f"{choice!r}, which picks a {type(value).__name__} of {_described(output)}"
        raise ArgumentError("output", given, "what picks a tensor", _ADVICE)
    module.register_forward_hook(Pick(choice))
    return choice


def _described(output: object) -> str:
    kind = type(output).__name__
    if isinstance(output, Mapping):
        return f"a {kind} with {', '.join(map(str, output)) or 'nothing'}"
    return f"a {kind} of {len(output)}" if isinstance(output, tuple | list) else f"a {kind}"
