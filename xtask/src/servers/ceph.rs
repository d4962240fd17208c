//! Ceph's RADOS gateway with the least below it that works: one monitor, and one storage daemon
//! that keeps everything in memory.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use anyhow::{Context, Result};

use super::process::{self, await_http, await_that, spawn};
use super::{BUCKET, DOMAIN, Started, access, packages, quiet};
use crate::sh::Cmd;

const REGION: &str = "default";
const USER: (&str, &str) = ("KVTIERTESTKEY0000001", "kvtier-secret/with+chars=0000000000000001");
const CONF: &str = "ceph.conf";

/// Starts it in an empty directory.
pub fn start(dir: &Path) -> Result<Started> {
    let programs = ["radosgw", "radosgw-admin", "ceph-mon", "ceph-osd", "ceph", "curl"];
    if let Some(why) =
        packages::debian(&programs, &["radosgw", "ceph-mon", "ceph-osd", "ceph-common", "curl"])?
    {
        return Ok(Started::Absent(why));
    }
    let [port, monitor] = process::ports()?;
    let fsid = uuid()?;
    for part in ["mon", "osd", "rgw"] {
        fs::create_dir(dir.join(part))?;
    }
    fs::write(dir.join(CONF), conf(dir, &fsid, port, monitor))?;
    start_monitor(dir, &fsid, monitor)?;
    start_storage(dir)?;
    let user = ceph(dir, "radosgw-admin user create --uid=kvtier --display-name=kvtier");
    quiet(&user.arg(format!("--access-key={}", USER.0)).arg(format!("--secret={}", USER.1)))?;
    let mut gateway = daemon(dir, "rgw", &["radosgw", "-n", "client.admin"])?;
    await_http(port, &mut gateway, dir)?;
    let bucket = Cmd::new("curl -sSf --retry 30 --retry-delay 1 -X PUT --aws-sigv4")
        .arg(format!("aws:amz:{REGION}:s3"));
    let bucket = bucket.args([
        "-H",
        "x-amz-content-sha256: UNSIGNED-PAYLOAD",
        "-u",
        &format!("{}:{}", USER.0, USER.1),
    ]);
    quiet(&bucket.arg(format!("http://127.0.0.1:{port}/{BUCKET}")))
        .context("cannot make the bucket")?;
    let mut found = access(port, "ceph", REGION, USER.0, USER.1);
    found.push(("S3_VIRTUAL_HOST", DOMAIN.into()));
    Ok(Started::Up(found))
}

fn start_monitor(dir: &Path, fsid: &str, port: u16) -> Result<()> {
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let keys = path("keyring");
    let map = path("monmap");
    quiet(
        &Cmd::new("ceph-authtool --create-keyring")
            .arg(&keys)
            .args("--gen-key -n mon. --cap mon".split(' '))
            .arg("allow *"),
    )?;
    let admin = Cmd::new("ceph-authtool").arg(&keys).args(["--gen-key", "-n", "client.admin"]);
    let admin = ["mon", "osd", "mgr"]
        .into_iter()
        .fold(admin, |cmd, part| cmd.args(["--cap", part, "allow *"]));
    quiet(&admin)?;
    let address = format!("[v2:127.0.0.1:{port}/0]");
    quiet(&ceph(dir, "monmaptool --create --addv a").args([&address, "--fsid", fsid, &map]))?;
    quiet(&ceph(dir, "ceph-mon --mkfs -i a --monmap").args([&map, "--keyring", &keys]))?;
    daemon(dir, "mon", &["ceph-mon", "-i", "a"]).map(drop)
}

fn start_storage(dir: &Path) -> Result<()> {
    let keys = dir.join("osd/keyring").to_string_lossy().into_owned();
    let id = uuid()?;
    quiet(&ceph(dir, "ceph osd new").arg(&id))?;
    quiet(
        &Cmd::new("ceph-authtool --create-keyring")
            .arg(&keys)
            .args("--gen-key -n osd.0".split(' ')),
    )?;
    let rights = ["osd", "allow *", "mon", "allow profile osd", "mgr", "allow profile osd"];
    quiet(&ceph(dir, "ceph auth add osd.0").args(rights).args(["-i", &keys]))?;
    quiet(&ceph(dir, "ceph-osd -i 0 --mkfs --osd-uuid").arg(&id))?;
    quiet(&ceph(dir, "ceph osd crush add osd.0 1.0 root=default host=localhost"))?;
    let mut storage = daemon(dir, "osd", &["ceph-osd", "-i", "0"])?;
    let up =
        || quiet(&ceph(dir, "ceph osd stat").limit_s(60)).is_ok_and(|text| text.contains("1 up"));
    await_that(&mut storage, dir, up)
}

/// A command of Ceph's, with our configuration.
fn ceph(dir: &Path, line: &str) -> Cmd {
    Cmd::new(line).arg("-c").arg(dir.join(CONF).to_string_lossy()).limit_s(300)
}

fn daemon(dir: &Path, name: &str, words: &[&str]) -> Result<Child> {
    spawn(
        dir,
        name,
        Command::new(words[0]).args(&words[1..]).arg("-f").arg("-c").arg(dir.join(CONF)),
    )
}

fn uuid() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")
        .context("no random uuid")?
        .trim()
        .to_owned())
}

fn conf(dir: &Path, fsid: &str, port: u16, monitor: u16) -> String {
    let dir = dir.display();
    // Without tcp_nodelay a small GET waits 40 ms for the kernel's timer. An admin socket's path
    // could be too long.
    format!(
        "[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{monitor}/0]
mon initial members = a
ms bind msgr1 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
run dir = {dir}
admin socket =
pid file =
log file = {dir}/$name.log
keyring = {dir}/keyring
mon data = {dir}/mon
mon data avail crit = 1
mon allow pool size one = true
mon warn on pool no redundancy = false
osd data = {dir}/osd
osd objectstore = memstore
memstore device bytes = 8589934592
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd op num shards = 2
rgw data = {dir}/rgw
rgw dns name = {DOMAIN}
rgw enable usage log = false
rgw thread pool size = 64
rgw frontends = beast tcp_nodelay=1 endpoint=127.0.0.1:{port}
[osd]
keyring = {dir}/osd/keyring
[client.admin]
keyring = {dir}/keyring
"
    )
}
