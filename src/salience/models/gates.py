"""Gates over the tokens of a text, one per layer of a frozen model: which tokens could be hidden from it?"""

import json
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save
from torch import Tensor, nn

from salience.core.files import complete, write_json
from salience.core.passes import exclusive, forward
from salience.core.types import Batch, Model, Selection
from salience.errors import BadInput, BadModel
from salience.models.files import reporting
from salience.models.identity import digest

TEMPERATURE, LOW, HIGH = 0.2, -0.2, 1.0
"""Gates are BinaryConcrete(temperature) variables, stretched to (low, high) and clamped to [0, 1]."""

SHUT, OPEN, LEAK = -3.0, 0.0, 0.1
"""The log-odds of a gate are g, which starts near OPEN, and below SHUT they follow it by a tenth.

No gate closes for good: where the gates of one layer are always 0, those of the others would learn nothing.
"""

KIND = "salience_gates"
FILES = ("config.json", "gates.safetensors")


@dataclass(frozen=True, slots=True)
class GatesConfig:
    """The shape of gates, and the model that they were trained for; stored as config.json."""

    digest: str
    """Of the model."""
    name: str
    """Of the model, for messages."""
    widths: tuple[int, ...]
    """Units of the states of every layer, from the input of the first one."""
    embedding: int
    """Units of the word embeddings."""
    hidden: int
    """Units of the gates' networks."""
    model_type: str = KIND


