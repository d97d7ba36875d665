"""Which samples, when, at what weight?"""

from rekindle.choose.choice import Choice, checked
from rekindle.choose.echo import plan_echo
from rekindle.choose.orders import (
    BatchOrder,
    EndOfEpoch,
    Orders,
    planned_epochs,
    planned_orders,
    stream_orders,
)
from rekindle.choose.plan import EpochPlan, plan_epoch
from rekindle.choose.planned_sampler import PlannedSampler
from rekindle.choose.refresh import Refresh
from rekindle.choose.samplers import SamplerOrders, between_epochs, check_generator
from rekindle.choose.scores import Loaded, Measured, Scores, array_kinds

__all__ = [
    "BatchOrder",
    "Choice",
    "EndOfEpoch",
    "EpochPlan",
    "Loaded",
    "Measured",
    "Orders",
    "PlannedSampler",
    "Refresh",
    "SamplerOrders",
    "Scores",
    "array_kinds",
    "between_epochs",
    "check_generator",
    "checked",
    "plan_echo",
    "plan_epoch",
    "planned_epochs",
    "planned_orders",
    "stream_orders",
]
