use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::express::Sessions;
use super::fault::Rule;
use super::hanging::Hanging;
use super::link::Link;
use super::object_store::{ObjectStore, Pending};

/// The server's settings; the defaults are those of a strict S3.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Setup {
    /// The port of 127.0.0.1 where it listens; 0 for any that is free.
    pub port: u16,
    /// The one bucket, which exists from the start. A name that ends in `--x-s3` makes it S3
    /// Express.
    pub bucket: String,
    /// The key pair of its one user.
    pub access_key: String,
    /// The other half.
    pub secret_key: String,
    /// The region that must be signed for.
    pub region: String,
    /// How far its clock is ahead, in seconds.
    pub clock_ahead_s: i64,
    /// Whether it refuses bodies whose hash is not signed.
    pub refuse_unsigned: bool,
    /// Whether it ignores `If-None-Match` on a PUT.
    pub overwrites: bool,
    /// Whether it has no DeleteObjects.
    pub deletes_singly: bool,
    /// Whether it percent-encodes the names of what it refuses to delete (it refuses names that
    /// contain `locked`).
    pub spells_refusals: bool,
    /// Whether it says that it keeps versions.
    pub versioned: bool,
    /// Whether it says that objects may be locked.
    pub object_lock: bool,
    /// Its lifecycle rules, in XML; it has none without.
    pub lifecycle: Option<String>,
    /// Whether reading its settings is forbidden.
    pub hides_settings: bool,
    /// Whether its uploads have names that need no encoding in a URL: aws-crt sends them as they
    /// come, and signs them otherwise.
    pub plain_uploads: bool,
    /// Bytes a second that its answers have together over HTTP/1.1, as on a link that clients share.
    /// All that the machine can without.
    pub link_bytes_per_s: Option<u64>,
}

impl Setup {
    /// Whether it is S3 Express, by the name of its bucket.
    pub(super) fn is_express(&self) -> bool {
        self.bucket.ends_with("--x-s3")
    }
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            port: 0,
            bucket: "bucket".into(),
            access_key: "AKIDTEST".into(),
            secret_key: "secret/test+key".into(),
            region: "us-east-1".into(),
            clock_ahead_s: 0,
            refuse_unsigned: false,
            overwrites: false,
            deletes_singly: false,
            spells_refusals: false,
            versioned: false,
            object_lock: false,
            lifecycle: None,
            hides_settings: false,
            plain_uploads: false,
            link_bytes_per_s: None,
        }
    }
}

/// One request as it came.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SeenRequest {
    /// `GET`, `PUT`, ...
    pub method: String,
    /// Path and query as they came.
    pub target: String,
    /// Headers with lower-case names.
    pub headers: Vec<(String, String)>,
    /// The status it was answered with.
    pub status: u16,
}

impl SeenRequest {
    /// The header of that lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// One request that had to wait for its answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StalledRequest {
    /// `GET`, `PUT`, ...
    pub method: String,
    /// Path and query as they came.
    pub target: String,
}

/// A running server; dropping it closes its port and its connections.
///
/// ```
/// use kvtier_testkit::s3::{Fault, Rule, Server};
///
/// let server = Server::start(Default::default())?;
/// server.put_object("a", vec![1, 2, 3]);
/// server.script(Rule::next(Fault::Error(503, "SlowDown")).method("GET"));
/// println!("{}/bucket fails its next GET", server.url());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<ServerState>,
}

