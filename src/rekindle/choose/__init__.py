"""Which samples, when, at what weight?"""

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

__all__ = [
    "BatchOrder",
    "EndOfEpoch",
    "EpochPlan",
    "Orders",
    "PlannedSampler",
    "Refresh",
    "SamplerOrders",
    "between_epochs",
    "check_generator",
    "plan_echo",
    "plan_epoch",
    "planned_epochs",
    "planned_orders",
    "stream_orders",
]
