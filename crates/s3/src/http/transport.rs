use std::sync::Arc;
use std::time::Duration;

use super::body_sink::BodySink;
use super::conn::{Conn, Sent};
use super::h2::Http2Stream;
use super::response_head::{BodyFraming, ResponseHead};
use super::silence::Silence;
use crate::error::Result;

/// Carries one request. Dropping it before its end closes the connection, or the stream.
#[derive(Debug)]
pub enum Transport {
    /// A connection of its own.
    Http1(Box<Conn>),
    /// A stream on a shared connection.
    Http2(Box<Http2Stream>),
}

impl Transport {
    /// Sends what was written and then `body`, listening meanwhile.
    pub async fn send(&mut self, body: &[u8], idle: Duration) -> Result<Sent> {
        match self {
            Transport::Http1(conn) => conn.send(body, idle).await,
            Transport::Http2(stream) => stream.send(body, idle).await,
        }
    }

    /// The head of the answer; interim ones are skipped. The body may begin in `ahead_space`, where
    /// the caller wants it.
    pub async fn head(
        &mut self,
        bodiless: bool,
        idle: Duration,
        ahead_space: &mut [u8],
    ) -> Result<ResponseHead> {
        match self {
            Transport::Http1(conn) => conn.head(bodiless, idle, ahead_space).await,
            Transport::Http2(stream) => stream.head(bodiless, idle).await,
        }
    }

    /// The body, all of it, into `sink`. What landed before an error is right as far as it goes.
    pub async fn body(
        &mut self,
        framing: BodyFraming,
        sink: BodySink<'_, '_>,
        idle: Duration,
    ) -> Result<()> {
        match self {
            Transport::Http1(conn) => conn.body(framing, sink, idle).await,
            Transport::Http2(stream) => stream.body(framing, sink, idle).await,
        }
    }

    /// Whether nothing moves for the request, for others to see.
    pub fn silence(&self) -> &Arc<Silence> {
        match self {
            Transport::Http1(conn) => conn.silence(),
            Transport::Http2(stream) => &stream.silence,
        }
    }

    /// Whether it leads over a connection that had served before.
    pub fn is_reused(&self) -> bool {
        match self {
            Transport::Http1(conn) => conn.reused,
            Transport::Http2(stream) => stream.reused,
        }
    }

    /// Whether any byte of an answer has come.
    pub fn has_received(&self) -> bool {
        match self {
            Transport::Http1(conn) => conn.has_received(),
            Transport::Http2(stream) => stream.has_received(),
        }
    }
}
