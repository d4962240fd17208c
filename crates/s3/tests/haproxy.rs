//! HTTP/2 as somebody else speaks it: haproxy with TLS before a plain server. Skipped, and said so, where haproxy is not installed.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kvtier_s3::{Client, ErrorKind, Get, Http2, List, Place, Put, Trust};
use kvtier_testkit::s3::{Fault, Rule, Server, ca_pem, server_pem};
use support::*;

/// A running haproxy; ends with the test.
struct Front {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Front {
    /// One before `server`, which lets uploads have a window of `window` bytes.
    fn before(server: &Server, alpn: &str, window: usize) -> Option<Self> {
        if Command::new("haproxy").arg("-v").stdout(Stdio::null()).status().is_err() {
            // Not by a macro, whose words the test harness would swallow.
            let what = "SKIPPED: haproxy is not installed (apt-get install haproxy): HTTP/2 was not tried with it\n";
            std::io::stderr().write_all(what.as_bytes()).unwrap();
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (config, pem) = (dir.path().join("haproxy.cfg"), dir.path().join("both.pem"));
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        std::fs::write(&pem, server_pem()).unwrap();
        let text = format!(
            "global\n  nbthread 1\n  tune.h2.initial-window-size {window}\n  tune.h2.max-concurrent-streams 32\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
             frontend f\n  bind {address} ssl crt {} alpn {alpn}\n  default_backend b\n\
             backend b\n  server s {}\n",
            pem.display(),
            server.address()
        );
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new("haproxy");
        let child =
            command.arg("-db").arg("-f").arg(&config).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let front = Front { child, address, _dir: dir };
        for _ in 0..200 {
            if TcpStream::connect(address).is_ok() {
                return Some(front);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("haproxy does not listen: {}", std::fs::read_to_string(front._dir.path().join("log")).unwrap());
    }

    fn client(&self, http2: Http2) -> Client {
        let mut config = config_of(Place::of(format!("https://{}", self.address)).bucket("bucket").resolve().unwrap());
        config.trust = Trust::Pem(ca_pem().into());
        config.http2 = http2;
        config.stall_max = Duration::from_secs(2);
        Client::new(config)
    }
}

fn plain() -> Server {
    Server::start(Default::default()).unwrap()
}

#[tokio::test]
async fn every_operation_over_http2() {
    let (server, memory) = (plain(), Memory::new());
    // The usual window throttles uploads; it must not stop them.
    let Some(front) = Front::before(&server, "h2,http/1.1", 65_535) else { return };
    let client = front.client(Http2::Auto);
    for len in [0, 1, 65_536, 20 * MIB + 1] {
        let bytes = pattern(len);
        client.put("a b/é+%//k", &memory.view(&bytes), &Put::default().meta("a", "b")).await.unwrap();
        assert!(server.object("a b/é+%//k").as_deref() == Some(&bytes));
        let mut lease = memory.lease(len);
        let object = client.get("a b/é+%//k", &mut lease, &Get::default()).await.unwrap().unwrap();
        assert!(lease.as_host().unwrap() == bytes && object.meta("a") == Some("b"));
        assert_eq!(client.head("a b/é+%//k").await.unwrap().unwrap().len(), len as u64);
    }
    let bytes = pattern(12 * MIB);
    client.put_multipart("m", &memory.view(&bytes), &Put::default(), (5 * MIB, 3)).await.unwrap();
    let mut lease = memory.lease(bytes.len());
    client.get_parallel("m", &mut lease, MIB, 8).await.unwrap().unwrap();
    assert!(lease.as_host().unwrap() == bytes);
    assert_eq!(client.list(&List::default(), None).await.unwrap().entries.len(), 2);
    assert!(client.delete_many(&["m", "none"]).await.unwrap().is_empty());
    assert!(client.get("m", &mut lease, &Get::default()).await.unwrap().is_none());
    let counts = client.counts();
    assert!((1..=4).contains(&counts.connections_http2) && counts.connections_http11 == 0, "{counts:?}");
    let control = counts.copied_http2_bytes - counts.bytes_in - counts.bytes_out;
    assert!(counts.retries == 0 && control < 4096, "the copy ledger: {counts:?}");
}

#[tokio::test]
async fn faults_behind_it_are_repaired() {
    let (server, memory) = (plain(), Memory::new());
    let Some(front) = Front::before(&server, "h2,http/1.1", 1 << 20) else { return };
    let bytes = pattern(300_000);
    server.put_object("k", bytes.clone());
    for fault in
        [Fault::Error(503, "SlowDown"), Fault::Html(502), Fault::Hangup, Fault::Cut(150_000), Fault::CloseAfter]
    {
        let client = front.client(Http2::Auto);
        server.script(Rule::next(fault.clone()));
        let mut lease = memory.lease(bytes.len());
        let got = client.get("k", &mut lease, &Get::default()).await;
        got.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert!(lease.as_host().unwrap() == bytes, "{fault:?}");
    }
    let large = memory.view(&pattern(32 * MIB));
    server.script(Rule::next(Fault::Early(403, "AccessDenied")).times(2));
    let client = front.client(Http2::Auto);
    let error = client.put("new", &large, &Put::default()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Io), "{error}");
    server.heal();
    client.put("new", &large, &Put::default()).await.unwrap();
}

#[tokio::test]
async fn it_falls_back_where_http2_is_not_offered_or_not_asked_for() {
    let server = plain();
    let Some(old) = Front::before(&server, "http/1.1", 65_535) else { return };
    let Some(new) = Front::before(&server, "h2,http/1.1", 65_535) else { return };
    for (front, http2) in [(&old, Http2::Auto), (&old, Http2::PriorKnowledge), (&new, Http2::Off)] {
        let client = front.client(http2);
        assert!(client.head_bucket().await.unwrap());
        assert_eq!((client.counts().connections_http11, client.counts().connections_http2), (1, 0));
    }
}
