//! Logs requests and their answers.

use crate::error::Error;
use crate::local_clock::Instant;

/// What the log shows of a request.
#[derive(Debug)]
pub struct LoggedRequest<'a> {
    pub method: &'static str,
    pub key: Option<&'a str>,
    pub query: &'a [(&'a str, &'a str)],
    pub sent_at: Instant,
}

impl LoggedRequest<'_> {
    /// Logs an attempt at level `debug`: what was asked, what the store answered (the status) and
    /// when. Cache salts, which the names of objects in LMCache's layouts hold, are secret: names
    /// end where a salt begins, and of the query only the names are shown, since prefixes and
    /// markers of listings are names of objects too.
    pub fn log(&self, answer: Result<u16, &Error>) {
        // Called with every request: nothing is formatted unless the level is on.
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let method = self.method;
        let key = &*without_salt(self.key.unwrap_or_default());
        let query: Vec<&str> = self.query.iter().map(|(name, _)| *name).collect();
        let ms = self.sent_at.elapsed().as_secs_f64() * 1e3;
        match answer {
            Ok(status) => tracing::debug!(method, key, ?query, status, ms, "request"),
            Err(error) => tracing::debug!(method, key, ?query, ms, %error, "request failed"),
        }
    }
}

/// The name of an object, `***` for what follows its fourth `@`: in LMCache's layouts a cache salt
/// is there.
fn without_salt(key: &str) -> std::borrow::Cow<'_, str> {
    match key.match_indices('@').nth(3) {
        Some((at, _)) => format!("{}@***", &key[..at]).into(),
        None => key.into(),
    }
}
