"""The temperature of a relaxed distribution."""

from nestling.arguments import positive_number


class Tempered:
    """Has a ``temperature`` that is checked when it is assigned, so that it can be annealed."""

    _temperature: float

    @property
    def temperature(self) -> float:
        """Temperature of relaxed samples: at a low one they are nearly 0 or 1, at a high one nearly constant."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature = positive_number("temperature", value)
