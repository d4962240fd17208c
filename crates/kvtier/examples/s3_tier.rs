//! Saves chunks to a bucket and loads them, against a server in memory that implements S3.
#![allow(clippy::print_stdout)]

use std::error::Error;

use kvtier::config::Config;
use kvtier::{Blocking, Key, Namespace};
use kvtier_testkit::s3::{Server, Setup};

fn main() -> Result<(), Box<dyn Error>> {
    let server = Server::start(Setup::default())?;
    let json = format!(
        r#"{{"tiers": [{{"type": "s3", "s3_endpoint": "{}/bucket", "s3_region": "us-east-1", "prefix": "kv",
            "aws_access_key_id": "AKIDTEST", "aws_secret_access_key": "secret/test+key"}}]}}"#,
        server.url()
    );
    let stack = Config::from_json(&json, "example.json")?.open()?;
    let ns = Namespace::from_name("example");
    let key = Key::from_name(&ns, "chunk 0");
    println!("save: {:?}", stack.top.save_bytes(&key, vec![42; 1 << 20])?);
    assert_eq!(stack.top.load_bytes(&key)?, Some(vec![42; 1 << 20]));
    println!("object: {:?}", server.keys("kv/").first());
    stack.top.close().wait()?;
    Ok(())
}
