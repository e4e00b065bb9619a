"""What must be installed for a format."""

from importlib.util import find_spec

from nestling.errors import ArgumentError


def check_extra(extra: str, *packages: str) -> None:
    """Refuse what an extra is for, with the command that installs it, where one of its packages is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        given = f"{extra}, and {', '.join(missing)} is not installed"
        raise ArgumentError("to", given, "a format whose packages are installed", f"pip install nestling[{extra}]")
