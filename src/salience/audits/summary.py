"""What a model's attention can and cannot be used for, in words; every sentence rests on a finding."""

from collections.abc import Iterable, Iterator, Mapping

from salience.audits.finding import Finding


def sentences(findings: Iterable[Finding]) -> Iterator[str]:
    """One conclusion per finding, with its figures."""
    for finding in findings:
        yield f"{USES[finding.test][finding.verdict]} {finding.answer}"


USES: Mapping[str, Mapping[str, str]] = {
    "correlation": {
        "explanation": "Attention orders words as well as gradients do, as far as leave-one-out goes.",
        "no explanation": "Attention should not be read as an order of importance: gradients order the words better.",
        "unclear": "Whether attention orders words as well as gradients do cannot be said from these texts.",
    },
    "permutation": {
        "explanation": "The prediction depends on which words attention is on.",
        "no explanation": "In most texts the prediction does not depend on which words attention is on.",
        "unclear": "Whether most predictions depend on which words attention is on cannot be said from these texts.",
    },
    "adversary": {
        "explanation": "The prediction needs attention that is close to the model's own.",
        "no explanation": "Other attention weights give the same prediction, even very different ones.",
        "unclear": "Whether most texts have a far adversary cannot be said from these texts.",
    },
    "erasure": {
        "explanation": "Attention finds the weights that decide, as soon as the gradient does.",
        "no explanation": "Attention is a poor guide to the weights that decide: the gradient finds them sooner.",
        "unclear": "Whether attention finds the weights that decide as soon as the gradient cannot be said.",
    },
    "intervention": {
        "explanation": "Attention can be changed on its own: inputs change it and leave the states below.",
        "no explanation": "Attention does not change on its own: inputs that change it also change the states below.",
        "unclear": "Whether attention can be changed on its own cannot be said from these texts.",
    },
    "comparison": {
        "explanation": "As an explanation of which words matter, attention is as faithful as the best method here.",
        "no explanation": "To learn which words matter, use a saliency method instead of attention.",
        "unclear": "Whether attention is as faithful as the best method cannot be said from these texts.",
    },
    "uniform_attention": {
        "explanation": "The model needs its attention: with uniform weights it learns less.",
        "no explanation": "Attention is not needed here: with uniform weights a model learns as well.",
        "unclear": "Whether the model needs its attention cannot be said from these texts.",
    },
    "seed_variation": {
        "explanation": "Attention is in part a property of the task: runs with other seeds are closer than by chance.",
        "no explanation": "Attention depends on the seed: other runs are no closer than by chance.",
        "unclear": "Whether runs with other seeds are closer than by chance cannot be said from these texts.",
    },
    "frozen_weights": {
        "explanation": "The weights can be used as word importance elsewhere: they help a model without context.",
        "no explanation": "The weights do not transfer: a model without context does worse with them than without.",
        "unclear": "Whether the weights help a model without context cannot be said from these texts.",
    },
    "adversarial_twin": {
        "explanation": "Other attention with the same predictions exists only as a trick, if at all.",
        "no explanation": "A model can predict the same with quite other attention, which is as useful.",
        "unclear": "Whether other attention with the same predictions is as useful cannot be said from these texts.",
    },
    "deceptive_twin": {
        "explanation": "Even a twin with other attention, trained to deceive, attends to influential words.",
        "no explanation": "Do not use attention as evidence against deceit: it can be trained to mislead.",
        "unclear": "Whether attention can be trained to mislead cannot be said from these texts.",
    },
    "manipulation": {
        "explanation": "A model that may not attend to some tokens does not use them.",
        "no explanation": "Little attention on a token does not mean that the token is not used.",
        "unclear": "Whether attention can hide the use of these tokens cannot be said from these texts.",
    },
    "diverse_states": {
        "explanation": "Training with diverse states makes predictions depend more on attention.",
        "no explanation": "Training with diverse states does not help: predictions depend less on attention.",
        "unclear": "Whether diverse states help cannot be said from these texts.",
    },
    "word_tying": {
        "explanation": "Training with states that keep their word makes predictions depend more on attention.",
        "no explanation": "States that keep their word do not help: predictions depend less on attention.",
        "unclear": "Whether states that keep their word help cannot be said from these texts.",
    },
}
