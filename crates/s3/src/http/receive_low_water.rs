//! How many bytes a socket collects before it wakes the task that reads a body.
//!
//! A reader that is faster than its server empties the socket after each segment and sleeps until
//! the next one. Each wake-up costs an interrupt of the reader's core and a context switch: over
//! TLS at loopback speed that is a third of the server's time, so the transfer is slower because
//! its reader is faster. While a large body is on its way the socket therefore wakes its reader
//! only when [`COLLECTED_BYTES`] can be read, by `SO_RCVLOWAT`. At the end of a body the mark is 1
//! again, since no more bytes than those of the body can be waited for.
//!
//! Bytes below the mark do not wake the reader, so a slow body would look as if it had stopped.
//! [`LowWater::disable`] is called when half of the time for which a body may stop is over: bytes
//! that wait then are read, and the mark stays at 1 until the body ends.

use kvtier_mem::set_receive_low_water;

use super::stream::Stream;

/// This many bytes are collected: as many as are read and decrypted at a time.
const COLLECTED_BYTES: usize = 256 * 1024;
/// The mark is raised only when the body has this many bytes more: under TLS some of its bytes may
/// have been received already, as parts of records that are not complete.
const MARGIN_BYTES: usize = 64 * 1024;

/// The mark of one connection.
#[derive(Debug)]
pub struct LowWater {
    mark: usize,
    is_enabled: bool,
}

impl LowWater {
    /// The mark of a new socket.
    pub fn new() -> Self {
        LowWater { mark: 1, is_enabled: true }
    }

    /// Sets the mark for a body of which `left` bytes are to come.
    pub fn set(&mut self, stream: &Stream, left: u64) {
        let raise = self.is_enabled && left >= (COLLECTED_BYTES + MARGIN_BYTES) as u64;
        self.change(stream, if raise { COLLECTED_BYTES } else { 1 });
    }

    /// Whether bytes may wait in the socket without waking the reader.
    pub fn is_raised(&self) -> bool {
        self.mark > 1
    }

    /// Lowers the mark until [`LowWater::reset`].
    pub fn disable(&mut self, stream: &Stream) {
        self.is_enabled = false;
        self.change(stream, 1);
    }

    /// For the next body.
    pub fn reset(&mut self, stream: &Stream) {
        self.change(stream, 1);
        self.is_enabled = true;
    }

    fn change(&mut self, stream: &Stream, mark: usize) {
        if self.mark != mark {
            // A socket without the option wakes its reader for each byte, as it did before.
            let changed = stream.tcp().is_some_and(|tcp| set_receive_low_water(tcp, mark).is_ok());
            self.mark = if changed { mark } else { self.mark };
        }
    }
}
