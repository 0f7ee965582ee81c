"""The requests and answers of the JSON API."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["logit", "probability", "log_probability"]
Level = Literal["word", "token"]
Text = Annotated[str, Field(min_length=1, description="The text", examples=["A fine film, but far too long."])]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Setting = bool | int | float | str | None


class Strict(BaseModel):
    """A request; what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Problem(BaseModel):
    detail: str = Field(description="What is wrong, and what to do")


# ------------------------------------------------------------------------------------------------------ requests


class OfText(Strict):
    """A question about one text, or about a pair of texts."""

    model: Name | None = Field(None, description="One of the served models; by default the first")
    text: Text
    pair: Text | None = Field(None, description="The second text of a pair")


class ExplainText(OfText):
    methods: list[Name] = Field(["integrated_gradients"], min_length=1, description="Names of methods")
    target: Name | int | None = Field(None, description="The label to explain; by default the prediction")
    against: Name | int | None = Field(None, description="Explain the difference between the target and this label")
    kind: Kind = "logit"
    layer: int | Literal["all"] | None = Field(None, description="For methods with layers")
    settings: dict[str, Setting] = Field({}, description="Settings of the methods, as in `salience methods NAME`")


class ShowText(ExplainText):
    """The same for the page, with how to show it."""

    level: Level = "word"
    view: Literal["text", "bar", "waterfall"] = "text"


class ShowHead(OfText):
    layer: int = Field(ge=1)
    head: int = Field(ge=1)


class EditText(OfText):
    start: int = Field(0, ge=0, description="The first character of the part that is replaced")
    end: int = Field(0, ge=0, description="The end of that part")
    replacement: str = Field("", description="What it is replaced by; empty to leave it out")


class CompareModels(Strict):
    models: list[Name] = Field(min_length=2, max_length=4, description="Served models to compare")
    text: Text
    pair: Text | None = None
    methods: list[Name] = Field(["integrated_gradients"], min_length=1)
    target: Name | int | None = None
    kind: Kind = "logit"

    def of(self, model: str) -> ExplainText:
        """The question to one of the models."""
        asked = self.model_dump(include={"text", "pair", "methods", "target", "kind"})
        return ExplainText(model=model, **asked)


class ShowModels(CompareModels):
    level: Level = "word"


class FlipText(OfText):
    edits: int = Field(3, ge=1, le=10, description="The most words that may change")
    found: int = Field(3, ge=1, le=10, description="The most results")
    kinds: list[Literal["delete", "replace", "insert"]] = Field(["delete"], min_length=1)


class ChatMessage(Strict):
    role: Name
    content: str


class ExplainAnswer(Strict):
    model: Name | None = Field(None, description="A served language model; by default the first")
    prompt: Text | None = Field(None, description="A prompt; or messages")
    messages: list[ChatMessage] | None = Field(None, min_length=1, description="A chat")
    answer: str | None = Field(None, description="The answer to explain; by default it is generated")
    method: Name | None = Field(None, description="By default lrp, or attention for an encoder-decoder of our own")
    tokens: int = Field(32, ge=1, description="The most tokens of a generated answer")
    by: Literal["word", "sentence", "line", "paragraph", "turn", "document"] | None = None
    through_answer: bool = Field(False, description="Pass credit of the answer's own tokens on to the prompt")
    settings: dict[str, Setting] = {}


class ShowAnswer(ExplainAnswer):
    level: Level = "word"


class StartJob(Strict):
    """Long work in the background.

    ``explain``, ``evaluate`` and ``audit`` are about ``texts``; ``words`` counts the words of the run ``run``, and
    ``compare`` compares it with the run ``other``.
    """

    work: Literal["explain", "evaluate", "audit", "words", "compare"]
    model: Name | None = None
    texts: list[Text] = Field([], max_length=1000)
    methods: list[Name] = []
    settings: dict[str, Setting] = {}
    run: str = Field("", max_length=500)
    other: str = Field("", max_length=500)


# ------------------------------------------------------------------------------------------------------ answers


class ServedModel(BaseModel):
    name: str
    kind: Literal["classifier", "regression", "language model", "encoder-decoder"]
    labels: list[str] = Field(description="At most 1,000; none for a vocabulary")
    layers: int
    methods: list[str]


class Prediction(BaseModel):
    model: str
    label: str
    probabilities: dict[str, float] = Field(description="Of all labels, or of the most likely next tokens")


class Agreement(BaseModel):
    one: str
    other: str
    spearman: float | None = Field(
        description="Rank correlation of the scores of words; null if there are fewer than 2"
    )


class Explained(BaseModel):
    prediction: Prediction
    explanations: list[dict[str, Any]] = Field(description="As printed by `salience explain --json`")
    agreement: list[Agreement]


class Flip(BaseModel):
    text: str
    label: str = Field(description="The decision on the edited text")
    probability: float
    changed: int = Field(description="The number of words that differ")


class Edited(BaseModel):
    text: str
    before: Prediction
    after: Prediction
    changes: dict[str, float] = Field(description="The difference of each probability, after minus before")
    flipped: bool


class Compared(BaseModel):
    predictions: list[Prediction]
    explanations: list[list[dict[str, Any]]] = Field(description="For each model")
    agreement: list[Agreement] = Field(description="Between models, for each method")
    distance: float = Field(description="The largest total variation distance between two predictions")


class Attention(BaseModel):
    model: str
    tokens: list[str]
    layers: list[list[list[list[float]]]] = Field(description="Weights by layer, head, query and token")


class JobState(BaseModel):
    id: str
    work: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    done: int
    total: int
    message: str
    result: str | None = Field(description="The address of the result, a page")


class RunFolder(BaseModel):
    name: str
    holds: str
    model: str
    texts: int
    methods: list[str]
    finished: bool


class RunRow(BaseModel):
    row: int
    id: str
    text: str = Field(description="Its beginning")
    label: str | None
    prediction: str
    confidence: float
    wrong: bool | None
    disagreement: float | None = Field(description="Known if the texts are filtered or sorted by it")
    faithfulness: float | None = Field(description="Known if the texts are filtered or sorted by it")


class RunPage(BaseModel):
    total: int = Field(description="The texts that match")
    of: int = Field(description="All texts")
    rows: list[RunRow]


class Report(BaseModel):
    name: str
    title: str
