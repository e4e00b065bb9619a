"""Says how each parameter of a distribution is trained, so that training need not know the names."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from torch import nn

Rate = Literal["weights", "distributions", "natural"]
"""How a parameter is trained: at the learning rate of weights or of distributions, or by natural-gradient steps."""


class Learned(nn.Module):
    """A distribution whose parameters are trained at ``rate``, except those in ``rates``; none has weight decay."""

    rate: ClassVar[Rate] = "distributions"
    rates: ClassVar[Mapping[str, Rate]] = {}

    def by_rate(self) -> Iterator[tuple[nn.Parameter, Rate]]:
        """Every parameter with its rate, including the parameters of distributions inside this one."""
        return ((parameter, self.rates.get(name, self.rate)) for name, parameter in self.named_parameters())
