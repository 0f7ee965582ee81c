"""Progress in a log."""

import pytest

from salience.runs.driver import RunProgress
from salience.training.loop import TrainingProgress
from salience.views import progress

FIRST = RunProgress(texts=5, of=30, rejected=1, truncated=0, tokens=0, seconds=0.0, memory=600_000_000, before=5)
LATER = RunProgress(texts=866, of=2000, rejected=0, truncated=0, tokens=35_040, seconds=30.0, memory=600_000_000)


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (FIRST, "explained 5 of 30 · 0.6 GB · 1 rejected\n"),  # no rate is known yet
        (LATER, "explained 866 of 2,000 · 28.9 texts/s · 1,168 tokens/s · 39 s left · 0.6 GB\n"),
    ],
)
def test_a_line_shows_rates_once_they_are_known(now: RunProgress, line: str, capsys: pytest.CaptureFixture[str]):
    with progress.lines(every=0.0) as report:
        report(now)
    assert capsys.readouterr().err == line


def test_a_log_tells_how_far_a_stage_is(capsys: pytest.CaptureFixture[str]):
    with progress.stages(interactive=False, every=0.0) as shown:
        shown.stage("training")
        shown.step(TrainingProgress(epoch=2, step=1500, of=2000, loss=0.25))
        shown.stage("measuring")
        shown.explained(LATER)
    assert capsys.readouterr().err.splitlines() == [
        "training",
        "training: step 1,500 of 2,000 · loss 0.250",
        "measuring",
        "measuring: 866 of 2,000 · 28.9 texts/s · 1,168 tokens/s · 39 s left · 0.6 GB",
    ]
