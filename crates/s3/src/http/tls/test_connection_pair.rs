//! Two ends of one connection, for tests: ours, and a server's on rustls.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{RootCerts, Tls};
use crate::config::Http2;
use crate::http::stream::Stream;
use crate::http::{Dialer, SystemResolver, Target};

type Certified = rcgen::CertifiedKey<rcgen::KeyPair>;

/// Whose records there are.
pub const DIRECT: &[bool] = if cfg!(feature = "tls-direct") { &[false, true] } else { &[false] };
pub const ALL: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;

/// The length of a ticket's message, as rustls writes it where it keeps the session itself.
const TICKET_BYTES: usize = 4 + 4 + 4 + 33 + 34 + 2;

/// A connection, and what its other end is.
pub async fn pair(
    direct: bool,
    versions: &[&'static SupportedProtocolVersion],
) -> (Stream, TlsStream<TcpStream>) {
    let (tls, config) = ends(direct, versions);
    connected(&tls, config, None).await
}

/// A pair whose sockets buffer about `bytes` on their way to the server.
pub async fn narrow(direct: bool, bytes: u32) -> (Stream, TlsStream<TcpStream>) {
    let (tls, config) = ends(direct, ALL);
    connected(&tls, config, Some(bytes)).await
}

/// A pair whose server sends a number of tickets, and nothing else.
pub async fn flooded(direct: bool, tickets: usize) -> Stream {
    let (tls, mut config) = ends(direct, &[&rustls::version::TLS13]);
    config.send_tls13_tickets = tickets;
    // A whole number of them in each record, so that rustls can forget it.
    config.max_fragment_size = Some(100 * TICKET_BYTES + 5);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut server = TlsAcceptor::from(Arc::new(config))
            .accept(listener.accept().await.unwrap().0)
            .await
            .unwrap();
        drop(server.read(&mut [0]).await);
    });
    tls.connect("127.0.0.1", TcpStream::connect(address).await.unwrap()).await.unwrap()
}

/// Ours, as a dialer makes it.
pub async fn dialed(direct: bool) -> Stream {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let (config, root_certs) = server(&certified, ALL);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target::new(true, "127.0.0.1", Some(listener.local_addr().unwrap().port()));
    let accept = async {
        TlsAcceptor::from(Arc::new(config))
            .accept(listener.accept().await.unwrap().0)
            .await
            .unwrap()
    };
    let dialer = Dialer::new(
        Box::new(SystemResolver),
        root_certs,
        Duration::from_secs(600),
        Http2::Off,
        direct,
    );
    let (stream, _) = tokio::join!(dialer.connect(&target), accept);
    stream.unwrap()
}

fn ends(direct: bool, versions: &[&'static SupportedProtocolVersion]) -> (Tls, ServerConfig) {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let (config, root_certs) = server(&certified, versions);
    (Tls::new(&root_certs, false, direct).unwrap(), config)
}

/// A server of that name, and root certificates that accept it.
fn server(
    certified: &Certified,
    versions: &[&'static SupportedProtocolVersion],
) -> (ServerConfig, RootCerts) {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    (config, RootCerts::Pem(certified.cert.pem().into_bytes()))
}

async fn connected(
    tls: &Tls,
    config: ServerConfig,
    bytes: Option<u32>,
) -> (Stream, TlsStream<TcpStream>) {
    let from = TcpSocket::new_v4().unwrap();
    let to = TcpSocket::new_v4().unwrap();
    if let Some(bytes) = bytes {
        from.set_send_buffer_size(bytes).unwrap();
        to.set_recv_buffer_size(bytes).unwrap();
    }
    to.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = to.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let accept = async {
        TlsAcceptor::from(Arc::new(config))
            .accept(listener.accept().await.unwrap().0)
            .await
            .unwrap()
    };
    let connect =
        async { tls.connect("127.0.0.1", from.connect(address).await.unwrap()).await.unwrap() };
    tokio::join!(connect, accept)
}
