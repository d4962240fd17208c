//! Every operation against a strict server.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_s3::{
    BucketAddress, Checksum, Client, Credentials, ErrorKind, Get, List, Provider, Put,
    StaticResolver, Stored,
};
use support::*;

#[tokio::test]
async fn objects_of_every_size_come_back_as_they_went() {
    let server = server(|_| {});
    let memory = Memory::new();
    for checksum in [Checksum::None, Checksum::Crc32c, Checksum::Crc64Nvme, Checksum::Sha256] {
        let mut config = config(&server);
        config.checksum = checksum;
        let client = Client::new(config);
        for len in [0, 1, 1499, 1500, 2048, 65_536, 3 * MIB + 7] {
            let bytes = pattern(len);
            let stored = client
                .put("k", &memory.view(&bytes), &Put::default().meta("kvtier", "AbC 1=="))
                .await
                .unwrap();
            let Stored::New { etag: Some(etag) } = stored else { panic!("{stored:?}") };
            let mut lease = memory.lease(len);
            let object = client.get("k", &mut lease, &Get::default()).await.unwrap().unwrap();
            assert_eq!(lease.as_host().unwrap(), bytes, "{len} {checksum:?}");
            assert_eq!(
                (object.len(), object.total(), object.etag()),
                (len as u64, len as u64, Some(etag.as_str()))
            );
            assert_eq!(object.meta("kvtier"), Some("AbC 1=="));
            assert!(object.modified().is_some());
            let head = client.head("k").await.unwrap().unwrap();
            assert_eq!(
                (head.len(), head.etag(), head.meta("kvtier")),
                (len as u64, Some(etag.as_str()), Some("AbC 1=="))
            );
        }
        let counts = client.counts();
        assert_eq!(counts.checksums_verified, if checksum == Checksum::None { 0 } else { 7 });
        assert_eq!(
            (counts.connections, counts.retries),
            (1, 0),
            "one connection is enough for one at a time"
        );
    }
    // Bodies go as they are, with their length, and their hash unsigned; several stores take
    // nothing else.
    for seen in server.seen().iter().filter(|seen| seen.method == "PUT") {
        assert!(
            seen.header("content-encoding").is_none() && seen.header("transfer-encoding").is_none()
        );
        assert!(seen.header("content-length").is_some() && seen.header("content-md5").is_none());
        let len = seen.header("content-length").unwrap();
        assert_eq!(seen.header("x-amz-content-sha256") == Some("UNSIGNED-PAYLOAD"), len != "0");
    }
    assert!(memory.is_whole());
}

#[tokio::test]
async fn what_is_not_there_is_an_answer() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = client(&server);
    assert!(client.get("none", &mut memory.lease(10), &Get::default()).await.unwrap().is_none());
    assert!(client.head("none").await.unwrap().is_none());
    client.delete("none").await.unwrap();
    assert!(client.head_bucket().await.unwrap());
    let other = Client::new(config_of(endpoint(&server, "other")));
    assert!(!other.head_bucket().await.unwrap());
    let error = other.get("k", &mut memory.lease(10), &Get::default()).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code(), error.op()),
        (ErrorKind::NotFound, Some("NoSuchBucket"), Some("get"))
    );
    assert_eq!(error.request_id(), Some("REQ1"));
}

