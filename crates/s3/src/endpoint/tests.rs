use super::*;

fn shown(place: BucketAddress) -> String {
    let endpoint = place.resolve().unwrap();
    format!("{endpoint} {} {}", endpoint.region, endpoint.provider.name())
}

fn refused(place: BucketAddress) -> String {
    place.resolve().unwrap_err().to_string()
}

#[test]
fn aws_in_all_its_forms() {
    let b = |url: &str| shown(BucketAddress::new(url).region("eu-west-1"));
    assert_eq!(b("s3://b"), "https://b.s3.eu-west-1.amazonaws.com eu-west-1 aws");
    assert_eq!(b("s3://b/"), "https://b.s3.eu-west-1.amazonaws.com eu-west-1 aws");
    assert_eq!(
        shown(BucketAddress::default().bucket("b").region("r")),
        "https://b.s3.r.amazonaws.com r aws"
    );
    assert_eq!(
        shown(BucketAddress::new("s3://my.b").bucket("my.b").region("r")),
        "https://s3.r.amazonaws.com/my.b r aws"
    );
    for url in [
        "b.s3.us-west-2.amazonaws.com",
        "s3://b.s3.us-west-2.amazonaws.com",
        "https://b.s3.us-west-2.amazonaws.com/",
    ] {
        assert_eq!(
            shown(BucketAddress::new(url)),
            "https://b.s3.us-west-2.amazonaws.com us-west-2 aws",
            "{url}"
        );
    }
    let of = |url: &str| shown(BucketAddress::new(url).bucket("b"));
    assert_eq!(
        of("https://s3.us-west-2.amazonaws.com"),
        "https://b.s3.us-west-2.amazonaws.com us-west-2 aws"
    );
    assert_eq!(
        of("https://s3.dualstack.us-west-2.amazonaws.com"),
        "https://b.s3.dualstack.us-west-2.amazonaws.com us-west-2 aws"
    );
    assert_eq!(
        of("http://s3.cn-north-1.amazonaws.com.cn"),
        "http://b.s3.cn-north-1.amazonaws.com.cn cn-north-1 aws"
    );
    assert_eq!(of("https://s3.amazonaws.com/b"), "https://s3.amazonaws.com/b us-east-1 aws");
}

#[test]
fn names_of_aws_that_hold_no_region_or_another_word_before_it() {
    // Transfer acceleration: one name for all regions, so that the region has to be set.
    for url in [
        "s3://b.s3-accelerate.amazonaws.com",
        "https://b.s3-accelerate.amazonaws.com",
        "b.s3-accelerate.dualstack.amazonaws.com",
    ] {
        assert!(refused(BucketAddress::new(url)).contains("no region"), "{url}");
        let endpoint = BucketAddress::new(url).region("eu-west-1").resolve().unwrap();
        assert_eq!(
            (endpoint.region.as_str(), endpoint.bucket.as_str()),
            ("eu-west-1", "b"),
            "{url}"
        );
        assert!(endpoint.to_string().contains("s3-accelerate"), "{endpoint}");
        assert_eq!(endpoint.region_at("b.s3-accelerate.amazonaws.com"), None);
    }
    let signed_for = |url: &str| BucketAddress::new(url).bucket("b").resolve().unwrap().region;
    assert_eq!(signed_for("https://s3-external-1.amazonaws.com"), "us-east-1");
    assert_eq!(signed_for("https://s3-fips-us-gov-west-1.amazonaws.com"), "us-gov-west-1");
    assert_eq!(signed_for("https://s3-fips.us-gov-west-1.amazonaws.com"), "us-gov-west-1");
    assert_eq!(signed_for("https://s3-eu-west-1.amazonaws.com"), "eu-west-1");
}

#[test]
fn directory_buckets() {
    let zonal =
        "https://kv--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com us-east-1 express";
    assert_eq!(shown(BucketAddress::new("s3://kv--use1-az4--x-s3").region("us-east-1")), zonal);
    assert_eq!(
        shown(BucketAddress::new(
            "s3://kv--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com"
        )),
        zonal
    );
    let local = BucketAddress::new("http://127.0.0.1:9000")
        .bucket("kv--use1-az4--x-s3")
        .region("us-east-1")
        .resolve()
        .unwrap();
    assert_eq!(local.to_string(), "http://127.0.0.1:9000/kv--use1-az4--x-s3");
    assert_eq!(local.service(), "s3express");
}

