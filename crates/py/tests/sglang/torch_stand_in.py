"""A stand-in for torch over NumPy: what SGLang's host pools do with tensors in host memory."""

import types

import numpy as np


class dtype:
    def __init__(self, name, of_numpy):
        self.name, self.numpy, self.itemsize = name, np.dtype(of_numpy), np.dtype(of_numpy).itemsize

    def __repr__(self):
        return f"torch.{self.name}"


# NumPy has no bfloat16: its bytes are those of an integer.
DTYPES = {
    name: dtype(name, of_numpy)
    for name, of_numpy in dict(uint8="u1", int16="i2", int32="i4", int64="i8", float16="f2", bfloat16="u2", float32="f4", bool="?").items()
}


class Tensor:
    def __init__(self, array, of):
        self.array, self.dtype = array, of
        self.device = types.SimpleNamespace(type="cpu")

    shape = property(lambda self: self.array.shape)
    ndim = property(lambda self: self.array.ndim)
    nbytes = property(lambda self: self.array.nbytes)

    def data_ptr(self):
        return self.array.__array_interface__["data"][0]

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.dtype.itemsize

    def stride(self, axis=None):
        strides = tuple(length // self.array.itemsize for length in self.array.strides)
        return strides if axis is None else strides[axis]

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def contiguous(self):
        return self if self.is_contiguous() else Tensor(np.ascontiguousarray(self.array), self.dtype)

    def detach(self):
        return self

    def clone(self):
        return Tensor(self.array.copy(), self.dtype)

    def numpy(self):
        return self.array

    def tolist(self):
        return self.array.tolist()

    def item(self):
        return self.array.item()

    def flatten(self):
        return Tensor(self.array.reshape(-1), self.dtype)

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape), self.dtype)

    def view(self, *shape, **named):
        shape = shape or (named["dtype"],)
        if isinstance(shape[0], dtype):
            return Tensor(self.array.view(shape[0].numpy), shape[0])
        return self.reshape(*shape)

    def copy_(self, other):
        self.array[...] = other.array

    def __floordiv__(self, by):
        return Tensor(self.array // by, self.dtype)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, at):
        return Tensor(np.asarray(self.array[at]), self.dtype)

    def __setitem__(self, at, value):
        self.array[at] = value.array if isinstance(value, Tensor) else value


def zeros(*shape, dtype=DTYPES["float32"], device="cpu", pin_memory=False):
    shape = shape[0] if isinstance(shape[0], (tuple, list)) else shape
    return Tensor(np.zeros(shape, dtype.numpy), dtype)


def arange(*span, dtype=DTYPES["int64"], device="cpu"):
    return Tensor(np.arange(*span, dtype=dtype.numpy), dtype)


def from_numpy(array):
    return Tensor(array, next(of for of in DTYPES.values() if of.numpy == array.dtype))


def cat(tensors, dim=0):
    return Tensor(np.concatenate([one.array for one in tensors], dim), tensors[0].dtype)


ATTRIBUTES = {**DTYPES, "Tensor": Tensor, "dtype": dtype, "zeros": zeros, "empty": zeros, "arange": arange, "from_numpy": from_numpy, "cat": cat}
