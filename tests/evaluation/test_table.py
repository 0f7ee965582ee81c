"""What an Evaluation says of itself."""

import salience
from shapes import TEXTS, build


def test_an_evaluation_as_a_line_a_frame_and_a_table():
    evaluation = salience.evaluate(
        build("bert"), list(TEXTS[:3]), "gradient", metrics=["comprehensiveness", "sufficiency"]
    )
    assert repr(evaluation).endswith(" on 3 texts: gradient by comprehensiveness, sufficiency>")
    assert len(repr(evaluation)) < 120
    frame = evaluation.to_frame()
    assert len(frame) == 4 * 2
    assert list(frame.columns[:5]) == ["method", "metric", "aspect", "better", "mean"]
    by_hand = sum(evaluation.cells["gradient", "sufficiency"].values) / 3
    (row,) = frame[(frame["method"] == "gradient") & (frame["metric"] == "sufficiency")].to_dict("records")
    assert (row["better"], row["n"]) == ("lower", 3)
    assert abs(row["mean"] - by_hand) < 1e-12
    html = evaluation._repr_html_()
    assert html.count("<tr>") == 1 + 4
    assert "<html" not in html
