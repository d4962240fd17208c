//! A cache in host memory with a cap: saves more than fits, and shows what was evicted.
#![allow(clippy::print_stdout)]

use std::error::Error;

use kvtier::core::Observe;
use kvtier::evict::PolicyKind;
use kvtier::{Blocking, HostConfig, HostTier, Key, Namespace};

fn main() -> Result<(), Box<dyn Error>> {
    let config = HostConfig::new(1 << 20).with_policy(PolicyKind::Lru);
    let tier = HostTier::open(config)?;
    let ns = Namespace::from_name("example");
    for n in 0..8u8 {
        tier.save_bytes(&Key::from_name(&ns, [n]), vec![n; 256 << 10])?;
    }
    for n in 0..8u8 {
        println!(
            "chunk {n}: {}",
            if tier.contains(&Key::from_name(&ns, [n]))? { "hit" } else { "evicted" }
        );
    }
    assert_eq!(tier.status().counter("evicted"), 4);
    println!("used {:?} of {:?} bytes", tier.usage().used_bytes, tier.usage().capacity_bytes);
    Ok(())
}