class Gates(nn.Module):
    """A token is seen as z e + (1 − z) ẽ, with z a product of gates: v_l = σ̂(g), g = w · tanh(W [h_0; h_l]) + b.

    σ̂ draws a stretched and clamped BinaryConcrete variable of these log-odds, z is the product of the gates of some
    layers, from the first on, and ẽ a learned baseline. States are normalised before they enter a gate, since those of
    decoders grow from layer to layer.

    Paper: De Cao et al. 2020, arXiv:2004.14992, sections 2.2 and 2.3
    """

    def __init__(self, config: GatesConfig, place: str = "new gates") -> None:
        super().__init__()
        self.config, self.place = config, place
        first = config.widths[0]
        self.inner = nn.ModuleList(nn.Linear(first + width, config.hidden) for width in config.widths)
        self.outer = nn.ModuleList(nn.Linear(config.hidden, 1, bias=False) for _ in config.widths)
        self.bias = nn.Parameter(torch.full((len(config.widths),), OPEN))
        self.baseline = nn.Parameter(torch.zeros(config.embedding))

    def forward(self, hidden: tuple[Float[Tensor, "b t _"], ...]) -> Float[Tensor, "b t l"]:
        """Return the log-odds of the gates of all layers, given the states of the frozen model."""
        h = [nn.functional.layer_norm(one.to(self.bias), one.shape[-1:]) for one in hidden]
        each = [
            outer(torch.tanh(inner(torch.cat([h[0], one], -1))))
            for inner, outer, one in zip(self.inner, self.outer, h, strict=True)
        ]
        g = torch.cat(each, -1) + self.bias
        return LEAK * g + (1 - LEAK) * g.clamp_min(SHUT)

    def save(self, folder: str | Path) -> None:
        """Write gates.safetensors and config.json."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        with complete(place / FILES[1]) as file:
            file.write(save({name: values.contiguous() for name, values in self.state_dict().items()}))
        write_json(place / FILES[0], asdict(self.config))


def new_gates(model: Model, *, seed: int = 0) -> Gates:
    """Create untrained gates for a model: all half open, with the mask token, if there is one, as the baseline."""
    batch = model.batch(model.encode(["a"]))
    widths = tuple(h.shape[-1] for h in forward(model, batch, hidden=True).hidden)
    weight = model.words.weight
    config = GatesConfig(digest(model), model.name, widths, weight.shape[1], max(8, widths[0] // 4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gates = Gates(config)
    if (mask := model.replacements.get("mask")) is not None:
        with torch.no_grad():
            gates.baseline.copy_(weight[mask])
    return gates.to(weight.device, torch.promote_types(weight.dtype, torch.float32))


def load_gates(folder: str | Path, model: Model) -> Gates:
    """Load the gates that were trained for this model; gates of another model are refused."""
    check_gates(folder)
    with reporting(folder):
        stored: dict[str, Any] = json.loads((Path(folder) / FILES[0]).read_text("utf-8"))
        gates = Gates(GatesConfig(widths=tuple(stored.pop("widths")), **stored), str(folder))
        gates.load_state_dict(load_file(Path(folder) / FILES[1]))
    check_fits(gates, model)
    weight = model.words.weight
    return gates.to(weight.device, torch.promote_types(weight.dtype, torch.float32)).eval()


def check_gates(folder: str | Path) -> None:
    """Raise unless the folder holds gates, as far as its files say."""
    for file in FILES:
        if not (Path(folder) / file).is_file():
            raise BadModel(f"{folder} holds no gates: {file} is missing. Train them with `salience diffmask`.")
    try:
        stored: Any = json.loads((Path(folder) / FILES[0]).read_text("utf-8"))
    except ValueError as error:
        raise BadModel(f"{Path(folder) / FILES[0]} is not valid JSON: {error}") from error
    if not isinstance(stored, dict) or stored.get("model_type") != KIND:
        raise BadModel(f"{folder} holds no gates but something else; pass a folder written by `salience diffmask`")


def check_fits(gates: Gates, model: Model) -> None:
    """Raise unless the gates were trained for this model, told by its digest."""
    if gates.config.digest != digest(model):
        raise BadInput(
            f"{gates.place} holds gates that were trained for another model, {gates.config.name}, or for another data "
            f"type: the digest of {model.name} differs. Train gates for it with `salience diffmask`."
        )


# ------------------------------------------------------------------------------------------------------ gates of texts


def log_nonzero(logits: Float[Tensor, "b t l"]) -> Float[Tensor, "b t l"]:
    """log P(v ≠ 0) of each gate: log σ(log-odds − T · log(−low / high)).

    >>> round(float(log_nonzero(torch.zeros(1, 1, 1)).exp()), 4)
    0.5798
    """
    return nn.functional.logsigmoid(logits - TEMPERATURE * log(-LOW / HIGH))


def drawn(logits: Float[Tensor, "b t l"]) -> Float[Tensor, "b t l"]:
    """Draw gates: clamp(low + (high − low) · σ((log-odds + log u − log(1 − u)) / T)), u uniform."""
    u = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
    s = torch.sigmoid((logits + u.log() - torch.log1p(-u)) / TEMPERATURE)
    return (LOW + (HIGH - LOW) * s).clamp(0, 1)


def up_to(values: Float[Tensor, "b t l"], layer: Int[Tensor, " b"]) -> Float[Tensor, "b t"]:
    """Select the layer of each text."""
    return values.gather(2, layer[:, None, None].expand(-1, values.shape[1], 1))[..., 0]


def kept(gates: Gates, batch: Batch, hidden: tuple[Tensor, ...]) -> Float[Tensor, "b t l"]:
    """The probability that each token is not hidden by the gates up to each layer; 0 outside the text."""
    with torch.no_grad():
        return log_nonzero(gates(hidden)).cumsum(-1).exp() * batch.content[..., None]


def select(gates: Gates, model: Model, batch: Batch) -> Selection:
    """Draw a selection for every text, up to a layer drawn at random, from the states of the whole text."""
    with exclusive(model), torch.no_grad():
        whole = model(batch, hidden=True)
    logits = gates(whole.hidden)
    layer = torch.randint(logits.shape[-1], (len(batch),), device=logits.device)
    z = up_to(drawn(logits).cumprod(-1), layer).masked_fill(~batch.content, 1)
    nonzero = up_to(log_nonzero(logits).cumsum(-1), layer) * batch.content
    return Selection(z, nonzero, layer, whole.logits)
