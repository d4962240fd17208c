"""Objects of LMCache's layouts have no length of their own: one of a wrong length is a miss, and only a buffer that is too short is an error."""

from kvtier import Key, Store, errors


def check(case, spec, put):
    """Over a tier with a layout of LMCache. ``put(n, data)`` replaces chunk ``n`` by another program's object."""
    keys = [Key("m", bytes([n])) for n in range(3)]
    with Store(tiers=[spec]) as store:
        store.save(keys, [bytes([n + 1]) * 8192 for n in range(3)])
    put(0, b"")
    put(1, b"x" * 100)
    store = Store(tiers=[spec])
    case.addCleanup(store.close)
    into = [bytearray(8192) for _ in range(3)]
    case.assertEqual(store.load(keys, into), [None, None, 8192])
    case.assertEqual(bytes(into[2]), b"\3" * 8192)
    with case.assertRaisesRegex(errors.Invalid, "has 8192 bytes and its buffer 4096: pass buffers"):
        store.load(keys, [bytearray(4096) for _ in range(3)])
