"""The stages that need Ray, as other parts of the package ask for them."""

from oscbench.distributed.execution import Execution
from oscbench.distributed.features_stage import ensure_features
from oscbench.distributed.training_stage import default_config, ensure_training

__all__ = ["Execution", "default_config", "ensure_features", "ensure_training"]
