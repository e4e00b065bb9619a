"""Runs a network at a cut: groups go in, answers and smaller networks come out."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.running.agreement import TOLERANCE, check_same, gap, with_noise
    from nestling.running.batches import Call, Read, as_call, examples_of, inputs_of, pair_of, read_by
    from nestling.running.bits import (
        FIRST_SHARPNESS,
        LAST_SHARPNESS,
        Levels,
        bit_groups,
        of_posteriors,
        with_bit_groups,
    )
    from nestling.running.cost import Cost, batch_of, bytes_saved, cost, cost_of, latencies_ms
    from nestling.running.extract import extract
    from nestling.running.graph_runner import GraphRunner
    from nestling.running.known_results import Reuse
    from nestling.running.layers import plain_name
    from nestling.running.modes import called_with, in_mode
    from nestling.running.module_code import code_at
    from nestling.running.nested import Nested, check_nested
    from nestling.running.norms import norms_with_statistics, were_trained
    from nestling.running.open_widths import OpenWidths, axes_of, kept_of
    from nestling.running.outputs import Output, Pick, pick_output, picked
    from nestling.running.packed_bits import num_bytes, pack, unpack
    from nestling.running.plain_graph import PlainGraph
    from nestling.running.program import Program, program_of
    from nestling.running.quantiser import NUM_PAIRS, check_num_pairs, codes, dequantise
    from nestling.running.recalibrate import recalibrate
    from nestling.running.runner import ModuleRunner, Runner
    from nestling.running.slicing import Slicer

imports_lazily(__name__)
