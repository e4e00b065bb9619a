"""The names of likelihoods; imports no torch."""

from typing import Literal

LikelihoodName = Literal["categorical", "bernoulli", "gaussian", "heteroscedastic_gaussian"]
