//! Where a body is written. A sink hands out no more space than it has, so no byte is written
//! outside it.

use super::ResponseHead;
use crate::checksum::Running;
use crate::error::{Error, ErrorKind, Result};

/// Bytes are summed at most this many at a time, while they are still in a cache. Less is read from
/// a cache that is closer, and costs more all the same: a socket that is emptied at once wakes its
/// server less often.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Control bodies grow by this much.
const STEP_BYTES: usize = 16 * 1024;

/// Observes an object while it is received and its bytes are still in the CPU cache.
pub trait BodyObserver: std::fmt::Debug + Send {
    /// The body starts, or starts again, with this head. Return `true` to verify the bytes in the
    /// observer: the client then computes no checksum.
    fn begin(&mut self, head: &ResponseHead) -> bool;
    /// More bytes were received, in order. `landed` is all that the current piece of memory has by now;
    /// its last `new` bytes were not reported before.
    fn received(&mut self, landed: &[u8], new: usize);
}

/// The caller's memory for one object, in one piece or several, filled from the start. It outlives
/// a broken connection, so the next attempt continues where the last one ended.
#[derive(Debug)]
pub struct BodyBuffer<'a> {
    memory: &'a mut [u8],
    more: Vec<&'a mut [u8]>,
    len: usize,
    filled: usize,
    sum: Option<Running>,
    observer: Option<&'a mut dyn BodyObserver>,
}

impl<'a> BodyBuffer<'a> {
    /// An empty buffer over `memory`.
    pub fn new(memory: &'a mut [u8]) -> Self {
        let len = memory.len();
        BodyBuffer { memory, more: Vec::new(), len, filled: 0, sum: None, observer: None }
    }

    /// Continues in these pieces where the memory ends.
    pub fn then(mut self, more: Vec<&'a mut [u8]>) -> Self {
        self.len += more.iter().map(|piece| piece.len()).sum::<usize>();
        self.more = more;
        self
    }

    /// Reports the head and every received byte to `observer`.
    pub fn observed_by(mut self, observer: &'a mut dyn BodyObserver) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Reports a head to the observer. Returns whether the observer verifies the bytes itself.
    pub fn begin(&mut self, head: &ResponseHead) -> bool {
        self.observer.as_mut().is_some_and(|observer| observer.begin(head))
    }

    /// Starts over, with the checksum to compute.
    pub fn restart(&mut self, sum: Option<Running>) {
        (self.filled, self.sum) = (0, sum);
    }

    /// Bytes received so far.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// The space for the next bytes, at most `bytes_max`, for a read together with the head.
    pub fn next(&mut self, bytes_max: usize) -> &mut [u8] {
        let piece = self.piece(self.filled);
        let len = piece.len().min(bytes_max);
        &mut piece[..len]
    }

    /// Bytes that still fit.
    pub fn remaining(&self) -> usize {
        self.len - self.filled
    }

    /// The checksum of the received bytes, if one is computed.
    pub fn sum(&self) -> Option<&Running> {
        self.sum.as_ref()
    }

    /// The rest of the piece that holds the byte `at`, from there on; empty behind the end.
    fn piece(&mut self, at: usize) -> &mut [u8] {
        let (piece, at) = self.whole_piece(at);
        &mut piece[at..]
    }

    /// The piece that holds the byte `at`, and where in it; empty behind the end.
    fn whole_piece(&mut self, mut at: usize) -> (&mut [u8], usize) {
        if at < self.memory.len() {
            return (self.memory, at);
        }
        at -= self.memory.len();
        for piece in &mut self.more {
            if at < piece.len() {
                return (piece, at);
            }
            at -= piece.len();
        }
        (&mut [], 0)
    }

    /// The next `len` bytes, of one piece, hold data.
    fn commit(&mut self, len: usize) {
        // The bytes are read again right after they arrived, while they are in the cache.
        let start = self.filled;
        self.filled += len;
        // No second look at the bytes where nothing verifies them on the way.
        if self.sum.is_none() && self.observer.is_none() {
            return;
        }
        // Taken out, since `piece` borrows all of the buffer.
        let mut sum = self.sum.take();
        let mut observer = self.observer.take();
        let (piece, at) = self.whole_piece(start);
        let landed = &piece[..at + len];
        if let Some(sum) = &mut sum {
            sum.update(&landed[at..]);
        }
        if let Some(observer) = &mut observer {
            observer.received(landed, len);
        }
        (self.sum, self.observer) = (sum, observer);
    }
}

/// What takes a body.
#[derive(Debug)]
pub enum BodySink<'b, 'a> {
    /// The caller's memory.
    Buffer(&'b mut BodyBuffer<'a>),
    /// A small body, at most that many bytes.
    Text(&'b mut Vec<u8>, usize),
}

impl BodySink<'_, '_> {
    /// Space for at most `want` bytes, which [`BodySink::filled`] then commits. Errors with `Corrupt`
    /// when there is none.
    pub fn space(&mut self, want: usize) -> Result<&mut [u8]> {
        match self {
            BodySink::Buffer(buffer) => {
                let summed = buffer.sum.is_some() || buffer.observer.is_some();
                let window = if summed { WINDOW_BYTES } else { usize::MAX };
                let start = buffer.filled;
                let space_total = buffer.len;
                let piece = buffer.piece(start);
                let len = want.min(piece.len()).min(window);
                if len == 0 {
                    return Err(too_long(space_total));
                }
                Ok(&mut piece[..len])
            }
            BodySink::Text(text, max) => {
                let start = text.len();
                let len = want.min(STEP_BYTES).min(max.saturating_sub(start));
                if len == 0 {
                    return Err(too_long(*max));
                }
                text.resize(start + len, 0);
                Ok(&mut text[start..])
            }
        }
    }

