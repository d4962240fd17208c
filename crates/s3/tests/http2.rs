//! What is special about HTTP/2: who chooses it, how connections are shared, and how a server takes
//! back what it promised.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kvtier_s3::{BucketAddress, Client, Config, ErrorKind, Get, Http2, Put, RootCerts};
use kvtier_testkit::s3::{Fault, Rule, ca_pem};
use support::*;

const LEN: usize = 300_000;
/// How long a future lives that is dropped: at first, and where this machine needs longer. A body
/// that drips takes six seconds.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(3);

fn changed(server: &kvtier_testkit::s3::Server, change: impl FnOnce(&mut Config)) -> Client {
    let mut config = config(server);
    change(&mut config);
    Client::new(config)
}

async fn get(client: &Client, memory: &Memory, bytes: &[u8]) -> Result<(), kvtier_s3::Error> {
    let (mut lease, mut guard) = memory.lease(bytes.len() + 4096).split_at(bytes.len());
    guard.as_host_mut().unwrap().fill(0x5A);
    let got = client.get("k", &mut lease, &Get::default()).await;
    assert!(guard.as_host_mut().unwrap().iter().all(|byte| *byte == 0x5A), "a byte landed outside");
    got.map(|object| assert!(object.is_some() && lease.as_host().unwrap() == bytes, "wrong bytes"))
}

#[tokio::test]
async fn it_is_spoken_only_when_asked_for_and_chosen() {
    let both = server(|_| {});
    let old = kvtier_testkit::s3::Server::start(Default::default()).unwrap();
    // Not asked for: the server speaks nothing else, and says so.
    let error = changed(&both, |config| {
        (config.http2, config.retries_max) = (Http2::Off, 0);
    });
    assert_eq!(error.head_bucket().await.unwrap_err().kind(), ErrorKind::Io);
    // Chosen by the server.
    let auto = changed(&both, |config| config.http2 = Http2::Auto);
    assert!(auto.head_bucket().await.unwrap());
    assert_eq!((auto.counts().connections_http2, auto.counts().connections_http11), (1, 0));
    // Over plain HTTP it cannot be negotiated.
    let auto = changed(&old, |config| config.http2 = Http2::Auto);
    assert!(auto.head_bucket().await.unwrap());
    assert_eq!((auto.counts().connections_http2, auto.counts().connections_http11), (0, 1));
    // But it can be known.
    let place = BucketAddress::new(format!("http://{}", both.address()))
        .bucket("bucket")
        .resolve()
        .unwrap();
    let known = Client::new(config_of(place));
    assert!(known.head_bucket().await.unwrap());
    assert_eq!((known.counts().connections_http2, known.counts().connections_http11), (1, 0));
    // A wrong prior knowledge is an error soon.
    let wrong = changed(&old, |config| config.retries_max = 0);
    let began = Instant::now();
    assert_eq!(wrong.head_bucket().await.unwrap_err().kind(), ErrorKind::Io);
    // Not by how long nothing came.
    assert!(began.elapsed() < Duration::from_secs(300));
}

