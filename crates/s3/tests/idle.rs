//! Idle connections: the last used first, none for longer than the limit.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use kvtier_s3::Client;
use support::*;

async fn at_once(client: &Client, count: usize) {
    let mut heads: Vec<_> = (0..count).map(|_| Box::pin(client.head_bucket())).collect();
    std::future::poll_fn(|cx| {
        heads.retain_mut(|head| head.as_mut().poll(cx).is_pending());
        if heads.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[tokio::test]
async fn no_connection_is_used_that_was_idle_for_too_long() {
    let server = server(|_| {});
    let mut config = config(&server);
    let idle_max = Duration::from_secs(600);
    config.idle_max = idle_max;
    let client = Client::new(config);
    for _ in 0..3 {
        let before = server.accepted();
        assert!(client.head_bucket().await.unwrap() && client.head_bucket().await.unwrap());
        assert_eq!((server.accepted(), client.counts().retries_stale), (before + 1, 0));
        jump(idle_max).await;
    }
}

#[tokio::test]
async fn what_was_used_last_is_used_first_and_the_rest_ages_away() {
    let server = server(|_| {});
    let mut config = config(&server);
    config.idle_max = Duration::from_secs(3000);
    let client = Client::new(config);
    at_once(&client, 4).await;
    assert_eq!((client.connections_idle(), server.accepted()), (4, 4));
    for _ in 0..6 {
        jump(Duration::from_secs(600)).await;
        assert!(client.head_bucket().await.unwrap());
    }
    assert_eq!((client.connections_idle(), server.accepted()), (1, 4));
    soon("the others are closed", || server.connections() == 1).await;
}
