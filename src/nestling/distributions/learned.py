"""What a distribution says of its own parameters, so that who trains it need not know their names."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from torch import nn

Rate = Literal["weights", "distributions", "natural"]
"""How a parameter moves: at the learning rate of weights, at that of distributions, or by natural-gradient steps."""


class Learned(nn.Module):
    """A distribution whose parameters move at ``rate``, but for those that ``rates`` names; none of them decays."""

    rate: ClassVar[Rate] = "distributions"
    rates: ClassVar[Mapping[str, Rate]] = {}

    def by_rate(self) -> Iterator[tuple[nn.Parameter, Rate]]:
        """Every parameter, those of distributions within this one too, with how it moves."""
        return ((parameter, self.rates.get(name, self.rate)) for name, parameter in self.named_parameters())
