//! An object out of registered memory into a store and back: against a server in memory, or the one
//! that `S3_ENDPOINT` names (with `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `S3_BUCKET`).
#![allow(clippy::print_stdout)]

use kvtier_mem::{Arena, ArenaConfig};
use kvtier_s3::creds::from_env;
use kvtier_s3::{BucketAddress, Client, Config, Credentials, Get, Put};
use kvtier_testkit::s3::{Server, Setup};

const BYTES: usize = 4 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let var = |name: &str| std::env::var(name).ok();
    let server = Server::start(Setup::default())?;
    let url = var("S3_ENDPOINT").unwrap_or_else(|| server.url());
    let bucket = var("S3_BUCKET").unwrap_or_else(|| "bucket".into());
    let endpoint = BucketAddress::new(url).bucket(bucket).region("us-east-1").resolve()?;
    let credentials =
        from_env(var)?.unwrap_or_else(|| Credentials::new("AKIDTEST", "secret/test+key"));
    let client = Client::new(Config::new(endpoint, credentials));
    println!("endpoint {}", client.endpoint());

    let arena = Arena::new(ArenaConfig::heap(2 * BYTES))?;
    let mut lease = arena.lease(BYTES)?;
    lease.write_at(0, &vec![7; BYTES])?;
    let view = lease.freeze();
    let stored =
        client.put("example/chunk", &view, &Put::default().meta("kvtier", "facts")).await?;
    println!("stored {stored:?}");

    let mut lease = arena.lease(BYTES)?;
    let object = client.get("example/chunk", &mut lease, &Get::default()).await?.ok_or("a miss")?;
    println!("{} bytes landed, metadata {:?}", object.len(), object.meta("kvtier"));
    if lease.as_host() != view.as_host() {
        return Err("other bytes came back".into());
    }
    client.delete("example/chunk").await?;
    for (name, value) in client.counts().list().into_iter().filter(|(_, value)| *value > 0) {
        println!("{name:>20} {value}");
    }
    Ok(())
}
