use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use tokio::net::TcpStream;

use super::buffers::{Incoming, Outgoing, PlaintextLeft};

/// What is read from a socket at a time: records of 16 KiB, that stay in the cache until they are
/// opened. With less, a fast server makes us wait more often; with more nothing is gained.
const READ_BYTES: usize = 256 * 1024;
/// A record's type, version and length.
const HEADER_BYTES: usize = 5;
/// The longest that a record may be by any version of TLS.
const RECORD_BYTES_MAX: usize = 16 * 1024 + 2048;

/// A socket, and the buffers between it and the records.
pub struct Wire {
    pub tcp: TcpStream,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub left: PlaintextLeft,
}

impl Wire {
    pub fn new(tcp: TcpStream) -> Self {
        Wire {
            tcp,
            incoming: Incoming::new(READ_BYTES),
            outgoing: Outgoing::default(),
            left: PlaintextLeft::default(),
        }
    }

    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.incoming.poll_fill(cx, &mut self.tcp)
    }

    pub fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.poll_drain(cx, &mut self.tcp)
    }

    /// Reads until there is a whole record behind the first `shown` bytes: its length.
    pub async fn one_more(&mut self, shown: usize) -> io::Result<usize> {
        loop {
            if let Some(len) = first_record(&self.incoming.filled()[shown..]) {
                return Ok(len);
            }
            if poll_fn(|cx| self.poll_fill(cx)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The length of the first record, if it is there whole; of nonsense, all that is there.
fn first_record(bytes: &[u8]) -> Option<usize> {
    let [kind, _, _, high, low, ..] = *bytes else { return None };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if !(20..=23).contains(&kind) || len > RECORD_BYTES_MAX {
        return Some(bytes.len());
    }
    (bytes.len() >= HEADER_BYTES + len).then_some(HEADER_BYTES + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_shown_when_it_is_whole() {
        let bytes = [22, 3, 3, 0, 2, 7, 7, 23, 3, 3, 0, 0];
        assert_eq!((0..5).find_map(|len| first_record(&bytes[..len])), None);
        assert_eq!(
            (first_record(&bytes[..6]), first_record(&bytes[..7]), first_record(&bytes)),
            (None, Some(7), Some(7))
        );
        assert_eq!(first_record(&bytes[7..]), Some(5));
        assert_eq!(
            (first_record(b"HTTP/1.1 400"), first_record(&[23, 3, 3, 255, 255])),
            (Some(12), Some(5))
        );
    }
}
