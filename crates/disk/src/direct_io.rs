/// The unit of direct I/O in bytes: addresses, offsets and lengths are multiples of it. Payloads are
/// padded to it, and a footer is one.
pub const PAGE: u64 = 4096;
