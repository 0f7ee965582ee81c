"""Every test runs offline, on one thread, with the shapes in our signatures checked."""

import os
from pathlib import Path

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

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a file that share a fixture run in one process, which makes it once; they begin before all others.

    What is alone is small, so that no core waits at the end.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if item.get_closest_marker("xdist_group") is None and _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def _shares_a_fixture(item: pytest.Item) -> bool:
    info = getattr(item, "_fixtureinfo", None)
    used = [] if info is None else [own[-1] for own in info.name2fixturedefs.values()]
    own = [f for f in used if Path(f.func.__code__.co_filename).is_relative_to(TESTS)]
    return any(f.scope in ("module", "session") for f in own)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
