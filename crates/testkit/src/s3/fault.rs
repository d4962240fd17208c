use std::time::Duration;

/// How long a clogged connection is held.
pub(super) const CLOG: Duration = Duration::from_secs(50);

/// What goes wrong with one request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The answer comes only after this long.
    Stall(Duration),
    /// The answer comes only after [`Server::release`](super::Server::release).
    Hang,
    /// An S3 error with this status and code.
    Error(u16, &'static str),
    /// An S3 error with a `retry-after` of this many seconds.
    SlowDown(u64),
    /// An error page of a proxy.
    Html(u16),
    /// An S3 error before the body is read; the rest of it is never read.
    Early(u16, &'static str),
    /// The connection closes instead of an answer; nothing is done.
    Hangup,
    /// The connection closes after this many bytes of the body.
    Cut(usize),
    /// The connection is reset after this many bytes of the body. (HTTP/2: as `Cut`.)
    Reset(usize),
    /// An error that sends the client elsewhere.
    Elsewhere(Elsewhere),
    /// The body comes this many bytes at a time, with a pause between.
    Drip(usize, Duration),
    /// This many bytes more than announced.
    OverLong(usize),
    /// The announced length is this many bytes less than the truth, and no more are sent.
    Shorter(usize),
    /// The announced length is this many bytes more than the truth, all of them sent.
    Longer(usize),
    /// One bit of the body is wrong.
    Flip,
    /// The answer has no metadata and no checksum; of its body one bit is flipped, or none.
    Stripped {
        /// Whether a bit is flipped.
        flipped: bool,
    },
    /// The `content-range` names other bytes.
    WrongRange,
    /// The range is ignored: 200 and everything.
    IgnoreRange,
    /// 200, and then an error with this code in the body; nothing is done.
    OkThenError(&'static str),
    /// As the last, but the request was carried out.
    DoneThenError(u16, &'static str),
    /// Another answer than the store's.
    Foreign(Foreign),
    /// The body comes in chunks.
    Chunked,
    /// The body ends in good order after this many bytes, though more were announced. (HTTP/2 only;
    /// as `Cut` otherwise.)
    EndEarly(usize),
    /// The stream is refused, unprocessed. (HTTP/2 only; as `Hangup` otherwise.)
    Refuse,
    /// Nothing of the request's body is taken and nothing is answered.
    Clog,
    /// The connection closes without a word after the answer.
    CloseAfter,
}

/// What something else says in the store's place: without the store's id, and without a version
/// unless a header has one.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// The status.
    pub status: u16,
    /// More headers: names and values.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the store carried the request out.
    pub done: bool,
}

impl Foreign {
    /// This status and body; nothing is done.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Foreign { status, body: body.into(), ..Foreign::default() }
    }
}

/// Where an error sends the client.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere {
    /// The status.
    pub status: u16,
    /// One header more: name and value.
    pub header: Option<(&'static str, String)>,
    /// The inside of the error's XML, with its code.
    pub inside: String,
}

/// Which requests a fault meets.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) method: Option<&'static str>,
    pub(super) marker: Option<&'static str>,
    pub(super) header: Option<(&'static str, &'static str)>,
    pub(super) fault: Fault,
    pub(super) times: u32,
}

impl Rule {
    /// The next request, whatever it is.
    pub fn next(fault: Fault) -> Self {
        Rule { method: None, marker: None, header: None, fault, times: 1 }
    }

    /// Only requests with this method.
    pub fn method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// Only requests whose path or query contains this.
    pub fn containing(mut self, marker: &'static str) -> Self {
        self.marker = Some(marker);
        self
    }

    /// Only requests with this header: its name in lower case, and its value.
    pub fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }

    /// This many requests.
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}
