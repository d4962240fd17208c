use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use tokio::task::coop;

use super::super::body_sink::BodySink;
use super::super::conn::Sent;
use super::super::response_head::{BodyFraming, ResponseHead};
use super::super::silence::Silence;
use super::connection::Http2Connection;
use super::send_buffers::{self, FramePiece};
use crate::error::{Error, ErrorKind, Result};
use crate::local_clock::Instant;

type ResponseResult = Result<Response<RecvStream>, h2::Error>;

/// One request and its answer on a shared connection. Dropping it resets the stream, and leaves the
/// connection to the others.
pub struct Http2Stream {
    connection: Arc<Http2Connection>,
    /// The request under construction.
    pub request: Option<http::Request<()>>,
    sender: Option<SendStream<FramePiece>>,
    answer: Option<ResponseFuture>,
    early: Option<ResponseResult>,
    body: Option<RecvStream>,
    began: Instant,
    received: bool,
    /// Whether nothing moves for it.
    pub silence: Arc<Silence>,
    /// Whether the connection had served before.
    pub reused: bool,
    /// Object bytes that were copied.
    pub copied: u64,
    /// How the server or the connection ended it.
    pub end: Option<StreamEnd>,
}

/// What a failure says about the request and the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// The server says that it did nothing with the request.
    Unprocessed,
    /// The connection broke; the first to meet that holds it against the server.
    Broken { first: bool },
    /// The server reset this one request.
    Reset,
}

impl Http2Stream {
    /// The next request on `connection`.
    pub fn new(connection: Arc<Http2Connection>) -> Box<Self> {
        // Counted before the first await, or two requests would take the last place of a
        // connection.
        connection.enter();
        let reused = connection.has_served();
        let began = Instant::now();
        let (request, sender, answer, early, body, end) = Default::default();
        Box::new(Http2Stream {
            connection,
            request,
            sender,
            answer,
            early,
            body,
            began,
            received: false,
            silence: Arc::default(),
            reused,
            copied: 0,
            end,
        })
    }

    /// The `:authority`.
    pub fn authority(&self) -> &str {
        &self.connection.target.authority
    }

