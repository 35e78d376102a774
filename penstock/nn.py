"""Pure functions of torch that algorithms are written with: layers, distributions, returns, optimizers.

They take parameters as tensors by name and hold no state. Import this module by its name; `import penstock` alone does
not load it, nor torch.
"""

from penstock.tasks.model.nn.action_values import (
    choice_error,
    dueling_quantiles,
    dueling_values,
    quantile_error,
    quantile_means,
    quantile_targets,
)
from penstock.tasks.model.nn.agent_networks import AgentNetwork, agent_inputs, agent_means
from penstock.tasks.model.nn.distributions import (
    best,
    choice_probability,
    choose,
    displace,
    require_choice,
    restrict,
    vector_probability,
)
from penstock.tasks.model.nn.functional import module_call, module_parameters, seeded_module
from penstock.tasks.model.nn.layers import (
    gru,
    gru_sequence,
    init_gru,
    init_mlp,
    init_nature,
    init_noise,
    init_residual,
    init_small,
    linear,
    mlp,
    nature,
    noise_numbers,
    noisy_mlp,
    residual,
    small,
)
from penstock.tasks.model.nn.network import Network
from penstock.tasks.model.nn.normalizers import Normalizer, Normalizers
from penstock.tasks.model.nn.optimizers import (
    RandomStart,
    clip_norm,
    corrections,
    init_adam,
    minibatches_before,
    step_adam,
)
from penstock.tasks.model.nn.returns import (
    Transitions,
    VTrace,
    generalized_advantages,
    successor_values,
    transitions,
    vtrace,
)
from penstock.tasks.model.nn.squashed import (
    bounded,
    from_bounds,
    jittered,
    joined,
    multiplied,
    repeated_exp,
    smaller,
    squashed_sample,
    within_bounds,
)
from penstock.tasks.model.nn.surrogate import advantage_sums, clipped_surrogate, value_error
from penstock.tasks.model.nn.value_learning import ValueNormalizer, limited_value_error

__all__ = [
    "AgentNetwork",
    "Network",
    "Normalizer",
    "Normalizers",
    "RandomStart",
    "Transitions",
    "VTrace",
    "ValueNormalizer",
    "advantage_sums",
    "agent_inputs",
    "agent_means",
    "best",
    "bounded",
    "choice_error",
    "choice_probability",
    "choose",
    "clip_norm",
    "clipped_surrogate",
    "corrections",
    "displace",
    "dueling_quantiles",
    "dueling_values",
    "from_bounds",
    "generalized_advantages",
    "gru",
    "gru_sequence",
    "init_adam",
    "init_gru",
    "init_mlp",
    "init_nature",
    "init_noise",
    "init_residual",
    "init_small",
    "jittered",
    "joined",
    "limited_value_error",
    "linear",
    "minibatches_before",
    "mlp",
    "module_call",
    "module_parameters",
    "multiplied",
    "nature",
    "noise_numbers",
    "noisy_mlp",
    "quantile_error",
    "quantile_means",
    "quantile_targets",
    "repeated_exp",
    "require_choice",
    "residual",
    "restrict",
    "seeded_module",
    "small",
    "smaller",
    "squashed_sample",
    "step_adam",
    "successor_values",
    "transitions",
    "value_error",
    "vector_probability",
    "vtrace",
    "within_bounds",
]
