"""The image steps on whole batches, as torch operations on any device.

What a step does to a sample follows from the step's own arithmetic (`window`, `amounts`, `choice`, `box` …);
here is only what becomes of the pixels. Images are N × 3 × height × width bytes up to the conversion, so that
each step rounds where its CPU form rounds. What is given is never changed.
"""
