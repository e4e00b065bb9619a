"""The command line: one function per command, each of which imports torch only when it runs."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, ParamSpec

import tyro
from tyro.conf import Positional, arg

from nestling import commands
from nestling.cascade import Cascading, MeasuredIn
from nestling.commands import MODELS, Device
from nestling.data import AugmentChoice
from nestling.delivery import Destination, Layout, UncertaintyName
from nestling.errors import NestlingError, ProcessError
from nestling.launch import launched_rank
from nestling.network import Nesting
from nestling.prediction import LikelihoodName
from nestling.pruning import PRUNING, Pruning
from nestling.search import CostName, Searching
from nestling.service import Serving
from nestling.training import Recipe, Stopped
from nestling.version import __version__

RunPath = Annotated[Positional[Path], arg(metavar="RUN", help="Folder that `nestling train` wrote.")]
Resize = Annotated[tuple[int, ...], arg(help="Height and width for the images of a folder, or one number for both.")]
AugmentArg = Annotated[
    AugmentChoice, arg(help="How training images are changed at random; auto suits a named set, none for yours.")
]
Trust = Annotated[
    bool, arg(help="Let the run name code to run (module:function) and data to read; your runs may always read theirs.")
]
Model = Annotated[str, arg(help=f"One of {', '.join(MODELS)}, or module:function of your own.")]

P = ParamSpec("P")
BROKEN_PIPE = 141
"""The exit status that a shell gives for a command whose output pipe was closed."""


def _runs(command: Callable[P, None]) -> Callable[P, None]:
    """The command that prints what the function of its name in ``commands`` makes of the same arguments."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        given = signature(command).bind(*args, **kwargs)
        given.apply_defaults()
        text = getattr(commands, command.__name__)(*given.args, **given.kwargs)
        if not launched_rank():  # of several processes only the first prints
            print(text)

    return run


def demo(*, out: Path = Path("runs/demo"), seed: int = 0) -> None:
    """Train on digits in clutter with two classes held out, and show the results of one run at every size.

    Example: nestling demo

    Args:
        out: Folder for the network and the picture.
        seed: Seed of the run.
    """
    from nestling.demo import demo as show  # imported here, since it needs torch

    print(show(out, seed=seed))


@_runs
def train(
    data: Annotated[Positional[str], arg(metavar="DATA", help="Name or path of a data set: see `nestling data`.")],
    *,
    out: Path,
    model: Model = "mlp",
    model_options: tuple[str, ...] = (),
    hold_out: tuple[int, ...] = (),
    augment: AugmentArg = "auto",
    resize: Resize = (),
    pretrained: Path | None = None,
    likelihood: LikelihoodName | None = None,
    device: Device = "auto",
    nesting: Annotated[Nesting, arg(name="")] = Nesting(),  # noqa: B008 (frozen)
    recipe: Annotated[Recipe, arg(name="")] = Recipe(),  # noqa: B008 (frozen)
) -> None:
    """Train a network once, for every width; the same command again resumes a run that was stopped.

    With more epochs it goes on with a run that is complete.

    Example: nestling train mnist --model mlp --epochs 30 --out runs/mnist

    On several processes or GPUs: torchrun --standalone --nproc-per-node 2 -m nestling train mnist --out runs/mnist

    Args:
        out: Folder of the run.
        model_options: Options of the network, each as name=value: width=0.5.
        hold_out: Classes to leave out of training, as out-of-distribution data for tests.
        pretrained: Weights to start from: the folder of a run, or a .safetensors file with the network's tensor names.
            A last layer that was trained for another number of classes is initialised anew.
        likelihood: What outputs mean: by default categorical for classes, and gaussian for numbers, with noise that is
            learned and the same for all inputs; with heteroscedastic_gaussian the network says the noise of each.
        device: auto takes a GPU where there is one.
    """


