"""Every test runs offline, on one thread, with the shapes in our signatures checked."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines announce AMX but cannot run it: half precision would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch

import checking

with checking.install():
    import salience.data
    import salience.explanations.explainer
    import salience.models.huggingface
    import salience.models.pooled  # noqa: F401

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that must run one after the other begin first, so that no core waits for them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
