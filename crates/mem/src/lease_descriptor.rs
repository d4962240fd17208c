/// The position of a lease in its arena, to send to another process.
///
/// ```
/// use kvtier_mem::{Arena, ArenaConfig, Attached, Descriptor};
///
/// let arena = Arena::new(ArenaConfig::memfd(1 << 20))?;
/// let mut lease = arena.lease(4096)?;
/// lease.write_at(0, b"from process A")?;
/// let view = lease.freeze();
/// let message = arena.describe(&view).unwrap().to_bytes();
///
/// // Process B received the file descriptor and the message over a Unix socket.
/// let attached = Attached::new(arena.fd().unwrap().try_clone_to_owned()?)?;
/// let mut bytes = [0; 14];
/// // SAFETY: process A keeps the view, so no process writes these bytes.
/// unsafe { attached.read(Descriptor::from_bytes(message), &mut bytes) }?;
/// assert_eq!(&bytes, b"from process A");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// First byte, from the start of the arena's memory.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Descriptor {
    /// The wire form: offset and length, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Parses [`to_bytes`](Descriptor::to_bytes). Any bytes are a descriptor; one that reaches
    /// outside the arena is refused where it is used.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Descriptor { offset: both as u64, len: (both >> 64) as u64 }
    }
}
