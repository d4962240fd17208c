//! Responses over HTTP/2.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Objects;
use super::s3_request::{Body, COMMON_HEADERS, S3Request};

/// Large enough that flow control never delays a client.
const WINDOW_BYTES: u32 = 64 << 20;
const FRAME_BYTES_MAX: u32 = 256 << 10;
const STREAMS_MAX: u32 = 256;

/// Serves one connection.
pub async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin,
    objects: &Rc<Objects>,
    latency: Duration,
) -> Result<()> {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX);
    let mut connection = builder.handshake::<_, Bytes>(io).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        let objects = Rc::clone(objects);
        tokio::task::spawn_local(async move {
            if let Err(e) = respond_to(request, respond, &objects, latency).await
                && !e.is::<h2::Error>()
            {
                eprintln!("server: {e:#}");
            }
        });
    }
    Ok(())
}

async fn respond_to(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    objects: &Objects,
    latency: Duration,
) -> Result<()> {
    let (head, mut body) = request.into_parts();
    let mut s3_request = S3Request::new(
        head.method.as_str(),
        head.uri.path_and_query().context("no path")?.as_str(),
    )?;
    for (name, value) in &head.headers {
        s3_request.header(name.as_str(), value.as_bytes())?;
    }
    let mut received = 0;
    while let Some(piece) = body.data().await {
        let len = piece?.len();
        received += len;
        body.flow_control().release_capacity(len)?;
    }
    ensure!(
        received == s3_request.body || head.headers.get("content-length").is_none(),
        "a body of another length"
    );
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let reply = s3_request.respond(objects)?;
    let mut response =
        Response::builder().status(reply.status).header("content-length", reply.length);
    for (name, value) in
        COMMON_HEADERS.into_iter().chain(reply.part.as_deref().map(|part| ("content-range", part)))
    {
        response = response.header(name, value);
    }
    for (name, value) in &reply.meta {
        response = response.header(name, value);
    }
    let bytes = match reply.body {
        Body::Text(text) => Bytes::from_static(text.as_bytes()),
        Body::Object(first) => objects.bytes.slice(first..first + reply.length),
    };
    let stream = respond.send_response(response.body(())?, bytes.is_empty())?;
    if bytes.is_empty() { Ok(()) } else { send(stream, bytes).await }
}

/// Sends the bytes without a copy.
async fn send(mut stream: SendStream<Bytes>, mut bytes: Bytes) -> Result<()> {
    stream.reserve_capacity(bytes.len());
    while !bytes.is_empty() {
        let capacity = poll_fn(|cx| {
            loop {
                match (stream.capacity(), ready!(stream.poll_capacity(cx))) {
                    (0, Some(Ok(0))) => {}
                    (_, capacity) => return Poll::Ready(capacity),
                }
            }
        });
        let capacity = capacity.await.context("the client closed the stream")??;
        let piece = bytes.split_to(capacity.min(bytes.len()));
        stream.send_data(piece, bytes.is_empty())?;
    }
    Ok(())
}
