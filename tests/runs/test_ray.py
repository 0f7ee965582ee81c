"""The Ray engine on a cluster of several local nodes: the parts equal those of the local engine."""

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import psutil
import pyarrow.parquet as pq
import pytest

import salience
from salience.core.target import Target
from salience.errors import BadInput, BadModel, SalienceError
from salience.models.loading import Checkpoint
from salience.runs import driver as runner
from salience.runs.explaining import Explaining
from salience.runs.parts import About, Advance, Part

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from salience.runs.engines import ray as engine  # noqa: E402

pytestmark = [
    # Ray Data warns about its own settings.
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\.data\.context"),
    # All tests share one cluster, even when pytest runs in several processes.
    pytest.mark.xdist_group("ray"),
]

ROWS, PER_PART = 260, 10
WORDS = ("the", "a", "film", "plot", "actor", "was", "not", "very", "quite", "good", "bad", "dull", "moving", "and")
FAST = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""Fast detection of lost nodes."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of many lengths, and one invalid row."""
    rng = random.Random(0)
    lines = [json.dumps({"text": " ".join(rng.choices(WORDS, k=rng.randint(3, 40)))}) for _ in range(ROWS)]
    lines[37] = json.dumps({"text": 7})
    file = tmp_path_factory.mktemp("data") / "sentences.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="module")
def cluster():
    """A head without CPUs and two nodes with one each, so that two workers are on two nodes."""
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 2**27, "_system_config": FAST}
    nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        nodes.add_node(num_cpus=1, object_store_memory=2**27)
    yield nodes
    nodes.shutdown()


def make_plan(data: Path, method="input_x_gradient") -> runner.RunPlan:
    return runner.plan_run(Explaining((method,), {}, Target()), Checkpoint("sentiment_bilstm"), data, PER_PART, None)


def slowly(seconds: float):
    """A slow method, defined locally so that it is pickled by value."""

    def slow_input_x_gradient(model, batch, target, /):
        from salience.methods import input_x_gradient

        time.sleep(seconds)
        return input_x_gradient(model, batch, target)

    return slow_input_x_gradient


def parts(run) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((run.path / "parts").iterdir())}


def numbers(run) -> list[int]:
    return [n for file in (run.path / "parts").glob("*.parquet") for n in pq.read_table(file)["row"].to_pylist()]


def actors() -> list[psutil.Process]:
    """The processes of this test's clusters that run a worker."""
    return [p for p in processes() if "MapWorker" in "".join(_command(p))]


def processes() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def until(true, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.1)
    return true()


def test_parts_equal_those_of_the_local_engine_without_side_effects(cluster, data, tmp_path, capfd):
    options = {"workers": 2, "rows_per_part": PER_PART}
    # Two processes with one thread each, as under Ray: rounding depends on the number of threads.
    expected = salience.explain_data("sentiment", data, tmp_path / "local", "input_x_gradient", **options)
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    capfd.readouterr()
    options |= {"engine": "ray", "address": cluster.address}
    run = salience.explain_data("sentiment", data, tmp_path / "ray", "input_x_gradient", **options)
    assert parts(run) == parts(expected)
    assert len(parts(run)) == ROWS / PER_PART
    assert [r.number for r in run.rejected()] == [37]
    assert capfd.readouterr() == ("", "")
    assert not ray.is_initialized()
    assert dict(os.environ) == environment
    assert signal.getsignal(signal.SIGTERM) is handler
    assert until(lambda: not actors())


@pytest.mark.slow
def test_the_address_from_the_environment_and_progress_before_each_part(cluster, data, monkeypatch):
    plan = make_plan(data)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    events = list(engine.cluster(plan.job, plan.shards[:5], None, None))
    assert [type(e) for e in events] == [Advance, Part] * 5
    assert {e.shard for e in events[1::2]} == set(plan.shards[:5])
    for advance, part in zip(events[::2], events[1::2], strict=True):
        assert advance == Advance(part.about.texts, part.about.tokens)
        assert About.from_json(pq.read_schema(BytesIO(part.data)).metadata[b"salience"]) == part.about


@pytest.mark.slow
def test_a_connection_of_the_caller_is_used_and_left_open(cluster, data):
    plan = make_plan(data)
    with ray.init(cluster.address, log_to_driver=False, logging_level="ERROR"):
        with pytest.raises(BadInput, match=r"is connected to the Ray cluster at .*, not at 127\.0\.0\.1:1;"):
            next(engine.cluster(plan.job, plan.shards, 1, "127.0.0.1:1"))
        events = engine.cluster(plan.job, plan.shards, 1, cluster.address)
        assert isinstance(next(events), Advance)
        events.close()
        assert ray.is_initialized()
        assert until(lambda: not actors())
        assert {t.name for t in threading.enumerate() if "StreamingExecutor" in t.name} == set()


@pytest.mark.slow
def test_an_error_in_the_driver_ends_the_run_even_if_the_traceback_is_kept(cluster, data, tmp_path):
    def report(progress: runner.RunProgress) -> None:
        raise ZeroDivisionError

    options = {"engine": "ray", "address": cluster.address, "rows_per_part": PER_PART, "report": report}
    with pytest.raises(ZeroDivisionError) as kept:
        salience.explain_data("sentiment_bilstm", data, tmp_path / "run", "input_x_gradient", **options)
    assert kept
    assert not ray.is_initialized()
    assert until(lambda: not actors())


def test_errors_of_a_worker_are_raised_unchanged(cluster, data):
    def broken(model, batch, target, /):
        raise ValueError("two\nlines")

    plan = make_plan(data, broken)
    for job, error, message in [
        (replace(plan.job, model=Checkpoint("no/such-model")), BadModel, "^[^\n]*no/such-model[^\n]*$"),
        (plan.job, RuntimeError, "^ValueError in a worker: two lines$"),
    ]:
        with pytest.raises(error, match=message):
            list(engine.cluster(job, plan.shards, 1, cluster.address))


