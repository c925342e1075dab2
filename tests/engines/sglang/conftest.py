"""Lets SGLang be imported where torch is built for a CPU alone."""

import torch

try:
    import torchvision  # noqa: F401 - whether it can be imported is the question
except RuntimeError:
    # Its wheel is built for CUDA, so its operators are not there. SGLang wants its image transforms alone.
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
