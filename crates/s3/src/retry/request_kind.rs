/// What a request is for. Stores throttle and fail these apart from each other, so each has a
/// health and a pace of its own: deletes that fail say nothing against loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// Objects and what is known of them.
    Read,
    /// Objects and their parts.
    Write,
    /// Deletes, one or many, and the giving up of uploads.
    Delete,
    /// Listings, and whatever else is asked of a bucket.
    Control,
    /// Sessions of S3 Express, without which nothing else goes.
    Session,
}

impl RequestKind {
    /// All of them, each at the place of its number.
    pub const ALL: [RequestKind; 5] = [
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Delete,
        RequestKind::Control,
        RequestKind::Session,
    ];

    /// What its requests are called.
    pub fn word(self) -> &'static str {
        match self {
            RequestKind::Read => "reads",
            RequestKind::Write => "writes",
            RequestKind::Delete => "deletes",
            RequestKind::Control => "listings and settings",
            RequestKind::Session => "sessions",
        }
    }

    /// Whether loads wait for it.
    pub fn serves_loads(self) -> bool {
        matches!(self, RequestKind::Read | RequestKind::Session)
    }
}
