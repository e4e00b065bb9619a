"""The recipe: every number that a training run needs, in one frozen record that is saved as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from nestling.arguments import count, finite_number, inner_probability, positive_number, probability
from nestling.errors import ArgumentError, DtypeError, RangeError

OptimiserName = Literal["auto", "adamw", "sgd"]
ScheduleName = Literal["cosine", "step", "constant"]
WeightKL = Literal["log_uniform", "molchanov", "hierarchical", "bn3", "bn3_refitted"]
EstimatorName = Literal["leave_one_out", "straight_through", "relaxed"]
ObjectiveName = Literal["every_width", "elbo", "us_net", "slimmable"]
Keep = Literal["best", "last"]
Precision = Literal["auto", "float32", "bfloat16"]


MOST_CUTS, MOST_DRAWS, MOST_COUNT = 1000, 10_000, 1_000_000
"""The most cuts, draws and anything else that a recipe can ask for, since somebody else may have written it."""
TEACHER_SHARE, FULL_WIDTH_SHARE = 0.9, 0.5
"""What distil="auto" means where another network teaches, and where the full width does: experiments/bn3."""
TEACHER_SOFTENING, FULL_WIDTH_SOFTENING = 2.0, 1.0
"""What soften="auto" means in the same two cases: docs/decisions/0014."""
LONG_RUN, SHORT_RUN_ANCHORS, LONG_RUN_ANCHORS = 10_000, 1, 2
"""The steps beyond which a run is long, and what anchors="auto" means in short and long ones: docs/decisions/0011."""


@dataclass(frozen=True)
class Recipe:
    """How a nested network is trained; a share is a part of all steps, between 0 and 1.

    A recipe is frozen, checks its entries when it is made, and is saved with the run as ``recipe.json``. The command
    line has an option for each entry.

    Raises:
        ArgumentError: If an entry is of the wrong type, out of range, or a name that does not exist.

    Examples:
        >>> recipe = nl.Recipe(epochs=10, cuts=(0.25, 1.0))
        >>> recipe.but(seed=1).seed, nl.Recipe.from_dict(recipe.to_dict()) == recipe
        (1, True)
    """

    epochs: int = 30
    """Passes over the training data."""
    batch_size: int = 128
    """Examples of a step, of all processes together; a DataLoader of yours has its own, which is recorded here."""
    seed: int = 0
    """Seed of the data's order, of the widths and of the weights' noise."""

    optimiser: OptimiserName = "auto"
    """adamw, or sgd with momentum; auto is sgd where a teacher is given (fine-tuning), else adamw."""
    lr: float | Literal["auto"] = "auto"
    """Largest learning rate of the weights; auto is 0.1 for sgd, and for adamw 0.003, or more, up to 0.01, for runs of
    fewer than 5,000 steps, unless the network has convolutions and no norms."""
    order_lr: float = 1e-2
    """Largest learning rate of the orders' logits, of gates and of log sigma^2."""
    noise_lr: float = 1e-3
    """Rate of natural-gradient steps in the noise of weights (weights="ivon"): IVON's 1 - beta2, in all steps alike."""
    momentum: float = 0.9
    """Momentum of sgd."""
    weight_decay: float = 0.0
    """Decay of weights that have no posterior; means, log alphas, biases and orders have none."""
    clip: float = 5.0
    """Largest norm of a step's gradient."""

    schedule: ScheduleName = "cosine"
    """How learning rates fall: along a cosine to zero, in steps, or not at all."""
    lr_warm_up: float = 0.1
    """Share of steps over which learning rates rise to their largest."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Shares of the steps at which the step schedule lowers the learning rates."""
    lr_factor: float = 0.1
    """What the step schedule multiplies them by."""

    objective: ObjectiveName = "every_width"
    """What a step minimises: see docs/training.md. elbo (BN3, FN3), us_net and slimmable are there to compare with."""
    distil: float | Literal["auto"] = "auto"
    """Share of the loss of narrower widths that comes from the full width's predictions rather than from the labels, or
    of all widths from a teacher's; auto is 0.5 for the full width, 0.9 for a teacher."""
    soften: float | Literal["auto"] = "auto"
    """What a teacher's logits are divided by before its probabilities are learned; auto is 1 for the full width, and 2
    for another network, which is too certain of the data that it was trained on."""
    kappa: float | Literal["auto"] = "auto"
    """Weight of the divergences from the prior; 1 is the evidence lower bound. auto is 0.3 for weights="ivon"; for
    weights="gaussian" 0.001 with convolutions, else the number of examples over that of weights, at most 1."""
    kl_warm_up: float = 0.3
    """Share of steps over which that weight rises from zero."""
    weight_kl: WeightKL = "log_uniform"
    """Divergence of the weights."""
    prior_keep: float = 0.95
    """Probability with which the prior keeps each next block."""
    order_weight: float | None = 0.02
    """How firmly the orders hold to their prior, in nats: a width that costs so much more is drawn e times less often.
    None is the evidence lower bound, where the divergence of the weights pulls the orders too."""

    estimator: EstimatorName = "leave_one_out"
    """How gradients reach the orders: see docs/orders.md."""
    anchors: int | Literal["auto"] = "auto"
    """How many of the recipe's narrower cuts each step runs, the narrowest always among them where there are several;
    auto is 1, and 2 in runs of more than 10,000 steps, in which the narrow widths need more of them."""
    draws: int = 1
    """Random widths that half of the batch runs at, or all of it with a teacher; for elbo, parts of a batch that each
    get widths of their own."""
    explore: float = 0.5
    """Share of draws of widths apart that are uniform rather than from the learned order."""
    coupled: float = 0.75
    """Share of draws in which all groups are at one fraction, rather than each at a width of its own."""
    sandwich: float = 0.0
    """For elbo: share of draws at the extremes, half at the smallest width of every group, half at the full one."""
    temperature: tuple[float, float] = (1.0, 0.3)
    """First and last temperature of relaxed masks."""

    cuts: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    """Fractions at which the network is validated, and calibrated at the end."""
    step_back: int = 0
    """How often a run that diverges may go back to its last checkpoint and on with half the learning rates."""
    keep: Keep = "best"
    """Weights that a run ends with: those that validated best (of labels, within the standard error), or the last."""
    patience: int | None = None
    """Epochs without a better validation after which training stops, where the best weights are kept."""
    samples: int = 6
    """Draws of the weights that a calibration averages over."""
    recalibration_batches: int = 8
    """Batches of training data that the statistics of batch norms are collected from, for each cut."""
    precision: Precision = "auto"
    """auto is bfloat16 on a GPU that has it, else float32."""
    tensorboard: bool = False
    """Write TensorBoard events beside the log."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "draws", "samples", "recalibration_batches"):
            most = MOST_DRAWS if name in ("draws", "samples") else MOST_COUNT
            count(name, getattr(self, name), "a whole number of at least 1", most)
        for name in ("lr", "order_lr", "noise_lr", "clip", "lr_factor"):
            if not (name == "lr" and self.lr == "auto"):
                positive_number(name, getattr(self, name))
        for name in ("momentum", "lr_warm_up", "kl_warm_up", "explore", "coupled", "sandwich"):
            probability(name, getattr(self, name))
        for name in ("weight_decay",) if self.kappa == "auto" else ("weight_decay", "kappa"):
            if finite_number(name, getattr(self, name)) < 0:
                raise RangeError(name, getattr(self, name), "at least 0", "0 turns it off.")
        if self.anchors != "auto":
            count("anchors", self.anchors, "a whole number of at least 1", MOST_CUTS)
        if self.distil != "auto":
            probability("distil", self.distil)
        if self.soften != "auto":
            positive_number("soften", self.soften)
        inner_probability("prior_keep", self.prior_keep)
        if self.order_weight is not None:
            positive_number("order_weight", self.order_weight)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**31:
            raise RangeError("seed", repr(self.seed), "a whole number within [0, 2^31)", "Any such number does.")
        if isinstance(self.step_back, bool) or not isinstance(self.step_back, int) or self.step_back < 0:
            raise RangeError("step_back", repr(self.step_back), "a whole number of at least 0", "0 never goes back.")
        if self.patience is not None:
            count("patience", self.patience, "a whole number of epochs, or None to never stop early")
        _choices(self)
        _numbers("milestones", self.milestones, 0, 1)
        _numbers("cuts", self.cuts, 0, 1)
        _numbers("temperature", self.temperature, 0, float("inf"))
        if len(self.temperature) != 2:
            raise ArgumentError("temperature", self.temperature, "two numbers", "Give the first and the last one.")
        if not 0 < len(self.cuts) <= MOST_CUTS:
            needed = f"1 to {MOST_CUTS:,} fractions"
            raise ArgumentError("cuts", f"{len(self.cuts)} of them", needed, "(1.0,) is the full width alone.")
        if not isinstance(self.tensorboard, bool):
            raise DtypeError("tensorboard", repr(self.tensorboard), "True or False", "True writes events.")

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON has it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, saved: Any) -> "Recipe":  # noqa: ANN401
        """The recipe that ``to_dict`` gave.

        Args:
            saved: Plain values by name, such as ``recipe.json`` has them; entries that are left out have their
                defaults.

        Returns:
            The recipe.

        Raises:
            ArgumentError: If a name is none of a recipe's, or a value is not allowed.
        """
        if not isinstance(saved, Mapping):
            raise DtypeError("recipe", f"a {type(saved).__name__}", "a dictionary", "Pass what to_dict gave.")
        known = {field.name for field in fields(cls)}
        for name in saved:
            if name not in known:
                raise ArgumentError("recipe", f"an entry {name!r}", "entries of Recipe", "Check its spelling.")
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in saved.items()}
        return cls(**values)

    def settled(self, *, has_teacher: bool, num_steps: int = 0) -> "Recipe":
        """The recipe with the choices made that depend on whether there is a teacher, and on the length of the run.

        Args:
            has_teacher: Whether another network teaches.
            num_steps: The steps of the run; 0 stands for a few, or for a loop whose length is not known.

        Returns:
            A recipe without ``"auto"`` for the optimiser, for ``distil``, for ``soften`` and for ``anchors``.
        """
        usual = LONG_RUN_ANCHORS if num_steps > LONG_RUN else SHORT_RUN_ANCHORS
        anchors = usual if self.anchors == "auto" else self.anchors
        optimiser = ("sgd" if has_teacher else "adamw") if self.optimiser == "auto" else self.optimiser
        distil = (TEACHER_SHARE if has_teacher else FULL_WIDTH_SHARE) if self.distil == "auto" else self.distil
        softening = TEACHER_SOFTENING if has_teacher else FULL_WIDTH_SOFTENING
        soften = softening if self.soften == "auto" else self.soften
        return replace(self, optimiser=optimiser, distil=distil, soften=soften, anchors=anchors)

    def but(self, **changes: Any) -> "Recipe":  # noqa: ANN401
        """The same recipe with some entries changed; the recipe itself stays as it is.

        Args:
            changes: New values, by the names of the entries.

        Returns:
            A new recipe, checked like any other.
        """
        return replace(self, **changes)


def _choices(recipe: Recipe) -> None:
    hints = get_type_hints(Recipe)
    for name in ("optimiser", "schedule", "objective", "weight_kl", "estimator", "keep", "precision"):
        options = get_args(hints[name])
        if name == "optimiser" and recipe.optimiser not in options:  # one of yours
            from nestling.training.optimisers import OPTIMISERS  # with torch, which other recipes do without

            options = "auto", *OPTIMISERS
        if getattr(recipe, name) not in options:
            needed = f"one of {', '.join(options)}"
            raise ArgumentError(name, repr(getattr(recipe, name)), needed, "Check its spelling.")


def _numbers(name: str, values: tuple[float, ...], low: float, high: float) -> None:
    if not isinstance(values, tuple):
        raise DtypeError(name, repr(values), "a tuple of numbers", "Write (0.5, 1.0), and (0.5,) for one.")
    for value in values:
        if not low < finite_number(name, value) <= high:
            raise RangeError(name, value, f"above {low} and at most {high}", "Pass shares such as 0.5.")
