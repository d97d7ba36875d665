"""The image steps on whole batches, as torch operations on any device.

The steps themselves compute each sample's parameters (`window`, `amounts`, `choice`, `box` …); the modules
here compute the pixels. Images are N × 3 × height × width bytes up to the conversion, so that each step
rounds where its CPU form rounds. Inputs are never modified.
"""
