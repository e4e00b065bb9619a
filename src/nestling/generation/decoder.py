"""Decoding: token by token, or in rounds in which a draft proposes tokens and the target verifies them in one pass."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nestling.generation.generated import Generated
from nestling.generation.reader import Reader
from nestling.generation.speculative import next_distribution, verified


@dataclass(frozen=True)
class Decoder:
    """A target, perhaps with a draft that proposes up to ``draft_length`` tokens per round.

    ``temperature`` divides the logits of both; at 0 each token is the likeliest one.
    """

    target: Reader
    draft: Reader | None = None
    draft_length: int = 4
    temperature: float = 1.0

    @torch.no_grad()
    def generate(self, prompt: Tensor, length: int, generator: torch.Generator) -> Generated:
        """The prompt (T,) and ``length`` tokens after it."""
        return _Text(self, prompt, length, generator).completed()


def window_start(stop: int, context: int) -> int:
    """The first token that is read to predict token ``stop``, a function of ``stop`` and the context alone.

    A text that outgrows the context is read anew from half a context further on, so that a cache serves for as many
    tokens, and so that the distribution of a token does not depend on how the text was decoded.
    """
    step = max(context // 2, 1)
    return max(-(-(stop - context) // step) * step, 0)


class _Text:
    """A text that grows; ``stop`` is its length so far."""

    def __init__(self, decoder: Decoder, prompt: Tensor, length: int, generator: torch.Generator) -> None:
        self.decoder, self.generator = decoder, generator
        self.prompt_length = self.stop = len(prompt)
        self.tokens = torch.cat((prompt, prompt.new_zeros(length)))
        self.context = decoder.target.context
        self.passes = self.proposed = self.accepted = 0
        for reader in (decoder.target, decoder.draft):
            if reader is not None:
                reader.begin()

    def completed(self) -> Generated:
        while self.stop < len(self.tokens):
            self._round()
        return Generated(self.tokens, self.prompt_length, self.passes, self.proposed, self.accepted)

    def _round(self) -> None:
        """Add one token, or as many as the target accepts of the draft's and one more."""
        start = window_start(self.stop, self.context)
        room = min(len(self.tokens) - self.stop - 1, start + self.context - self.stop, self.decoder.draft_length)
        draft = self.decoder.draft
        proposals = [] if draft is None else [self._propose(draft, start, number) for number in range(room)]
        number = len(proposals)
        target = self._distributions(self.decoder.target, start, self.stop + number, number + 1)
        kept, after = 0, target[0]
        if number:
            proposed = self.tokens[self.stop : self.stop + number]
            uniforms = torch.rand(number, generator=self.generator, dtype=torch.float64)
            kept, after = verified(target, torch.cat(proposals), proposed, uniforms)
        self.passes, self.proposed, self.accepted = self.passes + 1, self.proposed + number, self.accepted + kept
        self.tokens[self.stop + kept] = self._drawn(after)
        self.stop += kept + 1

    def _propose(self, draft: Reader, start: int, number: int) -> Tensor:
        """Put the draft's next token into the text, after ``number`` others; returns the distribution (1, V)."""
        place = self.stop + number
        distribution = self._distributions(draft, start, place, 1)
        self.tokens[place] = self._drawn(distribution[0])
        return distribution

    def _distributions(self, reader: Reader, start: int, stop: int, number: int) -> Tensor:
        return next_distribution(reader.logits(self.tokens, start, stop, number), self.decoder.temperature)

    def _drawn(self, distribution: Tensor) -> Tensor:
        return torch.multinomial(distribution, 1, generator=self.generator)[0]