    /// The `:scheme`.
    pub fn scheme(&self) -> &'static str {
        if self.connection.target.tls { "https" } else { "http" }
    }

    /// Whether any byte of an answer has come.
    pub fn has_received(&self) -> bool {
        self.received
    }

    /// Sends [`Http2Stream::request`] and then `body`, listening meanwhile. Errors with `Timeout`
    /// when the server takes nothing for `idle`.
    pub async fn send(&mut self, body: &[u8], idle: Duration) -> Result<Sent> {
        let request = self.request.take().expect("a request is written before it is sent");
        let mut connection = self.connection.sender();
        // The server may have lowered its limit of streams since this connection was picked.
        let ready = self.silence.timeout(idle, poll_fn(|cx| connection.poll_ready(cx))).await;
        let ready = ready.map_err(|_| self.stalled("the server takes no request", idle))?;
        let opened = ready.and_then(|()| connection.send_request(request, body.is_empty()));
        let (answer, sender) = opened.map_err(|e| {
            // It never left.
            self.connection.retire();
            self.end = Some(StreamEnd::Unprocessed);
            failed("sending", e)
        })?;
        (self.answer, self.sender) = (Some(answer), Some(sender));
        self.send_body(body, idle).await
    }

    async fn send_body(&mut self, body: &[u8], idle: Duration) -> Result<Sent> {
        let silence = Arc::clone(&self.silence);
        let mut left = body;
        while !left.is_empty() {
            let capacity = poll_fn(|cx| self.poll_capacity_for(cx, left.len()));
            let capacity = match silence.timeout(idle, capacity).await {
                Ok(Some(capacity)) => capacity.map_err(|e| self.failed("sending", e))?,
                Ok(None) => return Ok(Sent::Early),
                Err(_) => return Err(self.stalled("the server takes no more bytes", idle)),
            };
            let (piece, rest) =
                // In pieces: each is copied, since the library owns what waits to be sent.
                left.split_at(capacity.min(left.len()).min(send_buffers::BYTES_MAX));
            let Some(sender) = &mut self.sender else { return Ok(Sent::Early) };
            let sent = sender.send_data(self.connection.stock.copy(piece), rest.is_empty());
            sent.map_err(|e| self.failed("sending", e))?;
            self.copied += piece.len() as u64;
            left = rest;
        }
        Ok(Sent::All)
    }

    /// Capacity for the next piece; `None` when the server has responded already.
    fn poll_capacity_for(
        &mut self,
        cx: &mut std::task::Context<'_>,
        left: usize,
    ) -> Poll<Option<Result<usize, h2::Error>>> {
        // The answer first: a server that has refused gives no more capacity, and the upload would
        // wait for it.
        if let Some(answer) = &mut self.answer
            && let Poll::Ready(answer) = Pin::new(answer).poll(cx)
        {
            self.answer = None;
            return Poll::Ready(match answer {
                Ok(answer) => {
                    self.early = Some(Ok(answer));
                    None
                }
                Err(e) => Some(Err(e)),
            });
        }
        let Some(sender) = &mut self.sender else { return Poll::Ready(None) };
        sender.reserve_capacity(left.min(send_buffers::BYTES_MAX));
        loop {
            match (sender.capacity(), std::task::ready!(sender.poll_capacity(cx))) {
                // Polled again: the library reports a change of capacity also where it is still
                // zero.
                (0, Some(Ok(0))) => {}
                // The stream is closed for sending: why is what the answer says.
                (_, None) => return Poll::Pending,
                (_, capacity) => return Poll::Ready(capacity),
            }
        }
    }

    /// The head of the answer.
    pub async fn head(&mut self, bodiless: bool, idle: Duration) -> Result<ResponseHead> {
        let answer = match (self.early.take(), &mut self.answer) {
            (Some(answer), _) => answer,
            (None, Some(answer)) => match self.silence.timeout(idle, answer).await {
                Ok(answer) => answer,
                Err(_) => return Err(self.stalled("the server sends nothing", idle)),
            },
            (None, None) => {
                return Err(Error::new(ErrorKind::Io, "the stream ended without an answer"));
            }
        };
        self.answer = None;
        let answer = answer.map_err(|e| self.failed("waiting for the answer", e))?;
        self.record_received();
        let (parts, body) = answer.into_parts();
        self.body = Some(body);
        ResponseHead::of(parts.status.as_u16(), &parts.headers, bodiless)
    }

    /// The body, all of it and not a byte more, into `sink`.
    pub async fn body(
        &mut self,
        framing: BodyFraming,
        mut sink: BodySink<'_, '_>,
        idle: Duration,
    ) -> Result<()> {
        let Some(mut body) = self.body.take() else { return Ok(()) };
        // Without a length the stream's end is the body's, and the library checks that it is
        // orderly.
        let mut left = match framing {
            BodyFraming::Length(bytes) => bytes,
            _ => u64::MAX,
        };
        loop {
            let piece = match self.silence.timeout(idle, body.data()).await {
                Ok(None) => break,
                Ok(Some(Ok(piece))) => piece,
                // The library counts too, and ends the stream when there is too much or too little.
                Ok(Some(Err(e))) if e.is_library() && e.is_reset() => {
                    return Err(misfit().with_source(e));
                }
                Ok(Some(Err(e))) => return Err(self.failed("reading the body", e)),
                Err(_) => return Err(self.stalled("the body stopped", idle)),
            };
            // Pieces that are there already cost no wait.
            // Without this one fast body would keep its thread from all other tasks.
            coop::consume_budget().await;
            self.record_received();
            left = left.checked_sub(piece.len() as u64).ok_or_else(misfit)?;
            sink.copy(&piece)?;
            self.copied += piece.len() as u64;
            // Only now may the server send more.
            drop(body.flow_control().release_capacity(piece.len()));
        }
        if left > 0 && matches!(framing, BodyFraming::Length(_)) {
            let what = format!("the body ended {left} bytes before its announced length");
            return Err(Error::new(ErrorKind::Io, what));
        }
        self.connection.served();
        Ok(())
    }

    fn record_received(&mut self) {
        self.received = true;
        self.connection.record_received();
    }

    fn stalled(&mut self, what: &'static str, idle: Duration) -> Error {
        // It may be the whole connection: others should not find that out one by one.
        self.connection.retire();
        Error::new(ErrorKind::Timeout, format!("{what} for {} ms", idle.as_millis()))
    }

    fn failed(&mut self, doing: &'static str, e: h2::Error) -> Error {
        // The protocol guarantees that streams behind a GOAWAY and refused ones were not processed.
        let refused =
            e.is_remote() && (e.is_go_away() || e.reason() == Some(Reason::REFUSED_STREAM));
        // A reset concerns this stream alone.
        if !e.is_reset() {
            self.connection.retire();
        }
        self.end = Some(match () {
            () if refused && !self.received => StreamEnd::Unprocessed,
            () if e.is_reset() => StreamEnd::Reset,
            () => StreamEnd::Broken { first: self.connection.take_blame() },
        });
        failed(doing, e)
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        // Dropped by a deadline before anything came: the connection may be dead.
        let silent = !self.received && self.end.is_none();
        self.connection.leave(silent.then_some(self.began));
    }
}

impl fmt::Debug for Http2Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2Stream")
            .field("received", &self.received)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

fn failed(doing: &'static str, e: h2::Error) -> Error {
    let (kind, what) = match e.reason() {
        Some(Reason::ENHANCE_YOUR_CALM) => {
            (ErrorKind::Throttled, "the server asks to slow down".into())
        }
        Some(Reason::HTTP_1_1_REQUIRED) => {
            (ErrorKind::Unsupported, "the server wants HTTP/1.1: set http2 to off".into())
        }
        Some(_) if e.is_reset() => (ErrorKind::Io, format!("the stream was reset while {doing}")),
        _ => (ErrorKind::Io, format!("the HTTP/2 connection broke while {doing}")),
    };
    Error::new(kind, what).with_source(e)
}

fn misfit() -> Error {
    Error::new(ErrorKind::Corrupt, "the body is not as long as it was announced to be")
        .retryable(true)
}
