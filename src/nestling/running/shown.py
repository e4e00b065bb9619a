"""What a notebook shows of a nested network: its groups, and how much of each its order expects to keep."""

from collections.abc import Mapping

from nestling.distributions.orders import Order
from nestling.markup import bar, card, html, html_table
from nestling.reading import Cut, Group, Groups, full_cut
from nestling.tables import percent


def nested_card(groups: Groups, orders: Mapping[str, Order], cut: Cut) -> str:
    """A table with a row per group, under a line that says at which cut the network is."""
    whole = full_cut(groups)
    where = "the whole network" if cut == whole else f"{percent(cut.share_of(whole))} of its blocks"
    line = f"{len(groups.free)} of {len(groups)} groups can be cut; current cut: {where}"
    header = ["group", "kind", "units", "blocks", "kept now", "keeps on average"]
    rows = [_row(group, orders, cut) for group in groups]
    return card("Nested", line, html_table(header, rows, names=2, styled=True))


def _row(group: Group, orders: Mapping[str, Order], cut: Cut) -> list[str]:
    about = [group.name, group.kind, f"{group.size}"]
    if group.frozen_because is not None:
        return [*about, "-", "-", f"frozen: {group.frozen_because}"]
    expected = float(orders[group.name].expected_width().detach())
    drawn = html(bar(expected / group.num_blocks), f" {expected:.1f}")
    return [*about, f"{group.num_blocks}", f"{cut[group.name]}", drawn]
