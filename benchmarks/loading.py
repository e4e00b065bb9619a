"""How fast augmented batches of a CIFAR-sized set come on one thread, beside a DataLoader that goes image by image."""

import json
import statistics
import time
from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from nestling.data import Batches, Split

NUM_IMAGES = 50_000
BATCH_SIZE = 128
PADDING = 4
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
ROUNDS, OUR_BATCHES, THEIR_BATCHES = 5, 200, 20


def main() -> None:
    torch.set_num_threads(1)
    noise = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (NUM_IMAGES, 3, 32, 32), dtype=torch.uint8, generator=noise)
    split = Split(inputs, torch.randint(0, 10, (NUM_IMAGES,), generator=noise))
    ours = Batches(split, BATCH_SIZE, MEAN, STD, shuffle=True, augment="crop_flip")
    plain = DataLoader(OneByOne(split), batch_size=BATCH_SIZE, shuffle=True)
    speeds: dict[str, list[float]] = {"ours": [], "plain": []}
    for epoch in range(ROUNDS):
        ours.set_epoch(epoch)
        speeds["ours"].append(images_per_second(ours, OUR_BATCHES))
        speeds["plain"].append(images_per_second(plain, THEIR_BATCHES))
    ratio = statistics.median(a / b for a, b in zip(speeds["ours"], speeds["plain"], strict=True))
    print(
        json.dumps(
            {
                "question": "CIFAR-sized images per second with crop and flip, one thread",
                "batch": BATCH_SIZE,
                "images / s": round(statistics.median(speeds["ours"])),
                "plain DataLoader, images / s": round(statistics.median(speeds["plain"])),
                "ours / plain": round(ratio, 2),
            }
        )
    )


class OneByOne(Dataset[tuple[Tensor, Tensor]]):
    """Each image padded, cropped, mirrored and normalised on its own, as is the custom."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        image = functional.pad(self.split.inputs[place], (PADDING,) * 4)
        top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image / 255 - self.mean) / self.std, self.split.targets[place]


def images_per_second(batches: Iterable[tuple[Tensor, Tensor]], number: int) -> float:
    """Images for each second of CPU time, the start of the pass included."""
    start = time.process_time()
    images = sum(len(inputs) for inputs, _ in islice(batches, number))
    return images / (time.process_time() - start)


if __name__ == "__main__":
    main()
