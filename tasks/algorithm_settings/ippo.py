"""Settings of IPPO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.algorithm_settings.mappo import SeveralAgentsSettings
from tasks.settings import at


class IPPOSettings(SeveralAgentsSettings):
    """IPPO: several agents, each learning from its own observation alone."""

    name: Literal["ippo"] = Field("ippo", description="The algorithm.", json_schema_extra=at(0))
