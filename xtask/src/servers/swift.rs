//! OpenStack Swift with its S3 interface: a proxy and one server each for accounts, containers and
//! objects.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::process::{self, await_http, spawn};
use super::{BUCKET, DOMAIN, Started, access, packages, quiet};
use crate::sh::Cmd;

const REGION: &str = "us-east-1";
/// Account and user, and the secret.
const USER: (&str, &str) = ("test:tester", "testing");
const PARTS: [&str; 3] = ["object", "container", "account"];

/// Starts it in an empty directory, on a file system with extended attributes.
pub fn start(dir: &Path) -> Result<Started> {
    let programs = [
        "swift-proxy-server",
        "swift-account-server",
        "swift-container-server",
        "swift-object-server",
    ];
    let programs = [&programs[..], &["memcached", "curl"]].concat();
    let wanted =
        ["swift-proxy", "swift-account", "swift-container", "swift-object", "memcached", "curl"];
    if let Some(why) = packages::debian(&programs, &wanted)? {
        return Ok(Started::Absent(why));
    }
    let [port, memcached, object, container, account] = process::ports()?;
    fs::create_dir_all(dir.join("data/d1"))?;
    fs::write(dir.join("swift.conf"), SWIFT)?;
    let me = Cmd::new("id -un").read()?.trim().to_owned();
    for (part, port) in PARTS.into_iter().zip([object, container, account]) {
        ring(dir, part, port)?;
        fs::write(dir.join(format!("{part}-server.conf")), storage(dir, &me, part, port))?;
    }
    fs::write(dir.join("proxy-server.conf"), proxy(dir, &me, port, memcached))?;
    let listens =
        ["-l", "127.0.0.1", "-p", &memcached.to_string(), "-U", "0", "-u", &me, "-m", "32"]
            .map(str::to_owned);
    spawn(dir, "memcached", Command::new("memcached").args(listens))?;
    for part in PARTS {
        server(dir, part)?;
    }
    let mut front = server(dir, "proxy")?;
    await_http(port, &mut front, dir)?;
    make_bucket(port)?;
    let mut found = access(port, "swift", REGION, USER.0, USER.1);
    found.push(("S3_VIRTUAL_HOST", DOMAIN.into()));
    Ok(Started::Up(found))
}

fn ring(dir: &Path, part: &str, port: u16) -> Result<()> {
    let builder = dir.join(format!("{part}.builder")).to_string_lossy().into_owned();
    let ring =
        |words: &[&str]| Cmd::new("swift-ring-builder").arg(&builder).args(words.iter().copied());
    quiet(&ring(&["create", "4", "1", "1"]))?;
    quiet(&ring(&["add", &format!("r1z1-127.0.0.1:{port}/d1"), "1"]))?;
    // It ends with 1 when it warns, as it does about so small a ring.
    ring(&["rebalance"]).try_read()?;
    Ok(())
}

fn server(dir: &Path, part: &str) -> Result<std::process::Child> {
    let mut command = Command::new(format!("swift-{part}-server"));
    spawn(dir, part, command.arg(dir.join(format!("{part}-server.conf"))).env("SWIFT_DIR", dir))
}

/// By Swift's own interface: curl cannot sign for a key with a colon.
fn make_bucket(port: u16) -> Result<()> {
    let user = [format!("X-Auth-User: {}", USER.0), format!("X-Auth-Key: {}", USER.1)];
    let asked = Cmd::new("curl -sSf --retry 30 --retry-delay 1 -i -H")
        .arg(&user[0])
        .arg("-H")
        .arg(&user[1]);
    let head = quiet(&asked.arg(format!("http://127.0.0.1:{port}/auth/v1.0")))
        .context("no token from Swift")?;
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
    };
    let token = header("x-auth-token").context("Swift gave no token")?;
    let url = header("x-storage-url").context("Swift gave no address")?;
    // Again when it says 503: on a busy machine its servers of accounts and containers come up
    // after the proxy.
    let made = Cmd::new("curl -sSf --retry 30 --retry-delay 1 -X PUT -H")
        .arg(format!("X-Auth-Token: {token}"))
        .arg(format!("{url}/{BUCKET}"));
    quiet(&made).context("cannot make the bucket").map(drop)
}

const SWIFT: &str = "[swift-hash]
swift_hash_path_suffix = kvtier
swift_hash_path_prefix = kvtier
[storage-policy:0]
name = p0
default = yes
[swift-constraints]
max_file_size = 5368709122
";

fn storage(dir: &Path, user: &str, part: &str, port: u16) -> String {
    let dir = dir.display();
    format!(
        "[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 1
user = {user}
swift_dir = {dir}
devices = {dir}/data
mount_check = false
fallocate_reserve = 0
log_level = WARNING
[pipeline:main]
pipeline = {part}-server
[app:{part}-server]
use = egg:swift#{part}
allow_versions = on
"
    )
}

fn proxy(dir: &Path, user: &str, port: u16, memcached: u16) -> String {
    let dir = dir.display();
    let account = USER.0.replace(':', "_");
    let secret = USER.1;
    format!(
        "[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 1
user = {user}
swift_dir = {dir}
log_level = WARNING
[pipeline:main]
pipeline = catch_errors cache s3api tempauth copy slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}
[filter:s3api]
use = egg:swift#s3api
location = {REGION}
storage_domain = {DOMAIN}
dns_compliant_bucket_names = false
allow_no_owner = true
[filter:tempauth]
use = egg:swift#tempauth
user_{account} = {secret} .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
"
    )
}