#[tokio::test]
async fn odd_keys_are_themselves() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = client(&server);
    let long = "k".repeat(1024);
    let keys = [
        "a b",
        "a+b",
        "n//dbl",
        "n/./dot",
        "n/../up",
        "100%25",
        "é世",
        "~!*'()",
        "?x=1&y",
        "/lead",
        "a;b,c:d@e",
        "&<>\"",
        &long,
    ];
    for key in keys {
        client.put(key, &memory.view(key.as_bytes()), &Put::default()).await.unwrap();
    }
    for key in keys {
        assert_eq!(server.object(key).as_deref().map(Vec::as_slice), Some(key.as_bytes()), "{key}");
        let mut lease = memory.lease(key.len());
        client.get(key, &mut lease, &Get::default()).await.unwrap().unwrap();
        assert_eq!(lease.as_host().unwrap(), key.as_bytes());
    }
    let mut listed: Vec<String> = client
        .list(&List::default(), None)
        .await
        .unwrap()
        .entries
        .into_iter()
        .map(|entry| entry.key)
        .collect();
    let mut expected: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    assert!(client.delete_many(&keys).await.unwrap().is_empty());
    assert!(client.list(&List::default(), None).await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn ranges_land_where_they_should() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = client(&server);
    let bytes = pattern(100_000);
    server.put_object("k", bytes.clone());
    let mut lease = memory.lease(1000);
    for start in [0, 1, 98_999, 99_000] {
        let object =
            client.get("k", &mut lease, &Get::range(start..start + 1000)).await.unwrap().unwrap();
        assert_eq!((object.len(), object.total()), (1000, 100_000));
        assert_eq!(lease.as_host().unwrap(), &bytes[start as usize..start as usize + 1000]);
    }
    let past = client.get("k", &mut lease, &Get::range(99_500..100_500)).await.unwrap_err();
    assert_eq!(past.kind(), ErrorKind::Corrupt, "a range that is cut does not fill the memory");
    let outside = client.get("k", &mut lease, &Get::range(200_000..200_100)).await.unwrap_err();
    assert_eq!((outside.kind(), outside.status()), (ErrorKind::Invalid, Some(416)));
    assert_eq!(lease.init_len(), 0);
    for range in [5..5, 0..1001] {
        assert_eq!(
            client.get("k", &mut lease, &Get::range(range)).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }
}

#[tokio::test]
async fn memory_of_another_length_is_refused_before_a_byte_lands() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = client(&server);
    server.put_object("k", vec![7; 5000]);
    for len in [4999, 5001] {
        let mut lease = memory.lease(len);
        lease.as_host_mut().unwrap().fill(1);
        let error = client.get("k", &mut lease, &Get::default()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.is_retryable(), lease.init_len()),
            (ErrorKind::Corrupt, false, 0)
        );
        assert!(lease.as_host_mut().unwrap().iter().all(|byte| *byte == 1));
    }
    let mut lease = memory.lease(9000);
    let object = client.get("k", &mut lease, &Get::at_most()).await.unwrap().unwrap();
    assert_eq!((object.len(), lease.init_len()), (5000, 5000));
}

