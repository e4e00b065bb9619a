"""The options of ``export``, in a file that imports no torch."""

from typing import Literal

FormatName = Literal["onnx", "openvino", "executorch"]
Destination = FormatName | Literal["hub", "triton"]
"""A format of a file, the folder for the Hugging Face hub, or a model repository for Triton."""
UncertaintyName = Literal["draws", "moments"]
"""What a file can say of its own uncertainty."""
Layout = Literal["nchw", "nhwc"]
"""Whether the channels of images come first or last."""
