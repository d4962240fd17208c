"""Torch tensors on GPUs, in a form that the native module accepts."""

from typing import Any


class Tensor:
    """The bytes of a contiguous tensor, and the stream with pending work on them.

    Torch's own ``__cuda_array_interface__`` names no stream and does not support some element types.
    """

    def __init__(self, tensor: Any) -> None:
        import torch

        self.tensor = tensor
        # Torch numbers the default stream 0; the interface numbers it 1.
        stream = torch.cuda.current_stream(tensor.device).cuda_stream or 1
        self.__cuda_array_interface__ = {
            "shape": (tensor.numel() * tensor.element_size(),),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
            "stream": stream,
        }
