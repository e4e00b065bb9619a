"""``serve``: from a run, or an exported file, to a service."""

from pathlib import Path

from nestling.errors import RunError
from nestling.service import Engine, FileEngine, Serving, application
from nestling.service import serve as run_service


def serve(
    source: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str | None = None,
    token_file: Path | None = None,
    options: Serving = Serving(),  # noqa: B008 (frozen)
    trust: bool = False,
) -> str:
    """Serve a run or an exported file until SIGTERM or SIGINT."""
    token = None if token_file is None else _token(token_file)
    threads = options.threads or None
    engine: Engine
    if source.is_dir():
        from nestling.commands.served_run import engine_of  # here, since a file needs no torch

        engine = engine_of(source, threads, trust=trust)
    else:
        engine = FileEngine(source, threads=threads)
    service = application(engine, name=name or source.resolve().stem, options=options, token=token)
    run_service(service, host=host, port=port, say=lambda line: print(line, flush=True))
    return "Stopped: what was taken is answered."


def _token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(file, f"can't be read ({error})", "Write the token into it.") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise RunError(file, "has no token", "Write one word of ASCII into it.")
    return token
