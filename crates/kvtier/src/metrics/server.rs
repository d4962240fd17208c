//! A minimal HTTP server that Prometheus can scrape.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{MonitoredTier, prometheus};

/// How long a client may take to send its request, and again to read the response.
const CLIENT_MAX: Duration = Duration::from_secs(5);
/// The longest request that is read, in bytes.
const REQUEST_MAX: usize = 8 << 10;

/// The pause after `accept` failed: the process may lack descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves `/metrics` until it is dropped: one client at a time, on a thread of its own.
///
/// ```
/// # #[cfg(feature = "config")] {
/// use kvtier::config::Config;
/// use kvtier::metrics::MetricsServer;
///
/// let stack = Config::new().with_host(16 << 20).open()?;
/// let server = MetricsServer::start("127.0.0.1:0", stack.monitored().to_vec())?;
/// println!("http://{}/metrics", server.address());
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    now: Arc<Now>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the server has stopped, and the client that it serves.
#[derive(Debug, Default)]
struct Now {
    is_over: AtomicBool,
    client: Mutex<Option<TcpStream>>,
}

impl Now {
    fn client(&self) -> MutexGuard<'_, Option<TcpStream>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a client, unless the server has stopped. Errors of the client are ignored.
    fn serve(&self, client: TcpStream, tiers: &[MonitoredTier]) -> io::Result<()> {
        // First the client is stored, then the flag is read. `drop` sets the flag first and takes
        // the client then, so one of the two sees the other.
        *self.client() = Some(client.try_clone()?);
        if !self.is_over.load(Ordering::Acquire) {
            let _ = answer(client, tiers);
        }
        *self.client() = None;
        Ok(())
    }
}

impl MetricsServer {
    /// Listens at `address` (port 0: any free port) and serves the metrics of these tiers.
    pub fn start(address: impl ToSocketAddrs, tiers: Vec<MonitoredTier>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let now = Arc::<Now>::default();
        let theirs = Arc::clone(&now);
        let serve = move || {
            for client in listener.incoming() {
                if theirs.is_over.load(Ordering::Acquire) {
                    return;
                }
                // An accept that fails for lack of descriptors fails again at once. Without a pause
                // this thread would use a whole core.
                if client.and_then(|client| theirs.serve(client, &tiers)).is_err() {
                    std::thread::sleep(PAUSE);
                }
            }
        };
        let thread = std::thread::Builder::new().name("kvtier-metrics".into()).spawn(serve)?;
        Ok(MetricsServer { address, now, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.now.is_over.store(true, Ordering::Release);
        // A slow client is disconnected.
        if let Some(client) = self.now.client().take() {
            let _ = client.shutdown(Shutdown::Both);
        }
        // Wakes it up.
        drop(TcpStream::connect_timeout(&self.address, CLIENT_MAX));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads the head of a request, within bounds of length and time.
fn read(mut client: &TcpStream) -> io::Result<String> {
    let began = Instant::now();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        // The timeout of a socket counts anew with each read. A client that sends a byte now and
        // then would hold the only thread, so the time left is set each time.
        client.set_read_timeout(Some(left_of(began)?))?;
        match client.read(&mut piece)? {
            0 => break,
            n => head.extend_from_slice(&piece[..n]),
        }
        // A request of Prometheus has a few hundred bytes.
        if head.len() > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn answer(client: TcpStream, tiers: &[MonitoredTier]) -> io::Result<()> {
    let asked = read(&client)?;
    let first = asked.lines().next().unwrap_or_default();
    let (status, kind, body) = match first.split(' ').collect::<Vec<_>>().as_slice() {
        ["GET", "/metrics", ..] => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", prometheus(tiers))
        }
        ["GET", ..] => ("404 Not Found", "text/plain", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    write(&client, &[head.as_bytes(), body.as_bytes()].concat())
}

/// Writes everything within one deadline for the whole response.
fn write(mut client: &TcpStream, mut rest: &[u8]) -> io::Result<()> {
    let began = Instant::now();
    while !rest.is_empty() {
        // As for reading: the deadline is that of the whole response.
        client.set_write_timeout(Some(left_of(began)?))?;
        match client.write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => rest = &rest[n..],
        }
    }
    Ok(())
}

/// The rest of a client's time.
fn left_of(began: Instant) -> io::Result<Duration> {
    let left = CLIENT_MAX.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
    left.ok_or_else(|| io::ErrorKind::TimedOut.into())
}
