"""Who does it, and what if they die?"""

from rekindle.run.bad_samples import BadSample, BadSamples, OnError
from rekindle.run.runner import Runner, StreamRunner, Work, start
from rekindle.run.worker import Job

__all__ = ["BadSample", "BadSamples", "Job", "OnError", "Runner", "StreamRunner", "Work", "start"]
