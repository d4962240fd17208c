//! Connections of a simulated machine with the bucket: requests arrive, meet their fate, are answered.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use kvtier_s3::simulated_machine::{Connecting, DuplexStream, SimulatedMachine};
use kvtier_s3::{BucketAddress, Config, Credentials};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::bucket::http::{Request, Response};
use crate::conditions::{Fate, Plan};
use crate::holds::Deletion;
use crate::host::Host;
use crate::world::World;

/// How long the background work of a tier waits for a request.
pub const REQUEST_MAX: Duration = Duration::from_secs(10);

/// How long a request hangs at most before the store closes its connection.
const HANG_MAX: Duration = Duration::from_secs(120);

/// The longest time until a request takes effect a second time.
const AGAIN_MAX_MS: u64 = 1000;

/// Bytes on their way in each direction of a connection.
const BUFFER_BYTES: usize = 64 * 1024;

/// A host, as a client takes it.
#[derive(Clone, Debug)]
pub struct Machine(pub Arc<Host>);

impl SimulatedMachine for Machine {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn wall(&self) -> SystemTime {
        self.0.wall()
    }

    fn monotonic(&self, passed: Duration) -> Duration {
        self.0.monotonic(passed)
    }

    fn connect(&self) -> Connecting {
        Box::pin(dial(Arc::clone(&self.0)))
    }

    fn poll_runs(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_runs(cx)
    }
}

/// A runtime whose clock is paused, and moves where every task waits.
pub fn virtual_runtime() -> Runtime {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O needs nothing of the system")
}

/// The configuration of a client of this machine.
pub fn client_config(host: &Arc<Host>) -> Config {
    // An address, so that no name is resolved.
    let endpoint = BucketAddress::new("http://192.0.2.1")
        .bucket("bucket")
        .region("us-east-1")
        .resolve()
        .expect("a plain endpoint is valid");
    let mut client = Config::new(endpoint, Credentials::new("AKIASIMULATED", "simulated"));
    client.machine = Some(Arc::new(Machine(Arc::clone(host))));
    client
}

async fn dial(host: Arc<Host>) -> std::io::Result<DuplexStream> {
    if !host.is_connected() {
        // Nothing answers; the client gives up by its own limit.
        return std::future::pending().await;
    }
    sleep(host.world.between_ms(1, 3)).await;
    let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
    tokio::spawn(serve(host, theirs));
    Ok(ours)
}

/// Serves the requests of a connection until it ends.
async fn serve(host: Arc<Host>, mut stream: DuplexStream) {
    let mut ahead = Vec::new();
    while let Some(request) = Request::read(&mut stream, &mut ahead).await {
        let open = OpenRequest::begin(&host, &request);
        if !answer(&open, request, &mut stream).await {
            return;
        }
    }
}

/// A request that waits for its answer. The client has a bound for them.
struct OpenRequest<'a> {
    host: &'a Host,
    number: u64,
}

impl<'a> OpenRequest<'a> {
    fn begin(host: &'a Host, request: &Request) -> Self {
        let (world, name) = (&host.world, host.name());
        let number = host.requests.begin(world.elapsed());
        if let Some(excess) = host.requests.excess(world.elapsed()) {
            world.finding("queue", format!("{name} has {excess}, the last is {request}"));
        }
        OpenRequest { host, number }
    }

    /// Waits. If the client gives the request up meanwhile, it waits for no answer any more.
    async fn sleep(&self, time: Duration, stream: &mut DuplexStream) {
        let until = Instant::now() + time;
        if timeout_at(until, drain(stream)).await.is_ok() {
            self.host.requests.end(self.number);
            sleep_until(until).await;
        }
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.host.requests.end(self.number);
    }
}

/// Whether the connection can go on.
async fn answer(open: &OpenRequest<'_>, request: Request, stream: &mut DuplexStream) -> bool {
    let host = open.host;
    if !host.is_connected() {
        drain(stream).await;
        return false;
    }
    let world = &host.world;
    let Plan { fate, before, after } = world.plan_request();
    // A node waits for it before it counts what others did.
    if request.is_of_journals() {
        let until = if let Fate::Hanging(_) = fate { REQUEST_MAX } else { before + after };
        world.note_late_journal(host.name(), world.elapsed() + until);
    }
    let sent = world.elapsed();
    open.sleep(before, stream).await;
    let refused = match fate {
        Fate::Throttled => Some(Response::error(503, "SlowDown")),
        Fate::Error => Some(Response::error(500, "InternalError")),
        Fate::Page(page) => Some(Response::page(page)),
        Fate::Closed | Fate::Hanging(false) => Some(Response::error(0, "")),
        _ => None,
    };
    let mut response = refused.unwrap_or_else(|| {
        look_at_held(host, &request, sent);
        world.lock().bucket.answer(&request, world.store_ms())
    });
    if fate == Fate::Twice && request.changes_objects() {
        tokio::spawn(arrive_again(Arc::clone(world), host.name().to_owned(), request.clone()));
    }
    let name = host.name();
    if let Fate::Stripped { is_changed } = fate
        && let Some(object) = request.read_chunk()
    {
        // A part of an answer with facts is a damaged object for a client.
        let is_changed = is_changed && response.status == 200 && request.method == "GET";
        response.strip(is_changed);
        world.lock().stripped_answers.note(name, object, is_changed);
    }
    world.event(format_args!("{name} {request} {fate:?} {}", response.status));
    open.sleep(after, stream).await;
    if let Fate::Hanging(_) = fate {
        drop(tokio::time::timeout(HANG_MAX, drain(stream)).await);
        return false;
    }
    if !host.is_connected() {
        drain(stream).await;
        return false;
    }
    let response = match fate {
        Fate::Closed | Fate::LostAnswer => return false,
        Fate::LateError => Response::error(500, "InternalError"),
        _ => response,
    };
    let bytes = response.encode(&request.method, world.store_s());
    let len = if fate == Fate::CutAnswer { bytes.len() / 2 } else { bytes.len() };
    stream.write_all(&bytes[..len]).await.is_ok() && fate != Fate::CutAnswer
}

/// Something before the store sends a request once more.
async fn arrive_again(world: Arc<World>, name: String, request: Request) {
    sleep(world.between_ms(1, AGAIN_MAX_MS)).await;
    {
        let mut state = world.lock();
        let (sent, now) = (Duration::ZERO, world.elapsed());
        // What the process holds by now is not what it asked to delete.
        for object in state.bucket.deleted_by(&request) {
            state.watched.deleted(Deletion { name: &object, host: &name, sent, now });
        }
    }
    let response = world.lock().bucket.answer(&request, world.store_ms());
    world.event(format_args!("again: {name} {request} {}", response.status));
}

/// A process deletes no object of a chunk that it holds. The request takes effect now.
fn look_at_held(host: &Host, request: &Request, sent: Duration) {
    let world = &host.world;
    let mut broken = Vec::new();
    {
        let mut state = world.lock();
        if state.watched.is_empty() {
            return;
        }
        for name in state.bucket.deleted_by(request) {
            let (host, now) = (host.name(), world.elapsed());
            if state.watched.deleted(Deletion { name: &name, host, sent, now }) {
                broken.push(name);
            }
        }
    }
    for name in broken {
        world.finding("hold", format!("{} deletes {name}, which it holds", host.name()));
    }
}

/// Takes in what the client sends until it gives up.
async fn drain(stream: &mut DuplexStream) {
    let mut sink = [0; 4096];
    while stream.read(&mut sink).await.is_ok_and(|len| len > 0) {}
}
