use kvtier_key::Digest;

/// Takes little-endian fields from the front of bytes; `None` when they run out.
#[derive(Debug)]
pub(crate) struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn digest(&mut self) -> Option<Digest> {
        self.array().map(Digest)
    }
}
