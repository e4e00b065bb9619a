"""What ``generate`` gives: the tokens, and how the draft did."""

from dataclasses import dataclass

from torch import Tensor

from nestling.errors import RangeError


@dataclass(frozen=True, eq=False)
class Generated:
    """A prompt with the tokens that a network added to it.

    Attributes:
        tokens: The tokens (T,) of the prompt and those after it.
        prompt_length: How many of them are the prompt.
        passes: How often the network ran; without a draft, once for each new token.
        proposed: How many tokens the draft proposed; 0 without a draft.
        accepted: How many of these the network accepted.

    Examples:
        >>> net = nl.models.GPT(context=16, layers=2, stream=32, heads=4)
        >>> out = nl.generate(net, "once ", length=8)
        >>> len(out.tokens), out.prompt_length, out.passes, out.text[:5]
        (13, 5, 8, 'once ')
    """

    tokens: Tensor
    prompt_length: int
    passes: int
    proposed: int = 0
    accepted: int = 0

    @property
    def new_tokens(self) -> Tensor:
        """The tokens after the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def acceptance(self) -> float:
        """The share of the draft's tokens that were accepted; 0 without a draft."""
        return self.accepted / max(self.proposed, 1)

    @property
    def text(self) -> str:
        """All tokens as text, if they are bytes; bytes that are no UTF-8 become a replacement sign.

        Raises:
            RangeError: If some token is no byte.
        """
        return decoded(self.tokens)

    @property
    def new_text(self) -> str:
        """The text after the prompt.

        Raises:
            RangeError: If some token is no byte.
        """
        return decoded(self.new_tokens)

    def __repr__(self) -> str:
        drafted = f", {self.acceptance:.0%} of {self.proposed} proposed tokens accepted" if self.proposed else ""
        return f"Generated({len(self.new_tokens)} tokens in {self.passes} passes{drafted})"


def decoded(tokens: Tensor) -> str:
    """Tokens that are bytes as text."""
    if len(tokens) and int(tokens.max()) > 255:
        needed = "bytes, from 0 to 255"
        raise RangeError("tokens", f"tokens up to {int(tokens.max())}", needed, "Decode .tokens with your tokenizer.")
    return bytes(tokens.tolist()).decode(errors="replace")
