//! A process of its own with the environment and files that a test makes, which asks for credentials
//! and uses them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvtier_testkit::s3::Server;

use super::support::*;

pub const ASKS: &str = "KVTIER_S3_TEST_ASKS";
/// Set where the metadata service of the instance is not to be asked.
pub const NO_INSTANCE: &str = "KVTIER_S3_TEST_NO_INSTANCE";
pub const SECRET: &str = "secret/test+key";
pub const AWAIT: Duration = Duration::from_secs(600);

/// The process whose surroundings a test makes.
pub struct Asker {
    pub child: Child,
    pub to: ChildStdin,
    pub from: Receiver<String>,
    /// All that it said, on both ways out.
    pub said: Arc<Mutex<String>>,
    pub home: tempfile::TempDir,
    pub server: Server,
}

/// What a process finds around it.
pub struct Scene {
    pub home: tempfile::TempDir,
    pub server: Server,
    pub env: Vec<(String, String)>,
}

impl Scene {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let server = server(|_| {});
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let env = [
            ("HOME", home.path().to_str().unwrap()),
            ("AWS_REGION", "us-east-1"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            (ASKS, &server.url()),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Scene { home, server, env }
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.retain(|(other, _)| other != name);
        self.env.push((name.to_owned(), value.into()));
        self
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn start(self) -> Asker {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "asks", "--nocapture", "--test-threads=1"])
            .env_clear()
            .envs(self.env);
        command
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (lines, from) = sync_channel(64);
        let said = Arc::new(Mutex::new(String::new()));
        let ways: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for way in ways {
            let lines = lines.clone();
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                for line in BufReader::new(way).lines().map_while(Result::ok) {
                    said.lock().unwrap().push_str(&(line.clone() + "\n"));
                    if let Some((_, answer)) = line.split_once("answer: ") {
                        drop(lines.send(answer.to_owned()));
                    }
                }
            });
        }
        let to = child.stdin.take().unwrap();
        Asker { child, to, from, said, home: self.home, server: self.server }
    }
}

impl Asker {
    /// The next answer.
    pub fn read_line(&self) -> String {
        self.from
            .recv_timeout(AWAIT)
            .unwrap_or_else(|e| panic!("{e}: {}", self.said.lock().unwrap()))
    }

    pub fn command(&mut self, word: &str) -> String {
        writeln!(self.to, "{word}").unwrap();
        self.read_line()
    }

    /// The tokens that requests bore, without repetitions.
    pub fn tokens(&self) -> Vec<String> {
        let seen = self.server.seen();
        let mut tokens: Vec<String> = seen
            .iter()
            .filter_map(|seen| seen.header("x-amz-security-token"))
            .map(str::to_owned)
            .collect();
        tokens.dedup();
        tokens
    }

    /// Ends it; of all that it said, logs at the finest level and the `Debug` of everything among
    /// it, no part is one of these.
    pub fn end(mut self, secrets: &[&str]) {
        self.command("debug");
        drop(self.to);
        self.child.wait().unwrap();
        let said = self.said.lock().unwrap();
        assert!(said.contains("logs are taken"), "{said}");
        for secret in secrets.iter().chain(&[SECRET]) {
            let before = said.split(secret).next().unwrap();
            let near = &before[before.floor_char_boundary(before.len().saturating_sub(300))..];
            assert!(before.len() == said.len(), "{secret} is shown after {near}");
        }
        assert!(Path::new(self.home.path()).exists());
    }
}
