//! Servers of other makes before ours, where they are installed: haproxy and nginx.
#![allow(dead_code)]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvtier_mem::View;
use kvtier_s3::{BucketAddress, Client, Config, Get, Http2, List, Put, RootCerts};
use kvtier_testkit::s3::{Server, ca_pem, server_pem};
use tokio::net::TcpSocket;

use super::{MIB, Memory, config_of, pattern};

/// A proxy listens within this time.
const START_MAX: Duration = Duration::from_secs(300);

/// A running proxy; ends with the test.
pub struct Front {
    child: Child,
    address: SocketAddr,
    _port: TcpSocket,
    _dir: tempfile::TempDir,
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Front {
    /// haproxy before `server`, bound with these options, which lets uploads over HTTP/2 have a
    /// window of `window` bytes.
    pub fn haproxy(server: &Server, options: &str, window: usize) -> Option<Self> {
        Self::start("haproxy", "haproxy", &["-db", "-f"], |dir, address| {
            format!(
                "global\n  nbthread 1\n  tune.h2.initial-window-size {window}\n  tune.h2.max-concurrent-streams 32\n\
                 defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
                 frontend f\n  bind {address} ssl crt {dir}/both.pem {options}\n  default_backend b\n\
                 backend b\n  server s {}\n",
                server.address()
            )
        })
    }

    /// nginx before `server`, listening with these options, speaking these versions of TLS. Each
    /// answer says in its metadata which (`tls`), and whether the session was resumed
    /// (`reused`: `r`, else `.`).
    pub fn nginx(server: &Server, options: &str, versions: &str) -> Option<Self> {
        Self::start("nginx", "nginx-light", &["-c"], |dir, address| {
            format!(
                "daemon off; master_process off; pid {dir}/pid; error_log stderr warn;\n\
                 events {{ worker_connections 256; }}\n\
                 http {{ access_log off; client_body_temp_path {dir}/t; proxy_temp_path {dir}/t; fastcgi_temp_path {dir}/t;\n\
                 uwsgi_temp_path {dir}/t; scgi_temp_path {dir}/t; client_max_body_size 0; proxy_request_buffering off;\n\
                 server {{ listen {address} ssl reuseport {options}; ssl_protocols {versions}; ssl_session_cache shared:s:1m;\n\
                 ssl_certificate {dir}/both.pem; ssl_certificate_key {dir}/both.pem;\n\
                 add_header x-amz-meta-tls $ssl_protocol; add_header x-amz-meta-reused $ssl_session_reused;\n\
                 location / {{ proxy_pass http://{}; proxy_http_version 1.1; proxy_buffering off;\n\
                 proxy_set_header Connection \"\"; proxy_set_header Host $http_host; }} }} }}\n",
                server.address()
            )
        })
    }

    /// Starts `program` with a configuration made for a directory and an address.
    fn start(
        program: &str,
        package: &str,
        arguments: &[&str],
        config: impl Fn(&str, SocketAddr) -> String,
    ) -> Option<Self> {
        if Command::new(program)
            .arg("-v")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
        {
            // Not by a macro, whose words the test harness would swallow.
            let what = format!(
                "SKIPPED: {program} is not installed (apt-get install {package}): it was not tried with\n"
            );
            std::io::stderr().write_all(what.as_bytes()).unwrap();
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        // Bound here as well, so that no other process gets the port before the program takes it.
        let port = TcpSocket::new_v4().unwrap();
        port.set_reuseport(true).unwrap();
        port.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = port.local_addr().unwrap();
        std::fs::write(dir.path().join("both.pem"), server_pem()).unwrap();
        let file = dir.path().join("config");
        std::fs::write(&file, config(dir.path().to_str().unwrap(), address)).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(program);
        let child = command
            .args(arguments)
            .arg(&file)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut front = Front { child, address, _port: port, _dir: dir };
        let began = Instant::now();
        while began.elapsed() < START_MAX && front.child.try_wait().unwrap().is_none() {
            if TcpStream::connect(address).is_ok() {
                return Some(front);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!(
            "{program} does not listen: {}",
            std::fs::read_to_string(front._dir.path().join("log")).unwrap()
        );
    }

    /// What leads to it, and trusts it.
    pub fn config(&self) -> Config {
        let mut config = config_of(
            BucketAddress::new(format!("https://{}", self.address))
                .bucket("bucket")
                .resolve()
                .unwrap(),
        );
        config.root_certs = RootCerts::Pem(ca_pem().into());
        config
    }

    pub fn http2(&self, http2: Http2) -> Client {
        let mut config = self.config();
        config.http2 = http2;
        Client::new(config)
    }
}

/// Every operation through what stands before `server`: the bytes are right on both sides, and
/// nothing is repeated.
pub async fn every_operation(client: &Client, server: &Server) {
    const KEY: &str = "a b/é+%//k";
    let memory = Memory::new();
    let view = |bytes: &[u8]| -> View { memory.view(bytes) };
    for len in [0, 1, 65_536, 20 * MIB + 1] {
        let bytes = pattern(len);
        client.put(KEY, &view(&bytes), &Put::default().meta("a", "b")).await.unwrap();
        assert!(server.object(KEY).as_deref() == Some(&bytes));
        let mut lease = memory.lease(len);
        let object = client.get(KEY, &mut lease, &Get::default()).await.unwrap().unwrap();
        assert!(lease.as_host().unwrap() == bytes && object.meta("a") == Some("b"));
        assert_eq!(client.head(KEY).await.unwrap().unwrap().len(), len as u64);
    }
    let bytes = pattern(12 * MIB);
    client
        .put_multipart("m", &view(&bytes), &Put::default(), kvtier_s3::Multipart::new(5 * MIB, 3))
        .await
        .unwrap();
    let mut lease = memory.lease(bytes.len());
    client.get_parallel("m", &mut lease, MIB, 8).await.unwrap().unwrap();
    assert!(lease.as_host().unwrap() == bytes);
    assert_eq!(client.list(&List::default(), None).await.unwrap().entries.len(), 2);
    assert!(client.delete_many(&["m", KEY, "none"]).await.unwrap().is_empty());
    assert!(client.get("m", &mut lease, &Get::default()).await.unwrap().is_none());
    assert_eq!(client.counts().retries, 0);
}
