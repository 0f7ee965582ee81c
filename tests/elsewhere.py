"""Explanations made by other packages. The tests read what is stored; to make it again, where inseq and shap are:

python tests/elsewhere.py
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

STORED = Path(__file__).parent / "fixtures" / "elsewhere.json"
WORDS = ["<end>", "a", "fine", "film", "with", "dull", "end", "bore", "of", "no", "heart", "."]
PROMPT = "a fine film with no"
TEXTS = ["A fine film, but far too long.", "What an awful bore!"]


def decoder(folder: Path) -> str:
    """A small language model whose weights are a formula, so that every machine has the same."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", bos_token="<end>", pad_token="<end>"
    ).save_pretrained(folder)
    made = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS), n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    with torch.no_grad():
        for number, p in enumerate(made.parameters(), 1):
            p.copy_(torch.sin(number + torch.arange(p.numel(), dtype=torch.float64)).view_as(p) / 2)
    made.save_pretrained(folder)
    return str(folder)


def from_inseq(folder: Path) -> dict[str, object]:
    import inseq

    model = inseq.load_model(decoder(folder), "input_x_gradient")
    result = model.attribute(PROMPT, generation_args={"max_new_tokens": 2, "do_sample": False}, show_progress=False)
    result.save(folder / "plain.json", overwrite=True)
    result.save(folder / "primitive.json", overwrite=True, use_primitives=True)
    return {name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("plain", "primitive")}


def from_shap() -> dict[str, object]:
    import shap
    from transformers import pipeline

    folder = str(Path(__file__).parents[1] / "src" / "salience" / "models" / "bundled" / "sentiment")
    model = pipeline("text-classification", model=folder, tokenizer=folder, top_k=None)
    result = shap.Explainer(model, silent=True)(TEXTS)
    return {
        "data": [list(map(str, pieces)) for pieces in result.data],
        "values": [values.round(6).tolist() for values in result.values],
        "output_names": list(map(str, result.output_names)),
    }


if __name__ == "__main__":
    from importlib.util import find_spec
    from tempfile import TemporaryDirectory

    made = json.loads(STORED.read_text("utf-8")) if STORED.exists() else {}
    with TemporaryDirectory() as folder:
        made |= {"inseq": from_inseq(Path(folder))} if find_spec("inseq") else {}
    made |= {"shap": from_shap()} if find_spec("shap") else {}
    STORED.write_text(json.dumps(made, ensure_ascii=False) + "\n", "utf-8")