#[tokio::test]
async fn every_byte_is_copied_once_and_counted() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = client(&server);
    // More than all windows together.
    for len in [1, 65_536, 40 * MIB + 1] {
        let before = client.counts();
        let bytes = pattern(len);
        client.put("k", &memory.view(&bytes), &Put::default()).await.unwrap();
        assert_eq!(client.counts().copied_http2_bytes - before.copied_http2_bytes, len as u64);
        get(&client, &memory, &bytes).await.unwrap();
        let counts = client.counts();
        assert_eq!(counts.copied_http2_bytes - before.copied_http2_bytes, 2 * len as u64);
        assert_eq!((counts.copied_head_bytes, counts.connections), (0, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_share_a_few_connections() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = changed(&server, |config| config.requests_max = 64);
    let bytes = pattern(LEN);
    server.put_object("k", bytes.clone());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let client = client.clone();
        let mut lease = memory.lease(LEN);
        tasks.spawn(async move {
            client.get("k", &mut lease, &Get::default()).await.unwrap().unwrap();
            lease
        });
    }
    while let Some(lease) = tasks.join_next().await {
        assert!(lease.unwrap().as_host().unwrap() == bytes);
    }
    let counts = client.counts();
    assert_eq!((counts.retries, counts.requests, counts.bytes_in), (0, 200, 200 * LEN as u64));
    assert!((2..=4).contains(&counts.connections_http2), "{}", counts.connections_http2);
    assert_eq!(server.accepted() as u64, counts.connections);
    assert!(counts.reused >= 100, "{}", counts.reused);
    drop(client);
    soon("all connections are closed", || server.connections() == 0).await;
    assert!(memory.is_whole());
}

#[tokio::test]
async fn a_refused_stream_is_sent_again_at_once() {
    let server = server(|_| {});
    let memory = Memory::new();
    let bytes = pattern(LEN);
    let client = client(&server);
    server.put_object("k", bytes.clone());
    get(&client, &memory, &bytes).await.unwrap();
    server.script(Rule::next(Fault::Refuse));
    get(&client, &memory, &bytes).await.unwrap();
    server.script(Rule::next(Fault::Refuse));
    client.put("new", &memory.view(&bytes), &Put::default()).await.unwrap();
    let counts = client.counts();
    assert_eq!(
        (counts.retries_unprocessed, counts.retries, counts.connections),
        (2, 0, 1),
        "and on the same connection"
    );
    // One that refuses for ever is given up.
    server.script(Rule::next(Fault::Refuse).times(1000));
    assert_eq!(get(&client, &memory, &bytes).await.unwrap_err().kind(), ErrorKind::Io);
    assert!(client.counts().retries <= 5);
}

#[tokio::test]
async fn bodies_that_end_early_or_late_are_no_success() {
    let memory = Memory::new();
    let bytes = pattern(LEN);
    for fault in [
        Fault::EndEarly(0),
        Fault::EndEarly(LEN / 2),
        Fault::EndEarly(LEN - 1),
        Fault::OverLong(1),
        Fault::OverLong(50_000),
    ] {
        let server = server(|_| {});
        server.put_object("k", bytes.clone());
        let stubborn = changed(&server, |config| config.retries_max = 0);
        server.script(Rule::next(fault.clone()));
        let error = get(&stubborn, &memory, &bytes).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.is_retryable(), "{fault:?}: {error}");
        let client = client(&server);
        server.script(Rule::next(fault.clone()));
        get(&client, &memory, &bytes).await.unwrap();
        assert_eq!((client.counts().retries, client.counts().connections), (1, 1), "{fault:?}");
        assert_eq!(client.counts().resumes, 0, "nothing of such an answer is believed");
    }
    assert!(memory.is_whole());
}

#[tokio::test]
async fn a_server_that_gives_no_window_is_a_timeout_and_no_hang() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = changed(&server, |config| (config.retries_max, config.stall_max) = (0, STALL_MAX));
    let large = memory.view(&pattern(32 * MIB));
    let put = Put::default();
    server.script(Rule::next(Fault::Clog));
    let upload = client.put("k", &large, &put);
    let error = jumping(STALL_MAX, || server.stalled() > 0, upload).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // By how long nothing moved, and not by its deadline.
    assert_eq!((client.counts().timeouts, client.counts().deadlines), (1, 0));
    client.put("k", &large, &put).await.unwrap();
    drop((large, client));
    assert!(memory.is_whole());
    soon("all connections are closed", || server.connections() == 0).await;
}

/// Begins a slow one and gives it up after `pause`, which grows where that was too soon for this
/// machine: a connection on which nothing was received may be dead, and is given up as well.
async fn give_up(
    server: &kvtier_testkit::s3::Server,
    client: &Client,
    memory: &Memory,
    pause: &mut Duration,
) {
    let seen = server.seen().len();
    let opened = client.counts().connections;
    server.script(Rule::next(Fault::Drip(1000, Duration::from_millis(20))));
    let mut lease = memory.lease(LEN);
    let whole = Get::default();
    let begun = async {
        soon("the answer is on its way", || server.seen().len() > seen).await;
        tokio::time::sleep(*pause).await;
    };
    tokio::select! {
        got = client.get("k", &mut lease, &whole) => panic!("{got:?}"),
        () = begun => {}
    }
    assert_eq!(lease.init_len(), 0);
    if client.counts().connections > opened {
        *pause = (2 * *pause).min(PAUSE_MAX);
    }
}

