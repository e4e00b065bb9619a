"""Latencies are measured over few runs here: what they are is no matter of these tests."""

from importlib import import_module

import pytest


@pytest.fixture(autouse=True)
def quick_latency(monkeypatch):
    monkeypatch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)
