/// Whether a tier works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The tier accepts work and completes it.
    pub healthy: bool,
    /// Notes for the operator, healthy or not: the engine and why it was chosen, faults, next
    /// steps.
    pub reasons: Vec<String>,
    /// Named counters, in a fixed order.
    pub counters: Vec<(&'static str, u64)>,
}

impl Status {
    /// A status with these reasons and counters.
    pub fn new(healthy: bool, reasons: Vec<String>, counters: Vec<(&'static str, u64)>) -> Self {
        Status { healthy, reasons, counters }
    }

    /// The counter of this name; 0 if there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v)
    }
}
