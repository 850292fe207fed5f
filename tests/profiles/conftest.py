"""What tests of the profiles share: frameworks on a CPU, studies without a process, small cases in a file."""

import json

import pytest

from einops_fast.profiles import frameworks, study
from einops_fast.profiles.overhead import study as overhead
from einops_fast.profiles.reporting.records import Ceiling, Machine, Options, Row
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.timing.clocks import HostClock


@pytest.fixture
def numpy():
    return frameworks.load("numpy", "cpu", 1)


@pytest.fixture
def torch():
    pytest.importorskip("torch")
    return frameworks.load("torch", "cpu", 1)


@pytest.fixture(autouse=True)
def _ceilings(monkeypatch):
    """To measure them, or imports, takes longer than small cases; nobody reads a time here."""
    monkeypatch.setattr(study, "measure_ceilings", lambda *arguments: Ceiling(bandwidth=1e10, flops=1e11))
    monkeypatch.setattr(overhead, "_import", lambda rounds: 1.0)
    monkeypatch.setattr(HostClock, "sample_seconds", 0.0)


@pytest.fixture
def measured():
    """The rows of a study in a few rounds, by direction, case and way; the later ones count."""

    def measured(name, framework, only="", **options):
        found = STUDIES[name].measure(framework, Options(only=only, quick=True, **options))
        return {record.key[2:]: record for record in found if isinstance(record, Row)}

    return measured


@pytest.fixture
def mine(tmp_path):
    """A file of small cases."""
    path = tmp_path / "mine.json"
    cases = [
        {"name": "words", "equation": "batch i d, batch j d -> batch i j", "shapes": [[2, 3, 4], [2, 5, 4]]},
        {"equation": "...i,i", "shapes": [[2, 3], [3]]},
    ]
    path.write_text(json.dumps(cases))
    return path


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command without processes: its status, the kept results by study, and what was printed."""
    pytest.importorskip("rich")
    from einops_fast.profiles import __main__ as command
    from einops_fast.profiles import compare
    from einops_fast.profiles.reporting.results import read_result

    def worker(name, framework, options):
        yield Machine("Some CPU", 1, {"numpy": "1"}, framework=framework, environment={"CPU": "some"})
        yield from STUDIES[name].measure(frameworks.load(framework, "cpu", 1), options)

    monkeypatch.setattr(compare, "run_worker", worker)

    def run(*arguments):
        status = command.main([*arguments, "--quick", "--device", "cpu", "--out", str(tmp_path / "out")])
        results = map(read_result, (tmp_path / "out").glob("*.json"))
        return status, {result.study: result for result in results}, capsys.readouterr().out

    return run
