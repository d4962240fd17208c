//! A server that is never the bottleneck: one thread, objects of any length from one memory file, bodies that are discarded.

mod connection;
mod http2;
mod s3_request;

use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use self::connection::{Connection, Objects};
use self::s3_request::{Body, COMMON_HEADERS, S3Request, S3Response};

/// The size of the buffer for heads and pieces of bodies.
const BUFFER_BYTES: usize = 256 * 1024;
const HEADERS_MAX: usize = 64;

/// Serves until standard input ends. Each request is answered after `latency`.
pub fn run(certificate: &Path, latency: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let objects = Rc::new(Objects::new()?);
    let [one, two] = acceptors(certificate)?;
    LocalSet::new().block_on(&runtime, async {
        let mut ports = serde_json::Map::new();
        let endpoints = [
            ("http", None, false),
            ("https", Some(one), false),
            ("h2c", None, true),
            ("h2", Some(two), true),
        ];
        for (scheme, tls, http2) in endpoints {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            ports.insert(scheme.into(), listener.local_addr()?.port().into());
            tokio::task::spawn_local(accept(
                listener,
                Endpoint { tls, http2, latency, objects: Rc::clone(&objects) },
            ));
        }
        println!("{}", serde_json::Value::Object(ports));
        tokio::task::spawn_blocking(|| drop(std::io::stdin().read_to_end(&mut Vec::new()))).await?;
        Ok(())
    })
}

/// What a listener serves.
#[derive(Clone)]
struct Endpoint {
    tls: Option<TlsAcceptor>,
    http2: bool,
    latency: Duration,
    objects: Rc<Objects>,
}

/// An acceptor that offers only HTTP/1.1, and one that offers only HTTP/2, so that the client does not choose.
fn acceptors(certificate: &Path) -> Result<[TlsAcceptor; 2]> {
    let certified =
        rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()])?;
    fs::write(certificate, certified.cert.pem())
        .with_context(|| format!("cannot write {}", certificate.display()))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth();
    let one = config.with_single_cert(vec![certified.cert.der().clone()], key)?;
    let offering = |protocol: &[u8]| {
        let mut config = one.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    };
    Ok([offering(b"http/1.1"), offering(b"h2")])
}

async fn accept(listener: TcpListener, endpoint: Endpoint) {
    while let Ok((tcp, _)) = listener.accept().await {
        let endpoint = endpoint.clone();
        tokio::task::spawn_local(async move {
            // A closed connection is expected; an invalid request is reported.
            if let Err(e) = serve(tcp, endpoint).await
                && !e.is::<std::io::Error>()
                && !e.is::<h2::Error>()
            {
                eprintln!("server: {e:#}");
            }
        });
    }
}

async fn serve(tcp: TcpStream, endpoint: Endpoint) -> Result<()> {
    tcp.set_nodelay(true)?;
    let Some(tls) = endpoint.tls else {
        return match endpoint.http2 {
            true => http2::serve(tcp, &endpoint.objects, endpoint.latency).await,
            false => http1(Connection::Plain(tcp), &endpoint.objects, endpoint.latency).await,
        };
    };
    let tls = tls.accept(tcp).await?;
    match (endpoint.http2, tls.get_ref().1.alpn_protocol()) {
        (false, _) => {
            http1(Connection::Tls(Box::new(tls)), &endpoint.objects, endpoint.latency).await
        }
        (true, Some(b"h2")) => http2::serve(tls, &endpoint.objects, endpoint.latency).await,
        (true, _) => bail!("a client did not negotiate HTTP/2"),
    }
}

async fn http1(mut connection: Connection, objects: &Objects, latency: Duration) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut filled = 0;
    loop {
        let Some((request, len)) = parse(&buffer[..filled])? else {
            match connection.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                got => filled += got,
            }
            continue;
        };
        if request.expects {
            connection.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let received = request.body.min(filled - len);
        buffer.copy_within(len + received..filled, 0);
        filled -= len + received;
        let mut left = request.body - received;
        while left > 0 {
            // The client waits for the response, so nothing follows the body.
            match connection.read(&mut buffer[..left.min(BUFFER_BYTES)]).await? {
                0 => return Ok(()),
                got => left -= got,
            }
        }
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let reply = request.respond(objects)?;
        let mut head = head_of(&reply)?;
        match reply.body {
            Body::Object(first) => {
                connection.object(head.as_bytes(), objects, first..first + reply.length).await?
            }
            Body::Text(text) => {
                head.push_str(text);
                connection.write(head.as_bytes()).await?;
            }
        }
    }
}

/// Parses a complete head; returns the request and the length of the head.
fn parse(bytes: &[u8]) -> Result<Option<(S3Request, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(len) = request.parse(bytes)? else { return Ok(None) };
    let mut parsed =
        S3Request::new(request.method.unwrap_or_default(), request.path.unwrap_or_default())?;
    for header in request.headers.iter() {
        parsed.header(header.name, header.value)?;
    }
    Ok(Some((parsed, len)))
}

fn head_of(reply: &S3Response) -> Result<String> {
    let mut head = String::with_capacity(512);
    write!(head, "HTTP/1.1 {} OK\r\ncontent-length: {}\r\n", reply.status, reply.length)?;
    if let Some(part) = &reply.part {
        write!(head, "content-range: {part}\r\n")?;
    }
    for (name, value) in &reply.meta {
        write!(head, "{name}: {value}\r\n")?;
    }
    for (name, value) in COMMON_HEADERS {
        write!(head, "{name}: {value}\r\n")?;
    }
    head.push_str("\r\n");
    Ok(head)
}
