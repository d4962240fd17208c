//! Credentials from roles, web identities, processes, containers and instance metadata, as
//! operators set them up: by environment and files of a process of its own, against local endpoints
//! that answer as the real ones do.
#![allow(clippy::unwrap_used)]

#[path = "support/asker.rs"]
mod asker;
#[path = "support/credential_answers.rs"]
mod credential_answers;
#[path = "support/fake.rs"]
mod fake;
#[path = "support/logs.rs"]
mod logs;
mod support;

use std::time::Duration;

use asker::{ASKS, NO_INSTANCE, SECRET, Scene};
use credential_answers::{is_sts, iso, json, sts};
use fake::Fake;
use kvtier_s3::creds::discover;
use kvtier_s3::{BucketAddress, Client, Config, List};
use kvtier_testkit::s3::{Fault, Rule};
use logs::Logs;

/// What the other process does. As a test of its own it does nothing.
#[test]
#[allow(clippy::print_stdout)]
fn asks() {
    let Ok(url) = std::env::var(ASKS) else { return };
    let logs = Logs::default();
    tracing::subscriber::set_global_default(logs.clone()).unwrap();
    tracing::trace!("logs are taken");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let chain = |e: &dyn std::error::Error| {
        let causes = std::iter::successors(Some(e), |e| e.source()).map(ToString::to_string);
        causes.collect::<Vec<_>>().join(" <- ").replace('\n', " ")
    };
    let answer = |text: String| println!("\nanswer: {text}");
    let (provider, first, source) = match runtime
        .block_on(discover(|name| std::env::var(name).ok(), std::env::var(NO_INSTANCE).is_err()))
    {
        Ok(found) => found,
        Err(e) => {
            answer(chain(&e));
            println!("{e:?} {}", logs.take());
            return;
        }
    };
    answer(format!("{} from {source}", first.access_key()));
    let mut config = Config::with_provider(
        BucketAddress::new(url).bucket("bucket").resolve().unwrap(),
        provider,
    );
    config.deadline = Duration::from_secs(600);
    let client = Client::new(config);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let lists = if line == "many" { 16 } else { u32::from(line == "list") };
        let output = runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..lists {
                let client = client.clone();
                tasks.spawn(async move { client.list(&List::default(), None).await });
            }
            let failed = tasks.join_all().await.into_iter().find_map(Result::err);
            failed.map_or("ok".to_owned(), |e| format!("{} {e:?}", chain(&e)))
        });
        match line.as_str() {
            "debug" => answer(format!("{client:?} {first:?} {}", logs.take().replace('\n', " "))),
            "counts" => {
                let counts = client.counts();
                answer(format!(
                    "{} renewals, {} failures",
                    counts.identity_renewals, counts.identity_failures
                ));
            }
            _ => answer(output),
        }
    }
}

#[test]
fn a_web_identity_takes_its_role_with_the_token_of_that_moment() {
    let fake = Fake::start(|_, before| {
        (200, sts("AssumeRoleWithWebIdentity", "AKIDTEST", &format!("session-token-{before}")))
    });
    let scene = Scene::new();
    let token = scene.file("token", "jwt-of-monday");
    let scene = scene
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
        .env("AWS_ROLE_ARN", "arn:aws:iam::1:role/kv")
        .env("AWS_ROLE_SESSION_NAME", "node-7")
        .env("AWS_ENDPOINT_URL_STS", fake.url());
    let mut asker = scene.start();
    assert_eq!(asker.read_line(), "AKIDTEST from a role, taken through STS with a web identity");
    assert_eq!(asker.command("many"), "ok");
    let asked = fake.asked();
    assert_eq!(asked.len(), 1, "what was found is used");
    assert!(
        is_sts(&asked[0], "AssumeRoleWithWebIdentity")
            && asked[0].header("authorization").is_none()
    );
    for part in ["RoleSessionName=node-7", "WebIdentityToken=jwt-of-monday", "role%2Fkv"] {
        assert!(asked[0].body.contains(part), "{part}");
    }
    // The kubelet writes another; what the store calls expired is fetched anew, once for all.
    std::fs::write(&token, "jwt-of-tuesday").unwrap();
    asker.server.script(Rule::next(Fault::Error(400, "ExpiredToken")));
    assert_eq!(asker.command("many"), "ok");
    let asked = fake.asked();
    assert!(asked.len() == 2 && asked[1].body.contains("WebIdentityToken=jwt-of-tuesday"));
    // Of those that were sent together some with the old one may come last.
    let tokens = asker.tokens();
    assert_eq!(
        (tokens[0].as_str(), tokens[1].as_str()),
        ("session-token-0", "session-token-1"),
        "{tokens:?}"
    );
    asker.end(&["jwt-of-", "session-token-"]);
}

