"""Where the profiler writes."""

from einops_fast.profiles.reporting import results
from einops_fast.profiles.reporting.results import RESULTS, reports_folder


def test_reports_replace_no_kept_results(tmp_path, monkeypatch) -> None:
    """Nor are they written into an installed package."""
    assert reports_folder() != RESULTS
    monkeypatch.setattr(results, "ROOT", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    assert reports_folder().resolve().parent == tmp_path.resolve()
    monkeypatch.setattr(results, "ROOT", tmp_path)
    (tmp_path / "setup.cfg").touch()
    assert reports_folder() == tmp_path / "profiles" / "reports"
