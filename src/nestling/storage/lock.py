"""A lock on a folder: one process at a time writes to it."""

from pathlib import Path
from types import TracebackType

from nestling.errors import RunError

LOCK_FILE = ".lock"
"""The file in a folder that is locked."""


class FolderLock:
    """Keeps other processes from writing to a folder; a process that ends in any way releases the lock."""

    def __init__(self, place: Path) -> None:
        from filelock import FileLock

        self._place = place
        self._lock = FileLock(place / LOCK_FILE, blocking=False)

    def acquire(self) -> None:
        """Take the lock, or raise an error if another process has it; a second call does nothing."""
        from filelock import Timeout

        try:
            if not self._lock.is_locked:
                self._lock.acquire()
        except Timeout:
            advice = "Wait for it to end, or choose another folder."
            raise RunError(self._place, "is in use by another process", advice) from None
        except OSError as error:
            raise RunError(
                self._place, f"can't be written to ({error.strerror or error})", "Check its permissions."
            ) from None

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
