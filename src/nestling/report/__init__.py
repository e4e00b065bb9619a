"""Reports of a run: tables of its widths and pictures of its curves."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.report.answers import answers, write_csv
    from nestling.report.cascades import cascade_table, draw_cascade
    from nestling.report.curves import curve_table, draw_front
    from nestling.report.figures import Series, draw_curves
    from nestling.report.page.comparison_page import comparison_page
    from nestling.report.page.gathering import PAGE_FILE, report_of, sample_of, write_page
    from nestling.report.page.measuring import Sample
    from nestling.report.page.pruning_page import PruningRecord, is_pruning, pruning_page
    from nestling.report.page.run_page import Report, run_page
    from nestling.report.page.tradeoff import OtherNetworks
    from nestling.report.widths import WidthRow, score_widths, widths_table
    from nestling.tables import text_table

__all__ = [
    "Series",
    "WidthRow",
    "answers",
    "cascade_table",
    "curve_table",
    "draw_cascade",
    "draw_curves",
    "draw_front",
    "score_widths",
    "text_table",
    "widths_table",
    "write_csv",
]

imports_lazily(__name__)