#[tokio::test]
async fn parallel_ranges_make_one_object_of_one_version() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = client(&server);
    let bytes = pattern(5 * MIB + 3);
    server.put_object("k", bytes.clone());
    let mut lease = memory.lease(bytes.len());
    let object = client.get_parallel("k", &mut lease, MIB, 4).await.unwrap().unwrap();
    assert_eq!((object.len(), object.total()), (bytes.len() as u64, bytes.len() as u64));
    assert_eq!(lease.as_host().unwrap(), bytes);
    assert_eq!(client.counts().requests, 6);
    assert!(client.counts().connections <= 4);
    assert!(client.get_parallel("none", &mut lease, MIB, 4).await.unwrap().is_none());
    let mut short = memory.lease(bytes.len() - 1);
    assert_eq!(
        client.get_parallel("k", &mut short, MIB, 4).await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

#[tokio::test]
async fn versions_and_conditions_hold() {
    let server = server(|_| {});
    let memory = Memory::new();
    let client = client(&server);
    let one = memory.view(b"one");
    let two = memory.view(b"two");
    let Stored::New { etag: Some(etag) } = client.put("k", &one, &Put::if_absent()).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(client.put("k", &two, &Put::if_absent()).await.unwrap(), Stored::Present);
    let mut lease = memory.lease(3);
    assert!(client.get("k", &mut lease, &Get::default().if_match(&etag)).await.unwrap().is_some());
    assert_eq!(lease.as_host().unwrap(), b"one");
    client.put("k", &two, &Put::default()).await.unwrap();
    let error = client.get("k", &mut lease, &Get::default().if_match(&etag)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn listings_are_paged_folded_and_prefixed() {
    let server = server(|_| {});
    let client = client(&server);
    for n in 0..25 {
        server.put_object(&format!("a/{n:02}"), vec![0; n]);
    }
    server.put_object("b/c/d", Vec::new());
    server.put_object("b/e", Vec::new());
    let mut list = List::under("a/");
    list.page_max = 10;
    let mut keys = Vec::new();
    let mut next = None::<String>;
    let mut pages = 0;
    loop {
        let page = client.list(&list, next.as_deref()).await.unwrap();
        keys.extend(page.entries.iter().map(|entry| (entry.key.clone(), entry.bytes)));
        pages += 1;
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!((keys.len(), pages), (25, 3));
    assert_eq!(keys[24], ("a/24".to_owned(), 24));
    let mut folded = List::under("b/");
    folded.delimiter = Some("/".into());
    let page = client.list(&folded, None).await.unwrap();
    assert_eq!((page.entries.len(), page.prefixes), (1, vec!["b/c/".to_owned()]));
    let mut after = List::under("a/");
    after.start_after = Some("a/22".into());
    assert_eq!(client.list(&after, None).await.unwrap().entries.len(), 2);
}

#[tokio::test]
async fn unfinished_uploads_are_listed_page_by_page_whatever_their_keys() {
    let server = server(|_| {});
    let client = client(&server);
    let keys = ["p/a b+c", "p/\u{e9}\u{4e16}/100%25", "p/&<>\"'", "p/?x=1&y", "p/n//dbl"];
    for n in 0..2300 {
        server.begin_upload(keys[n % keys.len()], 60);
    }
    server.begin_upload("other", 60);
    let mut seen = std::collections::BTreeMap::new();
    let mut next = None;
    let mut pages = 0;
    loop {
        let page = client.list_uploads("p/", next.as_ref()).await.unwrap();
        for upload in page.uploads {
            assert!(upload.begun > 0);
            assert_eq!(seen.insert(upload.id, upload.key), None, "no upload comes twice");
        }
        (next, pages) = (page.next, pages + 1);
        if next.is_none() {
            break;
        }
    }
    assert_eq!((seen.len(), pages), (2300, 3));
    for key in keys {
        assert_eq!(seen.values().filter(|seen| *seen == key).count(), 2300 / keys.len(), "{key}");
    }
    let (id, key) = seen.pop_first().unwrap();
    client.abort_upload(&key, &id).await.unwrap();
    assert_eq!(server.uploads(), 2300);
}

#[tokio::test]
async fn many_keys_are_deleted_and_each_refusal_is_reported() {
    let server = server(|_| {});
    let client = client(&server);
    let keys: Vec<String> = (0..1000)
        .map(|n| format!("d/{n}&<>\u{1}").replace('\u{1}', if n % 100 == 0 { "\u{1}" } else { "" }))
        .collect();
    keys.iter().for_each(|key| server.put_object(key, Vec::new()));
    server.put_object("locked", Vec::new());
    assert!(client.delete_many(&keys).await.unwrap().is_empty());
    assert_eq!(client.counts().requests, 11, "ten keys that XML cannot say go one by one");
    let refused = client.delete_many(&["locked"]).await.unwrap();
    assert_eq!(
        (refused.len(), refused[0].key.as_str(), refused[0].code.as_str()),
        (1, "locked", "AccessDenied")
    );
    assert_eq!(client.list(&List::default(), None).await.unwrap().entries.len(), 1);
    let too_many = vec!["k"; 1001];
    assert_eq!(client.delete_many(&too_many).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_store_without_delete_objects_is_served_one_by_one() {
    let server = server(|setup| setup.deletes_singly = true);
    let client = client(&server);
    server.put_object("a", Vec::new());
    assert!(client.delete_many(&["a", "b"]).await.unwrap().is_empty());
    assert!(server.object("a").is_none());
}

#[tokio::test]
async fn multipart_uploads_become_one_object() {
    let server = server(|_| {});
    let memory = Memory::new();
    for checksum in [Checksum::None, Checksum::Crc32c, Checksum::Crc64Nvme, Checksum::Sha256] {
        let mut config = config(&server);
        config.checksum = checksum;
        let client = Client::new(config);
        let bytes = pattern(12 * MIB);
        let stored = client
            .put_multipart(
                "k",
                &memory.view(&bytes),
                &Put::default().meta("a", "b"),
                kvtier_s3::Multipart::new(5 * MIB, 3),
            )
            .await
            .unwrap();
        assert!(matches!(stored, Stored::New { etag: Some(_) }));
        assert_eq!(server.object("k").as_deref(), Some(&bytes));
        assert_eq!((server.uploads(), client.counts().aborts, client.counts().requests), (0, 0, 5));
        assert_eq!(client.head("k").await.unwrap().unwrap().meta("a"), Some("b"));
    }
}

#[tokio::test]
async fn uploads_name_their_storage_class() {
    let server = server(|_| {});
    let memory = Memory::new();
    let mut config = config(&server);
    config.storage_class = Some("STANDARD_IA".into());
    let client = Client::new(config);
    let plain = Client::new(support::config(&server));
    let body = memory.view(&pattern(100));
    let large = memory.view(&pattern(6 * MIB));
    plain.put("none", &body, &Put::default()).await.unwrap();
    client.put("of the client", &body, &Put::default().meta("a", "b")).await.unwrap();
    client.put("own", &body, &Put::default().storage_class("INTELLIGENT_TIERING")).await.unwrap();
    client
        .put_multipart("parts", &large, &Put::default(), kvtier_s3::Multipart::new(5 * MIB, 2))
        .await
        .unwrap();
    let seen = server.seen();
    let of = |method: &str, target: &str| {
        let mut all =
            seen.iter().filter(|seen| seen.method == method && seen.target.contains(target));
        all.next().unwrap().header("x-amz-storage-class").map(str::to_owned)
    };
    assert_eq!(of("PUT", "none"), None);
    assert_eq!(of("PUT", "of%20the%20client").as_deref(), Some("STANDARD_IA"));
    assert_eq!(of("PUT", "own").as_deref(), Some("INTELLIGENT_TIERING"));
    assert_eq!(of("POST", "parts?uploads").as_deref(), Some("STANDARD_IA"));
    assert_eq!(of("PUT", "parts?partNumber"), None, "a part has the class of its upload");
}

#[tokio::test]
async fn buckets_are_made_and_unmade() {
    let server = server(|_| {});
    let client = client(&server);
    client.create_bucket().await.unwrap();
    server.put_object("k", Vec::new());
    assert_eq!(client.delete_bucket().await.unwrap_err().code(), Some("BucketNotEmpty"));
    client.delete("k").await.unwrap();
    client.delete_bucket().await.unwrap();
    assert!(!client.head_bucket().await.unwrap());
    client.delete_bucket().await.unwrap();
}

#[tokio::test]
async fn wrong_secrets_are_denied_at_once_and_not_shown() {
    let server = server(|_| {});
    let of = |access, secret| {
        let mut config = config(&server);
        config.credentials = std::sync::Arc::new(Credentials::new(access, secret));
        Client::new(config)
    };
    let client = of("AKIDTEST", "hush-hush");
    let error = client.list(&List::default(), None).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("SignatureDoesNotMatch")));
    assert_eq!(server.seen().len(), 1);
    let shown = format!("{error} {error:?} {client:?}");
    assert!(!shown.contains("hush") && shown.contains("check credentials"), "{shown}");
    let client = of("AKIDNONE", "x");
    let error = client.list(&List::default(), None).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code(), server.seen().len()),
        (ErrorKind::Denied, Some("InvalidAccessKeyId"), 3)
    );
}

#[tokio::test]
async fn the_region_is_learned_once() {
    let server = server(|setup| setup.region = "eu-south-7".into());
    let client = client(&server);
    assert!(
        client.head("k").await.is_err() || client.endpoint().region() == "eu-south-7",
        "a HEAD has no body to learn from"
    );
    assert!(client.list(&List::default(), None).await.is_ok());
    assert_eq!(client.endpoint().region(), "eu-south-7");
    let requests = client.counts().requests;
    client.list(&List::default(), None).await.unwrap();
    assert_eq!((client.counts().requests - requests, client.counts().region_moves), (1, 1));
}

#[tokio::test]
async fn a_store_that_wants_signed_bodies_gets_them_from_then_on() {
    let server = server(|setup| setup.refuse_unsigned = true);
    let memory = Memory::new();
    let client = client(&server);
    let view = memory.view(b"body");
    for n in 0..3 {
        client.put(&format!("k{n}"), &view, &Put::default()).await.unwrap();
    }
    assert_eq!((server.seen().len(), client.counts().unsigned_refused), (4, 1));
}

#[tokio::test]
async fn virtual_hosts_and_production_names_work_through_a_resolver_of_ones_own() {
    let server = server(|_| {});
    let memory = Memory::new();
    let endpoint =
        BucketAddress::new("http://s3.us-east-1.amazonaws.com").bucket("bucket").resolve().unwrap();
    let mut config = config_of(endpoint);
    let port = server.address().port();
    config.endpoint = BucketAddress::new(format!("http://bucket.cwlota.com:{port}"))
        .region("us-east-1")
        .resolve()
        .unwrap();
    assert_eq!(config.endpoint.provider(), Provider::Coreweave);
    config.resolver = Box::new(StaticResolver(server.address()));
    let client = Client::new(config);
    client.put("k", &memory.view(b"lota"), &Put::default()).await.unwrap();
    assert_eq!(server.object("k").as_deref().map(Vec::as_slice), Some(&b"lota"[..]));
    assert_eq!(server.seen()[0].header("host"), Some(format!("bucket.cwlota.com:{port}").as_str()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_share_few_connections() {
    let server = server(|_| {});
    let memory = Memory::new();
    let mut config = config(&server);
    config.requests_max = 4;
    let client = Client::new(config);
    let bytes = pattern(200_000);
    server.put_object("k", bytes.clone());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        let mut lease = memory.lease(bytes.len());
        tasks.spawn(async move {
            client.get("k", &mut lease, &Get::default()).await.unwrap().unwrap();
            lease
        });
    }
    while let Some(lease) = tasks.join_next().await {
        assert_eq!(lease.unwrap().as_host().unwrap(), bytes);
    }
    assert!(server.accepted() <= 4, "{}", server.accepted());
    let counts = client.counts();
    assert_eq!((counts.requests, counts.retries, counts.bytes_in), (64, 0, 64 * 200_000));
    assert!(counts.copied_head_bytes <= 64 * 2048, "the copy ledger: what came with the heads");
    drop(client);
    soon("all connections are closed", || server.connections() == 0).await;
    assert!(memory.is_whole());
}
