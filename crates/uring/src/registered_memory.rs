/// How an arena was registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registered {
    /// Whether the engine uses the registration; otherwise the memory moves like any other.
    pub fixed: bool,
    /// The bytes newly pinned by the kernel.
    pub bytes: usize,
    /// Why not, or what was registered.
    pub reason: String,
}
