"""Skips tests in all folders that need a framework which isn't installed."""

from collections.abc import Generator
from doctest import UnexpectedException
from typing import Any

import pytest

_OPTIONAL = {"torch", "triton", "transformers", "mxnet", "cupy", "sympy"}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """Skip a module that imports it."""
    report = yield
    error = report.call.excinfo and report.call.excinfo.value  # type: ignore[attr-defined]
    if missing := _missing(error):
        report.outcome = "skipped"
        report.longrepr = str(collector.path), 0, f"Skipped: {missing} isn't installed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Skip examples of a document that import it."""
    try:
        return (yield)
    except UnexpectedException as failure:
        if missing := _missing(failure.exc_info[1]):
            pytest.skip(f"{missing} isn't installed")
        raise


def _missing(error: Any) -> str | None:
    """Return the name of the optional package that an error is about, or the error that caused it."""
    for each in (error, getattr(error, "__cause__", None)):
        if isinstance(each, ModuleNotFoundError) and each.name in _OPTIONAL:
            return each.name
    return None
