use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::Request;

macro_rules! counters {
    ($($name:ident: $doc:literal,)*) => {
        /// What the client did, live.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub $name: Count),* }

        /// What the client did since it was made. All numbers only grow.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Counts { $(#[doc = $doc] pub $name: u64),* }

        impl Counters {
            /// All of them now.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.0.load(Ordering::Relaxed)),* }
            }
        }

        impl Counts {
            /// Names and values, in the order of their declaration.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    requests: "Requests sent, retries and hedges among them.",
    requests_put: "Requests that store: PUT, and POST of uploads in parts. Retries among them, as in the next four.",
    requests_list: "Requests about the bucket: listings, and questions about its settings.",
    requests_get: "Requests that read.",
    requests_head: "Requests that only ask.",
    requests_delete: "Requests that delete: DELETE of one object, POST of a batch.",
    connections: "Connections opened.",
    connections_http11: "Connections that speak HTTP/1.1.",
    connections_http2: "Connections that speak HTTP/2.",
    connections_direct: "Connections whose TLS records are opened straight where their bytes belong.",
    reused: "Requests on a connection that had served before.",
    bytes_in: "Object bytes that landed.",
    bytes_out: "Object bytes sent.",
    copied_head_bytes: "Copy ledger: object bytes that came in one read with the head and were copied.",
    copied_tls_bytes: "Copy ledger: bytes of answers, heads among them, that were copied out of records of TLS.",
    copied_http2_bytes: "Copy ledger: object bytes that came or went in frames of HTTP/2 and were copied.",
    retries: "Requests sent again after a failure.",
    retries_stale: "Requests sent again at once because an idle connection was dead.",
    retries_unprocessed: "Requests sent again at once because an HTTP/2 server said that it had not begun them.",
    retries_refused: "Retries not made because the budget was spent.",
    resumes: "Bodies continued from where a connection broke.",
    ranges_ignored: "Answers that were the whole object though a range was asked for.",
    throttled: "Answers that asked to slow down.",
    timeouts: "Requests during which nothing moved for too long.",
    deadlines: "Operations ended by their deadline.",
    early_answers: "Uploads refused before they were sent.",
    hedges: "Second requests sent because the first was slow.",
    hedges_won: "Hedges whose second request answered first.",
    breaker_opened: "Times the breaker opened.",
    breaker_probes: "Requests let through to see whether the endpoint is back.",
    breaker_closed: "Times it was.",
    breaker_refused: "Requests not sent because the breaker was open.",
    limit_cuts: "Times the number of requests in flight was cut.",
    clock_corrections: "Times the clock offset was corrected from the store's.",
    region_moves: "Times the store named another region.",
    identity_renewals: "Credentials and sessions fetched.",
    identity_failures: "Credentials and sessions that could not be fetched.",
    unsigned_refused: "Times a store insisted on signed bodies.",
    checksum_failures: "Bodies whose checksum was wrong.",
    checksums_verified: "Bodies whose checksum was right.",
    aborts: "Multipart uploads given up.",
}

impl Counters {
    /// A request was sent.
    pub fn sent(&self, request: &Request<'_>) {
        self.requests.one();
        match (request.method, request.key) {
            ("GET", Some(_)) => self.requests_get.one(),
            ("HEAD", Some(_)) => self.requests_head.one(),
            ("PUT" | "POST", Some(_)) => self.requests_put.one(),
            ("DELETE", _) | ("POST", None) => self.requests_delete.one(),
            _ => self.requests_list.one(),
        }
    }
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds one.
    pub fn one(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}
