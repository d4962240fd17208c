use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Buf;

/// The most bytes of one piece.
pub const BYTES_MAX: usize = 256 << 10;
/// The number of buffers that are kept for reuse.
const KEPT_MAX: usize = 8;

/// A copy of a part of a body, on its way out. Once it is sent, another one takes its memory.
pub struct FramePiece {
    bytes: Vec<u8>,
    sent: usize,
    stock: Stock,
}

/// Memory for the pieces of one connection.
#[derive(Clone, Default)]
pub struct Stock(Arc<Mutex<Vec<Vec<u8>>>>);

impl Stock {
    /// A piece that holds these.
    pub fn copy(&self, bytes: &[u8]) -> FramePiece {
        let mut memory = self.kept().pop().unwrap_or_default();
        memory.extend_from_slice(bytes);
        FramePiece { bytes: memory, sent: 0, stock: self.clone() }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buf for FramePiece {
    fn remaining(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.remaining(), "more is sent than there was");
        self.sent += bytes;
    }
}

impl Drop for FramePiece {
    fn drop(&mut self) {
        // Kept with its capacity, so that uploads of a steady size allocate nothing.
        let mut memory = std::mem::take(&mut self.bytes);
        memory.clear();
        let mut kept = self.stock.kept();
        if kept.len() < KEPT_MAX {
            kept.push(memory);
        }
    }
}

impl fmt::Debug for FramePiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FramePiece({} bytes)", self.remaining())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_not_hoarded() {
        let stock = Stock::default();
        let mut piece = stock.copy(b"12345");
        piece.advance(2);
        assert_eq!((piece.chunk(), piece.remaining()), (&b"345"[..], 3));
        let memory = piece.bytes.as_ptr();
        drop(piece);
        let again = stock.copy(b"678");
        assert_eq!((again.chunk(), again.bytes.as_ptr()), (&b"678"[..], memory));
        let many: Vec<_> = (0..2 * KEPT_MAX).map(|_| stock.copy(b"9")).collect();
        drop(many);
        assert_eq!(stock.kept().len(), KEPT_MAX);
    }
}
