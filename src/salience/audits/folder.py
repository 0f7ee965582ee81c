"""The folder of an audit: what is audited, and the findings so far."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from salience.audits.finding import Finding, Measure
from salience.core.files import complete
from salience.core.stats import Estimate
from salience.errors import BadInput


def claim(file: Path, facts: Mapping[str, Any], what: str = "a different audit") -> None:
    """Write down what an audit is about; refuse a folder that holds the audit of something else."""
    if not file.exists():
        _write(file, facts)
        return
    try:
        before: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise BadInput(f"{file} is damaged: {error}. Delete the folder to start over.") from error
    if other := [name for name, value in facts.items() if before.get(name) != value]:
        raise BadInput(f"{file.parent} holds {what} (changed: {', '.join(other)}); choose another folder")


def saved(file: Path, settings: Mapping[str, Any]) -> Finding | None:
    """A finding from its file, unless it was made with other settings or is damaged: then it is made again."""
    try:
        stored: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return finding_from(stored["finding"]) if stored["settings"] == _plain(settings) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(file: Path, settings: Mapping[str, Any], finding: Finding) -> None:
    _write(file, {"settings": _plain(settings), "finding": asdict(finding)})


def _write(file: Path, facts: Mapping[str, Any]) -> None:
    with complete(file) as out:
        out.write(json.dumps(facts, ensure_ascii=False).encode())


def _plain(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(settings), default=asdict))


def finding_from(stored: Mapping[str, Any]) -> Finding:
    """Restore a finding from its JSON form."""
    measures = tuple(
        Measure(m["name"], Estimate(**m["estimate"]), tuple(m["values"]), m["kind"]) for m in stored["measures"]
    )
    facts: dict[str, Any] = {**stored, "measures": measures}
    return Finding(**facts)
