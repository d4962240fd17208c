"""What LMCache's wrapper does with a native client, in our own words: it polls the event descriptor on a thread, drains, and hands each
completion to its submitter. It keeps no reference to buffers, and never reads the descriptor itself."""

import select
import threading


class Wrapper:
    def __init__(self, client):
        self.client = client
        self.lock = threading.Lock()
        self.ends = {}
        self.arrived = threading.Condition(self.lock)
        self.stop = False
        self.fd = client.event_fd()
        self.thread = threading.Thread(target=self._route, daemon=True)
        self.thread.start()

    def _route(self):
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while not self.stop:
            if not poll.poll(500):
                continue
            for future, ok, error, each in self.client.drain_completions():
                with self.lock:
                    assert future not in self.ends, "one end a batch"
                    self.ends[future] = (ok, error, each)
                    self.arrived.notify_all()

    def submit(self, name, *args):
        # The lock is held over submit: it must not block.
        with self.lock:
            return getattr(self.client, name)(*args)

    def wait(self, future, seconds=90):
        with self.lock:
            assert self.arrived.wait_for(lambda: future in self.ends, seconds), "no end came"
            return self.ends.pop(future)

    def set(self, keys, bufs):
        return self.wait(self.submit("submit_batch_set", keys, bufs))

    def get(self, keys, bufs):
        return self.wait(self.submit("submit_batch_get", keys, bufs))

    def exists(self, keys):
        return self.wait(self.submit("submit_batch_exists", keys))

    def delete(self, keys):
        return self.wait(self.submit("submit_batch_delete", keys))

    def close(self):
        self.stop = True
        self.thread.join(5)
        self.client.close()
