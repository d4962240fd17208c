"""Where log lines go. Each case is a program of its own: logging is set up once in a process."""

import re
import unittest

from scripts import run

OPEN = """
    c = kvtier.Connector(tiers=[{"type": "host", "bytes": "1MiB"}])
    c.submit_batch_exists(["no key"])
    c.drain_completions()
    c.close()
"""


class Lines(unittest.TestCase):
    def lines(self, before, after=OPEN):
        code, said = run("    import logging, kvtier\n" + before + after)
        self.assertEqual(code, 0, said)
        return [line for line in said.splitlines() if line]

    def test_without_handlers_of_the_host_a_line_has_time_level_and_name(self):
        [line] = self.lines("")
        self.assertRegex(line, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING kvtier: batch 1: .*no key")

    def test_lines_follow_the_hosts_handlers_and_level(self):
        before = "    logging.basicConfig(format='HOST %(levelname)s %(name)s %(message)s', level=logging.INFO)\n"
        lines = self.lines(before)
        self.assertEqual([re.match("HOST [A-Z]+ kvtier ", line).group() for line in lines], ["HOST INFO kvtier ", "HOST WARNING kvtier "])
        self.assertIn("opened", lines[0])
        self.assertEqual(len(self.lines(before.replace("INFO", "WARNING"))), 1)

    def test_a_handler_of_kvtiers_logger_is_used(self):
        before = """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("OWN %(message)s"))
    logging.getLogger("kvtier").addHandler(handler)
"""
        [line] = self.lines(before)
        self.assertTrue(line.startswith("OWN batch 1"), line)
