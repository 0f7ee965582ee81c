"""The files of a model, checked before anything is built from them. Imports neither torch nor transformers."""

import json
import struct
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from salience.errors import BadInput, BadModel, SalienceError, choose

BUNDLED = ("sentiment", "sentiment_bilstm")
"""Small models shipped with the package."""

TRAINED = ("model", "student", "models/standard")
"""Where commands that train put their model, in the folder that is given to them."""

DTYPES = ("float32", "float64", "float16", "bfloat16", "auto")
"""Data types of the weights; ``auto`` is the one they were saved in."""

TASKS = ("classify", "generate")

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""What configurations call the number of layers."""

PATIENCE = 5.0
"""Seconds to wait for the model hub to answer."""

_TRUSTED = "If you trust it, allow code from it: trust_remote_code=True, or --trust-remote-code."


def check(
    name: str | Path,
    *,
    task: str | None = None,
    dtype: str = "float32",
    device: str | None = None,
    trust_remote_code: bool = False,
    **_: object,
) -> None:
    """Raise if a model of this name cannot be loaded with these options of :func:`salience.load`.

    What can be seen without torch is checked: the names of options, whether the model exists, and its files.
    """
    choose(dtype, DTYPES, "dtype")
    if task is not None:
        choose(task, TASKS, "task")
    if str(device).partition(":")[0] == "meta":
        raise BadInput("the device 'meta' holds no weights, so nothing can be computed on it; use cpu or cuda")
    folder = folder_of(name)
    if folder.is_dir():
        _check_folder(folder, trust_remote_code)
    elif folder.exists():
        raise BadModel(f"{name} is a file; pass the folder that holds the model, as written by save_pretrained")
    else:
        _check_hub(str(name))


def folder_of(name: str | Path) -> Path:
    """Return the folder of a bundled model, or the name as a path."""
    if "\0" in str(name):
        raise BadModel(f"the name of a model cannot contain a NUL character: {str(name)!r}")
    return Path(str(files("salience.models.bundled").joinpath(str(name)))) if name in BUNDLED else Path(name)


def configuration(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json; empty if there is none that can be read."""
    try:
        return _json(folder / "config.json")
    except (OSError, BadModel):
        return {}


def is_pooled(folder: Path) -> bool:
    """Whether the folder holds one of our own pooled classifiers."""
    return configuration(folder).get("model_type") == "salience_pooled"


def is_seq2seq(folder: Path) -> bool:
    """Whether the folder holds one of our own encoder-decoders."""
    return configuration(folder).get("model_type") == "salience_seq2seq"


def is_rationale(folder: Path) -> bool:
    """Whether the folder holds one of our own rationale models."""
    return configuration(folder).get("model_type") == "salience_rationale"


@contextmanager
def reporting(name: str | Path) -> Generator[None]:
    """Report whatever goes wrong while a model is loaded as BadModel.

    A damaged file can raise any error in the libraries that read it. The tokenizers library panics, which is no
    ``Exception``.
    """
    try:
        yield
    except SalienceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadModel(_reason(str(name), error)) from error


def check_kernel(config: Mapping[str, Any], name: str | Path) -> None:
    """Raise if a configuration, or one inside it, names an attention kernel that would be downloaded and run."""
    for key, value in config.items():
        inner = list(value.values()) if isinstance(value, dict) else [value]  # pyright: ignore
        if "attn_implementation" in key and any("/" in str(kernel) for kernel in inner):  # pyright: ignore
            raise BadModel(
                f"{name} asks for the attention kernel {value!r}, which is code from another repository. {_TRUSTED}"
            )
        if isinstance(value, dict):
            check_kernel(value, name)  # pyright: ignore


def check_shards(index: Path) -> None:
    """Raise unless the index of a sharded checkpoint names only safetensors files beside it."""
    shards = _json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):  # pyright: ignore
        raise BadModel(f"{index} has no weight_map from tensors to files; save the model again with save_pretrained")
    for shard in sorted(set(shards.values())):  # pyright: ignore
        if not shard.endswith(".safetensors") or Path(shard).name != shard or "\\" in shard:
            raise BadModel(
                f"{index} names the file {shard!r}; weights must be safetensors files in the same folder. Save the "
                "model again with save_pretrained."
            )


