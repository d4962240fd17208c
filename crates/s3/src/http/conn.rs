//! One HTTP/1.1 connection: sends a request, receives the head, and (in `body`) writes the body into
//! the caller's memory. Dropping it closes it.

mod body;

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::AsyncWrite;
use zeroize::Zeroizing;

use super::read_buffer::{READ_BYTES, ReadBuffer};
use super::receive_low_water::LowWater;
use super::response_head::{BodyFraming, HEAD_BYTES_MAX, ResponseHead};
use super::silence::Silence;
use super::stall_timeout::StallTimeout;
use super::stream::Stream;
use super::target::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::local_clock::Instant;

/// One answer has no more interim answers before it, ...
const INTERIM_MAX: usize = 64;
/// ... nor more bytes of them.
const INTERIM_BYTES_MAX: usize = HEAD_BYTES_MAX;

/// How the sending of a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// All of it is on its way.
    All,
    /// The server answered before it had it all; the connection can serve nothing else.
    Early,
}

/// A connection to a server.
pub struct Conn {
    stream: Stream,
    /// Where it leads.
    pub target: Arc<Target>,
    /// The head under construction; kept between requests for its capacity, and wiped at the end,
    /// since tokens go into it.
    pub out: Zeroizing<Vec<u8>>,
    /// The path and query under construction.
    pub path: String,
    /// Since when it is idle.
    pub parked: Instant,
    /// Whether it served a request before.
    pub reused: bool,
    /// Whether it can serve another.
    pub spent: bool,
    /// Body bytes that were copied because they came with the head.
    pub copied: u64,
    stall_timeout: StallTimeout,
    low_water: LowWater,
    read_buffer: ReadBuffer,
    /// How long the head of the last answer with a bulk body was, and whether the one before was
    /// as long: then the next one probably is too, and is read together with the body behind
    /// it.
    usual: (usize, bool),
    /// Whether all of the last bulk body fitted into the memory that was read into together with
    /// its head.
    fitted: bool,
    /// Bytes of the body that are in the caller's memory already.
    ahead: usize,
    /// How many interim answers came for this request, and their bytes.
    interim: (usize, usize),
}

impl Conn {
    /// Boxed, since it is handed on from step to step.
    pub(super) fn new(stream: Stream, target: Arc<Target>) -> Box<Self> {
        let out = Vec::with_capacity(1024).into();
        let path = String::with_capacity(128);
        let read_buffer = ReadBuffer::new();
        let parked = Instant::now();
        let stall_timeout = StallTimeout::new();
        let reused = false;
        let spent = false;
        Box::new(Conn {
            stream,
            target,
            out,
            path,
            parked,
            reused,
            spent,
            copied: 0,
            stall_timeout,
            low_water: LowWater::new(),
            read_buffer,
            usual: (0, false),
            fitted: false,
            ahead: 0,
            interim: (0, 0),
        })
    }

    /// Whether it can serve another request, as far as is known.
    pub fn is_usable(&self) -> bool {
        !self.spent && self.read_buffer.is_empty()
    }

    /// Whether nothing moves on it while a request waits, for others to see.
    pub fn silence(&self) -> &Arc<Silence> {
        self.stall_timeout.silence()
    }

    /// Whether the server has closed it, or sent unrequested bytes, while it was idle.
    pub fn is_stale(&mut self) -> bool {
        self.stream.is_stale()
    }

    /// Bytes that were copied out of records of TLS since this was last asked.
    pub fn take_copied_tls(&mut self) -> u64 {
        self.stream.take_copied()
    }

    /// Whether TLS records are sealed and opened by us.
    pub fn is_direct(&self) -> bool {
        self.stream.is_direct()
    }

    /// Wipes the received bytes: a small response may hold a secret.
    pub fn forget(&mut self) {
        self.read_buffer.wipe();
    }

    /// Whether any byte of an answer has come.
    pub fn has_received(&self) -> bool {
        !self.read_buffer.is_empty()
    }

