"""Which samples, when, at what weight?"""

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
from rekindle.choose.samplers import SamplerOrders, between_epochs, check_generator

__all__ = [
    "BatchOrder",
    "EndOfEpoch",
    "EpochPlan",
    "Orders",
    "PlannedSampler",
    "SamplerOrders",
    "between_epochs",
    "check_generator",
    "plan_epoch",
    "planned_epochs",
    "planned_orders",
    "stream_orders",
]
