"""Torch's tensors on GPUs, shown to the native half."""

from typing import Any


class Tensor:
    """A contiguous tensor's bytes, and the stream that worked on them.

    Torch's own ``__cuda_array_interface__`` says nothing of streams, and has no word for some types of elements.
    """

    def __init__(self, tensor: Any) -> None:
        import torch

        self.tensor = tensor
        # 0 is the default stream there, and means nothing here, where that is 1.
        stream = torch.cuda.current_stream(tensor.device).cuda_stream or 1
        self.__cuda_array_interface__ = {
            "shape": (tensor.numel() * tensor.element_size(),),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
            "stream": stream,
        }
