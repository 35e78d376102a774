"""Schemes under which an S3 bucket is opened through each client."""

from importlib.util import find_spec

import pytest

OBSTORE = pytest.param(
    "s3+obstore",
    marks=pytest.mark.skipif(find_spec("obstore") is None, reason="obstore is not installed; `make test` installs it"),
)
CLIENTS = ("s3", OBSTORE)
