use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::api::{self, Ways};
use super::calendar;
use super::express::Sessions;
use super::fault::{Fault, Rule};
use super::make;
use super::sigv4::{Claim, Rules};
use super::store::{Pending, Store};
use super::wire::{Request, Response, decode};

/// The server's settings; the defaults are those of a strict S3.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Setup {
    /// The port of 127.0.0.1 where it listens; 0 for any that is free.
    pub port: u16,
    /// The one bucket, which exists from the start. A name that ends in `--x-s3` makes it S3 Express.
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
    /// Whether it percent-encodes the names of what it refuses to delete (it refuses names that contain `locked`).
    pub spells_refusals: bool,
    /// Whether it says that it keeps versions.
    pub versioned: bool,
    /// Whether it says that objects may be locked.
    pub object_lock: bool,
    /// Its lifecycle rules, in XML; it has none without.
    pub lifecycle: Option<String>,
    /// Whether nobody may ask for its settings.
    pub hides_settings: bool,
    /// Whether its uploads have names that need no encoding in a URL: aws-crt sends them as they come, and signs them otherwise.
    pub plain_uploads: bool,
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
        }
    }
}

/// One request as it came.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Seen {
    /// `GET`, `PUT`, ...
    pub method: String,
    /// Path and query as they came.
    pub target: String,
    /// Headers with lower-case names.
    pub headers: Vec<(String, String)>,
    /// The status it was answered with.
    pub status: u16,
}

impl Seen {
    /// The header of that lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// A running server; dropping it closes its port and its connections.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) setup: Setup,
    http2: bool,
    store: Mutex<Store>,
    sessions: Mutex<Sessions>,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
    open: AtomicUsize,
    accepted: AtomicUsize,
    stalled: AtomicUsize,
    stopped: AtomicBool,
    clock_step_s: AtomicI64,
    sockets: Mutex<Vec<TcpStream>>,
}

/// How long what was written has to get away before the connection is reset.
const FLUSH: Duration = Duration::from_millis(20);

/// How long a clogged connection is held.
pub(super) const CLOG: Duration = Duration::from_secs(50);