    /// Sends [`Conn::out`] and then `body`, listening meanwhile: a server may refuse before it has
    /// read it all. Errors with `Timeout` when nothing moves for `idle`.
    pub async fn send(&mut self, body: &[u8], idle: Duration) -> Result<Sent> {
        let mut sent = 0;
        (self.copied, self.ahead, self.interim) = (0, 0, (0, 0));
        self.read_buffer.clear();
        // A mark that is left from the last body would delay the answer to this request.
        self.low_water.reset(&self.stream);
        loop {
            let rest = [
                &self.out[sent.min(self.out.len())..],
                &body[sent.saturating_sub(self.out.len())..],
            ];
            let Conn { stream, read_buffer, stall_timeout, .. } = self;
            // One poll moves what the socket takes; the time limit counts from the last byte that
            // moved.
            match stall_timeout.wait(idle, |cx| poll_send(cx, stream, rest, read_buffer)).await {
                // Everything is flushed, also what TLS had buffered.
                Some(Ok(Some(0))) => return Ok(Sent::All),
                Some(Ok(Some(bytes))) => sent += bytes,
                // An early answer that is final ends the upload, or the server would read a body
                // that it has refused.
                Some(Ok(None)) if self.is_interim()? => {}
                Some(Ok(None)) => {
                    self.spent = true;
                    return Ok(Sent::Early);
                }
                Some(Err(e)) => {
                    self.spent = true;
                    // A server that refuses an upload may close its side while we still send. The
                    // write fails then, but its reason may already be in our receive buffer, and is
                    // worth more than "connection reset".
                    return if self.early_response().await {
                        Ok(Sent::Early)
                    } else {
                        Err(broken("sending", e))
                    };
                }
                None => return Err(stalled("the server takes no more bytes", idle)),
            }
        }
    }

    /// Whether what came so far is only `100 Continue` and the like, which is then forgotten, or
    /// not yet a whole head.
    fn is_interim(&mut self) -> Result<bool> {
        loop {
            match ResponseHead::parse(self.read_buffer.rest(), false) {
                Ok(Some((head, len))) if matches!(head.status, 100..=199) => {
                    self.read_buffer.skip(len);
                    self.count_interim(len)?;
                }
                Ok(None) => return Ok(true),
                _ => return Ok(false),
            }
        }
    }

    /// Counts an interim response of `len` bytes.
    ///
    /// # Errors
    /// `Corrupt` when the server sends too many.
    fn count_interim(&mut self, len: usize) -> Result<()> {
        let (count, bytes) = &mut self.interim;
        (*count, *bytes) = (*count + 1, *bytes + len);
        if *count <= INTERIM_MAX && *bytes <= INTERIM_BYTES_MAX {
            return Ok(());
        }
        self.spent = true;
        Err(nonsense("only interim answers come"))
    }

