"""Tests that run over the stand-in for the driver's library; `test_device.py` starts them. Without torch: a few classes own GPU memory."""

import asyncio
import ctypes
import gc
import os
import sys
import weakref

from kvtier import Key, Store, errors

CUDA = ctypes.CDLL("libcuda.so.1")
LEN = (1 << 20) + 777


def cuda(name, *args):
    code = getattr(CUDA, name)(*args)
    assert code == 0, f"{name}: {code}"


class Gpu:
    """The primary context of GPU 0, as torch has it."""

    def __init__(self):
        context = ctypes.c_size_t()
        cuda("cuInit", 0)
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        cuda("cuCtxSetCurrent", context)

    def close(self):
        cuda("cuCtxSetCurrent", ctypes.c_size_t(0))
        cuda("cuDevicePrimaryCtxRelease_v2", 0)

    def stream(self):
        stream = ctypes.c_size_t()
        cuda("cuStreamCreate", ctypes.byref(stream), 1)
        return stream


class Memory:
    """An allocation on the GPU."""

    def __init__(self, size, data=None):
        self.size = size
        self.at = ctypes.c_uint64()
        cuda("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_size_t(size))
        if data is not None:
            cuda("cuMemcpyHtoDAsync_v2", self.at, data, ctypes.c_size_t(size), ctypes.c_size_t(0))
            cuda("cuStreamSynchronize", ctypes.c_size_t(0))

    def read(self):
        into = ctypes.create_string_buffer(self.size)
        cuda("cuMemcpyDtoHAsync_v2", into, self.at, ctypes.c_size_t(self.size), ctypes.c_size_t(0))
        cuda("cuStreamSynchronize", ctypes.c_size_t(0))
        return into.raw

    def set(self, byte, stream):
        cuda("cuMemsetD8Async", self.at, ctypes.c_ubyte(byte), ctypes.c_size_t(self.size), stream)

    def free(self):
        cuda("cuMemFree_v2", self.at)


class Array:
    """It as an array of bytes."""

    def __init__(self, memory, **more):
        self.memory = memory
        data = (memory.at.value, False)
        self.__cuda_array_interface__ = {"shape": (memory.size,), "typestr": "|u1", "data": data, "version": 3, **more}


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


NEW = ctypes.pythonapi.PyCapsule_New
NEW.restype, NEW.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Dl:
    """It as a tensor of DLPack's, two axes of 32-bit elements, that begins one page behind its pointer."""

    gone = 0
    destroy = DESTRUCTOR(lambda capsule: Dl.let_go())

    def __init__(self, memory, offset=0, strides=None, device=2):
        self.memory, self.device, self.asked = memory, device, []
        columns = 64
        rows = memory.size // 4 // columns
        self.shape = (ctypes.c_int64 * 2)(rows, columns)
        self.strides = strides and (ctypes.c_int64 * 2)(*strides)
        self.tensor = DlTensor(memory.at.value - offset, device, 0, 2, 2, 32, 1, self.shape, self.strides, offset)

    @classmethod
    def let_go(cls):
        cls.gone += 1

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        return NEW(ctypes.addressof(self.tensor), b"dltensor", ctypes.cast(Dl.destroy, ctypes.c_void_p))


def store(**more):
    tier = {"type": "gds", "path": os.environ["KVTIER_PLACE"], "bytes": 1 << 26, "free_min": 0}
    return Store(tiers=[{**tier, "piece": "64KiB", "buffers": "1MiB", "staging": "4MiB", **more}])


def key(n):
    return Key("org/model", n.to_bytes(8, "big"))


def round_trip():
    data = os.urandom(LEN)
    source, target = Memory(LEN, data), Memory(LEN + 100, b"\0" * (LEN + 100))
    with store() as tiers:
        assert tiers.save([key(1)], [Array(source)]) == [True]
        assert tiers.save([key(1)], [Array(source)]) == [False]
        assert tiers.load([key(1), key(2)], [Array(target), Array(source)]) == [LEN, None]
        assert target.read() == data + b"\0" * 100
        into = bytearray(LEN)
        assert tiers.load([key(1)], [into]) == [LEN] and bytes(into) == data
        # Saved from the host, loaded on the GPU, by a loop; of elements of two bytes, by a shape of three axes.
        halves = os.urandom(LEN - LEN % 16)
        tiers.save([key(3)], [halves])
        wide = Array(target, shape=(2, len(halves) // 16, 4), typestr="<f2", strides=(len(halves) // 2, 8, 2))
        assert asyncio.run(tiers.aload([key(3)], [wide])) == [len(halves)]
        assert target.read()[: len(halves)] == halves
        assert tiers.status().counters["fetched_bytes"] == LEN
    source.free()
    target.free()


def encoded():
    path = os.environ["KVTIER_PLACE"] + ".key"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(os.urandom(32).hex())
    master = {"key_file": path, "key_id": 7}
    # Half of it is compressible.
    data = os.urandom(LEN // 2) + b"\0" * (LEN - LEN // 2)
    source, target = Memory(LEN, data), Memory(LEN + 100, b"\0" * (LEN + 100))
    with store(encode=["zstd", {"name": "aes-256-gcm", **master}], encode_bytes="8MiB") as tiers:
        assert tiers.save([key(1)], [Array(source)]) == [True]
        assert tiers.load([key(1)], [Array(target)]) == [LEN]
        assert target.read() == data + b"\0" * 100
        counters = tiers.status().counters
        assert counters["encoded_raw_bytes"] == counters["fetched_bytes"] == counters["uploaded_bytes"] == LEN
        assert counters["encoded_stored_bytes"] < 0.6 * LEN, counters
    # Another process that has the key loads it, into GPU and host memory; one without it misses.
    with store(decode_keys=[master]) as tiers:
        into = bytearray(LEN)
        assert tiers.load([key(1), key(1)], [Array(target), into]) == [LEN, LEN]
        assert bytes(into) == data
    with store() as tiers:
        assert tiers.load([key(1)], [Array(target)]) == [None]
        assert tiers.status().counters["misses_key"] == 1
    refused(store, "lmcache-gds", encode=["zstd"], layout="lmcache-gds", shape="2x2x256x8")
    source.free()
    target.free()


def streams(gpu):
    stream = gpu.stream()
    with store() as tiers:
        # Late by far when it is handed in: what is saved is what the stream leaves, on a stream of one's own and on the default one.
        for n, (handle, said) in enumerate([(stream, stream.value), (ctypes.c_size_t(0), 1)]):
            memory = Memory(LEN, b"\0" * LEN)
            for byte in (1, 2, 0x5A + n):
                memory.set(byte, handle)
            assert tiers.save([key(n)], [Array(memory, stream=said)]) == [True]
            into = bytearray(LEN)
            tiers.load([key(n)], [into])
            assert into == bytes([0x5A + n]) * LEN, into[:8]
            # And what is loaded comes after what the stream still had to do there.
            for byte in (1, 2, 3):
                memory.set(byte, handle)
            assert tiers.load([key(n)], [Array(memory, stream=said)]) == [LEN]
            assert memory.read() == bytes([0x5A + n]) * LEN
            memory.free()
        # Before version 3 the interface has no stream: the default stream is used.
        memory = Memory(LEN, b"\0" * LEN)
        for byte in (1, 2, 7):
            memory.set(byte, ctypes.c_size_t(0))
        tiers.save([key(9)], [Array(memory, version=2)])
        into = bytearray(LEN)
        tiers.load([key(9)], [into])
        assert into == bytes([7]) * LEN
        memory.free()
    cuda("cuStreamDestroy_v2", stream)


def refused(call, what, *args, **more):
    try:
        call(*args, **more)
    except (ValueError, errors.Error) as e:
        assert what in str(e), e
        return
    raise AssertionError(f"taken, and should be refused: {what}")


def refusals():
    memory = Memory(LEN, os.urandom(LEN))
    at = memory.at.value
    with store() as tiers:
        for what, more in [
            ("not contiguous", {"shape": (16, 16), "strides": (32, 1)}),
            ("not contiguous", {"shape": (16, 16), "strides": (1, 16)}),
            ("of the type", {"typestr": "?"}),
            ("no bytes", {"shape": (0,)}),
            ("shape", {"shape": (-4,)}),
            ("shape", {"shape": (1 << 62, 4)}),
            ("mask", {"mask": object()}),
            ("stream is 0", {"stream": 0}),
            ("past their allocation", {"shape": (LEN + (1 << 20),)}),
            ("not memory of the NVIDIA driver", {"data": (4096, False)}),
            ("has no data", {"data": None}),
        ]:
            refused(tiers.save, what, [key(1)], [Array(memory, **more)])
        refused(tiers.load, "read-only", [key(1)], [Array(memory, data=(at, True))])
        assert tiers.save([key(1)], [Array(memory, data=(at, True))]) == [True], "read-only is enough to save"
        # An axis of one element has no stride to speak of.
        assert tiers.save([key(2)], [Array(memory, shape=(1, LEN), strides=(7, 1))]) == [True]
        refused(tiers.load, "host and GPU memory", [key(1)], [(bytearray(10), Array(memory))])
    with Store(tiers=[{"type": "host", "bytes": 1 << 24}]) as host:
        refused(host.save, "CPU", [key(1)], [Array(memory)])
    memory.free()


def capsules():
    size = 64 * 4 * 1000
    data = os.urandom(size)
    source, target = Memory(size, data), Memory(size)
    with store() as tiers:
        tensor = Dl(source, offset=4096)
        assert tiers.save([key(1)], [tensor]) == [True]
        assert tensor.asked == [1], "the consumer's stream is passed"
        into = Dl(target, strides=(64, 1))
        assert tiers.load([key(1)], [into]) == [size]
        assert target.read() == data
        refused(tiers.load, "not contiguous", [key(1)], [Dl(target, strides=(128, 1))])
        refused(tiers.save, "bytes-like", [key(2)], [Dl(target, device=1)])
        alive = weakref.ref(into)
        del into, tensor
        # The next call releases the returned objects.
        asyncio.run(tiers.aload([key(5)], [bytearray(10)]))
        gc.collect()
        assert Dl.gone == 3, Dl.gone
        assert alive() is None
    source.free()
    target.free()


def main(name):
    gpu = Gpu()
    body = globals()[name]
    body(gpu) if name == "streams" else body()
    gc.collect()
    gpu.close()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
