"""One audit for all tests of the page."""

import pytest
from reviewed import make_audit

from crcl.auditing.result import Audit


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """An audit of drawn scenes; who writes verdicts on it forgets those of other tests first, by `fresh`."""
    return make_audit(tmp_path_factory.mktemp("served"))
