"""Every test runs offline, on one thread, with the shapes in our signatures checked."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from jaxtyping import install_import_hook

with install_import_hook("salience", "beartype.beartype"):
    import salience.data
    import salience.explainer
    import salience.models.huggingface
    import salience.models.pooled  # noqa: F401

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
