"""Baseline JPEGs decoded within a box of pixels, by compiled kernels: the same pixels as libjpeg-turbo's."""
