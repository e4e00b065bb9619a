"""``generate``: a text that a network goes on with, at a cut, perhaps with another cut as the draft."""

import torch
from torch import Tensor, nn

from nestling.arguments import count, finite_number
from nestling.errors import ArgumentError, RangeError, ShapeError
from nestling.generation.decoder import Decoder
from nestling.generation.generated import Generated
from nestling.generation.reader import Reader
from nestling.prediction import CutLike
from nestling.running import in_mode
from nestling.seeding import Purpose, generator
from nestling.tensor_arguments import whole_tensor


def generate(
    network: nn.Module,
    prompt: str | bytes | Tensor,
    *,
    length: int = 200,
    cut: CutLike = 1.0,
    draft: CutLike | nn.Module | None = None,
    draft_length: int = 4,
    temperature: float = 1.0,
    seed: int = 0,
) -> Generated:
    """Continue a text with a network that predicts the next token.

    With a ``draft`` it decodes speculatively: the draft, a narrower cut of the same network, proposes tokens one by
    one, and the network verifies them in one pass. The distribution of the text is exactly that of plain decoding
    (Leviathan et al. 2023, Chen et al. 2023), and at temperature 0 the text is the same, except where rounding decides
    between two tokens. The draft's weights are views of the network's. Whether it is faster depends on how much less
    time the draft takes and on how often it is right: ``experiments/transformers`` has measurements.

    A text that outgrows the network's context is read anew from half a context further on.

    Args:
        network: A nested network whose module has a ``context`` and takes ``forward(tokens, cache)``, such as
            ``nl.models.GPT``, or such a module itself. It runs in eval mode, with mean weights.
        prompt: The text to continue, as text or bytes for a network of bytes, or its tokens (T,). It has at least one
            token.
        length: How many tokens to add.
        cut: A fraction, widths by group, or a ``Cut``; 1.0 for a module that is not nested.
        draft: A cut of the network, or another network with the same tokens; None for plain decoding.
        draft_length: How many tokens the draft proposes before the network verifies them.
        temperature: What the logits of both are divided by; 0 takes the likeliest token each time.
        seed: Of the tokens that are drawn. Plain and speculative decoding draw different texts.

    Returns:
        The text and its tokens, and how many of the draft's tokens were accepted.

    Raises:
        ArgumentError: If the network predicts no tokens, or the prompt, a cut or a number does not fit.
        NestlingError: If the code of a network that runs as a graph computes something else than the graph.

    Examples:
        >>> net = nl.models.GPT(context=32, layers=2, stream=32, heads=4)
        >>> example = torch.zeros(2, 8, dtype=torch.int64)
        >>> nested = nl.nest(net, example, weights=None, num_blocks=4, num_always=1)
        >>> plain = nl.generate(nested, "It was", length=20, temperature=0)
        >>> fast = nl.generate(nested, "It was", length=20, temperature=0, draft=0.25)
        >>> torch.equal(plain.tokens, fast.tokens), fast.passes < plain.passes
        (True, True)
    """
    count("length", length, "how many tokens to add")
    count("draft_length", draft_length, "how many tokens the draft proposes")
    if finite_number("temperature", temperature) < 0:
        raise RangeError("temperature", temperature, "at least 0", "0 takes the likeliest token.")
    tokens = _tokens(prompt)
    with in_mode(network, training=False), torch.no_grad():
        target, drafter = Reader(network, cut, "network"), _drafter(network, draft)
        _check_tokens(tokens, target)
        if drafter is not None:
            _check_draft(drafter, target)
        numbers = generator(Purpose.DECODING, seed)
        return Decoder(target, drafter, draft_length, temperature).generate(tokens, length, numbers)


def _drafter(network: nn.Module, draft: CutLike | nn.Module | None) -> Reader | None:
    if draft is None:
        return None
    return Reader(draft, 1.0, "draft") if isinstance(draft, nn.Module) else Reader(network, draft, "draft")


def _tokens(prompt: str | bytes | Tensor) -> Tensor:
    if isinstance(prompt, str | bytes):
        prompt = torch.tensor(list(prompt.encode() if isinstance(prompt, str) else prompt), dtype=torch.int64)
    tokens = whole_tensor("prompt", prompt).long()
    if tokens.ndim != 1 or not len(tokens):
        raise ShapeError("prompt", f"shape {tuple(tokens.shape)}", "one text of at least one token", r'Try "\n".')
    return tokens


def _check_tokens(tokens: Tensor, target: Reader) -> None:
    low, high = (int(end) for end in tokens.aminmax())
    if low < 0 or high >= target.vocabulary:
        needed = f"tokens from 0 to {target.vocabulary - 1}, as the network has them"
        raise RangeError("prompt", f"tokens from {low} to {high}", needed, "Pass what its tokenizer gives.")


def _check_draft(draft: Reader, target: Reader) -> None:
    if draft.vocabulary != target.vocabulary or draft.context < target.context:
        given = f"a network of {draft.vocabulary} tokens and a context of {draft.context}"
        needed = f"one of {target.vocabulary} tokens and a context of at least {target.context}"
        raise ArgumentError("draft", given, needed, "Choose a cut of the network.")
