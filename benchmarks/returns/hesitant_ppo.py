"""PPO whose learners pause now and then within a minibatch, as on machines that others use too."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.tasks.model.algorithms.ppo import PPO

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Loss
    from penstock.tasks.specs import LossInputs, Params

PAUSE_SECONDS, PAUSE_SHARE = 0.05, 0.2
_random = random.Random(os.getpid())


class HesitantPPO(PPO):
    """PPO that sleeps for 50 ms in a fifth of the minibatches, in each process in others."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The objectives; the first one pauses."""
        first, *rest = super().losses

        def paused(params: Params, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
            # A captured loss is not called again, and would not pause. A number that leaves torch prevents the capture.
            inputs["advantage"][0].item()
            if _random.random() < PAUSE_SHARE:
                time.sleep(PAUSE_SECONDS)
            return first.function(params, inputs)

        return (replace(first, function=paused), *rest)
