"""OpenCV, for whoever computes on images: imported from here only, so that it is set up wherever it is used.

To import it takes 20 ms and 16 MB, so no file that a loader of other data needs imports this.
"""

import cv2 as cv2

# Samples are prepared in parallel: threads within one image would only compete with each other.
cv2.setNumThreads(1)
