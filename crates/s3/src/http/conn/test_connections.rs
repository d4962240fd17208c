//! Connections to a server that a test plays.

use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};

use super::super::tls::test_connection_pair::{ALL, DIRECT, pair};
use super::*;

/// The server's end.
pub type Server = Box<dyn AsyncWrite + Send + Unpin>;

/// Plain, and over TLS with each kind of records.
pub async fn connections() -> Vec<(Box<Conn>, Server)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let mut ends: Vec<(Stream, Server)> =
        vec![(Stream::Plain(plain), Box::new(listener.accept().await.unwrap().0))];
    for direct in DIRECT {
        let (ours, server) = pair(*direct, ALL).await;
        ends.push((ours, Box::new(server)));
    }
    let conn = |stream| Conn::new(stream, Arc::new(Target::new(true, "127.0.0.1", None)));
    ends.into_iter().map(|(stream, server)| (conn(stream), server)).collect()
}
