"""The names of augmentations, which the command line offers; this file imports no torch."""

from typing import Literal

Augment = Literal["none", "flip", "crop", "crop_flip"]
AugmentChoice = Literal["auto", "none", "flip", "crop", "crop_flip"]
"""What ``load`` takes by name; auto is what suits the named data set, and none for data of the user's own."""
