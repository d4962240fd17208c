//! What the integration tests share: a server, a client for it, memory with known bytes.
#![allow(dead_code)]

pub mod front;
pub mod proxy;
pub mod remote;
pub mod rss;
pub mod scene;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvtier_mem::{Arena, ArenaConfig, Lease, View};
use kvtier_s3::{BucketAddress, Client, Config, Credentials, Endpoint, Error, Http2, RootCerts};
use kvtier_testkit::s3::{Server, Setup, ca_pem};
use tokio::net::TcpSocket;

pub const MIB: usize = 1 << 20;

/// Bytes that differ at every offset that matters.
pub fn pattern(len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(len as u64 + 1);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// Whether this is a suite that runs over HTTP/2: those are named `http2_...` and share everything
/// else with the ones without.
pub const HTTP2: bool =
    matches!(env!("CARGO_CRATE_NAME").as_bytes(), [b'h', b't', b't', b'p', b'2', ..]);

pub fn server(change: impl FnOnce(&mut Setup)) -> Server {
    let mut setup = Setup::default();
    change(&mut setup);
    if HTTP2 { Server::start_http2(setup) } else { Server::start(setup) }.unwrap()
}

pub fn endpoint(server: &Server, bucket: &str) -> Endpoint {
    BucketAddress::new(server.url()).bucket(bucket).region("us-east-1").resolve().unwrap()
}

/// How long nothing may move on a connection in tests where something does stand still:
/// [`jump_until`] passes it.
pub const STALL_MAX: Duration = Duration::from_secs(120);

/// Settings with which nothing fails because this machine is busy.
pub fn config(server: &Server) -> Config {
    config_of(endpoint(server, "bucket"))
}

pub fn config_of(endpoint: Endpoint) -> Config {
    let mut config = Config::new(endpoint, Credentials::new("AKIDTEST", "secret/test+key"));
    config.deadline = Duration::from_secs(3600);
    config.stall_max = Duration::from_secs(600);
    config.connect_max = Duration::from_secs(600);
    config.idle_max = Duration::from_secs(3600);
    config.requests_max = 16;
    if HTTP2 {
        config.http2 = Http2::PriorKnowledge;
        config.root_certs = RootCerts::Pem(ca_pem().into());
    }
    config
}

pub fn client(server: &Server) -> Client {
    Client::new(config(server))
}

/// Memory, and a way to see that all of it was returned.
pub struct Memory(Arena);

impl Memory {
    pub fn new() -> Self {
        Memory(Arena::new(ArenaConfig::heap(128 * MIB)).unwrap())
    }

    pub fn lease(&self, len: usize) -> Lease {
        self.0.lease(len).unwrap()
    }

    pub fn view(&self, bytes: &[u8]) -> View {
        let mut lease = self.lease(bytes.len());
        lease.write_at(0, bytes).unwrap();
        lease.freeze()
    }

    pub fn is_whole(&self) -> bool {
        self.0.stats().free == self.0.stats().capacity
    }
}

/// Waits until it is so; panics when it is not within ten minutes of the machine's time.
pub async fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(600), "not within ten minutes: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Lets the clock of this test's runtime jump. It runs on before and after, since servers and
/// sockets go by the machine's.
pub async fn jump(time: Duration) {
    tokio::time::pause();
    let _running = RunningAgain;
    tokio::time::advance(time).await;
}

/// Lets a paused clock run on, also where the jump is dropped.
struct RunningAgain;

impl Drop for RunningAgain {
    fn drop(&mut self) {
        tokio::time::resume();
    }
}

/// Lets it jump until it is so. A waiter may not have begun when the first jump comes, hence the
/// others. All that waits jumps along, so let `is_so` be what this process sees at once, such as
/// counts of a client: by the time a server sees it, what follows may be over.
pub async fn jump_until(time: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(600), "not within ten minutes: {what}");
        jump(time).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs `work` to its end, and lets the clock jump by `time` again and again from when `is_stuck`
/// says so.
pub async fn jumping<T>(
    time: Duration,
    is_stuck: impl FnMut() -> bool,
    work: impl Future<Output = T>,
) -> T {
    let jumps = async {
        soon("it hangs", is_stuck).await;
        jump_until(time, "it gives up", || false).await;
    };
    tokio::select! {
        done = work => done,
        () = jumps => unreachable!("the work ends it"),
    }
}

/// Repeats `work` until it succeeds, each time with twice the time from `first` to `most`: how long
/// a success takes is the machine's to say.
pub async fn until_well<T>(
    client: &Client,
    [first, most]: [Duration; 2],
    mut work: impl AsyncFnMut(&Client) -> Result<T, Error>,
) {
    let begun = std::time::Instant::now();
    let mut time = first;
    while work(&client.within(time)).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(600), "not well: {:?}", client.counts());
        time = (2 * time).min(most);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An address without a listener; no other process gets it as long as the socket is kept, such as
/// the server of another test.
pub fn dead() -> (SocketAddr, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    (socket.local_addr().unwrap(), socket)
}

/// Waits until the runtime runs nothing but the test.
pub async fn no_task_is_left() {
    let metrics = tokio::runtime::Handle::current().metrics();
    soon("no task is left", || metrics.num_alive_tasks() == 0).await;
}

pub fn shared(bytes: Vec<u8>) -> Arc<Vec<u8>> {
    Arc::new(bytes)
}
