//! The server in a process of its own, so that what is counted in this one is the client's.
//!
//! The test program starts itself again as one test, `serve`, which every program that uses this
//! has: `#[test] fn serve() { support::remote::serve() }`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use kvtier_s3::{BucketAddress, Client, Config, Http2, RootCerts};
use kvtier_testkit::s3::Server;

use super::front::Front;
use super::{config_of, pattern};

const SERVE: &str = "KVTIER_S3_TEST_SERVES";
const READY: &str = "serving ";

/// A server elsewhere, with an object `SIZE` of pattern for each size.
pub struct Remote {
    child: Child,
    plain: String,
    http2: String,
    tls: String,
    ca: String,
}

impl Remote {
    pub fn start(sizes: &[usize]) -> Self {
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "serve", "--nocapture"]).env(SERVE, sizes.join(" "));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines
            .find_map(|line| line.unwrap().split_once(READY).map(|(_, rest)| rest.to_owned()))
            .unwrap();
        let [plain, http2, tls, ca] =
            line.split(' ').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        // The client reads no more, and nothing more is written.
        std::mem::forget(lines);
        Remote { child, plain, http2, tls, ca: std::fs::read_to_string(ca).unwrap() }
    }

    pub fn client(&self, tls: bool) -> Client {
        Client::new(self.config(tls))
    }

    pub fn config(&self, tls: bool) -> Config {
        self.speaking(Http2::Off, if tls { &self.tls } else { &self.plain })
    }

    pub fn http2(&self) -> Client {
        Client::new(self.speaking(Http2::PriorKnowledge, &self.http2))
    }

    fn speaking(&self, http2: Http2, url: &str) -> Config {
        let mut config = config_of(BucketAddress::new(url).bucket("bucket").resolve().unwrap());
        config.http2 = http2;
        config.root_certs = RootCerts::Pem(self.ca.clone().into());
        config.stall_max = std::time::Duration::from_secs(10);
        config.deadline = std::time::Duration::from_secs(60);
        config
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The end of its input ends it; this is for when it does not listen.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What the other process does. As a test of its own it does nothing.
#[allow(clippy::print_stdout)]
pub fn serve() {
    let Ok(sizes) = std::env::var(SERVE) else { return };
    let server = Server::start(Default::default()).unwrap();
    let http2 = Server::start_http2(Default::default()).unwrap();
    for server in [&server, &http2] {
        sizes.split(' ').for_each(|size| server.put_object(size, pattern(size.parse().unwrap())));
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let front = runtime.block_on(Front::before(&server));
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), &front.ca).unwrap();
    let tls = front.address;
    let ca = ca.path().display();
    println!("\n{READY}http://{} http://{} https://{tls} {ca}", server.address(), http2.address());
    drop(std::io::stdin().read(&mut [0]));
}
