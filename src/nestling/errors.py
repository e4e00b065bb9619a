"""The errors of the library: each says what was given, what is needed and what to do."""


class NestlingError(Exception):
    """The parent class of every error that nestling raises on purpose.

    Names in its message can't act on a terminal: other characters than plain ones are written as escapes.

    Examples:
        >>> try:
        ...     nl.data.load("digit")
        ... except nl.NestlingError as error:
        ...     print(error)
        there is no data set 'digit'. Did you mean 'digits'? ...
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class ArgumentError(NestlingError, ValueError):
    """An argument that cannot be used. It is a ``ValueError`` too.

    Attributes:
        name: The argument.
        given: What was passed.
        needed: What it must be.
        advice: What to do.

    Examples:
        >>> try:
        ...     nl.cascade(nested, (0.5, 1.0), loader, score="doubt")
        ... except nl.ArgumentError as error:
        ...     print(error.name, "is", error.given)
        score is 'doubt'
    """

    def __init__(self, name: str, given: object, needed: str, advice: str) -> None:
        self.name = name
        self.given = given
        self.needed = needed
        self.advice = advice
        super().__init__(f"{name}: got {given}, but it must be {needed}. {advice}")


class RangeError(ArgumentError):
    """A number or a tensor's value lies outside the range in which it means something.

    Examples:
        >>> nl.predict(nested, images, cut=1.5)
        Traceback (most recent call last):
        nestling.errors.RangeError: cut: got 1.5, ...
    """


class ShapeError(ArgumentError):
    """A tensor's shape does not fit, or two shapes do not fit each other.

    Examples:
        >>> nl.data.Split(torch.zeros(3, 4), torch.zeros(2))
        Traceback (most recent call last):
        nestling.errors.ShapeError: targets: got 2 for 3 inputs, but it must be one per input. ...
    """


class DtypeError(ArgumentError, TypeError):
    """A value of the wrong type, such as an integer tensor where real numbers are needed. It is a ``TypeError`` too.

    Examples:
        >>> nl.cascade(module, (0.5, 1.0), loader)
        Traceback (most recent call last):
        nestling.errors.DtypeError: nested: got a MLP, but it must be what nest gives. ...
    """


class NonFiniteError(ArgumentError):
    """A tensor holds NaN or infinity where every entry must be a finite number.

    Examples:
        >>> from nestling.distributions import Downhill
        >>> Downhill(torch.tensor([0.0, float("nan")]))
        Traceback (most recent call last):
        nestling.errors.NonFiniteError: logits: ...
    """


class TraceError(NestlingError):
    """A network whose graph could not be recorded; the message names the line that prevents it.

    Examples:
        >>> class Branching(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x if x.sum() > 0 else -x
        >>> nl.export(Branching(), "branching.onnx", torch.zeros(2, 4))
        Traceback (most recent call last):
        nestling.errors.TraceError: ...
    """


class RunError(NestlingError):
    """A run folder, or a file in it, that can't be used.

    Attributes:
        path: The file or the folder.
        wrong: What is wrong with it, on one line.
        advice: What to do.

    Examples:
        >>> try:
        ...     nl.open_run("runs/missing")
        ... except nl.RunError as error:
        ...     print(error.path.name, error.advice != "")
        recipe.json True
    """

    def __init__(self, path: object, wrong: str, advice: str) -> None:
        self.path = path
        self.wrong = _one_line(wrong)
        self.advice = advice
        super().__init__(f"{path}: {self.wrong}. {advice}")


class BudgetError(NestlingError):
    """A budget that no network meets.

    Attributes:
        budget: What was asked for, by the name of the cost.
        smallest: The costs of the smallest network there is.

    Examples:
        >>> try:
        ...     curve.under(params=10)
        ... except nl.BudgetError as error:
        ...     print(error.budget, error.smallest["params"] > 10)
        {'params': 10.0} True
    """

    def __init__(
        self,
        budget: dict[str, float],
        smallest: dict[str, float],
        advice: str = "Raise the budget, or nest with fewer blocks that are always kept.",
    ) -> None:
        self.budget = budget
        self.smallest = smallest
        wanted, least = (", ".join(f"{name}={value:.6g}" for name, value in by.items()) for by in (budget, smallest))
        super().__init__(f"no network fits {wanted}; the smallest takes {least}. {advice}")


class ProcessError(NestlingError):
    """A run of several processes that can't go on because another process failed.

    Every process of the run gets one, so that none waits for ever.

    Examples:
        >>> issubclass(nl.ProcessError, nl.NestlingError)
        True
    """


class DivergenceError(NestlingError):
    """Training that reached NaN or infinity.

    Attributes:
        step: The step of training at which it happened.
        place: Where the first such number was: data, a weight, a layer's output or a gradient.
        advice: What to change.
        in_data: Whether the data are the cause, so that other options of training would not help.

    Examples:
        >>> broken = (torch.full((64, 4), float("nan")), torch.zeros(64, dtype=torch.long))
        >>> rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*broken), 32)
        >>> small = nl.nest(nl.models.build("mlp", hidden=[8], in_features=4, num_classes=2), torch.zeros(2, 4))
        >>> try:
        ...     nl.train(small, (rows, rows), nl.Recipe(epochs=1, batch_size=32), quiet=True)
        ... except nl.DivergenceError as error:
        ...     print(error.step, error.in_data)
        1 True
    """

    def __init__(self, step: int, place: str, advice: str, in_data: bool = False) -> None:
        self.step = step
        self.place = place
        self.advice = advice
        self.in_data = in_data
        super().__init__(f"step {step}: NaN or infinity in {place}. {advice}")


def printable(text: str, *, keep: str = "") -> str:
    """The text with each character that a terminal does not print, or acts on, as an escape such as \\x1b."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


_LONGEST = 300


def _one_line(text: str) -> str:
    """A text that may quote a file, on one line of limited length."""
    short = text[: 4 * _LONGEST]
    line = " ".join("".join(c if c.isprintable() else " " for c in short).split())
    return line if len(line) <= _LONGEST and len(text) == len(short) else line[: _LONGEST - 3] + "..."