def _check_folder(folder: Path, trust_remote_code: bool) -> None:
    if not (folder / "config.json").exists():
        inner = [f"{folder}/{name}" for name in TRAINED if (folder / name / "config.json").exists()]
        remedy = f"Did you mean {inner[0]}?" if inner else "Pass a folder written by save_pretrained."
        raise BadModel(f"{folder} holds no model: config.json is missing. {remedy}")
    config = _json(folder / "config.json")
    if not isinstance(config.get("id2label") or {}, dict):
        raise BadModel(f"{folder}: id2label in config.json is not a mapping from numbers to labels")
    if not trust_remote_code:
        check_kernel(config, folder)
    for index in folder.glob("*.safetensors.index.json"):
        check_shards(index)
    _check_layers(config, folder)
    if (folder / "tokenizer.json").exists():
        _json(folder / "tokenizer.json")


def _check_layers(config: Mapping[str, Any], folder: Path) -> None:
    """Raise if a configuration has more layers than the weights have tensors, before they are built one by one."""
    tensors = sum(len(_header(file)) for file in _weights(folder))
    for key in LAYERS:
        shared = "num_hidden_groups" in config  # the layers of ALBERT share their weights
        if tensors and not shared and isinstance(layers := config.get(key), int) and layers > tensors:
            raise BadModel(
                f"{folder}: config.json says {key} = {layers:,}, but the weights hold only {tensors:,} tensors"
            )
        if isinstance(layers := config.get(key), int) and layers < 1:
            raise BadModel(f"{folder}: config.json says {key} = {layers}; a model has at least one layer")


def _check_hub(name: str) -> None:
    """Raise if the name is clearly a folder that does not exist, or if the model hub cannot be asked."""
    path = Path(name)
    if path.is_absolute() or len(path.parts) > 2 or name.startswith((".", "~")) or not name.strip():
        raise BadModel(f"there is no folder {name!r}{_hint(name)}")
    if not _cached(name) and not _on_hub(name):
        raise BadModel(
            f"there is no folder {name!r}, and the model hub cannot be reached or does not have it.{_hint(name)}"
        )


def _hint(name: str) -> str:
    near = get_close_matches(name, BUNDLED, n=1)
    return f" Did you mean {near[0]!r}, which comes with the package?" if near else ""


def _cached(name: str) -> bool:
    """Whether a hub model was downloaded before."""
    from huggingface_hub import constants

    return (Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}").exists()


def _on_hub(name: str) -> bool:
    """Ask the hub once; loading a model tries for half a minute before it gives up."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().model_info(name, timeout=PATIENCE)
    except HfHubHTTPError as error:
        return isinstance(error, GatedRepoError) or not isinstance(error, RepositoryNotFoundError)
    except Exception:  # no answer, or not a name that a model can have
        return False
    return True


# ---------------------------------------------------------------------------------------------------- reading files


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{file} is not valid JSON: {str(error) or 'it is nested too deeply'}") from error
    except OSError as error:
        raise BadModel(f"{file} cannot be read: {error.strerror}") from error
    if not isinstance(value, dict):
        raise BadModel(f"{file} does not hold a JSON object")
    return value  # pyright: ignore


def _weights(folder: Path) -> Iterator[Path]:
    """The safetensors files of the weights."""
    return (file for file in sorted(folder.glob("model*.safetensors")) if file.is_file())


def _header(file: Path) -> dict[str, Any]:
    """The names of the tensors in a safetensors file, each with its place; raises BadModel if the file is damaged."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header: Any = json.loads(stream.read(length)) if length <= size - 8 else None
        header.pop("__metadata__", None)
        end = max((place["data_offsets"][1] for place in header.values()), default=0)
    except (OSError, struct.error, ValueError, RecursionError, AttributeError, TypeError, KeyError, IndexError) as why:
        raise BadModel(f"{file} is not a safetensors file, or it is damaged; copy or download it again") from why
    if size != 8 + length + end:
        raise BadModel(
            f"{file} is damaged: it has {size:,} bytes instead of {8 + length + end:,}; copy or download it again"
        )
    return header


def _reason(name: str, error: BaseException) -> str:
    message = " ".join(str(error).split())
    if "trust_remote_code" in message:
        return f"{name} requires running code from its repository. {_TRUSTED}"
    if "safetensors" in message and not any(_weights(Path(name))):
        return (
            f"{name} has no safetensors weights. Pickle files can run code when they are opened: pass "
            "allow_pickle=True only if you trust their source, or convert them once with save_pretrained."
        )
    if not Path(name).exists() and ("connect" in message or "offline" in message or "not a valid model" in message):
        return f"there is no folder {name!r}, and the model hub cannot be reached or does not have it."
    return f"{name} cannot be loaded: {message[:300] or type(error).__name__}"
