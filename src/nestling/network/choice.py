"""Which of the groups that could be cut are to be cut, and in how many blocks."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from nestling.arguments import block_counts
from nestling.errors import ArgumentError
from nestling.network.group import KINDS, Group, Groups, Kind


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
        block_counts(num_blocks, min(num_always, num_blocks) if isinstance(num_always, int) else num_always)
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
        self.exclude, self.only = tuple(exclude), only

    def apply(self, found: list[Group], tensors: Collection[str]) -> Groups:
        """The groups with blocks of their own, each not chosen one saying so."""
        for name in self.exclude:
            if not any(_within(tensor, name) for tensor in tensors):
                raise ArgumentError("exclude", repr(name), "a module or tensor of the network", "Check its path.")
        named = _distinct(found)
        unknown = sorted(set(self.only or ()) - {group.name for group in named})
        if unknown:
            known = ", ".join(group.name for group in named if group.free)
            raise ArgumentError("only", unknown, f"names of groups ({known})", "Nest once without it to see them.")
        return Groups([self._chosen(group) for group in named])

    def _chosen(self, group: Group) -> Group:
        if not group.free:
            return group
        reason = self._refusal(group)
        if reason is not None:
            return replace(group, frozen_because=reason)
        num_blocks = min(self.num_blocks, group.size)
        return replace(group, num_blocks=num_blocks, num_always=min(self.num_always, num_blocks))

    def _refusal(self, group: Group) -> str | None:
        if self.only is not None:
            return None if group.name in self.only else "not among the groups to cut"
        if any(_within(piece.tensor, name) for piece in group.slices for name in self.exclude):
            return "excluded"
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