@_runs
def evaluate(
    run: RunPath,
    *,
    cuts: tuple[float, ...] = (),
    ood: str | None = None,
    limit: int | None = None,
    samples: int = 6,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Score a run on its test data at any widths, and write the figures to its scores.json.

    Example: nestling evaluate runs/mnist --cuts 0.25 0.5 1 --ood kmnist

    Args:
        cuts: Fractions to cut to; by default those of the recipe.
        ood: Out-of-distribution data that the uncertainty should detect: a data set, or a folder of images, which are
            resized to the network's inputs; by default the held-out classes.
        limit: Score at most this many examples of each set, drawn at random, always the same.
        samples: Weight samples to average over; 0 for the mean weights.
        device: auto takes a GPU where there is one.
    """


@_runs
def search(
    run: RunPath,
    *,
    cost: CostName = "macs",
    options: Annotated[Searching, arg(name="")] = Searching(),  # noqa: B008 (frozen)
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Find the best network for every budget at once; the same command again resumes a search that was stopped.

    Example: nestling search runs/mnist --cost latency

    Args:
        cost: The cost that should be small.
        device: auto takes a GPU where there is one.
    """


@_runs
def extract(
    run: RunPath,
    *,
    cut: float | None = None,
    under: tuple[str, ...] = (),
    all_bits: bool = False,
    program: bool = False,
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Extract a smaller plain network from a run: at a cut, or the best of its curve under budgets.

    Example: nestling extract runs/mnist --under latency_ms=0.1 bytes=200000

    Args:
        cut: Fraction of every group to keep.
        under: Budgets for a run that was searched: params, macs, bytes or latency_ms, each as name=value.
        all_bits: Store quantised weights so that the network can also be loaded with fewer bits.
        program: Also write network.pt2, which torch runs without nestling. torch.export.load unpickles: use it only for
            files of your own.
        out: Folder for the network; by default a folder inside the run's, named by the number of parameters.
    """


@_runs
def export(
    run: RunPath,
    *,
    to: Destination = "onnx",
    cut: float | None = None,
    under: tuple[str, ...] = (),
    uncertainty: UncertaintyName | None = None,
    all_widths: bool = False,
    int8: bool = False,
    layout: Layout = "nchw",
    floats: bool = False,
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Export a run to a file for another runtime, at a cut or at the best of its curve under budgets.

    The file is checked in its runtime before it is put in place: its answers must be torch's.

    Example: nestling export runs/mnist --to onnx --cut 0.5 --out mnist.onnx

    Args:
        to: The format; hub is a folder for the Hugging Face hub, with every width and a model card. triton is a model
            repository for Triton and KServe: a model per cut of the recipe, and the run's cascade if it was fitted with
            --samples 0.
        cut: Fraction of every group to keep.
        under: Budgets for a run that was searched: params, macs, bytes or latency_ms, each as name=value.
        uncertainty: How the file finds its own uncertainty: draws takes noise as an input, moments needs one pass.
        all_widths: Write every cut of the recipe into one ONNX file, whose width is chosen when it is opened, with the
            run's cascade, if one was fitted with --samples 0.
        int8: Write a file that computes in 8 bits too, and say how far its answers are from those in float.
        layout: The channels of images first, or last as in image files.
        floats: Take numbers from 0 to 1 in place of bytes.
        out: The file; by default one in the run's folder, named by the number of parameters.
    """


@_runs
def cascade(
    run: RunPath,
    *,
    cuts: tuple[float, ...] = (0.25, 0.5, 1.0),
    options: Annotated[Cascading, arg(name="")] = Cascading(),  # noqa: B008 (frozen)
    measured_in: MeasuredIn = "torch",
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Let the narrowest cut answer first, and wider ones only what it is too unsure of; scored on the test data.

    Example: nestling cascade runs/mnist --cuts 0.25 0.5 1 --goal loss=0.002

    Args:
        cuts: Fractions to cut to, one per stage; a stage that does not help is left out.
        measured_in: Where the milliseconds of the cuts are measured, for one input. With onnxruntime, in an exported
            file, the goal counts milliseconds in place of multiply-adds.
        device: auto takes a GPU where there is one.
    """


@_runs
def prune(
    data: Annotated[Positional[str], arg(metavar="DATA", help="Name or path of a data set: see `nestling data`.")],
    *,
    out: Path,
    model: Model = "lenet_300_100",
    model_options: tuple[str, ...] = (),
    options: Annotated[Pruning, arg(name="")] = Pruning(),  # noqa: B008 (frozen)
    augment: AugmentArg = "auto",
    resize: Resize = (),
    pretrain_epochs: int = 0,
    pretrained: Path | None = None,
    likelihood: LikelihoodName | None = None,
    program: bool = False,
    device: Device = "auto",
    recipe: Annotated[Recipe, arg(name="")] = PRUNING,
) -> None:
    """Prune a network with Bayesian dropout, and extract the rest; the same command again resumes a stopped run.

    Example: nestling prune mnist --model lenet_300_100 --method sparse_vd --out runs/pruned

    Args:
        out: Folder of the pruning.
        model_options: Options of the network, each as name=value: width=0.5.
        pretrain_epochs: Epochs of plain training before pruning.
        pretrained: Weights to start from: the folder of a run, or a .safetensors file with the network's tensor names.
            A last layer that was trained for another number of classes is initialised anew.
        likelihood: What outputs mean, as in `nestling train`.
        program: Also write network.pt2, which torch runs without nestling. torch.export.load unpickles: use it only for
            files of your own.
        device: auto takes a GPU where there is one.
    """


@_runs
def predict(
    run: RunPath,
    inputs: Annotated[Positional[Path], arg(metavar="INPUTS", help="Image, folder of images, .npy or .npz file.")],
    *,
    cut: float = 1.0,
    samples: int = 6,
    coverage: float | None = None,
    resize: bool = False,
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Predict with a run, each answer with its uncertainty and its conformal set.

    Example: nestling predict runs/mnist digit.png --cut 0.5

    Args:
        cut: Fraction to cut the network to.
        samples: Weight samples to average over; 0 for the mean weights.
        coverage: How often the sets or intervals should contain the true target; by default 0.9, or the most below it
            that validation data was enough for.
        resize: Resize images to the network's input size, as is done for a network trained with --resize.
        out: Write the answers to this .csv file too.
    """


@_runs
def report(
    folders: Annotated[
        Positional[tuple[Path, ...]],
        arg(metavar="RUN", help="Folder of a run or of a pruning; several are shown beside each other."),
    ],
    *,
    out: Path | None = None,
    ood: str | None = None,
    limit: int = 2000,
    samples: int = 6,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Write one page for a browser: quality over size with a slider, certainty, what was learned, how to get it out.

    Example: nestling report runs/mnist --ood kmnist

    Args:
        out: The file of the page; by default report.html in the first folder.
        ood: Out-of-distribution data set that the uncertainty should detect; by default the held-out classes.
        limit: Measure at most this many examples of each set, drawn at random, always the same.
        samples: Weight samples to average over; 0 for the mean weights.
        device: auto takes a GPU where there is one.
    """


@_runs
def serve(
    source: Annotated[
        Positional[Path], arg(metavar="RUN", help="Folder of a run, or a file that `nestling export` wrote.")
    ],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str | None = None,
    token_file: Path | None = None,
    options: Annotated[Serving, arg(name="")] = Serving(),  # noqa: B008 (frozen)
    trust: Trust = False,
) -> None:
    """Serve a network over HTTP: under load it gets narrower to answer in time, and wider again afterwards.

    It speaks the Open Inference Protocol, takes images at /predict, and has a page to try it. SIGTERM finishes what
    was taken.

    Example: nestling serve runs/mnist --target-ms 50

    Args:
        host: The address to listen on; by default only this machine reaches the service.
        port: The port to listen on; 0 takes a free one.
        name: The name of the model in the protocol; by default that of the folder or file.
        token_file: File with a word that callers must send as `Authorization: Bearer WORD`.
    """


@_runs
def data() -> None:
    """List the data sets: which are present, and how to get the others.

    Example: NESTLING_DATA=~/data nestling data
    """


def main() -> None:
    """Run the given command; on bad input print one line and exit with 2."""
    sys.path.append(os.getcwd())  # for the user's module:function; last, so that nothing there hides a library
    functions: dict[str, Callable[..., None]] = {
        f.__name__: f
        for f in (demo, train, evaluate, search, extract, cascade, export, prune, predict, report, serve, data)
    }
    about = f"nestling {__version__}: one training run, every size."
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    try:
        try:
            tyro.extras.subcommand_cli_from_dict(functions, prog="nestling", description=about)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output closed the pipe: `nestling ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except ProcessError as error:
        _say(error, only_first=True)
        sys.exit(2)
    except NestlingError as error:
        _say(error)
        sys.exit(2)
    except Stopped as error:
        _say(error, only_first=True)
        sys.exit(128 + error.signal)
    except KeyboardInterrupt:
        _say("stopped.", only_first=True)
        sys.exit(130)


def _say(message: object, *, only_first: bool = False) -> None:
    """Print one line that says why a command ended; a process other than the first adds its rank."""
    rank = f" (rank {launched_rank()})" if launched_rank() else ""
    if not (rank and only_first):
        print(f"nestling{rank}: {' '.join(str(message).split())}", file=sys.stderr, flush=True)
