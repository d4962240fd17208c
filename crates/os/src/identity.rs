//! Who a process is.

/// Who a simulated process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of its machine.
    pub host: String,
    /// Its number.
    pub pid: u32,
    /// When it started, in Unix milliseconds.
    pub started_ms: u64,
    /// When its machine started, in Unix seconds.
    pub booted_s: u64,
}
