"""Files that are written whole or not at all, and the networks stored in them."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.storage.files import (
        digest,
        parsed,
        plain_file,
        put,
        put_folder,
        read_bytes,
        read_json,
        read_tensors,
        remove_parts,
        tensors_digest,
        write_json,
        write_tensors,
        write_whole,
        written_whole,
    )
    from nestling.storage.lock import FolderLock
    from nestling.storage.nonzero import pack_bits, restored, stored, unpack_bits
    from nestling.storage.packed import Packing
    from nestling.storage.plain_files import GRAPH_FILE, PlainFiles, plain_files, plain_network
    from nestling.storage.saving import (
        GROUPS_FILE,
        WEIGHTS_FILE,
        describe,
        load,
        loaded,
        make_folder,
        packed,
        save,
        unpack,
        weights_digest,
    )

imports_lazily(__name__)
