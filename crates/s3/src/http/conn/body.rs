//! The body of a response: its framing, and the reads into the caller's memory.

use std::time::Duration;

use tokio::task::coop;

use super::{Conn, broken, nonsense, stalled};
use crate::error::{Error, ErrorKind, Result};
use crate::http::body_sink::BodySink;
use crate::http::receive_low_water::LowWater;
use crate::http::response_head::{BodyFraming, HEAD_BYTES_MAX};
use crate::http::stall_timeout::StallTimeout;
use crate::http::stream::Stream;

/// A chunk's header has at most this many bytes.
const CHUNK_LINE_MAX: usize = 256;
/// One answer has no more bytes of trailers behind it.
const TRAILERS_BYTES_MAX: usize = HEAD_BYTES_MAX;

impl Conn {
    /// The body, all of it, into `sink`. On an error the connection is spent; what landed before it
    /// is right as far as it goes.
    pub async fn body(
        &mut self,
        framing: BodyFraming,
        mut sink: BodySink<'_, '_>,
        idle: Duration,
    ) -> Result<()> {
        // Set before the first read: whatever ends this future early, an error or a drop, leaves a
        // connection that is not used again.
        let spent = std::mem::replace(&mut self.spent, true);
        match framing {
            BodyFraming::Length(bytes) => self.take(bytes, &mut sink, idle).await?,
            BodyFraming::Chunked => self.chunks(&mut sink, idle).await?,
            // The connection stays spent, since its end was the end of the body.
            BodyFraming::UntilClose => return self.rest(&mut sink, idle).await,
        }
        self.low_water.reset(&self.stream);
        self.spent = spent;
        Ok(())
    }

    /// Exactly `left` bytes: first what came with the head, then from the socket to where they
    /// belong.
    async fn take(
        &mut self,
        mut left: u64,
        sink: &mut BodySink<'_, '_>,
        idle: Duration,
    ) -> Result<()> {
        left -= self.ahead as u64;
        // First the bytes that the read of the head already placed, then those in the buffer, then
        // the socket: the order of the stream.
        sink.received(std::mem::take(&mut self.ahead))?;
        let here = self.read_buffer.rest().len().min(usize::try_from(left).unwrap_or(usize::MAX));
        sink.copy(&self.read_buffer.rest()[..here])?;
        self.read_buffer.skip(here);
        self.copied += here as u64;
        left -= here as u64;
        while left > 0 {
            self.low_water.set(&self.stream, left);
            let space = sink.space(usize::try_from(left).unwrap_or(usize::MAX))?;
            let len = space.len();
            let Conn { stream, stall_timeout, low_water, .. } = self;
            let got = read(stream, space, stall_timeout, low_water, idle).await;
            // Also after an error: the space was extended for this read.
            sink.filled(*got.as_ref().unwrap_or(&0), len);
            match got? {
                0 => return Err(short(left)),
                got => left -= got as u64,
            }
        }
        // What comes behind may be a few bytes only.
        self.low_water.set(&self.stream, 0);
        Ok(())
    }

    async fn chunks(&mut self, sink: &mut BodySink<'_, '_>, idle: Duration) -> Result<()> {
        loop {
            let line = self.line(idle).await?;
            match hex(&line).ok_or_else(|| nonsense("a chunk has no size"))? {
                0 => break,
                size => self.take(size, sink, idle).await?,
            }
            // The line end behind a chunk. Anything else means that the size was wrong, and all
            // later sizes are, too.
            if !self.line(idle).await?.is_empty() {
                return Err(nonsense("a chunk is longer than it said"));
            }
        }
        // Trailers are read to their end, since the next answer follows behind them, and are not
        // used.
        let mut trailers = 0;
        loop {
            match self.line(idle).await?.len() {
                0 => return Ok(()),
                len => trailers += len,
            }
            if trailers > TRAILERS_BYTES_MAX {
                return Err(nonsense("its trailers have no end"));
            }
        }
    }

    /// The next line, without its end.
    async fn line(&mut self, idle: Duration) -> Result<Vec<u8>> {
        // What is there already costs no wait: without this the tasks beside would not run until it
        // is used up.
        coop::consume_budget().await;
        loop {
            let rest = self.read_buffer.rest();
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]).to_vec();
                self.read_buffer.skip(end + 1);
                return Ok(line);
            }
            // A server that sends no line end must not fill the memory.
            if rest.len() > CHUNK_LINE_MAX {
                return Err(nonsense("a chunk's header has no end"));
            }
            self.fill(idle, "reading the body").await?;
        }
    }

    /// Everything until the server closes.
    async fn rest(&mut self, sink: &mut BodySink<'_, '_>, idle: Duration) -> Result<()> {
        // What came with the head.
        sink.copy(self.read_buffer.rest())?;
        self.read_buffer.clear();
        loop {
            let space = sink.space(HEAD_BYTES_MAX)?;
            let len = space.len();
            let Conn { stream, stall_timeout, low_water, .. } = self;
            let got = read(stream, space, stall_timeout, low_water, idle).await;
            sink.filled(*got.as_ref().unwrap_or(&0), len);
            if got? == 0 {
                return Ok(());
            }
        }
    }
}

/// Reads some of a body. Errors with `Timeout` when no byte comes for `idle`.
async fn read(
    stream: &mut Stream,
    space: &mut [u8],
    stall_timeout: &mut StallTimeout,
    low_water: &mut LowWater,
    mut idle: Duration,
) -> Result<usize> {
    let whole = idle;
    let mut got = None;
    // A kernel that does not wake at the mark must not look like a dead server. After half of the
    // time the mark is taken away, and the rest of the wait is an ordinary one.
    if low_water.is_raised() {
        idle /= 2;
        got = stall_timeout.wait(idle, |cx| stream.poll_fill(cx, space)).await;
        if got.is_none() {
            low_water.disable(stream);
        }
    }
    if got.is_none() {
        got = stall_timeout.wait(idle, |cx| stream.poll_fill(cx, space)).await;
    }
    match got {
        Some(got) => got.map_err(|e| broken("reading the body", e)),
        None => Err(stalled("the body stopped", whole)),
    }
}

/// The size at the start of a chunk's header: hex digits only, no sign.
fn hex(line: &[u8]) -> Option<u64> {
    let size = std::str::from_utf8(line).ok()?.split(';').next()?.trim();
    let is_hex = size.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(size, 16).ok()).flatten()
}

fn short(left: u64) -> Error {
    Error::new(ErrorKind::Io, format!("the body ended {left} bytes before its announced length"))
}
