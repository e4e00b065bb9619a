"""The named data sets: their files, how each is read, and where it comes from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from nestling.data import class_names, readers
from nestling.data.options import Augment
from nestling.data.parts import WHOLE, Part
from nestling.data.record import Task
from nestling.data.text import Texts, read_news, read_sentences

Reader = Callable[[Sequence[Path]], Part | Texts]


class Layout(NamedTuple):
    """One way in which a part is stored: files (or folders, with a final slash), and the function that reads them."""

    files: tuple[str, ...]
    read: Reader


@dataclass(frozen=True)
class OfficialSet:
    """A data set with the layouts of each part, of which the first one whose files are present is read.

    ``downloads`` are the files to fetch from ``url`` per part; ``sizes`` are the numbers of examples of the official
    parts. If ``classes`` is empty, the files name the classes. ``mean`` and ``std`` are the published ones of the
    official training images, so that every load of a set is normalised alike; if they are None they are computed.
    """

    name: str
    parts: dict[str, tuple[Layout, ...]]
    sizes: dict[str, int]
    classes: tuple[str, ...]
    task: Task = "classification"
    augment: Augment = "none"
    url: str = ""
    downloads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    advice: str = ""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def _idx(name: str, url: str, classes: tuple[str, ...], mean: float, std: float) -> OfficialSet:
    stems = {part: (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte") for part, prefix in _IDX.items()}
    suffixes = list(product((".gz", ""), repeat=2))
    layouts = {
        part: tuple(Layout((images + first, labels + second), readers.idx_pair) for first, second in suffixes)
        for part, (images, labels) in stems.items()
    }
    downloads = {part: tuple(f"{stem}.gz" for stem in pair) for part, pair in stems.items()}
    sizes = {"train": 60000, "test": 10000}
    return OfficialSet(name, layouts, sizes, classes, url=url, downloads=downloads, mean=(mean,), std=(std,))


_IDX = {"train": "train", "test": "t10k"}


def _cifar(
    num_classes: int, files: dict[str, tuple[str, ...]], mean: tuple[float, ...], std: tuple[float, ...]
) -> OfficialSet:
    binary, python = f"cifar-{num_classes}-binary.tar.gz", f"cifar-{num_classes}-python.tar.gz"
    folders = {10: ("cifar-10-batches-bin", "cifar-10-batches-py"), 100: ("cifar-100-binary", "cifar-100-python")}
    in_binary, in_python = folders[num_classes]
    layouts = {
        part: (
            *_cifar_layouts([f"{name}.bin" for name in names], in_binary, binary, readers.cifar_binary, num_classes),
            *_cifar_layouts(list(names), in_python, python, readers.cifar_python, num_classes),
        )
        for part, names in files.items()
    }
    return OfficialSet(
        f"cifar{num_classes}",
        layouts,
        {"train": 50000, "test": 10000},
        class_names.CIFAR10 if num_classes == 10 else class_names.CIFAR100,
        augment="crop_flip",
        url="https://www.cs.toronto.edu/~kriz/",
        downloads={"train": (binary,), "test": (binary,)},
        mean=mean,
        std=std,
    )


def _cifar_layouts(
    names: list[str], folder: str, archive: str, decode: Callable[[Sequence[bytes], str, int], Part], num_classes: int
) -> tuple[Layout, ...]:
    """The layouts of one part: separate files, the folder that the archive unpacks to, and the archive."""
    inside = tuple(f"{folder}/{name}" for name in names)

    def read(paths: Sequence[Path], contents: Callable[[Sequence[Path], Sequence[str]], list[bytes]]) -> Part:
        return decode(contents(paths, inside), str(paths[0]), num_classes)

    from_files, from_tar = partial(read, contents=readers.from_files), partial(read, contents=readers.from_tar)
    return Layout(tuple(names), from_files), Layout(inside, from_files), Layout((archive,), from_tar)


def _svhn(part: str) -> tuple[Layout, ...]:
    return (Layout((f"{part}_32x32.mat",), readers.svhn_mat), Layout((f"{part}_32x32.npz",), readers.svhn_npz))


def _tiny(part: str, folder: str) -> tuple[Layout, ...]:
    unpacked = partial(readers.tiny_folder, part=part)
    return (
        Layout((folder, "wnids.txt"), unpacked),
        Layout((readers.TINY_TOP + folder, readers.TINY_TOP + "wnids.txt"), unpacked),
        Layout(("tiny-imagenet-200.zip",), partial(readers.tiny_zip, part=part)),
    )


def _table_layout(file: str, read: Callable[..., Texts], classes: tuple[str, ...]) -> tuple[Layout]:
    return (Layout((file,), partial(read, num_classes=len(classes))),)


_CIFAR10_FILES: dict[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_CIFAR100_FILES: dict[str, tuple[str, ...]] = {"train": ("train",), "test": ("test",)}
_LIDC_ADVICE = (
    "There is no official file: write lidc.npz with images (N, 128, 128), masks (N, 4, 128, 128) and ids (N, 3), "
    "patient first, from LIDC-IDRI (www.cancerimagingarchive.net)"
)

SOURCES = {
    source.name: source
    for source in (
        OfficialSet("digits", {WHOLE: (Layout((), readers.digits),)}, {WHOLE: 1797}, class_names.DIGITS),
        OfficialSet(
            "cluttered_digits",
            {WHOLE: (Layout((), readers.cluttered_digits),)},
            {WHOLE: readers.CLUTTER_COPIES * 1797},
            class_names.DIGITS,
        ),
        _idx("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist/", class_names.DIGITS, 0.1307, 0.3081),
        _idx(
            "fashion_mnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            class_names.FASHION,
            0.2860,
            0.3530,
        ),
        _idx("kmnist", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/", class_names.KUZUSHIJI, 0.1918, 0.3483),
        _cifar(10, _CIFAR10_FILES, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        _cifar(100, _CIFAR100_FILES, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        OfficialSet(
            "svhn",
            {"train": _svhn("train"), "test": _svhn("test")},
            {"train": 73257, "test": 26032},
            class_names.DIGITS,
            augment="crop",
            url="http://ufldl.stanford.edu/housenumbers/",
            downloads={"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)},
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
        ),
        OfficialSet(
            "lidc",
            {WHOLE: (Layout(("lidc.npz",), readers.lidc),)},
            {},
            class_names.NODULE,
            task="segmentation",
            augment="flip",
            advice=_LIDC_ADVICE,
        ),
        OfficialSet(
            "tiny_imagenet",
            {"train": _tiny("train", "train/"), "test": _tiny("test", "val/")},
            {"train": 100000, "test": 10000},
            (),
            augment="crop_flip",
            url="http://cs231n.stanford.edu/",
            downloads=dict.fromkeys(("train", "test"), ("tiny-imagenet-200.zip",)),
            mean=(0.4802, 0.4481, 0.3975),
            std=(0.2770, 0.2691, 0.2821),
        ),
        OfficialSet(
            "sst2",
            {
                "train": _table_layout("train.tsv", read_sentences, class_names.SENTIMENT),
                "test": _table_layout("dev.tsv", read_sentences, class_names.SENTIMENT),
            },
            {"train": 67349, "test": 872},
            class_names.SENTIMENT,
            advice="Unpack train.tsv and dev.tsv of SST-2.zip of GLUE (gluebenchmark.com/tasks)",
        ),
        OfficialSet(
            "ag_news",
            {
                "train": _table_layout("train.csv", read_news, class_names.NEWS),
                "test": _table_layout("test.csv", read_news, class_names.NEWS),
            },
            {"train": 120000, "test": 7600},
            class_names.NEWS,
            advice="Unpack train.csv and test.csv of ag_news_csv.tar.gz, the set of Zhang, Zhao and LeCun (2015)",
        ),
    )
}
