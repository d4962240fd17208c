//! TLS as nginx speaks it, before a plain server. Skipped, and said so, where nginx is not
//! installed.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use kvtier_s3::{Client, Config, Http2};
use kvtier_testkit::s3::Server;
use support::proxy::{Front, every_operation};

/// By whom records can be sealed and opened.
const DIRECT: &[bool] = if cfg!(feature = "tls-direct") { &[false, true] } else { &[false] };

fn plain() -> Server {
    Server::start(Default::default()).unwrap()
}

#[cfg_attr(not(feature = "tls-direct"), allow(unused_mut, unused_variables))]
fn client(mut config: Config, direct: bool) -> Client {
    #[cfg(feature = "tls-direct")]
    (config.tls_direct = direct);
    Client::new(config)
}

#[tokio::test]
async fn every_operation_over_each_version_of_tls() {
    let server = plain();
    for versions in ["TLSv1.2", "TLSv1.3"] {
        for direct in DIRECT {
            let Some(front) = Front::nginx(&server, "", versions) else { return };
            let client = client(front.config(), *direct);
            every_operation(&client, &server).await;
            server.put_object("k", vec![7; 10]);
            assert_eq!(client.head("k").await.unwrap().unwrap().meta("tls"), Some(versions));
            let counts = client.counts();
            // As many as there were parts at once, and no more: they are kept alive.
            assert!((1..=8).contains(&counts.connections), "{counts:?}");
            let expected = if *direct && versions == "TLSv1.3" { counts.connections } else { 0 };
            assert_eq!(counts.connections_direct, expected, "{versions}");
            server.remove_object("k");
        }
    }
}

#[tokio::test]
async fn every_operation_over_http2_where_it_is_chosen() {
    let server = plain();
    for direct in DIRECT {
        let Some(front) = Front::nginx(&server, "http2", "TLSv1.2 TLSv1.3") else { return };
        let mut config = front.config();
        config.http2 = Http2::Auto;
        let client = client(config, *direct);
        every_operation(&client, &server).await;
        let counts = client.counts();
        assert!(counts.connections_http2 >= 1 && counts.connections_http11 == 0, "{counts:?}");
        // Who does not ask for it does not get it.
        let other = self::client(front.config(), *direct);
        assert!(other.head_bucket().await.unwrap());
        assert_eq!((other.counts().connections_http2, other.counts().connections_http11), (0, 1));
    }
}

#[tokio::test]
async fn connections_are_kept_and_sessions_resumed() {
    let server = plain();
    server.put_object("k", vec![7; 100]);
    for versions in ["TLSv1.2", "TLSv1.3"] {
        for direct in DIRECT {
            let Some(front) = Front::nginx(&server, "", versions) else { return };
            let mut config = front.config();
            let idle_max = Duration::from_millis(500);
            config.idle_max = idle_max;
            let client = client(config, *direct);
            let reused =
                async || client.head("k").await.unwrap().unwrap().meta("reused").map(str::to_owned);
            // Where this machine made one wait for so long, it has another connection.
            let began = Instant::now();
            for _ in 0..5 {
                let expected = if began.elapsed() < idle_max { "." } else { "r" };
                let reused = reused().await;
                assert!(
                    reused.as_deref() == Some(expected) || began.elapsed() >= idle_max,
                    "{versions}: {reused:?}"
                );
            }
            let mut connections = client.counts().connections;
            assert!(connections == 1 || began.elapsed() >= idle_max, "{connections}");
            for _ in 0..3 {
                tokio::time::sleep(idle_max + Duration::from_millis(50)).await;
                assert_eq!(reused().await.as_deref(), Some("r"), "{versions} {direct}");
                connections += 1;
                assert_eq!(client.counts().connections, connections);
            }
        }
    }
}