def test_a_method_that_cannot_be_pickled_is_refused(cluster, data):
    lock = threading.Lock()

    def bound(model, batch, target, /):
        assert lock

    plan = make_plan(data, bound)
    with pytest.raises(BadInput, match="cannot be sent to the workers"):
        next(engine.cluster(plan.job, plan.shards, 1, cluster.address))


@pytest.mark.slow
def test_a_shard_that_kills_its_workers_is_given_up(cluster, data):
    def fatal(model, batch, target, /):
        os._exit(1)

    plan = make_plan(data, fatal)
    with pytest.raises(SalienceError, match=rf"^{engine.TRIES} workers died on rows 10 to 19 of the data"):
        list(engine.cluster(plan.job, plan.shards[1:2], 1, cluster.address))


@pytest.mark.parametrize("address", ["127.0.0.1:{closed}", "nowhere", "no-such-host.invalid:6379", "ray://127.0.0.1:1"])
def test_a_missing_cluster_is_named(address, data):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    where = address.format(closed=closed)
    with pytest.raises(BadInput, match=f"there is no Ray cluster at '{where}'"):
        next(engine.cluster(make_plan(data).job, make_plan(data).shards, 1, where))


def test_a_cluster_that_does_not_start_in_time_is_a_plain_error():
    def init(*_, **__):
        raise Exception("The current node timed out during startup.")

    with pytest.raises(
        SalienceError, match=r"could not start .* timed out during startup\. Run the same command again"
    ):
        engine._connect(SimpleNamespace(init=init), engine.HERE, 1)


def test_zero_workers_are_refused(data):
    with pytest.raises(BadInput, match="workers=0"):
        next(engine.cluster(make_plan(data).job, make_plan(data).shards, 0, None))


def test_without_ray_the_error_says_how_to_install_it(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'salience\[ray\]'"):
        next(engine.cluster(make_plan(data).job, make_plan(data).shards, 1, None))


@pytest.mark.slow
def test_an_evaluation_on_the_cluster_gives_the_table_of_one_process(cluster, data, tmp_path):
    options = {"metrics": ["comprehensiveness", "hiding_area"], "rows_per_part": PER_PART, "limit": 2 * PER_PART}
    asked = ("sentiment_bilstm", data)
    here = salience.evaluate_data(*asked, tmp_path / "here", ["attention", "gradient"], **options)
    options |= {"engine": "ray", "address": cluster.address}
    there = salience.evaluate_data(*asked, tmp_path / "there", ["attention", "gradient"], **options)
    assert there.texts == here.texts == 2 * PER_PART
    for key, cell in here.cells.items():
        assert there.cells[key].estimate.mean == pytest.approx(cell.estimate.mean, abs=1e-6)


@pytest.mark.slow
def test_shards_are_sent_again_after_a_failure_of_ray(cluster, data, monkeypatch):
    plan, started, rows = make_plan(data), [], engine._rows

    def failing(ray, job, shards, *others):
        started.append(len(shards))
        yield from rows(ray, job, shards[:2], *others)
        raise ray.exceptions.ActorDiedError

    monkeypatch.setattr(engine, "_rows", failing)
    events = list(engine.cluster(plan.job, plan.shards[:4], 1, cluster.address))
    assert started == [4, 2]
    assert sorted(e.shard.number for e in events if isinstance(e, Part)) == [0, 1, 2, 3]


def test_a_cluster_that_only_fails_is_given_up(cluster, data, monkeypatch):
    def failing(ray, *_):
        raise ray.exceptions.ActorDiedError
        yield

    plan = make_plan(data)
    monkeypatch.setattr(engine, "_rows", failing)
    with pytest.raises(SalienceError, match=rf"^the cluster failed {engine.TRIES} times: ActorDiedError: .* to resume"):
        list(engine.cluster(plan.job, plan.shards, 1, cluster.address))


@pytest.mark.slow
def test_a_lost_node_loses_no_rows(cluster, data, tmp_path):
    """The last test of the cluster: Ray Data keeps an actor of its own on the node that a driver first met, and as all
    nodes of this cluster are on one machine, that may be the node that is lost."""
    killed = []

    def report(progress: runner.RunProgress) -> None:
        if progress.texts and not killed:
            raylets = {p.pid for actor in actors() for p in actor.parents()}
            killed.append(node := next(n for n in cluster.worker_nodes if raylet(n) in raylets))
            cluster.remove_node(node, allow_graceful=False)

    options = {"method": slowly(0.1), "rows_per_part": PER_PART}
    expected = salience.explain_data("sentiment_bilstm", data, tmp_path / "local", **options)
    options |= {"engine": "ray", "address": cluster.address, "workers": 2, "report": report}
    run = salience.explain_data("sentiment_bilstm", data, tmp_path / "ray", **options)
    assert killed
    assert parts(run) == parts(expected)
    assert sorted(numbers(run)) == [n for n in range(ROWS) if n != 37]


def raylet(node) -> int:
    """The process on a node that starts its workers."""
    return node.all_processes["raylet"][0].process.pid


@pytest.mark.slow
def test_a_cluster_started_by_a_run_is_shut_down(data):
    """After the tests of the other cluster: Ray Data fails on that cluster once a process has started one itself."""
    plan, before = make_plan(data), processes()
    events = engine.cluster(plan.job, plan.shards, 1, None)
    assert isinstance(next(events), Advance)
    assert ray.cluster_resources()["CPU"] == 1
    assert (ours := processes() - before)
    events.close()
    assert not ray.is_initialized()
    assert until(lambda: not ours & processes())
