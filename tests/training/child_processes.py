"""Real processes for tests: forked from a server that has torch loaded, alone or as ranks of a run."""

import multiprocessing
import os
import socket
import traceback
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from effort import PATIENCE

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["warm"])


def started(function, *args, ranks=None):
    """A process that calls the function with one thread; ``ranks`` is (rank, number of ranks, port)."""
    _ensure_server()
    process = CONTEXT.Process(target=_call, args=(function, args, ranks), daemon=True)
    process.start()
    return process


@cache
def _ensure_server():
    """Start the server where it finds the modules beside this one, and with one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()


def together(function, *args, world=2):
    """What the function returns in each of ``world`` ranks that were started as torchrun does."""
    port, results = free_port(), CONTEXT.Queue()
    ranks = [started(_reported, function, args, results, ranks=(rank, world, port)) for rank in range(world)]
    try:
        found = dict(results.get(timeout=PATIENCE) for _ in ranks)
    finally:
        for process in ranks:
            process.join(10)
            process.kill()
    for rank in range(world):
        assert not isinstance(found[rank], Failure), f"rank {rank}: {found[rank]}"
    return [found[rank] for rank in range(world)]


class Failure(str):
    """The traceback of a rank that failed."""


def free_port():
    """A port of this machine that nobody listens at."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def _call(function, args, ranks):
    torch.set_num_threads(1)
    if ranks is not None:
        rank, world, port = map(str, ranks)
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    function(*args)


def _reported(function, args, results):
    try:
        found = function(*args)
    except BaseException:
        found = Failure(traceback.format_exc())
    results.put((int(os.environ["RANK"]), found))
    results.close()
    results.join_thread()
