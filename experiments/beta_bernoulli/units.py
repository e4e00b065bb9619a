"""Pruned neurons and channels of LeNet-500-300 and LeNet-5 on MNIST, by every gate: one JSON line a run; the table.

NESTLING_DATA=folder python experiments/beta_bernoulli/units.py run beta_bernoulli lenet_500_300 0 --out results.jsonl
python experiments/beta_bernoulli/units.py table results.jsonl

Speed-up is measured: the CPU time of the full network over that of the pruned one, on one thread, at batch 1 and 64, in
PyTorch and, if it is installed, in onnxruntime. Beside it stand multiply-adds (of one example; additions of biases and
activations are not counted) and parameters (weights and biases; for the dependent gate its own numbers too).
"""

import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import nestling as nl
from nestling.prediction import ClassScores
from nestling.pruning import Pruned, prune

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, each, grouped, markdown, spread

PAPERS = {
    ("lenet_500_300", "vbd"): "1.35 %, 179-160-60",
    ("lenet_500_300", "beta_bernoulli"): "1.36 %, 264-140-65, 11.8 times, 8.5 %",
    ("lenet_500_300", "dependent_beta_bernoulli"): "1.41 %, 100-36-34, 112 times, 8.2 %",
    ("lenet_500_300", "log_normal"): "1.55 %, 245-160-55 (VBD); 1.7 %, 219-102-40 (BB)",
    ("lenet_5_caffe", "vbd"): "0.66 %, 16-34-123-62",
    ("lenet_5_caffe", "beta_bernoulli"): "0.55 %, 15-33-138-64, 2.0 times, 5.1 %",
    ("lenet_5_caffe", "dependent_beta_bernoulli"): "0.59 %, 13-31-53-34, 2.5 times, 4.8 %",
    ("lenet_5_caffe", "log_normal"): "0.86 %, 3-18-284-283 (VBD); 0.82 %, 13-15-100-50 (BB)",
}
ORDER = {
    "lenet_500_300": ("layers.1.input", "layers.1", "layers.3"),
    "lenet_5_caffe": ("features.0", "features.3", "head.0.input", "head.0"),
}
"""The sites in the order of the papers' rows."""
GATE_LR = {"vbd": 1e-2, "beta_bernoulli": 1e-2, "dependent_beta_bernoulli": 1e-2, "log_normal": 1e-2}


def recipe(method: str, seed: int, **changes: Any) -> nl.Recipe:  # noqa: ANN401
    """Ten times the bound's weight of the divergence: a gate pays so little for its unit that the bound keeps most."""
    own = nl.Recipe(epochs=50, batch_size=500, seed=seed, lr=2e-3, order_lr=GATE_LR[method], lr_warm_up=0.0)
    return own.but(kappa=10.0, kl_warm_up=0.1).but(**changes)


def pretraining(pruning: nl.Recipe, epochs: int) -> nl.Recipe:
    plain = nl.Recipe(epochs=epochs, batch_size=500, lr=2e-3, lr_warm_up=0.0)
    return plain.but(seed=pruning.seed, precision=pruning.precision)


