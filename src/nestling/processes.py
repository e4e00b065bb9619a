"""The processes that share a run: which one this is, and how they exchange results."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn  # if imported later, it keeps the process group, whose threads abort at exit
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from nestling.errors import NestlingError, ProcessError
from nestling.launch import local_rank

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """``count`` processes, of which this is number ``rank``; a single process gets back its own values."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside the ``with`` statement turn errors of a lost connection into one that says that a process is gone."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            text = str(error)
            if self.count == 1 or not any(word in text.lower() for word in _SIGNS):
                raise
            raise ProcessError(f"another process of the run is gone ({text.splitlines()[0][:120]}).") from error

    def agree(self, make: Callable[[], T]) -> T:
        """Make a value in each process; if one raises an error of nestling, all processes stop."""
        made: list[T] = []
        error: NestlingError | None = None
        try:
            made.append(make())
        except NestlingError as raised:
            error = raised
        failed = {rank: text for rank, text in enumerate(self.gather(str(error or "").encode())) if text}
        if error is not None and (self.is_first or self.count == 1):
            raise error
        for rank, text in failed.items():
            raise ProcessError(f"rank {rank}: {text.decode()}")
        return made[0]

    def share(self, items: Iterable[T]) -> Iterator[T]:
        """This process's share of items that all of them have."""
        return islice(items, self.rank, None, self.count)

    def gather(self, content: bytes) -> list[bytes]:
        """The content of every process, in the order of ranks."""
        if self.count == 1:
            return [content]
        with self.together():
            data = torch.frombuffer(bytearray(content + b"\0"), dtype=torch.uint8).to(_device())
            length = torch.tensor([len(data)], device=data.device)
            lengths = [torch.zeros_like(length) for _ in range(self.count)]
            dist.all_gather(lengths, length)
            longest = max(map(int, lengths))
            padded = torch.cat([data, data.new_zeros(longest - len(data))])
            received = [torch.zeros_like(padded) for _ in range(self.count)]
            dist.all_gather(received, padded)
        return [sent[: int(size) - 1].cpu().numpy().tobytes() for sent, size in zip(received, lengths, strict=True)]

    def gather_tensors(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The tensors of every process by name, in the order of ranks; the order of names is kept."""
        if self.count == 1:
            return [dict(tensors)]
        numbered = {f"{number:09} {name}": t.contiguous().cpu() for number, (name, t) in enumerate(tensors.items())}
        return [{name[10:]: t for name, t in sorted(load(content).items())} for content in self.gather(save(numbered))]

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """The value that the first process makes; an error of nestling that it raises is raised in all processes."""
        if self.count == 1:
            return make()
        content = self.agree(lambda: make() if self.is_first else b"")
        with self.together():
            length = torch.tensor([len(content)], device=_device())
            dist.broadcast(length, 0)
            if not int(length):
                return b""
            sent = torch.frombuffer(bytearray(content or int(length)), dtype=torch.uint8).to(_device())
            dist.broadcast(sent, 0)
        return sent.cpu().numpy().tobytes()

    @contextmanager
    def averaging(self, network: nn.Module) -> Iterator[nn.Module]:
        """A module that calls functions of a network, so that a backward pass from their results averages gradients.

        ``module(function, *args)`` returns ``function(*args)``. Inside the ``with`` statement, a backward pass from the
        result gives every process the mean of all gradients; a parameter that no process used gets no gradient.
        """
        caller = _Caller(network)
        if self.count == 1:
            yield caller
            return
        engine = DistributedDataParallel(
            caller, find_unused_parameters=True, gradient_as_bucket_view=True, init_sync=False
        )
        engine.broadcast_buffers = False  # running statistics are each process's own until the epoch ends
        try:
            yield engine
        finally:
            vars(engine).clear()  # a traceback may keep the engine, which must not keep the group (decision 16)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the processes."""
        if self.count == 1:
            return values
        with self.together():
            moved = values.detach().to(_device())
            dist.all_reduce(moved)
        return (moved / self.count).to(values.device)


ALONE = Processes()
_SIGNS = ("gloo", "nccl", "peer", "connect", "socket", "timed out", "store")
"""Words in the errors of a failed exchange between processes."""


def current() -> Processes:
    """The processes of torch.distributed, if it is initialised; else this one alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    return Processes(dist.get_rank(), dist.get_world_size())


@contextmanager
def connected() -> Iterator[Processes]:
    """Connect the processes that torchrun started, inside the ``with`` statement; if connected already, return them."""
    if current() != ALONE or int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield current()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    with Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])).together():
        store, rank, count = next(rendezvous("env://"))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store may remember earlier processes
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=PrefixStore(attempt, store), rank=rank, world_size=count)
    try:
        yield current()
        current().gather(b"")  # the first process hosts the store: nobody leaves before all are done
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


class _Caller(nn.Module):
    """A module that calls functions of the network it contains, so that DistributedDataParallel can wrap it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        device = next(network.parameters()).device
        self.unused = nn.Parameter(torch.zeros((), device=device))  # torch warns of steps that use every parameter

    def forward(self, function: Callable[..., T], *args: object) -> T:
        """Call the function."""
        return function(*args)


def _device() -> torch.device:
    """The device on which tensors must be for processes to exchange them."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
