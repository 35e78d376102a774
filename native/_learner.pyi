# Types of the extension module that native/src/learner builds. Addresses are those of float32 arrays; 0 is none.

from collections.abc import Sequence

LEVELS: tuple[str, ...]

class Network:
    def __init__(self, level: int, widths: Sequence[int], parameters: Sequence[int], relu: bool) -> None: ...
    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    @property
    def saved_floats(self) -> int: ...
    def forward(self, inputs: int, rows: int, saved: int, outputs: int) -> None: ...
    def backward(
        self,
        inputs: int,
        rows: int,
        saved: int,
        output_gradient: int,
        parameter_gradient: int,
        input_gradient: int,
    ) -> None: ...

def choice(
    level: int, logits: int, action: int, rows: int, n: int, log_probabilities: int, chosen: int, entropy: int
) -> None: ...
def choice_back(
    level: int,
    log_probabilities: int,
    action: int,
    entropy: int,
    to_chosen: int,
    to_entropy: int,
    rows: int,
    n: int,
    to_logits: int,
) -> None: ...
def density(
    level: int,
    mean: int,
    log_std: int,
    action: int,
    rows: int,
    n: int,
    standardised: int,
    log_density: int,
    entropy: int,
) -> None: ...
def density_back(
    level: int, standardised: int, log_std: int, to_density: int, rows: int, n: int, to_mean: int, to_log_std: int
) -> None: ...
def surrogate(
    level: int,
    log_probability: int,
    behaviour: int,
    advantage: int,
    rows: int,
    clip_range: float,
    result: int,
    slope: int,
    divergence: int,
    is_clipped: int,
) -> None: ...
def squash(
    level: int, outputs: int, noise: int, rows: int, n: int, low: float, high: float, action: int, log_density: int
) -> None: ...
def squash_back(
    level: int,
    outputs: int,
    noise: int,
    action: int,
    to_action: int,
    to_density: int,
    rows: int,
    n: int,
    low: float,
    high: float,
    to_outputs: int,
) -> None: ...
def norm(level: int, values: int, count: int) -> float: ...
def adam(
    level: int,
    params: int,
    gradient: int,
    mean: int,
    square: int,
    step: int,
    count: int,
    rate: float,
    first_decay: float,
    second_decay: float,
    epsilon: float,
) -> None: ...
