"""An image in a request as an input of the network, and the parts of a form that it may stand in."""

import re

import numpy as np

from nestling.data import DataError, decoded_image
from nestling.service.engine import Engine
from nestling.service.refusals import Refused

FIELD = "image"
"""The field of a form that holds the image."""


def image_in(body: bytes, content_type: str) -> bytes:
    """The bytes of the image: the body, or in a form the field ``image``.

    Raises:
        Refused: if a form is damaged or has no such field.
    """
    if not content_type.lower().startswith("multipart/form-data"):
        return body
    found = re.search(r'boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', content_type, re.IGNORECASE)
    if found is None:
        raise Refused(400, "the form has no boundary in its Content-Type")
    boundary = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
    parts = (b"\r\n" + body).split(boundary)
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise Refused(400, "the form ends before its last boundary")
    for part in parts[1:-1]:
        head, ends, content = part.partition(b"\r\n\r\n")
        names = re.findall(rb'content-disposition:[^\r\n]*?[;\s]name="?([^";\r\n]*)', head, re.IGNORECASE)
        if ends and names and names[0] == FIELD.encode():
            return content
    raise Refused(400, f"the form has no field {FIELD!r}")


def image_input(content: bytes, engine: Engine, most_pixels: int) -> dict[str, np.ndarray]:
    """The only input of a network, a batch of one, from the bytes of an image file, resized to what it takes.

    Raises:
        Refused: if the network takes no images, or the file is damaged or too large.
    """
    (port, *others), entry = engine.ports, engine.about["inputs"][0]
    last = entry.get("layout") == "nhwc"
    size = (*port.shape[2:], *port.shape[:2]) if last else port.shape
    as_bytes = (engine.about.get("data") or {}).get("as_bytes")
    if others or not as_bytes or len(size) != 3 or size[0] not in (1, 3) or None in size:
        raise Refused(400, "this network takes no images of bytes: use the inference protocol")
    if not content:
        raise Refused(400, "the request has no image: send its bytes, or a form with the field 'image'")
    channels, height, width = (own or 0 for own in size)
    try:
        pixels = decoded_image(content, channels == 3, (height, width), most_pixels=most_pixels)
    except DataError as error:
        raise Refused(400, str(error)) from None
    pixels = np.moveaxis(pixels, 0, -1) if last else pixels
    array = pixels.astype(port.dtype)
    return {port.name: (array / array.dtype.type(255) if entry["scale"] == 1 else array)[None]}