/// Takes nothing, until the client goes away.
fn hold(socket: &TcpStream) -> io::Result<()> {
    let begun = Instant::now();
    socket.set_read_timeout(Some(Duration::from_millis(10)))?;
    while begun.elapsed() < CLOG {
        match socket.peek(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => thread::sleep(Duration::from_millis(10)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether a host is not one of production's names.
fn is_local(host: &str) -> bool {
    !is_aws(host)
}

fn is_aws(host: &str) -> bool {
    host.split(':').next().is_some_and(|name| name.ends_with(".amazonaws.com"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        let (ahead_s, plain_uploads) = (setup.clock_ahead_s, setup.plain_uploads);
        let shared = Arc::new(Shared {
            setup,
            http2,
            store: Mutex::new(Store { bucket_exists: true, ahead_s, plain_uploads, ..Store::default() }),
            sessions: Mutex::default(),
            rules: Mutex::default(),
            seen: Mutex::default(),
            open: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            stalled: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            clock_step_s: AtomicI64::new(0),
            sockets: Mutex::default(),
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

    /// Starts one that speaks HTTP/2 only: over TLS, with a certificate for `127.0.0.1`, `localhost` and `s3.test` signed by
    /// [`super::ca_pem`], and on the same port without, for clients that know.
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
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// How many requests had to wait by [`Fault::Stall`] so far, or still do. Those are [seen](Self::seen) when they are answered.
    pub fn stalled(&self) -> usize {
        self.shared.stalled.load(Ordering::SeqCst)
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
        lock(&self.shared.store).objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    /// From now on an object was written so many seconds earlier; whether it is there.
    pub fn backdate(&self, key: &str, seconds: i64) -> bool {
        let mut store = lock(&self.shared.store);
        store.objects.get_mut(key).map(|object| object.modified -= seconds).is_some()
    }

    /// Begins a multipart upload so many seconds ago, as somebody does who never goes on.
    pub fn begin_upload(&self, key: &str, seconds_ago: i64) {
        let mut store = lock(&self.shared.store);
        let (id, begun) = (store.upload_id(), store.now() - seconds_ago);
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
        lock(&self.shared.sockets).drain(..).for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
    }

    /// From now on its clock is so many seconds ahead of what the setup says.
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
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then closes the port.
        drop(TcpStream::connect(self.address));
        self.disconnect();
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, socket: TcpStream) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(self);
        socket.set_nodelay(true).ok();
        if let Ok(clone) = socket.try_clone() {
            lock(&self.sockets).push(clone);
        }
        thread::spawn(move || {
            let spoken = if shared.http2 { shared.converse_http2(&socket) } else { shared.converse(&socket) };
            // A client that goes away is no news.
            match spoken {
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => shared.reset(socket),
                _ => drop(socket.shutdown(Shutdown::Both)),
            }
            shared.open.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Closes a connection so that what the client has not read is lost.
    fn reset(&self, socket: TcpStream) {
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Linger, &at_once);
        // It is closed when nobody holds it any more.
        let peer = socket.peer_addr().ok();
        lock(&self.sockets).retain(|other| other.peer_addr().ok() != peer);
    }

    #[cfg(feature = "http2")]
    fn converse_http2(self: &Arc<Self>, socket: &TcpStream) -> io::Result<()> {
        super::http2::converse(self, socket)
    }

    #[cfg(not(feature = "http2"))]
    fn converse_http2(self: &Arc<Self>, _: &TcpStream) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn converse(&self, socket: &TcpStream) -> io::Result<()> {
        let mut from = BufReader::new(socket.try_clone()?);
        let mut to = socket.try_clone()?;
        while let Some(request) = Request::read(&mut from)? {
            let fault = self.fault(&request);
            if let Some(Fault::Early(status, code)) = fault {
                return self.refuse_early(&request, &mut to, status, code);
            }
            if matches!(fault, Some(Fault::Clog)) {
                return hold(socket);
            }
            let body = request.body(&mut from)?;
            if matches!(fault, Some(Fault::Hangup | Fault::Refuse)) {
                return Ok(());
            }
            let response = self.answer(&request, body, fault.as_ref());
            self.note(&request, response.status);
            if !self.send(&request, response, fault, &mut to)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Answers without reading the body, lingers a little so that the answer is not lost, and closes.
    fn refuse_early(&self, request: &Request, to: &mut TcpStream, status: u16, code: &str) -> io::Result<()> {
        self.note(request, status);
        self.dated(Response::error(status, code)).with("connection", "close").write(to, false)?;
        to.flush()?;
        to.shutdown(Shutdown::Write)?;
        to.set_read_timeout(Some(Duration::from_millis(300)))?;
        let mut sink = [0; 4096];
        while to.read(&mut sink).is_ok_and(|got| got > 0) {}
        Ok(())
    }

    pub(super) fn fault(&self, request: &Request) -> Option<Fault> {
        let mut rules = lock(&self.rules);
        let at = rules.iter().position(|rule| {
            let here = |marker: &str| request.path.contains(marker) || request.query.contains(marker);
            rule.method.is_none_or(|method| method == request.method) && rule.marker.is_none_or(here)
        })?;
        rules[at].times -= 1;
        match rules[at].times {
            0 => Some(rules.remove(at).fault),
            _ => Some(rules[at].fault.clone()),
        }
    }

    pub(super) fn answer(&self, request: &Request, body: Vec<u8>, fault: Option<&Fault>) -> Response {
        match fault {
            Some(Fault::Error(status, code)) => return Response::error(*status, code),
            Some(Fault::SlowDown(seconds)) => {
                return Response::error(503, "SlowDown").with("retry-after", seconds.to_string());
            }
            Some(Fault::Html(status)) => {
                return Response::new(*status, "<html><body><h1>Bad gateway<br></body></html>");
            }
            Some(Fault::OkThenError(code)) => return Response::error(200, code),
            Some(Fault::Foreign(foreign)) if !foreign.done => return Response::foreign(foreign),
            Some(Fault::Elsewhere(elsewhere)) => {
                let refusal = Response::complaint(elsewhere.status, &elsewhere.inside);
                let (name, value) = elsewhere.header.clone().unwrap_or(("x-none", String::new()));
                return refusal.with(name, value);
            }
            Some(Fault::Stall(time)) => {
                self.stalled.fetch_add(1, Ordering::SeqCst);
                thread::sleep(*time);
            }
            _ => {}
        }
        if let Err(refusal) = self.verdict(request, &body) {
            return refusal;
        }
        let mut request = request.clone();
        if matches!(fault, Some(Fault::IgnoreRange)) {
            request.headers.retain(|(name, _)| name != "range");
        }
        let response = self.handle(&request, body);
        match fault {
            Some(Fault::DoneThenError(status, code)) => Response::error(*status, code),
            Some(Fault::Foreign(foreign)) => Response::foreign(foreign),
            _ => response,
        }
    }

    fn handle(&self, request: &Request, body: Vec<u8>) -> Response {
        let Setup { bucket, overwrites, deletes_singly, versioned, .. } = self.setup.clone();
        let Setup { object_lock, lifecycle, hides_settings, spells_refusals, .. } = self.setup.clone();
        let express = self.is_express();
        let ways = Ways {
            express,
            overwrites,
            deletes_singly,
            spells_refusals,
            versioned,
            object_lock,
            lifecycle,
            hides_settings,
        };
        let host = request.header("host").unwrap_or_default();
        if express && host.starts_with("s3express-control.") != (self.is_of_control(request) && !is_local(host)) {
            return Response::error(405, "MethodNotAllowed");
        }
        if ways.express && request.query("session").is_some() {
            return match lock(&self.store).bucket_exists {
                true => lock(&self.sessions).create(request, self.now()),
                false => Response::error(404, "NoSuchBucket"),
            };
        }
        let path = decode(&request.path);
        let virtual_host = self.is_virtual(host);
        let rest = match virtual_host {
            true => Some(path.as_str()),
            false => path.strip_prefix(&format!("/{bucket}")),
        };
        let mut store = lock(&self.store);
        store.ahead_s = self.setup.clock_ahead_s + self.clock_step_s.load(Ordering::SeqCst);
        match rest.map(|rest| rest.strip_prefix('/').unwrap_or(rest)) {
            None => Response::error(404, "NoSuchBucket"),
            Some("") if express && virtual_host && matches!(request.method.as_str(), "PUT" | "DELETE") => {
                Response::error(405, "MethodNotAllowed")
            }
            Some("") if request.method == "PUT" => {
                let wanted = if is_aws(host) { Some(self.setup.region.as_str()) } else { None };
                make::bucket(&mut store, &bucket, wanted, &body)
            }
            Some("") => api::bucket(&mut store, request, &body, ways),
            Some(key) => api::object(&mut store, request, key, body, ways),
        }
    }

    fn verdict(&self, request: &Request, body: &[u8]) -> Result<(), Response> {
        let claim = Claim::of(request).ok_or_else(|| Response::error(403, "AccessDenied"))?;
        let express = self.is_express();
        let in_session = express && request.query("session").is_none() && !self.is_of_control(request);
        let secret = match in_session {
            true => lock(&self.sessions).find(claim.access_key, request, self.now())?.secret,
            false if claim.access_key == self.setup.access_key => self.setup.secret_key.clone(),
            false => return Err(Response::error(403, "InvalidAccessKeyId")),
        };
        let service = if express { "s3express" } else { "s3" };
        let (region, refuse_unsigned) = (self.setup.region.as_str(), self.setup.refuse_unsigned);
        claim.check(request, body, &secret, &Rules { region, service, now: self.now(), refuse_unsigned })
    }

    fn send(
        &self,
        request: &Request,
        mut response: Response,
        fault: Option<Fault>,
        to: &mut TcpStream,
    ) -> io::Result<bool> {
        response = self.dated(response);
        let bodiless = request.method == "HEAD";
        let len = response.body.len();
        match fault {
            Some(Fault::Cut(at) | Fault::EndEarly(at)) => {
                to.write_all(response.head().as_bytes())?;
                to.write_all(&response.body[..at.min(len)])?;
                return Ok(false);
            }
            Some(Fault::Reset(at)) => {
                to.write_all(response.head().as_bytes())?;
                to.write_all(&response.body[..at.min(len)])?;
                thread::sleep(FLUSH);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Some(Fault::Drip(bytes, pause)) => {
                to.write_all(response.head().as_bytes())?;
                for piece in response.body.chunks(bytes) {
                    to.write_all(piece)?;
                    thread::sleep(pause);
                }
                return Ok(true);
            }
            _ => response.distort(fault.as_ref()),
        }
        response.write(to, bodiless)?;
        Ok(!matches!(fault, Some(Fault::CloseAfter)))
    }

    pub(super) fn dated(&self, response: Response) -> Response {
        let response = response.with("date", calendar::http(self.now()));
        // A proxy's page has no id of the store's.
        if response.foreign || response.body.starts_with(b"<html>") {
            response
        } else {
            response.with("x-amz-request-id", "REQ1")
        }
    }

    pub(super) fn note(&self, request: &Request, status: u16) {
        let target = match request.query.as_str() {
            "" => request.path.clone(),
            query => format!("{}?{query}", request.path),
        };
        let Request { method, headers, .. } = request.clone();
        lock(&self.seen).push(Seen { method, target, headers, status });
    }

    /// Whether it makes or unmakes a directory bucket: the bucket in the path, and signed without a session.
    fn is_of_control(&self, request: &Request) -> bool {
        self.is_express()
            && matches!(request.method.as_str(), "PUT" | "DELETE")
            && request.query.is_empty()
            && request.path.trim_end_matches('/') == format!("/{}", self.setup.bucket)
    }

    /// Whether a request for this host is for the bucket before it.
    fn is_virtual(&self, host: &str) -> bool {
        host.strip_prefix(&self.setup.bucket).is_some_and(|rest| rest.starts_with('.'))
    }

    fn is_express(&self) -> bool {
        self.setup.bucket.ends_with("--x-s3")
    }

    fn now(&self) -> i64 {
        calendar::now() + self.setup.clock_ahead_s + self.clock_step_s.load(Ordering::SeqCst)
    }
}