    /// After a failed write: whether the server's reason can still be read.
    async fn early_response(&mut self) -> bool {
        // The reason was sent before the reset, so it is here already or lost.
        const PATIENCE: Duration = Duration::from_millis(200);
        let end = Instant::now() + PATIENCE;
        loop {
            match ResponseHead::parse(self.read_buffer.rest(), false) {
                Ok(Some(_)) => return true,
                Ok(None) => {}
                Err(_) => return false,
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.fill(left, "").await.is_err() {
                return false;
            }
        }
    }

    /// Reads more into the buffer; an error at the end of the stream.
    async fn fill(&mut self, idle: Duration, doing: &'static str) -> Result<()> {
        self.read_more(READ_BYTES, [&mut [], &mut []], idle, doing).await.map(drop)
    }

    /// Reads at most `bytes` more into the buffer, and what comes behind them into `ahead_space`
    /// and then `spare`: how many those are.
    async fn read_more(
        &mut self,
        bytes: usize,
        [ahead_space, spare]: [&mut [u8]; 2],
        idle: Duration,
        doing: &'static str,
    ) -> Result<usize> {
        let Conn { stream, read_buffer, stall_timeout, .. } = self;
        let space = read_buffer.space(bytes);
        let got = match ahead_space.is_empty() {
            true => stall_timeout.wait(idle, |cx| stream.poll_fill(cx, space)).await,
            false => {
                stall_timeout
                    .wait(idle, |cx| {
                        stream.poll_read_pieces(cx, [&mut *space, &mut *ahead_space, &mut *spare])
                    })
                    .await
            }
        };
        // Also after an error, so that the buffer never counts bytes that were not read.
        let count = got.as_ref().and_then(|got| got.as_ref().ok()).copied().unwrap_or(0);
        read_buffer.commit(count.min(bytes));
        match got {
            Some(Ok(0)) => Err(broken(doing, io::ErrorKind::UnexpectedEof.into())),
            Some(got) => got.map(|_| count.saturating_sub(bytes)).map_err(|e| broken(doing, e)),
            None => Err(stalled("the server sends nothing", idle)),
        }
    }

    /// The head of the answer; interim ones are skipped. The body may begin in `ahead_space`, where
    /// the caller wants it; [`Conn::body`] counts those bytes. Of any other response the bytes
    /// there are invalid.
    pub async fn head(
        &mut self,
        bodiless: bool,
        idle: Duration,
        ahead_space: &mut [u8],
    ) -> Result<ResponseHead> {
        const DOING: &str = "waiting for the answer";
        // Space for one byte more than the expected response: if it stays empty, so is the socket.
        let mut spare = [0];
        // Only if the last body fitted: for a longer one the read fills the memory, and the byte
        // would have to be moved.
        let spared = usize::from(self.fitted);
        let got = match self.usual {
            // Heads of one store have the same length nearly always. Then the read stops exactly at
            // the end of the head, and the body goes where the caller wants it without a copy.
            (usual, true) if self.read_buffer.is_empty() && !ahead_space.is_empty() => {
                self.read_more(usual, [&mut *ahead_space, &mut spare[..spared]], idle, DOING)
                    .await?
            }
            _ => 0,
        };
        let mut behind = got.min(ahead_space.len());
        let mut spare = &spare[..got - behind];
        loop {
            let parsed = ResponseHead::parse(self.read_buffer.rest(), bodiless)?;
            if let Some((head, len)) = &parsed {
                self.read_buffer.skip(*len);
                // Only if the head ended exactly where it was expected to, and announces at least
                // those bytes as its body.
                if self.read_buffer.is_empty() && head.announces(behind) {
                    self.ahead = std::mem::take(&mut behind);
                }
            }
            // Otherwise it is not what was expected: what came behind is looked at like all else,
            // and copied.
            let more = std::mem::take(&mut behind);
            self.read_buffer.push(&ahead_space[..more]);
            self.read_buffer.push(std::mem::take(&mut spare));
            match parsed {
                Some((head, len)) if matches!(head.status, 100..=199) => self.count_interim(len)?,
                Some((head, len)) => {
                    if !ahead_space.is_empty() && head.is_success() {
                        self.usual = (len, len == self.usual.0 && len <= READ_BYTES);
                        self.fitted = matches!(head.framing, BodyFraming::Length(bytes) if bytes <= ahead_space.len() as u64);
                    }
                    // The body still comes on it.
                    self.spent |= head.closes;
                    return Ok(head);
                }
                // Longer than usual: the rest of it is there, and perhaps all there will ever be.
                None if more > 0 => {}
                None => self.fill(idle, DOING).await?,
            }
        }
    }
}

/// Nothing of what it carries: heads have tokens in them, and bodies secrets.
impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conn { target, reused, spent, .. } = self;
        f.debug_struct("Conn")
            .field("target", target)
            .field("reused", reused)
            .field("spent", spent)
            .finish_non_exhaustive()
    }
}

/// The number of bytes written, 0 when there are no more and all have gone out; or `None` when the
/// server said something, which is then in `read_buffer`, or closed.
fn poll_send(
    cx: &mut Context<'_>,
    stream: &mut Stream,
    rest: [&[u8]; 2],
    read_buffer: &mut ReadBuffer,
) -> Poll<io::Result<Option<usize>>> {
    let some = |wrote: io::Result<usize>| match wrote? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        bytes => Ok(Some(bytes)),
    };
    let wrote = match rest {
        [[], []] => Pin::new(&mut *stream).poll_flush(cx).map_ok(|()| Some(0)),
        [one, []] | [[], one] => Pin::new(&mut *stream).poll_write(cx, one).map(some),
        both => Pin::new(&mut *stream).poll_write_vectored(cx, &both.map(IoSlice::new)).map(some),
    };
    // Only when the socket takes no more is it asked for bytes of the server. So a server that
    // answers early is noticed exactly when sending makes no progress.
    if wrote.is_ready() {
        return wrote;
    }
    match ready!(stream.poll_fill(cx, read_buffer.space(READ_BYTES)))? {
        0 => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        got => {
            read_buffer.commit(got);
            Poll::Ready(Ok(None))
        }
    }
}

fn broken(doing: &'static str, e: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("the connection broke while {doing}")).with_source(e)
}

fn stalled(what: &'static str, idle: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("{what} for {} ms", idle.as_millis()))
}

fn nonsense(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the body makes no sense: {what}")).retryable(true)
}

#[cfg(test)]
mod flood_tests;
#[cfg(test)]
mod large_body_tests;
#[cfg(test)]
mod test_connections;
#[cfg(test)]
mod tests;
