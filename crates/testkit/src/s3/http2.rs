//! The same server over HTTP/2: on a connection that begins like TLS under TLS, otherwise without.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::fault::{CLOG, Fault};
use super::server::ServerState;
use super::wire::{Response, WireRequest};
use super::written::Written;

const TLS_HANDSHAKE: u8 = 22;
/// What was written has at least this time to leave before the connection or the stream is broken.
const FLUSH: Duration = Duration::from_millis(30);
/// How often it is asked whether it has left, where the client does not read it so fast.
const FLUSH_POLL: Duration = Duration::from_millis(1);
const WINDOW_BYTES: u32 = 1 << 20;
const STREAMS_MAX: u32 = 16;

struct Identity {
    ca: String,
    leaf: String,
    acceptor: TlsAcceptor,
}

fn identity() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(|| certify().expect("certificates can be made"))
}

fn certify() -> Result<Identity, Box<dyn std::error::Error>> {
    // A root of its own and a leaf that it signs, made once per process: clients must trust the
    // root, so that verification is tested too.
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate()?;
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let leaf_key = KeyPair::generate()?;
    let names = ["127.0.0.1", "localhost", "s3.test"].map(String::from);
    let leaf = CertificateParams::new(names)?.signed_by(&leaf_key, &Issuer::new(ca, ca_key))?;
    let leaf_pem = leaf.pem() + &leaf_key.serialize_pem();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config =
        config.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Identity { ca: ca_pem, leaf: leaf_pem, acceptor: TlsAcceptor::from(Arc::new(config)) })
}

/// The certificate to trust, in PEM: one for all servers of this process.
pub fn ca_pem() -> &'static str {
    &identity().ca
}

/// What a server of another make needs to be trusted as this one is: certificate and key, in PEM.
pub fn server_pem() -> &'static str {
    &identity().leaf
}

/// One connection, on this thread.
pub fn converse(shared: &Arc<ServerState>, socket: &TcpStream) -> io::Result<()> {
    let mut first = [0];
    // One port for both: a TLS connection begins with a handshake record, h2c with the letters of
    // the preface.
    socket.peek(&mut first)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let spoken = runtime.block_on(async {
        let scene = Arc::new(Scene {
            shared: Arc::clone(shared),
            socket: socket.try_clone()?,
            waits: Arc::default(),
        });
        // The other handle of the same socket stays for `hang_up`, which cuts the connection below
        // HTTP/2.
        let nonblocking = socket.try_clone()?;
        nonblocking.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(nonblocking)?;
        match first[0] {
            TLS_HANDSHAKE => serve(scene, identity().acceptor.accept(stream).await?).await,
            _ => serve(scene, stream).await,
        }
    });
    // Some answers may still be stalling.
    runtime.shutdown_background();
    spoken
}

async fn serve(scene: Arc<Scene>, io: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let io = Written::new(io, Arc::clone(&scene.waits));
    let mut builder = h2::server::Builder::new();
    // Small windows: a client that does not count what it may send is found out by bodies of a few
    // MiB.
    builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(4 * WINDOW_BYTES);
    let handshake = builder.max_concurrent_streams(STREAMS_MAX).handshake::<_, Bytes>(io).await;
    let mut connection = handshake.map_err(io::Error::other)?;
    while let Some(next) = connection.accept().await {
        let (request, respond) = next.map_err(io::Error::other)?;
        let scene = Arc::clone(&scene);
        // A client that resets a stream is no news.
        tokio::spawn(async move { drop(scene.respond(request, respond).await) });
    }
    Ok(())
}

/// What the streams of one connection share.
struct Scene {
    shared: Arc<ServerState>,
    socket: TcpStream,
    /// Whether something that was written has not left yet.
    waits: Arc<AtomicBool>,
}

impl Scene {
    /// Waits until what was written has left, however slow the client reads. The connection takes
    /// it while this sleeps, since both are on one thread.
    async fn flushed(&self) {
        tokio::time::sleep(FLUSH).await;
        while self.waits.load(Ordering::SeqCst) {
            tokio::time::sleep(FLUSH_POLL).await;
        }
    }

