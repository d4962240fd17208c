use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;

use kvtier_key::Digest;

/// 32 bytes of the system's random source. Where that cannot be read, those of the standard
/// library's hash keys stand in, which the system made.
pub fn random_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    if File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).is_ok() {
        return bytes;
    }
    let seeds: Vec<u8> =
        (0..8u8).flat_map(|n| RandomState::new().hash_one(n).to_le_bytes()).collect();
    Digest::derive("kvtier entropy", &seeds).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        assert_ne!(random_bytes(), random_bytes());
    }
}
