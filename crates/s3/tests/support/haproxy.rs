//! haproxy before a server, where it is installed.
#![allow(dead_code)]

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kvtier_s3::{Client, Config, Http2, Place, Trust};
use kvtier_testkit::s3::{Server, ca_pem, server_pem};

use super::config_of;

/// A running haproxy; ends with the test.
pub struct Front {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Front {
    /// One before `server`, bound with these options, which lets uploads over HTTP/2 have a window of `window` bytes.
    pub fn before(server: &Server, options: &str, window: usize) -> Option<Self> {
        if Command::new("haproxy").arg("-v").stdout(Stdio::null()).status().is_err() {
            // Not by a macro, whose words the test harness would swallow.
            let what = "SKIPPED: haproxy is not installed (apt-get install haproxy): it was not tried with\n";
            std::io::stderr().write_all(what.as_bytes()).unwrap();
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (config, pem) = (dir.path().join("haproxy.cfg"), dir.path().join("both.pem"));
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        std::fs::write(&pem, server_pem()).unwrap();
        let text = format!(
            "global\n  nbthread 1\n  tune.h2.initial-window-size {window}\n  tune.h2.max-concurrent-streams 32\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
             frontend f\n  bind {address} ssl crt {} {options}\n  default_backend b\n\
             backend b\n  server s {}\n",
            pem.display(),
            server.address()
        );
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new("haproxy");
        let child =
            command.arg("-db").arg("-f").arg(&config).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let front = Front { child, address, _dir: dir };
        for _ in 0..200 {
            if TcpStream::connect(address).is_ok() {
                return Some(front);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("haproxy does not listen: {}", std::fs::read_to_string(front._dir.path().join("log")).unwrap());
    }

    /// What leads to it, and trusts it.
    pub fn config(&self) -> Config {
        let mut config = config_of(Place::of(format!("https://{}", self.address)).bucket("bucket").resolve().unwrap());
        config.trust = Trust::Pem(ca_pem().into());
        config.stall_max = Duration::from_secs(2);
        config
    }

    pub fn http2(&self, http2: Http2) -> Client {
        let mut config = self.config();
        config.http2 = http2;
        Client::new(config)
    }
}
