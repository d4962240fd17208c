//! Where a body goes. A sink gives room for no more bytes than it has, so nothing can land outside it.

use crate::checksum::Running;
use crate::error::{Error, ErrorKind, Result};

/// Bytes are summed this many at a time, while they are still in the cache.
const WINDOW_BYTES: usize = 256 * 1024;
/// Control bodies grow by this much.
const STEP_BYTES: usize = 16 * 1024;

/// The caller's memory for one object, filled from the start. It outlives a broken connection, so that the next one goes on where
/// the last one ended.
#[derive(Debug)]
pub struct Landing<'a> {
    memory: &'a mut [u8],
    filled: usize,
    sum: Option<Running>,
}

impl<'a> Landing<'a> {
    /// An empty one over `memory`.
    pub fn new(memory: &'a mut [u8]) -> Self {
        Landing { memory, filled: 0, sum: None }
    }

    /// Starts over, with what is to be summed.
    pub fn restart(&mut self, sum: Option<Running>) {
        (self.filled, self.sum) = (0, sum);
    }

    /// Bytes that have landed.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that still fit.
    pub fn room(&self) -> usize {
        self.memory.len() - self.filled
    }

    /// The sum of what landed, if one was asked for.
    pub fn sum(&self) -> Option<&Running> {
        self.sum.as_ref()
    }
}

/// What takes a body.
#[derive(Debug)]
pub enum Sink<'b, 'a> {
    /// The caller's memory.
    Land(&'b mut Landing<'a>),
    /// A small body, at most that many bytes.
    Text(&'b mut Vec<u8>, usize),
}

impl Sink<'_, '_> {
    /// Room for at most `want` bytes, which [`Sink::filled`] then takes in. Errors with `Corrupt` when there is none.
    pub fn space(&mut self, want: usize) -> Result<&mut [u8]> {
        match self {
            Sink::Land(landing) => {
                let window = if landing.sum.is_some() { WINDOW_BYTES } else { usize::MAX };
                let len = want.min(landing.room()).min(window);
                let start = landing.filled;
                if len == 0 {
                    return Err(too_long(landing.memory.len()));
                }
                Ok(&mut landing.memory[start..start + len])
            }
            Sink::Text(text, max) => {
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

    /// Says that the first `len` of the `of` bytes that [`Sink::space`] gave now hold data.
    pub fn filled(&mut self, len: usize, of: usize) {
        match self {
            Sink::Land(landing) => {
                let start = landing.filled;
                landing.filled += len;
                if let Some(sum) = &mut landing.sum {
                    sum.update(&landing.memory[start..start + len]);
                }
            }
            Sink::Text(text, _) => text.truncate(text.len() - (of - len)),
        }
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
    Error::new(ErrorKind::Corrupt, format!("the body is longer than the {bytes} bytes that there is room for"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lands_outside() {
        let mut memory = [0; 8];
        let (mine, guard) = memory.split_at_mut(5);
        let mut landing = Landing::new(mine);
        assert!(Sink::Land(&mut landing).copy(b"123").is_ok());
        assert_eq!(Sink::Land(&mut landing).copy(b"4567").unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!((landing.filled(), landing.room()), (5, 0));
        assert_eq!(guard, [0; 3]);
        assert_eq!(memory, *b"12345\0\0\0");
    }

    #[test]
    fn small_bodies_have_a_maximum() {
        let mut text = Vec::new();
        let mut sink = Sink::Text(&mut text, 20_000);
        assert!(sink.copy(&[1; 20_000]).is_ok());
        assert!(sink.copy(&[1]).is_err());
        assert_eq!(text.len(), 20_000);
    }
}
