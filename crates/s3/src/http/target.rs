use std::fmt;

/// A server: scheme, host and port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Whether it is reached over TLS.
    pub tls: bool,
    /// Its name or address, an IPv6 address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What goes into the `host` header: the port only when it is not the scheme's own.
    pub authority: String,
}

impl Target {
    /// That of `host` (an IPv6 address without brackets) and its port, if it is not the scheme's
    /// own.
    pub fn new(tls: bool, host: &str, port: Option<u16>) -> Self {
        let usual = if tls { 443 } else { 80 };
        let shown = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let authority = match port.filter(|port| *port != usual) {
            Some(port) => format!("{shown}:{port}"),
            None => shown,
        };
        Target { tls, host: host.to_owned(), port: port.unwrap_or(usual), authority }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}
