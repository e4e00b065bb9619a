"""Runtime: exported files opened with numpy and their runtime alone, without torch."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.runtime.answers import UNCERTAINTIES, Answers
    from nestling.runtime.cascade import Cascade, CascadeAnswers, class_log_probs, how_unsure, open_cascade
    from nestling.runtime.executorch import RECORD_METHOD, ExecuTorchSession
    from nestling.runtime.network import BATCH, NORMAL, Network, open
    from nestling.runtime.onnx import OnnxSession
    from nestling.runtime.openvino import RECORD, OpenVINOSession, imported_openvino
    from nestling.runtime.record import FORMAT, KEY
    from nestling.runtime.session import Session
    from nestling.runtime.uncertainty import noise_for

__all__ = ["Answers", "Cascade", "CascadeAnswers", "Network", "Session", "noise_for", "open", "open_cascade"]

imports_lazily(__name__)
