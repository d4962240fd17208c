use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::conn::Conn;
use super::dial::Dialer;
use super::h2::{Http2Connections, Http2Stream, Pick};
use super::target::Target;
use super::transport::Transport;
use crate::error::Result;
use crate::http::Connection;
use crate::local_clock::Instant;

/// How a transport was obtained.
#[derive(Debug)]
pub enum Opened {
    /// A new connection that speaks HTTP/1.1.
    Http1(Box<Conn>),
    /// A new one that speaks HTTP/2.
    Http2(Box<Http2Stream>),
    /// One that was there.
    Shared(Box<Http2Stream>),
}

/// Boxed as they are handed out, so that only pointers move.
type Idle = Vec<Box<Conn>>;

/// Idle connections, the last used first: those at the bottom age until they are closed. There are
/// never more than requests were once in flight, since a new one is opened only when none is idle.
#[derive(Debug)]
pub struct ConnectionPool {
    dialer: Dialer,
    idle: Mutex<Idle>,
    http2: Http2Connections,
    idle_max: Duration,
}

impl ConnectionPool {
    /// Connections are closed after `idle_max` without use, which should be less than the server's
    /// own limit.
    pub fn new(dialer: Dialer, idle_max: Duration) -> Self {
        ConnectionPool {
            dialer,
            idle: Mutex::default(),
            http2: Http2Connections::default(),
            idle_max,
        }
    }

    /// A transport over an idle or shared connection that looks alive.
    pub fn reuse(&self, target: &Arc<Target>, now: Instant) -> Option<Transport> {
        // Shared connections first; idle ones of HTTP/1.1 exist beside them only where the server
        // chose that.
        if self.dialer.may_speak_http2(target)
            && let Some(stream) = self.http2.share(target, self.idle_max)
        {
            return Some(Transport::Http2(stream));
        }
        let mut idle = self.idle();
        // From the end, where the last used are: those are the likeliest to be alive. Whatever is
        // not usable is dropped on the way, which closes it.
        while let Some(mut conn) = idle.pop() {
            let idle = now.saturating_duration_since(conn.parked);
            if conn.target == *target
                && idle < self.idle_max
                && conn.is_usable()
                // One system call. It spares the request a round trip on a connection that the
                // server has closed.
                && !conn.is_stale()
            {
                conn.reused = true;
                return Some(Transport::Http1(conn));
            }
        }
        None
    }

    /// A transport over a new connection, or a shared one when there are as many as there may be.
    pub async fn open(&self, target: &Arc<Target>) -> Result<Opened> {
        if !self.dialer.may_speak_http2(target) {
            return Ok(Opened::Http1(Conn::new(
                self.dialer.connect(target).await?,
                Arc::clone(target),
            )));
        }
        let dialing = match self.http2.pick(target, self.idle_max).await {
            Pick::Use(stream) => return Ok(Opened::Shared(stream)),
            Pick::Dial(dialing) => dialing,
        };
        let stream = self.dialer.connect(target).await?;
        if self.dialer.speaks_http2(target, &stream) {
            return Ok(Opened::Http2(dialing.two(stream, target).await?));
        }
        // Requests that waited for this handshake now open connections of their own.
        dialing.one();
        Ok(Opened::Http1(Conn::new(stream, Arc::clone(target))))
    }

    /// Whether its name leads anywhere: errors where it does not.
    pub async fn resolve(&self, target: &Target) -> Result<()> {
        self.dialer.resolve(target).await
    }

    /// How a connection comes about.
    pub async fn survey(&self, target: &Target) -> Result<Connection> {
        self.dialer.survey(target).await
    }

    /// Keeps a connection for later, if it can serve again. (A shared one was never taken away.)
    pub fn put(&self, transport: Transport) {
        let Transport::Http1(mut conn) = transport else { return };
        // A response that was not read to its end is still in the socket.
        if !conn.is_usable() {
            return;
        }
        let now = Instant::now();
        conn.parked = now;
        let mut idle = self.idle();
        let old = idle
            .iter()
            // The list is in the order of parking, so the old ones are in front. Here they are
            // closed, since no timer does it.
            .take_while(|conn| now.saturating_duration_since(conn.parked) >= self.idle_max)
            .count();
        idle.drain(..old);
        idle.push(conn);
    }

    /// The store did not answer: its name may have moved. Where nothing moved at all (`silent`),
    /// the idle connections may be as dead.
    pub fn invalidate_dns(&self, silent: bool) {
        self.dialer.invalidate_dns();
        if silent {
            self.clear();
        }
    }

    /// How many are idle.
    pub fn idle_len(&self) -> usize {
        self.idle().len() + self.http2.idle_len()
    }

    /// Closes all that are idle and not shared: of those we know when they end.
    pub fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
