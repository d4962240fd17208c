use std::sync::Arc;

use kvtier_key::{Digest, Key};

use crate::{
    Ctx, Done, Error, ErrorKind, Hold, Load, Loaded, LookedUp, Mode, Op, Removed, Save, Saved,
    ShedReason, Tier,
};

/// Conveniences for callers of any tier: single ops, and ops that wait while the tier is full.
///
/// ```
/// use std::time::Duration;
/// use kvtier_core::{Ctx, Key, Load, Loaded, Namespace, Save, Saved, Tier, TierExt, View};
/// use kvtier_core::mem::Lease;
///
/// async fn round_trip(tier: &dyn Tier) -> Result<(), kvtier_core::Error> {
///     let ctx = Ctx::within(Duration::from_secs(5));
///     let key = Key::from_name(&Namespace::from_name("model"), "chunk 0");
///     let from = vec![View::from_owner(vec![42; 4096])];
///     let saved = tier.save_one(&ctx, Save { key: key.clone(), from }).await;
///     assert_eq!(saved.result?, Saved::Stored);
///
///     // The lease travels with the op and comes back with the answer.
///     let into = vec![Lease::from(vec![0; 4096])];
///     let loaded = tier.load_one(&ctx, Load { key, into }).await;
///     assert_eq!(loaded.result?, Loaded::Hit { len: 4096 });
///     assert_eq!(loaded.op.into[0].as_host(), Some(&[42; 4096][..]));
///     Ok(())
/// }
/// ```
pub trait TierExt: Tier {
    /// Loads one chunk.
    fn load_one(&self, ctx: &Ctx, op: Load) -> impl Future<Output = Done<Load, Loaded>> + Send {
        // Submitted before the future is polled, so that the op runs even if the caller polls late.
        let ticket = self.load(ctx, vec![op]);
        async move { ticket.await.pop().expect("a batch of one is answered by one") }
    }

    /// Saves one chunk.
    fn save_one(&self, ctx: &Ctx, op: Save) -> impl Future<Output = Done<Save, Saved>> + Send {
        let ticket = self.save(ctx, vec![op]);
        async move { ticket.await.pop().expect("a batch of one is answered by one") }
    }

    /// The number of `keys` that are hits before the first one that is not.
    ///
    /// # Errors
    ///
    /// As for [`Tier::lookup`].
    fn prefix_len(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
    ) -> impl Future<Output = Result<usize, Error>> + Send {
        let ticket = self.lookup(ctx, keys, Mode::Prefix, Hold::None);
        async move { Ok(ticket.await?.prefix_len()) }
    }

    /// Loads a batch. Ops that are throttled are submitted again until they are accepted or the
    /// deadline passes. Results are in order.
    fn load_waiting(
        &self,
        ctx: &Ctx,
        ops: Vec<Load>,
    ) -> impl Future<Output = Vec<Done<Load, Loaded>>> + Send {
        async move {
            let throttled = |d: &Done<Load, Loaded>| matches!(d.result, Ok(Loaded::Throttled));
            // Before the ops are given away: a retry is a part of this batch and needs its order.
            let keys = digests_of(&ops);
            let mut all: Vec<_> = self.load(ctx, ops).await;
            // Only the refused ops again. Those with a result keep it, and their memory.
            while self.may_retry(ctx, all.iter().any(throttled)).await {
                let (at, ops) = take_if(&mut all, throttled);
                let answers = self.load(&ctx.for_part(&keys, &at), ops).await;
                put_back(&mut all, at, answers);
            }
            all
        }
    }

    /// Saves a batch. Ops that are throttled are submitted again until they are accepted or the
    /// deadline passes. Results are in order.
    fn save_waiting(
        &self,
        ctx: &Ctx,
        ops: Vec<Save>,
    ) -> impl Future<Output = Vec<Done<Save, Saved>>> + Send {
        async move {
            let throttled =
                |d: &Done<Save, Saved>| matches!(d.result, Ok(Saved::Shed(ShedReason::Throttled)));
            let keys = digests_of(&ops);
            let mut all: Vec<_> = self.save(ctx, ops).await;
            while self.may_retry(ctx, all.iter().any(throttled)).await {
                let (at, ops) = take_if(&mut all, throttled);
                // `for_part` keeps the whole atomic set: a set of the retried chunks alone would
                // become visible without the others.
                let answers = self.save(&ctx.for_part(&keys, &at), ops).await;
                put_back(&mut all, at, answers);
            }
            all
        }
    }

    /// Looks keys up. While the tier throttles, it asks again until the deadline passes.
    ///
    /// # Errors
    ///
    /// As for [`Tier::lookup`]; `Throttled` when the deadline passed first.
    fn lookup_waiting(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> impl Future<Output = Result<LookedUp, Error>> + Send {
        async move {
            loop {
                let answer = self.lookup(ctx, Arc::clone(&keys), mode, hold).await;
                if !self.may_retry(ctx, is_throttled(&answer)).await {
                    return answer;
                }
            }
        }
    }

    /// Removes keys. While the tier throttles, it asks again until the deadline passes.
    ///
    /// # Errors
    ///
    /// As for [`Tier::remove`]; `Throttled` when the deadline passed first.
    fn remove_waiting(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
    ) -> impl Future<Output = Result<Removed, Error>> + Send {
        async move {
            loop {
                let answer = self.remove(ctx, Arc::clone(&keys)).await;
                if !self.may_retry(ctx, is_throttled(&answer)).await {
                    return answer;
                }
            }
        }
    }

    /// Whether there is something to retry, capacity for it, and time left.
    #[doc(hidden)]
    fn may_retry(&self, ctx: &Ctx, needed: bool) -> impl Future<Output = bool> + Send {
        // The deadline first: a tier that is ready at once would otherwise be asked again and again
        // after it.
        async move { needed && kvtier_os::now() < ctx.deadline && self.ready(ctx).await.is_ok() }
    }
}

impl<T: Tier + ?Sized> TierExt for T {}

fn is_throttled<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(e) if e.kind() == ErrorKind::Throttled)
}

fn digests_of<O: Op>(ops: &[O]) -> Vec<Digest> {
    ops.iter().map(|op| *op.key().digest()).collect()
}

/// Takes the ops out whose results are `picked`, with their places.
fn take_if<O: Op, T>(
    all: &mut [Done<O, T>],
    picked: impl Fn(&Done<O, T>) -> bool,
) -> (Vec<usize>, Vec<O>) {
    let take = |(i, done): (usize, &mut Done<O, T>)| {
        picked(done).then(|| {
            // A placeholder until the retry is answered. If this future is dropped before, the op's
            // memory returns by itself.
            let bare = O::bare(done.op.key().clone());
            done.result = Err(Error::new(ErrorKind::Throttled, "offered again"));
            (i, std::mem::replace(&mut done.op, bare))
        })
    };
    all.iter_mut().enumerate().filter_map(take).unzip()
}

fn put_back<O, T>(all: &mut [Done<O, T>], at: Vec<usize>, answers: Vec<Done<O, T>>) {
    for (i, done) in at.into_iter().zip(answers) {
        all[i] = done;
    }
}
