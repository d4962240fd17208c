use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::conn::Conn;
use super::dial::{Dialer, Target};
use crate::error::Result;
use crate::probe::Connection;

/// Boxed as they are handed out, so that only pointers move.
type Idle = Vec<Box<Conn>>;

/// Idle connections, the last used first: those at the bottom age until they are closed. There are never more than requests were
/// once in flight, since a new one is opened only when none is idle.
#[derive(Debug)]
pub struct Pool {
    dialer: Dialer,
    idle: Mutex<Idle>,
    idle_max: Duration,
}

impl Pool {
    /// Connections are closed after `idle_max` without use, which should be less than the server's own limit.
    pub fn new(dialer: Dialer, idle_max: Duration) -> Self {
        Pool { dialer, idle: Mutex::default(), idle_max }
    }

    /// A connection that served before and looks alive.
    pub fn reuse(&self, target: &Arc<Target>) -> Option<Box<Conn>> {
        let mut idle = self.idle();
        while let Some(mut conn) = idle.pop() {
            if conn.target == *target && conn.parked.elapsed() < self.idle_max && conn.is_usable() {
                conn.reused = true;
                return Some(conn);
            }
        }
        None
    }

    /// A new connection.
    pub async fn open(&self, target: &Arc<Target>) -> Result<Box<Conn>> {
        self.dialer.connect(target).await
    }

    /// How a connection comes about.
    pub async fn survey(&self, target: &Target) -> Result<Connection> {
        self.dialer.survey(target).await
    }

    /// Keeps a connection for later, if it can serve again.
    pub fn put(&self, mut conn: Box<Conn>) {
        if !conn.is_usable() {
            return;
        }
        conn.parked = Instant::now();
        let mut idle = self.idle();
        let old = idle.iter().take_while(|conn| conn.parked.elapsed() >= self.idle_max).count();
        idle.drain(..old);
        idle.push(conn);
    }

    /// How many are idle.
    pub fn idle_len(&self) -> usize {
        self.idle().len()
    }

    /// Closes all that are idle.
    pub fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
