//! The smallest HTTP server that Prometheus can scrape.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Shown, prometheus};

/// How long a client may take to ask and to listen.
const CLIENT_MAX: Duration = Duration::from_secs(5);
/// The longest request that is read, in bytes.
const REQUEST_MAX: usize = 8 << 10;

/// Serves `/metrics` until it is dropped: one client at a time, on a thread of its own.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `address` (port 0: one that is free) and shows these tiers.
    pub fn start(address: impl ToSocketAddrs, tiers: Vec<Shown>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let (address, over) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&over);
        let serve = move || {
            for client in listener.incoming() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                // A client that goes away is its own loss.
                let _ = client.and_then(|client| answer(client, &tiers));
            }
        };
        let thread = std::thread::Builder::new().name("kvtier-metrics".into()).spawn(serve)?;
        Ok(Server { address, over, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // Wakes it up.
        drop(TcpStream::connect_timeout(&self.address, CLIENT_MAX));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The request's head, as long as it is not too long and comes in time.
fn read(mut client: &TcpStream) -> io::Result<String> {
    let (began, mut head, mut piece) = (Instant::now(), Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = CLIENT_MAX.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
        client.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match client.read(&mut piece)? {
            0 => break,
            n => head.extend_from_slice(&piece[..n]),
        }
        if head.len() > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn answer(client: TcpStream, tiers: &[Shown]) -> io::Result<()> {
    client.set_write_timeout(Some(CLIENT_MAX))?;
    let asked = read(&client)?;
    let first = asked.lines().next().unwrap_or_default();
    let (status, kind, body) = match first.split(' ').collect::<Vec<_>>().as_slice() {
        ["GET", "/metrics", ..] => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", prometheus(tiers)),
        ["GET", ..] => ("404 Not Found", "text/plain", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (&client).write_all(&[head.as_bytes(), body.as_bytes()].concat())
}
