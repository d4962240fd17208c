//! A link of limited speed that all answers share.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is sent at once.
const PIECE: usize = 64 << 10;
/// How late a piece may be and still have the link's full speed: a thread that sleeps wakes late.
const LATE_MAX: Duration = Duration::from_millis(2);

/// The link. Its answers take turns, piece by piece.
#[derive(Debug)]
pub(super) struct Link {
    bytes_per_s: u64,
    /// When the last piece has passed.
    free_at: Mutex<Instant>,
}

impl Link {
    pub(super) fn new(bytes_per_s: u64) -> Self {
        Link { bytes_per_s: bytes_per_s.max(1), free_at: Mutex::new(Instant::now()) }
    }

    /// Writes `bytes`, each piece when the link is free for it.
    pub(super) fn write(&self, bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
        for piece in bytes.chunks(PIECE) {
            let end = self.reserve(piece.len(), Instant::now());
            thread::sleep(end.saturating_duration_since(Instant::now()));
            to.write_all(piece)?;
        }
        Ok(())
    }

    /// The moment at which `len` more bytes have passed.
    fn reserve(&self, len: usize, now: Instant) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = now.checked_sub(LATE_MAX).map_or(now, |earliest| earliest.max(*free_at));
        *free_at = begin + Duration::from_secs_f64(len as f64 / self.bytes_per_s as f64);
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_pass_one_after_another_at_the_speed_of_the_link() {
        let link = Link::new(1_000_000);
        let now = Instant::now() + Duration::from_secs(1);
        let first = link.reserve(10_000, now);
        assert_eq!(first, now - LATE_MAX + Duration::from_millis(10));
        assert_eq!(link.reserve(500_000, now), first + Duration::from_millis(500));
        // One that comes long after begins at once.
        let later = now + Duration::from_secs(9);
        assert_eq!(link.reserve(1_000, later), later - LATE_MAX + Duration::from_millis(1));
        let mut all = Vec::new();
        Link::new(1 << 30).write(&[7; 200_000], &mut all).unwrap();
        assert_eq!(all, [7; 200_000]);
    }
}
