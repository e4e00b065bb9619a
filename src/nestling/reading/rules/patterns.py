"""Patterns of several operations on the graph that together form one known function."""

from torch import fx

from nestling.torch_parts import schema_of


def is_norm(mean: fx.Node) -> bool:
    """Whether a mean belongs to a norm that is written out, as its mean square or as the mean it subtracts.

    That is ``x * rsqrt(mean(x ** 2) + eps)``, or the same with ``x - mean(x)`` in place of ``x``.
    """
    return _is_scale(mean) or _is_centre(mean)


def _is_scale(mean: fx.Node) -> bool:
    """Whether a mean is one of squares, of which only the root is used."""
    return _squared(_through_casts(mean.args[0])) is not None and _only_its_root(mean)


def _is_centre(mean: fx.Node) -> bool:
    """Whether a mean is only subtracted from its input, and the result is scaled by the mean of its squares."""
    centred = list(mean.users)
    return bool(centred) and all(
        _name(user) == "sub" and user.args[:2] == (mean.args[0], mean) and _is_scaled(user) for user in centred
    )


def _is_scaled(centred: fx.Node) -> bool:
    means = [user for square in centred.users if _squared(square) is centred for user in square.users]
    return any(_name(mean) == "mean" and _is_scale(mean) for mean in means)


def _only_its_root(mean: fx.Node) -> bool:
    sums = [user for user in mean.users if _name(user) == "add"]
    roots = [user for node in sums for user in node.users]
    return bool(roots) and len(sums) == len(mean.users) and all(_is_root(node) for node in roots)


def _is_root(node: fx.Node) -> bool:
    return _name(node) in ("rsqrt", "sqrt") or (_name(node) == "pow" and node.args[1] in (0.5, -0.5))


def _squared(node: object) -> fx.Node | None:
    """The node that ``node`` is the square of, if it is a square."""
    if not isinstance(node, fx.Node) or not node.args:
        return None
    source = node.args[0]
    square = (
        _name(node) == "square"
        or (_name(node) == "pow" and node.args[1] == 2)
        or (_name(node) == "mul" and node.args[1] is source)
    )
    return source if square and isinstance(source, fx.Node) else None


def _through_casts(node: object) -> object:
    while isinstance(node, fx.Node) and _name(node) in ("to", "_to_copy"):
        node = node.args[0]
    return node


def _name(node: fx.Node) -> str:
    schema = schema_of(node.target)
    return "" if schema is None else str(schema.name).removeprefix("aten::")
