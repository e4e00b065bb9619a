"""Fetching, from a server on this machine: whole files arrive, and nothing else is ever taken for one."""

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from data_files import write_idx_set

from nestling.data import DamagedError, MissingError, load
from nestling.data import files as fetching


class Server(BaseHTTPRequestHandler):
    folder: Path
    asked: list[str]
    released: threading.Event
    fault = ""

    def do_GET(self):
        type(self).asked.append(self.path)
        path = self.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.fault == "silent":
            type(self).released.wait(10)
            return
        self.wfile.write(content[:-10] if self.fault == "cut" else b"x" + content[1:] if self.fault else content)

    def log_message(self, *args):
        """Keep quiet."""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A mirror with a small MNIST whose checksums the library believes to be the official ones."""
    handler = type("Handler", (Server,), {"folder": tmp_path / "mirror", "asked": [], "released": threading.Event()})
    write_idx_set(tmp_path / "mirror" / "mnist")
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in (tmp_path / "mirror" / "mnist").iterdir()}
    monkeypatch.setitem(fetching.MD5, "mnist", sums)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("NESTLING_MIRROR", f"http://127.0.0.1:{httpd.server_port}/")
    monkeypatch.setenv("NESTLING_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield handler
    handler.released.set()
    httpd.shutdown()
    httpd.server_close()
    thread.join(5)


def test_fetches_once_and_only_what_is_needed(server, tmp_path):
    assert len(load("mnist", splits=("test",)).test) == 20
    assert sorted(server.asked) == ["/mnist/t10k-images-idx3-ubyte.gz", "/mnist/t10k-labels-idx1-ubyte.gz"]
    assert len(load("mnist", validation=0).train) == 40
    assert len(server.asked) == 4
    load("mnist")
    assert len(server.asked) == 4
    assert len(list((tmp_path / "data" / "mnist").iterdir())) == 4


@pytest.mark.parametrize("fault", ["cut", "altered"])
def test_what_did_not_come_whole_is_not_kept(server, tmp_path, fault):
    server.fault = fault
    with pytest.raises(MissingError, match="downloading failed") as caught:
        load("mnist")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "data" / "mnist").iterdir())
    server.fault = ""
    assert len(load("mnist").test) == 20


def test_a_silent_server(server, monkeypatch):
    server.fault = "silent"
    monkeypatch.setattr(fetching, "SILENCE_SECONDS", 0.3)
    with pytest.raises(MissingError, match="downloading failed"):
        load("mnist")
    assert len(server.asked) == 1


def test_a_mirror_without_the_set(server):
    with pytest.raises(
        MissingError, match=r"looked in .*cifar10 for .*cifar-10-binary\.tar\.gz; .*HTTPError, from"
    ) as caught:
        load("cifar10")
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in str(caught.value)


def test_no_server_at_all(tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("NESTLING_MIRROR", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(MissingError, match=r"looked in .*downloading failed .*Put http") as caught:
            load("fashion_mnist", root=tmp_path)
    assert "\n" not in str(caught.value)


def test_told_not_to_download(server):
    with pytest.raises(MissingError, match="download=False"):
        load("mnist", download=False)
    assert not server.asked


def test_a_set_that_cannot_be_fetched(tmp_path):
    with pytest.raises(
        MissingError, match=r"lidc was not found: looked in .*lidc for lidc\.npz\. There is no official"
    ):
        load("lidc", root=tmp_path)


def test_a_damaged_file_is_left_for_the_user_to_judge(server, tmp_path):
    load("mnist")
    path = tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(b"mine")
    with pytest.raises(DamagedError, match="t10k-labels"):
        load("mnist")
    assert path.read_bytes() == b"mine"


def test_a_half_written_file_of_a_killed_download_does_not_count(server, tmp_path):
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    (tmp_path / "data" / "mnist" / "tmpabc123").write_bytes(b"half")
    assert len(load("mnist").test) == 20


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "data").write_text("a file in the way")
    with pytest.raises(MissingError, match="downloading failed"):
        load("mnist")


def test_the_users_cache_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("NESTLING_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetching.data_root().name == "nestling"
    monkeypatch.setenv("NESTLING_DATA", str(tmp_path))
    assert fetching.data_root() == tmp_path
    assert fetching.data_root(tmp_path / "mine") == tmp_path / "mine"
