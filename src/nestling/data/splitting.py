"""Which examples go where: held-out classes, a validation split, and a test split for sets that have none."""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from nestling.data.parts import WHOLE, Part, Raw
from nestling.data.record import Task
from nestling.data.split import Split, joined
from nestling.errors import ArgumentError, RangeError
from nestling.seeding import Purpose, generator

TEST_FRACTION = 0.2
TEST_SEED = 0


def without_classes(raw: Raw, held: Collection[int]) -> tuple[Raw, Split | None]:
    """The set without the classes ``held``, the others numbered anew from 0; and the examples of those classes."""
    if not held:
        return raw, None
    classes = sorted(set(held))
    if raw.task != "classification" or not set(classes) < set(range(len(raw.classes))):
        given = f"{', '.join(map(str, classes))} of {raw.name}"
        needed = (
            f"some of the classes 0 to {len(raw.classes) - 1}" if raw.classes else "empty where there are no classes"
        )
        raise ArgumentError("hold_out", given, needed, "Check the numbers of the classes.")
    kept = [number for number in range(len(raw.classes)) if number not in classes]
    number = torch.full((len(raw.classes),), -1)
    number[kept] = torch.arange(len(kept))
    parts = {name: _renumbered(part, number) for name, part in raw.parts.items()}
    strangers = [_of_classes(part.split, number < 0) for part in raw.parts.values()]
    return replace(raw, classes=tuple(raw.classes[kept_one] for kept_one in kept), parts=parts), joined(strangers)


def with_test(raw: Raw) -> Raw:
    """The set with a fifth of it set aside for testing where its makers made no split, always the same fifth."""
    if WHOLE not in raw.parts:
        return raw
    part = raw.parts[WHOLE]
    rest, taken = _divided(part, raw.task, round(TEST_FRACTION * len(part.split)), TEST_SEED)
    return replace(raw, parts={"train": rest, "test": taken})


def with_validation(raw: Raw, validation: float, seed: int) -> Raw:
    """The set with a validation part taken from its training part, unless it has one of its own."""
    wanted = _number(validation, raw)
    if "validation" in raw.parts or "train" not in raw.parts or not wanted:
        return raw
    rest, taken = _divided(raw.parts["train"], raw.task, wanted, seed)
    return replace(raw, parts=raw.parts | {"train": rest, "validation": taken})


def _number(validation: float, raw: Raw) -> int:
    total = len(raw.parts["train"].split) if "train" in raw.parts else 0
    if isinstance(validation, bool) or not isinstance(validation, int | float) or not validation >= 0:
        raise RangeError("validation", repr(validation), "a fraction in [0, 1) or a number of examples", "Try 0.1.")
    number = validation if isinstance(validation, int) else max(round(validation * total), int(validation > 0))
    if (total and number >= total) or (isinstance(validation, float) and validation >= 1):
        needed = f"a fraction in [0, 1), or a whole number below {total}, the size of the training data"
        raise RangeError("validation", validation, needed, "Leave some examples for training.")
    return number


def _divided(part: Part, task: Task, number: int, seed: int) -> tuple[Part, Part]:
    """The part without, and with only, about ``number`` examples."""
    noise = generator(Purpose.SPLIT, seed)
    if part.groups is not None:
        taken = _by_group(part.groups, number, noise)
    elif task == "classification":
        taken = _by_class(part.split.targets, number, noise)
    else:
        taken = torch.zeros(len(part.split), dtype=torch.bool)
        taken[torch.randperm(len(part.split), generator=noise)[:number]] = True
    return _rows(part, ~taken), _rows(part, taken)


def _by_class(labels: Tensor, number: int, noise: torch.Generator) -> Tensor:
    """A mask of ``number`` examples, of each class in proportion, that leaves at least one example of each class."""
    sizes = torch.bincount(labels)
    shares = sizes * (number / len(labels))
    quota = shares.floor().long()
    by_remainder = torch.argsort(shares - quota, descending=True, stable=True)
    quota[by_remainder[: number - int(quota.sum())]] += 1
    quota = torch.minimum(quota, (sizes - 1).clamp(min=0))
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for label, share in enumerate(quota.tolist()):
        members = torch.nonzero(labels == label).view(-1)
        taken[members[torch.randperm(len(members), generator=noise)[:share]]] = True
    return taken


def _by_group(groups: Tensor, number: int, noise: torch.Generator) -> Tensor:
    """A mask of whole groups, drawn until they hold ``number`` examples; one group always stays."""
    names = torch.unique(groups)
    taken = torch.zeros(len(groups), dtype=torch.bool)
    for place in torch.randperm(len(names), generator=noise).tolist()[:-1]:
        if int(taken.sum()) >= number:
            break
        taken |= groups == names[place]
    return taken


def _renumbered(part: Part, number: Tensor) -> Part:
    kept = _rows(part, number[part.split.targets] >= 0)
    return replace(kept, split=Split(kept.split.inputs, number[kept.split.targets]))


def _of_classes(split: Split, chosen: Tensor) -> Split:
    return split.subset(torch.nonzero(chosen[split.targets]).view(-1))


def _rows(part: Part, mask: Tensor) -> Part:
    index = torch.nonzero(mask).view(-1)
    groups = None if part.groups is None else part.groups[index]
    return replace(part, split=part.split.subset(index), groups=groups)