    /// Says that the first `len` of the `of` bytes that [`BodySink::space`] gave now hold data.
    pub fn filled(&mut self, len: usize, of: usize) {
        match self {
            BodySink::Buffer(buffer) => buffer.commit(len),
            // `space` had extended the vector with zeros to read into.
            BodySink::Text(text, _) => text.truncate(text.len() - (of - len)),
        }
    }

    /// Says that the first `bytes` of [`BodyBuffer::next`] hold data already.
    pub fn received(&mut self, mut bytes: usize) -> Result<()> {
        while bytes > 0 {
            if let BodySink::Text(..) = self {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "received bytes of an object in a response that has none",
                ));
            }
            let len = self.space(bytes)?.len();
            self.filled(len, len);
            bytes -= len;
        }
        Ok(())
    }

    /// Copies `bytes`.
    pub fn copy(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let space = self.space(bytes.len())?;
            let len = space.len();
            space.copy_from_slice(&bytes[..len]);
            self.filled(len, len);
            bytes = &bytes[len..];
        }
        Ok(())
    }
}

fn too_long(bytes: usize) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the body is longer than the {bytes} bytes of memory for it"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lands_outside() {
        let mut memory = [0; 8];
        let (mine, guard) = memory.split_at_mut(5);
        let mut buffer = BodyBuffer::new(mine);
        assert!(BodySink::Buffer(&mut buffer).copy(b"123").is_ok());
        assert_eq!(
            BodySink::Buffer(&mut buffer).copy(b"4567").unwrap_err().kind(),
            ErrorKind::Corrupt
        );
        assert_eq!((buffer.filled(), buffer.remaining()), (5, 0));
        assert_eq!(guard, [0; 3]);
        assert_eq!(memory, *b"12345\0\0\0");
    }

    #[derive(Debug, Default)]
    struct Recorder(Vec<u8>);

    impl BodyObserver for Recorder {
        fn begin(&mut self, _: &ResponseHead) -> bool {
            self.0.clear();
            true
        }
        fn received(&mut self, landed: &[u8], new: usize) {
            self.0.extend_from_slice(&landed[landed.len() - new..]);
            let (whole, first) = (self.0.len(), 3);
            let landed_before = if whole > first { first } else { 0 };
            assert_eq!(landed, &self.0[landed_before..], "all of its piece");
        }
    }

    #[test]
    fn pieces_are_filled_in_order_and_watched() {
        let mut memory = [0; 9];
        let mut received = Recorder::default();
        let (first, rest) = memory.split_at_mut(3);
        let (none, rest) = rest.split_at_mut(0);
        let (second, guard) = rest.split_at_mut(4);
        let mut buffer = BodyBuffer::new(first).then(vec![none, second]).observed_by(&mut received);
        assert_eq!(buffer.remaining(), 7);
        assert!(BodySink::Buffer(&mut buffer).copy(b"12345").is_ok());
        assert_eq!((buffer.filled(), buffer.remaining()), (5, 2));
        assert!(BodySink::Buffer(&mut buffer).copy(b"678").is_err());
        assert_eq!(guard, [0; 2]);
        assert_eq!((&memory, &received.0[..]), (b"1234567\0\0", &b"1234567"[..]));
    }

    #[test]
    fn small_bodies_have_a_maximum() {
        let mut text = Vec::new();
        let mut sink = BodySink::Text(&mut text, 20_000);
        assert!(sink.copy(&[1; 20_000]).is_ok());
        assert!(sink.copy(&[1]).is_err());
        assert_eq!(text.len(), 20_000);
    }
}
