//! The sessions of S3 Express.

use std::collections::HashMap;

use super::calendar;
use super::wire::{Response, WireRequest};

/// How long a session lives, in seconds.
pub const SESSION_S: i64 = 300;

/// One session's secrets.
#[derive(Clone, Debug)]
pub struct Session {
    pub secret: String,
    pub token: String,
    pub ends: i64,
    pub read_only: bool,
}

/// The sessions that were made.
#[derive(Debug, Default)]
pub struct Sessions {
    live: HashMap<String, Session>,
    pub made: u64,
    /// How long the next ones live, in seconds.
    pub life_s: Option<i64>,
}

impl Sessions {
    /// A new one.
    pub fn create(&mut self, request: &WireRequest, now: i64) -> Response {
        let mode = request.header("x-amz-create-session-mode").unwrap_or("ReadWrite");
        if !matches!(mode, "ReadOnly" | "ReadWrite") {
            return Response::error(400, "InvalidArgument");
        }
        self.made += 1;
        let access = format!("ASIASESSION{}", self.made);
        // With characters that must be escaped in headers, URLs and XML, as real ones have them.
        let secret = format!("session/secret+{}", self.made);
        let token = format!("token/{}=={}", self.made, "x".repeat(300));
        let ends = now + self.life_s.unwrap_or(SESSION_S);
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<CreateSessionResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Credentials>\
             <SessionToken>{token}</SessionToken><SecretAccessKey>{secret}</SecretAccessKey><AccessKeyId>{access}</AccessKeyId>\
             <Expiration>{}</Expiration></Credentials></CreateSessionResult>",
            calendar::iso(ends)
        );
        self.live.insert(access, Session { secret, token, ends, read_only: mode == "ReadOnly" });
        Response::new(200, body)
    }

    /// The session that a request of data was made in.
    pub fn find(
        &self,
        access_key: &str,
        request: &WireRequest,
        now: i64,
    ) -> Result<Session, Response> {
        let session =
            self.live.get(access_key).ok_or_else(|| Response::error(403, "InvalidAccessKeyId"))?;
        // A session has a header of its own. The usual one for temporary credentials is refused
        // beside it.
        if request.header("x-amz-security-token").is_some() {
            return Err(Response::error(400, "InvalidRequest"));
        }
        if request.header("x-amz-s3session-token") != Some(&session.token) {
            return Err(Response::error(400, "InvalidToken"));
        }
        // By the server's clock, which a test may have moved.
        if now >= session.ends {
            return Err(Response::error(403, "ExpiredToken"));
        }
        if session.read_only && !matches!(request.method.as_str(), "GET" | "HEAD") {
            return Err(Response::error(403, "AccessDenied"));
        }
        Ok(session.clone())
    }

    /// Ends all that are live.
    pub fn expire(&mut self) {
        self.live.values_mut().for_each(|session| session.ends = 0);
    }
}