def run(method: Any, network: str, seed: int, pretrain: int, threshold: float | None, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    torch.manual_seed(seed)
    data = replace(nl.data.load("mnist", seed=seed, validation=2000), mean=(0.0,), std=(1.0,))
    chosen = recipe(method, seed, **changes)
    module = nl.models.build(network)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    started = time.process_time()
    pruned = prune(
        module,
        torch.zeros(2, 1, 28, 28),
        data,
        method,
        structure="units",
        inputs=True,
        recipe=chosen,
        pretrain=pretraining(chosen, pretrain) if pretrain else False,
        finish=method != "dependent_beta_bernoulli",
        threshold=threshold,
    )
    test = list(data.batches("test", 1000))
    scores = nl.evaluate(pruned.network, test, samples=0)
    assert isinstance(scores, ClassScores)
    kept = {own.name: own.kept for own in pruned.layers}
    found = {
        "method": method,
        "network": network,
        "seed": seed,
        "threshold": pruned.threshold,
        "error": 100 * (1 - scores.accuracy),
        "kept": [kept[name] for name in ORDER[network]],
        "macs": [pruned.before.macs, pruned.after.macs],
        "params": [pruned.before.params, sum(t.numel() for t in pruned.network.state_dict().values())],
        "epochs": chosen.epochs,
        "pretrain": pretrain,
        "changes": changes,
        "cpu_seconds": round(time.process_time() - started),
    }
    if method == "dependent_beta_bernoulli":
        found["used_per_input"] = used_per_input(pruned, test, ORDER[network])
    return found | {"times_faster": speed_ups(module.eval(), pruned.network, test[0][0])}


def used_per_input(pruned: Pruned, test: list[Any], order: tuple[str, ...]) -> list[float]:
    """The mean number of units of each site that an input of the test set uses."""
    from nestling.pruning.gated import gates_in

    totals: dict[str, float] = defaultdict(float)
    held = gates_in(pruned.trained)

    def count(name: str, multipliers: Tensor) -> None:
        totals[name] += float((multipliers > 0).sum())

    with torch.no_grad(), held.watch(count):
        for inputs, _ in test:
            pruned.trained.eval()(inputs)
    number = sum(len(inputs) for inputs, _ in test)
    return [round(totals[name] / number, 1) for name in order]


def speed_ups(full: nn.Module, small: nn.Module, inputs: Tensor) -> dict[str, float]:
    """CPU time of the full network over that of the small one."""
    found = {}
    for batch in (1, 64):
        x = inputs[:batch].clone()
        with torch.no_grad():
            times = [seconds(lambda own=own, x=x: own(x)) for own in (full, small)]  # type: ignore[misc]
        found[f"torch_{batch}"] = round(times[0] / times[1], 2)
        found[f"torch_{batch}_us"] = round(1e6 * times[1], 1)
        with_onnx = [onnx_seconds(own, x) for own in (full, small)]
        if None not in with_onnx:
            found[f"onnx_{batch}"] = round(with_onnx[0] / with_onnx[1], 2)  # type: ignore[operator]
    return found


def onnx_seconds(network: nn.Module, x: Tensor) -> float | None:
    """Seconds of a pass in onnxruntime; None if it is not there or can't run the network."""
    try:
        import onnxruntime  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    with TemporaryDirectory() as folder:
        path = f"{folder}/network.onnx"
        try:
            with warnings.catch_warnings(action="ignore"):
                torch.onnx.export(network, (x,), path, input_names=["x"])
        except Exception as problem:  # an exporter raises errors of many kinds
            print(f"no ONNX: {problem}")
            return None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
    given = {"x": x.numpy()}
    return seconds(lambda: session.run(None, given))


def seconds(function: Callable[[], object]) -> float:
    """The median CPU time of a call, over rounds of many."""
    times = []
    for _ in range(7):
        function()
        number, start = 0, time.process_time()
        while time.process_time() - start < 0.03 or number < 3:
            function()
            number += 1
        times.append((time.process_time() - start) / number)
    return statistics.median(times)


def table(rows: list[Row]) -> str:
    lines = []
    for (network, method), runs in grouped(rows, "network", "method").items():
        errors = [own["error"] for own in runs]
        columns = zip(*(own["kept"] for own in runs), strict=True)
        kept = "-".join(f"{statistics.median(column):.0f}" for column in columns)
        macs = statistics.median(own["macs"][0] / own["macs"][1] for own in runs)
        share = statistics.median(100 * own["params"][1] / own["params"][0] for own in runs)
        fast = ", ".join(
            " / ".join(
                f"{statistics.median(own['times_faster'].get(f'{runtime}_{b}', float('nan')) for own in runs):.1f}"
                for b in (1, 64)
            )
            for runtime in ("torch", "onnx")
        )
        error = f"{spread(errors, 2)} ({each(errors, 2)})"
        lines.append([network, method, PAPERS[network, method], error, kept, f"{macs:.1f}", f"{share:.1f}", fast])
    head = ["network", "method", "paper", "error % (each)", "kept", "MACs, times fewer", "parameters %"]
    return markdown([*head, "times faster, batch 1 / 64: torch, onnxruntime"], lines)


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("method", choices=tuple(GATE_LR))
    commands.run.add_argument("network", choices=tuple(ORDER))
    commands.run.add_argument("seed", type=int)
    commands.run.add_argument("--pretrain", type=int, default=8, help="epochs of plain training before")
    commands.run.add_argument("--threshold", type=float)
    for name, kind in (("epochs", int), ("lr", float), ("order_lr", float), ("kl_warm_up", float), ("kappa", float)):
        commands.run.add_argument(f"--{name.replace('_', '-')}", type=kind, dest=name)
    commands.run.add_argument("--weight-decay", type=float, dest="weight_decay")
    commands.run.add_argument("--batch-size", type=int, dest="batch_size")
    commands.run.add_argument("--precision", choices=("float32", "bfloat16"), help="of training; the result is float32")
    asked = commands.asked()
    if asked is None:
        return
    torch.set_num_threads(1)
    given = {name: value for name, value in vars(asked).items() if name != "command"}
    out = given.pop("out")
    positional = [given.pop(name) for name in ("method", "network", "seed", "pretrain", "threshold")]
    add(out, run(*positional, **{name: value for name, value in given.items() if value is not None}))


if __name__ == "__main__":
    main()
