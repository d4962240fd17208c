//! A name has several addresses, and they change.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use kvtier_s3::{BucketAddress, Client, Resolve, Resolved};
use support::*;

/// Answers with what the test says at that time.
#[derive(Clone, Debug)]
struct Names(Arc<Mutex<Vec<SocketAddr>>>);

impl Resolve for Names {
    fn resolve<'a>(&'a self, host: &'a str, _: u16) -> Resolved<'a> {
        assert_eq!(host, "s3.test");
        Box::pin(async { Ok(self.0.lock().unwrap().clone()) })
    }
}

fn client_of(addresses: &[SocketAddr]) -> (Client, Names) {
    let names = Names(Arc::new(Mutex::new(addresses.to_vec())));
    let mut config =
        config_of(BucketAddress::new("http://s3.test:9000").bucket("bucket").resolve().unwrap());
    config.resolver = Box::new(names.clone());
    (Client::new(config), names)
}

#[tokio::test]
async fn an_address_that_is_dead_costs_no_failure() {
    let server = server(|_| {});
    let (dead, _kept) = dead();
    let (client, _) = client_of(&[dead, server.address()]);
    for _ in 0..5 {
        assert!(client.head_bucket().await.unwrap());
        server.disconnect();
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(client.counts().retries, 0);
}

#[tokio::test]
async fn connections_spread_over_all_addresses() {
    let servers = [server(|_| {}), server(|_| {}), server(|_| {})];
    let (client, _) = client_of(&servers.each_ref().map(|server| server.address()));
    // Of requests about objects: those about the bucket have fewer connections.
    let heads = (0..6).map(|_| client.head("nothing"));
    let mut tasks: Vec<_> = heads.map(Box::pin).collect();
    // All at once, so that none can use another's connection.
    std::future::poll_fn(|cx| {
        tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
        if tasks.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!(servers.map(|server| server.accepted()), [2, 2, 2]);
}

#[tokio::test]
async fn when_all_addresses_moved_the_new_ones_are_found() {
    let old = server(|_| {});
    let new = server(|_| {});
    let (client, names) = client_of(&[old.address()]);
    assert!(client.head_bucket().await.unwrap());
    *names.0.lock().unwrap() = vec![new.address()];
    drop(old);
    // What refused us is forgotten at once, and so the name is asked again.
    assert!(client.head_bucket().await.unwrap());
    assert_eq!(new.accepted(), 1);
}
