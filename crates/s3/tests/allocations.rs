//! What an operation allocates does not depend on the length of its body. The server is in another
//! process; nothing else runs here.
#![allow(clippy::unwrap_used)]

mod support;

use std::alloc::System;

use kvtier_mem::Lease;
use kvtier_s3::{BucketAddress, Client, Get, Put};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::remote::Remote;
use support::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SMALL: usize = 64 << 10;
const LARGE: usize = 32 << 20;
const OPS: usize = 8;
/// TLS carries at most this much in one record.
const RECORD: usize = 16 << 10;
/// And what stands before the server here sends this much in one.
const FRONT_RECORD: usize = 8 << 10;
/// HTTP/2 carries at least this much in one frame of a long body.
const FRAME: usize = 16 << 10;

#[test]
fn serve() {
    support::remote::serve();
}

/// Allocations by one of several runs, and the fewest that any of them made: a timer of the runtime
/// or a ticket of TLS may come between.
async fn fewest(mut run: impl AsyncFnMut()) -> usize {
    let mut fewest = usize::MAX;
    for _ in 0..OPS {
        let before = ALLOCATOR.stats();
        run().await;
        let after = ALLOCATOR.stats();
        let count =
            (after.allocations - before.allocations) + (after.reallocations - before.reallocations);
        fewest = fewest.min(count);
    }
    fewest
}

async fn get(client: &Client, lease: &mut Lease) {
    let key = if lease.len() == SMALL { "65536" } else { "33554432" };
    assert!(client.get(key, lease, &Get::default()).await.unwrap().is_some());
}

#[test]
fn no_frame_of_a_body_costs_an_allocation() {
    let remote = Remote::start(&[SMALL, LARGE]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let memory = Memory::new();
        let mut small = memory.lease(SMALL);
        let mut large = memory.lease(LARGE);
        let views = [memory.view(&pattern(SMALL)), memory.view(&pattern(LARGE))];
        for (what, client) in [
            ("HTTP/1.1", remote.client(false)),
            ("TLS", remote.client(true)),
            ("HTTP/2", remote.http2()),
        ] {
            get(&client, &mut small).await;
            get(&client, &mut large).await;
            assert!(large.as_host().unwrap() == pattern(LARGE));
            let few = fewest(async || get(&client, &mut small).await).await;
            let many = fewest(async || get(&client, &mut large).await).await;
            let head = fewest(async || drop(client.head("65536").await.unwrap().unwrap())).await;
            let put_few =
                fewest(async || drop(client.put("p", &views[0], &Put::default()).await.unwrap()))
                    .await;
            let put_many =
                fewest(async || drop(client.put("p", &views[1], &Put::default()).await.unwrap()))
                    .await;
            let report =
                format!("{what}: GET {few} and {many}, PUT {put_few} and {put_many}, HEAD {head}");
            writeln_out(&report);
            // The libraries' own: one for each record, or frame, that comes, and each record that
            // goes. Those that come may be smaller when the server has to wait.
            let (ins, outs) = match what {
                "HTTP/1.1" => (0, 0),
                "TLS" => ((LARGE - SMALL) / FRONT_RECORD * 5 / 4, (LARGE - SMALL) / RECORD * 5 / 4),
                _ => ((LARGE - SMALL) / FRAME * 5 / 4, 0),
            };
            assert!(many <= few + ins + 4, "{report}");
            assert!(put_many <= put_few + outs + 4, "{report}");
            assert!(
                head <= if what == "HTTP/2" { 40 } else { 8 } && few <= 32 + SMALL / FRONT_RECORD,
                "{report}"
            );
        }
    });
}

/// A caller may move a future before it runs, and runtimes do: what it holds is copied each time.
#[test]
fn futures_are_small() {
    let memory = Memory::new();
    let client = Client::new(config_of(
        BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap(),
    ));
    let mut lease = memory.lease(SMALL);
    let view = memory.view(b"x");
    let ways = Get::default();
    let sizes = [
        size_of_val(&client.head("k")),
        size_of_val(&client.put("k", &view, &Put::default())),
        size_of_val(&client.get("k", &mut lease, &ways)),
    ];
    assert!(sizes.iter().all(|size| *size <= 3072), "HEAD, PUT and GET: {sizes:?} bytes");
}

fn writeln_out(text: &str) {
    use std::io::Write;
    std::io::stdout().write_all(format!("{text}\n").as_bytes()).unwrap();
}
