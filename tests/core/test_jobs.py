"""Jobs that are run once each: their order, what is kept after a kill, and worker processes."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest
import torch

from salience.core.jobs import in_order, results, run_jobs
from salience.errors import SalienceError


def test_jobs_wait_for_what_they_need():
    needs = {"a": ["teacher"], "c": ["teacher"]}
    assert in_order(["a", "b", "c", "teacher"], needs, ()) == ["b", "teacher", "a", "c"]
    assert in_order(["a", "b", "c"], needs, {"teacher"}) == ["a", "b", "c"]
    with pytest.raises(SalienceError, match="a needs teacher, which is not among the jobs"):
        in_order(["a", "b", "c"], needs, ())


@pytest.mark.slow
def test_a_process_that_dies_is_reported_and_what_was_finished_is_kept(tmp_path: Path):
    jobs = {"one": partial(dict, a=1), "dies": partial(eval, "__import__('os')._exit(3)"), "two": partial(dict, a=2)}
    with pytest.raises(SalienceError, match="use fewer workers"):
        list(run_jobs(jobs, tmp_path, workers=2, needs={"dies": ["one"]}))
    assert json.loads((tmp_path / "one.json").read_text()) == {"a": 1}


def test_jobs_of_this_process_run_on_one_thread_as_those_of_others_do():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        [result] = results({"a": lambda: {"threads": torch.get_num_threads()}}, dict)
        assert result == {"threads": 1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_failing_job_does_not_wait_for_those_beside_it(tmp_path: Path):
    marker = str(tmp_path / "began")
    texts = {
        "long": f"open({marker!r}, 'w') and __import__('time').sleep(300)",
        "fails": f"[None for _ in iter(lambda: __import__('os').path.exists({marker!r}), True)][10**9]",
    }
    code = f"""
from functools import partial
from salience.core.jobs import run_jobs
if __name__ == "__main__":
    for _ in run_jobs({{name: partial(eval, text) for name, text in {texts!r}.items()}}, workers=2):
        pass
"""
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, timeout=120, text=True)
    assert Path(marker).exists()
    assert "IndexError" in done.stderr


@pytest.mark.slow
def test_workers_of_a_killed_process_end_and_what_they_finished_is_kept(tmp_path: Path):
    code = f"""
from functools import partial
from pathlib import Path
from salience.core.jobs import results
if __name__ == "__main__":
    jobs = {{"quick": partial(dict, a=1), "long": partial(eval, "__import__('time').sleep(300)")}}
    for _ in results(jobs, dict, Path({str(tmp_path)!r}), workers=2):
        pass
"""
    (tmp_path / "script.py").write_text(code)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "script.py")])
    wait_for(lambda: (tmp_path / "quick.json").exists())
    workers = psutil.Process(parent.pid).children(recursive=True)
    assert workers
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(worker.is_running() for worker in workers))
    assert json.loads((tmp_path / "quick.json").read_text()) == {"a": 1}


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    began = monotonic()
    while not condition():
        assert monotonic() - began < seconds
        sleep(0.1)
