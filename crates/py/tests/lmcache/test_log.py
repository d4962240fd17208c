"""kvtier's log lines beside LMCache's own: the same handler, form and level."""

import json
import os
import re
import subprocess
import sys
import unittest

from scene import Case

SCRIPT = """
import json, sys
from scene import adapter
a = adapter(json.loads(sys.argv[1]))
a.delete([])
from kvtier import _log
_log.batch_error("store", ("Full", "no space"))
a.close()
"""


class Lines(Case):
    def lines(self, spec, **environment):
        path = os.pathsep.join([os.path.dirname(__file__), os.environ["PYTHONPATH"]])
        environment = {**os.environ, "PYTHONPATH": path, **environment}
        command = [sys.executable, "-c", SCRIPT, json.dumps(spec)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line for line in done.stderr.splitlines() if "kvtier" in line or "no space" in line]

    def test_lines_have_lmcaches_form_and_level(self):
        spec = {
            "type": "plugin",
            "module_path": "kvtier.lmcache",
            "class_name": "KvtierL2Adapter",
            "adapter_params": {"tiers": [{"type": "file", "path": self.dir, "bytes": "8MiB"}]},
        }
        own = re.compile(r"\[\d{4}-\d\d-\d\d [^]]*\] LMCache (INFO|WARNING):.*:kvtier\)")
        received = [own.search(line) for line in self.lines(spec, LMCACHE_LOG_LEVEL="INFO") if "opened" in line or "no space" in line]
        self.assertEqual([line and line.group(1) for line in received], ["INFO", "WARNING"])
        received = [line for line in self.lines(spec, LMCACHE_LOG_LEVEL="WARNING") if "opened" in line or "no space" in line]
        self.assertEqual(len(received), 1)
        self.assertRegex(received[0], own)


if __name__ == "__main__":
    unittest.main()
