use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::super::stream::Stream;
use super::super::target::Target;
use super::connection::Http2Connection;
use super::stream::Http2Stream;
use crate::error::Result;

/// The most connections that are opened to share: one alone is one congestion window and one core
/// of the server. Fewer than failures open the breaker, so that a restart of the server does not.
const LINKS_MAX: usize = 4;

/// The shared connections of one client, all to the same server.
#[derive(Debug, Default)]
pub struct Http2Connections {
    state: Mutex<State>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    target: Option<Arc<Target>>,
    all: Vec<Arc<Http2Connection>>,
    dialing: usize,
    /// What the last handshake chose.
    chosen: Option<bool>,
}

/// What a request does.
#[derive(Debug)]
pub enum Pick<'a> {
    /// It uses this connection.
    Use(Box<Http2Stream>),
    /// It opens another one.
    Dial(Dialing<'a>),
}

/// Leave to open one connection.
#[derive(Debug)]
pub struct Dialing<'a>(&'a Http2Connections);

impl Http2Connections {
    /// A connection that is idle, or shared when there are enough. `None` when one should be
    /// opened.
    pub fn share(&self, target: &Arc<Target>, idle_max: Duration) -> Option<Box<Http2Stream>> {
        let mut state = self.state();
        state.prune(target, idle_max);
        // A new connection is worth its handshake only if no other one is idle.
        if state.may_dial() && state.all.iter().all(|connection| connection.active() > 0) {
            return None;
        }
        state.least()
    }

    /// Waits until there is a connection to share or leave to open one. Only one is opened until it
    /// is known what the server speaks.
    pub async fn pick(&self, target: &Arc<Target>, idle_max: Duration) -> Pick<'_> {
        loop {
            // Created before the state is looked at, so that a change between the look and the wait
            // is not missed.
            let changed = self.changed.notified();
            {
                let mut state = self.state();
                state.prune(target, idle_max);
                if state.may_dial() {
                    state.dialing += 1;
                    return Pick::Dial(Dialing(self));
                }
                if let Some(stream) = state.least() {
                    return Pick::Use(stream);
                }
            }
            changed.await;
        }
    }

    /// The number of connections without a request.
    pub fn idle_len(&self) -> usize {
        self.state()
            .all
            .iter()
            .filter(|connection| connection.is_usable() && connection.active() == 0)
            .count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dialing<'_> {
    /// The server chose HTTP/2: this is the new connection's first request.
    pub async fn two(self, stream: Stream, target: &Arc<Target>) -> Result<Box<Http2Stream>> {
        let connection =
            Http2Connection::start(stream, Arc::clone(target), Arc::clone(&self.0.changed)).await?;
        let mut state = self.0.state();
        state.chosen = Some(true);
        let stream = Http2Stream::new(Arc::clone(&connection));
        // The client may have moved to another region during the handshake. This request uses it,
        // and no other.
        if state.target.as_ref() == Some(target) {
            state.all.push(connection);
        }
        Ok(stream)
    }

    /// The server chose HTTP/1.1.
    pub fn one(self) {
        self.0.state().chosen = Some(false);
    }
}

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        // On success and failure alike: requests that wait may dial now, or share the new connection.
        state.dialing -= 1;
        drop(state);
        self.0.changed.notify_waiters();
    }
}

impl State {
    /// Forgets connections that ended, idled too long, or lead elsewhere.
    fn prune(&mut self, target: &Arc<Target>, idle_max: Duration) {
        if self.target.as_ref() != Some(target) {
            // Another host may speak another protocol.
            (self.target, self.chosen) = (Some(Arc::clone(target)), None);
            self.all.clear();
        }
        self.all.retain(|connection| {
            connection.is_usable() && (connection.active() > 0 || connection.idle() < idle_max)
        });
    }

    fn may_dial(&self) -> bool {
        match self.chosen {
            None => self.dialing == 0,
            Some(true) => self.all.len() + self.dialing < LINKS_MAX,
            // These are not shared; how many there are is up to the limit on requests.
            Some(false) => true,
        }
    }

    /// A request on the connection with the fewest, if the server allows one more.
    fn least(&self) -> Option<Box<Http2Stream>> {
        let connection = self
            .all
            .iter()
            .filter(|connection| connection.has_capacity())
            .min_by_key(|connection| connection.active())?;
        Some(Http2Stream::new(Arc::clone(connection)))
    }
}
