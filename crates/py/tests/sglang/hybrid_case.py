"""A hybrid model over the backend: its pools beside the KV, and what a lookup answers."""

from host_pools import PAGES, TOKENS, fill, indexer_pool, indices, mamba_pool, mla_pool, window_pool
from scene import Case, Policy, Transfer, keys


def all_pages(name):
    return Transfer(name, hit_policy=Policy.ALL_PAGES)


def trailing(name, window=1):
    return Transfer(name, hit_policy=Policy.TRAILING_PAGES, keys=[""] * window)


class HybridCase(Case):
    def setUp(self):
        super().setUp()
        self.pools = {"indexer": indexer_pool(), "mamba": mamba_pool(), "swa": window_pool()}
        self.tokens = {"mamba": 1}

    def open_hybrid(self, **change):
        return self.open(mla_pool(), pools=self.pools, is_mla_model=True, **change)

    def store_pool(self, backend, name, numbers, policy=None):
        """Stores pages of a pool as SGLang does, which states the pool's hit policy."""
        tokens = self.tokens.get(name, TOKENS)
        rows = [n % PAGES for n in numbers]
        for n, row in zip(numbers, rows):
            fill(self.pools[name], row, n, tokens)
        policy = policy or (Policy.ALL_PAGES if name == "indexer" else Policy.TRAILING_PAGES)
        return backend.batch_set_v2([Transfer(name, indices(rows, tokens), keys=keys(numbers), hit_policy=policy)])

    def hits(self, backend, count, *transfers):
        found = backend.batch_exists_v2(keys(range(count)), list(transfers))
        return found.kv_hit_pages, {str(name): n for name, n in found.extra_pool_hit_pages.items()}, found.restorable_prefix_pages
