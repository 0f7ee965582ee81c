"""Owen values by the package shap. The tests read what is stored; to make it again, where shap is:

python tests/owen.py
"""

import json
from pathlib import Path
from typing import Any

STORED = Path(__file__).parent / "methods" / "fixtures" / "owen.json"
BUNDLED = Path(__file__).parents[1] / "src" / "salience" / "models" / "bundled"
TEXTS = [  # of whole words: shap reads a piece of a word anew when the piece before it is masked
    "A fine film, but far too long.",
    "What an awful bore!",
    "I don't like it (at all).",
    "The story is good and the music is fine, but the end is poor and the whole film is far too long for me.",
]
ODD = [
    "It's (really) not that good; isn't it? No! Yet ... it is, or was, mine and yours.",
    "A (very (very)) odd film, and the actors' best work. Don't miss it.",
]
BUDGETS = (2, 5, 40, 101, 500, 5000)


def sentences() -> list[str]:
    return [json.loads(line)["text"] for line in (BUNDLED / "sample.jsonl").read_text("utf-8").splitlines()]


def as_users_call_it(folder: str) -> dict[str, Any]:
    """``shap.Explainer`` of a pipeline, with evaluations enough for all of the recursion."""
    import shap
    from transformers import pipeline

    explainer = shap.Explainer(pipeline("text-classification", model=folder, tokenizer=folder, top_k=None), silent=True)
    explained = explainer(TEXTS, max_evals=5000)
    trees = {text: explainer.masker.clustering(text)[:, :2].astype(int).tolist() for text in sentences() + ODD}
    values = [row[:, 1].round(7).tolist() for row in explained.values]
    return {"trees": trees, "values": dict(zip(TEXTS, values, strict=True))}


class Tokens:
    """A masker whose players are the tokens between the special ones, so that every evaluation counts for both."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        from shap.maskers._text import partition_tree

        self.ids, self.mask_token = tokenizer(text)["input_ids"], tokenizer.mask_token_id
        pieces = tokenizer.convert_ids_to_tokens(self.ids[1:-1])
        self.clustering = partition_tree(pieces, [])
        self.clustering[:, 2] = 1  # a negative height would forbid a split
        self.shape = (1, len(pieces))

    def __call__(self, mask: Any, _: Any) -> Any:
        import numpy as np

        kept = [i if m else self.mask_token for i, m in zip(self.ids[1:-1], mask, strict=True)]
        return (np.array([[self.ids[0], *kept, self.ids[-1]]]),)


def within_budgets(folder: str) -> list[dict[str, Any]]:
    """The probability of "positive", with fewer evaluations than all of the recursion takes, and with enough."""
    import numpy as np
    import shap
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def positive(ids: Any) -> Any:
        with torch.no_grad():
            return model(input_ids=torch.from_numpy(np.asarray(ids))).logits.softmax(-1)[:, 1].numpy()

    made = []
    for text in TEXTS:
        masker = Tokens(tokenizer, text)
        for budget in BUDGETS:
            explainer = shap.explainers.PartitionExplainer(positive, masker)
            row = explainer.explain_row(
                np.zeros(masker.shape[1]), max_evals=budget, main_effects=False, error_bounds=False, outputs=None,
                silent=True, batch_size=5, fixed_context=None,
            )  # fmt: skip
            children = masker.clustering[:, :2].astype(int).tolist()
            values = row["values"].round(7).tolist()
            evals = explainer.last_eval_count + 2
            made.append({"text": text, "children": children, "budget": budget, "values": values, "evals": evals})
    return made


if __name__ == "__main__":
    sentiment = str(BUNDLED / "sentiment")
    made = {"default": as_users_call_it(sentiment), "budgets": within_budgets(sentiment)}
    STORED.write_text(json.dumps(made, ensure_ascii=False) + "\n", "utf-8")