#[test]
fn directory_buckets_are_made_elsewhere() {
    let at = |url: &str| {
        let place = BucketAddress::new(url)
            .bucket("kv--use1-az4--x-s3")
            .region("us-east-1")
            .resolve()
            .unwrap();
        (place.control().to_string(), place.zone().map(str::to_owned))
    };
    let control = "https://s3express-control.us-east-1.amazonaws.com/kv--use1-az4--x-s3";
    assert_eq!(at("s3://kv--use1-az4--x-s3"), (control.to_owned(), Some("use1-az4".to_owned())));
    assert_eq!(at("http://127.0.0.1:9000").0, "http://127.0.0.1:9000/kv--use1-az4--x-s3");
}

#[test]
fn only_aws_sends_to_aws() {
    let aws = BucketAddress::new("s3://b").region("us-east-1").resolve().unwrap();
    let at = |place: &str| aws.region_at(place);
    for place in [
        "b.s3.eu-west-3.amazonaws.com",
        "b.s3-eu-west-3.amazonaws.com",
        "https://s3.eu-west-3.amazonaws.com/b/k?x=1",
        "https://b.s3.dualstack.eu-west-3.amazonaws.com:443/k",
    ] {
        assert_eq!(at(place).as_deref(), Some("eu-west-3"), "{place}");
    }
    for place in [
        "evil.com",
        "https://evil.com/b.s3.eu-west-3.amazonaws.com",
        "https://b.s3.eu-west-3.amazonaws.com.evil.com/",
        "https://b.s3.eu-west-3.amazonaws.com@evil.com/",
        "kv--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com",
        "",
        "://",
    ] {
        assert_eq!(at(place), None, "{place}");
    }
    let own = BucketAddress::new("http://h:1").bucket("b").resolve().unwrap();
    assert_eq!(own.region_at("b.s3.eu-west-3.amazonaws.com"), None);
}

#[test]
fn other_providers_by_their_hosts() {
    let b = |url: &str| shown(BucketAddress::new(url).bucket("b"));
    assert_eq!(b("https://cwobject.com"), "https://b.cwobject.com us-east-1 coreweave");
    assert_eq!(
        shown(BucketAddress::new("s3://b.cwlota.com")),
        "http://b.cwlota.com us-east-1 coreweave"
    );
    assert_eq!(
        shown(BucketAddress::new("s3://b.cwobject.com").region("US-WEST-04A")),
        "https://b.cwobject.com US-WEST-04A coreweave"
    );
    assert_eq!(b("https://storage.googleapis.com"), "https://storage.googleapis.com/b auto gcs");
    assert_eq!(
        b("https://acc.r2.cloudflarestorage.com"),
        "https://acc.r2.cloudflarestorage.com/b auto r2"
    );
    assert_eq!(
        shown(BucketAddress::new("b.acc.r2.cloudflarestorage.com")),
        "https://b.acc.r2.cloudflarestorage.com auto r2"
    );
}

#[test]
fn servers_of_ones_own() {
    let b = |url: &str| shown(BucketAddress::new(url).bucket("b"));
    assert_eq!(b("http://10.0.0.1:9000"), "http://10.0.0.1:9000/b us-east-1 other");
    assert_eq!(b("10.0.0.1"), "https://10.0.0.1/b us-east-1 other");
    assert_eq!(b("http://[::1]:9000"), "http://[::1]:9000/b us-east-1 other");
    assert_eq!(b("http://[::1]"), "http://[::1]/b us-east-1 other");
    assert_eq!(b("localhost:9000"), "https://localhost:9000/b us-east-1 other");
    assert_eq!(
        b("https://minio.example.com:443/b/"),
        "https://minio.example.com/b us-east-1 other"
    );
    assert_eq!(b("https://b.minio.example.com"), "https://b.minio.example.com us-east-1 other");
    assert_eq!(
        shown(BucketAddress::new("s3://b.minio.example.com:9000").tls(false)),
        "http://b.minio.example.com:9000 us-east-1 other"
    );
    let swift = BucketAddress::new("http://h:1")
        .bucket("b")
        .provider(Provider::Swift)
        .style(Style::Virtual);
    assert_eq!(shown(swift), "http://b.h:1 us-east-1 swift");
}

