"""Small files in the official layouts, written from their published descriptions and without the library's help."""

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

IDX_STEMS = {"train": "train", "test": "t10k"}


def some_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + b"".join(struct.pack(">I", size) for size in array.shape)
    return header + array.tobytes()


def write_idx_set(folder: Path, sizes=None, gz=True):
    """The four files of an MNIST-like set; returns images and labels by part."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for place, (part, size) in enumerate((sizes or {"train": 40, "test": 20}).items()):
        images, labels = some_bytes(size, 28, 28, seed=place), np.arange(size, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            name = f"{IDX_STEMS[part]}-{kind}-ubyte"
            content = idx_bytes(array)
            if gz:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
        written[part] = (images, labels)
    return written


def cifar_records(num_images, num_classes, seed=0):
    """The bytes of a binary batch, its images (N, 3, 32, 32) and its (fine) labels."""
    images = some_bytes(num_images, 3, 32, 32, seed=seed)
    labels = np.arange(num_images, dtype=np.uint8) % num_classes
    content = b""
    for image, label in zip(images, labels, strict=True):
        coarse = b"\x13" if num_classes == 100 else b""
        content += coarse + bytes([label]) + image[0].tobytes() + image[1].tobytes() + image[2].tobytes()
    return content, images, labels


def python2_pickle(images, labels, key="labels"):
    """A batch as Python 2 wrote it with protocol 2: short strings, and the array's bytes as one long string."""
    rows = images.reshape(len(images), -1)
    out = io.BytesIO()
    out.write(b"\x80\x02}q\x01(")
    out.write(b"U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03")
    out.write(b"U" + bytes([len(key)]) + key.encode() + b"q\x04]q\x05(")
    for label in labels:
        out.write(b"K" + bytes([int(label)]))
    out.write(
        b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t"
    )
    out.write(b"(K\x01M" + struct.pack("<H", rows.shape[0]) + b"M" + struct.pack("<H", rows.shape[1]) + b"\x86")
    out.write(b"cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb")
    out.write(b"\x89T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb")
    out.write(b"U\tfilenamesq\x0c]q\r(U\x05a.pngq\x0eU\x05b.pngq\x0feu.")
    return out.getvalue()


def python3_pickle(images, labels, protocol, key=b"labels"):
    batch = {b"batch_label": b"one", key: [int(label) for label in labels], b"data": images.reshape(len(images), -1)}
    return pickle.dumps(batch, protocol)


def write_tar(path: Path, members: dict[str, bytes]):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))


def png(pixels, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def write_image(path: Path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(pixels))
