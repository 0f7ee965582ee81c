"""Methods that read what was learned beforehand: gates trained for a model, and the selection of a rationale model."""

from collections.abc import Mapping
from typing import Any

from salience.core.passes import Needs, Pass, one_pass
from salience.core.types import Attribution, Model
from salience.errors import BadInput, UnsupportedModel
from salience.methods.attention import Layer, layer_number
from salience.models.files import folder_of
from salience.models.gates import Gates, check_fits, kept, load_gates

BESIDE = "gates"
"""The folder of gates inside the folder of their model."""


def _settle(model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Load the gates, once for all batches."""
    return {**settings, "gates": find_gates(model, settings["gates"])}


def find_gates(model: Model, gates: str | Gates | None) -> Gates:
    """Return the given gates, those of a folder, or those in the folder ``gates`` of the model itself."""
    if isinstance(gates, Gates):
        check_fits(gates, model)
        return gates
    if gates is None and not (folder_of(model.name) / BESIDE).is_dir():
        raise BadInput(
            f"diff_mask needs gates that were trained for {model.name}: train them once with `salience diffmask`, and "
            "pass their folder as gates=FOLDER"
        )
    return load_gates(folder_of(model.name) / BESIDE if gates is None else gates, model)


@one_pass(Needs.HIDDEN_STATES, settle=_settle, first_layer=0)
def diff_mask(result: Pass, *, gates: str | Gates | None = None, layer: Layer = None) -> Attribution:
    """The probability that gates, trained to hide all they can, still show a token: Π_{l' ≤ l} P(v_l' ≠ 0).

    The gates read the states of the whole text up to ``layer``, by default the last one, and hide a token where the
    prediction does not change without it. They are trained once for a model, by `salience diffmask`. The whole
    predicted distribution is explained, not one label.

    Paper: De Cao et al. 2020, How do Decisions Emerge across Layers in Neural Models? (DiffMask), arXiv:2004.14992
    Cost: 1 forward
    Needs: gates trained for the model, and hidden states
    """
    model = result.model
    trained = gates if isinstance(gates, Gates) else find_gates(model, gates)
    number = layer_number(layer, model, of=model.layers, first=0)
    scores = kept(trained, result.batch, result.output.hidden)[..., number]
    return Attribution(scores, settings={"layer": number, "gates": trained.place}, signed=False)


@one_pass()
def selection(result: Pass) -> Attribution:
    """The selection of a rationale model: z, which is 0 for tokens that its classifier has not read.

    A generator selects tokens and a classifier reads nothing else, so no other token can have had an effect on the
    classifier.

    Paper: Lei et al. 2016, arXiv:1606.04155; Bastings et al. 2019, arXiv:1905.08160
    Cost: 1 forward
    Needs: a rationale model, trained by `salience train --rationale-model`
    """
    chosen = result.output.selection
    if chosen is None:
        raise UnsupportedModel(
            f"{result.model.name} selects no rationale; train a model that does with `salience train "
            "--rationale-model`, or use a method that explains any model"
        )
    return Attribution(chosen.z * result.batch.content, signed=False)
