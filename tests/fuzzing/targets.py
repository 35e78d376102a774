"""Every decoder of stored or foreign bytes, by name."""

from .arrow_targets import ARROW_TARGETS
from .block_targets import BLOCK_TARGETS
from .json_targets import JSON_TARGETS
from .name_targets import NAME_TARGETS
from .socket_targets import SOCKET_TARGETS
from .tensor_targets import TENSOR_TARGETS

TARGETS = {
    target.name: target
    for target in (
        *JSON_TARGETS,
        *NAME_TARGETS,
        *TENSOR_TARGETS,
        *ARROW_TARGETS,
        *BLOCK_TARGETS,
        *SOCKET_TARGETS,
    )
}
