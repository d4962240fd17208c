"""A device that hangs: a file system over a loop device, whose transfers stand still for as long as a test wants.

The kernel holds them back: by a limit of one byte a second for the processes of this cgroup (cgroup v1), or by a device-mapper target that is
suspended. Both need root.
"""

import os
import shutil
import subprocess
import tempfile
import unittest

BLKIO = "/sys/fs/cgroup/blkio"
LIMITS = ("read_bps_device", "write_bps_device", "read_iops_device", "write_iops_device")


class Device:
    """The mounted device; ``path`` is its file system."""

    def __init__(self, bytes=256 << 20):
        if os.geteuid() != 0:
            raise unittest.SkipTest("a device that hangs needs root: mount, loop devices and cgroups")
        for tool in ("losetup", "mkfs.ext4", "mount", "umount"):
            if shutil.which(tool) is None:
                raise unittest.SkipTest(f"a device that hangs needs {tool}")
        self.dir = tempfile.mkdtemp(prefix="kvtier-hang-")
        self.path = os.path.join(self.dir, "mnt")
        os.mkdir(self.path)
        self.undo = [lambda: shutil.rmtree(self.dir, ignore_errors=True)]
        try:
            self.make(bytes)
        except (subprocess.CalledProcessError, OSError) as e:
            self.close()
            said = getattr(e, "stderr", None)
            raise unittest.SkipTest(f"a device that hangs cannot be had here: {e}: {said}") from e
        except unittest.SkipTest:
            self.close()
            raise

    def make(self, bytes):
        image = os.path.join(self.dir, "image")
        with open(image, "wb") as file:
            file.truncate(bytes)
        device = run("losetup", "--find", "--show", image)
        self.undo.append(lambda: run("losetup", "--detach", device))
        self.throttle = throttle_of(device)
        self.mapped = None
        if self.throttle is None:
            device = self.mapped = self.map(device, bytes)
        else:
            # A test that was killed leaves its limit to the next device of this number.
            self.go_on()
        run("mkfs.ext4", "-q", "-F", "-m", "0", device)
        # No background thread may find a table that must be written first.
        run("mount", "-o", "noatime,noinit_itable", device, self.path)
        self.undo.append(lambda: run("umount", self.path))

    def map(self, device, bytes):
        if shutil.which("dmsetup") is None:
            raise unittest.SkipTest("a device that hangs needs the blkio cgroup (v1) or dmsetup")
        name = f"kvtier-hang-{os.getpid()}"
        run("dmsetup", "create", name, "--table", f"0 {bytes // 512} linear {device} 0")
        self.undo.append(lambda: run("dmsetup", "remove", name))
        return f"/dev/mapper/{name}"

    def hang(self):
        """From now on no transfer ends. Children that exist or are started later hang too."""
        if self.throttle is not None:
            self.limit(1)
        else:
            run("dmsetup", "suspend", "--nolockfs", "--noflush", self.mapped)

    def go_on(self):
        """What was held back goes on."""
        if self.throttle is not None:
            self.limit(0)
        else:
            run("dmsetup", "resume", self.mapped)

    def limit(self, per_second):
        folder, number = self.throttle
        for limit in LIMITS:
            with open(os.path.join(folder, f"blkio.throttle.{limit}"), "w") as file:
                file.write(f"{number} {per_second}")

    def close(self):
        if self.undo and getattr(self, "throttle", None) is not None:
            self.go_on()
        while self.undo:
            self.undo.pop()()


def throttle_of(device):
    """The folder of this process's cgroup with the limits, and the number of the device; ``None`` without such a cgroup."""
    with open("/proc/self/cgroup") as file:
        own = [line.rstrip("\n").split(":", 2) for line in file]
    paths = [path for _, controllers, path in own if "blkio" in controllers.split(",")]
    if not paths:
        return None
    folder = BLKIO + paths[0].rstrip("/")
    if not all(os.access(os.path.join(folder, f"blkio.throttle.{limit}"), os.W_OK) for limit in LIMITS):
        return None
    number = os.stat(device).st_rdev
    return folder, f"{os.major(number)}:{os.minor(number)}"


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