#[test]
fn a_containers_agent_is_asked_early_by_one_and_with_the_token_of_that_moment() {
    let fake = Fake::start(|_, before| (200, json(&format!("session-token-{before}"), 3600)));
    let scene = Scene::new();
    let token = scene.file("token", "pod-token-1");
    let scene = scene
        .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}/v1/credentials", fake.url()))
        .env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.to_str().unwrap());
    let mut asker = scene.start();
    assert_eq!(asker.read_line(), "AKIDTEST from the container's agent");
    assert_eq!(asker.command("many"), "ok");
    std::fs::write(&token, "pod-token-2").unwrap();
    // By the store's clock the credentials are past 70 % of their life, and good for a while yet:
    // no caller waits, one request renews.
    asker.server.step_clock(2600);
    assert_eq!((asker.command("list").as_str(), asker.command("many").as_str()), ("ok", "ok"));
    let renewed = "session-token-1".to_owned();
    for _ in 0..1000 {
        assert_eq!(asker.command("list"), "ok");
        if asker.tokens().contains(&renewed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(asker.command("many"), "ok");
    let asked = fake.asked();
    let authorized: Vec<_> =
        asked.iter().map(|asked| asked.header("authorization").unwrap().to_owned()).collect();
    assert_eq!(authorized, ["pod-token-1", "pod-token-2"]);
    assert!(asked.iter().all(|asked| asked.path == "/v1/credentials"));
    assert!(asker.tokens().ends_with(&[renewed]), "{:?}", asker.tokens());
    assert_eq!(asker.command("counts"), "2 renewals, 0 failures");
    asker.end(&["pod-token-", "session-token-"]);
}

/// Instance metadata, version 2 only, that fails after it has given credentials a number of times.
fn metadata(gives: usize) -> Fake {
    let given = std::sync::atomic::AtomicUsize::new(0);
    Fake::start(move |asked, _| {
        let session = asked.header("x-aws-ec2-metadata-token") == Some("imds-token");
        match (asked.method.as_str(), asked.path.as_str()) {
            ("PUT", "/latest/api/token") => (200, "imds-token".into()),
            _ if !session => (401, String::new()),
            (_, path) if path.contains("/iam/security-credentials") => {
                match path.trim_end_matches('/') {
                    "/latest/meta-data/iam/security-credentials" => (200, "kv-role".into()),
                    "/latest/meta-data/iam/security-credentials/kv-role" => {
                        match given.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                            before if before < gives => (200, json("session-token-0", 3600)),
                            _ => (500, String::new()),
                        }
                    }
                    _ => (404, String::new()),
                }
            }
            _ => (404, String::new()),
        }
    })
}

