"""Decides which of the groups that can be cut are cut, and in how many blocks."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from nestling.arguments import count
from nestling.errors import ArgumentError
from nestling.reading.group import BIT_SUFFIX, Group, Groups
from nestling.reading.options import KINDS, Kind


class Choice:
    """The caller's choice of groups, applied to every group of the network."""

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
        for name, names in (("kinds", kinds), ("exclude", exclude), ("only", only)):
            if isinstance(names, str):
                raise ArgumentError(name, repr(names), "a tuple of names", f"Write ({names!r},).")
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown:
            raise ArgumentError("kinds", unknown, f"out of {', '.join(KINDS)}", "Pass a tuple of kinds.")
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

    def apply(self, groups: list[Group], names: Mapping[str, str]) -> Groups:
        """The groups with their numbers of blocks; a group that is not chosen says why.

        ``names`` maps every name of every tensor to the one that groups use.
        """
        for name in self.exclude:
            if not any(_within(tensor, name) for tensor in names):
                raise ArgumentError("exclude", repr(name), "a module or tensor of the network", "Check its path.")
        excluded = {canonical for name, canonical in names.items() if any(_within(name, path) for path in self.exclude)}
        groups_by_name = {group.name: group for group in _distinct(groups)}
        for name in self.only or ():
            self._check_named(name, groups_by_name)
        return Groups([self._chosen(group, excluded) for group in groups_by_name.values()])

    def _check_named(self, name: str, groups_by_name: Mapping[str, Group]) -> None:
        free = ", ".join(group.name for group in groups_by_name.values() if group.free)
        if name not in groups_by_name:
            raise ArgumentError("only", repr(name), f"names of groups ({free})", "Nest once without it to see them.")
        if not groups_by_name[name].free:
            refused = f"{name!r}, which can't be cut: {groups_by_name[name].frozen_because}"
            raise ArgumentError("only", refused, f"names of groups that can ({free})", "Leave it out.")

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
    """The groups under distinct names: a second group of the same name gets a number."""
    counts: Counter[str] = Counter()
    distinct = []
    for group in groups:
        counts[group.name] += 1
        distinct.append(group if counts[group.name] == 1 else replace(group, name=f"{group.name}#{counts[group.name]}"))
    return distinct
