//! Servers that send for ever what is no answer: it ends, and other tasks run meanwhile.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt;

use super::super::body_sink::{BodyBuffer, BodySink};
use super::test_connections::{Server, connections};
use super::*;

const IDLE: Duration = Duration::from_secs(240);

/// What it comes to; it must come to an end by itself.
async fn ends<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(IDLE / 4, work).await.expect("it has an end")
}

/// Sends `first`, and then `repeated` until the client has gone.
fn flood(mut server: Server, first: &str, repeated: &str) {
    let first = first.to_owned();
    let repeated = repeated.repeat(1000);
    tokio::spawn(async move {
        drop(server.write_all(first.as_bytes()).await);
        while server.write_all(repeated.as_bytes()).await.is_ok() {}
    });
}

#[tokio::test]
async fn interim_answers_have_an_end() {
    for (mut conn, server) in connections().await {
        flood(server, "", "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n");
        conn.out = b"GET".to_vec().into();
        // It may be noticed while the request is sent.
        let sent = ends(conn.send(&[], IDLE)).await;
        let error = match sent {
            Ok(_) => ends(conn.head(false, IDLE, &mut [])).await.unwrap_err(),
            Err(e) => e,
        };
        assert!(
            error.kind() == ErrorKind::Corrupt && error.to_string().contains("interim"),
            "{error}"
        );
        assert!(!conn.is_usable());
    }
    // A few are no flood, and the next request has as many again.
    for (mut conn, mut server) in connections().await {
        let answer = "HTTP/1.1 102 Processing\r\n\r\n".repeat(40)
            + "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        for _ in 0..3 {
            conn.out = b"GET".to_vec().into();
            conn.send(&[], IDLE).await.unwrap();
            server.write_all(answer.as_bytes()).await.unwrap();
            server.flush().await.unwrap();
            assert_eq!(conn.head(false, IDLE, &mut []).await.unwrap().status, 200);
        }
    }
}

#[tokio::test]
async fn interim_answers_to_an_upload_have_an_end() {
    for (mut conn, server) in connections().await {
        flood(server, "", "HTTP/1.1 102 Processing\r\n\r\n");
        conn.out = b"PUT".to_vec().into();
        // More than the sockets hold: the server takes nothing.
        let error = ends(conn.send(&vec![7; 64 << 20], IDLE)).await.unwrap_err();
        assert!(error.to_string().contains("interim"), "{error}");
        assert!(!conn.is_usable());
    }
}

#[tokio::test]
async fn trailers_have_an_end() {
    for (mut conn, server) in connections().await {
        flood(
            server,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
            "a: b\r\n",
        );
        conn.out = b"GET".to_vec().into();
        conn.send(&[], IDLE).await.unwrap();
        let head = conn.head(false, IDLE, &mut []).await.unwrap();
        let mut memory = [0];
        let mut text = Vec::new();
        let mut buffer = BodyBuffer::new(&mut memory);
        let body = conn.body(head.framing, BodySink::Buffer(&mut buffer), IDLE);
        let error = ends(body).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Corrupt && error.to_string().contains("trailers"),
            "{error}"
        );
        assert!(
            !conn.is_usable()
                && conn.body(head.framing, BodySink::Text(&mut text, 1), IDLE).await.is_err()
        );
    }
}

#[tokio::test]
async fn other_tasks_run_while_much_comes_in_little_pieces() {
    const LEN: usize = 100_000;
    for (mut conn, server) in connections().await {
        flood(server, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\nx\r\n");
        let turns = Arc::new(AtomicUsize::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let taken = Arc::clone(&turns);
        let ends = Arc::clone(&over);
        let beside = tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                taken.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        conn.out = b"GET".to_vec().into();
        conn.send(&[], IDLE).await.unwrap();
        let head = conn.head(false, IDLE, &mut []).await.unwrap();
        let mut memory = vec![0; LEN];
        let error = conn
            .body(head.framing, BodySink::Buffer(&mut BodyBuffer::new(&mut memory)), IDLE)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("longer"), "{error}");
        over.store(true, Ordering::Relaxed);
        beside.await.unwrap();
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns > LEN / 200, "{turns} turns during {LEN} chunks");
    }
}
