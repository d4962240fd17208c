//! When the last clone of credentials is gone, so are their secrets: the memory of a process that
//! used them is searched from without.
#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use kvtier_s3::{BucketAddress, Client, Credentials, ErrorKind, creds};
use support::{config_of, server};

const URL: &str = "KVTIER_S3_TEST_USES_SECRETS_AT";
const PROFILE: &str = "KVTIER_S3_TEST_PROFILE";
const HELD: &str = "the secrets are held";
const GONE: &str = "the secrets are gone";
/// The seed and length of a secret.
#[derive(Clone, Copy)]
struct SecretText {
    seed: u8,
    len: usize,
}

/// A secret key, a session token, and the secret key of a profile.
const SECRETS: [SecretText; 3] = [
    SecretText { seed: 3, len: 40 },
    SecretText { seed: 5, len: 1500 },
    SecretText { seed: 7, len: 40 },
];

/// Text that no program holds before it makes it.
fn secret(text: SecretText) -> String {
    let SecretText { seed, len } = text;
    let mut text = String::with_capacity(len);
    let mut random = fastrand::Rng::with_seed(seed.into());
    (0..len).for_each(|_| text.push(random.alphanumeric()));
    text
}

/// Uses secrets, drops them, and says when. As a test of its own it does nothing.
#[test]
#[allow(clippy::print_stdout)]
fn uses() {
    let (Ok(url), Ok(profile)) = (std::env::var(URL), std::env::var(PROFILE)) else { return };
    let wait = || std::io::stdin().read_line(&mut String::new()).unwrap();
    let [key, token, _] = SECRETS;
    let credentials = Credentials::temporary("AKIDTEST", secret(key), Some(secret(token)), None);
    let file = |name: &str| (name == "AWS_SHARED_CREDENTIALS_FILE").then(|| profile.clone());
    let found = creds::find(file).unwrap().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clients = [credentials, found].map(|credentials| {
        let mut config = config_of(BucketAddress::new(&url).bucket("bucket").resolve().unwrap());
        config.credentials = std::sync::Arc::new(credentials);
        Client::new(config)
    });
    for client in &clients {
        // Signed and refused, which is all the same here.
        let denied = runtime.block_on(client.head("k")).unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    }
    println!("{HELD}");
    wait();
    drop(clients);
    drop(runtime);
    overwrite_the_stack();
    println!("{GONE}");
    wait();
}

/// Where keys lay on their way into memory that is wiped, other things lie soon. Never inlined: its
/// frame must be where theirs were.
#[inline(never)]
fn overwrite_the_stack() {
    std::hint::black_box([0xA5u8; 128 << 10]);
}

/// How often `what` stands in what `child` may write to.
fn found(child: &Child, what: &[u8]) -> usize {
    const PIECE: usize = 1 << 20;
    let maps = format!("/proc/{}/maps", child.id());
    let memory = format!("/proc/{}/mem", child.id());
    let memory = File::open(memory).unwrap();
    let mut count = 0;
    let mut piece = vec![0; PIECE + what.len() - 1];
    for line in fs::read_to_string(maps).unwrap().lines().filter(|line| line.contains(" rw")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let end = u64::from_str_radix(end, 16).unwrap();
        for at in (start..end).step_by(PIECE) {
            let got = memory.read_at(&mut piece, at).unwrap_or(0);
            count += piece[..got].windows(what.len()).filter(|window| *window == what).count();
        }
    }
    count
}

#[test]
fn nothing_is_left_of_them_in_memory() {
    let server = server(|_| {});
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("credentials");
    let text = format!(
        "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = {}\n",
        secret(SECRETS[2])
    );
    fs::write(&profile, text).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "uses", "--nocapture", "--test-threads=1"])
        .env(URL, server.url())
        .env(PROFILE, &profile);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut reported =
        |what: &str| assert!(lines.any(|line| line.unwrap().contains(what)), "{what}");

    // What is derived from it for this day.
    let day = SystemTime::now();
    let derived =
        |seed| aws_sigv4::sign::v4::generate_signing_key(&secret(seed), day, "us-east-1", "s3");
    let mut secrets: Vec<Vec<u8>> = SECRETS.iter().map(|seed| secret(*seed).into_bytes()).collect();
    secrets.extend([SECRETS[0], SECRETS[2]].map(|seed| derived(seed).as_ref().to_vec()));
    reported(HELD);
    let before: Vec<usize> = secrets.iter().map(|secret| found(&child, secret)).collect();
    assert!(before.iter().all(|count| *count > 0), "the search finds what is there: {before:?}");
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    reported(GONE);
    let after: Vec<usize> = secrets.iter().map(|secret| found(&child, secret)).collect();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(after, [0; 5], "of {before:?}");
}
