"""The simulated GPU's kernels are declared here; elsewhere than on it, its tests are left out."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import simulator

HERE = simulator.is_here()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "simulated":
            here = pytest.mark.skip(reason="only on the simulated GPU: ctest --preset dev-cpu -R simulated")
            item.add_marker(pytest.mark.gpu if HERE else here)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Nothing forbidden has happened, and no memory is left behind."""
    yield
    for _ in range(2):  # what has run gives back what was lent to it
        gc.collect()
        simulator.run()
    wrong, alive = simulator.wrong(), simulator.alive()
    simulator.forget()
    assert not wrong
    assert alive == 0