#[tokio::test]
async fn a_dropped_future_resets_its_stream() {
    let server = server(|_| {});
    let memory = Memory::new();
    let bytes = pattern(LEN);
    let client = client(&server);
    server.put_object("k", bytes.clone());
    let mut pause = PAUSE_MIN;
    for _ in 0..80 {
        give_up(&server, &client, &memory, &mut pause).await;
    }
    // Streams that were not reset would fill the sixteen that the server allows on each of four
    // connections.
    get(&client, &memory, &bytes).await.unwrap();
    assert!(
        client.counts().connections < 40,
        "nor are connections closed: {}",
        client.counts().connections
    );
    assert!(memory.is_whole());
}

#[tokio::test]
async fn a_dropped_future_spares_the_other_streams() {
    let server = server(|_| {});
    let memory = Memory::new();
    let bytes = pattern(LEN);
    let client = client(&server);
    server.put_object("k", bytes.clone());
    server.script(Rule::next(Fault::Drip(LEN / 10, Duration::from_millis(100))).times(8));
    let others = futures(8, || get(&client, &memory, &bytes));
    let giving_up = async {
        soon("all are under way", || server.seen().len() >= 8).await;
        let mut pause = PAUSE_MIN;
        for _ in 0..10 {
            give_up(&server, &client, &memory, &mut pause).await;
        }
    };
    let (results, ()) = tokio::join!(others, giving_up);
    results.into_iter().for_each(|result| result.unwrap());
    let counts = client.counts();
    assert_eq!(
        (counts.retries, counts.retries_stale, counts.retries_unprocessed),
        (0, 0, 0),
        "{counts:?}"
    );
}

#[tokio::test]
async fn a_connection_that_went_silent_is_not_used_again() {
    let server = server(|_| {});
    let memory = Memory::new();
    let bytes = pattern(LEN);
    let client = changed(&server, |config| config.stall_max = Duration::from_secs(3000));
    server.put_object("k", bytes.clone());
    get(&client, &memory, &bytes).await.unwrap();
    server.script(Rule::next(Fault::Hang));
    let hasty = client.within(STALL_MAX);
    let head = jumping(STALL_MAX, || server.stalled() > 0, hasty.head("k"));
    assert_eq!(head.await.unwrap_err().kind(), ErrorKind::Timeout);
    get(&client, &memory, &bytes).await.unwrap();
    assert_eq!(client.counts().connections, 2, "the other one is not trusted any more");
}

#[tokio::test]
async fn the_end_of_a_shared_connection_is_one_failure() {
    let server = server(|_| {});
    let memory = Memory::new();
    let bytes = pattern(LEN);
    let client = changed(&server, |config| (config.requests_max, config.retries_max) = (64, 5));
    server.put_object("k", bytes.clone());
    server.script(Rule::next(Fault::Drip(100_000, Duration::from_millis(50))).times(64));
    let gets = futures(64, || get(&client, &memory, &bytes));
    let cut = async {
        soon("all are under way", || server.seen().len() >= 64).await;
        server.disconnect();
    };
    let (results, ()) = tokio::join!(gets, cut);
    results.into_iter().for_each(|result| result.unwrap());
    assert_eq!(client.counts().breaker_opened, 0, "{:?}", client.counts());
}