    async fn respond(
        &self,
        request: http::Request<RecvStream>,
        mut to: SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let (parts, mut from) = request.into_parts();
        let request = plain(&parts);
        let fault = self.shared.fault(&request);
        match fault {
            Some(Fault::Early(status, code)) => {
                self.shared.note(&request, status);
                self.send(&request, Response::error(status, code), None, &mut to).await?;
                // The answer must leave before the reset, or the library drops it from its queue.
                self.flushed().await;
                to.send_reset(Reason::NO_ERROR);
                return Ok(());
            }
            Some(Fault::Refuse) => {
                to.send_reset(Reason::REFUSED_STREAM);
                return Ok(());
            }
            Some(Fault::Clog) => {
                self.shared.note_stalled(&request);
                tokio::time::sleep(CLOG).await;
                return Ok(());
            }
            _ => {}
        }
        let mut body = Vec::new();
        while let Some(piece) = from.data().await {
            let piece = piece?;
            body.extend_from_slice(&piece);
            // Without this the client's window runs empty and it stops sending.
            from.flow_control().release_capacity(piece.len())?;
        }
        if matches!(fault, Some(Fault::Hangup)) {
            self.hang_up();
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let asked = request.clone();
        let wrong = fault.clone();
        let answered =
            // An answer may stall on purpose, and must not stop the other streams of the
            // connection.
            tokio::task::spawn_blocking(move || shared.answer(&asked, body, wrong.as_ref())).await;
        let Ok(response) = answered else { return Ok(()) };
        self.shared.note(&request, response.status);
        self.send(&request, response, fault, &mut to).await
    }

    async fn send(
        &self,
        request: &WireRequest,
        response: Response,
        fault: Option<Fault>,
        to: &mut SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let mut response = self.shared.dated(response);
        response.distort(fault.as_ref());
        let ends = request.method == "HEAD" || response.status == 204;
        let mut stream = to.send_response(head(&response), ends)?;
        if ends {
            return Ok(());
        }
        let body = Bytes::from(std::mem::take(&mut response.body));
        match fault {
            Some(Fault::Cut(at) | Fault::Reset(at)) => {
                push(&mut stream, body.slice(..at.min(body.len())), false).await?;
                self.flushed().await;
                stream.send_reset(Reason::INTERNAL_ERROR);
            }
            Some(Fault::EndEarly(at)) => {
                push(&mut stream, body.slice(..at.min(body.len())), true).await?
            }
            Some(Fault::Drip(bytes, pause)) => {
                let mut rest = body;
                while !rest.is_empty() {
                    let piece = rest.split_to(bytes.min(rest.len()));
                    push(&mut stream, piece, rest.is_empty()).await?;
                    tokio::time::sleep(pause).await;
                }
            }
            _ => push(&mut stream, body, true).await?,
        }
        if matches!(fault, Some(Fault::CloseAfter)) {
            self.flushed().await;
            self.hang_up();
        }
        Ok(())
    }

    fn hang_up(&self) {
        drop(self.socket.shutdown(Shutdown::Both));
    }
}

/// The request in the form of the server's other half.
fn plain(parts: &http::request::Parts) -> WireRequest {
    let mut headers: Vec<(String, String)> = parts
        .headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    if let Some(authority) = parts.uri.authority() {
        // HTTP/2 has `:authority` in place of `host`, which the signature covers.
        headers.push(("host".into(), authority.as_str().to_owned()));
    }
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    WireRequest { method: parts.method.as_str().to_owned(), path, query, headers }
}

fn head(response: &Response) -> http::Response<()> {
    let mut head = http::Response::builder().status(response.status);
    for (name, value) in &response.headers {
        head = head.header(name, value);
    }
    if !response.chunked {
        head = head.header("content-length", response.announced.unwrap_or(response.body.len()));
    }
    head.body(()).expect("headers that came can go")
}

async fn push(
    stream: &mut SendStream<Bytes>,
    mut body: Bytes,
    ends: bool,
) -> Result<(), h2::Error> {
    if body.is_empty() && ends {
        return stream.send_data(body, true);
    }
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        // The client grants the window. Its stream may end while this waits.
        while stream.capacity() == 0 {
            match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(granted) => drop(granted?),
                None => return Ok(()),
            }
        }
        let piece = body.split_to(stream.capacity().min(body.len()));
        stream.send_data(piece, ends && body.is_empty())?;
    }
    Ok(())
}
