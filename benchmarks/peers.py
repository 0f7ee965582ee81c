"""One peer on the sentences given as JSON on standard input: PEER FOLDER. Prints {"version", "seconds"} or {"error"}.

Runs in an environment that holds the peers; it does not import salience.
"""

import json
import sys
from importlib.metadata import version
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline


def shap(model: Any, tokenizer: Any, texts: list[str]) -> None:
    import shap

    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    shap.Explainer(classify, silent=True)(texts)


def lime(model: Any, tokenizer: Any, texts: list[str]) -> None:
    from lime.lime_text import LimeTextExplainer

    def probabilities(many: list[str]) -> Any:
        rows = []
        for start in range(0, len(many), 32):
            with torch.no_grad():
                rows.append(model(**tokenizer(many[start : start + 32], return_tensors="pt", padding=True)).logits)
        return torch.cat(rows).softmax(-1).numpy()

    for text in texts:
        LimeTextExplainer(random_state=0).explain_instance(text, probabilities, num_samples=1000)


def transformers_interpret(model: Any, tokenizer: Any, texts: list[str]) -> None:
    from transformers_interpret import SequenceClassificationExplainer

    explainer = SequenceClassificationExplainer(model, tokenizer)
    for text in texts:
        explainer(text)


def lxt(model: Any, tokenizer: Any, texts: list[str]) -> None:
    from lxt.efficient import monkey_patch
    from transformers.models.bert import modeling_bert

    monkey_patch(modeling_bert, verbose=False)
    for text in texts:
        given = tokenizer(text, return_tensors="pt")
        e = model.get_input_embeddings()(given.pop("input_ids")).detach().requires_grad_()
        model(inputs_embeds=e, **given).logits.max().backward()


PEERS = {f.__name__: f for f in (shap, lime, transformers_interpret, lxt)}
PACKAGES = {"transformers_interpret": "transformers-interpret"}


def main(peer: str, folder: str) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    texts = json.load(sys.stdin)
    try:
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        run = PEERS[peer]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        run(model, tokenizer, texts[:1])
        began = perf_counter()
        run(model, tokenizer, texts)
        reply = {"version": version(PACKAGES.get(peer, peer)), "seconds": perf_counter() - began}
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    print(json.dumps(reply))


if __name__ == "__main__":
    main(*sys.argv[1:])
