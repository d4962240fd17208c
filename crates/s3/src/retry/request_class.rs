/// What a request is for. Stores throttle and fail these apart from each other, so each has a
/// health and a pace of its own: deletes that fail say nothing against loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestClass {
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

impl RequestClass {
    /// All of them, each at the place of its number.
    pub const ALL: [RequestClass; 5] = [
        RequestClass::Read,
        RequestClass::Write,
        RequestClass::Delete,
        RequestClass::Control,
        RequestClass::Session,
    ];

    /// What its requests are called.
    pub fn word(self) -> &'static str {
        match self {
            RequestClass::Read => "reads",
            RequestClass::Write => "writes",
            RequestClass::Delete => "deletes",
            RequestClass::Control => "listings and settings",
            RequestClass::Session => "sessions",
        }
    }

    /// Whether loads wait for it.
    pub fn serves_loads(self) -> bool {
        matches!(self, RequestClass::Read | RequestClass::Session)
    }
}
