//! TLS before a server.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kvtier_s3::{BucketAddress, Client, RootCerts};
use kvtier_testkit::s3::Server;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{HandshakeKind, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::config_of;

/// One front, on a port of its own.
pub struct Front {
    pub address: SocketAddr,
    pub ca: String,
    pub resumed: Arc<AtomicUsize>,
    /// Handshakes that failed.
    pub refused: Arc<AtomicUsize>,
    acceptor: Arc<Mutex<TlsAcceptor>>,
}

impl Front {
    pub async fn before(server: &Server) -> Self {
        Self::choosing(server, &[b"http/1.1"]).await
    }

    /// One that chooses among these protocols.
    pub async fn choosing(server: &Server, protocols: &[&[u8]]) -> Self {
        let (certified, acceptor) = certified(protocols);
        let acceptor = Arc::new(Mutex::new(acceptor));
        let back = server.address();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let resumed = Arc::new(AtomicUsize::new(0));
        let refused = Arc::new(AtomicUsize::new(0));
        let counts = Counts { resumed: Arc::clone(&resumed), refused: Arc::clone(&refused) };
        let accepts = Arc::clone(&acceptor);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let acceptor = accepts.lock().unwrap().clone();
                tokio::spawn(relay(socket, back, acceptor, counts.clone()));
            }
        });
        Front { address, ca: certified, resumed, refused, acceptor }
    }

    /// From now on with a certificate of another authority.
    pub fn rotate(&mut self) {
        let (ca, acceptor) = certified(&[b"http/1.1"]);
        self.ca = ca;
        *self.acceptor.lock().unwrap() = acceptor;
    }

    pub fn client(&self, root_certs: RootCerts) -> Client {
        let mut config = config_of(
            BucketAddress::new(format!("https://{}", self.address))
                .bucket("bucket")
                .resolve()
                .unwrap(),
        );
        config.root_certs = root_certs;
        config.retries_max = 1;
        Client::new(config)
    }
}

/// A certificate that signs itself, and who shows it.
fn certified(protocols: &[&[u8]]) -> (String, TlsAcceptor) {
    let certified =
        rcgen::generate_simple_self_signed(vec!["s3.test".into(), "127.0.0.1".into()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = config
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    (certified.cert.pem(), TlsAcceptor::from(Arc::new(config)))
}

#[derive(Clone)]
struct Counts {
    resumed: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

async fn relay(socket: TcpStream, back: SocketAddr, acceptor: TlsAcceptor, counts: Counts) {
    let Ok(mut tls) = acceptor.accept(socket).await else {
        counts.refused.fetch_add(1, Ordering::SeqCst);
        return;
    };
    if tls.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
        counts.resumed.fetch_add(1, Ordering::SeqCst);
    }
    let mut back = TcpStream::connect(back).await.unwrap();
    drop(tokio::io::copy_bidirectional(&mut tls, &mut back).await);
}
