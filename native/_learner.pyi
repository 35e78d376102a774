# Types of the extension module that native/src/learner builds. Addresses are those of contiguous arrays; 0 is none.

from collections.abc import Mapping, Sequence

LEVELS: tuple[str, ...]
OPERATIONS: Mapping[str, int]

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

class Program:
    def __init__(
        self,
        level: int,
        steps: Sequence[tuple[int, Sequence[tuple[int, int]], Sequence[int], Sequence[float], Network | None]],
        slots: int,
    ) -> None: ...
    def run(self, slots: Sequence[int]) -> None: ...

def call(
    level: int,
    operation: int,
    addresses: Sequence[int],
    sizes: Sequence[int],
    numbers: Sequence[float],
    network: Network | None,
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
