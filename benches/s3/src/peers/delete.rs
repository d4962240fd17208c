//! How fast objects go: by the tier, many with a request, and by our client with one request for each.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use kvtier_core::Tier;
use kvtier_s3::{Client, Config, Credentials, Place};
use tokio::task::LocalSet;

use super::tier::{World, ctx, leases};
use super::{BUCKET, KEY, SECRET};
use crate::job::{Clock, Measured, RunArgs};

/// Measures deleting.
pub fn run(args: &RunArgs) -> Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        match args.peer.as_str() {
            "kvtier" => singly(args).await,
            "kvtier-tier" => by_the_tier(args).await,
            other => bail!("{other} is not measured deleting"),
        }
    })
}

/// What is saved first, in one call; an eviction deletes in the same way.
async fn by_the_tier(args: &RunArgs) -> Result<Measured> {
    let (world, right) = (World::new(args)?, crate::bytes::stream(args.size));
    drop(world.warm(leases(args, &right)?, &right).await?);
    let (clock, began) = (Clock::start(), Instant::now());
    let removed = world.tier.remove(&ctx(), world.keys.clone().into()).await?.removed;
    ensure!(removed as u64 == args.count, "{removed} of {} went", args.count);
    let each = began.elapsed().as_secs_f64() * 1e3 / removed as f64;
    Ok(clock.stop(vec![each; removed]))
}

async fn singly(args: &RunArgs) -> Result<Measured> {
    let endpoint = Place::of(&args.endpoint).bucket(BUCKET).resolve()?;
    let mut config = Config::new(endpoint, Credentials::new(KEY, SECRET));
    // Of all places deletes have a quarter.
    config.requests_max = 4 * args.concurrency;
    let (client, next, count) = (Arc::new(Client::new(config)), Rc::new(Cell::new(0)), args.count);
    client.delete("first").await?;
    let clock = Clock::start();
    let worker = || {
        let (client, next) = (Arc::clone(&client), Rc::clone(&next));
        tokio::task::spawn_local(async move {
            let mut ms = Vec::new();
            while next.get() < count {
                let (n, began) = (next.replace(next.get() + 1), Instant::now());
                client.delete(&format!("{:02x}/{n:064x}", n % 256)).await?;
                ms.push(began.elapsed().as_secs_f64() * 1e3);
            }
            anyhow::Ok(ms)
        })
    };
    let workers: Vec<_> = (0..args.concurrency).map(|_| worker()).collect();
    let mut ms = Vec::new();
    for worker in workers {
        ms.extend(worker.await.context("a worker panicked")??);
    }
    Ok(clock.stop(ms))
}
