"""Splits examples: held-out classes, a validation split, and a test split for sets that have none."""

from collections.abc import Collection
from dataclasses import replace
from numbers import Integral

import torch
from torch import Tensor

from nestling.data.parts import WHOLE, Part, Raw
from nestling.data.record import Task
from nestling.data.split import Split, joined
from nestling.errors import ArgumentError, RangeError
from nestling.seeding import Purpose, generator

TEST_FRACTION = 0.2
TEST_SEED = 0


def without_classes(raw: Raw, hold_out: Collection[int]) -> tuple[Raw, Split | None]:
    """The set without the classes ``hold_out``, the others renumbered from 0; and the examples of ``hold_out``."""
    is_list = isinstance(hold_out, Collection) and not isinstance(hold_out, str)
    if not is_list or not all(isinstance(number, Integral) for number in hold_out):
        raise ArgumentError("hold_out", repr(hold_out), "numbers of classes", "For example (8, 9).")
    if not len(hold_out):
        return raw, None
    classes = sorted(set(hold_out))
    if raw.task != "classification" or not set(classes) < set(range(len(raw.classes))):
        given = f"{', '.join(map(str, classes))} of {raw.name}"
        needed = (
            f"some of the classes 0 to {len(raw.classes) - 1}" if raw.classes else "empty where there are no classes"
        )
        raise ArgumentError("hold_out", given, needed, "Check the numbers of the classes.")
    kept = [number for number in range(len(raw.classes)) if number not in classes]
    new_numbers = torch.full((len(raw.classes),), -1)
    new_numbers[kept] = torch.arange(len(kept))
    parts = {name: _renumbered(part, new_numbers) for name, part in raw.parts.items()}
    held_out = [_of_classes(part.split, new_numbers < 0) for part in raw.parts.values()]
    return replace(raw, classes=tuple(raw.classes[number] for number in kept), parts=parts), joined(held_out)


def with_test(raw: Raw) -> Raw:
    """The set with a fifth set aside for testing if it is published without a test split, always the same fifth."""
    if WHOLE not in raw.parts:
        return raw
    part = raw.parts[WHOLE]
    train, test = _divide(part, raw.task, round(TEST_FRACTION * len(part.split)), TEST_SEED)
    return replace(raw, parts={"train": train, "test": test})


def with_validation(raw: Raw, validation: float, seed: int) -> Raw:
    """The set with a validation part taken from its training part, unless it already has one."""
    number = _num_validation(validation, raw)
    if "validation" in raw.parts or "train" not in raw.parts or not number:
        return raw
    train, validation_part = _divide(raw.parts["train"], raw.task, number, seed)
    return replace(raw, parts=raw.parts | {"train": train, "validation": validation_part})


def _num_validation(validation: float, raw: Raw) -> int:
    total = len(raw.parts["train"].split) if "train" in raw.parts else 0
    if isinstance(validation, bool) or not isinstance(validation, int | float) or not validation >= 0:
        raise RangeError("validation", repr(validation), "a fraction in [0, 1) or a number of examples", "Try 0.1.")
    number = validation if isinstance(validation, int) else max(round(validation * total), int(validation > 0))
    if (total and number >= total) or (isinstance(validation, float) and validation >= 1):
        needed = f"a fraction in [0, 1), or a whole number below {total}, the size of the training data"
        raise RangeError("validation", validation, needed, "Leave some examples for training.")
    return number


def _divide(part: Part, task: Task, number: int, seed: int) -> tuple[Part, Part]:
    """Divide a part in two: all except about ``number`` of its examples, and those examples."""
    random = generator(Purpose.SPLIT, seed)
    if part.groups is not None:
        taken = _taken_by_group(part.groups, number, random)
    elif task == "classification":
        taken = _taken_by_class(part.split.targets, number, random)
    else:
        taken = torch.zeros(len(part.split), dtype=torch.bool)
        taken[torch.randperm(len(part.split), generator=random)[:number]] = True
    return _rows(part, ~taken), _rows(part, taken)


def _taken_by_class(labels: Tensor, number: int, random: torch.Generator) -> Tensor:
    """A mask of ``number`` examples, in proportion to the classes, that leaves at least one example of each class."""
    sizes = torch.bincount(labels)
    shares = sizes * (number / len(labels))
    quota = shares.floor().long()
    by_remainder = torch.argsort(shares - quota, descending=True, stable=True)
    quota[by_remainder[: number - int(quota.sum())]] += 1
    quota = torch.minimum(quota, (sizes - 1).clamp(min=0))
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for label, share in enumerate(quota.tolist()):
        members = torch.nonzero(labels == label).view(-1)
        taken[members[torch.randperm(len(members), generator=random)[:share]]] = True
    return taken


def _taken_by_group(groups: Tensor, number: int, random: torch.Generator) -> Tensor:
    """A mask of whole groups, drawn until they have ``number`` examples; at least one group is left out."""
    names = torch.unique(groups)
    taken = torch.zeros(len(groups), dtype=torch.bool)
    for index in torch.randperm(len(names), generator=random).tolist()[:-1]:
        if int(taken.sum()) >= number:
            break
        taken |= groups == names[index]
    return taken


def _renumbered(part: Part, new_numbers: Tensor) -> Part:
    kept = _rows(part, new_numbers[part.split.targets] >= 0)
    return replace(kept, split=replace(kept.split, targets=new_numbers[kept.split.targets]))


def _of_classes(split: Split, chosen: Tensor) -> Split:
    return split.subset(torch.nonzero(chosen[split.targets]).view(-1))


def _rows(part: Part, mask: Tensor) -> Part:
    index = torch.nonzero(mask).view(-1)
    groups = None if part.groups is None else part.groups[index]
    return replace(part, split=part.split.subset(index), groups=groups)
