"""Tables of tuned choices in a directory of the test's own: fixtures, and how an entry is made."""

from __future__ import annotations

import pytest

from cutlass_py.arrays.gpu import ABSENT
from cutlass_py.dispatch import tuned
from cutlass_py.dispatch.tuned import Entry
from cutlass_py.kernels.operation import class_of

FEW_TILES = {"m": 128, "n": 256, "k": 8192}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """An empty cache directory; the path of the stand-in GPU's table."""
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    tuned.forget()
    yield tuned.path_of(ABSENT)
    tuned.forget()


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Two directories of tables, the first above the second; what puts a table of the stand-in GPU into one."""
    places = [tmp_path / "pack", tmp_path / "package"]
    monkeypatch.setattr(tuned, "PLACES", places)

    def put(index, entries):
        places[index].mkdir(exist_ok=True)
        (places[index] / tuned.file_name(ABSENT.name, ABSENT.sm_count)).write_text(tuned.dumps(ABSENT, entries))
        tuned.forget()

    return put


def entry_for(choice, **changes):
    values = {"kernel": choice.route.kernel.name, "splits": choice.route.splits, "raster": 0, "swizzle": 1}
    return Entry(**values | {"microseconds": 1.5, "driver": 13000, "version": "0.1.0"} | changes)


def remember(p, entry):
    tuned.record(ABSENT, {class_of(p): entry})