/// A number of them, at once in this task.
async fn futures<F: Future>(count: usize, make: impl Fn() -> F) -> Vec<F::Output> {
    let mut all: Vec<_> = (0..count).map(|_| (Some(Box::pin(make())), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in &mut all {
            if let Some(running) = future
                && let std::task::Poll::Ready(done) = running.as_mut().poll(cx)
            {
                (*future, *output) = (None, Some(done));
            }
        }
        match all.iter().all(|(_, output)| output.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    all.into_iter().map(|(_, output)| output.unwrap()).collect()
}

/// Frames by hand: what a server of the library's own making never sends.
struct Wire(TcpStream);

impl Wire {
    fn new(mut socket: TcpStream) -> Self {
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).unwrap();
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut wire = Wire(socket);
        wire.frame(4, 0, 0, &[]);
        wire
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat();
        self.0.write_all(&frame).unwrap();
    }

    /// The stream of the next request.
    fn request(&mut self) -> u32 {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).unwrap();
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; len as usize];
            self.0.read_exact(&mut payload).unwrap();
            if head[3] == 1 {
                return u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            }
        }
    }

    /// `:status: 200`, a length of ten, and what a store says of each object: etag and
    /// last-modified.
    fn head(&mut self, stream: u32) {
        let date = b"Mon, 23 Nov 2026 00:00:00 GMT";
        let fields = [
            &[0x88, 0x0f, 0x0d, 2, b'1', b'0', 0x0f, 0x13, 1, b'e', 0x0f, 0x1d, date.len() as u8][..],
            date,
        ];
        self.frame(1, 4, stream, &fields.concat());
    }

    fn go_away(&mut self, last: u32) {
        self.frame(7, 0, 0, &[last.to_be_bytes(), [0; 4]].concat());
    }

    /// Leaves it open until the client closes it, so that nothing that was said is lost.
    fn linger(&mut self) {
        let mut socket = self.0.try_clone().unwrap();
        std::thread::spawn(move || while socket.read(&mut [0; 4096]).is_ok_and(|got| got > 0) {});
    }
}

/// Serves one connection after the other, each by its script.
fn scripted(scripts: Vec<fn(&mut Wire)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for script in scripts {
            script(&mut Wire::new(listener.accept().unwrap().0));
        }
    });
    address
}

#[tokio::test]
async fn a_server_that_goes_away_finishes_what_it_began_and_gets_the_rest_again_elsewhere() {
    let address = scripted(vec![
        // Nothing of this request was done.
        |wire| {
            wire.request();
            wire.go_away(0);
            wire.linger();
        },
        // This one is, though no other will be.
        |wire| {
            let stream = wire.request();
            wire.head(stream);
            wire.frame(0, 0, stream, b"01234");
            wire.go_away(stream);
            std::thread::sleep(Duration::from_millis(50));
            wire.frame(0, 1, stream, b"56789");
            wire.linger();
        },
        |wire| {
            let stream = wire.request();
            wire.head(stream);
            wire.frame(0, 1, stream, b"0123456789");
            wire.linger();
        },
    ]);
    let place = BucketAddress::new(format!("http://{address}")).bucket("bucket").resolve().unwrap();
    let client = Client::new(config_of(place));
    let memory = Memory::new();
    get(&client, &memory, b"0123456789").await.unwrap();
    assert_eq!((client.counts().retries_unprocessed, client.counts().retries), (1, 0));
    get(&client, &memory, b"0123456789").await.unwrap();
    let counts = client.counts();
    assert_eq!(
        (counts.connections_http2, counts.retries, counts.retries_stale, counts.resumes),
        (3, 0, 0, 0)
    );
}

#[tokio::test]
async fn a_server_that_wants_another_protocol_is_not_taken_for_one_that_ignores_ranges() {
    let address = scripted(vec![|wire| {
        for _ in 0..4 {
            let stream = wire.request();
            // HTTP_1_1_REQUIRED.
            wire.frame(3, 0, stream, &13u32.to_be_bytes());
        }
        wire.linger();
    }]);
    let place = BucketAddress::new(format!("http://{address}")).bucket("bucket").resolve().unwrap();
    let client = Client::new(config_of(place));
    let memory = Memory::new();
    for range in [0..10, 5..15] {
        let error = client.get("k", &mut memory.lease(10), &Get::range(range)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
    }
    for _ in 0..2 {
        client.get_parallel("k", &mut memory.lease(10), 5, 1).await.unwrap_err();
    }
    assert_eq!((client.counts().ranges_ignored, client.ignores_ranges()), (0, false));
}

#[tokio::test]
async fn unknown_certificates_are_denied() {
    let server = server(|_| {});
    let other = rcgen::generate_simple_self_signed(vec!["x".into()]).unwrap().cert.pem();
    let client = changed(&server, |config| config.root_certs = RootCerts::Pem(other.into()));
    assert_eq!(client.head_bucket().await.unwrap_err().kind(), ErrorKind::Denied);
    assert!(ca_pem().contains("CERTIFICATE") && server.seen().is_empty());
}
