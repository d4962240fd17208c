//! The same answers over HTTP/2.

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

use super::ask::{Ask, Body, REST};
use super::stream::Objects;

/// Large enough that no client ever waits for leave to send.
const WINDOW_BYTES: u32 = 64 << 20;
const FRAME_BYTES_MAX: u32 = 256 << 10;
const STREAMS_MAX: u32 = 256;

/// Serves one connection.
pub async fn serve(io: impl AsyncRead + AsyncWrite + Unpin, objects: &Rc<Objects>, latency: Duration) -> Result<()> {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX);
    let mut connection = builder.handshake::<_, Bytes>(io).await?;
    while let Some(asked) = connection.accept().await {
        let (request, respond) = asked?;
        let objects = Rc::clone(objects);
        tokio::task::spawn_local(async move {
            if let Err(e) = answer(request, respond, &objects, latency).await
                && !e.is::<h2::Error>()
            {
                eprintln!("server: {e:#}");
            }
        });
    }
    Ok(())
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    objects: &Objects,
    latency: Duration,
) -> Result<()> {
    let (head, mut body) = request.into_parts();
    let mut ask = Ask::new(head.method.as_str(), head.uri.path_and_query().context("no path")?.as_str())?;
    for (name, value) in &head.headers {
        ask.header(name.as_str(), value.as_bytes())?;
    }
    let mut came = 0;
    while let Some(piece) = body.data().await {
        let len = piece?.len();
        came += len;
        body.flow_control().release_capacity(len)?;
    }
    ensure!(came == ask.body || head.headers.get("content-length").is_none(), "a body of another length");
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let reply = ask.reply(objects)?;
    let mut answer = Response::builder().status(reply.status).header("content-length", reply.length);
    for (name, value) in REST.into_iter().chain(reply.part.as_deref().map(|part| ("content-range", part))) {
        answer = answer.header(name, value);
    }
    for (name, value) in &reply.meta {
        answer = answer.header(name, value);
    }
    let bytes = match reply.body {
        Body::Text(text) => Bytes::from_static(text.as_bytes()),
        Body::Object(first) => objects.bytes.slice(first..first + reply.length),
    };
    let stream = respond.send_response(answer.body(())?, bytes.is_empty())?;
    if bytes.is_empty() { Ok(()) } else { send(stream, bytes).await }
}

/// No byte of the objects is copied here.
async fn send(mut stream: SendStream<Bytes>, mut bytes: Bytes) -> Result<()> {
    stream.reserve_capacity(bytes.len());
    while !bytes.is_empty() {
        let room = poll_fn(|cx| {
            loop {
                match (stream.capacity(), ready!(stream.poll_capacity(cx))) {
                    (0, Some(Ok(0))) => {}
                    (_, room) => return Poll::Ready(room),
                }
            }
        });
        let room = room.await.context("the client went away")??;
        let piece = bytes.split_to(room.min(bytes.len()));
        stream.send_data(piece, bytes.is_empty())?;
    }
    Ok(())
}
