//! The command over a bucket of a server in memory.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use kvtier_testkit::s3::Server;

/// Runs `kvtier` with the credentials, endpoint and region of `server` in its environment, and
/// nothing else.
pub fn kvtier_on(server: &Server, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(words).env_clear();
    command.env("AWS_ACCESS_KEY_ID", "AKIDTEST").env("AWS_SECRET_ACCESS_KEY", "secret/test+key");
    command.env("AWS_ENDPOINT_URL", server.url()).env("AWS_REGION", "us-east-1").output().unwrap()
}
