"""Settings that hold for every test: reproducible draws, and few threads so that workers share the cores."""

import os
import tempfile

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

torch.set_num_threads(1)

STATE = tempfile.TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = STATE.name  # notes of the runs that tests train are not the user's

LONG = ("training/test_corruption.py", "training/test_faults.py", "training/test_processes.py", "test_examples.py")
"""Files whose tests run for long: they come first, so that no worker is left alone with them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (not str(item.path).endswith(LONG), str(item.path), _case(item)))


def pytest_runtest_setup() -> None:
    torch.manual_seed(0)  # whichever tests ran before


def _case(item: pytest.Item) -> str:
    """What a test is about: one after another, the tests of a network share what a worker has made of it."""
    parameters = getattr(item, "callspec", None)
    own = None if parameters is None else parameters.params.get("case")
    return str(getattr(own, "name", own or ""))


@pytest.fixture(scope="session")
def browser():
    """Chromium, started once for all tests of pages."""
    from chromium import Browser

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        started = Browser(profile)
        yield started
        started.driver.quit()
