"""Pickles of plain values and byte arrays, parsed instruction by instruction and never unpickled.

A pickle is a program for a stack machine. The few instructions that build numbers, text, bytes, lists, tuples and
dictionaries are carried out here. Of the functions that a pickle may call, those with which numpy writes an array of
bytes are imitated here; every other function or instruction is refused.
"""

import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nestling.data.faults import DamagedError


def read_plain_pickle(content: bytes, where: str) -> Any:  # noqa: ANN401
    """The value that the pickle describes; text of Python 2 becomes str, one character per byte."""
    machine = _Machine(where)
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.do(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as fault:
        raise DamagedError(f"{where} is damaged: {fault}. Delete it and fetch it again.") from fault
    raise DamagedError(f"{where} is damaged: it ends too early. Delete it and fetch it again.")


class _Name(NamedTuple):
    """The name of a function or type in the pickle."""

    text: str


class _Dtype:
    """The type of an array; only unsigned bytes are allowed."""

    def __init__(self, code: str, *rest: object) -> None:
        if code not in ("u1", "|u1", "B"):
            raise ValueError(f"an array of type {code!r}, not of unsigned bytes")

    def fill(self, *state: object) -> None:
        """Ignore the state: byte order and the like mean nothing for bytes."""


class _Array:
    """An array that is created first and filled later, as in numpy's pickles."""

    def __init__(self, *kind: object) -> None:
        self.value: Any = None

    def fill(self, version: int, shape: tuple[int, ...], dtype: _Dtype, fortran: bool, raw: bytes | str) -> None:
        self.value = _array(raw, dtype, shape, "F" if fortran else "C")


def _array(raw: bytes | str, dtype: _Dtype, shape: tuple[int, ...], order: str) -> Any:  # noqa: ANN401
    if not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise ValueError("an array of an unknown kind")
    content = raw.encode("latin1") if isinstance(raw, str) else raw
    flat = np.frombuffer(content, np.uint8)
    return flat.reshape(shape) if order == "C" else flat.reshape(shape[::-1]).T


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"text in {encoding!r}")
    return text.encode("latin1")


_IMITATIONS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _Array,
    "numpy._core.multiarray _reconstruct": _Array,
    "numpy.core.numeric _frombuffer": _array,
    "numpy._core.numeric _frombuffer": _array,
    "numpy dtype": _Dtype,
    "_codecs encode": _encode,
}
_ONLY_NAMED = ("numpy ndarray",)
_MARK = object()
_IGNORED = ("PROTO", "FRAME")
_VALUES = (
    "BININT BININT1 BININT2 INT LONG1 SHORT_BINSTRING BINSTRING BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
).split()
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = ("BINPUT", "LONG_BINPUT", "PUT")
_GETS = ("BINGET", "LONG_BINGET", "GET")


class _Machine:
    """The stack, the memo, and one method per instruction that does more than push a value."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.methods: dict[str, Callable[[Any], None]] = {
            "TUPLE": lambda _: self.stack.append(tuple(self.since_mark())),
            "MEMOIZE": lambda _: self.memo.update({len(self.memo): self.stack[-1]}),
            "APPEND": lambda _: self.extend([self.stack.pop()]),
            "APPENDS": lambda _: self.extend(self.since_mark()),
            "SETITEM": lambda _: self.assign([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda _: self.assign(self.since_mark()),
            "GLOBAL": self.name,
            "STACK_GLOBAL": lambda _: self.name(f"{self.stack.pop(-2)} {self.stack.pop()}"),
            "REDUCE": lambda _: self.call(),
            "BUILD": lambda _: self.build(),
        }

    def do(self, name: str, argument: Any) -> None:  # noqa: ANN401
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            self.stack[-_TUPLES[name] :] = [tuple(self.stack[-_TUPLES[name] :])]
        elif name in _PUTS:
            self.memo[int(argument)] = self.stack[-1]
        elif name in _GETS:
            self.stack.append(self.memo[int(argument)])
        elif name in self.methods:
            self.methods[name](argument)
        elif name not in _IGNORED:
            self.refuse(f"holds the instruction {name}")

    def since_mark(self) -> list[Any]:
        start = max(position for position, value in enumerate(self.stack) if value is _MARK)
        values = self.stack[start + 1 :]
        del self.stack[start:]
        return values

    def extend(self, values: list[Any]) -> None:
        self.stack[-1].extend(_filled(value) for value in values)

    def assign(self, values: list[Any]) -> None:
        self.stack[-1].update(zip(values[::2], map(_filled, values[1::2]), strict=True))

    def name(self, text: str) -> None:
        if text not in _IMITATIONS and text not in _ONLY_NAMED:
            self.refuse(f"names {text.replace(' ', '.')}")
        self.stack.append(_Name(text))

    def call(self) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        if not isinstance(called, _Name) or called.text not in _IMITATIONS:
            self.refuse("calls what is not a name")
        self.stack.append(_IMITATIONS[called.text](*arguments))

    def build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if not isinstance(built, _Array | _Dtype):
            self.refuse("fills in what is not an array")
        built.fill(*state)

    def refuse(self, what: str) -> None:
        needed = "a file of plain arrays has no use for"
        raise DamagedError(f"{self.where} {what}, which {needed}: it was not read. Fetch the official file.")


def _filled(value: Any) -> Any:  # noqa: ANN401
    return value.value if isinstance(value, _Array) else value
