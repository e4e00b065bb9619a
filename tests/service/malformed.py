"""Malformed requests by hand: one at random of each kind, as bytes on the wire or as a method, path and body."""

import io
import json
import struct
import zlib

import numpy as np
from PIL import Image

INFER = "/v2/models/numbers/infer"
ODD = (None, True, -1, 0, 1.5, 2**63, 10**30, "", "x", [], {}, [[]], "\x00", "☃", float("1e300"))
PATHS = (
    "/../../etc/passwd",
    "/..%2f..%2fetc/passwd",
    "/v2/models/..%2f..%2f/infer",
    "/v2/models/%00/ready",
    "//predict//",
    "/v2/models/numbers/versions/2/infer",
    "/v2/models/" + "a" * 5000,
    "/predict/%ff%fe",
    "/v2/models/numbers/../numbers",
    "/.git/config",
)


def good_body(rng):
    """A body that would be answered, and its parts to spoil."""
    values = rng.integers(0, 256, 16).tolist()
    return {"inputs": [{"name": "images", "shape": [1, 1, 4, 4], "datatype": "UINT8", "data": values}]}


def picture(rng):
    content = io.BytesIO()
    kind = ("PNG", "JPEG", "BMP", "GIF", "WEBP")[rng.integers(5)]
    Image.fromarray(rng.integers(0, 256, (9, 9)).astype(np.uint8)).save(content, kind)
    return content.getvalue()


def png(width, height, *, bits=8, rows=b""):
    """A PNG file that says what size it has, whatever its rows are."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def odd(rng):
    return ODD[rng.integers(len(ODD))]


def a_truncated_image(rng):
    content = picture(rng)
    return "POST", "/predict", content[: rng.integers(1, len(content) // 2)], {}


def a_spoiled_image(rng):
    content = bytearray(picture(rng))
    for place in rng.integers(0, len(content), 12):
        content[place] ^= int(rng.integers(1, 256))
    content[:2] = b"??"
    return "POST", "/predict", bytes(content), {}


def a_bomb(rng):
    side = int(rng.choice([5_000, 20_000, 65_000, 2**31 - 1]))
    return "POST", "/predict", png(side, side, rows=bytes(int(rng.integers(1, 10_000)))), {}


def a_form_without_an_image(rng):
    kinds = (
        "multipart/form-data",
        "multipart/form-data; boundary=b",
        'multipart/form-data; boundary="',
        "multipart/form-data; boundary=" + "b" * 200,
    )
    bodies = (
        b"",
        b"--b",
        b"--b\r\n\r\n--b--",
        b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\n',
        b"\r\n--b--" * 50,
    )
    body = bodies[rng.integers(len(bodies))] + bytes(rng.integers(0, 256, rng.integers(0, 9)).astype(np.uint8))
    return "POST", "/predict", body, {"Content-Type": kinds[rng.integers(len(kinds))]}


def a_bad_query(rng):
    queries = (
        "width=3",
        "width=",
        "width=..%2f",
        "budget_ms=nan",
        "budget_ms=-1",
        "budget_ms=1e999",
        "confidence=2",
        "confidence=fitted",
        "width=1&confidence=0.5",
        "budget_ms=%00",
    )
    return "POST", f"/predict?{queries[rng.integers(1, len(queries))]}x", picture(rng), {}


def an_odd_value(rng):
    """One entry of a good body replaced by something of another type."""
    body = good_body(rng)
    tensor = body["inputs"][0]
    key = ("name", "shape", "datatype", "data")[rng.integers(4)]
    value = odd(rng)
    tensor[key] = value
    return "POST", INFER, json.dumps(body), {}


def odd_parts(rng):
    body = good_body(rng)
    parts = (
        {"inputs": odd(rng)},
        {"inputs": [odd(rng)]},
        {"inputs": []},
        {"inputs": body["inputs"] * 2},
        {"outputs": [odd(rng) or 1]},
        {"outputs": [{"name": odd(rng)}]},
        {"outputs": [{"name": "probs", "parameters": {"classification": 3}}]},
        {"parameters": [odd(rng)]},
        {"parameters": {"width": [odd(rng)]}},
        {"parameters": {"budget_ms": "soon"}},
        {"parameters": {"confidence": -3}},
        {"parameters": {"width": 1, "confidence": 0.5}},
        {"id": [odd(rng)]},
    )
    return "POST", INFER, json.dumps(body | parts[rng.integers(len(parts))]), {}


def a_huge_shape(rng):
    body = good_body(rng)
    shapes = (
        [2**31, 1, 4, 4],
        [10**18, 10**18],
        [1] * 40,
        [0, 1, 4, 4],
        [1, 1, 4, 5],
        [33, 1, 4, 4],
        [-1, 1, 4, 4],
        [1.0, 1, 4, 4],
    )
    body["inputs"][0]["shape"] = shapes[rng.integers(len(shapes))]
    return "POST", INFER, json.dumps(body), {}


def odd_numbers(rng):
    body = good_body(rng)
    body["inputs"][0]["data"][3] = (256, -1, 1.5, "1", None, 2**70, [1])[rng.integers(7)]
    return "POST", INFER, json.dumps(body), {}


def not_json(rng):
    bodies = (
        b"",
        b"{",
        b"nul",
        b"\xff\xfe",
        b"[" * 20_000,
        b'{"inputs": NaN}',
        b'{"inputs": [Infinity]}',
        b"1" * 5000,
        b'{"a":' * 3000,
    )
    return "POST", INFER, bodies[rng.integers(len(bodies))], {}


def a_wrong_header_length(rng):
    body = good_body(rng)
    del body["inputs"][0]["data"]
    size = (15, 17, 16, -1, True, "16", 2**40, None)[rng.integers(8)]
    body["inputs"][0]["parameters"] = {"binary_data_size": size}
    text = json.dumps(body).encode()
    right = str(len(text))
    lengths = ("0", "-1", str(len(text) + 99), "1e3", "", "9" * 400, "0x10", str(len(text) - 3), "²", right)
    place = rng.integers(len(lengths) - (size == 16))
    tail = bytes(int(rng.integers(0, 40)) if size != 16 else 15)
    return (
        "POST",
        INFER,
        text + tail,
        {"Inference-Header-Content-Length": lengths[place].encode("latin-1", "ignore").decode("latin-1")},
    )


def a_path_trick(rng):
    return ("GET", "POST")[rng.integers(2)], PATHS[rng.integers(len(PATHS))], b"{}", {}


def another_method(rng):
    methods = ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")
    return methods[rng.integers(len(methods))], (INFER, "/predict", "/", "/metrics")[rng.integers(4)], b"x", {}


def an_encoding(rng):
    return (
        "POST",
        INFER,
        zlib.compress(json.dumps(good_body(rng)).encode()),
        {"Content-Encoding": ("gzip", "deflate", "br")[rng.integers(3)]},
    )


def bytes_on_the_wire(rng):
    """What is not HTTP, or not whole."""
    heads = (
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nab\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET " + b"/a" * 50_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        bytes(rng.integers(0, 256, 200).astype(np.uint8)) + b"\r\n\r\n",
    )
    return heads[rng.integers(len(heads))]


KINDS = (
    a_truncated_image,
    a_spoiled_image,
    a_bomb,
    a_form_without_an_image,
    a_bad_query,
    an_odd_value,
    odd_parts,
    a_huge_shape,
    odd_numbers,
    not_json,
    a_wrong_header_length,
    a_path_trick,
    another_method,
    an_encoding,
)
"""Requests that HTTP lets through; each must be refused with a line that says why."""
