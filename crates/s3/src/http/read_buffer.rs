use zeroize::Zeroizing;

/// Heads are read by this much at a time. What follows one in the same read is copied to where the
/// body goes, so it is kept small.
pub const READ_BYTES: usize = 2048;

/// What came from a server and was not looked at yet. Its memory is cleared once, not for each
/// read.
pub struct ReadBuffer {
    memory: Zeroizing<Vec<u8>>,
    from: usize,
    to: usize,
}

impl ReadBuffer {
    /// An empty one.
    pub fn new() -> Self {
        ReadBuffer { memory: vec![0; READ_BYTES].into(), from: 0, to: 0 }
    }

    /// What is there.
    pub fn rest(&self) -> &[u8] {
        &self.memory[self.from..self.to]
    }

    /// Whether that is nothing.
    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Clears the buffer, and frees the memory of a long head.
    pub fn clear(&mut self) {
        (self.from, self.to) = (0, 0);
        self.memory.truncate(READ_BYTES);
        self.memory.shrink_to(READ_BYTES);
    }

    /// Overwrites what was there and was seen.
    pub fn wipe(&mut self) {
        self.memory[..self.from].fill(0);
    }

    /// The first `bytes` need not be seen again.
    pub fn skip(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Space for `bytes` more, of which [`ReadBuffer::commit`] accepts a part.
    pub fn space(&mut self, bytes: usize) -> &mut [u8] {
        self.memory.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.memory.len() < self.to + bytes {
            self.memory.resize(self.to + bytes, 0);
        }
        &mut self.memory[self.to..self.to + bytes]
    }

    /// Says that the first `bytes` of [`ReadBuffer::space`] hold data now.
    pub fn commit(&mut self, bytes: usize) {
        self.to += bytes;
    }

    /// Takes in `bytes`.
    pub fn push(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
        self.commit(bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_what_it_took_and_does_not_grow_with_what_it_gave() {
        let mut read_buffer = ReadBuffer::new();
        let mut sent = 0u8;
        let mut seen = 0u8;
        for round in 0..10_000 {
            for _ in 0..round % 7 {
                read_buffer.push(&[sent, sent.wrapping_add(1)]);
                sent = sent.wrapping_add(2);
            }
            while read_buffer.rest().len() > 3 {
                assert_eq!(read_buffer.rest()[0], seen);
                seen = seen.wrapping_add(1);
                read_buffer.skip(1);
            }
        }
        assert!(read_buffer.memory.len() == READ_BYTES && !read_buffer.is_empty());
        read_buffer.push(&[7; 3 * READ_BYTES]);
        read_buffer.skip(2 * READ_BYTES);
        read_buffer.wipe();
        assert!(
            read_buffer.memory[..2 * READ_BYTES].iter().all(|byte| *byte == 0)
                && read_buffer.rest()[9] == 7
        );
        read_buffer.clear();
        assert!(read_buffer.is_empty() && read_buffer.memory.capacity() < 2 * READ_BYTES);
    }
}