#[test]
fn instance_metadata_that_fails_later_leaves_what_is_valid_in_use() {
    let fake = metadata(1);
    let scene = Scene::new().env("AWS_EC2_METADATA_DISABLED", "false");
    let mut asker = scene.env("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url()).start();
    assert_eq!(asker.read_line(), "AKIDTEST from the instance's metadata");
    assert_eq!(asker.command("many"), "ok");
    asker.server.step_clock(2600);
    for _ in 0..10 {
        assert_eq!(asker.command("many"), "ok");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(asker.tokens(), ["session-token-0"]);
    let token = fake.asked().iter().filter(|asked| asked.method == "PUT").count();
    assert!(token >= 1, "version 2: a token first");
    asker.end(&["imds-token", "session-token-"]);
}

#[test]
fn roles_are_taken_one_with_another() {
    let fake = Fake::start(|asked, _| {
        let second = asked.body.contains("role%2Finner");
        let access = if second { "AKIDTEST" } else { "AKIDOUTER" };
        (200, sts("AssumeRole", access, &format!("session-token-{access}")))
    });
    let scene = Scene::new();
    scene.file(
        ".aws/config",
        "[profile kv]\nrole_arn = arn:aws:iam::2:role/inner\nsource_profile = outer\n\
        [profile outer]\nrole_arn = arn:aws:iam::1:role/outer\nsource_profile = user\nexternal_id = x1\n\
        [profile user]\naws_access_key_id = AKIDUSER\naws_secret_access_key = hush-hush\n",
    );
    let mut asker = scene.env("AWS_PROFILE", "kv").env("AWS_ENDPOINT_URL_STS", fake.url()).start();
    assert_eq!(asker.read_line(), "AKIDTEST from a role, taken through STS");
    assert_eq!(asker.command("many"), "ok");
    let asked = fake.asked();
    let signed = |at: usize, by: &str| {
        asked[at].header("authorization").unwrap().contains(&format!("Credential={by}/"))
    };
    assert!(asked.len() == 2 && asked.iter().all(|asked| is_sts(asked, "AssumeRole")), "{asked:?}");
    assert!(signed(0, "AKIDUSER") && signed(1, "AKIDOUTER"));
    assert_eq!(asked[1].header("x-amz-security-token"), Some("session-token-AKIDOUTER"));
    assert_eq!(asker.tokens(), ["session-token-AKIDTEST"]);
    asker.end(&["hush-hush", "session-token-"]);
}

#[test]
fn a_process_is_run_once_for_many() {
    let scene = Scene::new();
    let log = scene.home.path().join("runs");
    let pair = format!(
        r#"{{"Version": 1, "AccessKeyId": "AKIDTEST", "SecretAccessKey": "{SECRET}", "SessionToken": "session-token-0", "Expiration": "{}"}}"#,
        iso(3600)
    );
    let script = scene.file("who", &format!("echo run >> {}\necho '{pair}'\n", log.display()));
    let command =
        format!("[default]\ncredential_process = /bin/sh {} --pin sesame-open\n", script.display());
    scene.file(".aws/config", &command);
    let mut asker = scene.start();
    assert_eq!(asker.read_line(), "AKIDTEST from the credential_process of a profile");
    assert_eq!(asker.command("many"), "ok");
    asker.server.script(Rule::next(Fault::Error(400, "ExpiredToken")));
    assert_eq!(asker.command("list"), "ok");
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 2);
    asker.end(&["session-token-", "sesame-open"]);
}

#[test]
fn sources_that_fail_are_named_and_no_secret_is_shown() {
    let leaky = |text: &'static str, status| Fake::start(move |_, _| (status, text.to_owned()));
    let broken = r#"{"AccessKeyId": "AKIDTEST", "SecretAccessKey": "hush-hush", "Token": "session-token-0" "#;
    let container = leaky(broken, 200);
    let denied = leaky(
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>",
        403,
    );
    let process = |scene: Scene, text: &str| {
        let script = scene.file("who", text);
        scene.file(
            ".aws/config",
            &format!("[default]\ncredential_process = /bin/sh {}\n", script.display()),
        );
        scene
    };
    let identity = |scene: Scene| {
        let token = scene.file("token", "jwt-of-monday");
        let scene = scene.env("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap());
        scene
            .env("AWS_ROLE_ARN", "arn:aws:iam::1:role/kv")
            .env("AWS_ENDPOINT_URL_STS", denied.url())
    };
    let scenes = [
        (
            Scene::new().env("AWS_CONTAINER_CREDENTIALS_FULL_URI", container.url()),
            "the source of credentials failed",
        ),
        (identity(Scene::new()), "AccessDenied"),
        (
            process(Scene::new(), "echo '{\"Version\": 1, \"SecretAccessKey\": \"hush-hush\"'"),
            "external process",
        ),
        (process(Scene::new(), "exit 3"), "exited with code exit status: 3"),
        (
            Scene::new().env("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://1.2.3.4/x"),
            "not refer to an allowed IP",
        ),
        (Scene::new().env("AWS_PROFILE", "absent"), "profile absent gives no credentials"),
        (Scene::new(), "no credentials were found: set AWS_ACCESS_KEY_ID"),
    ];
    for (scene, says) in scenes {
        let mut asker = scene.start();
        let output = asker.read_line();
        assert!(output.contains(says), "{says}: {output}");
        let causes = output.matches(" <- ").count();
        assert!(
            causes <= 2 && output.len() < 700,
            "{causes} causes, {} bytes: {output}",
            output.len()
        );
        asker.child.wait().unwrap();
        let said = asker.said.lock().unwrap();
        for secret in ["hush-hush", "session-token-", "jwt-of-"] {
            assert!(!said.contains(secret), "{secret} is shown: {said}");
        }
    }
}

#[test]
fn an_instance_that_is_not_to_be_asked_is_not() {
    let fake = metadata(1);
    // No region either: the SDKs ask the instance for that too.
    let mut scene = Scene::new().env("AWS_EC2_METADATA_DISABLED", "false").env(NO_INSTANCE, "1");
    scene.env.retain(|(name, _)| name != "AWS_REGION");
    let mut asker = scene.env("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url()).start();
    let output = asker.read_line();
    assert!(
        output.contains("no credentials were found")
            && output.contains("set instance_metadata to true"),
        "{output}"
    );
    assert!(!output.contains(" <- "), "one layer: {output}");
    asker.child.wait().unwrap();
    assert!(fake.asked().is_empty(), "{:?}", fake.asked());
}

#[test]
fn all_other_sources_are_asked_without_the_instance() {
    let fake = Fake::start(|_, _| (200, json("session-token-0", 3600)));
    let scene = Scene::new().env(NO_INSTANCE, "1");
    let mut asker = scene.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", fake.url()).start();
    assert_eq!(asker.read_line(), "AKIDTEST from the container's agent");
    assert_eq!(asker.command("list"), "ok");
    asker.end(&["session-token-"]);
    let scene = Scene::new().env(NO_INSTANCE, "1");
    let text = "echo '{\"Version\": 1, \"AccessKeyId\": \"AKIDTEST\", \"SecretAccessKey\": \"secret/test+key\"}'";
    let script = scene.file("who", text);
    scene.file(
        ".aws/config",
        &format!("[default]\ncredential_process = /bin/sh {}\n", script.display()),
    );
    let mut asker = scene.start();
    assert_eq!(asker.read_line(), "AKIDTEST from the credential_process of a profile");
    assert_eq!(asker.command("list"), "ok");
    asker.end(&[]);
}
