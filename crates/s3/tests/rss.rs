//! The client's memory does not grow with what went through it. The server is in another process;
//! nothing else runs here.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_mem::{Lease, View};
use kvtier_s3::{Client, Counts, Get, Put};
use support::remote::Remote;
use support::rss::rss_kib;
use support::*;

const LEN: usize = 32 << 20;
const KEY: &str = "33554432";
/// How far it may stray from where it was.
const STRAY_KIB: i64 = 2048;
/// And over HTTP/2, whose library keeps what came before the client read it: at most 32 MiB
/// a connection, seldom more than a tenth of it.
const STRAY_HTTP2_KIB: i64 = 8192;

#[test]
fn serve() {
    support::remote::serve();
}

/// Gets and puts until `megabytes` were transferred; how far the memory strayed meanwhile.
async fn soak(client: &Client, memory: &Memory, bytes: usize) -> i64 {
    let mut leases = [memory.lease(LEN), memory.lease(LEN)];
    let view = memory.view(&pattern(LEN));
    // What is needed once is there after the first rounds.
    for _ in 0..3 {
        round(client, &mut leases, &view).await;
    }
    let base = rss_kib();
    let before = client.counts();
    let mut stray = 0;
    let moved = |now: Counts| now.bytes_in + now.bytes_out - before.bytes_in - before.bytes_out;
    while moved(client.counts()) < bytes as u64 {
        round(client, &mut leases, &view).await;
        stray = stray.max((rss_kib() - base).abs());
    }
    stray
}

/// Two objects in, then one out and one in.
async fn round(client: &Client, [one, two]: &mut [Lease; 2], view: &View) {
    let whole = Get::default();
    let put = Put::default();
    let (first, second) = tokio::join!(client.get(KEY, one, &whole), client.get(KEY, two, &whole));
    assert!(first.unwrap().is_some() && second.unwrap().is_some());
    let (stored, third) = tokio::join!(client.put("put", view, &put), client.get(KEY, one, &whole));
    assert!(stored.is_ok() && third.unwrap().is_some());
}

#[test]
fn memory_stays_where_it_was_over_gigabytes() {
    let long = std::env::var_os("KVTIER_NIGHTLY").is_some();
    let remote = Remote::start(&[LEN]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let memory = Memory::new();
        let over = [
            ("HTTP/2", remote.http2(), 500),
            ("HTTP/1.1", remote.client(false), 1500),
            ("TLS", remote.client(true), 500),
        ];
        let mut strayed = Vec::new();
        for (what, client, megabytes) in over {
            let megabytes = if long { 20_000 } else { megabytes };
            let stray = soak(&client, &memory, megabytes * 1_000_000).await;
            assert_eq!(client.counts().connections_http2 > 0, what == "HTTP/2");
            report(&format!("{megabytes} MB over {what}: {stray} KiB"));
            let allowed = if what == "HTTP/2" { STRAY_HTTP2_KIB } else { STRAY_KIB };
            strayed.extend((stray > allowed).then(|| format!("over {what}: {stray} KiB")));
        }
        assert!(strayed.is_empty(), "{strayed:?}");
    });
}

fn report(text: &str) {
    use std::io::Write;
    std::io::stdout().write_all(format!("{text}\n").as_bytes()).unwrap();
}