#[test]
fn what_cannot_be_says_why() {
    assert!(refused(BucketAddress::default().region("r")).contains("no bucket"));
    assert!(refused(BucketAddress::new("s3://b")).contains("region"));
    assert!(refused(BucketAddress::new("s3://b").bucket("c").region("r")).contains("drop one"));
    assert!(refused(BucketAddress::new("ftp://h").bucket("b")).contains("ftp://"));
    assert!(refused(BucketAddress::new("http://u:p@h").bucket("b")).contains("credentials"));
    assert!(!refused(BucketAddress::new("http://u:p@h").bucket("b")).contains("u:p"));
    for place in [
        BucketAddress::new("AKID:SECRET@minio:9000/b"),
        BucketAddress::new("https://AKID:SEC/RET@host/b"),
        BucketAddress::new("https://AKID:1234/SECRET@host"),
        BucketAddress::new("AKID:SECRET@https://host/b"),
        BucketAddress::new("s3://AKID:SECRET@host"),
        BucketAddress::new("https://host").bucket("AKID:SECRET@b"),
        BucketAddress::new("https://host/SECRET@b").bucket("b"),
    ] {
        let said = refused(place.region("r"));
        assert!(
            said.contains("credentials") && !said.contains("SEC") && !said.contains("AKID"),
            "{said}"
        );
    }
    let prefixed = refused(BucketAddress::new("s3://b/pre@x").region("r"));
    assert!(prefixed.contains("prefix") && !prefixed.contains("has credentials"), "{prefixed}");
    assert!(refused(BucketAddress::new("http://h:0").bucket("b")).contains("port"));
    assert!(refused(BucketAddress::new("http://h:99999").bucket("b")).contains("port"));
    assert!(refused(BucketAddress::new("http://h/a/b")).contains("path"));
    assert!(refused(BucketAddress::new("http://[::1").bucket("b")).contains("bracket"));
    assert!(refused(BucketAddress::new("http://h\r\nx").bucket("b")).contains("host"));
    assert!(refused(BucketAddress::new("http://h").bucket("a/../b")).contains("no name"));
    assert!(
        refused(BucketAddress::new("http://1.2.3.4").bucket("b").style(Style::Virtual))
            .contains("path style")
    );
    assert!(refused(BucketAddress::new("b.s3.r.amazonaws.com/b")).contains("drop one"));
}

#[test]
fn another_region_moves_the_host_of_aws_and_only_that() {
    let moved = |place: BucketAddress, region: &str| {
        place.resolve().unwrap().in_region(region).map(|found| found.to_string())
    };
    let aws = || BucketAddress::new("s3://b").region("us-east-1");
    assert_eq!(moved(aws(), "eu-west-3").as_deref(), Some("https://b.s3.eu-west-3.amazonaws.com"));
    let own = || BucketAddress::new("http://h:1").bucket("b");
    assert_eq!(moved(own(), "x").as_deref(), Some("http://h:1/b"));
    assert_eq!(own().resolve().unwrap().in_region("x").unwrap().region, "x");
    for odd in ["", "evil.com/", "a@b"] {
        assert_eq!((moved(aws(), odd), moved(own(), odd)), (None, None), "{odd}");
    }
    let fast =
        BucketAddress::new("b.s3-accelerate.amazonaws.com").region("us-east-1").resolve().unwrap();
    let fast = fast.in_region("eu-west-3").unwrap();
    assert_eq!(
        (fast.to_string().as_str(), fast.region()),
        ("https://b.s3-accelerate.amazonaws.com", "eu-west-3")
    );
}

