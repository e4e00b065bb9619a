"""Which of the groups that could be cut are to be cut, and in how many blocks."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from nestling.arguments import count
from nestling.errors import ArgumentError
from nestling.reading.group import BIT_SUFFIX, Group, Groups
from nestling.reading.options import KINDS, Kind


class Choice:
    """The caller's wishes, applied to every group that was found."""

    def __init__(
        self,
        num_blocks: int,
        num_always: int,
        kinds: Collection[Kind],
        where: str,
        exclude: Collection[str],
        only: Collection[str] | None,
        layers: str,
    ) -> None:
        count("num_blocks", num_blocks, "how many blocks a group is split into")
        count("num_always", num_always, "how many blocks of a group are never cut")
        for name, given in (("kinds", kinds), ("exclude", exclude), ("only", only)):
            if isinstance(given, str):
                raise ArgumentError(name, repr(given), "a tuple of names", f"Write ({given!r},).")
        wrong = sorted(set(kinds) - set(KINDS))
        if wrong:
            raise ArgumentError("kinds", wrong, f"out of {', '.join(KINDS)}", "Pass a tuple of kinds.")
        if where not in ("inner", "all"):
            raise ArgumentError("where", repr(where), "'inner' or 'all'", "'all' cuts residual streams too.")
        if layers not in ("network", "stage"):
            needed = "'network' (one list for all layers) or 'stage' (one for each)"
            raise ArgumentError("layers", repr(layers), needed, "It matters only if kinds includes 'layer'.")
        self.num_blocks, self.num_always = num_blocks, num_always
        self.layers = layers
        self.kinds, self.where = tuple(kinds), where
        self.exclude = tuple(exclude)
        self.only = None if only is None else [name for name in only if not name.endswith(BIT_SUFFIX)]

    def apply(self, found: list[Group], names: Mapping[str, str]) -> Groups:
        """The groups with blocks of their own, each not chosen one saying so.

        ``names`` has every name of every tensor, with the one that groups know it by.
        """
        for name in self.exclude:
            if not any(_within(tensor, name) for tensor in names):
                raise ArgumentError("exclude", repr(name), "a module or tensor of the network", "Check its path.")
        excluded = {known for tensor, known in names.items() if any(_within(tensor, name) for name in self.exclude)}
        named = {group.name: group for group in _distinct(found)}
        for name in self.only or ():
            self._check_named(name, named)
        return Groups([self._chosen(group, excluded) for group in named.values()])

    def _check_named(self, name: str, named: Mapping[str, Group]) -> None:
        known = ", ".join(group.name for group in named.values() if group.free)
        if name not in named:
            raise ArgumentError("only", repr(name), f"names of groups ({known})", "Nest once without it to see them.")
        if not named[name].free:
            given = f"{name!r}, which can't be cut: {named[name].frozen_because}"
            raise ArgumentError("only", given, f"names of groups that can ({known})", "Leave it out.")

    def _chosen(self, group: Group, excluded: set[str]) -> Group:
        if not group.free:
            return group
        reason = self._refusal(group, excluded)
        if reason is not None:
            return replace(group, frozen_because=reason)
        num_blocks = min(self.num_blocks, group.size)
        return replace(group, num_blocks=num_blocks, num_always=min(self.num_always, num_blocks))

    def _refusal(self, group: Group, excluded: set[str]) -> str | None:
        if any(piece.tensor in excluded for piece in group.slices):
            return "excluded"
        if self.only is not None:
            return None if group.name in self.only else "not among the groups to cut"
        if group.kind not in self.kinds:
            return f"kinds does not include {group.kind!r}"
        if self.where == "inner" and not group.inner:
            return "a residual stream, which where='all' cuts too"
        return None


def _within(tensor: str, name: str) -> bool:
    return tensor == name or tensor.startswith(f"{name}.")


def _distinct(groups: list[Group]) -> list[Group]:
    """Groups with names of their own: a second one at the same place gets a number."""
    seen: Counter[str] = Counter()
    named = []
    for group in groups:
        seen[group.name] += 1
        named.append(group if seen[group.name] == 1 else replace(group, name=f"{group.name}#{seen[group.name]}"))
    return named
