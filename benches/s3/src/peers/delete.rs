//! Deletes objects: by the tier with many per request, and by kvtier's client with one request each.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use kvtier_core::Tier;
use kvtier_s3::{Client, Config, Credentials, BucketAddress};
use tokio::task::LocalSet;

use super::tier::{TierRun, ctx, leases};
use super::{BUCKET, KEY, SECRET};
use crate::job::{Measured, RunArgs, Stopwatch};

/// Measures deleting.
pub fn run(args: &RunArgs) -> Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        match args.peer.as_str() {
            "kvtier" => one_by_one(args).await,
            "kvtier-tier" => by_tier(args).await,
            other => bail!("{other} is not measured deleting"),
        }
    })
}

/// Saves all chunks, then deletes them in one call, as an eviction does.
async fn by_tier(args: &RunArgs) -> Result<Measured> {
    let run_state = TierRun::new(args)?;
    let expected = crate::bytes::stream(args.size);
    drop(run_state.warm(leases(args, &expected)?, &expected).await?);
    let clock = Stopwatch::start();
    let began = Instant::now();
    let removed = run_state.tier.remove(&ctx(), run_state.keys.clone().into()).await?.removed;
    ensure!(removed as u64 == args.count, "{removed} of {} deleted", args.count);
    let each = began.elapsed().as_secs_f64() * 1e3 / removed as f64;
    Ok(clock.stop(vec![each; removed]))
}

async fn one_by_one(args: &RunArgs) -> Result<Measured> {
    let endpoint = BucketAddress::new(&args.endpoint).bucket(BUCKET).resolve()?;
    let mut config = Config::new(endpoint, Credentials::new(KEY, SECRET));
    // Deletes may use a quarter of the requests.
    config.requests_max = 4 * args.concurrency;
    let client = Arc::new(Client::new(config));
    let next = Rc::new(Cell::new(0));
    let count = args.count;
    client.delete("first").await?;
    let clock = Stopwatch::start();
    let worker = || {
        let client = Arc::clone(&client);
        let next = Rc::clone(&next);
        tokio::task::spawn_local(async move {
            let mut ms = Vec::new();
            while next.get() < count {
                let n = next.replace(next.get() + 1);
                let began = Instant::now();
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
