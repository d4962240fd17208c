/// The prices of an object store in dollars. The default is 0: the operator sets them.
///
/// ```
/// use kvtier::metrics::Prices;
///
/// // S3 Standard in dollars: 1000 PUTs cost 0.005, 1000 GETs 0.0004.
/// let prices = Prices::new().with_requests(0.005, 0.0004);
/// assert_eq!(prices.dollars(&[]), 0.0);
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Prices {
    /// Price of 1,000 requests that write or list (PUT, COPY, POST, LIST).
    pub per_1000_writes: f64,
    /// Price of 1,000 requests that read (GET, HEAD).
    pub per_1000_reads: f64,
    /// Price of a GB (1e9 bytes) read.
    pub per_gb_read: f64,
    /// Price of a GB (1e9 bytes) written.
    pub per_gb_written: f64,
}

impl Prices {
    /// All prices 0.
    pub fn new() -> Self {
        Prices::default()
    }

    /// Sets the prices of 1,000 requests.
    pub fn with_requests(mut self, per_1000_writes: f64, per_1000_reads: f64) -> Self {
        (self.per_1000_writes, self.per_1000_reads) = (per_1000_writes, per_1000_reads);
        self
    }

    /// Sets the prices of a GB.
    pub fn with_traffic(mut self, per_gb_read: f64, per_gb_written: f64) -> Self {
        (self.per_gb_read, self.per_gb_written) = (per_gb_read, per_gb_written);
        self
    }

    /// The cost in dollars of what a tier counted; 0 for tiers that count no requests.
    pub fn dollars(&self, counters: &[(&'static str, u64)]) -> f64 {
        let of =
            |name: &str| counters.iter().find(|(n, _)| *n == name).map_or(0.0, |(_, v)| *v as f64);
        // Only tiers over a store count requests. A host or file tier with the same prices costs
        // nothing.
        let is_charged = counters.iter().any(|(name, _)| name.starts_with("requests_"));
        let traffic =
            self.per_gb_read * of("loaded_bytes") + self.per_gb_written * of("saved_bytes");
        // Stores charge a listing as a write, and deletions not at all.
        let writes = of("requests_put") + of("requests_list");
        let requests = self.per_1000_writes * writes
            + self.per_1000_reads * (of("requests_get") + of("requests_head"));
        if is_charged { requests / 1e3 + traffic / 1e9 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_traffic_are_charged_and_memory_is_not() {
        let prices = Prices::new().with_requests(0.005, 0.0004).with_traffic(0.09, 0.0);
        let s3 = [
            ("requests_put", 1000),
            ("requests_list", 1000),
            ("requests_get", 10_000),
            ("loaded_bytes", 1_000_000_000),
        ];
        assert!((prices.dollars(&s3) - (0.01 + 0.004 + 0.09)).abs() < 1e-12);
        assert_eq!(prices.dollars(&[("loaded_bytes", 1 << 40)]), 0.0);
    }
}
