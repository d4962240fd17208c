//! Tickets are futures: several batches run at once, and any executor can wait for them. This
//! program brings the smallest executor there is.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use kvtier::prelude::*;

const CHUNK: usize = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let memory = HostConfig::new(1 << 20);
    let below = HostConfig::new(16 << 20).with_name("below");
    let tiers: Vec<Arc<dyn Tier>> =
        vec![Arc::new(HostTier::open(memory)?), Arc::new(HostTier::open(below)?)];
    let stack = Stack::new("stack", tiers)?;
    block_on(run(&stack))
}

async fn run(tier: &dyn Tier) -> Result<(), Box<dyn Error>> {
    let ns = Namespace::from_name("example");
    let ctx = Ctx::within(Duration::from_secs(10));
    let save = |n: u8| {
        let from = vec![View::from_owner(vec![n; CHUNK])];
        tier.save(&ctx, vec![Save { key: Key::from_name(&ns, [n]), from }])
    };
    // Both batches have begun before the first is awaited.
    let first = save(1);
    let second = save(2);
    for done in first.await.into_iter().chain(second.await) {
        println!("save: {:?}", done.result?);
    }
    let keys: Arc<[Key]> = (0..4u8).map(|n| Key::from_name(&ns, [n])).collect();
    let found = tier.lookup(&ctx, keys, Mode::Each, Hold::None).await?;
    println!("found: {:?}", found.found);
    assert_eq!(found.found.iter().filter(|presence| presence.is_hit()).count(), 2);
    Ok(())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