/// What the connections share.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) setup: Setup,
    pub(super) http2: bool,
    pub(super) store: Mutex<ObjectStore>,
    pub(super) sessions: Mutex<Sessions>,
    pub(super) rules: Mutex<Vec<Rule>>,
    pub(super) seen: Mutex<Vec<SeenRequest>>,
    pub(super) open: AtomicUsize,
    pub(super) accepted: AtomicUsize,
    pub(super) stalled: Mutex<Vec<StalledRequest>>,
    pub(super) hanging: Hanging,
    pub(super) stopped: AtomicBool,
    pub(super) clock_step_s: AtomicI64,
    pub(super) sockets: Mutex<Vec<TcpStream>>,
    pub(super) link: Option<Link>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Starts one on a port of its own.
    pub fn start(setup: Setup) -> io::Result<Self> {
        Self::listen(setup, false)
    }

    fn listen(setup: Setup, http2: bool) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", setup.port))?;
        let address = listener.local_addr()?;
        let ahead_s = setup.clock_ahead_s;
        let plain_uploads = setup.plain_uploads;
        let link = setup.link_bytes_per_s.map(Link::new);
        let shared = Arc::new(ServerState {
            setup,
            http2,
            store: Mutex::new(ObjectStore {
                bucket_exists: true,
                ahead_s,
                plain_uploads,
                ..ObjectStore::default()
            }),
            sessions: Mutex::default(),
            rules: Mutex::default(),
            seen: Mutex::default(),
            open: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            stalled: Mutex::default(),
            hanging: Hanging::default(),
            stopped: AtomicBool::new(false),
            clock_step_s: AtomicI64::new(0),
            sockets: Mutex::default(),
            link,
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    return;
                }
                accepting.serve(socket);
            }
        });
        Ok(Server { address, shared })
    }

    /// Starts one that speaks HTTP/2 only: over TLS, with a certificate for `127.0.0.1`,
    /// `localhost` and `s3.test` signed by [`super::ca_pem`], and on the same port without, for
    /// clients that know.
    #[cfg(feature = "http2")]
    pub fn start_http2(setup: Setup) -> io::Result<Self> {
        Self::listen(setup, true)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its url.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.shared.http2 { "https" } else { "http" }, self.address)
    }

    /// What will go wrong, in this order.
    pub fn script(&self, rule: Rule) -> &Self {
        lock(&self.shared.rules).push(rule);
        self
    }

    /// Forgets what has not gone wrong yet.
    pub fn heal(&self) {
        lock(&self.shared.rules).clear();
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<SeenRequest> {
        lock(&self.shared.seen).clone()
    }

    /// How many requests had to wait by [`Fault::Stall`](super::Fault::Stall),
    /// [`Fault::Hang`](super::Fault::Hang) or [`Fault::Clog`](super::Fault::Clog) so far, or still
    /// do. Those are [seen](Self::seen) when they are answered.
    pub fn stalled(&self) -> usize {
        lock(&self.shared.stalled).len()
    }

    /// Which these were.
    pub fn stalled_requests(&self) -> Vec<StalledRequest> {
        lock(&self.shared.stalled).clone()
    }

    /// Answers all that wait by [`Fault::Hang`](super::Fault::Hang) now; later ones wait for the
    /// next call.
    pub fn release(&self) {
        self.shared.hanging.release();
    }

    /// The bytes of an object.
    pub fn object(&self, key: &str) -> Option<Arc<Vec<u8>>> {
        lock(&self.shared.store).objects.get(key).map(|object| Arc::clone(&object.bytes))
    }

    /// Stores an object behind the clients' backs.
    pub fn put_object(&self, key: &str, bytes: Vec<u8>) {
        let mut store = lock(&self.shared.store);
        let object = store.stored(bytes, Vec::new());
        store.objects.insert(key.to_owned(), object);
    }

    /// Deletes an object behind the clients' backs; whether it was there.
    pub fn remove_object(&self, key: &str) -> bool {
        lock(&self.shared.store).objects.remove(key).is_some()
    }

    /// The names of all objects that begin with `prefix`, in order.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        lock(&self.shared.store)
            .objects
            .keys()
            .filter(|key| key.starts_with(prefix))
            .cloned()
            .collect()
    }

    /// From now on an object counts as written this many seconds earlier; whether it is there.
    pub fn backdate(&self, key: &str, seconds: i64) -> bool {
        let mut store = lock(&self.shared.store);
        store.objects.get_mut(key).map(|object| object.modified -= seconds).is_some()
    }

    /// Begins a multipart upload, dated this many seconds ago, which is never completed.
    pub fn begin_upload(&self, key: &str, seconds_ago: i64) {
        let mut store = lock(&self.shared.store);
        let id = store.upload_id();
        let begun = store.now() - seconds_ago;
        store.uploads.insert(id, Pending { key: key.to_owned(), begun, ..Pending::default() });
    }

    /// How many multipart uploads are unfinished.
    pub fn uploads(&self) -> usize {
        lock(&self.shared.store).uploads.len()
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// How many were accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Closes all idle and busy connections at once, as a restart does.
    pub fn disconnect(&self) {
        // The threads of the connections notice it with their next read or write.
        lock(&self.shared.sockets)
            .drain(..)
            .for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
    }

    /// From now on its clock is this many seconds ahead of the setup.
    pub fn step_clock(&self, seconds: i64) {
        self.shared.clock_step_s.store(seconds, Ordering::SeqCst);
    }

    /// Ends all S3 Express sessions.
    pub fn expire_sessions(&self) {
        lock(&self.shared.sessions).expire();
    }

    /// How many sessions were made.
    pub fn sessions_made(&self) -> u64 {
        lock(&self.shared.sessions).made
    }

    /// How long the sessions made from now on live, in seconds.
    pub fn session_life(&self, seconds: i64) {
        lock(&self.shared.sessions).life_s = Some(seconds);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // First the flag, then the connection that wakes the thread to see it.
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.release();
        // Wakes the accepting thread, which then closes the port.
        drop(TcpStream::connect(self.address));
        self.disconnect();
    }
}
