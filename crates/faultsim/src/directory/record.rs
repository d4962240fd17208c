//! The record of calls: those that change something or are refused are events, all are in the digest.

use std::fmt;

use kvtier_os::simulated::Call;

use super::medium::{Medium, Paths};
use crate::world::World;

/// Records the calls of a process.
pub struct Record<'a, P> {
    pub world: &'a World,
    pub medium: &'a Medium,
    pub process: P,
}

impl<P: fmt::Display> Record<'_, P> {
    /// It succeeded, or is a write of which these bytes arrived. Returns the names that it has.
    pub fn made(&self, call: Call<'_>) -> Paths {
        let Record { world, medium, process } = self;
        if is_quiet(call) {
            // Only a letter: most calls are looks.
            world.note_letter(if matches!(call, Call::Lock(_)) { 'k' } else { 'l' });
            return Paths::None;
        }
        let what = medium.after(world, call);
        world.event(format_args!("{process} {} {what}{}", kind(call), Bytes(call)));
        what
    }

    /// It was made and failed.
    pub fn failed(&self, call: Call<'_>, error: nix::Error) {
        let Record { world, medium, process } = self;
        let what = medium.paths(call);
        let line = format_args!("{process} {} {what} fails: {error:?}", kind(call));
        if is_quiet(call) { world.note(line) } else { world.event(line) }
    }

    /// The medium refused it.
    pub fn refused(&self, call: Call<'_>, error: nix::Error) {
        let Record { world, medium, process } = self;
        let what = medium.paths(call);
        world.event(format_args!("{process} {} {what} is refused: {error:?}", kind(call)));
    }
}

/// Whether it changes nothing. These are many.
fn is_quiet(call: Call<'_>) -> bool {
    matches!(call, Call::Look(_) | Call::Lock(_))
}

/// What a call writes: where, how much and a checksum.
struct Bytes<'a>(Call<'a>);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Call::Write(write) => {
                match write.at {
                    Some(at) => write!(f, " at {at}")?,
                    None => write!(f, " on")?,
                }
                write!(f, ": {} bytes, {:08x}", write.bytes.len(), checksum(write.bytes))
            }
            Call::Allocate(_, bytes) => write!(f, ": {bytes} bytes"),
            Call::SetAttribute(_, value) => {
                write!(f, ": {} bytes, {:08x}", value.len(), checksum(value))
            }
            _ => Ok(()),
        }
    }
}

/// Other bytes have another one, but for chance. As fast as the bytes are read.
pub fn checksum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(8).map(|word| {
        let mut whole = [0; 8];
        whole[..word.len()].copy_from_slice(word);
        u64::from_le_bytes(whole)
    });
    let mixed = words.fold(bytes.len() as u64, |sum, word| {
        (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (mixed >> 32) as u32
}

/// A call in a word.
pub fn kind(call: Call<'_>) -> &'static str {
    match call {
        Call::Open(_) => "open",
        Call::CreateDir(_) => "create directory",
        Call::Link(..) => "link",
        Call::Rename(..) => "rename",
        Call::Exchange(..) => "exchange",
        Call::Remove(_) => "remove",
        Call::RemoveTree(_) => "remove tree",
        Call::Look(_) => "look",
        Call::Write(_) => "write",
        Call::SetLen(_) => "set length",
        Call::Allocate(..) => "allocate",
        Call::SetAttribute(..) => "set attribute",
        Call::Sync(_) => "sync",
        Call::SyncAll => "sync all",
        Call::Lock(_) => "lock",
        _ => "call",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_have_another_checksum() {
        let bytes: Vec<u8> = (0..99).collect();
        let whole = checksum(&bytes);
        assert_ne!(whole, checksum(&bytes[..98]));
        assert_ne!(checksum(&[0; 8]), checksum(&[0; 9]));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(whole, checksum(&other), "byte {at}");
        }
    }
}
