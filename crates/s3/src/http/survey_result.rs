use std::net::SocketAddr;
use std::time::Duration;

/// A connection that was opened to inspect the endpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Connection {
    /// Where it led.
    pub address: SocketAddr,
    /// How many addresses the host's name has.
    pub addresses: usize,
    /// How long it took, with TLS.
    pub took: Duration,
    /// What TLS agreed on; `None` over plain HTTP.
    pub tls: Option<Secured>,
}

/// What a TLS handshake agreed on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Secured {
    /// `TLSv1_3`, ...
    pub version: String,
    /// The cipher suite.
    pub suite: String,
    /// What the server chose of `h2` and `http/1.1`; `None` when it does not choose.
    pub alpn: Option<String>,
}
