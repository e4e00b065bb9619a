"""Reads a network: a module goes in, the groups of its units that can be cut come out."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.reading.branches import find_branches, stages
    from nestling.reading.chosen_groups import Choice
    from nestling.reading.cut import Cut, cut_names, full_cut, make_cut, smallest_cut
    from nestling.reading.graph import (
        UNPROVEN,
        Graph,
        Traced,
        export_graph,
        quiet_torch_logs,
        recorded_graph,
        user_line,
    )
    from nestling.reading.group import BIT_SUFFIX, Group, Groups, Slice
    from nestling.reading.grouping import find_groups, layer_groups
    from nestling.reading.holders import Holders
    from nestling.reading.labels import Ids
    from nestling.reading.options import HOWS, KINDS, UNIT_KINDS, Bits, How, Kind, QuantiserName
    from nestling.reading.plan import Axis, BakedSize, Branch, Plan, PlannedSize
    from nestling.reading.planning import attribute_sizes, make_plan
    from nestling.reading.trace import Trace, trace

imports_lazily(__name__)
