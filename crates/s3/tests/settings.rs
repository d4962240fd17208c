//! What a bucket's settings make of a cap on its bytes, and the store's clock in what it lists.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_s3::probe::{Lifecycle, Setting};
use kvtier_s3::{Client, List, Put};
use kvtier_testkit::s3::{Fault, Rule};
use support::*;

const RULES: &str = "<LifecycleConfiguration><Rule><ID>cold</ID><Filter><Prefix>kv/</Prefix></Filter>\
    <Status>Enabled</Status><Transition><Days>30</Days><StorageClass>GLACIER</StorageClass></Transition></Rule>\
    </LifecycleConfiguration>";

#[tokio::test]
async fn versions_locks_and_rules_are_found_and_reported() {
    let server = server(|setup| {
        (setup.versioned, setup.object_lock, setup.lifecycle) = (true, true, Some(RULES.into()));
    });
    let settings = client(&server).settings().await.unwrap();
    assert_eq!((&settings.versioning, &settings.object_lock), (&Setting::On, &Setting::On));
    let caveats = settings.caveats("kv/");
    let wanted = ["versioning is on", "object lock is on", "`cold` moves objects (kv/) to GLACIER"];
    assert!(
        caveats.len() == 3
            && wanted.iter().zip(&caveats).all(|(wanted, caveats)| caveats.contains(wanted)),
        "{caveats:?}"
    );
    assert_eq!(settings.caveats("elsewhere/").len(), 2, "a rule for other names is none of ours");
}

#[tokio::test]
async fn a_plain_bucket_has_none() {
    let server = server(|_| {});
    let settings = client(&server).settings().await.unwrap();
    assert_eq!(settings.lifecycle, Lifecycle::Rules(Vec::new()));
    assert_eq!(settings.caveats("kv/"), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_store_denies_or_lacks_is_said_and_no_failure() {
    let denying = server(|setup| setup.hides_settings = true);
    let settings = client(&denying).settings().await.unwrap();
    assert_eq!(settings.versioning, Setting::Unknown("AccessDenied".into()));
    assert_eq!(settings.caveats("kv/").len(), 3);
    let bucket = "kv--use1-az4--x-s3";
    let express = server(|setup| setup.bucket = bucket.into());
    let settings = Client::new(config_of(endpoint(&express, bucket))).settings().await.unwrap();
    assert_eq!(settings.object_lock, Setting::Unknown("NotImplemented".into()));
    // A store that is away is a failure.
    denying.script(Rule::next(Fault::Error(500, "InternalError")).times(1000));
    let patient = client(&denying).within(std::time::Duration::from_millis(500));
    patient.settings().await.unwrap_err();
}

#[tokio::test]
async fn listings_report_the_stores_time() {
    let server = server(|setup| setup.clock_ahead_s = 1000);
    let client = client(&server);
    let memory = Memory::new();
    client.put("a", &memory.view(b"x"), &Put::default()).await.unwrap();
    let page = client.list(&List::under(""), None).await.unwrap();
    let age = page.date.unwrap() - page.entries[0].modified;
    // Not by our clock, however long it took.
    assert!((0..=600).contains(&age), "{age}");
    assert!(server.backdate("a", 100));
    let page = client.list(&List::under(""), None).await.unwrap();
    assert!(page.date.unwrap() - page.entries[0].modified >= 100);
    assert!(client.list_uploads("", None).await.unwrap().date.is_some());
}
