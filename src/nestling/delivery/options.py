"""The options of ``export``, in a file that imports no torch."""

from typing import Literal

FormatName = Literal["onnx"]
Layout = Literal["nchw", "nhwc"]
"""Whether the channels of images come first or last."""
