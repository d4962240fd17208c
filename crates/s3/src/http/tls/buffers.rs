//! What a TLS connection keeps between its records and the socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What came from the socket and is not opened yet.
pub struct Incoming {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
}

impl Incoming {
    /// Reads at most `bytes` at a time, which are more than one record.
    pub fn new(bytes: usize) -> Self {
        Incoming { bytes: vec![0; bytes].into(), from: 0, to: 0 }
    }

    /// All that is there.
    pub fn filled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.to]
    }

    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Forgets the first `len` of them.
    pub fn consume(&mut self, len: usize) {
        self.from += len;
        debug_assert!(self.from <= self.to);
    }

    /// Reads more: how many bytes; 0 at the end of the stream. Errors with `InvalidData` when the
    /// buffer is full.
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        // What is left is less than a record, except in handshakes.
        // A record must be in one piece to be opened.
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.to == self.bytes.len() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the TLS handshake is too long",
            )));
        }
        let mut space = ReadBuf::new(&mut self.bytes[self.to..]);
        ready!(Pin::new(io).poll_read(cx, &mut space))?;
        let got = space.filled().len();
        self.to += got;
        Poll::Ready(Ok(got))
    }
}

/// Sealed records that the socket has not taken yet.
#[derive(Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Outgoing {
    #[cfg(feature = "tls-direct")]
    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Space for at least `len` bytes behind what is there; [`Outgoing::wrote`] takes them in.
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        // Grows to the largest batch and stays: the zeros are written once.
        if self.bytes.len() < self.to + len {
            self.bytes.resize(self.to + len, 0);
        }
        &mut self.bytes[self.to..]
    }

    /// The first `len` bytes of the space are to be sent.
    pub fn wrote(&mut self, len: usize) {
        self.to += len;
        debug_assert!(self.to <= self.bytes.len());
    }

    /// Sends everything.
    pub fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        while self.from < self.to {
            match ready!(Pin::new(&mut *io).poll_write(cx, &self.bytes[self.from..self.to]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.from += sent,
            }
        }
        // Only once all is sent, so that nothing has to be moved.
        (self.from, self.to) = (0, 0);
        Poll::Ready(Ok(()))
    }
}

/// Where opened bytes go: two pieces of the caller's memory, one behind the other.
pub struct PlaintextSpace<'a> {
    pieces: [&'a mut [u8]; 2],
    filled: usize,
    copied: u64,
}

impl<'a> PlaintextSpace<'a> {
    pub fn new(pieces: [&'a mut [u8]; 2]) -> Self {
        PlaintextSpace { pieces, filled: 0, copied: 0 }
    }

    /// Bytes that were copied here since this was last asked.
    pub fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// Bytes that landed.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// The rest of the piece that comes next; empty when there is no more.
    pub fn next(&mut self) -> &mut [u8] {
        let [first, second] = &mut self.pieces;
        match self.filled.checked_sub(first.len()) {
            None => &mut first[self.filled..],
            Some(behind) => &mut second[behind..],
        }
    }

    /// The first `len` bytes of [`PlaintextSpace::next`] landed.
    #[cfg(feature = "tls-direct")]
    pub fn landed(&mut self, len: usize) {
        self.filled += len;
    }

    /// Copies as many of `bytes` as fit: how many.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let next = self.next();
            let len = next.len().min(bytes.len() - done);
            if len == 0 {
                break;
            }
            next[..len].copy_from_slice(&bytes[done..done + len]);
            self.filled += len;
            done += len;
        }
        self.copied += done as u64;
        done
    }
}

/// Memory for this many is kept: the end of a record, as it is left again and again.
const LEFT_BYTES_KEPT: usize = 16 * 1024;

/// Opened bytes for which the caller had no space yet: the end of one record, and what came while
/// we were sending.
#[derive(Default)]
pub struct PlaintextLeft {
    bytes: Vec<u8>,
    from: usize,
}

impl PlaintextLeft {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Moves as many as fit.
    pub fn drain(&mut self, space: &mut PlaintextSpace<'_>) {
        self.from += space.put(&self.bytes[self.from..]);
        if self.from == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(LEFT_BYTES_KEPT);
            self.from = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_from_piece_to_piece_and_no_further() {
        let mut first = [0; 3];
        let mut second = [0; 2];
        let mut space = PlaintextSpace::new([&mut first, &mut second]);
        let mut left = PlaintextLeft::default();
        left.push(b"12");
        left.drain(&mut space);
        assert_eq!((space.filled(), space.next().len()), (2, 1));
        assert_eq!(space.put(b"3456"), 3);
        assert!(space.next().is_empty());
        left.push(b"67");
        left.drain(&mut space);
        assert_eq!((space.filled(), left.bytes.len()), (5, 2));
        assert_eq!((&first, &second), (b"123", b"45"));
    }

    #[tokio::test]
    async fn a_part_of_a_record_moves_to_the_front() {
        let mut incoming = Incoming::new(4);
        let mut source = &b"123456"[..];
        let mut fill = async |incoming: &mut Incoming| {
            std::future::poll_fn(|cx| incoming.poll_fill(cx, &mut source))
                .await
                .map_err(|e| e.kind())
        };
        assert_eq!(fill(&mut incoming).await, Ok(4));
        assert_eq!(fill(&mut incoming).await, Err(io::ErrorKind::InvalidData));
        incoming.consume(3);
        assert_eq!(fill(&mut incoming).await, Ok(2));
        assert_eq!(incoming.filled(), b"456");
        assert_eq!(fill(&mut incoming).await, Ok(0));
    }

    #[test]
    fn large_memory_is_freed_again() {
        let mut left = PlaintextLeft::default();
        let mut memory = vec![0; 300_000];
        left.push(&memory.clone());
        left.drain(&mut PlaintextSpace::new([&mut memory, &mut []]));
        assert!(left.bytes.capacity() <= LEFT_BYTES_KEPT, "{}", left.bytes.capacity());
    }
}
