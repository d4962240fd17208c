//! TLS: whom we trust, what is resumed, and that bodies are as right as without.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::Ordering;

use kvtier_s3::{BucketAddress, Client, ErrorKind, Get, Put, RootCerts};
use kvtier_testkit::s3::Server;
use rustls::pki_types::pem::PemObject;
use support::front::Front;
use support::*;

#[tokio::test]
async fn bytes_under_tls_are_as_right_and_sessions_are_resumed() {
    let server = server(|_| {});
    let memory = Memory::new();
    let front = Front::before(&server).await;
    let client = front.client(RootCerts::Pem(front.ca.clone().into_bytes()));
    for len in [0, 1, 16_384, 3 * MIB + 1] {
        let bytes = pattern(len);
        client.put("k", &memory.view(&bytes), &Put::default()).await.unwrap();
        assert_eq!(server.object("k").as_deref(), Some(&bytes));
        let mut lease = memory.lease(len);
        client.get("k", &mut lease, &Get::default()).await.unwrap().unwrap();
        assert!(lease.as_host().unwrap() == bytes);
    }
    assert_eq!(client.counts().connections, 1);
    server.disconnect();
    client.head("k").await.unwrap().unwrap();
    assert_eq!(front.resumed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_survey_reports_what_the_server_would_choose() {
    let server = server(|_| {});
    for (protocols, chosen) in [
        (&[&b"h2"[..], b"http/1.1"][..], Some("h2")),
        (&[b"http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let front = Front::choosing(&server, protocols).await;
        let found =
            front.client(RootCerts::Pem(front.ca.clone().into_bytes())).survey().await.unwrap();
        assert_eq!((found.address, found.addresses), (front.address, 1));
        let tls = found.tls.unwrap();
        assert_eq!((tls.version.as_str(), tls.alpn.as_deref()), ("TLSv1_3", chosen));
    }
    assert!(client(&server).survey().await.unwrap().tls.is_none());
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn what_the_server_chooses_is_spoken() {
    let one = server(|_| {});
    let two = Server::start_http2(Default::default()).unwrap();
    for (server, protocols, http2) in
        [(&one, &[&b"http/1.1"[..]][..], 0), (&two, &[b"h2", b"http/1.1"], 1), (&one, &[], 0)]
    {
        let front = Front::choosing(server, protocols).await;
        let mut config = config_of(
            BucketAddress::new(format!("https://{}", front.address))
                .bucket("bucket")
                .resolve()
                .unwrap(),
        );
        config.root_certs = RootCerts::Pem(front.ca.clone().into_bytes());
        config.http2 = kvtier_s3::Http2::Auto;
        let client = Client::new(config);
        assert!(client.head_bucket().await.unwrap());
        assert_eq!(
            (client.counts().connections_http2, client.counts().connections_http11),
            (http2, 1 - http2)
        );
    }
}

#[tokio::test]
async fn unknown_certificates_are_denied_with_advice() {
    let server = server(|_| {});
    let front = Front::before(&server).await;
    let other = Front::before(&server).await;
    let error =
        front.client(RootCerts::Pem(other.ca.clone().into_bytes())).head("k").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Denied, false));
    assert!(error.to_string().contains("CA bundle"), "{error}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_plain_server_under_https_is_an_error_and_no_hang() {
    let server = server(|_| {});
    let place = BucketAddress::new(format!("https://{}", server.address()))
        .bucket("bucket")
        .resolve()
        .unwrap();
    let mut config = config_of(place);
    config.root_certs = RootCerts::Pem(Front::before(&server).await.ca.into_bytes());
    config.retries_max = 0;
    let error = Client::new(config).head("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
}

#[tokio::test]
async fn tls_is_what_the_caller_makes_it() {
    let server = server(|_| {});
    let front = Front::before(&server).await;
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| format!("{:?}", suite.suite()).contains("CHACHA20"));
    let mut roots = rustls::RootCertStore::empty();
    let pem = rustls::pki_types::CertificateDer::from_pem_slice(front.ca.as_bytes()).unwrap();
    roots.add(pem).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(std::sync::Arc::new(provider));
    let config =
        config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let client = front.client(RootCerts::Custom(std::sync::Arc::new(config.with_no_client_auth())));
    assert!(client.head_bucket().await.unwrap());
    let suite = client.survey().await.unwrap().tls.unwrap().suite;
    assert!(suite.contains("CHACHA20"), "{suite}");
}

#[tokio::test]
async fn a_ca_bundle_that_is_replaced_is_read_again() {
    let server = server(|_| {});
    let dir = tempfile::tempdir().unwrap();
    let mut front = Front::before(&server).await;
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, &front.ca).unwrap();
    let client = front.client(RootCerts::PemFile(path.clone()));
    assert!(client.head_bucket().await.unwrap());
    // The server comes first.
    front.rotate();
    server.disconnect();
    assert_eq!(client.head_bucket().await.unwrap_err().kind(), ErrorKind::Denied);
    std::fs::write(&path, &front.ca).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    std::fs::File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
    assert!(client.head_bucket().await.unwrap(), "it was written since");
    // What is no bundle, or gone, changes nothing.
    std::fs::write(&path, "nonsense").unwrap();
    server.disconnect();
    assert!(client.head_bucket().await.unwrap());
    std::fs::remove_file(&path).unwrap();
    server.disconnect();
    assert!(client.head_bucket().await.unwrap());
}

#[tokio::test]
async fn a_ca_bundle_is_read_again_where_the_server_is_not_trusted() {
    let server = server(|_| {});
    let dir = tempfile::tempdir().unwrap();
    let mut front = Front::before(&server).await;
    let path = dir.path().join("ca.pem");
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let write = |ca: &str| {
        std::fs::write(&path, ca).unwrap();
        std::fs::File::options().append(true).open(&path).unwrap().set_modified(then).unwrap();
    };
    write(&front.ca);
    let client = front.client(RootCerts::PemFile(path.clone()));
    assert!(client.head_bucket().await.unwrap());
    // A copy that kept its time.
    front.rotate();
    write(&front.ca);
    server.disconnect();
    assert!(client.head_bucket().await.unwrap());
    assert_eq!(client.counts().retries, 0, "no operation had to be repeated");
}

#[tokio::test]
async fn all_operations_that_dial_while_an_authority_changes_succeed() {
    let server = server(|_| {});
    let dir = tempfile::tempdir().unwrap();
    let mut front = Front::before(&server).await;
    let path = dir.path().join("ca.pem");
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let write = |ca: &str| {
        std::fs::write(&path, ca).unwrap();
        std::fs::File::options().append(true).open(&path).unwrap().set_modified(then).unwrap();
    };
    write(&front.ca);
    let client = front.client(RootCerts::PemFile(path.clone()));
    assert!(client.head_bucket().await.unwrap());
    front.rotate();
    write(&front.ca);
    server.disconnect();
    let mut operations = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        operations.spawn(async move { client.head_bucket().await });
    }
    for found in operations.join_all().await {
        assert!(found.unwrap());
    }
    assert_eq!(client.counts().retries, 0, "no operation had to be repeated");
    assert!(front.refused.load(Ordering::SeqCst) > 1, "several used the old authority");
}
