"""A cut: how many blocks of each group are kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nestling.errors import DtypeError, RangeError
from nestling.reading.group import Group, Groups


@dataclass(frozen=True)
class Cut:
    """How many blocks are kept of each group of a network.

    Args:
        widths: A pair (name, number of blocks) for every group that can be cut, in the order of the groups.

    Examples:
        >>> cut = curve.under(macs="0.5x")
        >>> again = nl.Cut(tuple(cut.as_dict().items()))
        >>> again == cut, cut["layers.1"] == cut.as_dict()["layers.1"]
        (True, True)
    """

    widths: tuple[tuple[str, int], ...]

    def __getitem__(self, name: str) -> int:
        return dict(self.widths)[name]

    def as_dict(self) -> dict[str, int]:
        """The widths by the names of their groups."""
        return dict(self.widths)

    @property
    def num_blocks(self) -> int:
        """The number of blocks that are kept, of all groups together."""
        return sum(width for _, width in self.widths)

    def share_of(self, whole: "Cut") -> float:
        """The share of the blocks of another cut that this one keeps.

        Args:
            whole: The other cut, usually that of the whole network.

        Returns:
            A number from 0 to 1; 1 for a network without groups.
        """
        return self.num_blocks / whole.num_blocks if whole.num_blocks else 1.0


def full_cut(groups: Groups) -> Cut:
    """The cut that keeps every block."""
    return Cut(tuple((group.name, group.num_blocks) for group in groups.free))


def smallest_cut(groups: Groups) -> Cut:
    """The cut that keeps only the blocks that are never cut."""
    return Cut(tuple((group.name, group.num_always) for group in groups.free))


def make_cut(groups: Groups, wanted: float | Mapping[str, int] | Cut) -> Cut:
    """A cut from a fraction of every group's blocks, from widths by name (other groups stay whole), or from a Cut."""
    if isinstance(wanted, Cut):
        wanted = wanted.as_dict()
    if isinstance(wanted, Mapping):
        widths = {name: _width(groups[name], width) for name, width in wanted.items()}
        return Cut(tuple((group.name, widths.get(group.name, group.num_blocks)) for group in groups.free))
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        needed = "a fraction, a dictionary of widths, or a Cut"
        raise DtypeError("cut", repr(wanted), needed, "For half of every group pass 0.5.")
    if not 0 < wanted <= 1:
        raise RangeError(
            "cut", wanted, "a fraction within (0, 1]", "Pass 0.5 for half, 1.0 for all; widths by name as a dict."
        )
    return Cut(tuple((group.name, _share(group, wanted)) for group in groups.free))


def cut_names(groups: Groups, cuts: Iterable[float | Mapping[str, int] | Cut]) -> dict[Cut, str]:
    """The different networks among some cuts, each with its name: the fractions that were asked for and mean it.

    Small groups and blocks that are never cut can make one network of several fractions: ``"0.01, 0.25"``. A cut that
    was not given as a fraction is named by the number of its blocks.
    """
    names: dict[Cut, dict[str, None]] = {}
    whole = full_cut(groups).num_blocks
    for wanted in cuts:
        cut = make_cut(groups, wanted)
        is_fraction = isinstance(wanted, int | float)
        names.setdefault(cut, {})[f"{wanted:g}" if is_fraction else f"{cut.num_blocks} of {whole} blocks"] = None
    return {cut: ", ".join(asked) for cut, asked in names.items()}


def _share(group: Group, fraction: float) -> int:
    """The number of blocks nearest to a fraction of them, halves rounded up, and at least those always kept."""
    return max(group.num_always, int(fraction * group.num_blocks + 0.5))


def _width(group: Group, width: int) -> int:
    if isinstance(width, bool) or not isinstance(width, int):
        raise DtypeError(
            group.name, repr(width), "a whole number of blocks", "Round it, or pass a fraction for all groups."
        )
    if group.frozen_because is not None:
        raise RangeError(group.name, f"width {width}", "left out", f"This group is not cut: {group.frozen_because}.")
    if not group.num_always <= width <= group.num_blocks:
        needed = f"between {group.num_always} and {group.num_blocks} blocks"
        raise RangeError(group.name, f"width {width}", needed, "Print nested.groups to see the blocks of each group.")
    return width
