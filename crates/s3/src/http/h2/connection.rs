use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use h2::client::SendRequest;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::super::response_head::HEAD_BYTES_MAX;
use super::super::stream::Stream;
use super::super::target::Target;
use super::send_buffers::{FramePiece, Stock};
use crate::error::{Error, ErrorKind, Result};
use crate::local_clock::Instant;

/// What the server may send of one body before we fetch it: most bodies whole.
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
/// What it may send on one connection before we fetch it, and so the most memory that a connection
/// ever holds.
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const FRAME_BYTES_MAX: u32 = 64 << 10;
/// What waits to be sent, for each request.
const SEND_BYTES_MAX: usize = 1 << 20;
/// How long a connection without users may take to say goodbye.
const LINGER: Duration = Duration::from_secs(5);

/// One HTTP/2 connection. When the last of its users is gone, so is it.
pub struct Http2Connection {
    /// Where it leads.
    pub target: Arc<Target>,
    send: SendRequest<FramePiece>,
    /// What bodies are sent in.
    pub stock: Stock,
    born: Instant,
    active: AtomicUsize,
    served: AtomicU64,
    /// When anything was last received on it, in microseconds since it was made.
    received_us: AtomicU64,
    retired: AtomicBool,
    blamed: AtomicBool,
    closed: Arc<AtomicBool>,
    gone: Arc<Notify>,
    changed: Arc<Notify>,
}

impl Http2Connection {
    /// Speaks HTTP/2 over `stream`. Notifies `changed` whenever it may have capacity for another
    /// request.
    pub async fn start(
        stream: Stream,
        target: Arc<Target>,
        changed: Arc<Notify>,
    ) -> Result<Arc<Self>> {
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("64 KiB"))
            .max_send_buffer_size(SEND_BYTES_MAX)
            // Until the server has said how many it takes.
            .initial_max_send_streams(1)
            .enable_push(false);
        let (send, mut connection) = builder.handshake(stream).await.map_err(|e| {
            Error::new(ErrorKind::Io, format!("{target} broke off before HTTP/2 began"))
                .with_source(e)
        })?;
        let closed = Arc::new(AtomicBool::new(false));
        let gone = Arc::new(Notify::new());
        let ended = Arc::clone(&closed);
        let left = Arc::clone(&gone);
        let notify_limit = Arc::clone(&changed);
        let notify_end = Arc::clone(&changed);
        let mut streams_max = connection.max_concurrent_send_streams();
        // One task moves all frames of the connection, also those of streams whose users wait for
        // something else.
        let mut drive = move |cx: &mut Context<'_>| {
            let ended = Pin::new(&mut connection).poll(cx).is_ready();
            if std::mem::replace(&mut streams_max, connection.max_concurrent_send_streams())
                // The first SETTINGS of the server raise the limit of one: requests that wait for a
                // place go on.
                != streams_max
            {
                notify_limit.notify_waiters();
            }
            if ended { Poll::Ready(()) } else { Poll::Pending }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = poll_fn(&mut drive) => {}
                // The last frames are sent, but a server that takes none must not keep the task
                // alive.
                () = left.notified() => drop(timeout(LINGER, poll_fn(&mut drive)).await),
            }
            // The requests in flight report why it ended.
            ended.store(true, Ordering::Release);
            notify_end.notify_waiters();
        });
        let (active, served, received_us) = Default::default();
        let born = Instant::now();
        let retired = AtomicBool::new(false);
        let blamed = AtomicBool::new(false);
        let stock = Stock::default();
        Ok(Arc::new(Http2Connection {
            target,
            send,
            stock,
            born,
            active,
            served,
            received_us,
            retired,
            blamed,
            closed,
            gone,
            changed,
        }))
    }

    /// To send requests by.
    pub fn sender(&self) -> SendRequest<FramePiece> {
        self.send.clone()
    }

    /// Whether new requests may use it.
    pub fn is_usable(&self) -> bool {
        !self.retired.load(Ordering::Acquire) && !self.closed.load(Ordering::Acquire)
    }

    /// Whether the server allows one more request on it.
    pub fn has_capacity(&self) -> bool {
        self.active() < self.send.current_max_send_streams()
    }

    /// Requests on it.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Whether it answered a request before.
    pub fn has_served(&self) -> bool {
        self.served.load(Ordering::Acquire) > 0
    }

    /// How long no request has used it.
    pub fn idle(&self) -> Duration {
        self.born
            .elapsed()
            .saturating_sub(Duration::from_micros(self.received_us.load(Ordering::Acquire)))
    }

    /// One more request.
    pub fn enter(&self) {
        self.active.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends a request. `silent_since` is the start of a request that received nothing. If no other
    /// request has received anything since then either, the connection may be dead, and gets no
    /// more requests.
    pub fn leave(&self, silent_since: Option<Instant>) {
        if silent_since.is_some_and(|since| {
            self.born + Duration::from_micros(self.received_us.load(Ordering::Acquire)) <= since
        }) {
            self.retire();
        }
        self.active.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// Something came.
    pub fn record_received(&self) {
        let now = u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX);
        // The largest: two streams may report in the other order.
        self.received_us.fetch_max(now, Ordering::AcqRel);
    }

    /// A request was answered in full.
    pub fn served(&self) {
        self.served.fetch_add(1, Ordering::AcqRel);
    }

    /// It gets no more requests; those on it may end.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Whether its end has not been held against the server yet: the end of one connection is one
    /// failure, however many requests it meets.
    pub fn take_blame(&self) -> bool {
        !self.blamed.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.gone.notify_one();
    }
}

impl fmt::Debug for Http2Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2Connection")
            .field("active", &self.active())
            .field("usable", &self.is_usable())
            .finish_non_exhaustive()
    }
}