#[test]
fn endpoints_in_private_networks() {
    const HOST: &str = "bucket.vpce-1a2b3c4d-5e6f.s3.us-east-1.vpce.amazonaws.com";
    for url in
        [format!("https://{HOST}"), format!("https://{HOST}/"), HOST.replace("bucket.vpce", "vpce")]
    {
        assert_eq!(
            shown(BucketAddress::new(&url).bucket("kv")),
            format!("https://{HOST}/kv us-east-1 aws"),
            "{url}"
        );
    }
    assert_eq!(
        shown(BucketAddress::new(format!("https://{HOST}/kv"))),
        format!("https://{HOST}/kv us-east-1 aws")
    );
    assert_eq!(
        shown(BucketAddress::new(format!("https://kv.{HOST}"))),
        format!("https://kv.{HOST} us-east-1 aws")
    );
    assert!(refused(BucketAddress::new(format!("https://{HOST}"))).contains("no bucket"));
    let found = BucketAddress::new(format!("https://{HOST}/kv")).resolve().unwrap();
    assert_eq!((found.in_region("eu-west-3"), found.style()), (None, Style::Path));
    assert!(
        found.is_same_bucket(&BucketAddress::new("s3://kv").region("us-east-1").resolve().unwrap())
    );
    for kind in ["accesspoint", "control"] {
        let said = refused(BucketAddress::new(HOST.replace("bucket", kind)).bucket("kv"));
        assert!(said.contains("https://bucket.vpce-"), "{said}");
    }
}

#[test]
fn over_tls_a_bucket_with_dots_is_in_the_path_however_it_is_written() {
    let aws = "https://s3.us-east-1.amazonaws.com/my.b us-east-1 aws";
    for url in [
        "https://s3.us-east-1.amazonaws.com",
        "https://s3.us-east-1.amazonaws.com/my.b",
        "https://my.b.s3.us-east-1.amazonaws.com",
        "s3://my.b.s3.us-east-1.amazonaws.com",
        "s3://my.b",
    ] {
        assert_eq!(shown(BucketAddress::new(url).bucket("my.b").region("us-east-1")), aws, "{url}");
    }
    assert_eq!(shown(BucketAddress::new("https://my.b.s3.us-east-1.amazonaws.com")), aws);
    assert_eq!(
        shown(BucketAddress::new("https://cwobject.com").bucket("my.b")),
        "https://cwobject.com/my.b us-east-1 coreweave"
    );
    assert_eq!(
        shown(BucketAddress::new("https://my.b.h.test").bucket("my.b")),
        "https://h.test/my.b us-east-1 other"
    );
    // Without a certificate it makes no difference, and who asks for it gets it.
    let plain = "http://my.b.s3.us-east-1.amazonaws.com us-east-1 aws";
    assert_eq!(shown(BucketAddress::new("http://my.b.s3.us-east-1.amazonaws.com")), plain);
    let asked = BucketAddress::new("https://s3.us-east-1.amazonaws.com")
        .bucket("my.b")
        .style(Style::Virtual);
    assert_eq!(shown(asked), "https://my.b.s3.us-east-1.amazonaws.com us-east-1 aws");
}

#[test]
fn providers_are_found_by_name() {
    for provider in Provider::ALL {
        assert_eq!(Provider::named(provider.name()), Some(provider));
    }
    assert_eq!(Provider::named("azure"), None);
}

#[test]
fn the_environment_fills_what_is_not_said() {
    let env = |pairs: &'static [(&str, &str)]| {
        move |name: &str| {
            pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        }
    };
    let region = env(&[("AWS_REGION", "r1"), ("AWS_DEFAULT_REGION", "r2")]);
    assert_eq!(
        shown(BucketAddress::new("s3://b").or_env(region)),
        "https://b.s3.r1.amazonaws.com r1 aws"
    );
    assert_eq!(
        shown(BucketAddress::new("s3://b").region("own").or_env(region)),
        "https://b.s3.own.amazonaws.com own aws"
    );
    let local = env(&[
        ("AWS_ENDPOINT_URL", "http://wrong:1"),
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000"),
    ]);
    assert_eq!(
        shown(BucketAddress::new("s3://b").or_env(local)),
        "http://127.0.0.1:9000/b us-east-1 other"
    );
    assert_eq!(
        shown(BucketAddress::default().bucket("b").or_env(local)),
        "http://127.0.0.1:9000/b us-east-1 other"
    );
    let named = BucketAddress::new("https://b.s3.us-west-2.amazonaws.com").or_env(local);
    assert_eq!(shown(named), "https://b.s3.us-west-2.amazonaws.com us-west-2 aws");
}
