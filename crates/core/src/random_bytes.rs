use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;

use kvtier_key::Digest;

/// 32 bytes of the system's random source. If that cannot be read, they derive from the standard
/// library's hash keys, which the system made too. Those of a simulated process are seeded.
pub fn random_bytes() -> [u8; 32] {
    if let Some(seeded) = kvtier_os::random_bytes() {
        return seeded;
    }
    let mut bytes = [0; 32];
    // A file and no system call, so that this crate needs neither `unsafe` nor another library.
    if File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).is_ok() {
        return bytes;
    }
    let seeds: Vec<u8> =
        // Eight hashes of 64 bits. The keys of `RandomState` come from the system when a thread
        // uses it first.
        (0..8u8).flat_map(|n| RandomState::new().hash_one(n).to_le_bytes()).collect();
    Digest::derive("kvtier entropy", &seeds).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes(), random_bytes());
    }
}
