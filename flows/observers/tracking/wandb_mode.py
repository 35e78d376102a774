"""Tells how W&B is used on this machine, without importing it."""

from __future__ import annotations

import netrc
import os
from urllib.parse import urlsplit

_DISABLED = "disabled"
_OFFLINE = {"offline", _DISABLED, "dryrun"}


def is_disabled() -> bool:
    """Return whether W&B is switched off: it then makes no record, and no files."""
    return os.environ.get("WANDB_MODE") == _DISABLED


def is_offline() -> bool:
    """Return whether W&B sends nothing, as the environment says."""
    return os.environ.get("WANDB_MODE", "online") in _OFFLINE


def has_key() -> bool:
    """Return whether W&B finds a key in the environment or in the file that `wandb login` writes."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(str(host)) is not None
    except (OSError, netrc.NetrcParseError):
        return False
